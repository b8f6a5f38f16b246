"""`unskew fed` and `unskew site` as a user meets them, as far as nothing has to be started."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from records import rewrite

pytest.importorskip("grpc", reason="a deployment needs the extra [deploy]")

from unskew.cli import main
from unskew.deploy import parity, site, trial
from unskew.deploy.federation import FederationFolder
from unskew.deploy.offers import Token
from unskew.deploy.settings import Site
from unskew.record.logs import rows

TINY = """
name = "tiny"
rounds = 2
task = { data = "digits", model = "logistic" }
split = { name = "iid", num_clients = 2 }
local = { lr = 0.1, batch_size = 128 }
runtime = { executor = "sequential" }
[[methods]]
name = "fedavg"
"""

Called = tuple[int, str, str]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Called]:
    """Calls `unskew ...`; exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "tiny.toml").write_text(TINY)

    def run(*words: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["unskew", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_a_federation_is_made_and_sites_are_invited(call: Callable[..., Called], tmp_path: Path) -> None:
    code, out, err = call("fed", "init", "--host", "fed.example.org", "--port", 9000)
    assert code == 0
    assert out.startswith("made: federation; keep it to yourself")
    assert "note: the server will listen on this machine only; --listen 0.0.0.0 lets others in" in err
    assert "next: unskew fed invite SITE...\n" in err
    fingerprint = out.rpartition("by telephone: ")[2].strip()
    assert fingerprint == FederationFolder(tmp_path / "federation").fingerprint()
    code, out, err = call("fed", "invite", "basel", "bern")
    assert code == 0
    tokens = [Token.read(line.partition("site join ")[2]) for line in out.splitlines()]
    assert [(t.site, t.host, t.port) for t in tokens] == [
        ("basel", "fed.example.org", 9000),
        ("bern", "fed.example.org", 9000),
    ]
    assert call("fed", "remove", "bern")[0] == 0
    code, out, _ = call("fed", "status")
    assert code == 0
    assert "no server runs" in out
    status = json.loads(call("fed", "status", "--json")[1])
    assert [(s["site"], s["state"]) for s in status["sites"]] == [("basel", "invited"), ("bern", "removed")]
    assert json.loads(call("fed", "jobs", "--json")[1]) == {"experiments": []}
    assert [line.partition(" ")[2][9:] for line in call("fed", "logs", "bern")[1].splitlines()] != []


def test_units_are_written_for_the_server_and_for_a_site(call: Callable[..., Called], tmp_path: Path) -> None:
    call("fed", "init")
    code, out, _ = call("fed", "units")
    assert code == 0
    assert "unskew-fed-federation.service" in out
    unit = (tmp_path / "unskew-fed-federation.service").read_text()
    assert f'fed" "serve" "--folder" "{tmp_path}/federation"' in unit
    assert '"8443:8443"' in (tmp_path / "compose.json").read_text()
    (token,) = FederationFolder(tmp_path / "federation").invite(["basel"])
    (tmp_path / "own.npz").touch()
    site.join(token, tmp_path / "basel", Site(f"npz:{tmp_path}/own.npz"))
    assert call("site", "units", "--folder", "basel")[0] == 0
    assert f"{tmp_path}/own.npz:ro" in (tmp_path / "compose.json").read_text()


def test_without_grpc_every_command_says_what_to_install(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    for words in (["fed", "try", "tiny.toml", "--sites", "2"], ["fed", "init"], ["fed", "serve"], ["site", "start"]):
        code, _, err = call(*words)
        assert (code, err) == (2, "DeployError: a federation needs grpc; pip install 'unskew[deploy]'\n")


@pytest.mark.parametrize("equal", [True, False])
def test_parity_is_printed_as_json_alone_and_decides_the_exit_code(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equal: bool
) -> None:
    """The deployed run is replaced by a simulated one; whether a transfer of it is changed decides."""

    def pretend(chosen: object, sites: int, out: Path, say: object, force: bool) -> Path:
        assert sites == 2
        run = parity.simulate(chosen, out)  # type: ignore[arg-type]
        if not equal:
            first, *rest = rows(run, "transfers")
            rewrite(run, transfers=[{**first, "bytes": first["bytes"] + 1}, *rest])
        return run

    monkeypatch.setattr(trial, "trial", pretend)
    code, out, err = call("fed", "try", "tiny.toml", "--sites", "2", "--check-parity", "--json", "--out", "run")
    assert code == (0 if equal else 1)
    assert json.loads(out) == {"methods": [{"method": "fedavg", "max_abs_diff": 0.0, "bytes_equal": equal}]}
    assert "report: run/report.html" in err
    assert (tmp_path / "run" / "deploy" / "simulated" / "summary.json").exists()
