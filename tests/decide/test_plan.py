"""What a run will cost, forecast: bytes to the byte, memory as a sum, time within a factor of two."""

import dataclasses
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from unskew import machine
from unskew.algorithms.fedavg import ModelMessage, ModelReply
from unskew.decide.forecast import plan
from unskew.decide.forecast.dry_run import size
from unskew.decide.forecast.memory import MESSAGES, SHARED, TRAINING
from unskew.decide.forecast.plan import forecast
from unskew.decide.forecast.values import NOW, Forecast, MemoryPart, MethodCost
from unskew.errors import ConfigError, QuorumError
from unskew.experiment.config import Experiment, NamedMethod
from unskew.local.workers import memory as shared_memory
from unskew.local.workers.pool import Pool
from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, fit, fold, run, step
from unskew.reduction import weighted_mean
from unskew.run import loop
from unskew.run import setup as run_setup
from unskew.tree import Params

MANY = """methods = [
    "fedavg", { name = "fedavg", label = "fedper", personal = ["head"] }, { name = "scaffold", option = "I" },
    "fednova", "fedadam", "oneshot", "independent", "centralised",
]"""


def means(folder: Path) -> dict[tuple[str, str], float]:
    """(method, metric) -> mean over seeds, of a run that is done."""
    rows = json.loads((folder / "summary.json").read_text())["rows"]
    return {(r["method"], r["metric"]): r["mean"] for r in rows}


def costs(experiment: Experiment) -> Forecast:
    return forecast(run_setup.prepared(experiment, run_setup.IN_PROCESS))


