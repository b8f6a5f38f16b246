"""Whole rounds against second programs: plain loops written from the papers' equations, not from the library's code.

Every client takes full batches, so that the order of its examples does not matter; clients differ in size, client 1 has
a single class, three or four of five take part, and examples may have weights.  The initial model and who took part
are read from the run, and the draws of TT-HF and FedSwap from its state and its ledger; everything else is done again.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
import toy_prior
from torch import Tensor
from torch.nn import functional as F

import unskew as us
from unskew.algorithms import feddistr
from unskew.local.data import DeviceData
from unskew.local.sequential import Sequential
from unskew.local.trainer import LocalTrainer
from unskew.runtime.in_process import Population, Simulator
from unskew.server.graphs import Ring

from .conftest import Model, mean, net

SIZES = (9, 4, 7, 3, 6)
Extra = Callable[[Tensor, Tensor], Tensor]


# ---------------------------------------------------------------- plain PyTorch
@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """A client's examples, and what each weighs in the loss."""

    x: Tensor
    y: Tensor
    v: Tensor

    @property
    def n(self) -> int:
        return len(self.y)

    def loss(self, w: Model) -> float:
        with torch.no_grad():
            return float((F.cross_entropy(net(w).eval()(self.x), self.y, reduction="none") * self.v).mean())

    def accuracy(self, w: Model) -> float:
        with torch.no_grad():
            return float((net(w).eval()(self.x).argmax(1) == self.y).double().mean())

    def fit(self, w: Model, lr: float, steps: int, extra: Extra | None = None, momentum: float = 0.0) -> Model:
        """Gradient descent on mean(v CE) + extra(features, probabilities), all examples in each step."""
        module = net(w).train()
        body, head = module[:-1], module[-1]
        optimiser = torch.optim.SGD(module.parameters(), lr, momentum)
        for _ in range(steps):
            features = body(self.x)
            logits = head(features)
            value = (F.cross_entropy(logits, self.y, reduction="none") * self.v).mean()
            if extra is not None:
                value = value + extra(features, logits.softmax(1))
            optimiser.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        end = module.state_dict()
        return {k: end[k].clone() for k in w}


def rounds(play: Any) -> Iterator[tuple[int, list[int], list[int]]]:
    """Number of each round, who was asked, and who was heard: those between did their work, and it came too late."""
    for t, trace in enumerate(play.traces, 1):
        asked = sorted({x.dst - 1 for x in trace.transfers if x.direction == "down"})
        late = {f.client for f in trace.failures}
        yield t, asked, [c for c in asked if c not in late]


@pytest.fixture
def setting(classes: Any) -> tuple[Any, list[Data]]:
    """The library's clients with BatchNorm and weighted examples, and the same for the second program."""
    world = classes(n=SIZES, norm=True)
    y = world.device_data.y.clone()
    y[world.device_data.train[1]] = 2
    v = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)[y]
    ours = world.labelled([y[rows].tolist() for rows in world.device_data.train])
    data = dataclasses.replace(ours.device_data, weights=v)
    return dataclasses.replace(ours, device_data=data), [Data(data.x[r], y[r], v[r]) for r in data.train]


SOME_LATE = us.Outage(late=0.25)
LOCAL = us.SgdConfig(lr=0.2, local_steps=3, batch_size=None, lr_schedule=us.Exponential(0.9))


def rate(t: int) -> float:
    return 0.2 * 0.9 ** (t - 1)


