"""The page of a tuning, and the tuned experiment beside it."""

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from unskew.decide.follow_up import division, write_experiment
from unskew.decide.tuning.result import Tuning
from unskew.decide.tuning.search import Searched
from unskew.files import write_atomically
from unskew.report import charts
from unskew.report.page import Page, write_page
from unskew.report.pictures import gains
from unskew.report.section import Chart, Section, table
from unskew.report.worth import bracket
from unskew.run.folder import explained
from unskew.tasks.measure import Measure

PAGE, EXPERIMENT, SUMMARY, CLIENTS = "tuning.html", "tuned.toml", "tuning.json", "clients.json"


def write_tuning(tuning: Tuning, folder: Path) -> Path:
    """Write page, summary and the tuned experiment, with the division of rows unless the data fix it.

    Raises:
        RunError: If they cannot be written.
    """
    with explained(folder, None):
        write_experiment(tuning.sites, tuning.experiment, folder / EXPERIMENT, CLIENTS)
        write_atomically(folder / SUMMARY, json.dumps(tuning.to_json(), indent=1))
    return write_page(view(tuning), folder / PAGE)


def view(tuning: Tuning) -> Page:
    """The page: the gain of tuning, and the trials of each method."""
    experiment, m = tuning.sites.experiment, tuning.sites.measure
    searches = [s for s in tuning.searches if s.ranges]
    worth, tried = _worth(tuning, m), [_trials(s, m) for s in searches]
    pictures = [*worth.charts, _best(searches, m), *(chart for s in tried for chart in s.charts)]
    lead = (
        "Every choice was made on validation rows of the clients that train; test rows decided nothing. "
        f"{EXPERIMENT}, for unskew run, has the tuned methods under seeds not used before. "
        f"{division(tuning.sites, CLIENTS)}"
    )
    return Page(
        f"{experiment.name}: tuned at equal budgets",
        f"{tuning.budget} for each of {len(tuning.searches)} methods, {experiment.rounds} rounds a trial",
        tuning.headline,
        list(filter(None, pictures))[:2],
        worth.tables[0],
        sections=[*tried, Section("The experiment", lead)],
    )


def _worth(tuning: Tuning, m: Measure) -> Section:
    rows = []
    for s in tuning.searches:
        worth = tuning.worth[s.method.label]
        means = ("–" if of is None else m.show(fmean(x.mean for x in of)) for of in (worth.before, worth.after))
        values = "" if s.best is None else ", ".join(f"{n} {v:.3g}" for n, v in s.trials[s.best].values.items())
        rows.append((s.method.label, *means, bracket(worth.gain, m), values, worth.reading))
    percent = "%" * m.percent
    head = ["method", f"default | {percent}", f"tuned | {percent}", f"gain | {m.points}", "values", "reading"]
    caption = f"Mean {m.label} on test rows over clients, seeds {', '.join(map(str, tuning.seeds))}"
    known = {label: w.gain for label, w in tuning.worth.items() if w.gain is not None}
    return Section.of(
        "What was it worth?", "", [gains("Gain from tuning", known, m)], [table(caption, head, rows, words=[-2, -1])]
    )


def _best(searches: Sequence[Searched], m: Measure) -> Chart | None:
    """The best score of each method after each of its trials; None without scores."""
    scores = [
        {"method": s.method.label, "trial": i + 1, "score": m.scale * t.score}
        for s in searches
        for i, t in enumerate(s.trials)
        if t.score is not None and t.state == "complete"
    ]
    if not scores:
        return None
    drawn = charts.best_so_far(scores, charts.colours([s.method.label for s in searches]), m.axis, m.higher)
    ends = [(s.method.label, s.trials[s.best].score) for s in searches if s.best is not None]
    ends_in_words = "; ".join(f"{label} {m.with_unit(score)}" for label, score in ends if score is not None)
    return Chart("Best so far", "On validation rows, after each trial.", drawn, ends_in_words)


def _trials(searched: Searched, m: Measure) -> Section:
    """A row for each trial."""
    rows = [
        (str(i + 1), *(f"{t.values[n]:.4g}" if n in t.values else "as it was" for n in searched.ranges),
         "–" if t.score is None else m.show(t.score), str(t.rounds), f"{t.seconds:.1f}",
         "best" if i == searched.best else str(t.state))
        for i, t in enumerate(searched.trials)
    ]  # fmt: skip
    head = ["trial", *searched.ranges, f"{m.label} | on validation rows", "rounds", "time | s", "end"]
    label = searched.method.label
    tried = [
        {"trial": i + 1, "score": m.scale * t.score, **{name: t.values.get(name) for name in searched.ranges}}
        for i, t in enumerate(searched.trials)
        if t.score is not None
    ]
    caption = "A line is a trial; darker is a higher score on validation rows."
    drawn = charts.parallel(tried, list(searched.ranges), m.axis) if tried else None
    figure = None if drawn is None else Chart(f"What was tried of {label}", caption, drawn, f"{len(tried)} trials.")
    trials = table(f"Trials of {label}; the first has the settings as they were", head, rows, words=[-1])
    return Section.of(label, "", [figure], [trials])
