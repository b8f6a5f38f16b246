"""Values that no file can hold, and signatures that are read once."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
from annotated_types import Ge

from unskew import IID, ClipNorm, FedAvg, schema, simulate, wrap
from unskew.errors import ConfigError
from unskew.experiment.config import TaskConfig


class Frame(np.ndarray):  # type: ignore[type-arg]
    """Like a table: it has no single truth value, and prints on many lines."""


@pytest.mark.parametrize("setting", ["data", "loss", "head", "model_options"])
def test_an_array_where_a_setting_is_wanted_is_refused_in_a_line(setting: str) -> None:
    frame = np.arange(400.0).reshape(100, 4).view(Frame)
    with pytest.raises(ConfigError, match=rf"^task.{setting} must be text, a number, .*, got \[\[") as caught:
        schema.build(TaskConfig, {setting: frame}, "task")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


@dataclass
class Factory:
    """Can be compared, and so not hashed."""

    factor: int

    def __call__(self, width: int = 1) -> int:
        return self.factor * width


def test_a_callable_value_without_a_hash_is_read_like_a_function() -> None:
    """It has no annotations that the typing module would find, and is refused for that, not for want of a hash."""
    with pytest.raises(ConfigError, match="settings of Factory are checked against its signature"):
        schema.build(Factory(3), {"width": 2}, "mine")
    assert schema.build(Factory, {"factor": 3}, "mine") == Factory(3)


def test_a_caller_may_change_what_it_is_told_of_a_signature() -> None:
    schema.parameters(TaskConfig).clear()
    assert "data" in schema.parameters(TaskConfig)


TEXT = "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import Annotated\n"
PARENT = (
    "import annotated_types as bounds\nfrom unskew.algorithms.fedavg import FedAvg\n"
    "@dataclass(frozen=True)\nclass Parent(FedAvg):\n    mu: Annotated[float, bounds.Ge(0.0)] = 0.1\n    nu: int = 1\n"
)
CHILD = (
    "from parent_of_text import Parent\nfrom typing import Literal as OneOf\n"
    "@dataclass(frozen=True)\nclass Child(Parent):\n    nu: float = 0.5\n    word: OneOf['a', 'b'] = 'a'\n"
)


def test_the_types_of_inherited_settings_are_read_in_the_module_that_wrote_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "parent_of_text.py").write_text(TEXT + PARENT)
    (tmp_path / "child_of_text.py").write_text(TEXT + CHILD)
    monkeypatch.syspath_prepend(tmp_path)
    child = import_module("child_of_text").Child
    known = schema.hints(child)
    assert (known["mu"], known["nu"], known["word"]) == (Annotated[float, Ge(0.0)], float, Literal["a", "b"])
    with pytest.raises(ConfigError, match=r"^method\.mu must be >= 0, got -1"):
        schema.build(child, {"mu": -1.0}, "method")
    assert child().local == FedAvg().local
    wrapped = wrap(child(mu=0.5), ClipNorm(1.0))
    simulate({"child": wrapped}, data="digits", model="logistic", split=IID(num_clients=2), rounds=1, progress=False)
