"""Info is typed on both sides: what a method reports is written and read through one adapter, and drawn by its type."""

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from records import rewrite

from unskew import info, simulate
from unskew.algorithms.fedavg import FedAvg
from unskew.data.split import Dirichlet
from unskew.errors import ProtocolError
from unskew.info import TYPES, ClientGroups, Info, JudgedGroups, Privacy
from unskew.record.logs import rows as recorded
from unskew.record.reader import info_of, read
from unskew.report import write_report


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a stranger's method reports: fields that ours have too, and what they mean is its own."""

    epsilon: float
    groups: tuple[tuple[int, ...], ...]
    seen: dict[str, str]
    warnings: tuple[str, ...] = ("the budget is nearly spent",)


@dataclasses.dataclass(frozen=True)
class Frugal(FedAvg):
    """A third party's method."""

    def info(self, state: Any) -> Any:
        return Budget(0.5, ((0, 99),), {"server": "all", "clients": "nothing"})


@dataclasses.dataclass(frozen=True)
class Loose(FedAvg):
    """A third party's method with a dictionary."""

    def info(self, state: Any) -> Any:
        return {"epsilon": 0.5, "groups": "none", "embeddings": 3, "starts": [], "warnings": 7}


@dataclasses.dataclass(frozen=True)
class Friendly(FedAvg):
    """A third party's method that reports a type of ours, and one of its own beside it."""

    def info(self, state: Any) -> Any:
        return ClientGroups(groups=((0, 1), (2, 3))), Budget(0.5, (), {})


pytestmark = pytest.mark.usefixtures("undrawn")


def run(tmp_path: Path, **methods: Any) -> Path:
    simulate(methods, rounds=1, split=Dirichlet(alpha=1.0, num_clients=4), out=tmp_path / "run")
    return tmp_path / "run"


def titles(page: Path) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page.read_text("utf-8"))


def test_a_strangers_info_is_kept_and_gets_no_section_of_ours(tmp_path: Path) -> None:
    folder = run(tmp_path, frugal=Frugal(), loose=Loose(), friendly=Friendly())
    rows = {(r["method"], r["type"]): r["info"] for r in recorded(folder, "info")}
    stranger = f"{__name__}:Budget"
    assert set(rows) == {
        ("frugal", stranger), ("loose", "dict"), ("friendly", "ClientGroups"), ("friendly", stranger),
        *((method, "RecallByClass") for method in ("frugal", "loose", "friendly")),
    }  # fmt: skip
    assert rows["frugal", stranger]["groups"] == [[0, 99]]
    record = read(folder)
    assert record.reports(ClientGroups) == ("friendly",)
    assert {m: types - TYPES.keys() for m, types in record.info.items()} == {
        "frugal": {stranger}, "loose": {"dict"}, "friendly": {stranger}
    }  # fmt: skip
    said = [note for note in record.notes if "the budget is nearly spent" in note]
    assert [("frugal" in note, "friendly" in note, "loose" in note) for note in said] == [(True, True, False)]
    page = write_report(folder)
    assert "Groups" in titles(page)
    assert not {"Soft labels and class relations", "Embeddings and generated images", "Diffusion"} & set(titles(page))
    text = page.read_text("utf-8")
    assert "Who trained with whom under friendly" in text
    assert "Who trained with whom under frugal" not in text


def test_a_subtype_is_drawn_by_its_types_section_but_a_strangers_subclass_is_not() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Mine(ClientGroups):
        more: int = 0

    assert info.row(JudgedGroups(groups=()))["type"] == "JudgedGroups"
    assert issubclass(info.TYPES["JudgedGroups"], ClientGroups)
    assert info.row(Mine(groups=()))["type"].endswith("Mine")


@pytest.mark.parametrize("kind", info.TYPES.values(), ids=info.TYPES)
def test_types_are_frozen(kind: type[Info]) -> None:
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_what_is_written_is_read_as_it_was(tmp_path: Path) -> None:
    folder = run(tmp_path, friendly=Friendly())
    record = read(folder)
    assert [tuple(r) for r in info_of(record, "friendly", ClientGroups)] == [
        (0, 1, ClientGroups(groups=((0, 1), (2, 3))))
    ]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("finished"), friendly=Friendly())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda r: r["info"].update(groups=[[0, 4]]), r"info\.groups\.0\.1: clients must be below 4, got 4"),
        (lambda r: r["info"].update(groups=[[True]]), r"info\.groups\.0\.0 must be an integer, got true"),
        (lambda r: r["info"].pop("groups"), r"info\.groups is required"),
        (lambda r: r["info"].update(ignored=[{"client": 1}]), r"info\.ignored\.0\.step is required"),
    ],
)
def test_damage_is_named_with_file_line_and_field(
    finished: Path, tmp_path: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    folder = shutil.copytree(finished, tmp_path / "damaged", ignore=shutil.ignore_patterns(".lock"))
    first, *rest = recorded(folder, "info")
    edit(first)
    rewrite(folder, info=[first, *rest])
    with pytest.raises(Exception, match=rf"run\.sqlite: .*{message}"):
        write_report(folder)


def test_info_that_is_neither_a_dataclass_nor_a_dictionary_is_refused() -> None:
    with pytest.raises(TypeError, match="info must be a dataclass or a dictionary, got 3"):
        info.row(3)


@dataclasses.dataclass(frozen=True)
class Reports(FedAvg):
    """A third party's method that reports one of these."""

    what: str = "nothing"

    def info(self, state: Any) -> Any:
        return {
            "nothing": (),
            "none": None,
            "a stranger": ClientGroups(groups=((0, 1), (2, 99))),
            "a tensor": {"norm": torch.tensor(1.0)},
        }[self.what]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a stranger", r"ClientGroups\.groups\.1\.1: clients must be below 4, got 99"),
        ("a tensor", r"info can hold numbers.*torch\.Tensor.*; float\(x\) and x\.tolist\(\)"),
        (
            "none",
            r"info must be a dataclass or a dictionary, got None; it returns .* where there is nothing",
        ),
    ],
)
def test_a_report_that_could_not_be_read_is_refused_when_it_is_made(what: str, message: str) -> None:
    with pytest.raises(ProtocolError, match=f"mine, seed 0: .*{message}"):
        simulate({"mine": Reports(what=what)}, rounds=1, split=Dirichlet(alpha=1.0, num_clients=4))


def test_a_method_may_have_nothing_to_report() -> None:
    simulate({"mine": Reports()}, rounds=1, split=Dirichlet(alpha=1.0, num_clients=4))


def test_an_epsilon_needs_a_delta_and_what_it_covers() -> None:
    with pytest.raises(ValueError, match="an epsilon needs a delta and what it covers"):
        Privacy(1.0, "all", "nothing")
    assert Privacy("no guarantee", "all", "nothing").guarantee == "No guarantee."
    assert Privacy(2.0, "all", "nothing", delta=1e-5, covers="all that is sent").guarantee == (
        "ε = 2 at δ = 1e-05. Covers all that is sent."
    )
