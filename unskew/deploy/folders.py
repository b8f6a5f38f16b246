"""Folder layout of a deployment, and functions that write it.

    FEDERATION/              made by `unskew deploy pack`, or by `--local` inside the run folder
        authority/           ca.crt, ca.key: signs certificates; goes to no other machine
                             coordinator.key: signs the clients' folders
        server/              goes to the server's machine
            experiment.toml  server.toml  network.toml  README.md
            ca.crt  server.crt  server.key
            clients/0.crt    the certificates of the clients that may take part, by number
            made when it runs: deployment.json  failures.jsonl  run/
        client-0/            goes to that client's machine
            experiment.toml  client.toml  network.toml  README.md
            ca.crt  client.crt  client.key  manifest.json  manifest.sig  coordinator.pub
            made when it runs: logs/  state/  models/  audit.jsonl

No folder holds code.  `unskew.deploy.settings` says what is in `server.toml` and `client.toml`; `network.toml` says
where the server listens, and in a client's folder where it is reached.  Folders with something private in them can be
entered by their owner only.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import tomli_w

from unskew.data.sources import FILES
from unskew.deploy import certificates, signing
from unskew.deploy.certificates import make_private
from unskew.deploy.settings import EXPERIMENT, Address, ClientConfig, ServerConfig, own_data_example, read_settings
from unskew.errors import ConfigError, DeployError
from unskew.experiment.config import Experiment, own_modules, to_toml
from unskew.files import rename_folder, temporary_folder, write_atomically
from unskew.protocol import hook
from unskew.version import __version__
from unskew.words import counted

REFUSED = "failures.jsonl"
"""Clients that a server refused, in its folder: a run, with such a log of its own, may never begin."""


# ---------------------------------------------------------------- packing
def pack(
    folder: Path,
    experiment: Experiment,
    num_clients: int,
    listen: Address,
    reached: Address,
    *,
    names: Sequence[str] = (),
    config: ServerConfig | None = None,
    portable: bool = True,
) -> None:
    """Make a federation's folders, with an authority, a server certificate and a pair of keys for each client.

    Args:
        folder: A new folder; only its owner can enter it.
        experiment: Experiment to run.
        num_clients: Number of clients that take part.
        listen: Address at which the server listens.
        reached: Address at which clients reach it.
        names: More host names and addresses under which the server is reached.
        config: Settings of the server; by default it waits for all clients.
        portable: True if the folders go to other machines: with the authority's key, so that another server
            certificate can be signed.

    Raises:
        DeployError: If the folder holds something already, or the disk refuses.
        ConfigError: If more clients are waited for than exist.
    """
    config = replace(config or ServerConfig(num_clients), num_clients=num_clients)
    if config.min_clients > num_clients:
        raise ConfigError(f"min_clients must be at most the {num_clients} clients, got {config.min_clients}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DeployError(f"{folder} exists already; choose another --out, or sign a new certificate with --renew")
    try:
        with temporary_folder(folder) as new:
            signer = certificates.authority(experiment.name)
            if portable:
                certificates.save_authority(signer, make_private(new / "authority"))
            coordinator = signing.new_key()
            if portable:
                signing.save_key(coordinator, new / "authority")
            issued = [_pack_client(new, signer, experiment, c, config, reached) for c in range(num_clients)]
            _pack_server(new / "server", signer, experiment, issued, listen, reached, names, config)
            for client in range(num_clients):
                signing.sign(coordinator, client_folder(new, client))
            if folder.exists():
                folder.rmdir()
            rename_folder(new, folder)
    except OSError as error:
        where = error.filename or folder
        raise DeployError(f"cannot write {where}: {error.strerror}; make room or choose another --out") from None


def _pack_server(
    server: Path,
    signer: certificates.Authority,
    experiment: Experiment,
    issued: Sequence[bytes],
    listen: Address,
    reached: Address,
    names: Sequence[str],
    config: ServerConfig,
) -> None:
    certificates.issue_server(signer, [reached.host, *names], make_private(server))
    (server / "clients").mkdir()
    for client, certificate in enumerate(issued):
        write_atomically(server / "clients" / f"{client}.crt", certificate)
    write_atomically(server / EXPERIMENT, to_toml(experiment))
    write_atomically(server / "server.toml", tomli_w.dumps(asdict(config)))
    write_address(server, listen)
    write_atomically(server / "README.md", _server_readme(experiment, len(issued), reached, config.own_data))


def _pack_client(
    federation: Path,
    signer: certificates.Authority,
    experiment: Experiment,
    client: int,
    config: ServerConfig,
    reached: Address,
) -> bytes:
    """Make a client's folder; return its certificate."""
    own = make_private(client_folder(federation, client))
    certificates.issue_client(signer, client, own)
    write_atomically(own / EXPERIMENT, to_toml(experiment))
    settings = ClientConfig(client, config.num_clients or client + 1, config.own_data)
    write_atomically(own / "client.toml", tomli_w.dumps(asdict(settings)))
    write_address(own, reached)
    write_atomically(own / "README.md", _client_readme(experiment, client, config.own_data))
    return (own / "client.crt").read_bytes()


