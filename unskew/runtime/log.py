"""The log of a deployment: lines with their time, which the command shows."""

import logging
import sys

LOG = logging.getLogger("unskew.deploy")


def log(text: str) -> None:
    """Write a line to the log."""
    LOG.info(text.rstrip("\n"))


def to_stderr() -> None:
    """Show the log on stderr, each line with its time: that of this machine, with its difference to UTC."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S%z"))
    LOG.handlers[:] = [handler]
    LOG.setLevel(logging.INFO)
