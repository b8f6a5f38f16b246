"""Every method keeps its tensors on the device that its clients train on, as CUDA demands; emulated on a CPU."""

import functools
from collections.abc import Iterator
from pathlib import Path

import emulated
import pytest
import torch
from emulated import DEVICE, Emulated
from on_a_device import run_resumed, serve_from
from recipe import CASES, DEPLOYED, PROTECTED
from torch import nn

from unskew import wire

# One of each kind of state and message; the others wait for `make test-slow`.
NOW = ("fedadam", "feddw", "feddif, pooled", "fedala", "fedavg+secure_sum")
SERVED = ("hcct", "scaffold+quantise")

every_case = pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in NOW else pytest.mark.slow) for c in (*CASES, *PROTECTED)]
)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nn.Parameter, "__new__", staticmethod(emulated.parameter))
    monkeypatch.setattr(wire, "decode", functools.partial(emulated.arrived, wire.decode))
    with Emulated():
        yield


def test_what_cuda_refuses_is_refused(two_devices: None) -> None:
    there, here = torch.zeros(3, device=DEVICE), torch.ones(3)
    assert [t.device.type for t in (there + 1, there.cpu(), here.to(there.device), there[here > 0])] == [
        *(DEVICE, "cpu", DEVICE, DEVICE)
    ]
    there[:2] = here[:2]  # copies
    for mixed in (
        lambda: there + here,
        lambda: torch.where(here > 0, there, 0.0),
        lambda: here[there > 0],
        lambda: there.__setitem__([0, 1], here[:2]),
    ):
        with pytest.raises(RuntimeError, match="to be on the same device"):
            mixed()
    with pytest.raises(TypeError, match="to numpy"):
        there.numpy()


@every_case
def test_every_algorithm_runs_on_a_device_resumed_and_through_bytes(case: str, two_devices: None) -> None:
    run_resumed(case, DEVICE)


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in SERVED else pytest.mark.slow) for c in (*DEPLOYED, *PROTECTED)]
)
def test_a_client_with_a_device_serves_a_server_without_one(case: str, two_devices: None, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    serve_from(case, DEVICE, tmp_path)
