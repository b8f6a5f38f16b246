"""Methods in the same three settings beside literal loops: torch.optim.SGD, and the rules of the papers by hand.

Five clients of 9, 4, 7, 3 and 6 examples take mini-batches of three for an epoch, so that they differ in weight and in
steps.  Read from a run are the first model, who took part, and the order of the examples; nothing else of the library
is used.  Compared after each round is the model that each client would use.

`pytest -s tests/algorithms/test_beside_loops.py` prints the table of docs/benchmarks/agreement.md.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import unskew as us
from unskew.data.batches import plan
from unskew.keys import Key
from unskew.protocol import Exponential, SgdConfig

from .conftest import Model, mean, net

Extra = Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]
Loop = Callable[["Lab"], Iterator[list[Model]]]
SIZES, BATCH, EPOCHS, LR, DECAY = (9, 4, 7, 3, 6), 3, 1, 0.2, 0.9
N = len(SIZES)


@dataclasses.dataclass(frozen=True)
class Setting:
    """How many of five clients take part in how many rounds, their momentum, and whether there is BatchNorm."""

    participants: int = 2
    rounds: int = 4
    momentum: float = 0.0
    norm: bool = False


SETTINGS = {
    "2 of 5, momentum": Setting(momentum=0.9),
    "2 of 5, BatchNorm": Setting(norm=True),
    "all five, both": Setting(5, 2, 0.9, True),
}


# ---------------------------------------------------------------- plain PyTorch
def buffer(name: str) -> bool:
    return "running" in name


@dataclasses.dataclass(frozen=True, eq=False)
class Lab:
    """What a loop is given: clients' examples, the first model, and each round's cohort."""

    x: list[Tensor]
    y: list[Tensor]
    start: Model
    first: Any
    rounds: list[tuple[int, list[int]]]
    momentum: float

    @property
    def zero(self) -> Model:
        return {k: torch.zeros_like(t) for k, t in self.start.items() if not buffer(k)}

    def rate(self, t: int) -> float:
        return LR * DECAY ** (t - 1)

    def batches(self, t: int, c: int, draw: Any, ask: Any = 0, **count: int) -> Sequence[Tensor]:
        """Positions of each step, by the run's keys."""
        key = Key(0) / "round" / t / "client" / c / ask / "sgd" / draw / "shuffle"
        least = 2 if "bn.weight" in self.start else 1
        return plan(SIZES[c], batch_size=BATCH, key=key, min_batch=least, **count).steps()

    def steps(self, c: int) -> int:
        return len(self.batches(1, c, 0, epochs=EPOCHS))

    def fit(
        self,
        t: int,
        c: int,
        w: Model,
        extra: Extra | None = None,
        *,
        draw: Any = 0,
        epochs: int = EPOCHS,
        only: Callable[[str], bool] = lambda name: True,
        ask: Any = 0,
    ) -> Model:
        """Local SGD on cross-entropy plus extra(parameters, x, features); BatchNorm that is not trained is fixed."""
        module = net(w).train()
        module.get_submodule("bn" if "bn.weight" in w and not only("bn.weight") else "act").eval()
        chosen = [p for name, p in module.named_parameters() if only(name)]
        optimiser = torch.optim.SGD(chosen, self.rate(t), self.momentum)
        for rows in self.batches(t, c, draw, ask, epochs=epochs):
            x = self.x[c][rows]
            features = module[:-1](x)
            value = F.cross_entropy(module[-1](features), self.y[c][rows])
            if extra is not None:
                value = value + extra(dict(module.named_parameters()), x, features)
            optimiser.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        end = module.state_dict()
        return {k: end[k].clone() for k in w}

    def gradient(self, c: int, w: Model, rows: Tensor | None = None, train: bool = True) -> tuple[Model, Model]:
        """Of the mean loss on these rows, or on all; and the buffers after that pass."""
        rows = torch.arange(SIZES[c]) if rows is None else rows
        module = net(w).train(train)
        F.cross_entropy(module(self.x[c][rows]), self.y[c][rows]).backward()  # type: ignore[no-untyped-call]
        gradients = {k: p.grad for k, p in module.named_parameters() if p.grad is not None}
        return gradients, {k: t.clone() for k, t in module.state_dict().items() if k in w and buffer(k)}

    def loss(self, c: int, w: Model) -> float:
        with torch.no_grad():
            return float(F.cross_entropy(net(w).eval()(self.x[c]), self.y[c]))