def _install(experiment: Experiment) -> str:
    """The command that installs unskew for an experiment, with what its kind of data and its methods' noise need."""
    by_kind = {"csv": "tables", "parquet": "tables", "hub": "hub"}
    kind, _, _ = experiment.task.data.partition(":")
    noised = any(hook(m.method, "has_dp_noise") for m in experiment.methods)
    extras = ",".join(["deploy", *([by_kind[kind]] if kind in by_kind else []), *(["dp"] if noised else [])])
    # Nothing has been released: a name that pip looked up could be anybody's.  And `python -m pip` would first look
    # for code in the folder it is called in.
    return f"pip install '/path/to/your/own/copy/of/unskew[{extras}]'  # version {__version__}"


def placed(source: str) -> str:
    """Make the path of data absolute if it is here; another may be on another machine."""
    kind, _, rest = source.partition(":")
    here = kind in FILES and rest and Path(rest).expanduser().exists()
    return f"{kind}:{Path(rest).expanduser().absolute()}" if here else source


def not_here(source: str) -> Path | None:
    """Return the file or folder named by data if it is not on this machine."""
    kind, _, rest = source.partition(":")
    path = Path(rest).expanduser()
    return path if kind in FILES and not path.exists() else None


def renew(folder: Path, names: Sequence[str] = ()) -> Path:
    """Sign another certificate for the server of a federation that was packed here; its folder is returned.

    It is valid for what the one before was, and for `names`.

    Raises:
        DeployError: If the authority's key or the certificate before is not there.
    """
    server = folder / "server"
    signer = certificates.load_authority(folder / "authority")
    reached = address(client_folder(folder, 0))
    before = certificates.names_of(server / "server.crt")
    certificates.issue_server(signer, [reached.host, *before, *names], server)
    return server


def client_folder(federation: Path, client: int) -> Path:
    """Path of a client's folder inside the federation's."""
    return federation / f"client-{client}"


# ---------------------------------------------------------------- reading
def address(folder: Path) -> Address:
    """Read the network.toml of a server's or a client's folder.

    Raises:
        DeployError: If the folder is none that was packed.
        ConfigError: If a setting in it cannot be.
    """
    path = folder / "network.toml"
    where = read_settings(path, Address)
    if not certificates.is_host(where.host):
        raise ConfigError(f"host must be a host name or an IP address, got {where.host[:80]!r} ({path})")
    return where


def write_address(folder: Path, where: Address) -> None:
    """Write network.toml."""
    write_atomically(folder / "network.toml", tomli_w.dumps(asdict(where)))


def clients(server: Path) -> dict[int, Path]:
    """The certificates of the clients that may take part, by number.

    Raises:
        DeployError: If there is none, or a file is called otherwise.
    """
    paths = sorted((server / "clients").glob("*.crt"))
    for path in paths:
        if not path.stem.isdecimal() or str(int(path.stem)) != path.stem:
            raise DeployError(f"{path} must be called after its client's number, as in 0.crt")
    if not paths:
        raise DeployError(f"{server / 'clients'} has no client's certificate; copy the folder again as it was packed")
    return dict(sorted((int(path.stem), path) for path in paths))


