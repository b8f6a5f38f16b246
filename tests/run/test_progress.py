"""Progress is shown while it can be, and is no part of a run."""

import errno
import io

import pytest

from unskew.run.progress import watching


class Gone(io.StringIO):
    """A stream whose reader is gone; counts attempts to write."""

    tried = 0
    why: OSError = BrokenPipeError()

    def write(self, text: str) -> int:
        self.tried += 1
        raise self.why


class Terminal(Gone):
    why = OSError(errno.EIO, "Input/output error")

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Gone(), Terminal()], ids=["a pipe", "a terminal"])
def test_a_stream_that_cannot_be_written_is_left_alone(stream: Gone) -> None:
    with watching(quiet=False, stream=stream) as callback:
        callback.note("one")
        tried = stream.tried
        callback.note("two")
    assert tried >= 1
    assert stream.tried <= tried + isinstance(stream, Terminal)  # the bar is taken away at the end


def test_a_stream_that_can_be_written_gets_every_line() -> None:
    stream = io.StringIO()
    with watching(quiet=False, stream=stream) as shown:
        shown.note("one")
        shown.note("two")
    assert stream.getvalue() == "one\ntwo\n"