def plus(w: Model, d: Model, scale: float = 1.0) -> Model:
    """w + scale d, where d has something."""
    return {k: t + scale * d[k] if k in d else t for k, t in w.items()}


def minus(a: Model, b: Model) -> Model:
    return {k: t - b[k] for k, t in a.items() if k in b}


def parameters(w: Model) -> Model:
    return {k: t for k, t in w.items() if not buffer(k)}


def length(w: Model) -> float:
    return float(sum(t.square().sum() for t in w.values())) ** 0.5


def sizes(cohort: Sequence[int]) -> list[float]:
    return [float(SIZES[c]) for c in cohort]


def omega(c: int) -> float:
    return SIZES[c] / (sum(SIZES) / N)


def work(steps: int, rho: float) -> float:
    """||a||_1 of FedNova: K, or [K - rho (1 - rho^K) / (1 - rho)] / (1 - rho) under momentum."""
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def pull(mu: float, w: Model, drift: Model | None = None) -> Extra:
    """mu/2 ||y - w + drift||^2."""
    centre = w if drift is None else minus(w, drift)
    return lambda p, x, z: sum((0.5 * mu * (t - centre[k]).square().sum() for k, t in p.items()), torch.zeros(()))


def tilt(g: Model) -> Extra:
    """<g, y>."""
    return lambda p, x, z: sum(((t * g[k]).sum() for k, t in p.items()), torch.zeros(()))


def head(name: str) -> bool:
    return name.startswith("head")


def body(name: str) -> bool:
    return not head(name)


# ---------------------------------------------------------------- averaging
def fedavg(
    lab: Lab, *, mu: float = 0.0, kept: Callable[[str], bool] = lambda name: False, uniform: bool = False
) -> Iterator[list[Model]]:
    """w <- sum n_k y_k / sum n_k, of F + mu/2 ||y - w||^2; what is kept stays with its client."""
    w = lab.start
    own = [{k: t for k, t in w.items() if kept(k)} for _ in SIZES]
    for t, cohort in lab.rounds:
        ends = []
        for c in cohort:
            begin = {**w, **own[c]}
            ends.append(lab.fit(t, c, begin, pull(mu, begin)))
            own[c] = {k: v for k, v in ends[-1].items() if kept(k)}
        w = mean(ends, None if uniform else sizes(cohort))
        yield [{**w, **own[c]} for c in range(N)]


def fedopt(lab: Lab, rule: str, rate: float, b1: float, b2: float = 0.0, tau: float = 0.0) -> Iterator[list[Model]]:
    """Reddi et al., Algorithm 2, and Hsu et al.: D = mean (y_k - w) is a gradient; buffers take the mean."""
    w = lab.start
    m = {k: torch.zeros_like(t) for k, t in w.items()}
    v = {k: torch.full_like(t, tau**2) for k, t in w.items()}
    for t, cohort in lab.rounds:
        bar = mean([lab.fit(t, c, w) for c in cohort], sizes(cohort))
        for k in w:
            d = bar[k] - w[k]
            if buffer(k):
                w = {**w, k: bar[k]}
                continue
            if rule in ("momentum", "nesterov"):
                m[k] = b1 * m[k] + d
                step = d + b1 * m[k] if rule == "nesterov" else m[k]
            else:
                m[k] = b1 * m[k] + (1 - b1) * d
                if rule == "adagrad":
                    v[k] = v[k] + d**2
                elif rule == "adam":
                    v[k] = b2 * v[k] + (1 - b2) * d**2
                else:
                    v[k] = v[k] - (1 - b2) * d**2 * torch.sign(v[k] - d**2)
                step = m[k] / (v[k].sqrt() + tau)
            w = {**w, k: w[k] + rate * step}
        yield [w] * N


