"""The page of a tuning, and the tuned experiment beside it."""

import json
from pathlib import Path

import numpy as np
from markupsafe import Markup

from unskew.decide.follow_up import division, write_experiment
from unskew.decide.pages import own_folder, table
from unskew.decide.tuning.result import Tuning
from unskew.decide.tuning.search import Searched
from unskew.files import write_atomically
from unskew.report import figures, html
from unskew.report.section import Chart, Section, Table, TableRow
from unskew.report.worth import bracket
from unskew.tasks.measure import Measure
from unskew.version import __version__
from unskew.words import beginning

PAGE, EXPERIMENT, SUMMARY, CLIENTS = "tuning.html", "tuned.toml", "tuning.json", "clients.json"
READING = {"gains": "better", "loses": "worse", "open": "cannot be told apart"}


def write_tuning(tuning: Tuning, folder: Path) -> Path:
    """Write page, summary and the tuned experiment, with the division of rows where the data do not fix it.

    Raises:
        RunError: If they cannot be written.
    """
    with own_folder(folder):
        write_experiment(tuning.sites, tuning.experiment, folder / EXPERIMENT, CLIENTS)
        write_atomically(folder / SUMMARY, json.dumps(tuning.to_json(), indent=1))
    return html.write(html.page("tuning.html", view(tuning)), folder / PAGE)


def view(tuning: Tuning) -> dict[str, object]:
    """Collect the variables of the template."""
    measure, searches = tuning.sites.measure, [s for s in tuning.searches if s.ranges]
    return {
        "version": __version__,
        "name": tuning.sites.experiment.name,
        "what": f"{tuning.budget} for each of {len(searches)} methods, {tuning.sites.experiment.rounds} rounds a trial",
        "lead": tuning.lead,
        "worth": _worth(tuning),
        "tried": [(_sensitivity(s, measure, i), _trials(s, measure)) for i, s in enumerate(searches)],
        "file": EXPERIMENT,
        "division": division(tuning.sites, CLIENTS),
    }


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
    head = [
        "Method",
        *(f"{of} | {'%' * m.percent}" for of in ("Default", "Tuned")),
        f"Gain | {m.points}",
        "Reading",
        "Values",
    ]
    seeds = ", ".join(map(str, tuning.seeds))
    caption = (
        f"{beginning(m.label)} on test rows, mean over clients, seeds {seeds}: {tuning.over}, each its own; "
        f"readings are corrected for the number of methods (Holm)"
    )
    return Section("What was it worth?", "", (), (table(caption, head, entries, words=[4, 5]),))


def _sensitivity(searched: Searched, m: Measure, number: int) -> Section:
    """Return a figure for each hyperparameter."""
    charts = tuple(
        Chart(
            f"{searched.method.label}: {name}",
            "A mark for each trial: filled to the end, open pruned. The ring is the best.",
            _chart(searched, name, m, f"tried{number}-{k}"),
        )
        for k, name in enumerate(searched.ranges)
    )
    return Section(searched.method.label, "", charts)


def _trials(searched: Searched, m: Measure) -> Table:
    """Return a row for each trial."""
    rows = [
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
    ]
    score = f"{beginning(m.label)} | {'% ' * m.percent}on validation rows"
    caption = f"Trials of {searched.method.label}; the first has the settings as they were"
    return table(caption, ["Trial", *searched.ranges, score, "Rounds", "Time | s", ""], rows, words=[-1])


def _chart(searched: Searched, name: str, m: Measure, figure_name: str) -> Markup:
    points = [(i, t) for i, t in enumerate(searched.trials) if t.score is not None and name in t.values]
    with figures.style(figure_name):
        figure, axes = figures.chart(190, 300)
        look = figures.looks([False])[0]
        for i, t in points:
            face = look.colour if t.state == "complete" else "none"
            score = m.scale * (t.score or 0.0)
            axes.plot([t.values[name]], [score], "o", color=look.colour, markerfacecolor=face, markersize=6)
            if i == searched.best:
                axes.plot([t.values[name]], [score], "o", color=figures.INK, markerfacecolor="none", markersize=12)
        if searched.ranges[name].log:
            axes.set_xscale("log")
            figures.plain_numbers(axes.xaxis)
        axes.set_xlabel(name)
        axes.set_ylabel(f"{m.label}{', %' if m.percent else ''}")
        return figures.markup(figure, figure_name, f"{m.label} of {len(points)} trials against {name}.")
