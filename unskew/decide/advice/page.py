"""The page of an advice, and the files beside it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from unskew.api import DATA_FILE
from unskew.data.dataset import Dataset
from unskew.data.saved import saved_sha256
from unskew.decide.advice.answer import Advice, advised_name
from unskew.decide.advice.race import FEDAVG, Candidate
from unskew.decide.follow_up import division, write_experiment
from unskew.decide.pages import gains, own_folder, reading, table
from unskew.decide.scores import Scores
from unskew.decide.training import ASKED
from unskew.errors import RunError
from unskew.experiment.config import Experiment, read_toml
from unskew.references import IN_PYTHON
from unskew.report import figures, html
from unskew.report.gain import Floats, ranked
from unskew.report.section import Chart, Section, TableRow
from unskew.report.worth import bracket
from unskew.run.folder import require_own
from unskew.run.progress import duration
from unskew.tasks.measure import Measure
from unskew.version import __version__
from unskew.words import beginning

MOST_DRAWN = 40
"""Sites up to which each has a mark in figures."""

MOST_LISTED = 100
"""Sites up to which each has a row in the table."""

PAGE, EXPERIMENT, SITES, CELLS = "advice.html", "advised.toml", "sites.json", "cells.sqlite"


def require_place(folder: Path, experiment: Experiment, given: Dataset | None = None) -> None:
    """Refuse a folder with files of something else, or with advice on another experiment or other data.

    `given` are data that are a value, which the experiment cannot tell from others: their hash says if they differ.

    Raises:
        DataError: If it has data of earlier advice that cannot be read.
        RunError: If it has files, and no earlier advice on this experiment.
    """
    require_own(folder, "advice", (EXPERIMENT, CELLS))
    if not (at := folder / EXPERIMENT).exists():
        return
    earlier = read_toml(at)
    if (name := earlier.get("name")) != advised_name(experiment):
        raise RunError(f"{at} is advice on another experiment ({name}); choose another --out")
    if (data := earlier.get("task", {}).get("data")) != experiment.task.data:
        raise RunError(f"{at} is advice on other data ({data}); choose another --out")
    if given is not None and (kept := folder / DATA_FILE).exists() and saved_sha256(kept) != given.sha256:
        raise RunError(f"{at} is advice on other data, those in {kept}; choose another --out")


def write_advice(advice: Advice, folder: Path) -> Path:
    """Write the page, and the experiment with what it needs: the sites of data that have none of their own, and data.

    Returns:
        The page.

    Raises:
        RunError: If they cannot be written.
    """
    with own_folder(folder):
        text = write_experiment(advice.sites, advice.experiment(), folder / EXPERIMENT, SITES)
    return html.write(html.page("advice.html", view(advice, text)), folder / PAGE)


def view(advice: Advice, text: str) -> dict[str, object]:
    """Collect the variables of the template."""
    first, *others = advice.sentences()
    sections = (_worth(advice), _for_whom(advice), _with_whom(advice), _race(advice), _newcomers(advice))
    sites, race, limits = advice.sites, advice.race, advice.limits
    what = (
        f"{sites.fed.num_clients} sites of {sites.setup.dataset.name}",
        f"{sites.experiment.task.model}, {sites.setup.parameters:,} parameters",
        f"{race.rounds} rounds",
        f"{limits.rounds} rounds at most" if limits.rounds else "",
        f"{limits.megabytes:g} MB at most" if limits.megabytes else "",
        f"found by {sites.clock.rounds:,} rounds of training in {duration(advice.seconds)}",
    )
    in_python = sites.experiment.task.model.startswith(IN_PYTHON)
    return {
        "advice": advice,
        "version": __version__,
        "name": sites.experiment.name,
        "what": ", ".join(filter(None, what)),
        "lead": first[1],
        "answers": others,
        "sections": [s for s in sections if s is not None],
        "toml": text,
        "file": EXPERIMENT,
        "division": division(sites, SITES),
        "note": "Its model is a value of Python, which no file can hold: run it from Python." if in_python else "",
    }


# ---------------------------------------------------------------- sections
def _worth(advice: Advice) -> Section | None:
    of, m, asked = advice.check.gains, advice.sites.measure, advice.sites.setup.task.measures[ASKED:]
    if not of:
        return None
    wider = "" if advice.check.set_aside is None else f", that of FedAvg {100 * advice.confidence:g} %"

    def row(label: str, scores: Sequence[Scores]) -> TableRow:
        values, gain = [s.mean for s in scores], of.get(label)
        spread = f"{m.show(min(values))} to {m.show(max(values))}"
        others = (other.show(float(np.mean([s.asked[other.name] for s in scores]))) for other in asked)
        shown = (bracket(gain, m), bracket(gain and gain.per_row, m), reading(gain))
        return TableRow(label, (m.show(float(np.mean(values))), spread, *others, *shown), below=_part(label, advice))

    caption = f"Marker: mean; bar: 95 % interval{wider}. A bar clear of zero is a difference."
    chart = Chart("Gain over local training, mean over sites", caption, gains("worth", [*of.items()], m))
    means = [f"{beginning(x.label)} | mean over sites{', %' * x.percent}" for x in (m, *asked)]
    head = ["Training", means[0], "Seeds | lowest to highest", *means[1:], f"Gain over alone | {m.points}",
            f"Per test row | {m.points}", "Reading"]  # fmt: skip
    rows = [row(label, scores) for label, scores in advice.check.results.items() if scores]
    caption = f"On test rows of the sites, {len(advice.check.seeds)} fresh seeds{wider}"
    return Section("Is it worth it?", "", (chart,), (table(caption, head, rows, words=[-1]),))


def _part(label: str, advice: Advice) -> str:
    """The part of a training in the answer, beside its label; empty if it is there to compare with."""
    aside = advice.check.set_aside
    if aside is not None and label in (aside.label, FEDAVG):
        return "set aside" if label == aside.label else "in its place"
    return "chosen" if label == advice.check.chosen else ""


def _for_whom(advice: Advice) -> Section | None:
    m, names, order, note = advice.sites.measure, advice.sites.names, ranked(advice.by_site), ""
    if not order:
        return None
    if (left := len(order) - MOST_LISTED) > 0:
        order = [*order[: MOST_LISTED // 2], *order[-MOST_LISTED // 2 :]]
        note = f"Those shown to gain come first, those shown to lose last; {left:,} between them are in --json."
    charts: tuple[Chart, ...] = ()
    if len(order) <= MOST_DRAWN:
        caption = f"With {advice.check.chosen} against local training; bar: 95 % interval."
        svg = gains("sites", [(names[c], advice.by_site[c]) for c in order], m)
        charts = (Chart("Gain of each site", caption, svg),)
    percent = "%" if m.percent else ""
    head = ["Site", "Rows | to train on", "Rows | tested", f"Alone | {percent}", f"With the others | {percent}",
            f"Gain | {m.points}", "Reading"]  # fmt: skip
    rows = [TableRow(names[c], advice.site_row(c)) for c in order]
    caption = f"Each site alone and with {advice.check.chosen}"
    return Section("Which sites benefit?", "", charts, (table(caption, head, rows, note, [-1]),))


def _with_whom(advice: Advice) -> Section | None:
    measured, names = advice.measured, advice.sites.names
    rows = [
        TableRow(d.name, (f"{d.value:.3g}", f"{d.chance:.3g}", "–" if d.p is None else f"{d.p:.2g}", d.meaning))
        for d in measured.numbers
    ]
    head = ["Sites differ in", "Number", "Alike sites | would have", "p", "In words"]
    tables = (table("Disagreement of the sites' data", head, rows, words=[-1]),) if rows else ()
    charts: tuple[Chart, ...] = ()
    if measured.cosines is not None and len(names) <= MOST_DRAWN:
        order = [c for g in (advice.groups or (tuple(range(len(names))),)) for c in g]
        caption = "Cosine of what training changes of a common model at two sites: 1 is one direction, −1 the opposite."
        caption += " Sites of a group stand together." if advice.groups else ""
        svg = _cosines_chart(measured.cosines[np.ix_(order, order)], [names[c] for c in order])
        charts = (Chart("Directions of training", caption, svg),)
    return Section("Who should train with whom?", "", charts, tables) if charts or tables else None


def _race(advice: Advice) -> Section:
    m, race = advice.sites.measure, advice.race
    rounds = sorted({t for e in race.entries for t in e.scores})
    rounds = rounds if len(rounds) <= 5 else [*rounds[:4], rounds[-1]]

    def row(entry: Candidate) -> TableRow:
        cells = [m.show(entry.scores[t].mean) if t in entry.scores else "–" for t in rounds]
        what = "chosen" if entry is race.chosen else "as good" if entry.method.label in race.close else entry.out
        return TableRow(entry.method.label, (*cells, what or "reached the end"))

    locals_of = {label: e.method.options.get("local", {}) for label, e in race.bounds.items()}
    rates = ", ".join(f"{label} {local['lr']:g}" for label, local in locals_of.items() if "lr" in local)
    note = (
        f"Judged by rows that training left out, in {race.folds} folds. The better half goes on for twice as long. "
        f"Chosen is the best, but FedAvg unless that is better by two standard errors. Local rates: {rates}."
    )
    head = ["Method", *(f"Round {t} | {'%' * m.percent}" for t in rounds), ""]
    caption = f"{beginning(m.label)} on validation rows, mean over sites"
    rows = [row(entry) for entry in race.entries]
    return Section("Which method and settings?", "", (), (table(caption, head, rows, note, [-1]),))


def _newcomers(advice: Advice) -> Section | None:
    m: Measure = advice.sites.measure
    if not advice.newcomers:
        return None
    rows = [
        TableRow(n.name, tuple("–" if v is None else m.show(v) for v in (n.alone, n.served, n.adapted, n.joined)))
        for n in advice.newcomers
    ]
    head = ["Site", *(f"{of} | {'%' * m.percent}" for of in ("Alone", "As served", "After adapting", "As a member"))]
    note = "They take no part in training, and come when it has ended. One seed: no intervals."
    return Section("What about a new site?", "", (), (table("Sites that took no part", head, rows, note),))


def _cosines_chart(cosines: Floats, names: Sequence[str]) -> Markup:
    """Cosines of every two sites: blue for one direction, orange for opposite ones."""
    n = len(names)
    cells = figures.shades(np.clip(cosines, -1, 1) * 180 / 255, "#0072b2", "#d55e00")  # light, to read numbers on it
    with figures.style("cosines"):
        figure, axes = figures.chart(430, 430)
        axes.imshow(cells, interpolation="none")
        axes.grid(visible=False)
        step = max(1, n // 20)
        figures.name_ticks(axes.yaxis, range(0, n, step), lambda k: names[k])
        figures.name_ticks(axes.xaxis, range(0, n, step), lambda k: names[k])
        if n <= 12:
            for i in range(n):
                for k in range(n):
                    axes.text(k, i, f"{cosines[i, k]:.1f}".replace("-", "−"), ha="center", va="center", fontsize=8)
        inside = cosines[~np.eye(n, dtype=bool)]
        alt = f"Cosines of {n} sites' training, from {inside.min():.2f} to {inside.max():.2f}."
        return figures.markup(figure, "cosines", alt)
