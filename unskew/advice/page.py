"""The page of an advice, and the files beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from unskew.advice.answer import Advice, advised_name, reading
from unskew.advice.follow_up import division, write_experiment
from unskew.advice.race import FEDAVG, Candidate
from unskew.advice.training import ASKED, Scores
from unskew.api import DATA_FILE
from unskew.data.dataset import Dataset
from unskew.data.saved import saved_sha256
from unskew.errors import RunError
from unskew.experiment.config import Experiment, read_toml
from unskew.references import IN_PYTHON
from unskew.report import charts
from unskew.report.gain import Floats, Gain, ranked
from unskew.report.page import Page, write_page
from unskew.report.section import Chart, Section, Table, TableRow
from unskew.report.worth import bracket
from unskew.run.folder import require_own
from unskew.run.progress import duration
from unskew.tasks.measure import Measure
from unskew.words import beginning

MOST_DRAWN = 40
"""Sites up to which each has a mark in figures."""

MOST_LISTED = 100
"""Sites up to which each has a row in the table."""

PAGE, EXPERIMENT, SITES = "advice.html", "advised.toml", "sites.json"


@dataclass(frozen=True)
class Files:
    """Files that advice writes: the page, and the experiment that it recommends."""

    page: Path
    experiment: Path


def require_place(folder: Path, experiment: Experiment, given: Dataset | None = None) -> None:
    """Refuse a folder with files of something else, or with advice on another experiment or other data.

    `given` are data that are a value, which the experiment cannot tell from others: their hash says if they differ.

    Raises:
        DataError: If it has data of earlier advice that cannot be read.
        RunError: If it has files, and no earlier advice on this experiment.
    """
    require_own(folder, "advice", (EXPERIMENT,))
    if not (at := folder / EXPERIMENT).exists():
        return
    earlier = read_toml(at)
    if (name := earlier.get("name")) != advised_name(experiment):
        raise RunError(f"{at} is advice on another experiment ({name}); choose another --out")
    if (data := earlier.get("task", {}).get("data")) != experiment.task.data:
        raise RunError(f"{at} is advice on other data ({data}); choose another --out")
    if given is not None and (kept := folder / DATA_FILE).exists() and saved_sha256(kept) != given.sha256:
        raise RunError(f"{at} is advice on other data, those in {kept}; choose another --out")


def write_advice(advice: Advice, folder: Path) -> Files:
    """Write page, experiment, and what the experiment needs: the sites of data that have none of their own, and data.

    Raises:
        RunError: If they cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = write_experiment(advice.sites, advice.experiment(), folder / EXPERIMENT, SITES)
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror or error}; give another --out") from error
    page = write_page(view(advice, text), folder / PAGE)
    return Files(page, folder / EXPERIMENT)


def view(advice: Advice, text: str) -> Page:
    """The page: its first answer, the gain of each training and of each site, and the rest folded."""
    first, *others = advice.sentences()
    in_python = advice.sites.experiment.task.model.startswith(IN_PYTHON)
    note = "Its model is a value of Python, which no file can hold: run it from Python." if in_python else ""
    lead = (
        f"{EXPERIMENT}, for unskew run: the recommended method, beside local training, FedAvg and pooled data, under "
        f"seeds not used before. {division(advice.sites, SITES)} {note}"
    )
    answers = tuple(TableRow(question, (answer,)) for question, answer in others)
    parts = [_worth(advice), _for_whom(advice), _with_whom(advice), _race(advice), _newcomers(advice)]
    sections = [s for s in parts if s is not None]
    return Page(
        f"{advice.sites.experiment.name}: should they train together?",
        _what(advice),
        first[1],
        [s.charts[0] for s in sections[:2] if s.charts],
        Table("", (("", ""), ("answer", "")), answers, text=frozenset({1})),
        sections=[*sections, Section("The experiment", lead, code=text)],
    )


def _what(advice: Advice) -> str:
    sites, race = advice.sites, advice.race
    limits = [f"{advice.limits.rounds} rounds at most"] if advice.limits.rounds else []
    limits += [f"{advice.limits.megabytes:g} MB at most"] if advice.limits.megabytes else []
    return ", ".join(
        [
            f"{sites.fed.num_clients} sites of {sites.setup.dataset.name}",
            f"{sites.experiment.task.model}, {sites.setup.parameters:,} parameters",
            f"{race.rounds} rounds",
            *limits,
            f"found by {sites.clock.rounds:,} rounds of training in {duration(advice.seconds)}",
        ]
    )