def keys(server: Path) -> dict[bytes, int]:
    """The number of each client that may take part, by its public key.

    Raises:
        DeployError: As `clients`; or if a file is no certificate, or two clients have the same key.
    """
    owners: dict[bytes, int] = {}
    for client, path in clients(server).items():
        other = owners.setdefault(certificates.public_key(path.read_bytes()), client)
        if other != client:
            raise DeployError(
                f"clients {other} and {client} have the same key in {server / 'clients'}; each needs one of its own"
            )
    return owners


# ---------------------------------------------------------------- files for people
def _code(experiment: Experiment, then: str = "") -> str:
    """A paragraph on code of one's own that an experiment names; empty if it names none."""
    modules = own_modules(experiment)
    if not modules:
        return ""
    named = ", ".join(f"`{module}`" for module in modules)
    return f"""
The experiment names code that is not in this folder: {named}.  Before the second command install it for
the same Python, or set `PYTHONPATH` to the folder it lies in, with the files that it reads, such as weights.{then}
"""


def _consent(source: str) -> str:
    """Sentences on data that the coordinator has chosen and the participant has to allow; empty of named sets."""
    kind, _, rest = source.partition(":")
    if kind not in (*FILES, "hub"):
        return ""
    named = source if kind == "hub" else rest
    return (
        f"The coordinator has chosen what is read, `{named}`, and it is read only if you agree:\nwrite "
        f"`paths = [{json.dumps(named)}]` into your own `~/.config/unskew/policy.toml`.  "
    )


def _server_readme(experiment: Experiment, num_clients: int, reached: Address, own_data: bool) -> str:
    source = experiment.task.data
    layout = (
        "All images in it are for testing: `CLASS/file`, or `SITE/CLASS/file`.\n"
        if own_data and source.startswith("images:")
        else ""
    )
    is_file = source.partition(":")[0] in FILES
    place = (
        ""
        if not is_file
        else f"""
The server tests the global model on `{source}`, the experiment's own data, which it reads on this machine.  A relative
path begins at the folder in which the command is given.
{layout}"""
    )
    return f"""# Server of {experiment.name}

For the machine that clients reach at `{reached}`; {counted(num_clients, "client")}.
Three commands, in this folder:

```sh
{_install(experiment)}
unskew deploy server . --check
unskew deploy server .
```

The second one says what would stop the third.  The run begins when `min_clients` of `server.toml` have appeared; given
again after a crash or Ctrl-C, the third command goes on where the run stood.  Results and `report.html` are in `run/`.
{_code(experiment)}{place}
`server.key` is secret: whoever has it can pose as this server.  The port serves clients whose certificate is in
`clients/` and nobody else; use a machine on which nobody but you has an account.
"""


def _client_readme(experiment: Experiment, client: int, own_data: bool) -> str:
    allow = " --allow-code" * bool(own_modules(experiment))
    then = (
        "  It is sent to you apart, and this folder, which is signed,\ntakes no more files.  It can do whatever "
        "you can do here, so read it first: it is imported only because of `--allow-code`."
    )
    example = own_data_example(experiment.task.data)
    data = (
        "Write after `--data` where your data lie.  They are read there and stay there."
        if own_data
        else "Without `--data` this client takes its part of the experiment's own data, "
        f"`{experiment.task.data}`:\na dry run.  {_consent(experiment.task.data)}"
        f"For data of your own add, for example, `{example}`."
    )
    options = f" {example}" * own_data + allow
    return f"""# Client {client} of {experiment.name}

For one machine of one participant.  Three commands, in this folder:

```sh
{_install(experiment)}
unskew deploy client .{options} --check
unskew deploy client .{options}
```

Nothing in this folder is code.  Take this version of unskew from where you trust it, never out of a folder: it checks
that the folder is as the coordinator signed it.
{_code(experiment, then)}
{data}
The second command first prints the fingerprint of the key that signed this folder: have the coordinator read theirs to
you by telephone.  It says what would stop the third, which runs until it is stopped.  Nothing has to be opened in a
firewall: this machine connects to the server, never the other way round.  Keep `state/` over restarts.
When training is over, this client's own model is in `models/`: `unskew show . --model FILE` makes one file of it.

`client.key` is secret: whoever has it can pose as this client.  So is `state/draws.secret`, made when it runs: whoever
has it can take the noise off what this client sends.
"""
