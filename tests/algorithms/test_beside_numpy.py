"""CFL, STC, FedALA, FedProto and FedDistill beside plain NumPy references that share no code with them.

The references are written from the papers' equations: gradients by hand, float64, whole rounds of unequal clients, one
of which holds a single class.  Full batches make the order of examples irrelevant.  The network of `classes` is
r = tanh(W x + b), z = V r + c; taken from the run are the initial model, the data and who replied.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import unskew as us

Array = np.ndarray[Any, Any]
Model = dict[str, Array]
Extra = Callable[[Array, Array, Array], tuple[Any, Any]]
LR, STEPS, MOMENTUM = 0.1, 3, 0.5
LOCAL = us.SgdConfig(lr=LR, local_steps=STEPS, batch_size=None, momentum=MOMENTUM)
SIZES = [4, 7, 9, 3]
LABELS = [[0, 1, 1, 0], [0, 1, 2, 2, 1, 0, 0], [2, 1, 0, 2, 2, 1, 2, 0, 0], [1, 1, 1]]  # client 3 has class 1 alone
HEAD = ("head.weight", "head.bias")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A world of `classes` with these labels, and the same as arrays."""

    world: Any
    start: Model
    data: list[tuple[Array, Array]]


@pytest.fixture
def setting(classes: Any) -> Callable[..., Setting]:
    def make(labels: list[list[int]] = LABELS) -> Setting:
        world = classes(n=[len(part) for part in labels]).labelled(labels)
        x, y = world.device_data.x, world.device_data.y
        data = [(x[rows].numpy(), y[rows].numpy()) for rows in world.device_data.train]
        return Setting(world, {n: t.numpy().copy() for n, t in world.population.initial.items()}, data)

    return make


def outputs(w: Model, x: Array) -> tuple[Array, Array]:
    r = np.tanh(x @ w["fc.weight"].T + w["fc.bias"])
    return r, r @ w["head.weight"].T + w["head.bias"]


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def gradient(w: Model, x: Array, y: Array, extra: Extra | None = None) -> Model:
    """Of the mean cross-entropy, plus what `extra` says of its own gradients by features and by logits."""
    r, z = outputs(w, x)
    dr, dz = extra(r, z, y) if extra else (0.0, 0.0)
    dz = (softmax(z) - np.eye(3)[y]) / len(y) + dz
    da = (dz @ w["head.weight"] + dr) * (1.0 - r * r)
    return {"fc.weight": da.T @ x, "fc.bias": da.sum(0), "head.weight": dz.T @ r, "head.bias": dz.sum(0)}


def trained(w: Model, data: tuple[Array, Array], extra: Extra | None = None) -> Model:
    """Full-batch SGD whose momentum starts afresh."""
    v = {n: np.zeros_like(t) for n, t in w.items()}
    for _ in range(STEPS):
        g = gradient(w, *data, extra)
        v = {n: MOMENTUM * v[n] + g[n] for n in w}
        w = {n: w[n] - LR * v[n] for n in w}
    return w


def mean(models: Sequence[Model], weights: Sequence[float]) -> Model:
    return {n: sum(a * m[n] for a, m in zip(weights, models, strict=True)) / sum(weights) for n in models[0]}


def minus(a: Model, b: Model) -> Model:
    return {n: a[n] - b[n] for n in a}


def plus(a: Model, b: Model) -> Model:
    return {n: a[n] + b[n] for n in a}


def vector(w: Model) -> Array:
    return np.concatenate([w[n].ravel() for n in w])


def cohort(trace: Any) -> list[int]:
    """Clients whose reply was received."""
    return sorted({t.src - 1 for t in trace.transfers if t.direction == "up"} - {f.client for f in trace.failures})


def asked(trace: Any) -> list[int]:
    """Clients that were asked, and worked even if their reply came too late."""
    return sorted({t.dst - 1 for t in trace.transfers if t.direction == "down"})


def same(ours: Any, reference: Model) -> None:
    assert set(ours) == set(reference)
    for n, t in reference.items():
        np.testing.assert_allclose(ours[n].numpy(), t, rtol=0.0, atol=1e-12, err_msg=n)