def fednova(lab: Lab, mu: float = 0.0, gmf: float = 0.0) -> Iterator[list[Model]]:
    """w <- w + m, m <- gmf m + tau_eff sum p_k D_k / ||a_k||_1, tau_eff = sum p_k ||a_k||_1.

    ||a||_1 is how far torch's SGD takes a number whose gradient is one and which is pulled back to zero, by eta.
    """

    def a(steps: int, rate: float) -> float:
        z = torch.zeros((), dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.SGD([z], rate, lab.momentum)
        for _ in range(steps):
            z.grad = 1.0 + mu * z.detach()
            optimiser.step()
        return -float(z.detach()) / rate

    w, m = lab.start, lab.zero
    for t, cohort in lab.rounds:
        p = [n / sum(sizes(cohort)) for n in sizes(cohort)]
        ends = [lab.fit(t, c, w, pull(mu, w)) for c in cohort]
        norms = [a(lab.steps(c), lab.rate(t)) for c in cohort]
        effective = sum(share * norm for share, norm in zip(p, norms, strict=True))
        scaled = [{k: d / norm for k, d in minus(y, w).items()} for y, norm in zip(ends, norms, strict=True)]
        direction = mean(scaled, p)
        m = {k: gmf * v + effective * direction[k] for k, v in m.items()}
        w = {**mean(ends, p), **plus(parameters(w), m)}
        yield [w] * N


def qfedavg(lab: Lab, q: float) -> Iterator[list[Model]]:
    """Li et al., Algorithm 2: D_k = L (w - y_k), h_k = q F^(q-1) ||D_k||^2 + L F^q, w <- w - sum F^q D_k / sum h_k.

    Clients are drawn alike here, so that each is weighted by n_k; L is 1 / eta of round 1.
    """
    w, lipschitz = lab.start, 1 / LR
    for t, cohort in lab.rounds:
        ends = [lab.fit(t, c, w) for c in cohort]
        losses = [lab.loss(c, w) + 1e-10 for c in cohort]
        moves = [{k: lipschitz * d for k, d in minus(parameters(w), y).items()} for y in ends]
        h = [
            q * f ** (q - 1) * length(d) ** 2 + lipschitz * f**q
            for f, d in zip(losses, moves, strict=True)
        ]  # fmt: skip
        total = sum(n * b for n, b in zip(sizes(cohort), h, strict=True))
        step = {
            k: sum(n * f**q * d[k] for n, f, d in zip(sizes(cohort), losses, moves, strict=True)) / total
            for k in moves[0]
        }
        w = {**mean(ends, sizes(cohort)), **plus(parameters(w), step, -1.0)}
        yield [w] * N


# ---------------------------------------------------------------- control variates and drift
def scaffold(lab: Lab, option: str = "II", server_lr: float = 1.0, scaled: bool = False) -> Iterator[list[Model]]:
    """Karimireddy et al., Algorithm 1: x by 1/M, c by 1/N; `scaled` weights c's sum by n_i over their mean."""
    x, c, ci = lab.start, lab.zero, [lab.zero] * N
    for t, cohort in lab.rounds:
        ends, dc = [], []
        for i in cohort:
            y = lab.fit(t, i, x, tilt(minus(c, ci[i])))
            if option == "I":
                new, _ = lab.gradient(i, x, train=False)
            else:
                divisor = lab.rate(t) * work(lab.steps(i), lab.momentum)
                new = {k: ci[i][k] - c[k] + (x[k] - y[k]) / divisor for k in c}
            ends.append(y)
            dc.append({k: (omega(i) if scaled else 1.0) * d for k, d in minus(new, ci[i]).items()})
            ci[i] = new
        step = minus(mean(ends), parameters(x))
        x = {**mean(ends), **plus(parameters(x), step, server_lr)}
        c = plus(c, mean(dc), len(cohort) / N)
        yield [x] * N


def feddyn(lab: Lab, alpha: float, scaled: bool = False) -> Iterator[list[Model]]:
    """The published code's form: F + alpha/2 ||y - w + h_k||^2, h_k += y - w, w <- mean_S y + mean_N h.

    `scaled` divides alpha by n_k over the mean of all n.
    """
    w, h = lab.start, [lab.zero] * N
    for t, cohort in lab.rounds:
        ends = []
        for c in cohort:
            y = lab.fit(t, c, w, pull(alpha / (omega(c) if scaled else 1.0), parameters(w), h[c]))
            h[c] = plus(h[c], minus(y, parameters(w)))
            ends.append(y)
        w = plus(mean(ends), mean(h))
        yield [w] * N


def feddc(lab: Lab, alpha: float, scaled: bool = False) -> Iterator[list[Model]]:
    """Gao et al., in the published code's units: alpha_i = alpha / omega_i, c / omega_i, c += 1/N sum omega_i dc_i."""
    w, c, h, ci = lab.start, lab.zero, [lab.zero] * N, [lab.zero] * N
    for t, cohort in lab.rounds:
        ends, dc = [], []
        for i in cohort:
            share = omega(i) if scaled else 1.0
            turn = {k: c[k] / share - ci[i][k] for k in c}
            near, along = pull(alpha / share, parameters(w), h[i]), tilt(turn)

            def extra(p: Any, x: Any, z: Any, near: Extra = near, along: Extra = along) -> Tensor:
                return near(p, x, z) + along(p, x, z)

            y = lab.fit(t, i, w, extra)
            d = minus(y, parameters(w))
            h[i] = plus(h[i], d)
            change = {k: -c[k] / share - d[k] / (lab.rate(t) * work(lab.steps(i), lab.momentum)) for k in c}
            ci[i] = plus(ci[i], change)
            ends.append(y)
            dc.append({k: share * v for k, v in change.items()})
        c = plus(c, mean(dc), len(cohort) / N)
        w = plus(mean(ends), mean(h))
        yield [w] * N


# ---------------------------------------------------------------- models of one's own
def moon(lab: Lab, mu: float, temperature: float) -> Iterator[list[Model]]:
    """Li et al.: CE + mu mean -log(g / (g + p)), g = e^(cos(z, z_g) / T), p = e^(cos(z, z_p) / T); FedAvg's mean."""
    w, past = lab.start, dict[int, Model]()

    def similar(a: Tensor, model: Model, x: Tensor) -> Tensor:
        with torch.no_grad():
            b = net(model).eval()[:-1](x)
        return torch.exp((a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1)) / temperature)

    for t, cohort in lab.rounds:
        for c in cohort:

            def contrast(p: Any, x: Tensor, z: Tensor, c: int = c, w: Model = w) -> Tensor:
                near, far = similar(z, w, x), similar(z, past.get(c, w), x)
                return -mu * torch.log(near / (near + far)).mean()

            past[c] = lab.fit(t, c, w, contrast)
        w = mean([past[c] for c in cohort], sizes(cohort))
        yield [w] * N


