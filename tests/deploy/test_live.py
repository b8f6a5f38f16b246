"""A federation over gRPC, with its server and sites as threads of this process: certificates, metrics, versions."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from unskew.deploy import channel, member, resident, site
from unskew.deploy.federation import FederationFolder
from unskew.deploy.settings import About, Site
from unskew.deploy.trial import free_port
from unskew.errors import DeployError
from unskew.experiment.config import Experiment
from unskew.record.logs import rows

Small = Callable[..., Experiment]


class Live:
    """A federation whose server runs as long as an experiment, and sites that never end."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.said = folder, list[str]()
        about = About("test", port=free_port(), **options)
        self.federation = FederationFolder.create(folder / "federation", about)

    def join(self, *names: str) -> None:
        for token in self.federation.invite(names):
            site.join(token, self.folder / token.site, Site())
            threading.Thread(target=self._site, args=(self.folder / token.site,), daemon=True).start()

    def _site(self, folder: Path) -> None:
        with suppress(DeployError):
            member.start(folder, self.said.append)

    def run(self, experiment: Experiment, **options: Any) -> Path:
        name = self.federation.queue(experiment, {"own_data": False, "wait_s": 30.0})
        resident.serve(self.federation, self.said.append, only=name, **options)
        return self.federation.record(name)


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return Live(tmp_path)


@pytest.mark.seconds
def test_certificates_that_end_soon_are_renewed_in_mid_run_and_no_round_is_lost(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server and sites have little to do: it waits a tenth of a second wherever it looks around."""
    monkeypatch.setattr(channel, "TELL_S", 0.2)
    monkeypatch.setattr(resident, "SEEN_S", 0.2)
    monkeypatch.setattr(resident, "LOOK_S", 0.0)
    live = Live(tmp_path, days=4 / 86_400)
    live.join("basel", "bern")
    began = time.monotonic()
    run = live.run(small("rounds=20", "eval_every=20", "local.local_steps=1"), look=lambda: time.sleep(0.1))
    assert time.monotonic() - began > 4.0, "longer than any certificate is valid"
    assert list(rows(run, "failures")) == []
    assert len(list(rows(run, "work"))) == 40
    said = [event["text"] for event in live.federation.events()]
    for whose in ("the server", "basel", "bern"):
        assert said.count(f"{whose} has a new certificate") > 1
    assert live.run(small("name='next'")), "the sites connect anew with what they have by now"


def scraped(port: int, path: str) -> str:
    with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10.0) as reply:
        return str(reply.read().decode())


def test_a_monitor_sees_rounds_bytes_sites_and_certificates_while_an_experiment_runs(
    live: Live, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "LOOK_S", 0.0)
    port = free_port()
    live.join("basel", "bern")
    seen: list[str] = []

    def look() -> None:
        with suppress(OSError):
            seen.append(scraped(port, "/metrics"))

    live.run(small("rounds=5", "local.local_steps=1"), look=look, status_port=port)
    last = seen[-1]
    for line in (
        "unskew_connected 2.0",
        'unskew_certificate_days{holder="basel"} 39',
        'rounds_total{experiment="small"}',
    ):
        assert line in last, last
    assert 'unskew_bytes_total{direction="up"}' in last
    assert resident.wrong(live.federation) == ""
