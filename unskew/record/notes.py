"""Notes on a run, in sentences: on settings, data and methods."""

import re
from collections.abc import Iterable, Iterator, Sequence

from unskew.words import beginning

_NUMBER = re.compile(r"\d+(\.\d+)?%|\d+\.\d+")
"""A measurement: whole numbers may name clients."""


def sentences(texts: Iterable[str], methods: Sequence[str]) -> Iterator[str]:
    """Notes from before a run as sentences; method labels keep their case."""
    labels = tuple(f"{method}: " for method in methods)
    for text in texts:
        sentence = text if text.startswith(labels) else beginning(text)
        yield sentence if text.endswith("?") else f"{sentence}."


def of_warnings(warned: Iterable[tuple[str, str, int, int]]) -> Iterator[str]:
    """Notes of methods, each (method, text, seed, round), merged over methods with the same one.

    Of those that differ only in numbers, as between seeds, only the first is kept.
    """
    alike: dict[tuple[str, str], list[tuple[str, int, int]]] = {}
    for method, text, seed, at in warned:
        alike.setdefault((method, _NUMBER.sub("", text)), []).append((text, seed, at))
    methods: dict[str, list[str]] = {}
    for (method, _), rounds in alike.items():
        text, seed, at = rounds[0]
        when = f"seed {seed}, round {at}"
        when = when if len(rounds) == 1 else f"first at {when}, in {len(rounds):,} rounds of all seeds together"
        when += ", with other numbers elsewhere" * (len({text for text, *_ in rounds}) > 1)
        methods.setdefault(f"{text} ({when})", []).append(method)
    yield from (f"{', '.join(labels)}: {text}" for text, labels in methods.items())
