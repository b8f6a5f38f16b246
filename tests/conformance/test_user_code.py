"""Whatever code of a user's is handed is its own: it may change it in place, and nothing else sees that.

Each piece below changes everything that it is given, or does the same with copies.  Both must give the same run, and
leave the caller's arrays as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import unskew as us
from unskew.data.split import TrainingExamples
from unskew.protocol import Batch, ClientId, Federation, Fold, Local, Me, Plan, Run, Step, ask, sgd, step
from unskew.tree import Params
from unskew.world.attack import Backdoor

ROWS, FEATURES, CLASSES = 240, 6, 3


def arrays() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return x, x[:, :CLASSES].argmax(1)


@dataclass(frozen=True)
class Taken:
    """What a piece works on: all that it is given, or copies of that."""

    in_place: bool

    def __call__(self, given: Any) -> Any:
        return given if self.in_place else given.clone() if isinstance(given, Tensor) else given.copy()


def network(own: Taken) -> dict[str, Any]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift, self.drop, self.head = (
                nn.Parameter(torch.ones(FEATURES)),
                nn.Dropout(0.2),
                nn.Linear(6, CLASSES),
            )

        def forward(self, x: Tensor) -> Tensor:
            x = own(x)
            x.sub_(0.5).div_(2.0)
            out: Tensor = self.head(self.drop(x * self.shift))
            return out

    return {"model": Net}


def scaled_by_a_parameter(own: Taken) -> dict[str, Any]:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.head = nn.Parameter(torch.ones(FEATURES)), nn.Linear(FEATURES, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(own(x).mul_(self.scale))
            return out

    return {"model": Net}


def loss(own: Taken) -> dict[str, Any]:
    def folded(outputs: Tensor, y: Tensor) -> Tensor:
        outputs, y = own(outputs), own(y)
        outputs.mul_(0.5)
        y[y == 2] = 0
        return cross_entropy(outputs, y, reduction="none")

    return {"loss": folded, "model": lambda: nn.Linear(FEATURES, CLASSES)}


def metric_of_rows(own: Taken) -> dict[str, Any]:
    def each(outputs: Tensor, y: Tensor) -> Tensor:
        outputs, y = own(outputs), own(y)
        y.fill_(0)
        return outputs.neg_()[:, 0] + y

    return {"evaluate": ["global", "personal", us.Measure("rows", "rows", low=None, high=None, each=each)]}


def metric_of_all(own: Taken) -> dict[str, Any]:
    def spoilt(outputs: np.ndarray, y: np.ndarray) -> float:
        outputs, y = own(outputs), own(y)
        outputs *= 0.0
        y[:] = 1
        return float(y.mean())

    return {"evaluate": ["global", "personal", spoilt]}


def split(own: Taken) -> dict[str, Any]:
    @dataclass(frozen=True)
    class Halves:
        num_clients: int = 2
        name: ClassVar[str] = "halves"

        def assign(self, examples: TrainingExamples, key: us.Key) -> Sequence[np.ndarray]:
            own(examples.labels).fill(0)
            return np.array_split(np.arange(len(examples.labels)), 2)

    return {"split": Halves()}


@dataclass(frozen=True)
class Marks(Backdoor):
    in_place: bool = False
    name: ClassVar[str] = "marks"

    def trigger(self, x: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, int]:
        return Taken(self.in_place)(x).fill_(bounds[1]), 0

    def poison(self, x: Tensor, y: Tensor, classes: int, bounds: Any, key: us.Key) -> tuple[Tensor, Tensor]:
        own = Taken(self.in_place)
        return own(x).fill_(bounds[1]), own(y).fill_(0)


def attack(own: Taken) -> dict[str, Any]:
    return {"world": us.World(attack=Marks(fraction=0.4, in_place=own.in_place))}


def method(own: Taken) -> dict[str, Any]:
    @dataclass(frozen=True)
    class Sees:
        sees: Literal["features"] = "features"

        def __call__(self, params: Params, aux: Any, batch: Batch) -> Tensor:
            x, y = own(batch.x), own(batch.y)
            x.zero_()
            y.zero_()
            each = batch.logits.square().mean(1) + x.sum(1) + y
            return (each * batch.mask).sum() / batch.mask.sum()

    def seen(local: Local) -> Tensor:
        x, y = own(local.x), own(local.y)
        y.zero_()
        return x.mul_(2.0).mean(0) + y.sum()

    def folded(carry: Tensor, batch: Batch) -> Tensor:
        x, y, logits = own(batch.x), own(batch.y), own(batch.logits)
        y.zero_()
        return carry + x.mul_(2.0).sum() + logits.exp_().sum() + y.sum()

    @dataclass(frozen=True)
    class Mine:
        local: us.SgdConfig = us.SgdConfig(0.1, batch_size=8)

        def init(self, params: Params, fed: Federation) -> Params:
            return params

        def round(self, state: Params, fed: Federation) -> Plan[Params]:
            replies = yield from ask(self.train, {c: state for c in fed.sample()})
            return {n: torch.stack([r[n] for r in replies.values()]).mean(0) for n in state}

        @step
        def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
            by_hand = yield Run(seen)
            by_fold = yield Fold(folded, msg, torch.zeros(()))
            after = yield from sgd(msg, self.local, Sees())
            return {n: t + 1e-4 * (by_hand.sum() + by_fold) for n, t in after.items()}, None

        def serve(self, state: Params, client: ClientId | None) -> Params | None:
            return state

    return {"methods": {"mine": Mine()}, "model": lambda: nn.Linear(FEATURES, CLASSES)}


PIECES: list[Callable[[Taken], dict[str, Any]]] = [
    network, scaled_by_a_parameter, loss, metric_of_rows, metric_of_all, split, attack, method,
]  # fmt: skip


def outcome(piece: Callable[[Taken], dict[str, Any]], in_place: bool, executor: str, data: Any) -> us.History:
    settings = {"methods": {"fedavg": us.FedAvg(), "ditto": us.Ditto()}, "split": us.IID(3), "model": "logistic"}
    settings |= {"evaluate": ["global", "personal", "personal_on_global"], **piece(Taken(in_place))}
    runtime = us.Runtime(executor=executor)
    return us.simulate(**settings, data=data, rounds=2, progress=False, runtime=runtime)


EXECUTORS = ("sequential", "stacked", "workers")


@pytest.mark.parametrize(
    ("piece", "executor"),
    [
        pytest.param(piece, executor, marks=() if (i + j) % 3 == 0 else pytest.mark.slow)
        for i, piece in enumerate(PIECES)
        for j, executor in enumerate(EXECUTORS)
    ],
)
@pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")
def test_what_user_code_is_handed_is_its_own(piece: Callable[[Taken], dict[str, Any]], executor: str) -> None:
    x, y = arrays()
    history = outcome(piece, True, executor, (x, y))
    assert np.array_equal(x, arrays()[0])
    assert np.array_equal(y, arrays()[1])
    copied = outcome(piece, False, executor, arrays())
    assert history.summary["fingerprint"] == copied.summary["fingerprint"]


@pytest.mark.filterwarnings("ignore::unskew.errors.DataWarning")
def test_rows_to_predict_stay_as_they_are() -> None:
    x, _ = arrays()
    model = outcome(network, True, "sequential", arrays()).model("fedavg")
    assert us.predict(model, x) == us.predict(model, x)
    assert np.array_equal(x, arrays()[0])
