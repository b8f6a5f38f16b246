"""Values that no file can hold."""

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
