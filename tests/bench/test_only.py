"""What `--only` of a benchmark names must be there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from unskew.bench import deploy, engine, feddw, gpu, precision
from unskew.errors import ConfigError


@pytest.mark.parametrize("module", [deploy, engine, feddw, precision])
def test_what_is_not_measured_is_refused_with_what_is(module: Any) -> None:
    measure: Callable[..., Any] = module.measure
    with pytest.raises(ConfigError, match=r"^bench \w+ measures .+, got 'W9'; take one of them$"):
        measure(only=("W9",))


def test_workloads_and_cases_of_a_device_are_chosen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    monkeypatch.setattr(gpu, "_case", lambda case, *_: measured.append(case) or ([1.0], [1.0], ()))
    gpu.measure(torch.device("cuda"), only=("A", "W2/b50/c1000"), say=lambda _: None)
    assert measured == ["W2/b50/c1000", "A/b10/c50"]
    with pytest.raises(ConfigError, match=r"^bench engine measures W1, .+, got 'W9'; take one of them$"):
        gpu.measure(torch.device("cuda"), only=("W9",))


def test_a_workload_a_batch_size_and_a_case_are_names_of_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[str] = []
    monkeypatch.setattr(engine, "_case", lambda case, *_: measured.append(case) or {})
    monkeypatch.setattr(engine, "_rows", lambda *_: [])
    for only in ("W2", "W2/b50", "W2/b50/c100"):
        measured.clear()
        engine.measure(only=(only,), say=lambda _: None)
        assert measured
        assert all(case == only or case.startswith(f"{only}/") for case in measured)
