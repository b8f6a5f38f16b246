"""Data by name from the hub, against a made-up `datasets` that has the part of its interface that is used.

The fake keeps what the real one does there: `load_dataset(path, name, split=, revision=)`, a part with `column_names`,
`features` and columns by name, `ClassLabel.names`, and the errors of a missing data set, split or network.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from unskew.data.sources import load
from unskew.errors import DataError
from unskew.keys import Key

DIGITS = [str(i) for i in range(10)]


@dataclass(frozen=True)
class ClassLabel:
    names: list[str]


class DatasetNotFoundError(FileNotFoundError):
    """As datasets.exceptions has it."""


class Column:
    """A column that is decoded while it is gone through, as in datasets 4."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class Part:
    def __init__(self, columns: Mapping[str, Sequence[Any]], names: Mapping[str, list[str]]) -> None:
        self._columns = columns
        self.column_names = list(columns)
        self.features = {c: ClassLabel(names[c]) if c in names else object() for c in columns}

    def __getitem__(self, column: str) -> Column:
        return Column(self._columns[column])


class Hub:
    """A module `datasets` over some repositories: (path, configuration) -> split -> part."""

    def __init__(self, repositories: Mapping[tuple[str, str | None], Mapping[str, Part]]) -> None:
        self.repositories, self.asked = repositories, []  # type: ignore[var-annotated]

    def load_dataset(self, path: str, name: str | None = None, *, split: str, revision: str | None = None) -> Part:
        self.asked.append((path, name, split, revision))
        if not any(path == p for p, _ in self.repositories):
            raise DatasetNotFoundError(f"Dataset '{path}' doesn't exist on the Hub or cannot be accessed.")
        if (path, name) not in self.repositories:
            there = [n for p, n in self.repositories if p == path]
            raise ValueError(f"BuilderConfig '{name}' not found. Available: {there}")
        parts = self.repositories[path, name]
        if split not in parts:
            raise ValueError(f'Unknown split "{split}". Should be one of {list(parts)}.')
        return parts[split]


def install(monkeypatch: pytest.MonkeyPatch, repositories: Mapping[tuple[str, str | None], Mapping[str, Part]]) -> Hub:
    fake, module = Hub(repositories), ModuleType("datasets")
    module.load_dataset = fake.load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return fake


def pixels(n: int, *shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return (Key(seed) / "pixels").numpy().integers(0, 256, (n, *shape), dtype=np.uint8)


def pictures(x: np.ndarray[Any, Any]) -> list[Image.Image]:
    return [Image.fromarray(image) for image in x]


def part(
    x: Sequence[Any], y: Sequence[Any], image: str = "image", label: str = "label", names: Sequence[str] = DIGITS
) -> Part:
    return Part({image: x, label: list(y)}, {label: list(names)})


def both(n: int, *shape: int, classes: int = 10, **options: Any) -> dict[str, Part]:
    names = options.pop("names", [str(i) for i in range(classes)])
    return {
        split: part(pictures(pixels(m, *shape, seed=m)), [i % classes for i in range(m)], names=names, **options)
        for split, m in (("train", n), ("test", n // 2))
    }


# ---------------------------------------------------------------- the usual names
def test_cifar10_is_read_from_its_own_columns_and_named_as_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, {("uoft-cs/cifar10", None): both(500, 32, 32, 3, image="img", names=DIGITS)})
    found = load("hub:cifar10")
    assert [split for _, _, split, _ in fake.asked] == ["train", "test"], "whole splits, no slices of them"
    assert found.x_train.shape == (500, 3, 32, 32)
    assert found.classes[0] == "airplane"
    assert torch.bincount(found.y_train).tolist() == [50] * 10


def test_pacs_is_made_one_size_and_keeps_its_domains(monkeypatch: pytest.MonkeyPatch) -> None:
    x = [Image.fromarray(pixels(1, 20 + i, 30, 3, seed=i)[0]) for i in range(20)]
    domains = ["sketch" if i % 2 else "art_painting" for i in range(20)]
    columns = {"image": x, "domain": domains, "label": [i % 2 for i in range(20)]}
    install(monkeypatch, {("flwrlabs/pacs", None): {"train": Part(columns, {"label": ["dog", "horse"]})}})
    found = load("hub:pacs")
    assert found.input_shape == (3, 64, 64)
    assert found.domain_names == ("art_painting", "sketch")
    assert found.domains is not None
    assert len(found.domains) == len(found.x_train) == 16, "a fifth of each class is set aside"


# ---------------------------------------------------------------- refusals
def test_a_hub_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, {})

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'ylecun/mnist' on the Hub")

    sys.modules["datasets"].load_dataset = fail  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"^hub:ylecun/mnist, split train: .*and the network"):
        load("hub:mnist")
    assert fake.asked == []
