"""What a run of a network shows: the layer that makes its outputs, and the buffers that training changes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from unskew.errors import ConfigError
from unskew.local.workspace import FeatureNetwork
from unskew.tasks.probe import head_of, same_values
from unskew.tasks.task import make_task

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


class Net(nn.Module):
    """A network of these parts, which `run` calls, in this order of registration."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


def body() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU())


def encoder(width: int) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 2, 32, batch_first=True), 1)


def classified(n: Any, x: Tensor) -> Tensor:
    return n.out(n.body(x))


HEADS: dict[str, tuple[nn.Module, tuple[str, ...]]] = {
    "registered first": (Net(classified, out=nn.Linear(16, 3), body=body()), ("out",)),
    "beside unused layers": (
        Net(classified, out=nn.Linear(16, 3), body=body(), norm=nn.LayerNorm(16), extra=nn.Linear(16, 3)),
        ("out",),
    ),
    "before an encoder": (
        Net(
            lambda n, x: n.out(n.enc(n.inner(x[..., None])).mean(1)),
            out=nn.Linear(16, 3),
            enc=nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1),
            inner=nn.Linear(1, 16),
        ),
        ("out",),
    ),
    "a convolution": (
        Net(lambda n, x: n.k(n.c(x[:, None]).relu()).mean(2), k=nn.Conv1d(8, 3, 1), c=nn.Conv1d(1, 8, 3)),
        ("k",),
    ),
    "the last of two layers": (
        nn.Sequential(body(), nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))),
        ("1.2",),
    ),
    "frozen": (Net(classified, out=nn.Linear(16, 3).requires_grad_(False), body=body()), ("out",)),
    "beside a parameter of the whole": (
        Net(lambda n, x: n.out(n.body(x) + n.p), out=nn.Linear(16, 3), body=body(), p=weight(16)),
        ("out",),
    ),
    "the whole network": (nn.Linear(8, 3), ("",)),
    # What is no single layer is not guessed: task.head names it.
    "a parameter": (Net(lambda n, x: n.body(x) @ n.w.t() + n.b, w=weight(3, 16), b=weight(3), body=body()), ()),
    "a parameter after as many outputs": (
        Net(lambda n, x: n.body(x).relu() @ n.w, w=weight(3, 3), body=nn.Linear(8, 3)),
        (),
    ),
    "normalised afterwards": (nn.Sequential(body(), nn.Linear(16, 3), nn.BatchNorm1d(3)), ()),
    "bent afterwards": (nn.Sequential(body(), nn.Linear(16, 3), nn.Softmax(1)), ()),
    "two in a sum": (
        Net(lambda n, x: classified(n, x) + n.skip(x), out=nn.Linear(16, 3), body=body(), skip=nn.Linear(8, 3)),
        (),
    ),
    "of another width": (Net(lambda n, x: n.out(n.body(x))[:, :3], out=nn.Linear(16, 4), body=body()), ()),
    "failing": (nn.Linear(9, 3), ()),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", HEADS)
def test_the_head_is_what_makes_the_outputs(name: str) -> None:
    network, head = HEADS[name]
    before = copy.deepcopy(dict(network.state_dict()))
    assert set(head_of(network, X, 3)) == set(head)
    assert all(same_values(t, before[n]) for n, t in network.state_dict().items())


def test_features_are_what_enters_the_last_call_of_the_head() -> None:
    network = Net(lambda n, x: n.b(torch.relu(n.b(n.a(x)))), a=nn.Linear(8, 3), b=nn.Linear(3, 3))
    features, _ = FeatureNetwork(network, ("b",))(X)
    torch.testing.assert_close(features, torch.relu(network.b(network.a(X))))


@pytest.mark.parametrize(("name", "head"), [("a parameter", ("w", "b")), ("two in a sum", ("out", "skip"))])
def test_a_head_that_is_not_called_as_one_layer_has_no_features(name: str, head: tuple[str, ...]) -> None:
    network, _ = HEADS[name]
    features, logits = FeatureNetwork(network, head)(X)
    assert features.shape == (4, 0)
    torch.testing.assert_close(logits, network(X))