# ---------------------------------------------------------------- STC
def ternary(blocks: Model, p: float, signs: bool, flatten: bool) -> Model:
    """Algorithm 1: the k = max(floor(n p), 1) largest entries, as the sign of each and the mean of their sizes.

    Of zeros nothing is sent: where fewer than k entries are none, mu is the mean of those.
    """
    if flatten:
        whole, at, found = ternary({"": vector(blocks)}, p, signs, False)[""], 0, {}
        for n, t in blocks.items():
            found[n] = whole[at : at + t.size].reshape(t.shape)
            at += t.size
        return found
    sent = {}
    for n, t in blocks.items():
        flat = t.ravel()
        top = np.argsort(-np.abs(flat), kind="stable")[: max(int(np.floor(flat.size * p)), 1)]
        top = top[flat[top] != 0]
        out = np.zeros_like(flat)
        out[top] = np.sign(flat[top]) * np.abs(flat[top]).mean() if signs and len(top) else flat[top]
        sent[n] = out.reshape(t.shape)
    return sent


def uploaded(
    here: Setting, w: Model, left: list[Model], clients: list[int], weighting: str, signs: bool, flatten: bool
) -> Model:
    """The mean of u_k = C(A_k + y_k - w); what is left of each is the new A_k."""
    sent = []
    for k in clients:
        total = plus(left[k], minus(trained(w, here.data[k]), w))
        sent.append(ternary(total, 0.15, signs, flatten))
        left[k] = minus(total, sent[-1])
    return mean(sent, [SIZES[k] if weighting == "samples" else 1 for k in clients])


@pytest.mark.parametrize(
    ("signs", "flatten", "down", "weighting", "lost"),
    [
        (True, False, 0.25, "uniform", True),
        (True, True, 0.25, "samples", True),
        (False, True, 0.25, "uniform", False),
        (True, False, 0.9, "samples", False),
    ],
)
def test_stc(setting: Any, cut: Any, signs: bool, flatten: bool, down: float, weighting: Any, lost: bool) -> None:
    """Algorithm 2: A_k += y_k - W, u_k = C(A_k), A_k -= u_k; A += mean u_k, u = C(A), A -= u, W += u.

    Three of four clients in each round; a reply that came too late was never made.  With .9 the server may send more
    entries than it has, which is .45 at most.
    """
    here = setting()
    outage = cut(*[(t, "train", 0, c) for t in (2, 4, 5) for c in (0, 1)], how="late")
    options = {"outage": outage} if lost else {}
    method = us.STC(0.15, down, signs, flatten, weighting=weighting, local=LOCAL)
    play = here.world.play(method, 8, clients_per_round=3, **options)
    w = here.start
    zero = {n: np.zeros_like(t) for n, t in w.items()}
    left, server = [zero] * 4, zero
    for state, trace in zip(play.states[1:], play.traces, strict=True):
        server = plus(server, uploaded(here, w, left, cohort(trace), weighting, signs, flatten))
        u = ternary(server, down, signs, flatten)
        server, w = minus(server, u), plus(w, u)
        same(state.params, w)
        same(state.residual, server)


# ---------------------------------------------------------------- CFL
def halves(updates: list[Model], linkage: str) -> tuple[list[int], list[int], float]:
    """Agglomeration of positions by cosines, from singletons to two clusters, and the largest cosine across."""
    u = [vector(m) / np.linalg.norm(vector(m)) for m in updates]
    join = {"complete": min, "single": max}[linkage]
    groups = [[i] for i in range(len(u))]
    while len(groups) > 2:
        pairs = itertools.combinations(range(len(groups)), 2)
        i, j = max(pairs, key=lambda ij: join(u[a] @ u[b] for a in groups[ij[0]] for b in groups[ij[1]]))
        groups = [g for k, g in enumerate(groups) if k not in (i, j)] + [groups[i] + groups[j]]
    one, two = sorted(sorted(g) for g in groups)
    return one, two, max(float(u[a] @ u[b]) for a in one for b in two)


