"""The wire between a client's short-lived processes and the one that stays."""

import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unskew.errors import WireError
from unskew.runtime import resident
from unskew.runtime.resident import Frame


@pytest.fixture
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A resident that answers with what it was asked, turned round."""
    path = tmp_path_factory.mktemp("s") / "socket"
    listener = resident.listen(path)

    def answer(frame: Frame) -> Frame:
        return Frame(frame.action[::-1], frame.head, frame.sizes, frame.payload[::-1])

    serve(listener, answer)
    yield path
    listener.close()


def serve(listener: socket.socket, answer: Callable[[Frame], Frame]) -> None:
    """Until the listener is closed at the end of the test."""

    def until_closed() -> None:
        with suppress(OSError):
            resident.answer_all(listener, answer)

    threading.Thread(target=until_closed, daemon=True).start()


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frame=st.builds(Frame, text, text, text, st.binary(max_size=5000)))
def test_every_frame_comes_back_as_the_resident_made_it(echo: Path, frame: Frame) -> None:
    got = resident.ask(echo, frame)
    assert got == Frame(frame.action[::-1], frame.head, frame.sizes, frame.payload[::-1])


def test_only_the_owner_may_connect(echo: Path) -> None:
    assert stat.S_IMODE(echo.stat().st_mode) & 0o077 == 0


def test_a_message_waits_for_a_resident_that_is_just_being_started(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("s") / "socket"
    got: list[Frame] = []
    asking = threading.Thread(target=lambda: got.append(resident.ask(path, Frame("a", "", "[]", b""), 10.0)))
    asking.start()
    time.sleep(0.2)
    listener = resident.listen(path)
    threading.Thread(target=lambda: resident.answer_all(listener, lambda f: f), daemon=True).start()
    asking.join(10)
    assert got == [Frame("a", "", "[]", b"")]


def test_a_resident_that_is_gone_or_ends_too_early_is_an_error_in_words(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("s") / "socket"
    with pytest.raises(WireError, match="resident process is gone; its log says why"):
        resident.ask(path, Frame("a", "", "[]", b""), start_s=0.1)
    listener = resident.listen(path)
    threading.Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
    with pytest.raises(WireError, match="ended before it had answered"):
        resident.ask(path, Frame("a", "", "[]", b"x" * (1 << 20)))
    listener.close()


def test_an_answer_that_cannot_be_written_does_not_end_the_resident(
    tmp_path_factory: pytest.TempPathFactory, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path_factory.mktemp("s") / "socket"
    listener = resident.listen(path)
    answers = iter([Frame("\ud800", "", "[]", b""), Frame("b", "", "[]", b"")])
    serve(listener, lambda _: next(answers))
    with pytest.raises(WireError, match="ended before it had answered"):
        resident.ask(path, Frame("a", "", "[]", b""))
    assert resident.ask(path, Frame("a", "", "[]", b"")).action == "b"
    assert "surrogates not allowed" in capfd.readouterr().err
    listener.close()
