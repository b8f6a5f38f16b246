"""Clients trained side by side end where they would have ended one after the other."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from grid import one_network_each
from recipe import CASES, rounds, simulator
from torch import Tensor, nn

from unskew.data.batches import Augment, augmentation, crop_and_flip
from unskew.errors import DivergedError
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.executor import EvalJob, StepJob, StepResult
from unskew.local.sequential import Sequential
from unskew.local.stacked import rows
from unskew.local.stacked.executor import Stacked
from unskew.local.stacked.network import KeyedDropout, scatter
from unskew.local.stacked.rows import Form, ModelRows
from unskew.local.trainer import LocalTrainer
from unskew.models import build
from unskew.protocol import Batch, Exponential, Fitted, Me, SgdConfig, fit, fold
from unskew.tasks.task import Task, make_task
from unskew.tree import Params, leaves, map_params

CLASSES, SHAPE = 4, (1, 8, 8)
SIZES = (37, 9, 16, 37, 3, 24)
CONFIGS = {
    "plain": SgdConfig(0.05, batch_size=8, local_epochs=2),
    "momentum": SgdConfig(0.05, batch_size=8, local_epochs=2, momentum=0.9),
    "everything": SgdConfig(
        0.02, batch_size=8, local_epochs=2, momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=0.5
    ),
    "steps": SgdConfig(0.05, batch_size=8, local_steps=5, weight_decay=0.1, drop_last=True),
    "whole": SgdConfig(0.1, batch_size=None, local_epochs=3, momentum=0.5),
    "adam": SgdConfig(0.002, batch_size=8, local_epochs=2, optimizer="adam", weight_decay=0.01),
    "adamw": SgdConfig(0.002, batch_size=8, local_epochs=2, optimizer="adamw", weight_decay=0.1),
}


# ---------------------------------------------------------------- networks
class Own(nn.Module):
    """Keeps statistics by assignment, and has a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, CLASSES)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x.flatten(1)))
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * h.detach().mean(0)
        out: Tensor = self.head(h - self.seen)
        return out


class Contrast(nn.Module):
    """The examples of a batch see each other, and no layer or buffer shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x.flatten(1)))
        out: Tensor = self.head(h - h.mean(0) if self.training else h)
        return out


class Drawing(Contrast):
    """Random numbers of its own."""

    def forward(self, x: Tensor) -> Tensor:
        h = torch.dropout(torch.tanh(self.body(x.flatten(1))), 0.5, self.training)
        out: Tensor = self.head(h)
        return out


def counting() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, CLASSES))


class Tied(nn.Module):
    """A last layer that goes by an earlier one's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, CLASSES), nn.Linear(64, CLASSES)
        self.head.weight = self.body.weight

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.head(x) * self.body(x).tanh()
        return out


TOGETHER: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "logistic": lambda: build("logistic", SHAPE, CLASSES),
    "mlp": lambda: build("mlp", SHAPE, CLASSES, hidden=(12, 7)),
    "mlp, no bias in the head": lambda: build("mlp", SHAPE, CLASSES, hidden=(12,), head_bias=False),
    "cnn": lambda: build("cnn_small", SHAPE, CLASSES),
    "cnn, batch norm": lambda: build("cnn_small", SHAPE, CLASSES, norm="batch"),
    "cnn, group norm": lambda: build("cnn_small", SHAPE, CLASSES, norm="group"),
    "own statistics": Own,
    "contrast": Contrast,
}
APART: dict[str, Callable[[], nn.Module]] = {
    "svm": lambda: build("svm", SHAPE, CLASSES),
    "recurrent": lambda: build("lstm_rows", SHAPE, CLASSES),
    "drawing": Drawing,
    "counting": counting,
}


DROPOUT: dict[str, Callable[[], nn.Module]] = {
    "mlp, dropout": lambda: build("mlp", SHAPE, CLASSES, hidden=(12,), dropout=0.4),
    "mlp, dropout of nothing": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Dropout(0.0), nn.Linear(6, 4)),
    "cnn, dropout of maps": lambda: nn.Sequential(
        *(nn.Conv2d(1, 6, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Flatten(), nn.Linear(216, CLASSES))
    ),
}
# Those whose examples leave each other alone: a short batch may be filled up.
ALIKE = ("tied", "logistic", "mlp", "mlp, no bias in the head", "cnn", "cnn, group norm")


