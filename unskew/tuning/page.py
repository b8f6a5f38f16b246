"""The page of a tuning, and the tuned experiment beside it."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from unskew.advice.follow_up import division, write_experiment
from unskew.errors import RunError
from unskew.files import write_atomically
from unskew.report import charts
from unskew.report.page import Page, write_page
from unskew.report.section import Chart, Section, Table, TableRow
from unskew.report.worth import bracket
from unskew.tasks.measure import Measure
from unskew.tuning.result import Tuning
from unskew.tuning.search import Searched
from unskew.words import beginning

PAGE, EXPERIMENT, SUMMARY, CLIENTS = "tuning.html", "tuned.toml", "tuning.json", "clients.json"
READING = {"gains": "better", "loses": "worse", "open": "cannot be told apart"}


def write_tuning(tuning: Tuning, folder: Path) -> Path:
    """Write page, summary and the tuned experiment, with the division of rows where the data do not fix it.

    Raises:
        RunError: If they cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_experiment(tuning.sites, tuning.experiment, folder / EXPERIMENT, CLIENTS)
        write_atomically(folder / SUMMARY, json.dumps(tuning.to_json(), indent=1))
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}; give another folder") from error
    return write_page(view(tuning), folder / PAGE)


def view(tuning: Tuning) -> Page:
    """The page: what tuning was worth, and by method what was tried."""
    measure, searches = tuning.sites.measure, [s for s in tuning.searches if s.ranges]
    tried = [_sensitivity(s, measure) for s in searches if any(t.score is not None for t in s.trials)]
    pictures = [_best(searches, measure), *(chart for s in tried for chart in s.charts)] if tried else []
    lead = f"{EXPERIMENT}, for unskew run, has the tuned methods under seeds not used before."
    how = "Every choice was made on validation rows of the clients that train; test rows decided nothing."
    return Page(
        f"{tuning.sites.experiment.name}: tuned at equal budgets",
        f"{tuning.budget} for each of {len(searches)} methods, {tuning.sites.experiment.rounds} rounds a trial",
        tuning.lead,
        pictures[:2],
        _worth(tuning).tables[0],
        sections=[*tried, Section("The experiment", f"{how} {lead} {division(tuning.sites, CLIENTS)}")],
    )


def _worth(tuning: Tuning) -> Section:
    m = tuning.sites.measure
    entries = []
    for s in tuning.searches:
        worth = tuning.worth[s.method.label]
        values = "" if s.best is None else ", ".join(f"{n} {v:.3g}" for n, v in s.trials[s.best].values.items())
        before, after = (
            f"diverged, {n} of {len(tuning.seeds)}"
            if scores is None
            else m.show(float(np.mean([x.mean for x in scores])))
            for scores, n in zip((worth.before, worth.after), worth.diverged, strict=True)
        )
        gain = "–" if worth.gain is None else bracket(worth.gain, m)
        reading = (
            "nothing to tune"
            if not s.ranges
            else "default kept"
            if worth.default_stays
            else READING.get(worth.verdict, "")
        )
        entries.append(TableRow(s.method.label, (before, after, gain, reading, values)))
    percent = "%" if m.percent else ""
    head = (
        ("Method", ""), ("Default", percent), ("Tuned", percent), ("Gain", m.points), ("Reading", ""), ("Values", ""),
    )  # fmt: skip
    seeds = ", ".join(map(str, tuning.seeds))
    caption = (
        f"{beginning(m.label)} on test rows, mean over clients, seeds {seeds}: {tuning.over}, each its own; "
        f"readings are corrected for the number of methods (Holm)"
    )
    return Section("What was it worth?", "", (), (Table(caption, head, tuple(entries), text=frozenset((4, 5))),))


def _best(searches: Sequence[Searched], m: Measure) -> Chart:
    """The best score of each method after each of its trials."""
    scores = [
        {"method": s.method.label, "trial": i + 1, "score": m.scale * t.score}
        for s in searches
        for i, t in enumerate(s.trials)
        if t.score is not None
    ]
    drawn = charts.best_so_far(scores, charts.colours([s.method.label for s in searches]), m.axis, m.higher)
    ends = "; ".join(
        f"{s.method.label} {m.with_unit(s.trials[s.best].score or 0.0)}" for s in searches if s.best is not None
    )
    return Chart("Best so far", "On validation rows, after each trial.", drawn, f"Best on validation rows: {ends}.")


def _sensitivity(searched: Searched, m: Measure) -> Section:
    """What was tried, a line for each trial."""
    tried = [
        {"trial": i + 1, "score": m.scale * t.score, **{name: t.values.get(name) for name in searched.ranges}}
        for i, t in enumerate(searched.trials)
        if t.score is not None
    ]
    label, told = searched.method.label, sensitivity(searched, m)
    drawn = charts.parallel(tried, list(searched.ranges), m.axis)
    caption = "A line is a trial; darker is a higher score on validation rows."
    return Section(label, told, (Chart(f"What was tried of {label}", caption, drawn, told),), (_trials(searched, m),))


def _trials(searched: Searched, m: Measure) -> Table:
    """Return a row for each trial."""
    rows = tuple(
        TableRow(
            str(i + 1),
            (
                *(f"{t.values[n]:.4g}" if n in t.values else "as it was" for n in searched.ranges),
                "–" if t.score is None else m.show(t.score),
                str(t.rounds),
                f"{t.seconds:.1f}",
                "best" if i == searched.best else t.state,
            ),
        )
        for i, t in enumerate(searched.trials)
    )
    unit = f"{'% ' if m.percent else ''}on validation rows"
    ranges = ((name, "") for name in searched.ranges)
    head = (("Trial", ""), *ranges, (beginning(m.label), unit), ("Rounds", ""), ("Time", "s"), ("", ""))
    caption = f"Trials of {searched.method.label}; the first has the settings as they were"
    return Table(caption, head, rows, text=frozenset((len(head) - 1,)))


def sensitivity(searched: Searched, m: Measure) -> str:
    """Return a sentence on how the score goes with each hyperparameter: rank correlations over complete trials."""
    from scipy import stats

    complete = [t for t in searched.trials if t.complete and t.score is not None]
    if len(complete) < 4:
        return f"{len(complete)} complete trials: too few to say what matters."
    parts = []
    for name in searched.ranges:
        tried = [t for t in complete if name in t.values]  # all but the first, if no range holds its value
        rho = float(stats.spearmanr([t.values[name] for t in tried], [t.score for t in tried]).statistic)
        parts.append(f"{name} {'–' if math.isnan(rho) else f'{rho:+.2f}'.replace('-', '−')}")
    spread = [t.score for t in complete if t.score is not None]
    ends = f"{m.show(min(spread))} to {m.show(max(spread))}{' %' if m.percent else ''}"
    return (
        f"From {ends} over {len(complete)} complete trials. Rank correlation "
        f"of {m.label} with {', '.join(parts)}; a best in the middle of a range is seen in the figure only."
    )
