"""The command `unskew`."""

import sys


def main() -> None:
    """Run the command; an error a user can cause is one line on stderr and exit code 2."""
    from unskew.cli.app import app
    from unskew.errors import UnskewError

    try:
        app()
    except UnskewError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(130 if type(error).__name__ == "Interrupted" else 2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # `unskew list models | head` is no failure
        sys.stderr.close()
        sys.exit(0)