# ---------------------------------------------------------------- sections
def _worth(advice: Advice) -> Section | None:
    gains, m = advice.check.gains, advice.sites.measure
    if not gains:
        return None
    rows = list(gains.items())
    caption = f"Mark: mean; bar: 95 % interval{_wider(advice)}. A bar clear of zero is a difference."
    chart = _gains("Gain over local training, mean over sites", caption, rows, m)
    entries = []
    asked = advice.sites.setup.task.measures[ASKED:]
    for label, scores in advice.check.results.items():
        values = [s.mean for s in scores]
        spread = f"{m.show(min(values))} to {m.show(max(values))}"
        of = gains.get(label)
        below = _part(label, advice)
        entries.append(
            TableRow(
                label,
                (
                    m.show(float(np.mean(values))),
                    spread,
                    *(_mean_of(measure, scores) for measure in asked),
                    bracket(of, m),
                    bracket(of and of.per_row, m),
                    reading(of),
                ),
                below=below,
            )
        )
    head = (
        ("Training", ""),
        (beginning(m.label), "mean over sites" + (", %" if m.percent else "")),
        ("Seeds", "lowest to highest"),
        *((beginning(measure.label), "mean over sites" + (", %" if measure.percent else "")) for measure in asked),
        ("Gain over alone", m.points),
        ("Per test row", m.points),
        ("Reading", ""),
    )
    caption = f"On test rows of the sites, {len(advice.check.seeds)} fresh seeds{_wider(advice)}"
    table = Table(caption, head, tuple(entries), text=frozenset((len(head) - 1,)))
    return Section("Is it worth it?", "", (chart,), (table,))


def _mean_of(measure: Measure, scores: Sequence[Scores]) -> str:
    """The mean over seeds of a metric that `evaluate` asks for."""
    return measure.show(float(np.mean([s.asked[measure.name] for s in scores]))) if scores else "–"


def _wider(advice: Advice) -> str:
    """Name the interval that is not of 95 %; empty where all are."""
    return "" if advice.check.set_aside is None else f", that of FedAvg {100 * advice.confidence:g} %"


def _part(label: str, advice: Advice) -> str:
    """The part of a training in the answer, beside its label; empty if it is there to compare with."""
    aside = advice.check.set_aside
    if aside is not None and label in (aside.label, FEDAVG):
        return "set aside" if label == aside.label else "in its place"
    return "chosen" if label == advice.check.chosen else ""