# ---------------------------------------------------------------- FedUV
def feduv_terms(strength_v: float, strength_u: float, detach: bool) -> Extra:
    """lambda_V (1/C) sum_c max(0, C^-1/2 - std_c) + lambda_U mean_{i<j} exp(-||r_i - r_j||^2 / m), pair by pair."""

    def extra(r: Tensor, s: Tensor) -> Tensor:
        classes = s.shape[1]
        deviations = ((s - s.mean(0)).square().sum(0) / (len(s) - 1)).sqrt()
        variance: Tensor = (classes**-0.5 - deviations).clamp(min=0).sum() / classes
        d = torch.stack([(r[i] - r[j]).square().sum() for i in range(len(r)) for j in range(i + 1, len(r))])
        m = d[d > 0].sort().values
        middle = m[(len(m) - 1) // 2]
        uniformity: Tensor = (-d / (middle.detach() if detach else middle)).exp().mean()
        return strength_v * variance + strength_u * uniformity

    return extra


@pytest.mark.parametrize("detach", [True, False])
def test_feduv(setting: Any, detach: bool, equal: Any) -> None:
    """Four rounds of CE + C/4 L_V + .5 L_U, averaged by examples."""
    world, data = setting
    play = world.play(us.FedUV(detach_median=detach, local=LOCAL), 4, clients_per_round=3)
    w = play.params[0]
    for t, _, cohort in rounds(play):
        ends = [data[c].fit(w, rate(t), 3, feduv_terms(0.75, 0.5, detach)) for c in cohort]
        w = mean(ends, [data[c].n for c in cohort])
        equal(play.params[t], w)


def test_feduv_with_heads_of_their_own(setting: Any, equal: Any) -> None:
    """The head stays with each client: it continues from its own, and ends with the shared body under it."""
    world, data = setting
    play = world.play(us.FedUV(2.0, 0.3, local=LOCAL, personal=("head",)), 4, clients_per_round=4, outage=SOME_LATE)
    w = world.population.initial
    own = {c: {k: t for k, t in w.items() if k.startswith("head")} for c in range(5)}
    for t, asked, heard in rounds(play):
        ends = {c: data[c].fit({**w, **own[c]}, rate(t), 3, feduv_terms(2.0, 0.3, True)) for c in asked}
        own.update({c: {k: t for k, t in end.items() if k.startswith("head")} for c, end in ends.items()})
        w = {**mean([ends[c] for c in heard], [data[c].n for c in heard]), **own[0]}
    for c in range(5):
        equal(play.own(c), {**w, **own[c]})


# ---------------------------------------------------------------- FedFA
def information(values: Sequence[float]) -> list[float]:
    """-log2 of each, divided by their sum; a single reply has all the weight."""
    bits = [-math.log2(v) for v in values if len(values) > 1] or [1.0]
    return [b / sum(bits) for b in bits]


@pytest.mark.parametrize(("alpha", "beta", "sign"), [(0.5, 0.5, "accelerate"), (0.3, 0.7, "damp"), (0.5, 0.2, "damp")])
def test_fedfa(setting: Any, alpha: float, beta: float, sign: Any, equal: Any) -> None:
    """omega = alpha A + beta B + (1 - alpha - beta) n; m <- .8 m + .2 G; w <- wbar - eta m; buffers FedAvg's mean."""
    world, data = setting
    local = dataclasses.replace(LOCAL, momentum=0.9)
    method = us.FedFA(alpha, beta, server_momentum=0.8, server_momentum_sign=sign, local=local)
    play = world.play(method, 5, clients_per_round=4, outage=SOME_LATE)
    w, visits = play.params[0], [0] * 5
    m = {k: torch.zeros_like(t) for k, t in w.items() if "running" not in k}
    for t, asked, cohort in rounds(play):
        acc = [max(data[c].accuracy(w), 1e-7) for c in cohort]
        for c in asked:
            visits[c] += 1
        a = information([v / sum(acc) for v in acc])
        b = information([1 - visits[c] / sum(visits[i] for i in cohort) for c in cohort])
        n = [data[i].n / sum(data[j].n for j in cohort) for i in cohort]
        omega = [alpha * ai + beta * bi + (1 - alpha - beta) * ni for ai, bi, ni in zip(a, b, n, strict=True)]
        ends = [data[i].fit(w, rate(t), 3, momentum=0.9) for i in cohort]
        bar, buffers = mean(ends, omega), mean(ends, [data[i].n for i in cohort])
        for k in m:
            m[k] = 0.8 * m[k] + 0.2 * ((w[k] - bar[k]) if sign == "accelerate" else (bar[k] - w[k]))
        w = {k: bar[k] - rate(t) * m[k] if k in m else buffers[k] for k in bar}
        equal(play.params[t], w)


def test_fedfa_as_in_hccts_tables(setting: Any, equal: Any) -> None:
    """omega = -log2 A_k / sum of them, of the accuracies themselves."""
    world, data = setting
    play = world.play(us.FedFA(preset="hcct", local=LOCAL), 5, clients_per_round=4)
    w = play.params[0]
    for t, _, cohort in rounds(play):
        bits = [-math.log2(max(data[c].accuracy(w), 1e-7)) for c in cohort]
        ends = [data[c].fit(w, rate(t), 3) for c in cohort]
        bar, buffers = mean(ends, bits if any(bits) else [1.0] * len(cohort)), mean(ends, [data[c].n for c in cohort])
        w = {k: buffers[k] if "running" in k else v for k, v in bar.items()}
        equal(play.params[t], w)


# ---------------------------------------------------------------- MAXFL
def slope(z: float) -> float:
    s = 1 / (1 + math.exp(-z))
    return s * (1 - s)


@pytest.mark.parametrize("server_lr", [1.0, 0.7])
def test_maxfl(setting: Any, server_lr: float, equal: Any) -> None:
    """Two rounds of FedAvg, then w <- w + server_lr / (sum q + eps) sum q (y - w); rho from the common start, once."""
    world, data = setting
    method = us.MAXFL(warmup=2, solo_rounds=2, server_lr=server_lr, epsilon=0.05, preferred=True, local=LOCAL)
    play = world.play(method, 5, clients_per_round=4, outage=SOME_LATE)
    w, solo = play.params[0], {}
    initial = w
    for t, asked, cohort in rounds(play):
        ends = [data[c].fit(w, rate(t), 3) for c in cohort]
        buffers = mean(ends, [data[c].n for c in cohort])
        if t <= 2:
            w = buffers
        else:
            solo.update({c: data[c].fit(initial, rate(t), 6) for c in asked if c not in solo})
            q = [slope(data[c].loss(w) - data[c].loss(solo[c])) for c in cohort]
            scale = server_lr / (sum(q) + 0.05)
            moved = {k: v + scale * sum(qi * (y[k] - v) for qi, y in zip(q, ends, strict=True)) for k, v in w.items()}
            w = {k: buffers[k] if "running" in k else v for k, v in moved.items()}
        equal(play.params[t], w)
    for c in range(5):
        better = c in solo and data[c].loss(solo[c]) <= data[c].loss(w)
        equal(play.own(c), solo[c] if better else w)


@pytest.mark.parametrize(("threshold", "solo_rounds", "warmup"), [("local_loss", 1, 2), ("sqdist", 4, 1)])
def test_maxfl_as_in_hccts_tables(setting: Any, threshold: Any, solo_rounds: int, warmup: int, equal: Any) -> None:
    """Rounds of FedAvg; then who has F(w) < rho, or ||what - w||^2, trains w, and the others their own models on."""
    world, data = setting
    method = us.MAXFL_HCCT(threshold, solo_rounds, warmup, LOCAL)
    play = world.play(method, 6, clients_per_round=4, outage=SOME_LATE)
    initial = w = play.params[0]
    own: dict[int, Model] = {}
    solo: dict[int, Model] = {}
    choices: set[bool] = set()
    for t, asked, heard in rounds(play):
        ends = {}
        for c in asked:
            joins = t <= warmup
            if not joins:
                solo.setdefault(c, data[c].fit(initial, rate(t), 3 * solo_rounds))
                distance = sum(float((solo[c][k] - w[k]).square().sum()) for k in w if "running" not in k)
                joins = data[c].loss(w) < (distance if threshold == "sqdist" else data[c].loss(solo[c]))
                choices.add(joins)
            if joins:
                own.pop(c, None)
                ends[c] = data[c].fit(w, rate(t), 3)
            else:
                own[c] = data[c].fit(own.get(c, w), rate(t), 3)
        group = [c for c in heard if c in ends]
        w = mean([ends[c] for c in group], [data[c].n for c in group]) if group else w
        equal(play.params[t], w)
    assert choices == {True, False}
    for c in range(5):
        equal(play.own(c), own.get(c, w))


# ---------------------------------------------------------------- FLSC
@pytest.mark.parametrize(
    ("ids", "weighting", "personal"),
    [("current", "uniform", ()), ("current", "samples", ("head",)), ("previous", "samples", ())],
)
def test_flsc(setting: Any, ids: Any, weighting: Any, personal: tuple[str, ...], equal: Any) -> None:
    """The two best of four by training loss, trained from their mean, averaged into both; with ids a round old too.

    A client that has no previous ids draws them: they are read from the run.  Its own head stands in every cluster.
    """
    world, data = setting
    method = us.FLSC(clusters=4, memberships=2, ids=ids, local=LOCAL, weighting=weighting, personal=personal)
    play = world.play(method, 5, clients_per_round=4, outage=SOME_LATE)
    models: list[Model] = list(play.states[0].models)
    own = {c: {k: t for k, t in world.population.initial.items() if k not in models[0]} for c in range(5)}
    found: dict[int, tuple[int, ...]] = {}
    last: dict[int, tuple[int, ...]] = {}
    kinds: set[tuple[int, ...]] = set()
    for t, asked, heard in rounds(play):
        losses = {c: [data[c].loss({**m, **own[c]}) for m in models] for c in asked}
        best = {c: tuple(sorted(sorted(range(4), key=lambda j: losses[c][j])[:2])) for c in asked}
        used = best if ids == "current" else {c: found.get(c, play.states[t].ids[c]) for c in heard}
        ends = {c: data[c].fit({**mean([models[j] for j in used[c]], [1, 1]), **own[c]}, rate(t), 3) for c in used}
        own.update({c: {k: ends[c][k] for k in own[c]} for c in ends})
        for j, model in enumerate(models):
            weights = {c: data[c].n if weighting == "samples" else 1 for c in heard if j in used[c]}
            if weights:
                bodies = [{k: ends[c][k] for k in model} for c in weights]
                models[j] = mean(bodies, list(weights.values()))
        found.update(best)
        last.update({c: used[c] for c in heard})
        kinds.update(used.values())
        assert play.states[t].ids == last
        equal(list(play.states[t].models), models)
    assert len(kinds) > 1
    for c in last:
        served = {**mean([models[j] for j in last[c]], [1, 1]), **own[c]}
        equal(play.own(c), {k: served[k] for k in world.population.initial})


# ---------------------------------------------------------------- FedSwap
@pytest.mark.parametrize(
    ("permutation", "weighting"), [("uniform", "uniform"), ("derangement", "samples"), ("pairing", "seen")]
)
def test_fedswap(setting: Any, permutation: Any, weighting: Any, equal: Any) -> None:
    """Three legs; who hands a model to whom is what the ledger says of the links between devices."""
    world, data = setting
    local = dataclasses.replace(LOCAL, momentum=0.5)
    play = world.play(us.FedSwap(3, permutation, weighting, "d2d", local), 3, clients_per_round=4)
    through_server = world.play(us.FedSwap(3, permutation, weighting, "server", local), 3, clients_per_round=4)
    w = play.params[0]
    for t, trace in enumerate(play.traces, 1):
        moves = [x for x in trace.transfers if x.kind == "model"]
        cohort = sorted(x.dst - 1 for x in moves if x.src == 0)
        held = {c: (w, 0) for c in cohort}
        for leg in range(3):
            to = {x.src - 1: x.dst - 1 for x in moves if x.hop == leg and x.src and x.dst}
            assert sorted(to.values()) == sorted(to)
            held = {to.get(c, c): h for c, h in held.items()}
            held = {c: (data[c].fit(m, rate(t), 3, momentum=0.5), seen + data[c].n) for c, (m, seen) in held.items()}
        weights = {"uniform": [1] * 4, "samples": [data[c].n for c in cohort], "seen": [held[c][1] for c in cohort]}
        w = mean([held[c][0] for c in cohort], weights[weighting])
        equal(play.params[t], w)
    equal(through_server.params[3], w)


# ---------------------------------------------------------------- TT-HF
@pytest.mark.parametrize(
    ("participants", "gamma", "phi", "weighting"),
    [(5, 2, None, "uniform"), (4, 1, None, "samples"), (5, 9, 0.5, "uniform")],
)
def test_tthf(setting: Any, participants: int, gamma: int, phi: float | None, weighting: Any, equal: Any) -> None:
    """tau = 6 steps, D2D after 2 and 4, none at 6; clusters (a, b) and (c, d) or, of all five, (a, b, c) and (d, e)."""
    world, data = setting
    local = dataclasses.replace(LOCAL, local_steps=6)
    method = us.TTHF(3, 2, gamma, phi, graph=Ring(), weighting=weighting, local=local)
    play = world.play(method, 3, clients_per_round=participants)
    w = play.params[0]
    for t, cohort, _ in rounds(play):
        half = (len(cohort) + 1) // 2
        clusters = [cohort[:half], cohort[half:]]
        z = {c: dict(w) for c in cohort}
        for part in range(3):
            z = {c: data[c].fit(m, rate(t), 2) for c, m in z.items()}
            for cluster in clusters if part < 2 else []:
                z.update(consensus(cluster, z, gamma, phi and rate(t) * phi))
        drawn = play.states[t].drawn
        assert [d in cluster for d, cluster in zip(drawn, clusters, strict=True)] == [True, True]
        sizes = [sum(data[c].n for c in k) if weighting == "samples" else len(k) for k in clusters]
        w = mean([z[d] for d in drawn], sizes)
        equal(play.params[t], w)


def consensus(cluster: Sequence[int], z: dict[int, Model], gamma: int, tolerance: float | None) -> dict[int, Model]:
    """Z <- V^Gamma Z, V = I - L / (2 D_max), on a pair or a triangle; Gamma = ceil(log(tol / (s Y)) / log lambda)."""
    s = len(cluster)
    laplacian = s * torch.eye(s, dtype=torch.float64) - torch.ones(s, s, dtype=torch.float64)
    v = torch.eye(s, dtype=torch.float64) - laplacian / (2 * (s - 1))
    if tolerance is not None:
        heights = [max(float(t.abs().max()) for k, t in z[c].items() if "running" not in k) for c in cluster]
        gap = max(heights) - min(heights)
        contraction = float(torch.linalg.eigvalsh(v - 1 / s).abs().max())
        if s * gap <= tolerance:
            gamma = 0
        elif contraction < 1e-12:
            gamma = min(gamma, 1)
        else:
            gamma = min(gamma, max(0, math.ceil(math.log(tolerance / (s * gap)) / math.log(contraction))))
    power = torch.linalg.matrix_power(v, gamma)
    names = z[cluster[0]]
    return {
        c: {k: sum(power[i, j] * z[d][k] for j, d in enumerate(cluster)) for k in names} for i, c in enumerate(cluster)
    }


# ---------------------------------------------------------------- FedPFT
PLACES = torch.eye(16).reshape(16, 1, 4, 4)


def photographed(held: Sequence[Sequence[tuple[int, int, int]]], noise: float) -> tuple[Simulator[Any], DeviceData]:
    """Clients with (label, style, how many): grey images, one pixel of which is bright; two of them are asked."""
    x: list[Tensor] = []
    y: list[Tensor] = []
    rows: list[Tensor] = []
    for c, parts in enumerate(held):
        start = sum(len(part) for part in y)
        rows.append(torch.arange(start, start + sum(n for _, _, n in parts)))
        for label, style, n in parts:
            g = (us.Key(2) / c / label / style).generator()
            grey = 0.3 + noise * torch.randn(n, 1, 4, 4, generator=g)
            x.append(grey + 0.5 * PLACES[4 * label + style])
            y.append(torch.full((n,), label))
    labels, task = torch.cat(y), toy_prior.task()
    data = DeviceData(torch.cat(x), labels, tuple(rows), tuple(r[:0] for r in rows))
    trainer = LocalTrainer(task, data)
    histograms = torch.stack([torch.bincount(labels[r], minlength=3) for r in rows])
    population = Population(histograms, task.layout, task.init(us.Key(3)), task.init, trainer)
    method = us.FedPFT(m=2, images=7, classifier=us.SgdConfig(0.02, local_steps=6, batch_size=None, optimizer="adam"))
    return Simulator(method, population, Sequential(trainer), clients_per_round=2), data


def test_fedpft_sends_the_moments_of_each_cluster() -> None:
    """Two clusters for 24 images of a label or more, one for 23: mean and variance by coordinate of z = 2 x - 1."""
    held = [[(0, 0, 14), (0, 1, 10)], [(1, 0, 12), (1, 1, 11)], [(1, 2, 5), (2, 1, 12), (2, 3, 18)]]
    with toy_prior.toy():
        sim, data = photographed(held, noise=0.02)
        state, trace = sim.round(sim.start(), 1)
    cohort = sorted({x.src - 1 for x in trace.transfers if x.hop == 0 and x.dst == 0})
    clusters = {0: [(0, 0, 14), (0, 14, 24)], 1: [(1, 0, 23)], 2: [(1, 0, 5), (2, 17, 35), (2, 5, 17)]}
    expected = [(c, *cluster) for c in cohort for cluster in clusters[c]]
    assert len(expected) == len(state.components.counts)
    for i, (c, label, start, end) in enumerate(expected):
        z = (2 * data.x[data.train[c]][start:end] - 1).flatten(1).double()
        assert int(state.components.labels[i]) == label
        assert int(state.components.counts[i]) == end - start
        torch.testing.assert_close(state.components.means[i].double(), z.mean(0), rtol=0, atol=1e-6)
        variance = (z - z.mean(0)).square().mean(0)
        torch.testing.assert_close(state.components.variances[i].double(), variance, rtol=0, atol=1e-6)


def test_fedpft_trains_every_label_equally(monkeypatch: pytest.MonkeyPatch, equal: Any) -> None:
    """All images of a label alike and none jittered: Adam on the mean over labels of the loss of one image each.

    The server has the mixture's labels, a client also its own, whether it was asked for components or not.
    """
    monkeypatch.setattr(feddistr, "jitter", lambda x, _: x)
    held = [[(0, 0, 14)], [(1, 0, 5), (0, 0, 3)], [(2, 1, 30)]]
    with toy_prior.toy():
        sim, _ = photographed(held, noise=0.0)
        state, trace = sim.round(sim.start(), 1)
        own = sim.own_models(state, range(3), 1)
    cohort = sorted({x.src - 1 for x in trace.transfers if x.hop == 0 and x.dst == 0})
    sent = {label for c in cohort for label, _, _ in held[c]}
    images = 0.3 + 0.5 * PLACES[[0, 4, 9]]
    for model, labels in (
        (state.params, sent),
        *((own[c], sent | {label for label, _, _ in held[c]}) for c in range(3)),
    ):
        module = toy_prior.perceptron()
        module.load_state_dict(sim.population.initial)
        optimiser = torch.optim.Adam(module.parameters(), 0.02)
        chosen = torch.tensor(sorted(labels))
        for _ in range(6):
            optimiser.zero_grad()
            F.cross_entropy(module(images[chosen]), chosen).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        equal(model, dict(module.state_dict()), atol=1e-5)
