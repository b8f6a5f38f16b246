"""A federation of real processes, once: TLS, keys, one round; then nothing of it is left."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("grpc", reason="a deployment needs the extra [deploy]")

from unskew.deploy import parity, trial
from unskew.deploy.federation import FederationFolder
from unskew.experiment.config import Experiment
from unskew.record.logs import rows
from unskew.run.models import load_model

from .conftest import Lines, processes_of


@pytest.mark.network
@pytest.mark.timeout(180)
def test_a_federation_of_processes_comes_to_what_the_simulator_comes_to_and_leaves_nothing_behind(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    experiment = small("rounds=1")
    run = trial.trial(experiment, 2, out, said)

    assert processes_of(tmp_path) == []
    assert not FederationFolder(out / "deploy").is_served()
    (found,) = parity.compare(run, parity.simulate(experiment, tmp_path / "simulated"))
    assert found.equal, found
    assert list(rows(run, "failures")) == []
    for client in (0, 1):
        site = out / "deploy" / "sites" / f"site-{client}" / "experiments" / "small"
        own, shared = load_model(site, "fedavg"), load_model(site / "models" / "fedavg-seed0.shared.safetensors")
        expected = load_model(tmp_path / "simulated", "fedavg", client)
        assert own.unskew == expected.unskew
        for model in (own, shared):  # FedAvg's are one
            assert all(torch.equal(t, expected.state_dict()[name]) for name, t in model.state_dict().items())
    network = list(rows(run, "network"))
    assert {r["client"] for r in network} == {0, 1}
    private = [*out.rglob("*.key"), *out.rglob("*.secret")]
    # The authority's and the server's, one of each site; one of each site to draw from.
    assert len(private) == 2 + 2 + 2
    assert {stat.S_IMODE(p.stat().st_mode) for p in private} == {0o600}
    assert said.lines[-1].startswith("small is done: its record is in ")
    # Asked for again, it is done already.
    assert trial.trial(experiment, 2, out, said) == run