# ---------------------------------------------------------------- a small world
def task_of(network: str, **options: Any) -> Task:
    loss = "multi_margin" if network == "svm" else "cross_entropy"
    return make_task(
        {**TOGETHER, **APART, **DROPOUT}[network], CLASSES, loss=loss, examples=device_data().x[:4].float(), **options
    )


def device_data(dtype: torch.dtype = torch.float64, sizes: tuple[int, ...] = SIZES, augment: Any = None) -> DeviceData:
    g = Key(1).generator()
    n = sum(sizes)
    x, y = torch.randn(n + 50, *SHAPE, generator=g, dtype=dtype), torch.randint(CLASSES, (n + 50,), generator=g)
    rows = torch.split(torch.randperm(n, generator=g), sizes)
    return DeviceData(x[:n], y[:n], rows, tuple(r[:5] for r in rows), augment, x[n:], y[n:])


def start_of(task: Task, seed: int = 5, dtype: torch.dtype = torch.float64) -> Params:
    params = {k: v.to(dtype) for k, v in task.init(Key(seed)).items()}
    for i, name in enumerate(task.layout.buffers):
        noise = torch.rand(params[name].shape, generator=Key(i).generator(), dtype=dtype)
        params[name] = 0.1 * noise if name.endswith("mean") else noise + 0.5
    return params


def work(task: Task, data: DeviceData, step: Callable[..., Any], messages: dict[int, Any]) -> dict[int, StepJob]:
    found = {}
    for c, message in messages.items():
        y = data.y[data.train[c]]
        histogram = torch.bincount(y, minlength=CLASSES)
        who = Me(c, len(y), histogram, 2, Key(7) / "client" / c, task.layout, start_of(task), Key(7), Key(7))
        found[c] = StepJob("train", step, who, message, None)
    return found


class Counting(LocalTrainer):
    """Counts what it is asked, so that a test can tell together from alone."""

    asked = 0

    def answer(self, me: Me, index: int, request: object) -> Any:
        self.asked += 1
        return super().answer(me, index, request)


def both(
    task: Task,
    data: DeviceData,
    step: Callable[..., Any],
    messages: dict[int, Any],
    *,
    alone: int | None = 0,
    chunk: int | None = None,
    form: Form | None = None,
) -> tuple[dict[int, StepResult], dict[int, StepResult]]:
    """Sequential and stacked; `alone` requests are not shared."""
    dtype = data.x.dtype
    trainer = Counting(task, data, dtype=dtype)
    stacked = Stacked(trainer, chunk, form)
    many = dict(stacked.complete(work(task, data, step, messages)))
    assert alone in (trainer.asked, None)
    assert stacked.notes == ()
    one = dict(
        Sequential(LocalTrainer(task, data, dtype=dtype, kernels="plain")).complete(work(task, data, step, messages))
    )
    return one, many


def assert_same(
    one: dict[int, StepResult], many: dict[int, StepResult], rtol: float = 1e-9, atol: float = 1e-10
) -> None:
    assert list(one) == list(many)
    for c in one:
        assert one[c].losses == pytest.approx(many[c].losses, rel=rtol)
        for (at, a), (where, b) in zip(leaves(one[c].value), leaves(many[c].value), strict=True):
            assert at == where
            if isinstance(a, Tensor):
                torch.testing.assert_close(b, a, rtol=rtol, atol=atol)
            else:
                assert a == pytest.approx(b, rel=rtol)


def training(config: SgdConfig, *terms: Any, **aux: Any) -> Callable[..., Any]:
    def step(me: Me, msg: Any, memory: None) -> Iterator[Any]:
        fitted: Fitted = yield from fit(msg, config, *terms, **aux)
        return fitted.params, fitted.steps, fitted.lr, fitted.loss

    return step


