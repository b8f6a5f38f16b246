"""A client's resident process, started beside the SuperNode.

    python -m unskew.deploy.resident FOLDER SOCKET SITE         the last one is JSON of `settings.Site`

It reads the data and builds the network once, not for every message.
"""

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from unskew.errors import UnskewError, noted, shown
from unskew.runtime import resident

if TYPE_CHECKING:
    from unskew.deploy.settings import Site
    from unskew.runtime.client import ClientRuntime


def main(folder: Path, path: Path, said: str) -> None:
    """Answer the messages that Flower's short-lived processes of this client forward, until killed.

    Raises:
        ConfigError, DataError: If the client's settings or data cannot be used.
    """
    listener = resident.listen(path)  # first of all: messages may come while the data are read
    from unskew.deploy.settings import Site
    from unskew.runtime.flower import answer_frame

    runtime = opened(folder, Site(**json.loads(said)))
    resident.answer_all(listener, functools.partial(answer_frame, runtime))


def opened(folder: Path, site: "Site") -> "ClientRuntime":
    """Open a client; what its data are warned of is written as of this client, for whoever watches it."""
    from unskew.deploy.client import open_client
    from unskew.deploy.settings import find_own_code

    if site.allow_code:
        find_own_code()
    with noted() as notes:
        runtime = open_client(folder, site)
    for note in notes:
        resident.log(f"client {runtime.client}: warning: {' '.join(shown(note).splitlines())}")
    return runtime


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    except UnskewError as error:
        print(f"{type(error).__name__}: {' '.join(str(error).splitlines())}", file=sys.stderr)
        sys.exit(resident.UNUSABLE)
