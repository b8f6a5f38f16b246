"""The page of an advice, and the files beside it."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from unskew.api import DATA_FILE
from unskew.data.archives import saved_sha256
from unskew.data.dataset import Dataset
from unskew.decide.advice.answer import SITE_COLUMNS, Advice, advised_name
from unskew.decide.follow_up import division, write_experiment
from unskew.errors import RunError
from unskew.experiment.config import Experiment, read_toml
from unskew.references import IN_PYTHON
from unskew.report import render
from unskew.report.page import Page, write_page
from unskew.report.section import Section, table
from unskew.report.worth import READING, bracket, ranked
from unskew.run.folder import explained, require_own

MOST_PRINTED = 6
"""Sites that a terminal shows."""
PRINTED = "Who should train with whom?", "Which method and settings?", "What does it cost?", "What would help?"
"""Questions whose answers a terminal shows; the page has all."""
MOST_LISTED = 100
"""Sites up to which each has a row in the table."""

PAGE, EXPERIMENT, SITES, CELLS = "advice.html", "advised.toml", "sites.json", "cells.sqlite"


def require_place(folder: Path, experiment: Experiment, given: Dataset | None = None) -> None:
    """Refuse a folder with other files, or with advice on another experiment or other data.

    `given` are data given as a value, which are compared by hash.

    Raises:
        DataError: If data of earlier advice cannot be read.
        RunError: If it has files, and no earlier advice on this experiment.
    """
    require_own(folder, "advice", (EXPERIMENT, CELLS))
    if not (at := folder / EXPERIMENT).exists():
        return
    earlier, kept = read_toml(at), folder / DATA_FILE
    same = (earlier.get("name"), earlier.get("task", {}).get("data")) == (
        advised_name(experiment),
        experiment.task.data,
    )
    if not same or (given is not None and kept.exists() and saved_sha256(kept) != given.sha256):
        raise RunError(f"{at} is advice on another experiment or other data; choose another --out")


def write_advice(advice: Advice, folder: Path) -> Path:
    """Write the page and the recommended experiment with its files; return the page.

    Raises:
        RunError: If they cannot be written.
    """
    with explained(folder, None):
        folder.mkdir(parents=True, exist_ok=True)
        text = write_experiment(advice.sites, advice.experiment(), folder / EXPERIMENT, SITES)
    return write_page(view(advice, text), folder / PAGE)


def view(advice: Advice, text: str) -> Page:
    """The page: its first screen, and folded sections with the numbers."""
    in_python = advice.sites.experiment.task.model.startswith(IN_PYTHON)
    note = "Its model is a value of Python, which no file can hold: run it from Python." if in_python else ""
    lead = (
        f"{EXPERIMENT}, for unskew run: the recommended method, beside training alone, FedAvg and pooled data, under "
        f"seeds not used before. {division(advice.sites, SITES)} {note}"
    )
    parts = [s for s in sections(advice) if not s.empty]
    return replace(advice.screen, sections=[*parts, Section("The experiment", lead, code=text)])


def screen(advice: Advice, width: int) -> str:
    """The answer for a terminal: one sentence, a table of sites, and a line for each other answer."""
    names, order = advice.sites.names, ranked(advice.by_site)
    few = order if len(order) <= MOST_PRINTED else [*order[: MOST_PRINTED // 2], *order[-MOST_PRINTED // 2 :]]
    rows, shown = [(names[c], *advice.site_row(c)[1:]) for c in few], f"{len(few)} of {len(names)} sites"
    lines = textwrap.wrap(advice.headline, width)
    lines += [render.text(table(shown, ["site", *SITE_COLUMNS[1:]], rows, words=[-1]), width)] if rows else []
    notes = [*advice.warnings, *(answer for question, answer in advice.sentences() if question in PRINTED)]
    return "\n".join([*lines, *(textwrap.shorten(f"- {note}", width, placeholder=" …") for note in notes)])


def sections(advice: Advice) -> Sequence[Section]:
    """The numbers behind each answer."""
    m, names, race, check = advice.sites.measure, advice.sites.names, advice.race, advice.check
    percent = "%" if m.percent else ""
    worth = []
    for label, scores in check.results.items():
        if of := [s.mean for s in scores]:
            gain = check.gains.get(label)
            numbers = m.show(float(np.mean(of))), f"{m.show(min(of))} to {m.show(max(of))}"
            gained = bracket(gain, m), bracket(gain and gain.per_row, m)
            worth.append((label, *numbers, *gained, READING[gain.verdict] if gain else ""))
    order = ranked(advice.by_site)
    listed = order if len(order) <= MOST_LISTED else [*order[: MOST_LISTED // 2], *order[-MOST_LISTED // 2 :]]
    rounds = sorted({t for e in race.entries for t in e.scores})
    raced = [
        (e.method.label, *(m.show(e.scores[t].mean) if t in e.scores else "–" for t in rounds),
         "chosen" if e is race.chosen else "as good" if e.method.label in race.close else e.out or "reached the end")
        for e in race.entries
    ]  # fmt: skip
    came = [(name, *map(m.show, of)) for name, of in advice.unseen.items()]
    named = {
        "Is it worth it?": table(
            f"{m.label} on test rows, mean over sites, {len(check.seeds)} fresh seeds",
            ["training", f"mean | {percent}", "seeds | lowest to highest", f"gain over alone | {m.points}",
             f"per test row | {m.points}", "reading"], worth, words=[-1]),
        "Which sites benefit?": table(
            f"{len(listed)} of {len(names)} sites, alone and with {check.chosen}, {m.axis}",
            ["site", *SITE_COLUMNS],
            [(names[c], *advice.site_row(c)) for c in listed], words=[-1]),
        "Which method and settings?": table(
            f"{m.label} on validation rows of {race.folds} folds, mean over sites",
            ["method", *(f"round {t} | {percent}" for t in rounds), "end"], raced, words=[-1]),
        "What about a new site?": table(
            f"{m.axis} of sites that took no part", ["site", "as served", "after adapting"], came),
    }  # fmt: skip
    return [Section.of(title, "", (), [numbers]) for title, numbers in named.items()]
