"""What is packed, what is in it, and what is refused when it is read."""

import json
import shutil
import stat
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="a deployment needs the extra [deploy]")

from unskew.deploy import certificates, folders
from unskew.deploy.settings import Address, ServerConfig
from unskew.errors import ConfigError, DeployError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.version import __version__

LISTEN, REACHED = Address("0.0.0.0", 8443), Address("fed.example.org", 443)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return config.parse(
        {
            "name": "tiny",
            "rounds": 2,
            "task": {"model": "logistic"},
            "split": {"name": "iid", "num_clients": 2},
            "methods": [{"name": "fedavg"}],
        }
    )


@pytest.fixture(scope="module")
def packed(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack") / "federation"
    folders.pack(folder, experiment, 2, LISTEN, REACHED, names=["10.0.0.7"])
    return folder


@pytest.fixture
def federation(packed: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(packed, tmp_path / "federation"))


def test_a_pack_has_a_folder_for_each_machine_and_each_its_own_secrets(packed: Path) -> None:
    assert sorted(p.name for p in packed.iterdir()) == ["authority", "client-0", "client-1", "server"]
    secret = sorted(p.relative_to(packed).as_posix() for p in packed.rglob("*.key"))
    authority = ["authority/ca.key", "authority/coordinator.key"]
    assert secret == [*authority, "client-0/client.key", "client-1/client.key", "server/server.key"]
    assert all(stat.S_IMODE((packed / p).stat().st_mode) == 0o600 for p in secret)
    private = (packed, *packed.iterdir())
    assert all(stat.S_IMODE(p.stat().st_mode) == 0o700 for p in private)
    certificates.check_server(packed / "server")
    for client in (0, 1):
        certificates.check_client(packed / f"client-{client}")


def test_whether_clients_have_data_of_their_own_is_packed_and_where_these_lie_is_not(
    experiment: Experiment, tmp_path: Path
) -> None:
    config = ServerConfig(1, deadline_s=5.0, wait_s=7.0, own_data=True)
    folders.pack(tmp_path / "f", experiment, 2, LISTEN, REACHED, config=config, portable=False)
    server, client = (
        tomllib.loads((tmp_path / "f" / name).read_text()) for name in ("server/server.toml", "client-1/client.toml")
    )
    assert (server["own_data"], server["min_clients"], server["num_clients"]) == (True, 1, 2)
    assert client == {"client": 1, "num_clients": 2, "own_data": True, "library": __version__}
    assert not (tmp_path / "f" / "authority").exists()
    own = "unskew deploy client . --data npz:/absolute/path/own.npz"
    assert commands(tmp_path / "f" / "client-1")[1:] == [f"{own} --check", own]


def commands(folder: Path) -> list[str]:
    """The commands in the README of a packed folder."""
    return (folder / "README.md").read_text().split("```sh\n")[1].split("```")[0].splitlines()


def test_the_readmes_install_nothing_that_came_with_the_folder(packed: Path) -> None:
    """The attack that worked: the first command ran a wheel of the folder, which was then what checked it."""
    for folder, word in (("server", "server"), ("client-0", "client")):
        block = commands(packed / folder)
        assert block[0] == f"pip install '/path/to/your/own/copy/of/unskew[deploy]'  # version {__version__}"
        assert block[1:] == [f"unskew deploy {word} . --check", f"unskew deploy {word} ."]
        files = {path.suffix for path in (packed / folder).rglob("*") if path.is_file()}
        assert files <= {".toml", ".md", ".crt", ".key", ".pub", ".json", ".sig"}


def test_a_pack_never_overwrites_one(packed: Path, experiment: Experiment) -> None:
    with pytest.raises(DeployError, match="exists already; choose another --out"):
        folders.pack(packed, experiment, 2, LISTEN, REACHED)


def test_impossible_packs_are_refused_before_anything_is_written(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="min_clients must be at most the 2 clients, got 3"):
        folders.pack(tmp_path / "f", experiment, 2, LISTEN, REACHED, config=ServerConfig(3))
    assert not (tmp_path / "f").exists()


def test_a_renewed_certificate_is_another_one_by_the_same_authority(federation: Path) -> None:
    before = (federation / "server" / "server.crt").read_bytes()
    folders.renew(federation)
    assert (federation / "server" / "server.crt").read_bytes() != before
    assert (federation / "server" / "ca.crt").read_bytes() == (federation / "client-0" / "ca.crt").read_bytes()
    certificates.check_server(federation / "server")
    shutil.rmtree(federation / "authority")
    with pytest.raises(DeployError, match=r"ca\.key"):
        folders.renew(federation)


def test_a_renewed_certificate_is_valid_for_what_the_one_before_was(experiment: Experiment, tmp_path: Path) -> None:
    out = tmp_path / "f"
    folders.pack(out, experiment, 2, LISTEN, REACHED, names=["alias.example.org", "10.1.2.3"])
    before = set(certificates.names_of(out / "server" / "server.crt"))
    assert {"alias.example.org", "10.1.2.3", REACHED.host} <= before
    folders.renew(out, ["more.example.org"])
    assert set(certificates.names_of(out / "server" / "server.crt")) == before | {"more.example.org"}


# ---------------------------------------------------------------- reading
def test_keys_are_found_by_the_client_s_number_in_numerical_order(federation: Path) -> None:
    clients = federation / "server" / "clients"
    certificates.issue_client(certificates.authority("x"), 10, federation)
    (federation / "client.crt").rename(clients / "10.crt")
    assert list(folders.clients(federation / "server")) == [0, 1, 10]
    assert list(folders.keys(federation / "server").values()) == [0, 1, 10]


def test_two_clients_with_one_key_are_refused(federation: Path) -> None:
    clients = federation / "server" / "clients"
    (clients / "1.crt").write_bytes((clients / "0.crt").read_bytes())
    with pytest.raises(DeployError, match="clients 0 and 1 have the same key"):
        folders.keys(federation / "server")


@pytest.mark.parametrize("name", ["a.crt", "01.crt", "-1.crt"])
def test_a_key_that_is_not_called_after_a_client_is_refused(federation: Path, name: str) -> None:
    (federation / "server" / "clients" / "0.crt").rename(federation / "server" / "clients" / name)
    with pytest.raises(DeployError, match="called after its client's number"):
        folders.keys(federation / "server")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('host = "a"\nport = 0\n', "port must be >= 1, got 0"),
        ('host = "a"\nport = "x"\n', "port must be an integer"),
        ('host = "a"\n', "port is required"),
        ('host = "a"\nport = 1\nprot = 2\n', "unknown key prot; did you mean port"),
        ("host = ", "is not TOML"),
        pytest.param(".".join("a" * 20_000) + " = 1", "is not TOML: it is nested too deeply", id="nested"),
        *(
            (f"host = {json.dumps(host)}\nport = 1\n", "host must be a host name or an IP address, got ")
            for host in ("a b", "a\0b", "x\ny", "*", "a" * 70, "\u00fc" * 70, "[::1]", "", "a..b", "fe80::1%a b")
        ),
    ],
)
def test_a_network_file_that_cannot_be_is_refused_by_its_key(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "network.toml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        folders.address(tmp_path)


@pytest.mark.parametrize(("listen", "text"), [("0.0.0.0", "0.0.0.0:1"), ("::", "[::]:1"), ("10.1.2.3", "10.1.2.3:1")])
def test_an_address_is_written_with_its_port(listen: str, text: str) -> None:
    assert str(Address(listen, 1)) == text
