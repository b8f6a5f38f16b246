"""What a monitor and an operator's tools see: metrics, health, logs, units."""

import json
import shutil
import socket
import subprocess
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from unskew.deploy import units
from unskew.deploy.watched import Vitals, serving
from unskew.errors import DeployError
from unskew.runtime import log


def answer(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_a_monitor_reads_numbers_and_health() -> None:
    vitals, wrong = Vitals(), [""]
    with serving(vitals, lambda: wrong[0], 0) as port:
        assert answer(port, "/healthz") == (200, "ok\n")
        wrong[0] = "the disk is full"
        assert answer(port, "/healthz") == (503, "the disk is full\n")
        vitals.rounds.labels("digits").inc(3)
        vitals.certificate.labels("Basel").set(61.5)
        status, text = answer(port, "/metrics")
        assert status == 200
        assert 'unskew_rounds_total{experiment="digits"} 3.0' in text
        assert 'unskew_certificate_days{holder="Basel"} 61.5' in text
        assert "_created" not in text


def test_it_answers_on_loopback_only_and_a_taken_port_is_refused() -> None:
    with serving(Vitals(), str, 0) as port:
        with pytest.raises(DeployError, match="--status-port"), serving(Vitals(), str, port):
            pass
        own = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
        for address in own - {"127.0.0.1", "127.0.1.1"}:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((str(address), port), timeout=1).close()


def test_a_log_has_time_and_level_and_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_BYTES", 500)
    try:
        log.show("json", tmp_path / "logs" / "server.log")
        for i in range(20):
            log.warn(f"line {i}")
    finally:
        log.show()
    files = sorted((tmp_path / "logs").iterdir())
    assert 1 < len(files) <= 1 + log.KEPT
    last = json.loads((tmp_path / "logs" / "server.log").read_text().splitlines()[-1])
    assert (last["level"], last["text"]) == ("warning", "line 19")
    assert last["time"].endswith("+00:00")


def test_units_are_what_systemd_and_compose_take(tmp_path: Path) -> None:
    (folder := tmp_path / "a folder 50 %").mkdir()
    unit = tmp_path / "unskew-site.service"
    unit.write_text(units.systemd("unskew site Basel", [shutil.which("true") or "/bin/true"], [folder], "root"))
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
        assert str(unit.name) not in checked.stderr, checked.stderr
    assert "Restart=on-failure" in unit.read_text()

    (composed,) = json.loads(units.compose(["site", "start"], [folder], [Path("/srv/data.csv")], 8443))[
        "services"
    ].values()
    assert composed["command"] == ["unskew", "site", "start"]
    assert composed["ports"] == ["8443:8443"]
    assert composed["volumes"] == [f"{folder}:{folder}", "/srv/data.csv:/srv/data.csv:ro"]