@pytest.mark.parametrize(
    ("weighting", "linkage", "gap", "personal"),
    [("uniform", "complete", 0.0, HEAD), ("samples", "single", 0.0, ()), ("samples", "complete", 0.65, HEAD)],
)
def test_cfl(setting: Any, cut: Any, weighting: Any, linkage: Any, gap: float, personal: tuple[str, ...]) -> None:
    """Algorithm 2: split if ||mean D|| < eps1, max ||D|| > eps2 and sqrt((1 - largest cosine) / 2) > gamma_max.

    Eight clients.  In rounds 3, 4 and 6 one or two are not heard: their clusters are not split.
    """
    labels = [*LABELS, *[[2 - c for c in part] for part in LABELS]]
    here = setting(labels)
    options = {"weighting": weighting, "linkage": linkage, "gamma_max": gap, "local": LOCAL}
    method = us.CFL(eps1=0.5, eps2=0.1, after=2, min_size=3, personal=("head",) if personal else (), **options)
    lost = cut(*[(t, "train", 0, c) for t, c in ((3, 2), (4, 7), (6, 1), (6, 2))])
    play = here.world.play(method, 12, outage=lost)
    clusters = [(list(range(8)), here.start)]
    kept = [{n: here.start[n] for n in personal} for _ in labels]
    reasons = {"split": 0, "gap": 0, "absent": 0}
    for t, (state, trace) in enumerate(zip(play.states[1:], play.traces, strict=True), 1):
        following = []
        for members, theta in clusters:
            here_now = [k for k in members if k in cohort(trace)]
            y = {k: trained({**theta, **kept[k]}, here.data[k]) for k in here_now}
            shared = [n for n in theta if n not in personal]
            d = {k: {n: y[k][n] - theta[n] for n in shared} for k in here_now}
            size = {k: len(labels[k]) if weighting == "samples" else 1 for k in here_now}
            for k in here_now:
                kept[k] = {n: y[k][n] for n in personal}
            parts = [members]
            if here_now and t > 2 and len(members) >= 3:
                rest = np.linalg.norm(vector(mean([*d.values()], [*size.values()])))
                if rest < 0.5 and max(np.linalg.norm(vector(u)) for u in d.values()) > 0.1:
                    if here_now != members:
                        reasons["absent"] += 1
                    else:
                        one, two, across = halves([*d.values()], linkage)
                        wide = np.sqrt((1.0 - across) / 2.0) > gap
                        reasons["split" if wide else "gap"] += 1
                        parts = [[members[i] for i in one], [members[i] for i in two]] if wide else parts
            for part in parts:
                moved = [k for k in part if k in here_now]
                step = mean([d[k] for k in moved], [size[k] for k in moved]) if moved else {}
                following.append((part, {n: w + step.get(n, 0.0) for n, w in theta.items()}))
        clusters = following
        assert [list(c.members) for c in state.clusters] == [members for members, _ in clusters]
        for ours, (_, theta) in zip(state.clusters, clusters, strict=True):
            same({n: ours.params[n] for n in shared}, {n: theta[n] for n in shared})
    assert reasons["split"] > 1
    assert (reasons["gap"] > 0) == (gap > 0)
    assert reasons["absent"] > 0
    for members, theta in clusters:
        for k in members:
            same(play.own(k), {**theta, **kept[k]})


# ---------------------------------------------------------------- FedALA
def adopted(
    g: Model, own: Model, w: Model, data: tuple[Array, Array], passes: int, settled: float
) -> tuple[Model, Model]:
    """Algorithm 1, lines 7 to 14: W <- clip(W - eta grad F(Theta^) (Theta - Theta_k), 0, 1), eta = .5; then Theta^.

    A pass is one full batch.  Its losses are those before its step; ten that deviate by less end the first time.
    """
    losses = []
    inside = {**g, **{n: own[n] + (g[n] - own[n]) * w[n] for n in own}}
    for _ in range(passes):
        losses.append(-np.log(softmax(outputs(inside, data[0])[1])[np.arange(len(data[1])), data[1]]).mean())
        slope = gradient(inside, *data)
        w = {n: np.clip(w[n] - 0.5 * slope[n] * (g[n] - own[n]), 0.0, 1.0) for n in own}
        inside = {**g, **{n: own[n] + (g[n] - own[n]) * w[n] for n in own}}
        if len(losses) >= 10 and np.std(losses[-10:]) < settled:
            break
    return inside, w