def independent(lab: Lab) -> Iterator[list[Model]]:
    own = [lab.start] * N
    for t, _ in lab.rounds:
        own = [lab.fit(t, c, v) for c, v in enumerate(own)]
        yield own


def ditto(lab: Lab, lam: float) -> Iterator[list[Model]]:
    """FedAvg; v_k is trained on F + lam/2 ||v - w||^2, from the first w that its client was sent."""
    w, own = lab.start, dict[int, Model]()
    for t, cohort in lab.rounds:
        own.update({c: lab.fit(t, c, own.get(c, w), pull(lam, w), draw="own") for c in cohort})
        w = mean([lab.fit(t, c, w) for c in cohort], sizes(cohort))
        yield [own.get(c, w) for c in range(N)]


def fedrep(lab: Lab, epochs: int) -> Iterator[list[Model]]:
    """Collins et al.: epochs on the head under the received body, then the body under that head; bodies' plain mean."""
    w = lab.start
    own = [{k: t for k, t in w.items() if head(k)}] * N
    for t, cohort in lab.rounds:
        ends = []
        for c in cohort:
            y = lab.fit(t, c, {**w, **own[c]}, epochs=epochs, only=head)
            ends.append(lab.fit(t, c, y, draw=1, only=body))
            own[c] = {k: v for k, v in y.items() if head(k)}
        w = mean(ends)
        yield [{**w, **own[c]} for c in range(N)]