def _for_whom(advice: Advice) -> Section | None:
    m, names = advice.sites.measure, advice.sites.names
    if not advice.by_site:
        return None
    order = ranked(advice.by_site)
    left = len(order) - MOST_LISTED
    note = ""
    if left > 0:
        order = [*order[: MOST_LISTED // 2], *order[-MOST_LISTED // 2 :]]
        note = f"Those shown to gain come first, those shown to lose last; {left:,} between them are in --json."
    rows = [(names[c], advice.by_site[c]) for c in order]
    entries = [TableRow(names[c], advice.site_row(c)) for c in order]
    percent = "%" if m.percent else ""
    head = (
        ("Site", ""),
        ("Rows", "to train on"),
        ("Rows", "tested"),
        ("Alone", percent),
        ("With the others", percent),
        ("Gain", m.points),
        ("Reading", ""),
    )
    charts_of: tuple[Chart, ...] = ()
    if len(rows) <= MOST_DRAWN:
        caption = f"With {advice.check.chosen} against local training; bar: 95 % interval."
        charts_of = (_gains("Gain of each site", caption, rows, m),)
    table = Table(f"Each site alone and with {advice.check.chosen}", head, tuple(entries), note, frozenset((6,)))
    return Section("Which sites benefit?", "", charts_of, (table,))


def _with_whom(advice: Advice) -> Section | None:
    measured, names = advice.measured, advice.sites.names
    entries = [
        TableRow(d.name, (f"{d.value:.3g}", f"{d.chance:.3g}", "–" if d.p is None else f"{d.p:.2g}", d.meaning))
        for d in measured.numbers
    ]
    head = (("Sites differ in", ""), ("Number", ""), ("Alike sites", "would have"), ("p", ""), ("In words", ""))
    tables = (Table("Disagreement of the sites' data", head, tuple(entries), text=frozenset((4,))),) if entries else ()
    drawn: tuple[Chart, ...] = ()
    if measured.cosines is not None and len(names) <= MOST_DRAWN:
        order = [c for g in (advice.groups or (tuple(range(len(names))),)) for c in g]
        caption = "Cosine of what training changes of a common model at two sites: 1 is one direction, −1 the opposite."
        if advice.groups:
            caption += " Sites of a group stand together."
        drawn = (_cosines(caption, measured.cosines[np.ix_(order, order)], [names[c] for c in order]),)
    return Section("Who should train with whom?", "", drawn, tables) if drawn or tables else None


def _race(advice: Advice) -> Section:
    m, race = advice.sites.measure, advice.race
    rounds = sorted({t for e in race.entries for t in e.scores})
    rounds = rounds if len(rounds) <= 5 else [*rounds[:4], rounds[-1]]

    def row(entry: Candidate) -> TableRow:
        cells = [m.show(entry.scores[t].mean) if t in entry.scores else "–" for t in rounds]
        what = "chosen" if entry is race.chosen else "as good" if entry.method.label in race.close else entry.out
        return TableRow(entry.method.label, (*cells, what or "reached the end"))

    head = (("Method", ""), *((f"Round {t}", "%" if m.percent else "") for t in rounds), ("", ""))
    locals_of = {label: e.method.options.get("local", {}) for label, e in race.bounds.items()}
    rates = ", ".join(f"{label} {local['lr']:g}" for label, local in locals_of.items() if "lr" in local)
    in_time = "" if advice.sites.fed.dataset.when is None else ", and so was whatever is later"
    left_out = "A fold" if race.folds == 1 else f"Each of {race.folds} folds"
    note = (
        f"{left_out} of the training rows was left out of training to decide{in_time}. The better half goes on for "
        "twice as long. Chosen is the best, but FedAvg unless that is better by two standard errors. "
        f"Local rates: {rates}; methods with one model take FedAvg's, others that of sites "
        "alone."
    )
    caption = f"{beginning(m.label)} on validation rows, mean over sites"
    table = Table(caption, head, tuple(map(row, race.entries)), note, text=frozenset((len(rounds) + 1,)))
    return Section("Which method and settings?", "", (), (table,))


def _newcomers(advice: Advice) -> Section | None:
    m = advice.sites.measure
    if not advice.newcomers:
        return None
    percent = "%" if m.percent else ""

    def show(value: float | None) -> str:
        return "–" if value is None else m.show(value)

    entries = tuple(
        TableRow(n.name, (show(n.alone), show(n.served), show(n.adapted), show(n.joined))) for n in advice.newcomers
    )
    head = (("Site", ""), *((t, percent) for t in ("Alone", "As served", "After adapting", "As a member")))
    note = "They take no part in training, and come when it has ended. One seed: no intervals."
    return Section("What about a new site?", "", (), (Table("Sites that took no part", head, entries, note),))


# ---------------------------------------------------------------- figures
def _gains(title: str, caption: str, rows: Sequence[tuple[str, Gain]], m: Measure) -> Chart:
    """A gain in each row: its mark, and its interval."""
    data = [charts.interval(name, g, m.scale, kind=g.verdict) for name, g in rows]
    drawn = charts.forest(data, f"gain in {m.label}{', ' * bool(m.points)}{m.points}")
    return Chart(title, caption, drawn, "; ".join(f"{name} {bracket(gain, m)}" for name, gain in rows))


def _cosines(caption: str, cosines: Floats, names: Sequence[str]) -> Chart:
    """Cosines of every two sites: one colour for one direction, another for opposite ones."""
    cells = [
        {"column": names[k], "row": names[i], "value": float(v)}
        for (i, k), v in np.ndenumerate(cosines)
    ]  # fmt: skip
    inside = cosines[~np.eye(len(names), dtype=bool)]
    told = f"Cosines of {len(names)} sites' training, from {inside.min():.2f} to {inside.max():.2f}."
    return Chart("Directions of training", caption, charts.matrix(cells, "site", "site", "cosine"), told)
