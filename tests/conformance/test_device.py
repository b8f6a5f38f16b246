"""Every method on a CUDA device ends where it ends on a CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from grid import network_of
from on_a_device import run_resumed, serve_from
from recipe import CASES, DEPLOYED, PROTECTED, rounds, simulator
from torch import Tensor

from unskew.local.sequential import Sequential
from unskew.local.stacked.executor import Stacked
from unskew.tree import leaves

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("executor", [Sequential, Stacked])
@pytest.mark.parametrize("case", [*CASES, *PROTECTED])
def test_every_algorithm_ends_on_a_device_where_it_ends_on_a_cpu(case: str, executor: Any) -> None:
    if "secure_sum" in case:
        pytest.importorskip("grpc")
    if case == "hcct_e, published":
        pytest.skip("the released score of the last layer is a rounding error's sign (docs/algorithms/hcct.md)")
    network = network_of(case) if case in CASES else "perceptron"
    options: dict[str, Any] = {"clients_per_round": 6} if "krum" in case or "trimmed" in case else {}
    here, there = (
        simulator(case, network, dtype=torch.float64, device=device, **options) for device in ("cpu", "cuda")
    )
    there.clients.executor = executor(there.clients.executor.trainer)  # type: ignore[attr-defined]
    for (t, one, trace), (_, other, same) in zip(rounds(here, 3), rounds(there, 3), strict=True):
        # An entry that rounding leaves at zero does not travel in a sparse update.
        assert [a._replace(bytes=0) for a in trace.transfers] == [b._replace(bytes=0) for b in same.transfers]
        assert [b.bytes for b in same.transfers] == pytest.approx([a.bytes for a in trace.transfers], abs=16)
        assert same.losses == [(n, pytest.approx(loss, rel=1e-6)) for n, loss in trace.losses]
        assert_near(one, other)
        assert_near(*(sim.own_models(s, sim.population.clients, t) for sim, s in ((here, one), (there, other))))


@pytest.mark.parametrize("case", [*CASES, *PROTECTED])
def test_every_algorithm_runs_on_a_device_resumed_and_through_bytes(case: str) -> None:
    if "secure_sum" in case:
        pytest.importorskip("grpc")
    run_resumed(case, "cuda")


@pytest.mark.parametrize("case", [*DEPLOYED, *PROTECTED])
def test_a_client_with_a_device_serves_a_server_without_one(case: str, tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    serve_from(case, "cuda", tmp_path)


def assert_near(one: Any, other: Any) -> None:
    for (at, a), (where, b) in zip(leaves(one), leaves(other), strict=True):
        assert at == where
        if isinstance(a, Tensor):
            torch.testing.assert_close(b.cpu(), a, rtol=1e-6, atol=1e-9, msg=lambda text, at=at: f"{at}: {text}")
        else:
            assert b == (pytest.approx(a, rel=1e-6, abs=1e-9) if isinstance(a, float) else a)