# ---------------------------------------------------------------- buffers
class Buffers(nn.Module):
    """One buffer of each kind beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.register_buffer("mask", torch.triu(torch.full((8, 8), float("-inf")), 1))
        self.register_buffer("unknown", torch.tensor([float("nan"), 1.0]))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8), persistent=False)
        self.register_buffer("rewritten", torch.ones(8))
        self.register_buffer("seen", torch.zeros(8), persistent=False)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = 0.9 * self.seen + 0.1 * x.detach().mean(0)
            self.steps += 1
        out: Tensor = self.out(((self.mask.softmax(-1) @ x[..., None])[..., 0] - self.seen) * self.scale)
        return out


class Rewritten(nn.Module):
    """Computes its constant anew in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(8))

    def forward(self, x: Tensor) -> Tensor:
        self.mask = torch.ones(x.shape[1])
        return x * self.mask


class Late(nn.Module):
    """Follows its inputs while it is trained with gradients, after the first pass."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros((), dtype=dtype))
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.passes += 1
            if self.passes > 1:
                self.mean = x.detach().mean() + 1
        return x - self.mean


class Still(nn.BatchNorm1d):
    """Stays in evaluation mode."""

    def train(self, mode: bool = True) -> nn.Module:
        return super().train(False)


def spectral() -> nn.Module:
    """With a seed: at one in fifteen its power iteration has converged to the bit before training begins."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 3)))


@pytest.mark.parametrize(
    ("network", "statistics"),
    [
        (Buffers(), {"seen", "steps"}),
        (nn.Sequential(Rewritten(), nn.Linear(8, 3)), set()),
        (nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 3)), {"0.running_mean", "0.running_var"}),
        (nn.Sequential(nn.BatchNorm1d(8, momentum=0.0), nn.Linear(8, 3)), set()),
        (nn.Sequential(nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)), set()),
        (nn.Sequential(Still(8), nn.Linear(8, 3)), set()),
        (nn.Sequential(Late(), nn.Linear(8, 3)), {"0.passes", "0.mean"}),
        (
            spectral(),
            {"0.parametrizations.weight.0._u", "0.parametrizations.weight.0._v"},
        ),
    ],
)
@pytest.mark.parametrize("x", [X, torch.zeros(4, 8)], ids=["rows", "zeros"])
def test_statistics_are_the_buffers_that_training_changes(network: nn.Module, statistics: set[str], x: Tensor) -> None:
    """Of zeros a running mean stays zero; it is a statistic all the same, as the variance beside it."""
    before = copy.deepcopy(dict(network.named_buffers()))
    task = make_task(lambda: network, 3, examples=x)
    assert set(task.layout.buffers) == statistics
    assert all(same_values(t, before[n]) for n, t in network.named_buffers() if n in before)
    floating = {n for n, b in before.items() if b.is_floating_point()}
    assert set(task.constants()) == floating - statistics
    assert task.batch_norm == any(type(m) is nn.BatchNorm1d for m in network.modules())


def test_a_buffer_that_is_another_each_time_the_network_is_made_travels() -> None:
    """Otherwise each process would have its own; one drawn from PyTorch's generator is the network's."""
    count = iter(range(100))

    def build() -> nn.Module:
        network = nn.Sequential(nn.Linear(8, 3))
        network.register_buffer("one", torch.full((2,), float(next(count))))
        network.register_buffer("other", torch.randn(2))
        return network

    assert make_task(build, 3, examples=X).layout.buffers == ("one",)


def test_a_whole_number_that_training_changes_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"buffer 0\.passes of Sequential, and whole numbers cannot be averaged"):
        make_task(lambda: nn.Sequential(Late(torch.int64), nn.Linear(8, 3)), 3, examples=X)
