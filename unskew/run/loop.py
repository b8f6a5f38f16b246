"""The loop of a run: train, evaluate, record and save, round after round; and resume where a run was stopped.

A run is a list of cells, one for each seed and method, seeds outermost, so that methods can be compared early.  Between
two rounds a cell consists of the method's state, client memory and the round number, nothing else; a checkpoint holds
those and the lengths of the logs, and a resumed run ends with the same bits as one that was never stopped.
"""

import hashlib
import itertools
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import ValidationError

from unskew import info, machine, tasks, wire
from unskew.data.federated import FederatedData, split_label
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
from unskew.experiment.config import (
    Experiment,
    load,
    own_modules,
)
from unskew.files import write_atomically
from unskew.info import Info
from unskew.keys import drawn_since, global_states
from unskew.ledger import totals
from unskew.local.executor import FIRST, EvalJob, columns_of
from unskew.local.workers.pool import JobPool
from unskew.protocol import ClientId, hook, report_of
from unskew.record import columns
from unskew.record.logs import (
    DIVERGED,
    INFO,
    METRICS,
    WORK,
    DivergedRow,
    evaluated,
    part_of,
    sentence,
    why_diverged,
)
from unskew.references import IN_PYTHON
from unskew.run import (
    attack,
    checkpoint,
    constant,
    decide,
    documents,
    models,
    one_class,
    tested,
    trackers,
    unchanged,
    unseen,
)
from unskew.run import setup as run_setup
from unskew.run.callbacks import Callback, NoCallback, Progress
from unskew.run.evaluation import (
    EvalSet,
    OwnModels,
    eval_set,
    evaluate,
    evaluated_clients,
    needs_own_models,
    own_models,
)
from unskew.run.folder import (
    RunLogs,
    create,
    document_hashes,
    explained,
    locked,
    read_json,
    refuse_links,
)
from unskew.run.metrics import Metric, last_value, mean_of_last, minus, summarise
from unskew.run.setup import IN_PROCESS, Backend, InProcess, Setup
from unskew.runtime.in_process import Simulator
from unskew.runtime.memory import Memory
from unskew.runtime.round import Driver, Trace
from unskew.signals import handled
from unskew.tree import check_unchanged, marks, moved
from unskew.words import counted, listed, some, with_names

UNKEPT = "nothing is kept of a run without out=FOLDER"
SAVE_AFTER_S = 10.0
SAVE_SHARE = 0.05
"""Most of a run's time that checkpoints take: where clients' memories are gigabytes, one takes seconds."""
ECHO_S = 1.0
"""A SIGTERM so soon after a first request to stop repeats it: `timeout` signals a process and then its group."""
UNKEYED = (
    "numbers were drawn from {} global generator, so the same run again has other results; draw from fed.key or "
    "me.key: {}"
)
UNKEYED_METRICS = (
    "numbers were drawn from {} global generator while models were evaluated, so the same run again has other "
    "metrics; a network should draw only while it is trained: if self.training"
)
NO_VALIDATION = "{} does nothing while there are no validation results, and none came in this round"
REPORTED_NONE = ": no client with validation examples reports any, as with metrics = false in its policy"
DRAWS = {"PyTorch's": "torch.rand(3, generator=(me.key / 'start').generator())"}
DRAWN_BY_NUMPY = "(me.key / 'start').numpy().random(3)"
"""The call that draws by a key in place of any other global generator than those of `DRAWS`."""
ABANDONED = "too few usable replies for a result, so the model stays as it was"
BATCH = 256
"""Clients whose final models are in memory at a time, where they were not evaluated together."""


class Interrupted(RunError):
    """The user asked the run to stop; it can resume from a checkpoint."""

    exit_code: ClassVar[int] = 130


@dataclass(frozen=True, eq=False)
class RunResult:
    """A finished run.

    Attributes:
        folder: Its folder.
        summary: The content of summary.json.
    """

    folder: Path
    summary: dict[str, Any]


# ---------------------------------------------------------------- start and resume
def start(
    experiment: Experiment,
    folder: Path,
    callback: Callback | None = None,
    command: str = "",
    backend: Backend = IN_PROCESS,
    stop: threading.Event | None = None,
) -> RunResult:
    """Run an experiment into a new folder, in this process unless `backend` says otherwise.

    An impossible run is refused before the folder is made.  A method that diverges under a seed ends there, and the
    other methods and seeds go on: `diverged` of the summary names it.  Over a network it ends the run.  A request to
    stop sets `stop`, and the run ends after the round.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
        DivergedError: If every method diverged under every seed, so that there is no result.
        RunError: If the folder exists or cannot be written, or (Interrupted) the user stopped the run.
    """
    trackers.check(experiment.track)
    setup = backend.prepare(experiment)
    feds = divide_all(experiment, setup, backend)
    create(folder, documents.of_run(folder, experiment, setup, feds, command))
    with locked(folder), trackers.tracking(experiment, folder, callback or NoCallback()) as informed:
        return _Run(experiment, folder, setup, feds, informed, backend=backend, stop=stop).go()


def require_none_diverged(diverged: Sequence[DivergedRow]) -> None:
    """Refuse a run's results where they are needed of every method under every seed.

    Raises:
        DivergedError: Of the first that diverged.
    """
    if diverged:
        row = diverged[0]
        error = DivergedError(why_diverged(row))
        error.where = (row["method"], row["seed"], row["round"])
        raise error


def divide_all(experiment: Experiment, setup: Setup, backend: Backend) -> dict[int, FederatedData]:
    """Divide the examples among the clients, by seed, and check every method against that.

    Raises:
        ConfigError, DataError: If the experiment is impossible.
    """
    feds = {seed: backend.divide(experiment, setup, seed) for seed in experiment.seeds}
    for method in experiment.methods:
        backend.check_method(experiment, method, setup, feds)
    return feds


