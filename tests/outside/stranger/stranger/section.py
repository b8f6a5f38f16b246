"""How far the medians moved."""

from collections.abc import Mapping, Sequence
from typing import Any

from stranger.method import Moved
from unskew.record.reader import Record, info_of
from unskew.report.section import Section, SectionKind


def draw(record: Record, methods: Sequence[str], marks: Mapping[str, Any]) -> Section:
    moved = [(m, row.round, row.info) for m in methods for row in info_of(record, m, Moved)]
    lines = "; ".join(f"{m} in round {t} under gamma {info.gamma:g}" for m, t, info in moved if info.distance > 0)
    return Section("Medians on the move", f"A stranger saw move: {lines}.")


MEDIANS = SectionKind("how far the medians moved", (Moved,), draw)
