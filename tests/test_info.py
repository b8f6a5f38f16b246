"""Info is typed on both sides: what a method reports is written and read through one adapter, and drawn by its type."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
import torch
from records import rewrite

from unskew import info, simulate
from unskew.algorithms.fedavg import FedAvg
from unskew.data.split import Dirichlet
from unskew.errors import ProtocolError
from unskew.info import ClientGroups, Info, Privacy
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
class Friendly(FedAvg):
    """A third party's method that reports a type of ours, and one of its own beside it."""

    def info(self, state: Any) -> Any:
        return ClientGroups(groups=((0, 1), (2, 3))), Budget(0.5, (), {})


pytestmark = pytest.mark.usefixtures("undrawn")


def run(tmp_path: Path, **methods: Any) -> Path:
    simulate(methods, rounds=1, split=Dirichlet(alpha=1.0, num_clients=4), out=tmp_path / "run")
    return tmp_path / "run"


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


def test_a_type_is_checked_whatever_it_is_annotated_with() -> None:
    assert [info.adapter(Annotated[int, {"unit": "mm"}]).validate_python("3") for _ in range(2)] == [3, 3]
