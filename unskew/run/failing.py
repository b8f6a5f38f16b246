"""Error messages of a run: where it failed, and how to go on."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from unskew.errors import (
    DivergedError,
    MemoryShortage,
    ProtocolError,
    QuorumError,
    RunError,
    UnskewError,
    WireError,
    WorkerError,
    shortage,
)
from unskew.experiment.config import own_modules
from unskew.references import IN_PYTHON
from unskew.run import recording
from unskew.run.cell import Cell, LiveRun
from unskew.words import with_names

UNKEPT = "nothing is kept of a run without out=FOLDER"


def going_on(run: LiveRun, then: str = "continue with: {}") -> str:
    """How to resume the run, in Python if it was called there, or why it cannot be resumed."""
    inputs, own = run.setup.inputs, bool(own_modules(run.experiment))
    if not inputs.kept:
        return UNKEPT
    if any(method.name.startswith(IN_PYTHON) for method in run.experiment.methods):
        return "it cannot be resumed, since no file describes its methods; run it again"
    if inputs.from_python:
        return then.format(f"unskew.resume({str(run.folder)!r}{', allow_code=True' * own})")
    return then.format(f"unskew run{' --allow-code' * own} {run.folder}")


@contextmanager
def named(cell: Cell, keep: Callable[[Cell], None]) -> Iterator[None]:
    """Add to errors in a cell the method, seed and round, the clients' names, and what to do.

    Failures so far are recorded.  Where the round can be run again elsewhere, `keep` saves a checkpoint.
    """
    try:
        yield
    except Exception as error:
        run, clients = cell.run, cell.fed.client_names or ()
        place, what, short = f"{cell.method.label}, seed {cell.seed}", with_names(str(error), clients), shortage(error)
        if not isinstance(error, RunError):  # of a disk that is full, or by request
            with suppress(RunError):
                recording.record_failures(cell)
        if cell.at > cell.round and (isinstance(error, WorkerError) or short is not None):
            keep(cell)
        if isinstance(error, DivergedError):
            raise DivergedError(what) from error
        if isinstance(error, QuorumError | ProtocolError | WireError):
            outage = run.experiment.world.outage
            lossy = isinstance(error, QuorumError) and bool(outage.unreachable or outage.late)
            remedy = "; a larger clients_per_round or a smaller world.outage leaves more" * lossy
            raise type(error)(f"{place}: {what}{remedy}") from error
        if isinstance(error, WorkerError):
            raise WorkerError(f"{place}, round {cell.at}: {what}; {going_on(run)}") from error
        if short is not None:
            then = going_on(run, "on a machine with more, {} goes on")
            raise MemoryShortage(f"{place}, round {cell.at}: {short}; {then}") from error
        if not isinstance(error, UnskewError):  # of code of the user's own: its trace says where, not when
            error.__notes__ = [with_names(note, clients) for note in getattr(error, "__notes__", ())]
            error.add_note(f"in {place}, round {cell.at}; {going_on(run)}")
        raise
