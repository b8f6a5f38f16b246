"""Records that tests write or change by hand."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unskew.record import database


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
    database.write(folder, {**kept, **{name: list(rows) for name, rows in tables.items()}})
    if card:
        summary.write_text(json.dumps({**card, "record_sha256": database.sha256(folder)}))
