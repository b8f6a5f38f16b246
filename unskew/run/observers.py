"""Observers of every run.  To add one, write a class and name it in `Observers`."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from unskew.info import Info
from unskew.keys import drawn_since, global_states
from unskew.local.trainer import LocalTrainer
from unskew.run import attack, explain, models, unseen
from unskew.run import setup as run_setup
from unskew.run.cell import Cell, Evaluation, LiveRun, Observer, Several
from unskew.run.evaluation import OwnModels, own_models
from unskew.run.final import GlobalPredictions, OneClassFound, TrainedAlone
from unskew.run.folder import explained
from unskew.run.metrics import Metric
from unskew.runtime.in_process import Simulator
from unskew.words import counted

NO_VALIDATION = "{} does nothing while there are no validation results, and none came in this round"
REPORTED_NONE = ": no client with validation examples reports any, as with metrics = false in its policy"
UNKEYED = (
    "numbers were drawn from {} global generator, so the same run again has other results; draw from fed.key or "
    "me.key: {}"
)
DRAWS = {"PyTorch's": "torch.rand(3, generator=(me.key / 'start').generator())"}
DRAWN_BY_NUMPY = "(me.key / 'start').numpy().random(3)"
"""The call that draws by a key in place of any other global generator than those of `DRAWS`."""
BATCH = 256
"""Clients whose final models are in memory at a time, where they were not evaluated together."""


class Observers(Several):
    """The observers of a run, in the order of their calls; the caller's `callback` comes last."""

    def __init__(self, run: LiveRun, *more: Observer) -> None:
        self.curve = HeadlineCurve()
        self.kept = KeptModels(self.curve)
        super().__init__(
            self.curve, _Backdoor(), _Unseen(), OneClassFound(), TrainedAlone(), GlobalPredictions(), _Explained(),
            self.kept, *more, run.callback,
        )  # fmt: skip


# ---------------------------------------------------------------- what is added to an evaluation
class _Backdoor(Observer):
    """Measures how often the backdoor of malicious clients opens."""

    def start(self, cell: Cell) -> None:
        self.success = attack.success(cell.experiment.world.attack, cell.fed, cell.sim.model.server_trainer)

    def evaluated(self, cell: Cell, seen: Evaluation) -> Iterable[Metric]:
        params = cell.sim.method.serve(seen.state, None) if self.success else None
        return [self.success(params)] if self.success and params is not None else ()


class _Unseen(Observer):
    """Measures what the method serves clients that come after training."""

    def start(self, cell: Cell) -> None:
        sim, task, epochs = cell.sim, cell.setup.task, cell.experiment.unseen.adapt_epochs
        self.came: unseen.UnseenClients | None = None
        if isinstance(sim, Simulator) and cell.fed.unseen is not None:
            self.came = unseen.UnseenClients(sim, task, cell.fed, cell.seed, epochs)

    def evaluated(self, cell: Cell, seen: Evaluation) -> Iterable[Metric]:
        every = cell.experiment.unseen.every
        if self.came is None or not (seen.last or (every and seen.round % every == 0)):
            return ()
        scores = self.came.scores(seen.state, seen.round)
        return unseen.metrics_of(scores, cell.setup.task, seen.metrics, seen.last)


class _Explained(Observer):
    """Reports after the last round what the models go by, and for whom they work, where the data are a table."""

    def evaluated(self, cell: Cell, seen: Evaluation) -> Iterable[Info]:
        if not seen.last:
            return ()
        shared = cell.sim.method.serve(seen.state, None)
        return explain.explained(cell, shared, seen)


# ---------------------------------------------------------------- how the headline goes
class HeadlineCurve(Observer):
    """Follows the headline of a cell: the best round so far, and when to stop.

    Attributes:
        validation, best: Round and headline on validation examples, of the last and the best round (from round 1 on).
    """

    def start(self, cell: Cell) -> None:
        """Read what a resumed cell has recorded."""
        self.validation: tuple[int, float] | None = None
        self.best: tuple[int, float] | None = None
        rows = cell.recorded("metrics", "client IS NULL") if cell.round else ()
        for t, of_round in itertools.groupby(rows, key=lambda row: int(row["round"])):
            self._follow(cell, t, {row["name"]: row["value"] for row in of_round})

    def evaluated(self, cell: Cell, seen: Evaluation) -> Iterator[Info]:
        """Follow the evaluation; note if a setting needs validation results and there are none."""
        values = {m.name: m.value for m in seen.metrics if m.client is None}
        self._follow(cell, seen.round, values)
        choice = cell.experiment.by_validation
        if seen.round and choice is not None and not any(name.startswith("val.") for name in values):
            yield Info(warnings=(NO_VALIDATION.format(choice) + REPORTED_NONE * cell.sim.clients.remote,))

    def _follow(self, cell: Cell, t: int, values: Mapping[str, float]) -> None:
        headline = cell.setup.task.headline
        now = values.get(f"val.{headline.name}")
        if now is not None:
            self.validation = t, now
            if t and not math.isnan(now) and (self.best is None or headline.better(now - self.best[1])):
                self.best = t, now

    def reached(self, cell: Cell) -> str | None:
        """The reason to end the cell early; None if there is none."""
        stop, headline = cell.experiment.stop, cell.setup.task.headline
        now, best = self.validation, self.best
        if stop.metric is not None and now is not None and headline.reaches(now[1], stop.metric):
            sign = ">=" if headline.higher else "<="
            return f"validation {headline.label} {now[1]:.4f} {sign} {stop.metric:g} after round {cell.round}"
        if stop.patience is not None and now is not None and best is not None and now[0] - best[0] >= stop.patience:
            rounds = counted(now[0] - best[0], "round")
            return f"validation {headline.label} {best[1]:.4f} of round {best[0]} was not improved in {rounds}"
        if stop.megabytes is not None and cell.bytes >= stop.megabytes * 1e6:
            return f"{cell.bytes / 1e6:.3f} MB sent >= {stop.megabytes:g} after round {cell.round}"
        if stop.seconds is not None and cell.seconds >= stop.seconds:
            return f"{cell.seconds:.1f} s >= {stop.seconds:g} after round {cell.round}"
        return None