def everybody(task: Task, dtype: torch.dtype = torch.float64, own: bool = True) -> dict[int, Params]:
    """A start for each client, its own or one object for all."""
    common = start_of(task, dtype=dtype)
    return {c: start_of(task, c, dtype) if own else common for c in range(len(SIZES))}


# ---------------------------------------------------------------- every method
# A second derivative is taken one client at a time, and the notes say so.
ALONE = {"perfedavg, exact"}


# A published score divides by a mean that may be zero: rounding decides which layer tells most.
DECIDED = [case for case in CASES if case != "hcct_e, published"]


@one_network_each(DECIDED, variants=False)
def test_every_algorithm_ends_where_it_ends_sequentially(case: str, network: str) -> None:
    """After two rounds, float64 to 1e-9: state, losses, messages, own models."""
    dtype, rtol, atol = torch.float64, 1e-9, 1e-9
    alone, many = simulator(case, network, dtype=dtype), simulator(case, network, dtype=dtype)
    many.clients.executor = Stacked(many.executor.trainer)  # type: ignore[attr-defined]
    for (t, one, trace), (_, other, same) in zip(rounds(alone, 2), rounds(many, 2), strict=True):
        for (at, a), (where, b) in zip(leaves(one), leaves(other), strict=True):
            assert at == where
            if isinstance(a, Tensor):
                torch.testing.assert_close(b, a, rtol=rtol, atol=atol)
            else:
                assert b == (pytest.approx(a, rel=rtol, abs=atol) if isinstance(a, float) else a)
        assert trace.transfers == same.transfers
        assert trace.losses == [(n, pytest.approx(loss, rel=10 * rtol)) for n, loss in same.losses]
        mine, theirs = (sim.own_models(s, sim.population.clients, t) for sim, s in ((alone, one), (many, other)))
        torch.testing.assert_close(theirs, mine, rtol=rtol, atol=atol)
    assert bool(many.executor.notes) == (case in ALONE)


# ---------------------------------------------------------------- networks and optimisers
@pytest.mark.parametrize(
    ("network", "config"),
    [(n, c) for n in TOGETHER for c in CONFIGS if n in ("mlp", "cnn, batch norm") or c in ("momentum", "steps")],
)
def test_a_network_is_trained_together_as_alone(network: str, config: str) -> None:
    """Ragged: 1 to 10 steps, last batches of 1 to 8.

    Where a batch is more than its examples only equal batches are shared: 37 is there twice, and five steps of full
    batches are the same for everybody but the client with 3 examples.
    """
    task, data = task_of(network), device_data()
    alone = 0 if network in ALIKE else 1 if config == "steps" else 4
    one, many = both(task, data, training(CONFIGS[config]), everybody(task), alone=alone)
    assert_same(one, many, rtol=1e-6 if config.startswith("adam") else 1e-9)


@pytest.mark.parametrize("network", APART)
def test_a_network_that_cannot_be_stacked_is_trained_alone_and_says_why(network: str) -> None:
    task, data = task_of(network), device_data()
    trainer = Counting(task, data, dtype=torch.float64)
    stacked = Stacked(trainer)
    step, starts = training(CONFIGS["everything"]), everybody(task)
    sequential = dict(
        Sequential(LocalTrainer(task, data, dtype=torch.float64)).complete(work(task, data, step, starts))
    )
    assert_same(sequential, dict(stacked.complete(work(task, data, step, starts))))
    assert trainer.asked == len(SIZES)
    assert len(stacked.notes) == 1


@pytest.mark.parametrize("buffers", ["update", "freeze"])
@pytest.mark.parametrize("part", ["head", "body", "norm"])
@pytest.mark.parametrize("own", [True, False])
def test_a_part_of_the_network_is_trained_together_as_alone(
    part: str, own: bool, buffers: Literal["update", "freeze"]
) -> None:
    """With one start for all, what is not trained is one tensor for all."""
    task, data = task_of("cnn, batch norm"), device_data(sizes=(20,) * len(SIZES))
    config = replace(CONFIGS["everything"], trainable=(part,), buffers=buffers)
    starts = everybody(task, own=own)
    one, many = both(task, data, training(config), starts)
    assert_same(one, many)
    for c, done in many.items():
        moved = {n for n, t in done.value[0].items() if not torch.equal(t, starts[c][n])}
        may = task.layout.select((part,))
        assert moved == {n for n in may if buffers == "update" or n in task.layout.trainable}


