"""Records that tests write or change by hand."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unskew.record import database


def together(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Rows of metrics, those of single clients that follow each other as one."""
    keys = ("method", "seed", "round", "name")
    for (of_clients, *_), some in itertools.groupby(rows, lambda r: ("client" in r, *(r[key] for key in keys))):
        several = list(some)
        if of_clients:
            columns = {key: [row[key] for row in several] for key in ("client", "value", "weight")}
            yield {**{key: several[0][key] for key in keys}, **columns}
        else:
            yield from several


def rewrite(folder: Path, **tables: Iterable[Mapping[str, Any]]) -> None:
    """Replace the rows of these tables, as a run would have written them; the hash in the summary, too."""
    path, summary = folder / database.FILE, folder / "summary.json"
    kept: dict[str, Iterable[Mapping[str, Any]]] = {}
    if path.exists():
        kept = {name: list(database.rows(folder, name)) for name in database.TABLES}
        path.unlink()
    card = json.loads(summary.read_text()) if summary.exists() else {}
    if card.pop("record_sha256", None) is not None:
        summary.write_text(json.dumps(card))
    given = {**kept, **tables}
    if "metrics" in given:
        given["metrics"] = list(together(given["metrics"]))
    database.write(folder, given)
    if card:
        summary.write_text(json.dumps({**card, "record_sha256": database.sha256(folder)}))
