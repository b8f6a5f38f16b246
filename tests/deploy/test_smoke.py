"""A federation of real processes, once: TLS, keys, process isolation, one round; then nothing of it is left."""

import http.client
import ssl
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr", reason="a deployment needs the extra [flower]")

from unskew.deploy import folders, operate, parity, reach
from unskew.deploy.settings import Address
from unskew.experiment.config import Experiment
from unskew.record.logs import rows
from unskew.run.models import load_model

from .conftest import Lines, processes_of


def unauthenticated(server: Path) -> int:
    """What Flower answers to somebody without the secret who asks for the server's task, and with it its token."""
    home = tomllib.loads((server / "flower" / "config.toml").read_text())
    address = Address("127.0.0.1", int(home["superlink"]["federation"]["address"].rpartition(":")[2]))
    context = ssl.create_default_context(cafile=server / "ca.crt")
    connection = http.client.HTTPSConnection(address.host, address.port, timeout=30, context=context)
    try:
        headers = {"Content-Type": "application/protobuf", "Accept": "application/protobuf"}
        connection.request("POST", "/v1/runtime/acquire-task", b"", headers)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.network
@pytest.mark.timeout(180)
def test_a_federation_of_processes_comes_to_what_the_simulator_comes_to_and_leaves_nothing_behind(
    small: Callable[..., Experiment], said: Lines, tmp_path: Path
) -> None:
    out, answers = tmp_path / "run", []

    def say(text: str) -> None:
        said(text)
        if text.startswith("server: listening"):
            answers.append(unauthenticated(out / "deploy" / "server"))

    experiment = small("rounds=1")
    run = operate.local(experiment, 2, out, say)

    assert answers == [401]
    assert processes_of(tmp_path) == []
    reach.check_port(folders.address(out / "deploy" / "server"))
    (found,) = parity.compare(run, parity.simulate(experiment, tmp_path / "simulated"))
    assert found.equal, found
    assert list(rows(run, "failures")) == []
    for client in (0, 1):
        own = load_model(out / "deploy" / f"client-{client}", "fedavg")
        expected = load_model(tmp_path / "simulated", "fedavg", client)
        assert own.unskew == expected.unskew
        assert all(torch.equal(t, expected.state_dict()[name]) for name, t in own.state_dict().items())
    network = list(rows(run, "network"))
    assert {r["client"] for r in network} == {0, 1}
    private = [*out.rglob("*.key"), *out.rglob("*.secret")]
    # The authority's and the server's, one of each client; three of Flower's; one of each client to draw from.
    assert len(private) == 1 + 2 + 3 + 2
    assert {stat.S_IMODE(p.stat().st_mode) for p in private} == {0o600}
    assert said.lines[-1].startswith("fedavg, seed 0: ") or "accuracy" in said.lines[-1]
    # Asked for again, it is done already.
    assert operate.local(experiment, 2, out, said) == run