def resume(
    folder: Path,
    callback: Callback | None = None,
    force: bool = False,
    backend: Backend = IN_PROCESS,
    *,
    allow_code: bool = False,
    settings: Sequence[str] = (),
    stop: threading.Event | None = None,
) -> RunResult:
    """Resume a run where it was stopped, bit for bit if machine and versions are the same.

    Args:
        folder: The run's folder.
        callback: Sees every round.
        force: Resume even though versions, device, threads or executor have changed; the bits may then differ.  It is
            not needed from one to another of `unchanged.SAME_BITS`, executors that give the same; from or to sequential
            on several threads it is.
        backend: Runs the clients; by default this process.
        allow_code: Import a method or network of one's own that the folder names; never for a folder from elsewhere
            whose code one would not run.
        settings: Settings of its `runtime` that the rest is run with, such as "runtime.workers=8"; config.toml stays as
            it is, and resumed.jsonl has them, with what else is other than at the start.
        stop: As in `start`.

    Raises:
        ConfigError: If the folder names such code and `allow_code` is not given, or a setting is not of `runtime`.
        DivergedError: As in `start`.
        RunError: If the folder is not a run, was changed or has links to other folders, is that of a run over a network
            without such a backend, or (`unchanged.EnvironmentChanged`) the environment has changed.
    """
    unchanged.require_run(folder, backend)
    refuse_links(folder)
    unchanged.require_of_runtime(settings)
    with locked(folder):
        if (folder / "summary.json").exists():
            unchanged.require_same_settings(folder)
            return RunResult(folder, read_json(folder / "summary.json"))
        experiment = load(folder / "config.toml", allow_code=allow_code)
        config_sha256 = unchanged.require_same_settings(folder)
        experiment = unchanged.run_otherwise(experiment, settings)
        if isinstance(backend, InProcess):  # another has data of its own
            experiment = unchanged.with_data_found(folder, experiment)
        saved = checkpoint.latest(folder)
        if saved is not None and saved.position.config_sha256 != config_sha256:
            raise RunError(f"{saved.path} belongs to another run; remove it to go on without it")
        setup = backend.prepare(experiment)
        changed = unchanged.require_same_environment(folder, experiment, setup, force)
        unchanged.require_same_network(folder, experiment, setup)
        feds = {seed: backend.divide(experiment, setup, seed) for seed in experiment.seeds}
        partition = json.loads(documents.partition(feds, experiment.client_rows))
        unchanged.require_same_data(folder, partition)
        if saved is not None:
            unchanged.require_same_documents(folder, saved, partition)
        named = {f"runtime.{of.partition(' ')[0]}" for of in changed}
        other = [setting for setting in settings if setting.partition("=")[0].strip() not in named]
        unchanged.record_resumed(folder, experiment, saved, [*changed, *other])
        with trackers.tracking(experiment, folder, callback or NoCallback()) as informed:
            done = run_setup.cells(experiment)[: saved.position.cell if saved else 0]
            without = {(row["method"], row["seed"]) for row in DIVERGED.rows(folder)}
            trained = [cell for cell in ((method.label, seed) for seed, method in done) if cell not in without]
            if lost := models.lost(folder, trained):
                informed.note(
                    f"warning: {folder / 'models'} has no model of {some(lost)}, trained before the run was "
                    "stopped and not trained again; restore its files, or do without it"
                )
            return _Run(experiment, folder, setup, feds, informed, saved, backend, stop).go()


# ---------------------------------------------------------------- the run
def stop_requests(on_request: Callable[[int], None]) -> AbstractContextManager[None]:
    """Call `on_request` with 1, 2, ... as requests to stop (Ctrl-C, SIGTERM, SIGHUP) arrive, as in `handled`."""
    times: list[float] = []

    def on_signal(number: int, _frame: Any) -> None:
        now = time.monotonic()
        if times and number != signal.SIGINT and now - times[0] < ECHO_S:
            return
        times.append(now)
        on_request(len(times))

    return handled((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), on_signal)