# ---------------------------------------------------------------- bytes
def test_bytes_are_those_of_the_run_to_the_byte(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cohorts, losses and examples per client are drawn from keys, so they are known before anything is trained."""
    monkeypatch.setattr(plan, "JOBS", 100_000)
    experiment = tiny(
        "rounds=5", "seeds=[0, 3]", "clients_per_round=2", "world.outage.late=0.2", "eval_every=2", methods=MANY
    )
    found = costs(experiment)
    actual = means(loop.start(experiment, tmp_path / "run").folder)
    for cost in found.costs:
        assert cost.traffic == "exact"
        assert cost.rounds_driven == 5
        assert cost.bytes is not None
        assert dict(cost.bytes) == {d: actual[cost.method, f"bytes.{d}"] for d in ("down", "up", "d2d")}


@pytest.mark.parametrize("name", ["fedavg", "oneshot"])
def test_rounds_that_are_not_driven_are_taken_to_be_as_those_after_the_first(
    name: str, tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedAvg sends the same in every round of a full cohort, OneShot in its first only; how many are driven is work."""
    experiment = tiny("rounds=50", methods=f'[[methods]]\nname = "{name}"\n')
    (whole,) = costs(experiment).costs
    monkeypatch.setattr(plan, "JOBS", 0)
    (short,) = costs(experiment).costs
    assert (short.traffic, short.rounds_driven) == ("extrapolated", 2)
    assert (whole.traffic, whole.rounds_driven) == ("exact", 50)
    assert short.bytes == whole.bytes


@dataclass(frozen=True)
class Choosy:
    """Sends its model back only if training moved it: what travels depends on training."""

    local: SgdConfig = SgdConfig()
    stubborn: bool = False

    def init(self, params: Params, fed: Federation) -> ModelMessage:
        return ModelMessage(params)

    def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
        replies = yield from ask(self.train, dict.fromkeys(fed.clients, state))
        moved = [r.params for r in replies.values() if r.params]
        if self.stubborn and not moved:
            raise ValueError("nobody moved")
        return ModelMessage(weighted_mean(moved, [1.0] * len(moved))) if moved else state

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        done = yield from fit(msg.params, self.local)
        still = all(torch.equal(done.params[n], t) for n, t in msg.params.items())
        return ModelReply({} if still else done.params, me.n), None

    def serve(self, state: ModelMessage, client: ClientId | None) -> Params | None:
        return state.params


def with_method(experiment: Experiment, method: Any) -> Experiment:
    return replace(experiment, methods=(NamedMethod("mine", "fedavg", {}, method),))


@pytest.mark.parametrize("stubborn", [False, True])
def test_traffic_that_depends_on_training_is_an_estimate_and_says_so(
    tiny: Callable[..., Experiment], stubborn: bool
) -> None:
    """Whether the plan accepts unchanged results or fails on them, the perturbed ones are what is counted."""
    found = plan.plan(with_method(tiny(), Choosy(stubborn=stubborn)))
    (cost,) = found.costs
    assert cost.traffic == "estimated"
    assert any("training decides what it sends" in note for note in found.notes)
    assert cost.bytes is not None


def doubled(local: Any, params: Params) -> Params:
    return {n: 2 * t for n, t in params.items()}


@dataclass(frozen=True)
class Folding(Choosy):
    """Counts its examples in a fold and does local code of its own."""

    def round(self, state: ModelMessage, fed: Federation) -> Plan[ModelMessage]:
        replies = yield from ask(self.train, dict.fromkeys(fed.clients, state))
        return ModelMessage(weighted_mean([r.params for r in replies.values()], [1.0] * len(replies)))

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        count = yield from fold(lambda carry, batch: carry + len(batch.y), msg.params, 0)
        params = yield from run(doubled, msg.params)
        return ModelReply(params, me.n * int(count >= 0)), None


def slowly(local: Any, params: Params) -> Params:
    Slow.calls += 1
    time.sleep(0.05)
    return params


@dataclass(frozen=True)
class Slow(Folding):
    """Runs code of its own that takes a twentieth of a second."""

    calls: ClassVar[int] = 0

    @step
    def train(self, me: Me, msg: ModelMessage, memory: None) -> Step[tuple[ModelReply, None]]:
        return ModelReply((yield from run(slowly, msg.params)), me.n), None


def job_of(monkeypatch: pytest.MonkeyPatch, seconds: float, evaluation: float = 0.0) -> None:
    """Every training takes so long, however many steps it has, and every evaluation of a model."""
    monkeypatch.setattr(plan, "trained", lambda *_: ("training", 1))
    monkeypatch.setattr(plan, "evaluated", lambda *_: "evaluation")
    of = {"training": seconds, "evaluation": evaluation}
    monkeypatch.setattr(plan, "affine", lambda once, *_: (of[once], 0.0))


def test_a_plan_disturbs_no_random_numbers(tiny: Callable[..., Experiment]) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    plan.plan(tiny(methods=MANY))
    assert torch.equal(before, torch.random.get_rng_state())


# ---------------------------------------------------------------- what is refused
def test_losses_that_leave_too_few_clients_are_known_beforehand(tiny: Callable[..., Experiment]) -> None:
    with pytest.raises(QuorumError, match=r"^fedavg: 2 rounds in a row have no result: round 2, step 'train': 0 of 4"):
        plan.plan(tiny("world.outage.late=1.0", "rounds=2"))
    notes = plan.plan(tiny("world.outage.late=0.4", "clients_per_round=1", "rounds=6")).notes
    assert any(re.match("fedavg: [1-5] of 6 rounds have too few replies for a result", note) for note in notes)


def test_less_memory_than_needed_is_refused_with_the_sum_and_the_remedy(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 clients x (2,440 bytes of model) fit into 20 kB, a round with what is around it does not."""
    monkeypatch.setattr(machine, "available", lambda: 20_000)
    with pytest.raises(ConfigError) as caught:
        plan.plan(tiny())
    text = str(caught.value)
    assert text.startswith("the run needs ")
    assert "B so far + " in text  # this process may have a gigabyte already
    assert "kB messages" in text
    assert "can be had; " in text
    assert "\n" not in text


def made_up(*parts: MemoryPart, executor: str = "workers", limit: int | None = 1000) -> Forecast:
    return Forecast("x", 1, 1, executor, 3, (), parts, 0, limit, None, None, ())


def test_memory_adds_up_what_is_always_there_and_the_larger_phase() -> None:
    """main 100 + max(40, 30) = 140; a worker 10 + 50 = 60, three of them 180; together 320."""
    found = made_up(
        MemoryPart(NOW, 100, "", "main", "always"),
        MemoryPart(MESSAGES, 40, "", "main", "training"),
        MemoryPart("evaluation", 30, "", "main", "evaluation"),
        MemoryPart("worker's own", 10, "", "worker", "always"),
        MemoryPart("training", 50, "", "worker", "training"),
        MemoryPart("data set", 999, "", "device", "always"),
    )
    assert found.peak == 140
    assert found.everything == 320
    assert dataclasses.replace(found, parts=tuple(p for p in found.parts if p.place != "worker")).everything == 140
    assert found.peak_of("device") == 999
    assert dataclasses.replace(found, reached=500).peak == 500
    assert found.too_large == ""


def share_of(found: Forecast, what: str, place: str) -> MemoryPart:
    return next(s for s in found.parts if (s.what, s.place) == (what, place))


def test_clients_trained_side_by_side_take_as_much_memory_as_they_are_many(tiny: Callable[..., Experiment]) -> None:
    """Four clients of 610 parameters each fit side by side into any memory."""
    one, four = (plan.plan(tiny(f"runtime.executor={e}")) for e in ("sequential", "stacked"))
    assert share_of(four, TRAINING, "main").bytes == 4 * share_of(one, TRAINING, "main").bytes
    assert share_of(four, TRAINING, "main").how.startswith("4 at a time")
    two = plan.plan(tiny("runtime.executor=stacked", "clients_per_round=2"))
    assert share_of(two, TRAINING, "main").bytes == 2 * share_of(one, TRAINING, "main").bytes


def test_memory_of_workers_is_counted_in_their_own_sizes(tiny: Callable[..., Experiment]) -> None:
    """FedAvg's client is sent a model and answers with one; a slot holds up to 8 such clients, if it has the room."""
    found = plan.plan(tiny("runtime.executor=workers", "runtime.workers=2"))
    model = 610 * 4
    shared = share_of(found, SHARED, "worker").bytes
    clients = 8
    assert shared_memory.SLOTS * clients * 2 * model <= shared <= shared_memory.SLOTS * shared_memory.slot_bytes(model)
    assert shared == pytest.approx(shared_memory.SLOTS * clients * 2 * model, rel=0.2)
    pool = Pool(lambda _: pytest.fail("opened"), 1, model)
    try:
        assert pool.shared is not None
        assert pool.shared.size == shared_memory.common_bytes(model)
        (worker,) = pool.workers
        assert len(worker.inbox + worker.outbox) == shared_memory.SLOTS
        assert {slot.size for slot in worker.inbox + worker.outbox} == {shared_memory.slot_bytes(model)}
    finally:
        pool.close()


def test_a_cluster_of_given_shape_is_planned_by_its_cores_and_the_memory_of_a_machine(
    tiny: Callable[..., Experiment],
) -> None:
    """Four machines of eight cores: 32 actors, eight of them beside the process in the middle, on one machine."""
    planned = plan.plan(tiny(), plan.ClusterShape(4, 8))
    assert (planned.executor, planned.workers, planned.nodes, planned.limit) == ("ray", 32, 4, None)
    assert planned.everything == planned.peak_of("main") + 8 * planned.peak_of("worker")
    with pytest.raises(ConfigError, match=r"the run needs .* of memory \(.* a worker.*, but 1 GB can be"):
        plan.plan(tiny(), plan.ClusterShape(4, 8, 10**9))


def test_shared_tensors_are_counted_once() -> None:
    """8 float32 = 32 bytes; a view of it and a second mention count nothing more, a copy does."""
    t = torch.zeros(8)
    assert size([{"a": t, "b": t[:4]}, t]) == 32
    assert size([t, t.clone()]) == 64


# ---------------------------------------------------------------- time
def test_twice_the_rounds_take_twice_the_time_and_half_the_evaluations_half_of_theirs(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_of(monkeypatch, 0.25, 1.0)

    def cost(*overrides: str) -> MethodCost:
        experiment = tiny(*overrides)
        return costs(experiment).costs[0]

    short, long, seldom = cost("rounds=4"), cost("rounds=8"), cost("rounds=4", "eval_every=2")
    assert short.training_s == pytest.approx(4 * 4 * 0.25)  # 4 rounds of 4 clients
    assert long.training_s == pytest.approx(8 * 4 * 0.25)
    # Two models are evaluated, the global one on two parts: 2 s an evaluation, and milliseconds around it.
    assert short.evaluation_s == pytest.approx(4 * 2.0, abs=0.5)
    assert seldom.evaluation_s == pytest.approx(2 * 2.0, abs=0.5)


def test_workers_share_the_training_but_the_longest_job_is_the_least_it_takes(
    tiny: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four jobs of 1 s: 2 s on two workers, 1 s on four, and on eight still 1 s."""
    job_of(monkeypatch, 1.0)
    for several, expected in ((2, 2.0), (4, 1.0), (8, 1.0)):
        experiment = tiny("rounds=1", "runtime.executor=workers", f"runtime.workers={several}")
        found = costs(experiment)
        assert found.workers == several
        assert found.costs[0].training_s == pytest.approx(expected)