@pytest.mark.parametrize(
    ("layers", "settled", "weighting"),
    [(("head",), 1e-30, "samples"), (("all",), 1e-4, "uniform"), (("fc",), 0.1, "samples")],
)
def test_fedala(setting: Any, cut: Any, layers: tuple[str, ...], settled: float, weighting: Any) -> None:
    """Three of four clients in each round; at the end all of them mix, with what they remember, and nobody trains.

    Whose reply is late has learned all the same.
    """
    here = setting()
    late = cut(*[(t, "train", 0, c) for t in (2, 3, 5) for c in (0, 1)], how="late")
    options = {"eta": 0.5, "layers": layers, "start_epochs": 14, "settled": settled, "weighting": weighting}
    play = here.world.play(us.FedALA(**options, local=LOCAL), 6, clients_per_round=3, outage=late)
    top = [n for n in here.start if layers == ("all",) or n.startswith(layers)]
    g, own, w = here.start, dict[int, Model](), dict[int, Model]()

    def mixed(k: int) -> tuple[Model, Model]:
        ones = {n: np.ones_like(g[n]) for n in top}
        return adopted(g, own[k], w.get(k, ones), here.data[k], 1 if k in w else 14, settled)

    for state, trace in zip(play.states[1:], play.traces, strict=True):
        models = {}
        for k in asked(trace):
            start = g
            if k in own:
                start, w[k] = mixed(k)
            models[k] = trained(start, here.data[k])
            own[k] = {n: models[k][n] for n in top}
        g = mean([models[k] for k in cohort(trace)], [SIZES[k] if weighting == "samples" else 1 for k in cohort(trace)])
        same(state.params, g)
    for k in range(4):
        if k in w:
            same(play.sim.memory.get(k).w, w[k])
            assert any(((t > 0) & (t < 1)).any() for t in w[k].values())
        same(play.own(k), mixed(k)[0] if k in own else g)


# ---------------------------------------------------------------- FedProto
def averaged(told: list[tuple[Array, Array]], by: str, old: Array) -> Array:
    """Means by class over those who hold it, by their examples or alike; NaN is a class nobody ever held."""
    new = old.copy()
    for c in range(3):
        holders = [(rows[c], n[c] if by == "examples" else 1) for rows, n in told if n[c] > 0]
        if holders:
            new[c] = sum(a * row for row, a in holders) / sum(a for _, a in holders)
    return new


def by_class(values: Array, y: Array) -> tuple[Array, Array]:
    n = np.bincount(y, minlength=3)
    return np.stack([values[y == c].mean(0) if n[c] else np.full(values.shape[1], 1e9) for c in range(3)]), n


@pytest.mark.parametrize("labels", [LABELS, [[0, 0, 1, 0], [0] * 7, [2, 0] * 4 + [0], [1, 1, 1]]])
@pytest.mark.parametrize("averaging", ["examples", "clients"])
def test_fedproto(setting: Any, cut: Any, averaging: Any, labels: list[list[int]]) -> None:
    """Eq. 7: CE + lam / n sum_i |r_i - P^{y_i}|^2 / d; eq. 6 without 1/|N_j|.  Three of four clients in each round."""
    here = setting(labels)
    late = cut(*[(t, "train", 0, c) for t in (2, 3, 5) for c in (0, 1)], how="late")
    play = here.world.play(us.FedProto(lam=2.0, averaging=averaging, local=LOCAL), 6, clients_per_round=3, outage=late)
    own = [here.start] * 4
    known = np.full((3, 5), np.nan)

    for state, trace in zip(play.states[1:], play.traces, strict=True):
        told = []

        def pull(r: Array, z: Array, y: Array, p: Array = known) -> tuple[Any, Any]:
            return np.nan_to_num(2.0 / len(y) * 2.0 * (r - p[y]) / r.shape[1]), 0.0

        for k in asked(trace):
            own[k] = trained(own[k], here.data[k], pull)
        for k in cohort(trace):
            told.append(by_class(outputs(own[k], here.data[k][0])[0], here.data[k][1]))
        known = averaged(told, averaging, known)
        np.testing.assert_allclose(state.spread().numpy(), np.nan_to_num(known), rtol=0.0, atol=1e-12)
        assert ((state.counts > 0).numpy() == ~np.isnan(known[:, 0])).all()
    for k in range(4):
        same(play.own(k), own[k])


