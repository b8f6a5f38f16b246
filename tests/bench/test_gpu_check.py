"""The session's tool for a machine with a GPU, as far as it goes on a CPU."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

import unskew

FILE = Path(unskew.__file__).parents[1] / "bench" / "gpu_check.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    if not FILE.exists():
        pytest.skip(f"{FILE} is not here: this is an installed package")
    spec = importlib.util.spec_from_file_location("gpu_check", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.DEVICE = torch.device("cpu")
    return module


@pytest.mark.parametrize("check", ["check_fold", "check_grade", "check_dropout"])
def test_equality_is_checked_to_its_end(tool: ModuleType, check: str) -> None:
    assert getattr(tool, check)() == 0
