"""Four ways of using the network over real processes, with TLS and keys: each comes to what the simulator comes to.

FedAvg sends models to and fro, FedDW matrices beside them, FedDif hands models from client to client, HCCT forms groups
and keeps what is personal at the clients.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="a deployment needs the extra [deploy]")

from unskew.deploy import parity, trial
from unskew.experiment.config import Experiment
from unskew.ledger import SERVER, node
from unskew.record.logs import rows

from .conftest import Lines, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

THREE = ("split={name='dirichlet',num_clients=3,alpha=0.3}", "local.local_steps=4")
METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": ("rounds=2",),
    "feddw": ("rounds=2",),
    "feddif": ("rounds=1", "methods.0.max_hops=1", "methods.0.epsilon=0.0"),
    "hcct": ("rounds=2", "evaluate=['global','personal']"),
}


@pytest.mark.parametrize("name", METHODS)
def test_over_processes_a_method_comes_to_what_it_comes_to_in_the_simulator(
    name: str, small: Callable[..., Experiment], said: Lines, tmp_path: Path, outcome: Callable[[str, str, str], None]
) -> None:
    experiment = small(f"methods.0.name={name!r}", *THREE, *METHODS[name])
    began = time.monotonic()
    run = trial.trial(experiment, 3, tmp_path / "run", said)
    seconds = time.monotonic() - began
    assert processes_of(tmp_path) == []
    simulated = parity.simulate(experiment, tmp_path / "simulated")
    (found,) = parity.compare(run, simulated)
    assert found.bytes_equal
    assert found.max_abs_diff <= parity.TOLERANCE
    assert list(rows(run, "failures")) == []
    relayed = on_the_wire(run)
    assert (relayed > 0) == (name == "feddif")
    assert info_of(run) == info_of(simulated)
    if name == "feddw":
        assert any("sl" in row["info"] for row in info_of(run))
    if name == "hcct":
        assert sorted(c for group in info_of(run)[-1]["info"]["groups"] for c in group) == [0, 1, 2]
    between = f", {relayed} B relayed between clients" if relayed else ""
    outcome(
        f"{name}, 3 clients", "equal", f"max_abs_diff {found.max_abs_diff:g}, bytes equal{between}; {seconds:.0f} s"
    )


def info_of(run: Path) -> list[dict[str, Any]]:
    """What the method says of each round; a large share of examples is named in a deployment alone."""
    of = list(rows(run, "info"))
    plain = [r for r in of if r["type"] == "Info"]
    assert all("% of its cohort's" in text for r in plain for text in r["info"]["warnings"])
    return [r for r in of if r not in plain]


def on_the_wire(run: Path) -> int:
    """Holds the payloads that went over Flower against the ledger, exchange by exchange; the bytes that were relayed.

    Down, a client is sent what the ledger has it sent, by the server or by another client.  Up, a value that several
    clients are sent, or that is collected, comes once.
    """
    down, up, said_down, said_up, fetched = (Counter[tuple[int, int, int]]() for _ in range(5))
    between = 0
    for r in rows(run, "transfers"):
        if r["dst"] == SERVER:
            up[r["round"], r["hop"], r["src"]] += r["bytes"]
        else:
            down[r["round"], r["hop"], r["dst"]] += r["bytes"]
            between += r["bytes"] if r["src"] != SERVER else 0
    for r in rows(run, "network"):
        place = (r["round"], r["hop"], node(r["client"]))
        if r["what"] == "ask":
            (said_down if r["way"] == "down" else said_up)[place] += r["payload"]
        elif r["what"] == "fetch" and r["way"] == "up":
            fetched[place] += r["payload"]
    assert +said_down == down
    collected = up - said_up
    assert said_up + collected == up
    assert collected <= fetched
    relayed = sum(fetched.values()) - sum(collected.values())
    assert (relayed > 0) == (between > 0)
    return relayed