# ---------------------------------------------------------------- FedDistill
@pytest.mark.parametrize("labels", [LABELS, [[0, 0, 1, 0], [0] * 7, [2, 0] * 4 + [0], [1, 1, 1]]])
@pytest.mark.parametrize("averaging", ["examples", "clients"])
@pytest.mark.parametrize("weighting", ["samples", "uniform", None])
def test_feddistill(setting: Any, cut: Any, averaging: Any, weighting: Any, labels: list[list[int]]) -> None:
    """CE + lam / n sum_i KL(softmax Z_{y_i} || softmax f(x_i)), of slope lam / n (softmax f - softmax Z) by logits.

    Three of four clients in each round.  `weighting` is FedDistill+'s, whose models are averaged; None is FedDistill.
    """
    here = setting(labels)
    method: Any = us.FedDistill(2.0, averaging, LOCAL)
    if weighting:
        method = us.FedDistillPlus(lam=2.0, averaging=averaging, local=LOCAL, weighting=weighting)
    late = cut(*[(t, "train", 0, c) for t in (2, 3, 5) for c in (0, 1)], how="late")
    play = here.world.play(method, 6, clients_per_round=3, outage=late)
    own = [here.start] * 4
    g, teacher = here.start, np.full((3, 3), np.nan)
    for state, trace in zip(play.states[1:], play.traces, strict=True):
        told = []

        def pull(r: Array, z: Array, y: Array, t: Array = teacher) -> tuple[Any, Any]:
            return 0.0, np.nan_to_num(2.0 / len(y) * (softmax(z) - softmax(t[y])))

        for k in asked(trace):
            own[k] = trained(g if weighting else own[k], here.data[k], pull)
        for k in cohort(trace):
            told.append(by_class(outputs(own[k], here.data[k][0])[1], here.data[k][1]))
        teacher = averaged(told, averaging, teacher)
        if weighting:
            sizes = [len(labels[k]) if weighting == "samples" else 1 for k in cohort(trace)]
            g = mean([own[k] for k in cohort(trace)], sizes)
            same(state.params, g)
        ours = state.teacher if weighting else state
        np.testing.assert_allclose(ours.z[ours.known].numpy(), teacher[~np.isnan(teacher[:, 0])], rtol=0.0, atol=1e-12)
        assert (ours.known.numpy() == ~np.isnan(teacher[:, 0])).all()
    for k in range(4):
        same(play.own(k), g if weighting else own[k])


def test_feddistill_plus_as_in_feddw(setting: Any) -> None:
    """Z = I at first, then (Z + pooled means of all uploads so far) / 2, of probabilities in evaluation mode.

    The term is -lam / n sum_i <Z_{y_i}, p_i>, p = softmax f(x); its slope by logits is -lam / n p (Z_y - <Z_y, p>).
    Class 2 is client 2's, and unknown before it takes part.
    """
    labels = [[0, 0, 1, 0], [0] * 7, [2, 0] * 4 + [0], [1, 1, 1]]
    here = setting(labels)
    play = here.world.play(us.FedDistillPlus(lam=2.0, compat="feddw", local=LOCAL), 6, clients_per_round=2, seed=4)
    g, z = here.start, np.eye(3)
    sums, counts, alone = np.zeros((3, 3)), np.zeros(3), 0
    for state, trace in zip(play.states[1:], play.traces, strict=True):

        def reward(r: Array, logits: Array, y: Array, z: Array = z) -> tuple[Any, Any]:
            p = softmax(logits)
            return 0.0, -2.0 / len(y) * p * (z[y] - (z[y] * p).sum(1, keepdims=True))

        models = [trained(g, here.data[k], reward) for k in cohort(trace)]
        g = mean(models, [len(labels[k]) for k in cohort(trace)])
        for k, model in zip(cohort(trace), models, strict=True):
            x, y = here.data[k]
            np.add.at(sums, y, softmax(outputs(model, x)[1]))
            counts += np.bincount(y, minlength=3)
        seen = counts > 0
        z = np.where(seen[:, None], (z + sums / np.maximum(counts, 1)[:, None]) / 2, z)
        alone += not seen.all()
        same(state.params, g)
        np.testing.assert_allclose(state.teacher.z.numpy(), z, rtol=0.0, atol=1e-12)
    assert 0 < alone < 6
