"""`unskew fed` and `unskew site` as a user meets them, as far as nothing has to be started."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from records import rewrite

from unskew.cli import main
from unskew.deploy import trial
from unskew.deploy.federation import FederationFolder
from unskew.deploy.offers import Token
from unskew.experiment.config import Experiment
from unskew.record.logs import rows

from .party import Party

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


OPENED: list[tuple[str, bool]] = []
"""Files that were opened, and whether they may have been changed."""


def watch(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and isinstance(args[0], str | os.PathLike):
        OPENED.append((os.fspath(args[0]), args[2] & (os.O_WRONLY | os.O_RDWR) != 0))
    elif event == "sqlite3.connect":
        OPENED.append((os.fspath(args[0]), True))


def test_a_site_s_unit_has_all_that_it_opens_in_a_run_with_noise(
    call: Callable[..., Called], small: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its policy and its account were left out: the site in a container had neither, and said nothing."""
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/.config/unskew").mkdir(parents=True)
    (tmp_path / "home/.config/unskew/policy.toml").write_text("max_epsilon = 100.0")
    party = Party(tmp_path)
    for name in ("basel", "bern"):
        rows = [f"{i * i % 7},{i % 5},{'ab'[i % 2]}" for i in range(60)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["p,q,ill", *rows]))
        party.join(name, data=f"csv:{tmp_path}/{name}.csv")
    assert call("site", "units", "--folder", "basel")[0] == 0
    (composed,) = json.loads((tmp_path / "compose.json").read_text())["services"].values()
    assert composed["environment"]["HOME"] == str(tmp_path / "home")
    unit = (tmp_path / "unskew-site-basel.service").read_text()
    (sentence,) = [line for line in unit.splitlines() if line.startswith("ReadWritePaths=")]
    writes = shlex.split(sentence.removeprefix("ReadWritePaths="))
    assert {path.partition(":")[0] for path in composed["volumes"] if not path.endswith(":ro")} == {*writes}
    reads = [path.partition(":")[0] for path in composed["volumes"]]

    noised = "methods=[{name='fedavg',with=[{name='local_dp',noise_multiplier=2.0}]}]"
    task = "task={data='csv:x.csv',model='logistic',data_options={target='ill',classes=['a','b']}}"
    party.federation.queue(small(task, noised), {"wait_s": 5.0})
    OPENED.clear()
    sys.addaudithook(watch)
    assert party.run() == ["done"]
    others = [str(tmp_path / name) for name in ("federation", "bern", "bern.csv")]
    mine = {file for file in OPENED if file[0].startswith(str(tmp_path)) and not file[0].startswith(tuple(others))}
    assert {Path(path).name for path, _ in mine} > {"basel.csv", "policy.toml", "privacy.sqlite", "audit.jsonl"}
    assert [path for path, written in mine if not path.startswith(tuple(writes if written else reads))] == []


@pytest.mark.parametrize("equal", [True, False])
def test_parity_is_printed_as_json_alone_and_decides_the_exit_code(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equal: bool
) -> None:
    """The deployed run is replaced by a simulated one; whether a transfer of it is changed decides."""

    def pretend(chosen: object, sites: int, out: Path, say: object, force: bool) -> Path:
        assert sites == 2
        run = trial.simulate(chosen, out)  # type: ignore[arg-type]
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
