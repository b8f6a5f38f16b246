"""Output of several commands on runs: the table of results with its verdict and notes, or JSON."""

import hashlib
import json
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unskew.cli.options import then
from unskew.errors import RunError, shown

if TYPE_CHECKING:
    from unskew.record.reader import Record
    from unskew.report.page import Page


def results_json(summary: dict[str, Any]) -> str:
    """The results of a run or comparison as `--json` prints them; differences have their interval."""
    from unskew.report.stats import interval

    def whole(row: dict[str, Any]) -> dict[str, Any]:
        if ".minus_" not in row["metric"]:
            return row
        # A summary names its seeds only if they were added until differences were decided.
        low, high = interval(row["seeds"], sequential="seeds" in summary) or (None, None)
        return {**row, "low": low, "high": high}

    rows = list(map(whole, summary["rows"]))
    keys = ("run", "fingerprint", "seconds", "verdict", "notes", "comparable", "reasons", "same_test_rows")
    diverged = {"diverged": summary["diverged"]} if summary.get("diverged") else {}
    return json.dumps({key: summary[key] for key in keys if key in summary} | {"rows": rows} | diverged)


def of_several(name: str, summaries: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Summary of several runs for `--json`, by name: a hash of their fingerprints, their time, and their rows."""
    prints = "\n".join(summary["fingerprint"] for summary in summaries.values())
    return {
        "run": name,
        "fingerprint": hashlib.sha256(prints.encode()).hexdigest(),
        "seconds": sum(summary["seconds"] for summary in summaries.values()),
        "rows": [{**row, "method": f"{run}/{row['method']}"} for run, s in summaries.items() for row in s["rows"]],
    }


def comparability(parts: "Mapping[str, Record]") -> dict[str, Any]:
    """Say for `--json` whether runs, by their names, can be compared, and why not."""
    from unskew.report.together import incomparable

    reasons = incomparable(parts)
    return {"comparable": not reasons, "reasons": list(reasons)}


def width() -> int:
    """Characters in a line of the terminal, at most 110."""
    return min(shutil.get_terminal_size((100, 24)).columns, 110)


def print_table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], note: str = "", words: Sequence[int] = ()
) -> None:
    """Print a table as wide as the terminal: of its head `time | s` is a title with its unit, `words` are columns."""
    from unskew.report import render
    from unskew.report.section import TableRow, table

    entries = [TableRow(name, tuple(cells)) for name, *cells in rows]
    print(shown(render.text(table(caption, head, entries, note, words), width())))


def print_page(page: "Page") -> None:
    """Print the first screen of a page: its verdict and its table."""
    from unskew.report import render

    print(shown(f"{textwrap.fill(page.verdict, width())}\n"))
    if page.table is not None:
        print(shown(render.text(page.table, width())))


def print_results(record: "Record") -> None:
    """Print a run, or several as one."""
    from unskew.report.screen import screen

    print(screen(record, width()))


def print_next(folder: Path, record: "Record") -> None:
    """Name the command that comes next: more seeds, where a comparison is undecided, else the model's card."""
    from unskew.report import worth
    from unskew.report.verdict import undecided
    from unskew.run.setup import CODE_OF

    # Over a network the clients know the seeds, so none can be added.
    if undecided(record) and not record.deployed:
        code = ["--allow-code"] if any(k.startswith(CODE_OF) for k in record.card["environment"]) else []
        then("run", folder, "--until", "0.5", "--out", f"{folder}-more", *code)
    elif record.finished:
        rivals = worth.rivals(record)
        then("card", folder, *(("--method", worth.best(rivals).method) if len(rivals) > 1 else ()))


def run_names(folders: list[Path]) -> list[str]:
    """Names of the runs: their folders' names, or the paths where two folders have the same name."""
    places = [folder.resolve() for folder in folders]
    twice = next((folder for folder, place in zip(folders, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise RunError(f"{twice} is given twice; a run cannot be compared with itself")
    names = [place.name for place in places]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
