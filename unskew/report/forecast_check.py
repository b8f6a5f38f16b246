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
class Beside:
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


def beside(record: Record) -> tuple[Beside, ...]:
    """Bytes and seconds of each method (one seed, the mean over seeds), then of the whole run seconds and peak memory.

    Empty for a run without plan.json, and for an unfinished one: the forecast is for the whole run.
    """
    foretold, summary = record.predicted, record.summary
    if foretold is None or summary is None:
        return ()
    rows = []
    for row in tables.headline(record):
        sent, seconds = foretold.methods.get(row.method, (None, None))
        if row.mb:
            actual = sum(s.mean for s in row.mb.values())
            sure = SURE.get(foretold.traffic.get(row.method, ""), "–")
            rows.append(Beside(row.method, "MB", None if sent is None else sent / MB, actual, sure))
        if row.seconds is not None:
            rows.append(Beside(row.method, "s", seconds, row.seconds.mean))
    rows.append(Beside("whole run", "s", foretold.seconds, summary.seconds))
    if summary.peak_rss is not None:
        rows.append(
            Beside("peak memory of the main process", "MB", foretold.peak / MB, summary.peak_rss / MB, "a sum of parts")
        )
    return tuple(rows)