@pytest.mark.parametrize("augment", [crop_and_flip, augmentation(lambda one: one + torch.randn(()).to(one))])
@pytest.mark.parametrize("network", ["cnn", "mlp"])
def test_augmentation_draws_for_each_client_what_it_draws_alone(network: str, augment: Augment) -> None:
    task, data = task_of(network), device_data(augment=augment)
    x = data.x.clone()
    one, many = both(task, data, training(CONFIGS["momentum"]), everybody(task))
    assert_same(one, many)
    assert torch.equal(data.x, x)


# ---------------------------------------------------------------- terms
@dataclass(frozen=True)
class Pull:
    mu: float = 0.3

    def __call__(self, params: Params, aux: Any) -> Tensor:
        return 0.5 * self.mu * torch.stack([(w - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()


@dataclass(frozen=True)
class Near:
    """Features near those of a reference model; says if it was shown padding as examples."""

    sees: Literal["features"] = "features"

    def __call__(self, params: Params, aux: Any, batch: Batch) -> Tensor:
        features, logits = batch.forward(aux["reference"])
        each = (batch.features - features).square().sum(1) + (batch.logits - logits).square().sum(1) + batch.loss
        return 0.1 * (each * batch.mask).sum() / batch.mask.sum()


@dataclass(frozen=True)
class Prototypes:
    """A record in aux, and a weight of each client's own."""

    of_class: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Toward:
    sees: Literal["features"] = "features"

    def __call__(self, params: Params, aux: Any, batch: Batch) -> Tensor:
        known: Prototypes = aux["known"][0]
        each = (batch.features - known.of_class[batch.y]).square().sum(1)
        return known.weight * aux["scale"] * (each * batch.mask).sum() / batch.mask.sum()


@pytest.mark.parametrize(("network", "own"), [("mlp", True), ("mlp", False), ("cnn, group norm", True)])
def test_terms_that_see_features_and_reference_models_work_together_as_alone(network: str, own: bool) -> None:
    """Ragged: padding would show in the means."""
    task, data = task_of(network), device_data()
    common = start_of(task, 9)

    def step(me: Me, msg: Params, memory: None) -> Iterator[Any]:
        reference = start_of(task, 20 + me.id) if own else common
        return (yield from fit(msg, CONFIGS["momentum"], Near(), Pull(), reference=reference, anchor=msg)).params

    one, many = both(task, data, step, everybody(task))
    assert_same(one, many)
    plain, _ = both(task, data, training(CONFIGS["momentum"]), everybody(task))
    assert not torch.allclose(plain[0].value[0]["head.weight"], many[0].value["head.weight"])


def test_clients_whose_requests_differ_by_value_are_not_mixed() -> None:
    """A number in aux is baked into a call: three clients share 0.1, two 0.2, and the last stands alone."""
    task, data = task_of("mlp"), device_data()
    scale = {0: 0.1, 1: 0.2, 2: 0.1, 3: 0.1, 4: 0.2, 5: 0.3}

    def step(me: Me, msg: Params, memory: None) -> Iterator[Any]:
        known = (Prototypes(torch.zeros(CLASSES, 7, dtype=torch.float64), torch.tensor(1.0)),)
        return (yield from fit(msg, CONFIGS["plain"], Toward(), known=known, scale=scale[me.id])).params

    one, many = both(task, data, step, everybody(task), alone=1)
    assert_same(one, many)


@dataclass(frozen=True)
class Choosing:
    """Decides by a number of the client's own: no batched call can."""

    def __call__(self, params: Params, aux: Any) -> Tensor:
        size = params["head.weight"].square().sum()
        return size if bool(size.detach() > 1.0) else 0.0 * size


def test_a_term_that_cannot_be_batched_is_met_alone_noted_and_not_tried_again() -> None:
    task, data = task_of("mlp"), device_data()
    trainer = Counting(task, data, dtype=torch.float64)
    stacked, step = Stacked(trainer), training(CONFIGS["plain"], Choosing())
    many = dict(stacked.complete(work(task, data, step, everybody(task))))
    one = dict(
        Sequential(LocalTrainer(task, data, dtype=torch.float64)).complete(work(task, data, step, everybody(task)))
    )
    assert_same(one, many)
    assert trainer.asked == len(SIZES)
    assert len(stacked.notes) == 1
    assert "one client at a time: vmap" in stacked.notes[0]
    stacked._fitter.fit = None  # type: ignore[assignment, method-assign]
    assert_same(one, dict(stacked.complete(work(task, data, step, everybody(task)))))


# ---------------------------------------------------------------- steps
def test_a_client_that_diverges_hears_of_it_and_the_others_go_on() -> None:
    task, data = task_of("mlp"), device_data()
    starts = everybody(task)
    starts[3] = map_params(lambda t: t * 1e200, starts[3])

    def step(me: Me, msg: Params, memory: None) -> Iterator[Any]:
        try:
            return (yield from fit(msg, CONFIGS["plain"])).params
        except DivergedError as error:
            return str(error)

    one, many = both(task, data, step, starts, alone=1)
    assert one[3].value == many[3].value
    assert many[3].value.startswith("round 2, client 3: the loss or a parameter became NaN or infinite within 10 steps")
    assert_same({c: d for c, d in one.items() if c != 3}, {c: d for c, d in many.items() if c != 3})


# ---------------------------------------------------------------- folds and grades
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize("network", ["mlp", "cnn, batch norm"])
def test_a_fold_is_given_each_clients_own_examples(network: str, part: Literal["train", "val"], own: bool) -> None:
    """Its function may do what it likes, also forget the mask: it is never given padding."""
    task, data = task_of(network), device_data()

    def collect(carry: tuple[Any, ...], batch: Batch) -> tuple[Any, ...]:
        again = batch.forward(start_of(task, 77))
        return (*carry, batch.x, batch.y, batch.mask, batch.features, batch.logits, batch.loss, len(batch.y), *again)

    def step(me: Me, msg: Params, memory: None) -> Iterator[Any]:
        return (yield from fold(collect, msg, (), part))

    one, many = both(task, data, step, everybody(task, own=own))
    assert_same(one, many)


@pytest.mark.parametrize("network", ["mlp", "cnn, batch norm", "recurrent", "svm"])
def test_models_are_evaluated_together_as_alone(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalTrainer, "CHUNK", 16)
    task, data = task_of(network), device_data()
    models = [start_of(task, c) for c in range(4)]
    jobs = [
        *(EvalJob(m, "test") for m in models),
        *(EvalJob(m, "train", data.train[c]) for c, m in enumerate(models)),
        EvalJob(models[0], "train", data.train[5]),
        EvalJob(models[0], "train"),
    ]
    trainer = LocalTrainer(task, data, dtype=torch.float64)
    for (right, loss), (correct, expected) in zip(
        Stacked(trainer).evaluate(jobs), Sequential(trainer).evaluate(jobs), strict=True
    ):
        assert right.tolist() == correct.tolist()
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- dropout
def test_splitmix_gives_its_published_numbers() -> None:
    """The first two outputs from seed 0 are e220a8397b1dcdaf and 6e789e6aa1b965f4; we keep 62 bits."""
    expected = [0xE220A8397B1DCDAF & (2**62 - 1), 0x6E789E6AA1B965F4 & (2**62 - 1)]
    assert scatter(torch.tensor([1, 2])).tolist() == expected


@pytest.mark.parametrize(
    ("whole_maps", "shape"), [(False, (200, 50)), (False, (20, 10, 7, 7)), (True, (200, 50, 3, 3))]
)
def test_dropout_zeroes_its_share_and_keeps_the_mean(whole_maps: bool, shape: tuple[int, ...]) -> None:
    """10,000 draws of probability 0.3: the share is within 5 standard deviations, 0.023, of it."""
    layer = KeyedDropout(0.3, whole_maps)
    out = layer(torch.ones(shape))
    kept = out.flatten(2).amin(2) if whole_maps else out
    assert float((kept == 0).float().mean()) == pytest.approx(0.3, abs=0.023)
    assert out.unique().tolist() == pytest.approx([0.0, 1 / 0.7])
    if whole_maps:
        assert torch.equal(out.flatten(2).amin(2), out.flatten(2).amax(2))
    layer.seed += 1000003
    assert not torch.equal(layer(torch.ones(shape)), out)
    assert torch.equal(layer.eval()(torch.ones(shape)), torch.ones(shape))


@pytest.mark.parametrize("network", ["mlp, dropout", "cnn, dropout of maps"])
def test_a_clients_dropout_is_its_own_whoever_is_beside_it(network: str) -> None:
    """The numbers are not those of a sequential run; they depend on seed, round, client and step."""
    task, data = task_of(network), device_data()
    step = training(CONFIGS["momentum"])
    trainer = Counting(task, data, dtype=torch.float64)
    found = [dict(Stacked(trainer, chunk).complete(work(task, data, step, everybody(task)))) for chunk in (2, 6)]
    assert_same(*found)
    two = dict(Stacked(trainer).complete(work(task, data, step, {c: start_of(task, c) for c in (4, 2)})))
    assert_same({c: found[0][c] for c in (4, 2)}, two)
    one = dict(Stacked(trainer).complete(work(task, data, step, {4: start_of(task, 4)})))
    assert_same({4: found[0][4]}, one)
    assert trainer.asked == 0
    sequential = dict(Sequential(trainer).complete(work(task, data, step, everybody(task))))
    name = task.layout.classifier
    assert not torch.allclose(sequential[0].value[0][name], found[0][0].value[0][name])
    assert sequential[0].losses[0] == pytest.approx(found[0][0].losses[0], rel=0.5)


# ---------------------------------------------------------------- captured steps
class Again:
    """In place of a CUDA graph: does once more what would have been captured."""

    def __init__(self, rows: ModelRows, size: int) -> None:
        self._step = rows._next_step(size)
        self._step()  # warming up and capturing leave traces in the rows, as on a device
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        self._step()


@pytest.mark.parametrize(
    ("network", "config", "form", "augment"),
    [
        *(("mlp", config, None, None) for config in CONFIGS),
        ("cnn, batch norm", "adamw", "vmap", None),
        ("mlp", "everything", "streams", None),
        ("cnn, batch norm", "steps", "streams", None),
        ("mlp", "momentum", None, crop_and_flip),
        ("cnn", "momentum", "streams", crop_and_flip),
    ],
)
def test_steps_that_are_captured_and_replayed_do_what_they_did(
    network: str, config: str, form: Form | None, augment: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clients go through all steps, those at their end by a rate of zero; kept rows serve one cohort after another.

    A client's learning rate changes by round and is no part of what is captured.
    """
    graphs: list[Again] = []

    def capture(rows: ModelRows, size: int) -> Again:
        graphs.append(Again(rows, size))
        return graphs[-1]

    monkeypatch.setattr(ModelRows, "_capture", capture)
    monkeypatch.setattr(rows, "_WORTH", 1)
    task, data = task_of(network), device_data(augment=augment)
    trainer = LocalTrainer(task, data, dtype=torch.float64)
    stacked = Stacked(trainer, form=form)
    stacked._fitter.captures = True
    asked = replace(CONFIGS[config], lr_schedule=Exponential(0.5))
    for cohort in ((0, 1, 2, 3), (5, 4, 3, 2), (1, 3)):
        messages = {c: start_of(task, 10 + c) for c in cohort}
        step = training(asked, *([] if network == "mlp" else [Pull()]), anchor=start_of(task, cohort[0]))
        one = dict(Sequential(trainer).complete(work(task, data, step, messages)))
        many = dict(stacked.complete(work(task, data, step, messages)))
        assert_same(one, many, rtol=1e-6 if config.startswith("adam") else 1e-9)
    assert stacked.notes == ()
    assert sum(g.replays for g in graphs) >= 9


# ---------------------------------------------------------------- on a device
def moved(params: Params, device: str) -> Params:
    return {n: t.to(device) for n, t in params.items()}
