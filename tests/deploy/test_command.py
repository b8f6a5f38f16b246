"""`unskew deploy` as a user meets it, as far as nothing has to be started."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from records import rewrite

pytest.importorskip("grpc", reason="a deployment needs the extra [deploy]")

from unskew.cli import main
from unskew.deploy import operate, parity, reach
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
    """Calls `unskew deploy ...`; exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "tiny.toml").write_text(TINY)

    def run(*words: object) -> Called:
        monkeypatch.setattr(sys, "argv", ["unskew", "deploy", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return (int(ended.value.code or 0), *capsys.readouterr())

    return run


def test_a_federation_is_packed_and_its_server_checked(call: Callable[..., Called], tmp_path: Path) -> None:
    port = reach.free_ports(1)[0]
    code, out, _ = call("pack", "tiny.toml", "--host", "fed.example.org", "--port", port, "--listen", "127.0.0.1")
    assert code == 0
    assert "federation-tiny/server for the server" in out
    code, out, _ = call("server", "federation-tiny/server", "--check")
    assert code == 0
    assert out.startswith(f"ready: would listen at 127.0.0.1:{port}")
    assert not (tmp_path / "federation-tiny" / "server" / "run").exists()


def test_a_packed_federation_is_renewed_by_its_folder_alone(call: Callable[..., Called], tmp_path: Path) -> None:
    call("pack", "tiny.toml", "--out", "f")
    before = (tmp_path / "f" / "server" / "server.crt").read_bytes()
    code, out, _ = call("pack", "--renew", "f")
    assert code == 0
    assert "copy f/server/server.crt" in out
    assert (tmp_path / "f" / "server" / "server.crt").read_bytes() != before


def test_a_client_is_checked_against_a_server_that_is_not_there(call: Callable[..., Called]) -> None:
    port = reach.free_ports(1)[0]
    _, out, _ = call("pack", "tiny.toml", "--out", "f", "--port", port)
    fingerprint = out.rpartition("by telephone: ")[2].strip()
    code, out, err = call("client", "f/client-1", "--check")
    assert (code, out) == (2, "")
    signed, reads, unreachable = err.splitlines()
    assert reads == "data: its part of digits"
    assert signed == f"signed with the key {fingerprint}; compare it with the coordinator's by telephone"
    assert unreachable.startswith(f"Unreachable: nobody answers at 127.0.0.1:{port}")


MINE = """
import unskew as us

class Mine(us.FedAvg):
    pass
"""


def test_code_of_ones_own_is_named_when_it_is_packed_and_the_readmes_commands_run_it(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code_of_mine.py").write_text(MINE)
    (tmp_path / "tiny.toml").write_text(TINY.replace('name = "fedavg"', 'name = "code_of_mine:Mine"'))
    monkeypatch.setattr(sys, "path", list(sys.path))
    port = reach.free_ports(1)[0]
    code, _, err = call("pack", "tiny.toml", "--out", "f", "--port", port)
    assert code == 0
    assert err.startswith("warning: the experiment names code of your own, which is not packed: code_of_mine; send")
    text = (tmp_path / "f" / "client-0" / "README.md").read_text()
    assert "names code that is not in this folder: `code_of_mine`" in text
    assert "\nunskew deploy client . --allow-code --check\nunskew deploy client . --allow-code\n" in text
    assert "`code_of_mine`" in (tmp_path / "f" / "server" / "README.md").read_text()
    assert "names code (code_of_mine:Mine)" in call("client", "f/client-0", "--check")[2]
    _, _, err = call("client", "f/client-0", "--check", "--allow-code")
    assert err.splitlines()[-1].startswith("Unreachable: ")


def test_clients_that_the_split_does_not_have_are_refused_when_it_is_packed(
    call: Callable[..., Called], tmp_path: Path
) -> None:
    code, out, err = call("pack", "tiny.toml", "--clients", 5, "--out", "f")
    assert (code, out) == (2, "")
    assert err == (
        "ConfigError: --clients 5 must be the number of the split's clients, 2, who take their data from it; use "
        "--clients 2, or --set split.name=iid --set split.num_clients=5, or --own-data if clients have data of their "
        "own\n"
    )
    assert not (tmp_path / "f").exists()
    assert call("pack", "tiny.toml", "--clients", 2, "--out", "f")[0] == 0
    (tmp_path / "tiny.toml").write_text(re.sub("split = .*\n", "", TINY))  # iid then, whose settings need its name
    settings = ("--set", "split.name=iid", "--set", "split.num_clients=5")
    assert call("pack", "tiny.toml", "--clients", 5, *settings, "--out", "g")[0] == 0
    code, _, err = call("pack", "tiny.toml", "--clients", 5, *settings[2:], "--own-data", "--out", "h")
    assert code == 2
    assert err.startswith("ConfigError: split.name must be one of iid, ")


def test_clients_may_say_later_where_their_own_data_lie(call: Callable[..., Called], tmp_path: Path) -> None:
    port = reach.free_ports(1)[0]
    packed = call("pack", "tiny.toml", "--clients", 5, "--own-data", "--out", "f", "--port", port)
    assert packed[::2] == (0, "next: unskew deploy server f/server --check\n")
    readme = (tmp_path / "f" / "client-4" / "README.md").read_text()
    assert "Write after `--data` where your data lie.  They are read there" in readme
    code, out, err = call("client", "f/client-4", "--check")
    assert (code, out) == (2, "")
    assert "this client has data of its own: say where they lie, with --data npz:/absolute" in err.splitlines()[-1]
    np.savez(tmp_path / "own.npz", x_train=np.zeros((40, 8, 8), np.uint8), y_train=np.arange(40) % 10)
    _, _, err = call("client", "f/client-4", "--check", "--data", "npz:own.npz")
    assert err.splitlines()[1] == f"data: npz:{tmp_path}/own.npz"
    assert err.splitlines()[2].startswith(f"Unreachable: nobody answers at 127.0.0.1:{port}")  # the data could be read
    code, _, err = call("client", "f/client-4", "--check", "--data", "own.npz")
    assert (code, "DataError: " in err) == (2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tiny.toml"], "Missing option '--local'"),
        (["status"], "unskew deploy has no command 'status' (commands: local, pack, server, client)"),
        (["add", "x"], "unskew deploy has no command 'add' (commands: local, pack, server, client)"),
        (["pakc", "tiny.toml"], "no command 'pakc'; did you mean pack?"),
        (
            ["digit"],
            "nor is it an experiment: no file and no built-in experiment is called 'digit'; did you mean digits",
        ),
        (["pack", "tiny.toml", "--own-data"], "--own-data goes with --clients"),
        (["tiny.toml", "--local", "0"], "0 is not in the range x>=1"),
        (["nix.toml", "--local", "2"], "cannot read nix.toml"),
        (["tiny.toml", "--local", "3"], "--local 3 must be the number of the split's clients, 2"),
        (["tiny.toml", "--local", "2", "--set", "rounds=0"], "rounds must be >= 1"),
        (["tiny.toml", "--local", "2", "--set", "unseen=0.5"], "unseen: a deployment has no clients that it must not"),
        (["pack", "tiny.toml", "--set", "unseen=0.5"], "unseen: a deployment has no clients that it must not"),
        (["pack"], "name an experiment"),
        (["pack", "tiny.toml", "--host", "a b"], "host name or an IP address"),
        (["pack", "tiny.toml", "--min-clients", "3"], "min_clients must be at most the 2 clients"),
        (["server", "nowhere"], "has no network.toml"),
        (["client", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    call: Callable[..., Called], tmp_path: Path, words: list[str], says: str
) -> None:
    code, out, err = call(*words)
    assert code == 2
    assert out == ""
    assert says in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny.toml"]
    assert len(err.splitlines()) == 1 + err.startswith("run folder: ")


def test_without_grpc_every_command_says_what_to_install(
    call: Callable[..., Called], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    for words in (["tiny.toml", "--local", "2"], ["pack", "tiny.toml"], ["server", "."], ["client", "."]):
        code, _, err = call(*words)
        assert (code, err) == (2, "DeployError: a deployment needs grpc; pip install 'unskew[deploy]'\n")


@pytest.mark.parametrize("equal", [True, False])
def test_parity_is_printed_as_json_alone_and_decides_the_exit_code(
    call: Callable[..., Called], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, equal: bool
) -> None:
    """The deployed run is replaced by a simulated one; whether a transfer of it is changed decides."""

    def pretend(chosen: object, clients: int, out: Path, say: object, force: bool) -> Path:
        assert clients == 2
        run = parity.simulate(chosen, out)  # type: ignore[arg-type]
        if not equal:
            first, *rest = rows(run, "transfers")
            rewrite(run, transfers=[{**first, "bytes": first["bytes"] + 1}, *rest])
        return run

    monkeypatch.setattr(operate, "local", pretend)
    code, out, err = call("tiny.toml", "--local", "2", "--check-parity", "--json", "--out", "run")
    assert code == (0 if equal else 1)
    assert json.loads(out) == {"methods": [{"method": "fedavg", "max_abs_diff": 0.0, "bytes_equal": equal}]}
    assert "report: run/report.html" in err
    assert (tmp_path / "run" / "deploy" / "simulated" / "summary.json").exists()