class _Run:
    """One run in progress."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        setup: Setup,
        feds: dict[int, FederatedData],
        callback: Callback,
        saved: checkpoint.Saved | None = None,
        backend: Backend = IN_PROCESS,
        stop: threading.Event | None = None,
    ) -> None:
        self.backend = backend
        self.experiment, self.folder, self.setup, self.feds, self.callback = experiment, folder, setup, feds, callback
        self.saved = saved
        position = saved.position if saved else None
        self.cells = run_setup.cells(experiment)
        self.first = position.cell if position else 0
        self.done: tuple[str, ...] = position.done if position else ()
        self.diverged: list[DivergedRow] = []
        self._constants: dict[int, Mapping[ClientId, float]] = {}
        self.told: set[str] = set()  # what was said once for all methods and seeds
        self.stopped: dict[str, str] = dict(position.stopped) if position else {}
        self.notes: dict[str, list[str]] = {k: list(v) for k, v in position.notes.items()} if position else {}
        self.before_s = position.seconds if position else 0.0
        self.begun = time.monotonic()
        self.paced: tuple[float, int] | None = None  # when the first round here ended, and the rounds done by then
        self.rounds_before = self.first * experiment.rounds + (position.round if position else 0)
        self.config_sha256 = str(read_json(folder / "run.json")["config_sha256"])
        self.environment = run_setup.environment(experiment, setup)
        self.documents = document_hashes(folder)
        self.stop = stop or threading.Event()

    def seconds(self) -> float:
        return self.before_s + time.monotonic() - self.begun

    def resuming(self) -> str:
        """The call that goes on with the run: in Python if it was called there; empty if nothing can."""
        if self.made_here() or not self.setup.inputs.kept:
            return ""
        if self.setup.inputs.from_python:
            task = self.experiment.task
            again = ", model=..." * task.model.startswith(IN_PYTHON)
            again += ", loss=..." * (task.loss or "").startswith(IN_PYTHON)
            again += ", transform=..." * task.augment.startswith(IN_PYTHON)
            again += ", metrics=[...]" * any(name.startswith(IN_PYTHON) for name in self.experiment.metrics)
            again += ", allow_code=True" * bool(own_modules(self.experiment))
            return f"unskew.resume({str(self.folder)!r}{again})"
        return f"unskew resume{' --allow-code' * bool(own_modules(self.experiment))} {self.folder}"

    def made_here(self) -> list[str]:
        """Labels of methods that no file describes, as they hold code."""
        return [method.label for method in self.experiment.methods if method.name.startswith(IN_PYTHON)]

    def going_on(self) -> str:
        """The end of a message: how to go on with the run, or why nobody can."""
        if resuming := self.resuming():
            return f"continue with: {resuming}"
        if not self.setup.inputs.kept:
            return UNKEPT
        return f"it cannot be resumed, since no file describes the code in {listed(self.made_here())}; run it again"

    def go(self) -> RunResult:
        with self.listening():
            self.logs, self.pool = RunLogs(self.folder, self.saved.position.logs if self.saved else {}), None
            self.diverged = list(DIVERGED.rows(self.folder))
            try:
                # Before anything runs in parallel here: the callback's display has a thread of its own.
                self.pool = self.workers()
                num_clients = next(iter(self.feds.values())).num_clients
                for remark in run_setup.remarks(self.experiment, self.setup, num_clients):
                    self.callback.note(remark)
                began = time.monotonic()
                self.callback.start(self.experiment, self.setup, self.feds)
                self.begun += time.monotonic() - began  # a plan made at the start is no part of the run it predicts
                for index in range(self.first, len(self.cells)):
                    if self.is_decided(index):
                        break
                    _Cell(self, index).go()
                self.require_results()
                self.logs.seal()
            finally:
                if self.pool is not None:
                    self.pool.close()
                self.logs.close()
            return RunResult(self.folder, self.finish())

    def require_results(self) -> None:
        """Refuse to end a run in which nothing was trained to its end.

        Raises:
            DivergedError: The first one.
        """
        if self.diverged and len(self.diverged) == len(self.done):
            require_none_diverged(self.diverged)

    def is_decided(self, index: int) -> bool:
        """True if no seed is needed beyond those whose cells come before this one.

        It depends on the log alone, so that a resumed run stops at the same seed.
        """
        until, seeds = self.experiment.until, index // len(self.experiment.methods)
        if until is None or index % len(self.experiment.methods) or seeds < until.least:
            return False
        differences, measure = self.differences(), self.setup.task.headline
        # A method that diverges under every seed is not compared, however many more seeds it is trained under.
        lost = [m for m in self.experiment.compared if sum(row["method"] == m for row in self.diverged) == seeds]
        settled = decide.is_settled(differences, until.until / measure.scale) if differences else len(lost) > 0
        if not settled:
            return False
        but = f", but for {listed(lost)}, which diverged under each" if lost else ""
        self.callback.note(f"decided after {seeds} seeds{but}")
        return True

    def differences(self) -> dict[str, list[float]]:
        """The headline of each method that is not a reference run minus the baseline's, seed by seed.

        Of a method that is for the clients' own models, or has no global one, it is that of their own.
        """
        until, experiment, measure = self.experiment.until, self.experiment, self.setup.task.headline
        assert until is not None
        curves: dict[tuple[str, int, str], dict[int, float]] = {}
        for row in METRICS.rows(self.folder):
            if part_of(row["name"]) in ("global", "personal") and "client" not in row:
                curves.setdefault((row["method"], row["seed"], row["name"]), {})[row["round"]] = row["value"]
        without = {(lost["method"], lost["seed"]) for lost in self.diverged}
        curves = {at: curve for at, curve in curves.items() if at[:2] not in without}
        rounds = evaluated(curves)
        pick = mean_of_last if until.metric == "last_fifth" else last_value

        def end(method: str, name: str, seed: int) -> float | None:
            at = rounds.get((method, seed, part_of(name)))
            return None if at is None else pick(curves.get((method, seed, name), {}), at)

        base, gains = str(experiment.baseline), {}
        kinds = {method.label: method.kind for method in experiment.methods}
        for method in experiment.compared:
            names = (measure.own, measure.shared) if kinds[method] == "personal" else (measure.shared, measure.own)
            for name in names if method != base else ():
                apart = [minus(end(method, name, s), end(base, name, s)) for s in experiment.seeds]
                if any(of is not None for of in apart):
                    gains[method] = [of for of in apart if of is not None]
                    break
        return gains

    def workers(self) -> JobPool | None:
        try:
            return run_setup.pool(
                self.experiment, self.setup, self.feds, self.folder / "config.toml", self.callback.note
            )
        except WorkerError as error:
            raise WorkerError(f"{error}; {self.going_on()}") from error

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C (or SIGTERM, SIGHUP) ends the run after the round in progress; a second one at once."""

        def on_request(times: int) -> None:
            if times > 1:
                raise KeyboardInterrupt
            self.stop.set()
            with suppress(Exception):  # the stream may be in use where the signal interrupts
                self.callback.note("stopping after this round; press Ctrl-C again to stop at once")

        with stop_requests(on_request):
            try:
                yield
            except KeyboardInterrupt:
                text = f"stopped in the middle of a round; {self.going_on()}"
                raise Interrupted(text) from None

    def finish(self) -> dict[str, Any]:
        experiment = self.experiment
        labels = [m.label for m in experiment.methods]
        table = summarise(
            METRICS.rows(self.folder),
            labels,
            experiment.seeds,
            split_label(next(iter(self.feds.values()))),
            experiment.mean_last,
            experiment.baseline,
            self.setup.task.headline,
            self.diverged,
        )
        summary: dict[str, Any] = {
            "run": experiment.name,
            "fingerprint": self.fingerprint(),
            "seconds": self.seconds(),
            "peak_rss": machine.peak_resident(),
            "headline": self.setup.task.headline.card(),
            "asked": [m.card() for m in self.setup.task.measures[2:]],
            "rows": table,
            **({"diverged": self.diverged} if self.diverged else {}),
            "stopped": self.stopped or None,
            "executor_notes": self.notes or None,
        }
        if experiment.until is not None:
            summary["seeds"] = list(experiment.seeds[: len(self.done) // len(experiment.methods)])
        with explained(self.folder / "summary.json", self.folder):
            write_atomically(self.folder / "summary.json", json.dumps(summary, indent=1))
        return summary

    def fingerprint(self) -> str:
        """SHA-256 of every final state and every metric; clocks are left out."""
        digest = hashlib.sha256("\n".join(self.done).encode())
        for row in METRICS.rows(self.folder):
            if row["name"] != "seconds":
                digest.update(json.dumps(row, sort_keys=True).encode())
        return digest.hexdigest()

    def constants(self, seed: int) -> Mapping[ClientId, float]:
        """The headline of each client's constant prediction under a seed, the same for every method."""
        if seed not in self._constants:
            kind = tasks.kind_of(self.experiment.task.kind)
            self._constants[seed] = constant.of_clients(kind, self.setup.task.headline, self.feds[seed])
        return self._constants[seed]


class _Cell:
    """One method under one seed."""

    def __init__(self, run: _Run, index: int) -> None:
        self.run, self.index = run, index
        self.seed, self.method = run.cells[index]
        experiment, setup, fed = run.experiment, run.setup, run.feds[self.seed]
        self.sim: Driver[Any]
        self.sim, train = run.backend.runtime(experiment, self.method, setup, fed, index, run.pool)
        elsewhere = self.sim.clients.remote and experiment.val_fraction > 0.0
        self.eval_set: EvalSet = eval_set(setup.task, fed, setup.device, validates=elsewhere)
        self.pooled = train is not fed
        epochs = experiment.unseen.adapt_epochs
        self.newcomers = (
            unseen.newcomers_of(self.sim, setup.task, fed, self.seed, epochs)
            if isinstance(self.sim, Simulator)
            else None
        )
        self.attack = experiment.world.attack
        self.marked = attack.marked(
            self.attack, fed, lambda: run_setup.clients(experiment, self.method, setup, fed, self.seed)[0]
        )
        self.bytes, self.cell_s = 0, 0.0
        self.round = self.at = 0  # the last finished round, and the one in progress
        self.state: Any  # at the end of the last finished round
        self.warned: set[str] = set()
        self.headline = setup.task.headline
        self.value: float | None = None  # of the headline
        self.loss: float | None = None
        self.is_personal = False  # whether value and loss are of the clients' own models
        self.trained: set[ClientId] = set()  # clients, in the round in progress or else the last one
        self.evaluated = 0
        self.own_models: OwnModels | None = None  # those of the last evaluation
        self.results: dict[ClientId, float] = {}  # of the clients' own models, where training alone is there, too
        self.latest: Any = None  # the state that was evaluated last
        self.validation: tuple[int, float] | None = None  # round and headline, over validation examples
        self.best: tuple[int, float] | None = None  # the same of the best round, from round 1 on
        self.columns: str | None = None  # hash of the clients' numbers, where they are no rows of metrics.jsonl
        self.save_at = time.monotonic() + SAVE_AFTER_S

    def go(self) -> None:
        """Run the rest of the cell; errors name method, seed and round."""
        try:
            self.rounds()
        except (DivergedError, QuorumError, ProtocolError, WireError) as error:
            world = self.run.experiment.world.outage
            some = isinstance(error, QuorumError) and bool(world.unreachable or world.late)
            remedy = "; a larger clients_per_round or a smaller world.outage leaves more" * some
            config = self.run.experiment.task
            if isinstance(error, DivergedError) and (
                large := run_setup.large_target(config, self.run.setup, run_setup.FROM_ONE)
            ):
                remedy = f"; it may be that {large}"
            what = self.named(error)
            if isinstance(error, DivergedError) and not self.sim.clients.remote:
                self.end_diverged(f"{what}{remedy}")
                return
            explained_error = type(error)(f"{self.method.label}, seed {self.seed}: {what}{remedy}")
            if isinstance(explained_error, DivergedError):
                explained_error.where = (self.method.label, self.seed, self.at)
            raise explained_error from error
        except WorkerError as error:
            raise WorkerError(
                f"{self.method.label}, seed {self.seed}, round {self.at}: {self.named(error)}; {self.run.going_on()}"
            ) from error
        except Exception as error:
            if (short := shortage(error)) is None:
                raise
            resuming = self.run.resuming()
            going_on = f"on a machine with more, {resuming} goes on" if resuming else self.run.going_on()
            raise MemoryShortage(
                f"{self.method.label}, seed {self.seed}, round {self.at}: {short}; {going_on}"
            ) from error

    def named(self, error: object) -> str:
        """A sentence with the clients' names behind their numbers."""
        return with_names(str(error), self.run.feds[self.seed].client_names or ())

    def rounds(self) -> None:
        """Run the remaining rounds, unless there is a reason to end early or the user asks to stop."""
        run, experiment = self.run, self.run.experiment
        self.state = self.begin()
        while self.round < experiment.rounds:
            if (reason := self.reached()) is not None:
                run.stopped[f"{self.method.label}/{self.seed}"] = reason
                self.evaluate_early_end()
                break
            if run.stop.is_set():
                self.keep()
                raise Interrupted(
                    f"stopped by request after round {self.round} of {self.method.label}, seed {self.seed}; "
                    f"{run.going_on()}"
                )
            try:
                self.one_round()
            except Exception as error:
                with suppress(RunError):  # a disk that is full is the first error's cause, if it is one's
                    self.record_failures()
                    run.logs.flush()
                if isinstance(error, WorkerError) or shortage(error) is not None:
                    self.keep()
                elif not isinstance(error, UnskewError):  # of code of the user's own: its trace says where, not when
                    error.__notes__ = [self.named(note) for note in getattr(error, "__notes__", ())]
                    error.add_note(f"in {self.method.label}, seed {self.seed}, round {self.at}; {run.going_on()}")
                raise
            if self.due():
                self.save()
        self.end()

    def begin(self) -> Any:
        """The state to continue from: the checkpoint's if it is of this cell, else the initial one."""
        run = self.run
        position = run.saved.position if run.saved and run.saved.position.cell == self.index else None
        if position is None or run.saved is None or position.round == 0:
            state = self.sim.start()
            self.record(self.evaluate(state, 0, last=False), 0)
            return state
        algorithm, device = self.method.algorithm, run.setup.device
        state = moved(run.saved.state(wire.state_type(algorithm)), device)
        memory = moved(run.saved.memory(self.sim.clients.memory_type), device)
        state, memory = checkpoint.shared_again(state, memory, position.same)
        self.sim.memory = Memory(position.round, memory)
        self.round, self.cell_s, self.bytes = position.round, position.cell_seconds, position.cell_bytes
        mine = (r for r in METRICS.rows(run.folder) if (r["method"], r["seed"]) == (self.method.label, self.seed))
        for t, of_round in itertools.groupby(mine, key=lambda r: int(r["round"])):
            self.notice([Metric(r["name"], r["value"], client=r.get("client")) for r in of_round], t)
        last = (self.method.label, self.seed, self.round)
        self.trained = {w["client"] for w in WORK.rows(run.folder) if (w["method"], w["seed"], w["round"]) == last}
        if self.sim.clients.remote:  # a server that was started again has as many tries as before
            return state
        of_cell = (r for r in INFO.rows(run.folder) if (r["method"], r["seed"]) == last[:2])
        abandoned = {r["round"] for r in of_cell if ABANDONED in info.warnings_of(r["info"])}
        self.sim.abandoned_last = next(n for n in itertools.count() if self.round - n not in abandoned)
        return state

    def one_round(self) -> None:
        run, t = self.run, self.round + 1
        self.at = t
        began = time.monotonic()
        randomness = self.randomness()
        last = t == run.experiment.rounds
        state, trace = self.sim.attempt(self.state, t, last)
        given = marks(state, content=True) if t <= FIRST else {}
        own = [UNKEYED.format(whose, DRAWS.get(whose, DRAWN_BY_NUMPY)) for whose in drawn_since(randomness)]
        self.trained = {w.client for w in trace.work}
        trained = time.monotonic() - began
        sent = totals(() if self.pooled else trace.transfers)
        metrics = [*(Metric(f"bytes.{direction}", float(n)) for direction, n in sent.items()), *_trained(trace)]
        if last or t % run.experiment.eval_every == 0:
            randomness = self.randomness()
            metrics += self.evaluate(state, t, last)
            own += [UNKEYED_METRICS.format(whose) for whose in drawn_since(randomness)]
            choice = run.experiment.by_validation
            if choice is not None and not any(m.name.startswith("val.") for m in metrics):
                own.append(NO_VALIDATION.format(choice) + REPORTED_NONE * self.sim.clients.remote)
        spent = time.monotonic() - began
        reported = self.info(state, t, own, trace.abandoned, last)
        if given:
            check_unchanged(given, state, "serve or info", "the state that it is given")
        self.record([*metrics, Metric("seconds", spent)], t, trace, reported)
        self.keep_model(state, t)
        # The round is done: everything changes at once, so that a checkpoint can be taken at any moment.
        self.state, self.round = state, t
        self.cell_s, self.bytes = self.cell_s + spent, self.bytes + sum(sent.values())
        done = self.index * run.experiment.rounds + t
        # What is done once, as starting workers and compiling, is in the first round: the others tell the pace.
        since, before = run.paced or (run.begun, run.rounds_before)
        run.paced = run.paced or (time.monotonic(), done)
        pace_s = (time.monotonic() - since) / (done - before)
        run.callback.progress(
            Progress(
                method=self.method.label,
                seed=self.seed,
                round=t,
                rounds=run.experiment.rounds,
                cell=self.index + 1,
                cells=len(run.cells),
                headline=self.headline,
                value=self.value,
                loss=self.loss,
                own=self.is_personal,
                evaluated=self.evaluated,
                clients_per_second=len(trace.losses) / max(trained, 1e-9),
                megabytes=self.bytes / 1e6,
                left_s=pace_s * (len(run.cells) * run.experiment.rounds - done),
            )
        )

    def randomness(self) -> dict[str, Any]:
        """States of the global generators; of PyTorch's alone where worker processes or a network may draw waits."""
        states = global_states()
        alone = self.run.pool is None and not self.sim.clients.remote
        return states if alone else {whose: states[whose] for whose in DRAWS}

    def evaluate(self, state: Any, t: int, last: bool) -> list[Metric]:
        """All metrics of a state; the clients' models of the last evaluation stay until they are saved."""
        which, clients = self.run.experiment.evaluate, self.evaluated_clients()
        if last and not self.sim.clients.remote and needs_own_models(self.eval_set, which):
            own = own_models(self.sim, state, t, clients)
            if len(clients) == len(self.eval_set.test):
                self.own_models = own
        else:
            own = None
        metrics = evaluate(self.sim, state, t, self.eval_set, which, last, own, clients)
        self.latest = state
        if own is not None and any(m.bound == "lower" for m in self.run.experiment.methods):
            self.write_tested(own)
            name = f"personal.{self.run.setup.task.headline.name}"
            self.results = {m.client: m.value for m in metrics if m.client is not None and m.name == name}
        if self.marked is not None:
            metrics += self.marked.metrics(self.sim.algorithm.serve(state, None))
        every = self.run.experiment.unseen.every
        if self.newcomers is not None and (last or (every and t % every == 0)):
            metrics += unseen.metrics_of(self.newcomers.scores(state, t), self.run.setup.task, metrics, last)
        return metrics

    def evaluated_clients(self) -> Sequence[ClientId]:
        """The clients whose own models are evaluated after this round."""
        experiment, num_clients = self.run.experiment, len(self.eval_set.test)
        trained = () if self.pooled else self.trained
        cohort = experiment.cohort(num_clients)
        tested = evaluated_clients(experiment.evaluate_clients, num_clients, cohort, self.seed, trained)
        return tested if self.pooled else attack.honest(self.attack, tested, num_clients, self.seed)

    def evaluate_early_end(self) -> None:
        """Evaluate and report on a cell that ends early as if this round had been its last."""
        t = self.round
        at = (self.method.label, self.seed, t)
        rows = METRICS.rows(self.run.folder)
        known = {
            row["name"] for row in rows if (row["method"], row["seed"], row["round"]) == at and "client" not in row
        }
        metrics = [m for m in self.evaluate(self.state, t, last=True) if m.client is not None or m.name not in known]
        parts = tuple(self.at_end(self.state))
        self.show(parts, t)
        self.record(metrics, t, reported=parts)
        self.keep_model(self.state, t)

    def info(self, state: Any, t: int, own: list[str], abandoned: str, last: bool) -> tuple[object, ...]:
        """The method's report on the round, and the driver's own warnings of it; each is shown once.

        Of a round that was abandoned there is the privacy that has been spent.
        """
        parts = self.reported(state)
        own = [*self.sim.drain_warnings(), *own]
        if abandoned:
            spent = (part for part in parts if isinstance(part, info.PrivacyBudget))
            parts = (*spent, info.AbandonedRound(reason=abandoned, warnings=(ABANDONED,)))
            self.warned.add(ABANDONED)
            if ABANDONED not in self.run.told:  # other methods and seeds lose rounds, too: the report counts them
                self.run.told.add(ABANDONED)
                self.run.callback.note(f"{self.method.label}, seed {self.seed}: {ABANDONED}: {abandoned}")
        if own:
            parts = (*parts, info.Info(warnings=tuple(own)))
        if last:
            parts = (*parts, *self.at_end(state))
        self.show(parts, t)
        return parts

    def show(self, parts: Sequence[object], t: int) -> None:
        """Show the warnings of a report that were not shown before."""
        for text in (text for part in parts for text in info.warnings_of(part)):
            if text not in self.warned:
                self.warned.add(text)
                self.run.callback.note(f"{self.method.label}, seed {self.seed}, round {t}: {text}")

    def reported(self, state: Any) -> tuple[object, ...]:
        """The method's report on the round.

        Raises:
            ProtocolError: If it cannot be kept, or could not be read: it names a client that there is not.
        """
        parts = report_of(self.sim.algorithm, state)
        for part in parts:
            try:
                info.check(part, self.run.feds[self.seed].num_clients)
            except ValidationError as error:
                raise ProtocolError(f"info has {type(part).__name__}.{sentence(error)}") from None
            except (TypeError, ValueError) as error:
                raise ProtocolError(str(error)) from None
        return parts

    def at_end(self, state: Any) -> Iterator[Info]:
        """Reports on the predictions after the last round: for the global test set, and by clients' own models.

        It warns of models that find examples of one class only: their accuracy is then at most the share of that class,
        which can be high.
        """
        experiment, setup, fed = self.run.experiment, self.run.setup, self.run.feds[self.seed]
        kind = setup.task.kind
        if (
            kind.correct is not None
            and self.own_models is not None
            and (found := one_class.of_own(experiment, self.sim, setup, fed, self.eval_set.test, self.own_models))
        ):
            yield found
        if self.results and (worse := constant.beside(self.results, self.run.constants(self.seed), self.headline)):
            yield worse
        wanted = "global" in experiment.evaluate and (kind.correct is not None or kind.report is not None)
        model = self.sim.algorithm.serve(state, None) if wanted else None
        if model is None:
            return
        (columns,) = columns_of(self.sim.executor, [EvalJob(model, "test")])
        if kind.correct is not None:
            yield one_class.recalls(setup, columns)
            if text := one_class.of_global(experiment, setup, columns):
                yield info.Info(warnings=(text,))
        if kind.report is not None:
            outputs, y = (column.cpu().numpy() for column in columns[-2:])
            report = kind.report(outputs.astype(np.float64), y)
            if report is not None and report.warnings and kind.name == "regression":
                remedy = run_setup.worse_than_the_mean(experiment.task, setup)
                report = replace(report, warnings=tuple(f"{text}{remedy}" for text in report.warnings))
            if report is not None:
                yield report

    def record(
        self, metrics: list[Metric], t: int, trace: Trace | None = None, reported: tuple[object, ...] = ()
    ) -> None:
        """Write a round's rows; they reach the file together.

        Raises:
            DivergedError: If a number is NaN or infinite: training cannot recover, and JSON has no such numbers.
        """
        for m in metrics:
            if not math.isfinite(m.value):
                whose = "" if m.client is None else f" of client {m.client}"
                raise DivergedError(f"round {t}: {m.name}{whose} {self.why(m.value, t)}")
        logs, where = self.run.logs, {"method": self.method.label, "seed": self.seed}
        client_values = [m for m in metrics if m.client is not None]
        if len({m.client for m in client_values}) > self.run.experiment.client_rows:
            self.columns = self.write_columns(client_values, t)
            metrics = [m for m in metrics if m.client is None]
        logs.append("metrics", ({**where, "round": t, **_row(m)} for m in metrics))
        if trace is not None:
            # Nothing travels in a bound that pools the data; sending the data is not a method's cost.
            if not self.pooled:
                logs.append("ledger", ({**where, **x._asdict()} for x in trace.transfers))
            logs.append("failures", ({**where, **asdict(f)} for f in trace.failures))
            logs.append("work", ({**where, **w._asdict()} for w in trace.work))
        self.record_failures()
        raw = self.run.setup.dataset.raw
        disclosed = "" if raw is None else raw.rules.disclosed(list(raw.train))
        for part in (info.with_disclosed(part, disclosed) for part in reported):
            logs.append("failures", ({**where, "round": t, **refused} for refused in info.ignored_of(part)))
            logs.append("info", [{**where, "round": t, **info.row(part)}])
        self.notice(metrics, t)
        logs.flush()

    def why(self, value: float, t: int) -> str:
        """The end of a sentence on a metric that is no number: what it became, where that may come from, what to do."""
        if t == 0:
            return (
                f"is {value} before any training, so it is not the learning rate: look at the loss, the network's "
                "outputs, and the data"
            )
        model = self.sim.algorithm.serve(self.latest, None) or {}
        below = [n for n in model if n.endswith("running_var") and bool((model[n] < 0).any())]
        if below:
            return (
                f"became {value}, because the method made a variance of a BatchNorm layer negative ({below[0]} of what "
                "serve returns): step the parameters alone, fed.layout.trainable, and take means of fed.layout.buffers"
            )
        return f"became {value}; lower lr or server_lr"

    def write_columns(self, metrics: Sequence[Metric], t: int) -> str:
        """Write the numbers of clients as columns; return their hash."""
        by_name: dict[str, list[Metric]] = {}
        for m in metrics:
            by_name.setdefault(m.name, []).append(m)
        path = self.run.folder / columns.FOLDER / f"{models.stem(self.method.label, self.seed)}.npz"
        with explained(path, self.run.folder):
            arrays = {
                name: (
                    np.array([m.client for m in some], np.int64),
                    np.array([m.value for m in some], np.float64),
                    np.array([m.weight for m in some], np.float64),
                )
                for name, some in by_name.items()
            }
            return columns.write_clients(path, self.method.label, self.seed, t, arrays)

    def write_tested(self, own: OwnModels) -> None:
        """Write results by test row, from which a report tells the clients' gains over training alone from chance."""
        fed = self.run.feds[self.seed]
        rows = tested.tested_rows(self.run.setup.task, self.sim, own, self.eval_set.test, fed)
        if rows is not None:
            path = self.run.folder / columns.TESTED / f"{models.stem(self.method.label, self.seed)}.npz"
            with explained(path, self.run.folder):
                columns.write_tested(path, self.method.label, self.seed, rows)

    def record_failures(self) -> None:
        """Write failures outside a finished round, and what crossed the network."""
        logs, where = self.run.logs, {"method": self.method.label, "seed": self.seed}
        failures, sent = self.sim.drain_records()
        logs.append("failures", ({**where, **asdict(f)} for f in failures))
        logs.append("network", ({**where, **s._asdict()} for s in sent))

    def notice(self, metrics: list[Metric], t: int) -> None:
        values = {m.name: m.value for m in metrics if m.client is None}
        shared, own = self.headline.shared, self.headline.own
        if shared in values or own in values:
            self.evaluated, self.is_personal = t, shared not in values
        self.value = values.get(shared, values.get(own, self.value))
        self.loss = values.get("global.loss", values.get("personal.loss.mean", self.loss))
        now = values.get(f"val.{self.headline.name}")
        if now is not None:
            self.validation = t, now
            if t and not math.isnan(now) and (self.best is None or self.headline.better(now - self.best[1])):
                self.best = t, now

    def reached(self) -> str | None:
        """The reason why this cell may end early, if there is one."""
        stop = self.run.experiment.stop
        headline, now, best = self.headline, self.validation, self.best
        if stop.metric is not None and now is not None and headline.reaches(now[1], stop.metric):
            sign = ">=" if headline.higher else "<="
            return f"validation {headline.label} {now[1]:.4f} {sign} {stop.metric:g} after round {self.round}"
        if stop.patience is not None and now is not None and best is not None and now[0] - best[0] >= stop.patience:
            return (
                f"validation {headline.label} {best[1]:.4f} of round {best[0]} was not bettered in the "
                f"{counted(now[0] - best[0], 'round')} up to {self.round}"
            )
        if stop.megabytes is not None and self.bytes >= stop.megabytes * 1e6:
            return f"{self.bytes / 1e6:.3f} MB sent >= {stop.megabytes:g} after round {self.round}"
        if stop.seconds is not None and self.cell_s >= stop.seconds:
            return f"{self.cell_s:.1f} s >= {stop.seconds:g} after round {self.round}"
        return None

    def due(self) -> bool:
        every = self.run.experiment.runtime.checkpoint_every
        if self.round >= self.run.experiment.rounds:
            return False  # the end of the cell is saved anyway
        if self.sim.clients.remote and hook(self.sim.algorithm, "binding") is not None:
            return True  # clients may do no finished round again
        return self.round % every == 0 if every else time.monotonic() >= self.save_at

    def keep(self) -> None:
        """Save a checkpoint at the last finished round; before the first, the end of the previous cell is one."""
        if self.round:
            self.save()

    def save(self) -> None:
        """Save a checkpoint at this round of this cell."""
        begun = time.monotonic()
        files = checkpoint.encode_state(self.state, self.sim.memory.at(self.round))
        checkpoint.save(self.run.folder, files, self.position(self.index, self.round))
        ended = time.monotonic()
        self.save_at = ended + max(SAVE_AFTER_S, (ended - begun) * (1.0 / SAVE_SHARE - 1.0))
        self.drop_models()

    def keep_model(self, state: Any, t: int) -> None:
        """Keep the global model of a round that is asked for; the best so far may be one."""
        asked = self.run.experiment.keep_models
        best = asked.best and self.best is not None and self.best[0] == t
        if not best and not (asked.every and t % asked.every == 0):
            return
        params = self.sim.algorithm.serve(state, None)
        if params is None:
            text = f"{self.method.label} has no global model: keep_models keeps none of it"
            if text not in self.run.told:
                self.run.told.add(text)
                self.run.callback.note(text)
        else:
            folder = self.run.folder / "models"
            with explained(folder, self.run.folder):
                whole = {**params, **self.run.setup.task.constants()}
                models.save_of_round(folder, self.task_card(), self.method.label, self.seed, t, whole)

    def drop_models(self) -> None:
        """Remove models that were the best for a while and are not asked for otherwise.

        Those of rounds after this one are left: of a run that goes on from here they may be the best again.
        """
        asked = self.run.experiment.keep_models
        if not asked.best:
            return
        for t, path in models.of_rounds(self.run.folder, self.method.label, self.seed).items():
            every = asked.every and t % asked.every == 0
            if t <= self.round and not every and (self.best is None or t != self.best[0]):
                path.unlink(missing_ok=True)

    def task_card(self) -> models.TaskCard:
        """Describe what all models of this cell share."""
        config, setup, fed = self.run.experiment.task, self.run.setup, self.run.feds[self.seed]
        return models.task_card(config, fed.dataset, setup.task, run_setup.target_scale(config, setup, fed))

    def position(self, cell: int, round: int) -> checkpoint.Position:
        run = self.run
        return checkpoint.Position(
            cell=cell,
            round=round,
            done=run.done,
            stopped=run.stopped,
            logs=run.logs.sync(),
            documents=run.documents,
            seconds=run.seconds(),
            cell_seconds=self.cell_s if round else 0.0,
            cell_bytes=self.bytes if round else 0,
            config_sha256=run.config_sha256,
            environment=run.environment,
            notes=run.notes,
            same=checkpoint.same_tensors(self.state, self.sim.memory.at(round)) if round else (),
        )

    def end(self) -> None:
        """Save the models, note the final state's hash, and move to the start of the next cell."""
        run = self.run
        notes = list(getattr(self.sim.executor, "notes", ()))
        if notes:
            run.notes[f"{self.method.label}/{self.seed}"] = notes
            run.callback.note(f"{self.method.label}, seed {self.seed}: {'; '.join(notes)}")
        memory = {c: checkpoint.without_secrets(m) for c, m in self.sim.memory.at(self.round).items()}
        state = checkpoint.digest(checkpoint.encode_state(self.state, memory))
        done = state if self.columns is None else hashlib.sha256(f"{state} {self.columns}".encode()).hexdigest()
        run.done = (*run.done, done)
        self.save_models()
        checkpoint.save(run.folder, {}, self.position(self.index + 1, 0))

    def end_diverged(self, reason: str) -> None:
        """Note that training diverged, keep its rounds before that, and move to the start of the next cell."""
        run = self.run
        row = DivergedRow(method=self.method.label, seed=self.seed, round=self.at, reason=reason)
        run.diverged.append(row)
        run.done = (*run.done, f"diverged in round {self.at}")
        run.callback.note(f"{why_diverged(row)}; nothing of it counts, and the run goes on")
        run.logs.append("diverged", [row])
        run.logs.flush()
        checkpoint.save(run.folder, {}, self.position(self.index + 1, 0))
        if run.pool is not None and not run.pool.workers:  # closed, since its other answers were not wanted
            run.pool = run.workers()

    def save_models(self) -> None:
        """Save the global model and, unless clients are remote, their own models."""
        run, fed = self.run, self.run.feds[self.seed]
        task = self.task_card()
        came = 0 if fed.unseen is None else fed.unseen.num_clients
        names = None if fed.unseen is None else fed.unseen.client_names
        newcomers = names or tuple(str(fed.num_clients + k) for k in range(came))
        self.drop_models()
        best = self.best[0] if self.best is not None and run.experiment.keep_models.best else None
        card = models.CellCard(
            self.method.label, self.seed, fed.num_clients, fed.client_names, newcomers=newcomers, best_round=best
        )
        global_model = self.sim.algorithm.serve(self.state, None)
        with explained(run.folder / "models", run.folder):
            frozen = run.setup.task.constants()
            models.save(run.folder / "models", task, card, global_model, self.final_models(), frozen)
        self.own_models = None

    def final_models(self) -> Iterator[OwnModels]:
        """The models the clients use after training, a few clients' at a time."""
        if self.own_models is not None:
            yield self.own_models
        elif not self.sim.clients.remote:
            clients = range(self.run.feds[self.seed].num_clients)
            for first in range(0, len(clients), BATCH):
                yield own_models(self.sim, self.state, self.round, clients[first : first + BATCH])


def _trained(trace: Trace) -> Iterator[Metric]:
    """Mean training loss over examples, where a round trained."""
    n = sum(k for k, _ in trace.losses)
    if n:
        yield Metric("train.loss", sum(k * loss for k, loss in trace.losses) / n, float(n))


def _row(m: Metric) -> dict[str, Any]:
    row: dict[str, Any] = {"name": m.name, "value": m.value, "weight": m.weight}
    if m.clients is not None:
        row["clients"] = list(m.clients)
    return row if m.client is None else {**row, "client": m.client}
