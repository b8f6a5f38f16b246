"""Values that no file can hold, and signatures that are read once."""

from dataclasses import dataclass

import numpy as np
import pytest

from unskew import schema
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
