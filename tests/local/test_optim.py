import functools
import inspect

import pytest
import torch
from torch import Tensor, nn

import unskew as us
from unskew.keys import Key
from unskew.local import optim
from unskew.local.optim import optimiser
from unskew.protocol import SgdConfig

CONFIGS = {
    "plain": SgdConfig(),
    "decay": SgdConfig(weight_decay=0.1),
    "momentum": SgdConfig(momentum=0.9),
    "momentum and decay": SgdConfig(momentum=0.9, weight_decay=0.1),
    "nesterov": SgdConfig(momentum=0.9, nesterov=True, weight_decay=0.1),
    "clipped": SgdConfig(momentum=0.5, clip_norm=0.7),
    "adam": SgdConfig(optimizer="adam"),
    "adam and decay": SgdConfig(optimizer="adam", weight_decay=0.1, betas=(0.8, 0.95), eps=1e-6),
    "adamw": SgdConfig(optimizer="adamw", weight_decay=0.1),
    "adamw, no decay": SgdConfig(optimizer="adamw"),
    "adagrad, another's eps": SgdConfig(optimizer="adagrad", eps=1e-8),
    **{
        name: SgdConfig(optimizer=name)
        for name in ("adadelta", "adafactor", "adagrad", "adamax", "asgd", "nadam", "radam", "rprop", "sparseadam")
    },
    "rmsprop, momentum and decay": SgdConfig(optimizer="rmsprop", momentum=0.5, weight_decay=0.1, eps=1e-6),
    "muon": SgdConfig(optimizer="muon"),
    "nadam, betas": SgdConfig(optimizer="nadam", betas=(0.8, 0.95), clip_norm=0.5),
}


def torch_optimiser(config: SgdConfig, lr: float, params: list[nn.Parameter]) -> torch.optim.Optimizer:
    kind = next(kind for name, kind in vars(torch.optim).items() if name.lower() == config.optimizer)
    own = {"weight_decay": config.weight_decay, "betas": config.betas}
    own |= {name: value for name in ("momentum", "nesterov", "eps") if (value := getattr(config, name))}
    own = {n: value for n, value in own.items() if n in inspect.signature(kind).parameters}
    made: torch.optim.Optimizer = kind(params, lr=lr, **own)
    return made


def compare(config: SgdConfig, lr: float, steps: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Two tensors of theirs against one vector of ours, on a badly scaled quadratic with noise."""
    g = Key(seed).generator()
    start = torch.randn(10, generator=g, dtype=dtype)
    scale = torch.logspace(-1, 1, 10, dtype=dtype)
    noise = torch.randn(steps, 10, generator=g, dtype=dtype)
    shape = (2, 2) if config.optimizer == "muon" else (4,)  # it takes matrices alone
    theirs = [nn.Parameter(start[:4].view(shape).clone()), nn.Parameter(start[4:].reshape(2, 3).clone())]
    tensors = functools.partial(optim.views, shapes=[p.shape for p in theirs])
    reference = torch_optimiser(config, lr, theirs)
    ours = start.clone()
    update = optimiser(config, lr, ours, tensors)
    for t in range(steps):
        for p, part in zip(theirs, (slice(0, 4), slice(4, 10)), strict=True):
            p.grad = scale[part].view_as(p) * p.detach() + noise[t, part].view_as(p)
        if config.clip_norm is not None:
            nn.utils.clip_grad_norm_(theirs, config.clip_norm)
        if config.optimizer == "sparseadam":
            for p in theirs:
                p.grad = p.grad.to_sparse(1)
        reference.step()
        update(ours, scale * ours + noise[t])
    return ours, torch.cat([p.detach().reshape(-1) for p in theirs])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.usefixtures("at_once")
def test_twenty_steps_equal_those_of_torch(name: str, dtype: torch.dtype) -> None:
    ours, theirs = compare(CONFIGS[name], 0.05, 20, dtype, seed=3)
    exact = {"rtol": 1e-12, "atol": 1e-12} if dtype is torch.float64 else {"rtol": 2e-5, "atol": 1e-6}
    torch.testing.assert_close(ours, theirs, **exact)


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, TypeError])
def test_a_torch_without_or_with_another_private_update_takes_the_public_ones(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(torch, "_fused_sgd_", absent)
    assert not optim.one_pass.__wrapped__()


def test_muon_takes_matrices_and_refuses_others() -> None:
    data = {0: (torch.randn(8, 3, generator=Key(0).generator()), torch.arange(8) % 2)}
    run = functools.partial(us.simulate, "fedavg", data=data, model="logistic", rounds=1)
    run(local=us.SgdConfig(optimizer="muon", trainable=("weight",)))
    with pytest.raises(us.ConfigError, match=r"muon.*2D"):
        run(local=us.SgdConfig(optimizer="muon"))
