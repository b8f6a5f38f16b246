"""A systemd unit and a compose file that keep a server or a site running.

Both start it with the machine and after a failure, not after a normal exit.  It sees this user's files, and may write
only to the folders it names.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from unskew.version import __version__

PLACES = ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "UNSKEW_POLICY", "UNSKEW_DATA")
"""Variables by which policy, account and data are found."""


def systemd(what: str, command: Sequence[str], writes: Sequence[Path], user: str) -> str:
    """A systemd unit that runs a command as a user, in the first of the folders it may write to."""
    folders = [str(path.absolute()) for path in writes]
    return f"""[Unit]
Description={what}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
WorkingDirectory={folders[0].replace("%", "%%")}
Environment={_words(map("=".join, _environment().items()))}
ExecStart={_words(command)}
Restart=on-failure
RestartSec=10
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={_words(folders)}

[Install]
WantedBy=multi-user.target
"""


def _environment() -> dict[str, str]:
    return {name: os.environ[name] for name in PLACES if name in os.environ}


def _words(words: Iterable[str]) -> str:
    return " ".join(json.dumps(word.replace("%", "%%"), ensure_ascii=False) for word in words)


def compose(
    arguments: Sequence[str], writes: Sequence[Path], reads: Sequence[Path] = (), port: int | None = None
) -> str:
    """A compose file that runs `unskew ARGUMENTS` in an image of this version, listening at a port if one is given.

    It runs in the first of the folders it may write to; `reads` have the same paths inside and outside.
    """
    folders = dict.fromkeys(str(path.absolute()) for path in writes)
    others = dict.fromkeys(str(path.absolute()) for path in reads if str(path.absolute()) not in folders)
    service = {
        "build": {"dockerfile_inline": f"FROM python:3.11-slim\nRUN pip install 'unskew[deploy]=={__version__}'\n"},
        "command": ["unskew", *arguments],
        "user": f"{os.getuid()}:{os.getgid()}",
        "working_dir": next(iter(folders)),
        "environment": _environment(),
        "volumes": [*(f"{path}:{path}" for path in folders), *(f"{path}:{path}:ro" for path in others)],
        "restart": "on-failure",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        **({} if port is None else {"ports": [f"{port}:{port}"]}),
    }
    return json.dumps({"services": {"unskew": service}}, indent=2) + "\n"  # JSON is YAML
