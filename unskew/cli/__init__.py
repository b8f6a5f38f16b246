"""The command `unskew`."""

import errno
import io
import os
import re
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run the command; an error a user can cause is one line on stderr and exit code 2, being stopped is 130."""
    import click

    from unskew.cli.app import app
    from unskew.cli.text import PLAIN
    from unskew.errors import MemoryShortage, UnskewError, shortage

    warnings.showwarning = _warn
    # Of a stream that was closed before the start Python makes None, and print() would write to the other one.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the process ends
    # A shell leaves ~ as it is in --out=~/runs.
    sys.argv[1:] = [re.sub("^((?:--[a-z-]+=)?)~(?=/)", lambda m: m[1] + str(Path.home()), w) for w in sys.argv[1:]]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal without "±" gets "+-", not a traceback
            stream.reconfigure(errors=PLAIN)
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except UnskewError as error:
        _end(type(error).__name__, str(error), error.exit_code)
    except click.ClickException as error:
        _end("UsageError", error.format_message(), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _end("Interrupted", "stopped by request", 130)
    except BrokenPipeError:  # `unskew list | head`: no reader is left; exit with 1, as click does
        _drop_what_cannot_be_written()
        sys.exit(1)
    except ImportError as error:
        # Of everything that can be missing, this is the part a user can do something about.
        _end(type(error).__name__, f"{error}; unskew doctor says what is missing and what to do", 2)
    except (MemoryError, RuntimeError, OSError) as error:
        short = shortage(error)
        if short is None and not isinstance(error, OSError):
            raise
        _drop_what_cannot_be_written()
        if short is not None:
            _end(MemoryShortage.__name__, short, 2)
        # Errors of files that a run writes name them.
        unwritten = isinstance(error, OSError) and error.filename is None and error.errno in _NOT_WRITTEN
        _end(type(error).__name__, f"{error}: the output could not be written" if unwritten else str(error), 2)
    else:
        # Typer makes 130 of Ctrl-C by itself, without a word.
        if code == 130:
            _end("Interrupted", "stopped by request", 130)
        sys.exit(code)


def _warn(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a warning on the data as one line, and any other as Python does."""
    from unskew.errors import DataWarning, shown

    plain = f"Warning: {message}\n"
    text = plain if issubclass(category, DataWarning) else warnings.formatwarning(message, category, filename, lineno)
    with suppress(OSError):  # of an error stream that nobody reads
        print(shown(text), end="", file=file or sys.stderr)


def _end(name: str, text: str, code: int) -> None:
    from unskew.errors import shown

    if text:  # none where a command without arguments has shown its help
        print(f"{name}: {shown(' '.join(text.splitlines()))}", file=sys.stderr)
    sys.exit(code)


def _drop_what_cannot_be_written() -> None:
    """Drop buffered output: Python would try again at exit, complain, and change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
