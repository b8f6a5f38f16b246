"""Compares the forecast in plan.json with the run."""

from dataclasses import dataclass

from unskew.record.reader import Record
from unskew.report import tables
from unskew.units import MB

SURE = {
    "exact": "exact",
    "extrapolated": "from the rounds driven",
    "estimated": "estimate: training decides",
    "unknown": "not known",
}
"""Note on a method's bytes, by the word that plan.json uses."""


@dataclass(frozen=True)
class ForecastCheck:
    """A quantity as forecast (None if it was not) and as measured; `sure` says how certain the forecast is."""

    what: str
    unit: str
    predicted: float | None
    actual: float
    sure: str = "from a few steps"

    @property
    def ratio(self) -> float | None:
        """Predicted over actual; None if either is zero or missing."""
        return self.predicted / self.actual if self.predicted and self.actual else None


def check_forecast(record: Record) -> tuple[ForecastCheck, ...]:
    """Bytes and seconds of each method (one seed, the mean over seeds), then of the whole run seconds and peak memory.

    Empty for a run without plan.json, and for an unfinished one: the forecast is for the whole run.
    """
    forecast, summary = record.predicted, record.summary
    if forecast is None or summary is None:
        return ()
    rows = []
    for row in tables.headline(record):
        sent, seconds = forecast.methods.get(row.method, (None, None))
        if row.mb:
            actual = sum(s.mean for s in row.mb.values())
            sure = SURE.get(forecast.traffic.get(row.method, ""), "–")
            rows.append(ForecastCheck(row.method, "MB", None if sent is None else sent / MB, actual, sure))
        if row.seconds is not None:
            rows.append(ForecastCheck(row.method, "s", seconds, row.seconds.mean))
    # The forecast is of all the seeds there may be; of those that a decision left out nothing was spent.
    share = 1.0 if record.until is None else len(record.seeds) / record.until["most"]
    whole = None if forecast.seconds is None else share * forecast.seconds
    rows.append(ForecastCheck("whole run", "s", whole, summary.seconds))
    if summary.peak_rss is not None:
        rows.append(
            ForecastCheck(
                "peak memory of the main process", "MB", forecast.peak / MB, summary.peak_rss / MB, "a sum of parts"
            )
        )
    return tuple(rows)
