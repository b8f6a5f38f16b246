import copy
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unskew as us
from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.tasks.task import check_network, make_task


def batch_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 4),
        nn.BatchNorm1d(4),
        nn.Linear(4, 3),
    )


class Custom(nn.Module):
    """Two linear layers after the one that classifies, as an auxiliary output might have."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 5)
        self.classify = nn.Linear(5, 3)
        self.extra = nn.Linear(5, 1)
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("order", torch.arange(4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classify(self.body(x - self.mean)) * self.scale
        return out


# ---------------------------------------------------------------- layout
def test_a_batch_norm_network_without_its_integer_counters() -> None:
    task = make_task(batch_net, 3, examples=torch.rand(4, 1, 4, 4))
    assert task.layout.trainable == (
        *("0.weight", "0.bias", "1.weight", "1.bias", "4.weight", "4.bias"),
        *("5.weight", "5.bias", "6.weight", "6.bias"),
    )
    assert task.layout.buffers == ("1.running_mean", "1.running_var", "5.running_mean", "5.running_var")
    assert set(task.layout.norm) == {
        f"{i}.{n}" for i in (1, 5) for n in ("weight", "bias", "running_mean", "running_var")
    }
    assert task.layout.head == ("6.weight", "6.bias")
    assert task.layout.classifier == "6.weight"
    assert task.batch_norm
    assert list(task.init(Key(0))) == [*task.layout.trainable, *task.layout.buffers]


def test_a_custom_module_names_its_head() -> None:
    x = torch.rand(4, 4)
    task = make_task(Custom, 3, head="classify", examples=x)
    assert task.layout.head == ("classify.weight", "classify.bias")
    assert task.layout.classifier == "classify.weight"
    assert task.layout.buffers == (), "both are constants"
    assert task.layout.trainable[0] == "scale"
    assert make_task(Custom, 3, examples=x).head == (), "a scale beside the layer: nothing is guessed"


def pretrained() -> nn.Module:
    """A frozen body with values of its own, and a head that is drawn."""
    body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Sequential(nn.BatchNorm1d(4)))
    with torch.no_grad():
        for i, t in enumerate((*body.parameters(), *(b for b in body.buffers() if b.is_floating_point()))):
            t.fill_(0.1 * (i + 1))
    net = nn.Sequential(body.requires_grad_(False), nn.BatchNorm1d(4), nn.Linear(4, 3))
    net.register_buffer("scale", torch.ones(2))
    return net


def test_frozen_parameters_and_the_statistics_beside_them_are_no_part_of_a_model() -> None:
    """A BatchNorm without parameters goes with those of the body around it; what does not change is a constant."""
    task = make_task(pretrained, 3, examples=torch.rand(4, 4))
    assert task.layout.frozen == (
        *("0.0.weight", "0.0.bias", "0.2.0.weight", "0.2.0.bias"),
        *("0.1.running_mean", "0.1.running_var", "0.2.0.running_mean", "0.2.0.running_var"),
    )
    assert task.layout.trainable == ("1.weight", "1.bias", "2.weight", "2.bias")
    assert task.layout.buffers == ("1.running_mean", "1.running_var")
    assert task.layout.head == ("2.weight", "2.bias")
    assert task.batch_norm, "the one that is free takes statistics of the batch"
    assert list(task.init(Key(5))) == [*task.layout.trainable, *task.layout.buffers]
    network = pretrained().state_dict()
    assert all(torch.equal(t, network[n]) for n, t in task.constants().items())
    assert tuple(task.constants()) == (*task.layout.frozen, "scale")
    assert tuple(task.constants(frozen=True)) == task.layout.frozen


def test_the_statistics_of_frozen_layers_stay_whatever_mode_the_network_is_in() -> None:
    task = make_task(pretrained, 3)
    for module in (task.module(), copy.deepcopy(task.module())):
        module.eval().train()
        module(torch.randn(8, 4))
        tensors = dict(module.named_buffers())
        assert all(torch.equal(t, tensors[n]) for n, t in task.constants().items() if n in tensors)
        assert not torch.equal(tensors["1.running_mean"], torch.zeros(4)), "the free layer follows the batch"
        assert (module[0].training, module[0][1].training, module[1].training) == (True, False, True)


def random_body() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 3))


def test_frozen_parameters_that_are_drawn_anew_are_refused() -> None:
    """Otherwise every seed, and every client of a deployment, might have others."""
    with pytest.raises(ConfigError, match=r"requires_grad=False in 0.weight, 0.bias, with other values each time"):
        make_task(random_body, 3)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 3, bias=False)
        self.head = nn.Linear(3, 3)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embed(x))
        return out


class SharedStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        self.two.running_mean = self.one.running_mean
        self.head = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.two(self.one(x)))
        return out


def twice() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.ReLU(), layer)


def test_what_layers_share_is_trained_once_under_its_first_name() -> None:
    assert make_task(Tied, 3).layout.trainable == ("embed.weight", "head.bias")
    assert make_task(twice, 3).layout.trainable == ("0.weight", "0.bias")


def test_statistics_that_two_layers_share_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"one.running_mean and two.running_mean are one buffer of two layers"):
        make_task(SharedStatistics, 3)


# ---------------------------------------------------------------- initial values
def test_initial_values_follow_the_key_and_leave_the_global_generator_alone() -> None:
    task = make_task(batch_net, 3)
    before = torch.get_rng_state()
    one, again, other = task.init(Key(1)), task.init(Key(1)), task.init(Key(2))
    task.module()
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(one, again, rtol=0, atol=0)
    assert not torch.equal(one["0.weight"], other["0.weight"])


# ---------------------------------------------------------------- one forward pass before any work


UNTRAINABLE = {
    "lazy": (
        lambda: nn.Sequential(nn.LazyLinear(5), nn.Linear(5, 3)),
        "0.weight of Sequential has no size before data have passed; give nn.Linear for nn.LazyLinear",
    ),
    "lazy norm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LazyBatchNorm1d()), "1.weight of Sequential has no size"),
    "complex": (lambda: nn.Linear(4, 3, dtype=torch.cfloat), "weight of Linear is complex; keep its real and its"),
}


@pytest.mark.parametrize(("build", "text"), UNTRAINABLE.values(), ids=UNTRAINABLE)
def test_a_network_that_cannot_be_trained_is_refused_before_data_are_read(
    build: Callable[[], nn.Module], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        make_task(build, 3)
    with pytest.raises(ConfigError, match=text):
        us.simulate(us.FedAvg(), data=(torch.zeros(40, 4), torch.arange(40) % 3), model=build(), progress=False)


class Several(nn.Module):
    """Returns features and scores as `form` has them."""

    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.form, self.linear = form, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.form(features=x, scores=self.linear(x))


FORMS = {
    "dict": (dict, "scores"),
    "tuple": (lambda features, scores: (features, scores), 1),
    "namedtuple": (namedtuple("Given", "features scores"), "scores"),
    "object": (SimpleNamespace, "scores"),
}


@pytest.mark.parametrize(("form", "output"), FORMS.values(), ids=FORMS)
def test_the_task_names_the_part_that_is_the_outputs(form: Callable[..., Any], output: str | int) -> None:
    x = torch.rand(4, 4)
    task = make_task(lambda: Several(form), 3, examples=x, output=output)
    check_network(task, x, torch.tensor([0, 1, 2, 0]))
    assert task.head == ("linear",)
    with pytest.raises(ConfigError, match=r"or name a part with task\.output"):
        check_network(make_task(lambda: Several(form), 3, examples=x), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_network_trains_in_its_own_precision(dtype: torch.dtype) -> None:
    """Double precision gives what single precision does, but for its rounding; inputs are float64 throughout."""
    x = torch.rand(60, 4, dtype=torch.float64, generator=Key(1).generator()).numpy()
    y, network = (x[:, 0] > 0.5).astype(int), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))

    def trained(model: nn.Module) -> tuple[dict[str, torch.Tensor], float]:
        history = us.simulate("fedprox", data=(x, y), model=model, split=us.IID(3), rounds=2, progress=False)
        return history.model("fedprox").state_dict(), history.value("fedprox", "global.loss")

    (single, loss), (own, same) = trained(network), trained(copy.deepcopy(network).to(dtype))
    close = 1e-5 if dtype is torch.float64 else 0.03
    assert {t.dtype for t in own.values()} == {dtype}
    assert all(torch.allclose(own[n].float(), t, atol=close) for n, t in single.items())
    assert same == pytest.approx(loss, abs=close)
