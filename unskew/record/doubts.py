"""Doubts about a run, in sentences: settings and data that are hardly what was meant, and what methods warned of."""

import re
from collections.abc import Iterator

from unskew.record.reader import Record, Warned
from unskew.words import beginning

_NUMBER = re.compile(r"\d+(\.\d+)?%|\d+\.\d+")
"""A measurement: whole numbers may name clients."""


def doubts_of(record: Record) -> tuple[str, ...]:
    """The doubts about a run: those from before it, on its settings and data, and those from during it."""
    return (*_before(record), *_during(record))


def _before(record: Record) -> Iterator[str]:
    """The remarks of run.json as sentences; the label of a method stays as it is."""
    labels = tuple(f"{method}: " for method in record.methods)
    for text in record.remarks:
        sentence = text if text.startswith(labels) else beginning(text)
        yield sentence if text.endswith("?") else f"{sentence}."


def _during(record: Record) -> Iterator[str]:
    """The methods' warnings, once for methods that have the same.

    Of those that differ in numbers alone, as seeds make them, there is the first.
    """
    alike: dict[tuple[str, str], list[Warned]] = {}
    for warned in record.warned:
        alike.setdefault((warned.method, _NUMBER.sub("", warned.text)), []).append(warned)
    methods: dict[str, list[str]] = {}
    for first, *others in alike.values():
        times = first.times + sum(warned.times for warned in others)
        when = f"seed {first.seed}, round {first.round}"
        when = when if times == 1 else f"first at {when}, in {times:,} rounds of all seeds together"
        when += ", with other numbers elsewhere" * bool(others)
        methods.setdefault(f"{first.text} ({when})", []).append(first.method)
    yield from (f"{', '.join(labels)}: {text}" for text, labels in methods.items())
