"""Runs an experiment in a federation of another system: what `in_flower` and `in_nvflare` share.

The app or job carries an offer, which is the experiment's TOML and the settings of `ServerConfig`, and no code.  unskew
is installed at server and sites, which decide on the data and code it may use.  The other system decides who may start
it, and authenticates sites.

    $XDG_STATE_HOME/unskew/guests/HASH/    HASH is that of the offer, so that the same offer is resumed
        server/run/                        the record, as of any run
        client-N/                          what the site keeps: state/, models/, audit.jsonl; `answer`
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unskew import schema
from unskew.deploy.client import consider, keep_agreed, open_client
from unskew.deploy.server import serve
from unskew.deploy.settings import ANSWER, EXPERIMENT, Site, own_state, read_rules, text_of
from unskew.errors import ConfigError, UnskewError
from unskew.experiment.config import Experiment, load, to_toml
from unskew.files import write_atomically
from unskew.protocol import ClientId
from unskew.run.folder import locked
from unskew.runtime.client import ClientRuntime
from unskew.runtime.log import log
from unskew.runtime.message import Envelope, Refusal, Transport, answer_to, write
from unskew.runtime.policy import ServerConfig


def offered(experiment: Experiment, clients: int, min_clients: int = 0, **settings: Any) -> dict[str, Any]:
    """An offer of an experiment, as an app or a job carries it.

    Args:
        experiment: The experiment.
        clients: Number of sites.
        min_clients: Number of them needed before a round; 0 for all.
        settings: Others of `ServerConfig`.  Unless own_data = False, every site must name data of its own.
    """
    return {"experiment": to_toml(experiment), **asdict(ServerConfig(clients, min_clients or clients, **settings))}


def run(transport: Transport, offer: Mapping[str, Any], allow_code: bool) -> Path:
    """Run or resume an offer on the sites that `transport` reaches; returns the folder of the record.

    Args:
        transport: Reaches the sites.
        offer: The offer.
        allow_code: Import code that the experiment names.
    """
    folder, config = _folder(offer, "server"), _config(offer)
    load(folder / EXPERIMENT, allow_code=allow_code)
    with locked(folder):
        result = serve(transport, folder, config)
    log(f"the run is done; its record is in {result.folder}")
    return result.folder


def opened(offer: Mapping[str, Any], client: ClientId, site: Site, request: Envelope) -> ClientRuntime:
    """A site's client for an offer, if its own policy and data allow it; `request` is the first request."""
    rules, config, folder = read_rules(site), _config(offer), _folder(offer, f"client-{client}")
    if rules.policy.coordinator is not None:
        raise ConfigError(f"nobody signs an app or a job, and {rules.where} asks for a coordinator's signature")
    if consider(folder, config.own_data, site):
        raise ConfigError(
            f"somebody here has yet to accept it: read {folder / EXPERIMENT}, then write accepted to {folder / ANSWER}"
        )
    return _opened(folder, client, config.num_clients, site, keep_agreed(folder, request))


@functools.lru_cache(maxsize=1)
def _opened(folder: Path, client: ClientId, clients: int, site: Site, agreed: str) -> ClientRuntime:
    return open_client(folder, client, clients, site)


def answer(open_it: Callable[[Envelope], ClientRuntime], data: object) -> bytes:
    """Answer an encoded request as the client that `open_it` opens.

    If it cannot be opened, the server gets the kind of error only; the reason is in the site's log.
    """

    def answered(envelope: Envelope) -> Envelope:
        try:
            return open_it(envelope).answer(envelope)
        except (UnskewError, OSError) as error:
            log(f"this site takes no part: {error}")
            return write("refused", Refusal(f"{type(error).__name__}; the site's own log has more"))

    return b"".join(answer_to(data, answered))


def folder_of(offer: Mapping[str, Any]) -> Path:
    """Folder on this machine for the files of an offer."""
    whole = json.dumps(dict(offer), sort_keys=True)  # Flower hands the settings out in any order
    return own_state() / "guests" / hashlib.sha256(whole.encode()).hexdigest()[:16]


def _folder(offer: Mapping[str, Any], name: str) -> Path:
    folder = folder_of(offer) / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    toml = str(offer.get("experiment", ""))
    if text_of(folder / EXPERIMENT) != toml:  # at a site this is asked at each message
        write_atomically(folder / EXPERIMENT, toml)
    return folder


def _config(offer: Mapping[str, Any]) -> ServerConfig:
    settings = {key: value for key, value in offer.items() if key != "experiment"}
    config: ServerConfig = schema.build(ServerConfig, settings, "", "the app or job")
    return config
