"""A client's resident process, started beside the SuperNode.

    python -m unskew.deploy.resident FOLDER SOCKET [--allow-code]

It reads the data and builds the network once, not for every message.
"""

import functools
import sys
from pathlib import Path

from unskew.errors import UnskewError
from unskew.runtime import resident


def main(folder: Path, path: Path, allow_code: bool = False) -> None:
    """Answer the messages that Flower's short-lived processes of this client forward, until killed.

    Raises:
        ConfigError, DataError: If the client's settings or data cannot be used.
    """
    listener = resident.listen(path)  # first of all: messages may come while the data are read
    from unskew.deploy.client import open_client
    from unskew.runtime.flower import answer_frame

    resident.answer_all(listener, functools.partial(answer_frame, open_client(folder, allow_code)))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), "--allow-code" in sys.argv[3:])
    except UnskewError as error:
        print(f"{type(error).__name__}: {' '.join(str(error).splitlines())}", file=sys.stderr)
        sys.exit(resident.UNUSABLE)