class KeptModels(Observer):
    """Saves the global models of the rounds asked for, and at the end all models."""

    def __init__(self, curve: HeadlineCurve) -> None:
        self.curve = curve

    def start(self, cell: Cell) -> None:
        """Describe what all models of the cell share."""
        config, setup, fed = cell.experiment.task, cell.setup, cell.fed
        task = models.task_card(config, fed.dataset, setup.task, run_setup.target_scale(config, setup, fed))
        self.card = models.ModelCard(cell.method.label, cell.seed, None, None, task)
        self.folder = cell.run.folder / "models"
        self.own: OwnModels | None = None

    def evaluated(self, cell: Cell, seen: Evaluation) -> Iterable[Info]:
        """Keep the clients' models until they are saved."""
        self.own = seen.own if seen.all_own else None
        return ()

    def ended_round(self, cell: Cell) -> None:
        """Save the global model of a round that is asked for, or of the best round so far."""
        if cell.round not in self._asked(cell, [cell.round]):
            return
        label, params = cell.method.label, cell.sim.method.serve(cell.state, None)
        if params is None:
            cell.run.note_once(f"{label} has no global model: keep_models keeps none of it")
        else:
            with explained(self.folder, cell.run.folder):
                whole = {**params, **cell.setup.task.constants()}
                models.save_beside(self.folder, replace(self.card, round=cell.round), whole, f"round{cell.round}")

    def drop(self, cell: Cell) -> None:
        """Remove models of rounds that were the best for a while.

        Models of later rounds stay: the run may be resumed from here and need them.
        """
        if cell.experiment.keep_models.best:
            rounds = models.of_rounds(cell.run.folder, cell.method.label, cell.seed)
            asked = self._asked(cell, rounds)
            for t, path in rounds.items():
                if t <= cell.round and t not in asked:
                    path.unlink(missing_ok=True)

    def _asked(self, cell: Cell, rounds: Iterable[int]) -> set[int]:
        asked, best = cell.experiment.keep_models, self.curve.best
        best_round = best[0] if asked.best and best is not None else None
        return {t for t in rounds if t == best_round or (asked.every and t % asked.every == 0)}

    def save(self, cell: Cell) -> None:
        """Save the final global model and, unless clients are remote, their own."""
        self.drop(cell)
        fed, best, constants = cell.fed, self.curve.best, cell.setup.task.constants()
        best_round = best[0] if best is not None and cell.experiment.keep_models.best else None
        new = fed.unseen
        unseen = (
            () if new is None else new.client_names or tuple(str(fed.num_clients + k) for k in range(new.num_clients))
        )
        clients = models.ModelClients(fed.num_clients, fed.client_names, unseen)
        card = replace(self.card, clients=clients, best_round=best_round)
        with explained(self.folder, cell.run.folder):
            shared = cell.sim.method.serve(cell.state, None)
            models.save(self.folder, card, shared, self._own(cell), constants)
        self.own = None

    def _own(self, cell: Cell) -> Iterator[OwnModels]:
        """The models that clients use after training, a few clients' at a time."""
        trainer = cell.sim.model.server_trainer
        if len(cell.setup.tasks) > 1 and isinstance(trainer, LocalTrainer):
            for c in range(cell.fed.num_clients):  # what is constant in its own network is not the server's
                for own in own_models(cell.sim, cell.state, cell.round, [c]).values():
                    yield {c: {**own, **trainer.of(c).task.constants()}}
        elif self.own is not None:
            yield self.own
        elif not cell.sim.clients.remote:
            clients = range(cell.fed.num_clients)
            for first in range(0, len(clients), BATCH):
                yield own_models(cell.sim, cell.state, cell.round, clients[first : first + BATCH])


# ---------------------------------------------------------------- draws without a key
@contextmanager
def unkeyed(cell: Cell, text: str) -> Iterator[list[str]]:
    """Note each global generator that code draws from inside this context.

    With worker processes or a network only PyTorch's is watched, as waiting may draw from others.
    """
    states, warnings = global_states(), list[str]()
    alone = cell.run.pool is None and not cell.sim.clients.remote
    before = states if alone else {whose: states[whose] for whose in DRAWS}
    yield warnings
    warnings += [text.format(whose, DRAWS.get(whose, DRAWN_BY_NUMPY)) for whose in drawn_since(before)]
