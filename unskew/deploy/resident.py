"""A client's process that stays: `python -m unskew.deploy.resident FOLDER SOCKET`, started beside the SuperNode.

Its data are read and its network is built once, not for every message.
"""

import functools
import sys
from pathlib import Path

from unskew.errors import UnskewError
from unskew.runtime import resident


def main(folder: Path, path: Path) -> None:
    """Answer what a client's folder's thin processes hand over, until killed.

    Raises:
        ConfigError, DataError: If the client's settings or data cannot be used.
    """
    listener = resident.listen(path)  # first of all: messages may come while the data are read
    from unskew.deploy.client import open_site
    from unskew.runtime.flower import answered

    resident.answer_all(listener, functools.partial(answered, open_site(folder)))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except UnskewError as error:
        print(f"{type(error).__name__}: {' '.join(str(error).splitlines())}", file=sys.stderr)
        sys.exit(resident.HOPELESS)
