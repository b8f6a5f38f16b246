"""Doubts about a run, in sentences: settings and data that are hardly what was meant, and what methods warned of."""

import re
from collections.abc import Collection, Iterable, Sequence

from unskew.record.reader import Record, Warned
from unskew.words import beginning

_NUMBER = re.compile(r"\d+(\.\d+)?%|\d+\.\d+")
"""A measurement: whole numbers may name clients."""


def doubts_of(record: Record) -> tuple[str, ...]:
    """The doubts about a run: those from before it, on its settings and data, and those from during it."""
    return (*before_it(record.remarks, record.methods), *during_it(record.warned))


def before_it(remarks: Iterable[str], methods: Collection[str]) -> tuple[str, ...]:
    """The remarks of run.json as sentences; the label of a method stays as it is."""
    labels = tuple(f"{method}: " for method in methods)
    return tuple(ended(text) if text.startswith(labels) else as_sentence(text) for text in remarks)


def during_it(several: Iterable[Warned]) -> tuple[str, ...]:
    """The methods' warnings, once for methods that have the same.

    Of those that differ in numbers alone, as seeds make them, there is the first.
    """
    alike: dict[tuple[str, str], list[Warned]] = {}
    for warned in several:
        alike.setdefault((warned.method, _NUMBER.sub("", warned.text)), []).append(warned)
    methods: dict[str, list[str]] = {}
    for same in alike.values():
        methods.setdefault(f"{same[0].text} ({_when(same)})", []).append(same[0].method)
    return tuple(f"{', '.join(labels)}: {text}" for text, labels in methods.items())


def _when(several: Sequence[Warned]) -> str:
    times = sum(warned.times for warned in several)
    place = f"seed {several[0].seed}, round {several[0].round}"
    first = place if times == 1 else f"first at {place}, in {times:,} rounds of all seeds together"
    return f"{first}, with other numbers elsewhere" if len(several) > 1 else first


def as_sentence(text: str) -> str:
    """A remark as a sentence."""
    return ended(beginning(text))


def ended(text: str) -> str:
    """A remark with the end of a sentence, unless it is a question."""
    return text if text.endswith("?") else f"{text}."
