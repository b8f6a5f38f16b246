"""A systemd unit and a compose file that keep a server or a site running.

Both start it with the machine and again after a failure; a process that ends by itself, because it was told to, stays
ended.  It may write to its own folder and nothing else.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from unskew.version import __version__

STARTED_AGAIN_S = 10
"""Pause before a process that failed is started again, seconds."""
INSIDE = "/unskew"
"""The folder in a container."""


def systemd(what: str, command: Sequence[str], folder: Path, user: str) -> str:
    """A systemd unit.

    Args:
        what: Such as "unskew site Basel".
        command: The command with its arguments, the program by its whole path.
        folder: The folder that it may write to.
        user: Whose process it is.
    """
    words = " ".join(map(_quoted, command))
    path = str(folder.absolute()).replace("%", "%%")
    return f"""[Unit]
Description={what}
Wants=network-online.target
After=network-online.target

[Service]
User={user}
WorkingDirectory={path}
ExecStart={words}
Restart=on-failure
RestartSec={STARTED_AGAIN_S}
NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ReadWritePaths={_quoted(str(folder.absolute()))}

[Install]
WantedBy=multi-user.target
"""


def _quoted(word: str) -> str:
    return json.dumps(word.replace("%", "%%"), ensure_ascii=False)


def compose(arguments: Sequence[str], folder: Path, data: Sequence[Path] = (), port: int | None = None) -> str:
    """A compose file that builds an image with this version.

    Args:
        arguments: Of the command `unskew`; the folder is there as `INSIDE`.
        folder: The folder that it may write to.
        data: Files and folders that it reads, under the same paths.
        port: The port at which it listens; None for one that does not.
    """
    volumes = [f"{folder.absolute()}:{INSIDE}", *(f"{path.absolute()}:{path.absolute()}:ro" for path in data)]
    service = {
        "build": {"dockerfile_inline": f"FROM python:3.11-slim\nRUN pip install 'unskew[deploy]=={__version__}'\n"},
        "command": ["unskew", *arguments],
        "working_dir": INSIDE,
        "environment": {"HOME": INSIDE},
        "volumes": volumes,
        "restart": "on-failure",
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        **({} if port is None else {"ports": [f"{port}:{port}"]}),
    }
    return json.dumps({"services": {"unskew": service}}, indent=2) + "\n"  # JSON is YAML