def fedbabu(lab: Lab, epochs: int) -> Iterator[list[Model]]:
    """Oh et al.: the body under the first head, its plain mean; then each client's epochs on the head."""
    w = lab.start
    for t, cohort in lab.rounds:
        bodies = mean([lab.fit(t, c, w, only=body) for c in cohort])
        w = {k: bodies[k] if body(k) else v for k, v in w.items()}
        yield [lab.fit(t, c, w, epochs=epochs, only=head, ask="personalise") for c in range(N)]


def perfedavg(lab: Lab, alpha: float, order: str, delta: float = 0.01) -> Iterator[list[Model]]:
    """Fallah et al.: w^ = w - alpha g(w; D), v = g(w^; D'), w <- w - beta J v; the plain mean; use w - alpha g(w).

    J v is v, or v - alpha [g(w + delta v; D'') - g(w - delta v; D'')] / (2 delta), or v - alpha H v.
    """

    def batch(t: int, c: int, draw: Any, ask: Any = 0) -> Tensor:
        return lab.batches(t, c, draw, ask, steps=1)[0]

    def ahead(c: int, w: Model, rows: Tensor) -> Model:
        g, statistics = lab.gradient(c, w, rows)
        return {**plus(w, g, -alpha), **statistics}

    def curved(c: int, w: Model, v: Model, rows: Tensor) -> Model:
        if order == "hessian_free":
            (up, _), (down, _) = (lab.gradient(c, plus(w, v, s * delta), rows) for s in (1.0, -1.0))
            return {k: (up[k] - down[k]) / (2 * delta) for k in v}
        module = net(w).train()
        p = dict(module.named_parameters())
        value = F.cross_entropy(module(lab.x[c][rows]), lab.y[c][rows])
        g = torch.autograd.grad(value, list(p.values()), create_graph=True)
        along = sum((a * v[k]).sum() for a, k in zip(g, p, strict=True))
        h = torch.autograd.grad(along, list(p.values()), materialize_grads=True)  # type: ignore[arg-type]
        return dict(zip(p, h, strict=True))

    w = lab.start
    for t, cohort in lab.rounds:
        ends = []
        for c in cohort:
            y = w
            for s in range(EPOCHS * -(-SIZES[c] // BATCH)):
                v, statistics = lab.gradient(c, ahead(c, y, batch(t, c, f"{s} D")), batch(t, c, f"{s} D'"))
                turned = {} if order == "first" else curved(c, y, v, batch(t, c, f"{s} D''"))
                y = {**plus(y, plus(v, turned, -alpha), -lab.rate(t)), **statistics}
            ends.append(y)
        w = mean(ends)
        yield [ahead(c, w, batch(t, c, 0, "personalise")) for c in range(N)]


# ---------------------------------------------------------------- clusters
def ifca(
    lab: Lab, gradient: bool = False, shared: Callable[[str], bool] = lambda name: False, by_size: bool = False
) -> Iterator[list[Model]]:
    """Ghosh et al.: the model of least loss, its mean over those who chose it; gradient: its moves' sum by all of M."""
    models, chosen = [dict(m) for m in lab.first.models], dict[int, int]()
    for t, cohort in lab.rounds:
        ends = {}
        for c in cohort:
            losses = [lab.loss(c, m) for m in models]
            chosen[c] = losses.index(min(losses))
            ends[c] = lab.fit(t, c, models[chosen[c]])
        common = mean([*ends.values()])
        for j, model in enumerate(models):
            group = [c for c in ends if chosen[c] == j]
            share = len(group) / len(cohort) if gradient else 1.0
            together = mean([ends[c] for c in group], sizes(group) if by_size else None) if group else model
            moved = plus(model, minus(together, model), share)
            models[j] = {k: common[k] if shared(k) else v for k, v in moved.items()}
        popular = max(range(len(models)), key=[*chosen.values()].count)
        yield [models[chosen.get(c, popular)] for c in range(N)]


# ---------------------------------------------------------------- the table
def case(method: Callable[..., Any], loop: Callable[..., Iterator[list[Model]]], **options: Any) -> tuple[Any, Any]:
    """The library's method with these options beside a loop."""
    return functools.partial(method, **options), loop


def loop(of: Callable[..., Iterator[list[Model]]], *args: Any, **options: Any) -> Loop:
    return lambda lab: of(lab, *args, **options)


def norm(name: str) -> bool:
    return name.startswith("bn")


CASES: dict[str, tuple[Any, Loop]] = {
    "FedAvg": case(us.FedAvg, fedavg),
    "FedAvg, uniform": case(us.FedAvg, loop(fedavg, uniform=True), weighting="uniform"),
    "FedAvg, statistics kept": case(us.FedAvg, loop(fedavg, kept=buffer), personal=("buffers",)),
    "FedProx": case(us.FedProx, loop(fedavg, mu=0.5), mu=0.5),
    "FedProx, drawn by size": case(us.FedProx, loop(fedavg, mu=0.5, uniform=True), mu=0.5, sampling="size"),
    "FedAvgM": case(us.FedAvgM, loop(fedopt, "momentum", 0.8, 0.7), server_lr=0.8, beta=0.7),
    "FedAvgM, Nesterov": case(us.FedAvgM, loop(fedopt, "nesterov", 0.8, 0.7), server_lr=0.8, beta=0.7, nesterov=True),
    "FedAdagrad": case(us.FedAdagrad, loop(fedopt, "adagrad", 0.1, 0.0, 0.0, 0.01), server_lr=0.1, tau=0.01),
    "FedAdam": case(us.FedAdam, loop(fedopt, "adam", 0.05, 0.9, 0.99, 0.01), server_lr=0.05, tau=0.01),
    "FedYogi": case(us.FedYogi, loop(fedopt, "yogi", 0.05, 0.9, 0.99, 0.01), server_lr=0.05, tau=0.01),
    "FedNova": case(us.FedNova, fednova),
    "FedNova, pull and server momentum": case(us.FedNova, loop(fednova, 0.3, 0.5), mu=0.3, gmf=0.5),
    "q-FedAvg": case(us.QFedAvg, loop(qfedavg, 1.5), q=1.5),
    "SCAFFOLD, option II": case(us.SCAFFOLD, scaffold),
    "SCAFFOLD, option I": case(us.SCAFFOLD, loop(scaffold, "I", 0.7), option="I", server_lr=0.7),
    "SCAFFOLD, scaled": case(us.SCAFFOLD, loop(scaffold, scaled=True), scaled=True),
    "FedDyn": case(us.FedDyn, loop(feddyn, 0.3), alpha=0.3),
    "FedDyn, scaled": case(us.FedDyn, loop(feddyn, 0.3, True), alpha=0.3, scaled=True),
    "FedDC": case(us.FedDC, loop(feddc, 0.3), alpha=0.3),
    "FedDC, scaled": case(us.FedDC, loop(feddc, 0.3, True), alpha=0.3, scaled=True),
    "MOON": case(us.MOON, loop(moon, 1.0, 0.5), mu=1.0, temperature=0.5),
    "Independent": case(us.Independent, independent),
    "Ditto": case(us.Ditto, loop(ditto, 0.5), lam=0.5),
    "FedPer": case(us.FedPer, loop(fedavg, kept=head)),
    "FedBN": case(us.FedBN, loop(fedavg, kept=norm)),
    "FedRep": case(us.FedRep, loop(fedrep, 2), head_epochs=2),
    "FedBABU": case(us.FedBABU, loop(fedbabu, 2), finetune_epochs=2),
    "Per-FedAvg, first order": case(us.PerFedAvg, loop(perfedavg, 0.1, "first"), alpha=0.1),
    "Per-FedAvg, Hessian-free": case(
        us.PerFedAvg, loop(perfedavg, 0.1, "hessian_free"), alpha=0.1, order="hessian_free"
    ),
    "Per-FedAvg, exact": case(us.PerFedAvg, loop(perfedavg, 0.1, "exact"), alpha=0.1, order="exact"),
    "IFCA": case(us.IFCA, ifca, clusters=3),
    "IFCA, by size": case(us.IFCA, loop(ifca, by_size=True), clusters=3, weighting="samples"),
    "IFCA, gradient": case(us.IFCA, loop(ifca, gradient=True), clusters=3, averaging="gradient"),
    "IFCA, shared body": case(us.IFCA, loop(ifca, shared=body), clusters=3, clustered=("head",)),
}


@pytest.fixture(scope="module")
def table() -> Iterator[dict[tuple[str, str], float]]:
    """Largest differences of weights; printed at the end."""
    gaps: dict[tuple[str, str], float] = {}
    yield gaps
    print("", f"| method | {' | '.join(SETTINGS)} |", "|---|" + "---|" * len(SETTINGS), sep="\n")
    for name in CASES:
        cells = [f"{gaps[name, s]:.0e}" if (name, s) in gaps else "–" for s in SETTINGS]
        print(f"| {name} | {' | '.join(cells)} |")


def applies(name: str, setting: str) -> bool:
    return not (
        (name.startswith("Per-FedAvg") and SETTINGS[setting].momentum)
        or (name in ("FedBN", "FedAvg, statistics kept") and not SETTINGS[setting].norm)
    )


PAIRS = [(name, setting) for name in CASES for setting in SETTINGS if applies(name, setting)]


@pytest.mark.parametrize(("name", "setting"), PAIRS)
def test_ends_where_a_literal_loop_does(name: str, setting: str, classes: Any, table: Any) -> None:
    """After each round, what each of five clients would use, to 1e-12 in float64."""
    how, (method, loop) = SETTINGS[setting], CASES[name]
    local = SgdConfig(
        LR, EPOCHS, batch_size=BATCH, momentum=how.momentum, lr_schedule=Exponential(DECAY)
    )  # fmt: skip
    world = classes(n=SIZES, norm=how.norm)
    sim = world.simulator(method(local=local), clients_per_round=how.participants)
    first = state = sim.start()
    rounds, ours = [], []
    for t in range(1, how.rounds + 1):
        state, trace = sim.round(state, t)
        last = max((x.hop for x in trace.transfers), default=0)
        rounds.append((t, sorted(x.dst - 1 for x in trace.transfers if x.direction == "down" and x.hop == last)))
        ours.append(sim.own_models(state, range(N), t))
    data = world.device_data
    x, y = ([of[rows] for rows in data.train] for of in (data.x, data.y))
    start = {k: t.clone() for k, t in world.population.initial.items()}
    gap = 0.0
    for got, expected in zip(ours, loop(Lab(x, y, start, first, rounds, how.momentum)), strict=True):
        for c in range(N):
            assert set(got[c]) == set(expected[c])
            gap = max(gap, *(float((got[c][k] - t).abs().max()) for k, t in expected[c].items()))
    table[name, setting] = gap
    moved = max(float((t - start[k]).abs().max()) for k, t in expected[0].items())
    assert gap <= 1e-12 < 1e-3 < moved
