"""FedDistr's published numbers, and ours beside them.

What the paper leaves open, and how it was read, is on the method's page.

Error      the paper's utility loss: 1 - accuracy on test images of all labels, as it is, not relative to training in
           one place.  For a method with one model that model's.  For FedDistr and Gaussian mixtures `error` is the mean
           over the clients' own classifiers, which are trained on what others sent and on own images, and
           `error.server` that of the server's, trained on what was sent alone.
xi         average entanglement of five clients; what whole images came to stands beside what was asked for.  Base
           distributions are labels at `small`, CIFAR-100's subclasses at `paper`.
Numbers    bytes of our wire over four, headers and labels included.
"""

import importlib.util
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors.torch
import torch
from annotated_types import Ge
from torch import Tensor

from unskew import models, priors
from unskew.algorithms.fedavg import Trained, Weights
from unskew.algorithms.oneshot import longer
from unskew.api import History
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.errors import ConfigError, DataError
from unskew.experiment import config
from unskew.keys import Key
from unskew.local import imagery
from unskew.papers.result import (
    Claim,
    Curve,
    Request,
    Result,
    Row,
    decide,
    final,
    interval,
    ordered,
    over_seeds,
    plot,
    ran,
    same,
)
from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.record.logs import rows as log
from unskew.run.folder import read_json
from unskew.tree import Params

# ---------------------------------------------------------------- published
LEVELS = (0.0, 0.003, 0.057, 0.385)

TABLE2: dict[float, int] = {0.0: 150, 0.003: 100, 0.057: 80}
"""Rounds until FedAvg has converged, by xi; FedDistr's is one."""

FEDAVG_NUMBERS, FEDDISTR_NUMBERS = 11.7e6, 30e3
"""Table 2's "parameters".  The former is a ResNet-18 with 1,000 outputs, so what one client sends in one round; the
latter is read as all clients' embeddings together."""

UTILITY_LOSS = {"feddistr": 0.40, "moon": 0.60}
"""CIFAR-100: FedDistr after its round, "about", at all xi; MOON after 100 rounds, "about", at xi = 0."""

CLIENTS = 5
BASELINES = ("fedavg", "fedprox", "scaffold", "moon")

FLAT = 0.05
"""What "about" allows two errors that are called the same."""

WIDE = 0.10
"""A wide margin."""


# ---------------------------------------------------------------- what is run
@dataclass(frozen=True)
class Ground:
    """A private source and what is trained on it.

    Attributes:
        data, model, options: What is learned, by which network.
        local: Optimisation of the methods that train in rounds.
        settings: Options of methods, by name.
        train, test: How many images are drawn, once; None takes all.
    """

    data: str
    model: str
    local: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    train: int | None = None
    test: int | None = None

    def method(self, name: str) -> dict[str, Any]:
        """As in an experiment."""
        return {"name": name, **self.settings.get(name, {})}


_SMALL = {"lr": 0.05, "local_epochs": 2, "batch_size": 32}
DIGITS = Ground("digits", "cnn_small", _SMALL)
# On other seeds than those below, at xi = 0, SCAFFOLD diverged on both sources at 0.1, and at 0.05 forgot again what it
# knew in two of three runs on USPS; at 0.02 it learned.  On the digits 0.05 was good and 0.02 slow.
USPS = Ground("usps", "cnn_small", _SMALL, settings={"scaffold": {"local": {"lr": 0.02}}}, train=2_000, test=1_000)

# The paper gives no constants; these are DDDR's, whose inversion it takes over.
_DDDR: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "batch_size": 128}
_SD = {"prior": "hub:stable-diffusion-v1-5/stable-diffusion-v1-5", "classifier": {**_DDDR, "local_epochs": 50}}
CIFAR100 = Ground(
    "cifar100",
    "resnet18",
    {**_DDDR, "local_epochs": 5},
    {"norm": "group"},
    {
        "feddistr": {**_SD, "m": "oracle", "steps": 500, "batch_size": 12, "images": 400},
        "fedpft": {**_SD, "m": 2, "images": 400},
    },
)


@dataclass(frozen=True)
class Rounds:
    """Sources, levels of xi, rounds of the methods that have many, and seeds."""

    grounds: tuple[Ground, ...]
    levels: tuple[float, ...]
    rounds: int
    seeds: tuple[int, ...]


FIVE = (0, 1, 2, 3, 4)
TRADEOFF = {
    "small": Rounds((DIGITS, USPS), LEVELS, 60, (0, 1, 2)),
    "paper": Rounds((CIFAR100,), LEVELS, 100, FIVE),
}
COMMUNICATION = {
    "small": Rounds((DIGITS,), tuple(TABLE2), 100, (0, 1, 2)),
    "paper": Rounds((CIFAR100,), tuple(TABLE2), 200, FIVE),
}


# ---------------------------------------------------------------- data
SUBCLASSES = ((4, 30), (1, 32), (54, 62), (9, 10), (0, 51), (22, 39), (5, 20), (6, 7), (3, 42), (12, 17))
"""CIFAR-100's labels of two subclasses of each of ten superclasses, the first in the alphabet; the paper names none."""

PER_SUBCLASS = 500


def _task(request: Request, ground: Ground) -> dict[str, Any]:
    """The network, and the images: those drawn, once, as a file of their own, or all of them where they lie.

    Raises:
        DataError: If the images are not there, or too few of them.
    """
    made = {"model": ground.model, "model_options": dict(ground.options)}
    if ground.data != "cifar100" and ground.train is None and ground.test is None:
        folder = {} if request.data_dir is None else {"data_dir": str(Path(request.data_dir).resolve())}
        return {**made, "data": ground.data, **folder}
    data = sources.load(ground.data, request.data_dir)
    key = Key(0) / "feddistr" / ground.data
    arrays = _superclasses(data) if ground.data == "cifar100" else _drawn(data, ground, key)
    file: Path = request.folder / "data" / f"{ground.data}.npz"
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez(file, allow_pickle=False, **arrays)
    return {**made, "data": f"npz:{file.resolve()}"}


def _drawn(data: Dataset, ground: Ground, key: Key) -> dict[str, Any]:
    train = torch.randperm(len(data.y_train), generator=(key / "train").generator())[: ground.train]
    test = torch.randperm(len(data.y_test), generator=(key / "test").generator())[: ground.test]
    return {
        "x_train": levels(data, data.x_train[train]),
        "y_train": data.y_train[train].numpy(),
        "x_test": levels(data, data.x_test[test]),
        "y_test": data.y_test[test].numpy(),
    }


def _superclasses(data: Dataset) -> dict[str, Any]:
    """Images of SUBCLASSES: a superclass is the label, which of its two subclasses the domain."""
    have = int(torch.bincount(data.y_train, minlength=100)[torch.tensor(SUBCLASSES).flatten()].min())
    if have < PER_SUBCLASS:
        raise DataError(
            f"the paper's scale needs all of CIFAR-100, {PER_SUBCLASS} training images of a class, and the data folder "
            f"has {have}; put the whole set there, or take --scale small"
        )
    of = {fine: (coarse, j) for coarse, pair in enumerate(SUBCLASSES) for j, fine in enumerate(pair)}
    out: dict[str, Any] = {"domains": np.array(["first", "second"])}
    for part, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        rows = torch.isin(y, torch.tensor(SUBCLASSES).flatten()).nonzero()[:, 0]
        places = np.array([of[fine] for fine in y[rows].tolist()])
        out |= {f"x_{part}": levels(data, x[rows]), f"y_{part}": places[:, 0]}
        if part == "train":
            out["domain_train"] = places[:, 1]
    return out


def levels(data: Dataset, x: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Standardised images (n, C, H, W) as uint8 (n, H, W) or (n, H, W, 3), from which a prior knows black and white.

    Raises:
        DataError: If the source had no such images.
    """
    if data.levels is None:
        raise DataError(f"{data.name} was not read from uint8 images; a prior needs to know what black and white are")
    black, white = torch.tensor(data.levels).T[:, :, None, None]
    whole = (255 * (x - black) / (white - black)).round().clamp(0, 255).to(torch.uint8)
    image: np.ndarray[Any, np.dtype[np.uint8]] = (whole[:, 0] if x.shape[1] == 1 else whole.movedim(1, 3)).numpy()
    return image


def _check(grounds: Sequence[Ground]) -> None:
    """Refuse now what the first round would refuse after hours.

    Raises:
        ConfigError: If a prior needs an extra that is not installed.
    """
    wanted = {g.method("feddistr").get("prior", priors.BUILT_IN) for g in grounds} - {priors.BUILT_IN}
    if wanted and importlib.util.find_spec("diffusers") is None:
        raise ConfigError(
            f"the prior {', '.join(sorted(wanted))} needs the package diffusers, which is not installed; "
            "pip install 'unskew[diffusion]', or take --scale small"
        )


# ---------------------------------------------------------------- the one-shot ensemble
@dataclass(frozen=True)
class Kept:
    """The common initial model, and what clients sent, under CLIENT/NAME."""

    initial: Params
    members: Params


@dataclass(frozen=True)
class Ensemble:
    """Clients train to the end once and send their models, which vote (Guha et al. 2019).

    An ensemble is not one set of parameters, so it is no method for others to run: it serves all its members in one,
    which only `voted` can read, and must not be graded as a global model.

    Attributes:
        local, rounds_worth: As of one-shot averaging (`unskew.algorithms.oneshot`).
    """

    local: SgdConfig = SgdConfig()
    rounds_worth: Annotated[int, Ge(1)] = 20

    def init(self, params: Params, fed: Federation) -> Kept:
        """Nobody has sent a model."""
        return Kept(params, {})

    def round(self, state: Kept, fed: Federation) -> Plan[Kept]:
        """In round 1 train and collect, later rest."""
        if fed.round > 1:
            return state
        replies = yield from ask(self.train, dict.fromkeys(fed.sample(), Weights(state.initial)))
        return Kept(state.initial, {f"{c}/{n}": t for c, r in replies.items() for n, t in r.params.items()})

    @step
    def train(self, me: Me, msg: Weights, mine: Params | None) -> Step[tuple[Trained, Params | None]]:
        """Train from the common model; this client keeps what it sends."""
        params = yield from sgd(msg.params, longer(self.local, self.rounds_worth))
        return Trained(params, me.n), params

    def personalise(self, me: Me, params: Params | None, mine: Params | None) -> Step[Params]:
        """This client's member: what training alone comes to."""
        yield from ()
        return mine or me.initial

    def serve(self, state: Kept, client: ClientId | None) -> Params | None:
        """All members, to whoever keeps the result; a client has its own."""
        return state.members if client is None else None


def voted(ground: Ground, data: Dataset, file: Path) -> float:
    """Error of the members in `file` on the test set: the class with the largest mean probability."""
    with Key(0).ambient():
        network = models.build(ground.model, data.input_shape, data.num_classes, **ground.options).eval()
    tensors = safetensors.torch.load(file.read_bytes())
    total = torch.zeros(len(data.y_test), data.num_classes)
    for c in sorted({name.partition("/")[0] for name in tensors}):
        network.load_state_dict({n.partition("/")[2]: t for n, t in tensors.items() if n.startswith(f"{c}/")})
        with torch.no_grad():
            total += torch.cat([network(x).softmax(1) for x in torch.split(data.x_test, 500)])
    return float((total.argmax(1) != data.y_test).double().mean())


# ---------------------------------------------------------------- runs and their numbers
GLOBAL_ACCURACY, CLIENTS_ACCURACY = "global.accuracy", "personal_on_global.accuracy.mean"


def _experiment(
    name: str,
    ground: Ground,
    task: Mapping[str, Any],
    xi: float,
    methods: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    rounds: int = 1,
    evaluate: Sequence[str] = ("global", "personal_on_global"),
) -> config.Experiment:
    """Five clients of entanglement xi, all of whom take part; nothing of theirs is kept from training."""
    # Worker processes would each make the images that all clients have in common, and those are most of the work.
    imagines = any(m["name"] in ("feddistr", "fedpft") for m in methods)
    runtime = {"executor": "sequential"} if imagines and not torch.cuda.is_available() else {}
    raw: dict[str, Any] = {
        "name": name,
        "rounds": rounds,
        "seeds": list(seeds),
        "evaluate": list(evaluate),
        "test_fraction": 0.0,
        "task": dict(task),
        "split": {"name": "entangled", "num_clients": CLIENTS, "xi": xi},
        "local": dict(ground.local),
        "methods": [dict(m) for m in methods],
        "runtime": runtime,
    }
    return config.parse(raw, name)


def _ends(found: History, method: str, metric: str) -> tuple[float, ...]:
    """A result by seed, which there must be."""
    values = final(found, method, metric)
    assert values is not None
    return values


def _errors(found: History, method: str) -> tuple[float, ...]:
    """Of the models the clients end up with, the mean over them, by seed."""
    return tuple(1.0 - a for a in _ends(found, method, CLIENTS_ACCURACY))


def _global_errors(found: History, method: str) -> tuple[float, ...]:
    return tuple(1.0 - a for a in _ends(found, method, GLOBAL_ACCURACY))


def _by_round(found: History, method: str, name: str = GLOBAL_ACCURACY) -> dict[int, list[float]]:
    """A metric by round, of each the values of all seeds."""
    out: dict[int, list[float]] = {}
    for r in found.rows:
        if (r["method"], r["name"]) == (method, name) and "client" not in r:
            out.setdefault(r["round"], []).append(r["value"])
    return out


def _minus(these: Sequence[float], those: Sequence[float], margin: float = 0.0) -> list[float]:
    """Paired differences, seed by seed, less a margin."""
    return [a - b - margin for a, b in zip(these, those, strict=True)]


def _realised(folder: Path) -> list[float]:
    """Average entanglement of whole images, by seed."""
    seeds = read_json(folder / "partition.json")["seeds"]
    return [float(fed["stats"]["entanglement"]) for fed in seeds.values()]


def _sent(found: History, method: str) -> tuple[float, ...]:
    return _ends(found, method, "bytes.total")


def _facts(found: History) -> dict[tuple[str, int], Mapping[str, Any]]:
    """What FedDistr had to show, by label and seed."""
    assert found.path is not None
    return {(r["method"], r["seed"]): r["info"] for r in log(found.path / "info.jsonl") if r["round"] == 1}


def _curve(name: str, x: Sequence[float], by_seed: Sequence[Sequence[float]]) -> Curve:
    """In percent; `by_seed` has the seeds' values at each x."""
    table = [[100 * v for v in values] for values in by_seed]
    mean, low, high = (tuple(float(f(v)) for v in table) for f in (np.mean, np.min, np.max))
    return Curve(name, tuple(map(float, x)), mean, low, high)


def within(text: str, steps: Mapping[str, Sequence[float]], margin: float) -> Claim:
    """The claim that all of several paired differences are zero within a margin; the evidence is the largest of them.

    It holds if every interval lies within, does not if one lies outside, and is undecided otherwise.
    """
    found = {name: same(name, differences, margin) for name, differences in steps.items()}
    verdicts = [c.holds for c in found.values()]
    holds = False if False in verdicts else True if verdicts and all(verdicts) else None
    most = max(found.values(), key=lambda c: abs(float(np.mean(steps[c.text]))))
    return Claim(text, holds, f"of {len(steps)} differences the largest: {most.text} {most.evidence}")


# ---------------------------------------------------------------- utility loss against rounds
@dataclass(frozen=True, eq=False)
class Level:
    """What came of one source at one xi.

    Attributes:
        xi: Asked for.
        many: The run of the methods with many rounds.
        errors: Last, by name and seed; "feddistr (server)" and "fedpft (server)" are those on what was sent alone.
        first: After one round, of the methods with many.
    """

    xi: float
    many: History
    errors: Mapping[str, Sequence[float]]
    first: Mapping[str, Sequence[float]]


def tradeoff(request: Request) -> Result:
    """One round of FedDistr, many of its rivals and one of cheaper ones, at four levels of xi."""
    plan = TRADEOFF[request.scale]
    _check(plan.grounds)
    rows: list[Row] = []
    claims: list[Claim] = []
    curves: tuple[Curve, ...] = ()
    figures: list[tuple[str, bytes]] = []
    seconds = 0.0
    blank = Result(request.name, request.scale, 0.0, (), (), "", axes=("round", "error on test images, %"))
    for ground in plan.grounds:
        task = _task(request, ground)
        data = sources.load(task["data"], request.data_dir)
        found = []
        for xi in plan.levels:
            level, more, spent = _level(request, plan, ground, task, data, xi)
            found.append(level)
            rows += more
            seconds += spent
        claims += _tradeoff_claims(ground.data, found)
        for level in found:
            lines, title = _round_curves(level, plan.rounds), f"{request.name}: {ground.data}, xi {level.xi:g}"
            if curves:
                drawn = plot(replace(blank, name=title, curves=lines))
                figures.append((f"rounds-{ground.data}-xi-{level.xi:g}.svg", drawn))
            curves = curves or lines
        ticks = ", ".join(f"{i}: {xi:g}" for i, xi in enumerate(plan.levels, 1))
        axes = (f"xi ({ticks})", blank.axes[1])
        drawn = plot(replace(blank, name=f"{request.name}: {ground.data}", curves=_xi_curves(found), axes=axes))
        figures.append((f"xi-{ground.data}.svg", drawn))
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=seconds,
        rows=tuple(rows),
        claims=tuple(claims),
        about=f"{CLIENTS} clients, all in every round, "
        + " and ".join(f"{g.data} ({g.train or 'all'} training images, {g.model})" for g in plan.grounds)
        + f". {', '.join(BASELINES)} have {plan.rounds} rounds of {_words(plan.grounds[0].local)}"
        + "".join(
            f" ({name} on {g.data}: {_words(options['local'])})"
            for g in plan.grounds
            for name, options in g.settings.items()
            if "local" in options
        )
        + "; `oneshot` (averaged once) and `ensemble` (voting) train as long before their one exchange; `alone` is the "
        "ensemble's members, each by itself; `fedpft` is Gaussian mixtures of the latents that FedDistr clusters. "
        "Error is the paper's utility loss, 1 - accuracy on test images of all labels: of FedDistr and fedpft the mean "
        "over the clients' own models, `error.server` being the model trained on what was sent alone. `error.first` is "
        "after one round. Numbers are bytes of our wire over four, both directions, all clients, all rounds; the "
        "ensemble's models go up only. Published, on CIFAR-100: about 40 % for FedDistr at all xi, about 60 % for MOON "
        f"after 100 rounds at xi = 0. Flat means within {100 * FLAT:g} points, a wide margin is {100 * WIDE:g}. "
        f"The first figure is {plan.grounds[0].data} at xi = {plan.levels[0]:g}. {_classifier(plan.grounds[0])}",
        curves=curves,
        axes=blank.axes,
        seeds=plan.seeds,
        figures=tuple(figures),
    )


def _classifier(ground: Ground) -> str:
    """How what is imagined is learned from, and how that was chosen."""
    said = (
        "FedDistr and fedpft train their classifiers on jittered images with every label equally often, the other "
        "methods on the images as they are, so part of a difference is that."
    )
    if "classifier" in ground.method("feddistr"):
        return said
    return (
        f"{said} They do so by Adam, the others by SGD. Of Adam's settings six were compared on test images of digits "
        "(seeds 0 to 2), and four of these again on clients' own training images (seeds 3 to 5), where 800 and 1,200 "
        "steps of .001 were level, .882 and .885, and 800 was kept: on digits the test images were looked at for it, "
        "on USPS they were not."
    )


def _words(local: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in local.items())


def _level(
    request: Request, plan: Rounds, ground: Ground, task: Mapping[str, Any], data: Dataset, xi: float
) -> tuple[Level, list[Row], float]:
    """All methods of one source at one xi, in three runs: in rounds, with a prior, and the ensemble."""
    name, worth = f"{ground.data}-xi-{xi:g}", {"rounds_worth": plan.rounds}
    once = [ground.method("feddistr"), ground.method("fedpft")]
    apart = [{"name": f"{__name__}:Ensemble", "label": "ensemble", **worth}]
    by_rounds = [*(ground.method(m) for m in BASELINES), {"name": "oneshot", **worth}]
    runs = {
        "many": (by_rounds, plan.rounds, ("global",)),
        "once": (once, 1, ("global", "personal_on_global")),
        "apart": (apart, 1, ("personal_on_global",)),
    }
    many, single, members = (
        ran(
            _experiment(f"feddistr-tradeoff-{name}-{part}", ground, task, xi, methods, plan.seeds, rounds, evaluate),
            request.folder / f"{name}-{part}",
            request.callback,
        )
        for part, (methods, rounds, evaluate) in runs.items()
    )
    assert members.path is not None
    files = [members.path / "models" / f"ensemble-seed{seed}.safetensors" for seed in plan.seeds]
    errors: dict[str, Sequence[float]] = {m: _global_errors(many, m) for m in BASELINES}
    for m in ("feddistr", "fedpft"):
        errors |= {m: _errors(single, m), f"{m} (server)": _global_errors(single, m)}
    errors |= {
        "oneshot": _global_errors(many, "oneshot"),
        "ensemble": [voted(ground, data, file) for file in files],
        "alone": _errors(members, "ensemble"),
    }
    first = {m: [1.0 - a for a in _by_round(many, m)[1]] for m in BASELINES}
    level = Level(xi, many, errors, first)
    sent = {m: _sent(many, m) for m in (*BASELINES, "oneshot")}
    sent |= {m: _sent(single, m) for m in ("feddistr", "fedpft")}
    # Nothing but the members has to travel: the voting is done at the server.
    sent["ensemble"] = _ends(members, "ensemble", "bytes.up")
    rows = _level_rows(level, f"{ground.data}, xi {xi:g}", sent)
    for metric, get in (("embeddings.sent", lambda f: f["sent"]), ("embeddings.kept", lambda f: len(f["kept"]))):
        counts = [float(get(info)) for (m, _), info in _facts(single).items() if m == "feddistr"]
        rows.append(over_seeds("feddistr", f"{ground.data}, xi {xi:g}", metric, counts))
    assert many.path is not None
    rows.append(over_seeds("split", f"{ground.data}, xi {xi:g}", "xi.realised", _realised(many.path)))
    return level, rows, float(sum(run.summary["seconds"] for run in (many, single, members)))


def _level_rows(level: Level, where: str, sent: Mapping[str, Sequence[float]]) -> list[Row]:
    rows = []
    for method, errors in level.errors.items():
        if method.endswith(" (server)"):
            rows.append(over_seeds(method.removesuffix(" (server)"), where, "error.server", errors))
            continue
        published = UTILITY_LOSS.get(method) if method != "moon" or level.xi == 0.0 else None
        rows.append(over_seeds(method, where, "error", errors, published))
        rows.append(over_seeds(method, where, "error.first", level.first.get(method, errors)))
        if method in sent:
            rows.append(over_seeds(method, where, "bytes.total", sent[method]))
            rows.append(over_seeds(method, where, "numbers", [b / 4 for b in sent[method]]))
    return rows


def _tradeoff_claims(source: str, found: Sequence[Level]) -> list[Claim]:
    """The paper's three and one of ours, for the clients' models and for the server's."""
    claims = []
    baselines = "FedAvg, FedProx, SCAFFOLD and MOON"
    base, *others = found
    for who in ("feddistr", "feddistr (server)"):
        mine = {level.xi: level.errors[who] for level in found}
        claims += [
            within(
                f"{source}: the error of {who} is flat in xi, within {100 * FLAT:g} points of that at {base.xi:g}",
                {f"xi {level.xi:g}": _minus(mine[level.xi], mine[base.xi]) for level in others},
                FLAT,
            ),
            ordered(
                f"{source}: after one round {who} is ahead of {baselines} by {100 * WIDE:g} points at every xi",
                {
                    f"{m} at xi {level.xi:g}, beyond {100 * WIDE:g}": _minus(level.first[m], mine[level.xi], WIDE)
                    for level in found
                    for m in BASELINES
                },
            ),
            ordered(
                f"{source}: {who} stays ahead of {baselines} at xi = {base.xi:g}",
                {f"{m} above it by": _minus(base.errors[m], mine[base.xi]) for m in BASELINES},
            ),
            ordered(
                f"{source} (not the paper's): {who} errs less than the other methods with one round, Gaussian "
                "mixtures, one-shot averaging and the ensemble, at every xi",
                {
                    f"{m} at xi {level.xi:g} above it by": _minus(level.errors[m], mine[level.xi])
                    for level in found
                    for m in (who.replace("feddistr", "fedpft"), "oneshot", "ensemble")
                },
            ),
        ]
    return claims


ONCE = ("feddistr", "feddistr (server)", "fedpft", "oneshot", "ensemble")
DRAWN = (*ONCE[:2], *BASELINES, *ONCE[2:])
"""In this order, since what is compared with all others has to be seen."""


def _round_curves(level: Level, rounds: int) -> tuple[Curve, ...]:
    """Error by round; what has one round stays where it is."""
    lines = {m: _curve(m, (1, rounds), [level.errors[m]] * 2) for m in ONCE}
    for m in BASELINES:
        by = {t: [1.0 - a for a in values] for t, values in _by_round(level.many, m).items() if t}
        lines[m] = _curve(m, sorted(by), [by[t] for t in sorted(by)])
    return tuple(lines[m] for m in DRAWN)


def _xi_curves(found: Sequence[Level]) -> tuple[Curve, ...]:
    """Last error by xi; levels are so uneven that they stand by number."""
    at = range(1, len(found) + 1)
    return tuple(_curve(m, at, [level.errors[m] for level in found]) for m in DRAWN)


# ---------------------------------------------------------------- what it costs FedAvg (Table 2)
def communication(request: Request) -> Result:
    """Rounds and bytes until FedAvg is as good as FedDistr."""
    plan = COMMUNICATION[request.scale]
    _check(plan.grounds)
    rows: list[Row] = []
    claims: list[Claim] = []
    curves: list[Curve] = []
    seconds = 0.0
    for ground in plan.grounds:
        task = _task(request, ground)
        needed: dict[float, list[int | None]] = {}
        for xi in plan.levels:
            name, where = f"{ground.data}-xi-{xi:g}", f"{ground.data}, xi {xi:g}"
            once, many = (
                ran(
                    _experiment(
                        f"feddistr-communication-{name}-{m}", ground, task, xi, [ground.method(m)], plan.seeds,
                        rounds, evaluate,
                    ),
                    request.folder / f"{name}-{m}",
                    request.callback,
                )
                for m, rounds, evaluate in (
                    ("feddistr", 1, ("global", "personal_on_global")),
                    ("fedavg", plan.rounds, ("global",)),
                )
            )  # fmt: skip
            seconds += once.summary["seconds"] + many.summary["seconds"]
            mine, cost = _sent(once, "feddistr"), _running_bytes(many, "fedavg")
            rows += _feddistr_rows(once, where) + _fedavg_rows(many, where)
            assert many.path is not None
            rows.append(over_seeds("split", where, "xi.realised", _realised(many.path)))
            for whose, metric in (("clients", CLIENTS_ACCURACY), ("server", GLOBAL_ACCURACY)):
                reached = reaching(_by_round(many, "fedavg"), _ends(once, "feddistr", metric))
                if whose == "clients":
                    needed[xi] = reached
                rows += _reached_rows(reached, cost, where, whose, TABLE2.get(xi))
                # Where it was not reached the bytes of all rounds are less than it takes.
                spent = [by[-1] if t is None else by[t - 1] for t, by in zip(reached, cost, strict=True)]
                beyond = [float(plan.rounds if t is None else t - 1) for t in reached]
                short = _short(reached, plan.rounds)
                claims += [
                    counted(
                        f"{where}: FedAvg transmits more until it is as good as FedDistr's {whose}",
                        _minus(spent, mine), f"MB{short}", 1e-6, 3,
                    ),
                    counted(
                        f"{where}: FedAvg needs more than one round to be as good as FedDistr's {whose}",
                        beyond, f"rounds{short}",
                    ),
                ]  # fmt: skip
            by = {t: [1.0 - a for a in v] for t, v in _by_round(many, "fedavg").items() if t}
            curves += [
                _curve(f"fedavg, xi {xi:g}", sorted(by), [by[t] for t in sorted(by)]),
                _curve(f"feddistr, xi {xi:g}", (1, plan.rounds), [_errors(once, "feddistr")] * 2),
            ]
        for less, more in itertools.pairwise(plan.levels):
            claims.append(slower(ground.data, (less, needed[less]), (more, needed[more]), plan.rounds))
    return Result(
        name=request.name,
        scale=request.scale,
        seconds=seconds,
        rows=tuple(rows),
        claims=tuple(claims),
        about=f"{CLIENTS} clients, all in every round, "
        + " and ".join(f"{g.data} ({g.train or 'all'} training images, {g.model})" for g in plan.grounds)
        + f". FedAvg has {plan.rounds} rounds of {_words(plan.grounds[0].local)}; it is as good when the global "
        "model's accuracy on test images is for the first time no less than FedDistr's of the same seed: than the mean "
        "over its clients' models (`rounds.to_clients`), or its server's (`rounds.to_server`). These, and bytes until "
        "then, are over the seeds that got there; `reached` is the share that did. `numbers.once` is what Table 2 is "
        "read to count: parameters that one client of FedAvg sends in one round (11.7M there), and numbers of all "
        "clients' embeddings (30K); bytes are what our wire carried, both directions, all clients. Published rounds "
        f"are until convergence, on another data set. {_classifier(plan.grounds[0])}",
        curves=tuple(curves),
        axes=("round", "error on test images, %"),
        seeds=plan.seeds,
    )


def reaching(accuracy: Mapping[int, Sequence[float]], wanted: Sequence[float]) -> list[int | None]:
    """The first round, from 1, with at least the accuracy wanted, by seed; None if there is none.

    >>> reaching({0: [0.9, 0.1], 1: [0.5, 0.5], 2: [0.8, 0.7]}, [0.75, 0.75])
    [2, None]
    """
    return [
        # A mean over clients is rounded.
        next((t for t in sorted(accuracy) if t and accuracy[t][i] >= a - 1e-9), None)
        for i, a in enumerate(wanted)
    ]


def _running_bytes(found: History, method: str) -> list[list[float]]:
    """Bytes of all rounds up to each, by seed."""
    down, up = (_by_round(found, method, f"bytes.{way}") for way in ("down", "up"))
    table = np.array([[a + b for a, b in zip(down[t], up[t], strict=True)] for t in sorted(down)])
    total: list[list[float]] = table.cumsum(0).T.tolist()
    return total


def _short(reached: Sequence[int | None], rounds: int) -> str:
    """What to say of seeds that did not get there."""
    missed = sum(t is None for t in reached)
    return f" (at least: not reached within {rounds} rounds in {missed} of {len(reached)} seeds)" if missed else ""


def _feddistr_rows(once: History, where: str) -> list[Row]:
    info = list(_facts(once).values())
    numbers = [float(f["width"] * f["sent"]) for f in info]
    return [
        over_seeds("feddistr", where, "rounds.to_clients", [1.0] * len(info), 1.0),
        over_seeds("feddistr", where, "error", _errors(once, "feddistr")),
        over_seeds("feddistr", where, "error.server", _global_errors(once, "feddistr")),
        *(
            over_seeds("feddistr", where, f"bytes.{way}", _ends(once, "feddistr", f"bytes.{way}"))
            for way in ("up", "down")
        ),
        over_seeds("feddistr", where, "bytes.to_clients", _sent(once, "feddistr")),
        over_seeds("feddistr", where, "numbers.once", numbers, FEDDISTR_NUMBERS),
    ]


def _fedavg_rows(many: History, where: str) -> list[Row]:
    assert many.path is not None
    parameters = float(read_json(many.path / "run.json")["parameters"])
    best = [1.0 - max(values) for values in zip(*_by_round(many, "fedavg").values(), strict=True)]
    return [
        over_seeds("fedavg", where, "error", _global_errors(many, "fedavg")),
        over_seeds("fedavg", where, "error.best", best),
        over_seeds("fedavg", where, "numbers.once", [parameters] * len(best), FEDAVG_NUMBERS),
        *(over_seeds("fedavg", where, f"bytes.{way}", _ends(many, "fedavg", f"bytes.{way}")) for way in ("up", "down")),
    ]


def _reached_rows(
    reached: Sequence[int | None], cost: Sequence[Sequence[float]], where: str, whose: str, paper: int | None
) -> list[Row]:
    rows = [over_seeds("fedavg", where, f"reached.to_{whose}", [float(t is not None) for t in reached])]
    there = [(t, by[t - 1]) for t, by in zip(reached, cost, strict=True) if t is not None]
    if there:
        published = None if paper is None or whose != "clients" else float(paper)
        rows.append(over_seeds("fedavg", where, f"rounds.to_{whose}", [float(t) for t, _ in there], published))
        rows.append(over_seeds("fedavg", where, f"bytes.to_{whose}", [spent for _, spent in there]))
    return rows


def counted(text: str, differences: Sequence[float], unit: str, factor: float = 1.0, digits: int = 1) -> Claim:
    """As `decide`; differences that are all alike, as counts and bounds may be, decide by their sign."""
    claim = decide(text, differences, unit, factor, digits)
    if len(differences) > 1 and interval(differences) is None:
        return replace(claim, holds=differences[0] > 0)
    return claim


def slower(
    source: str, less: tuple[float, Sequence[int | None]], more: tuple[float, Sequence[int | None]], rounds: int
) -> Claim:
    """The claim that FedAvg needs more rounds at the smaller xi.

    Where that was not reached it took one round more than there were at least; where the other was not, nothing is
    known.
    """
    text = f"{source}: FedAvg needs more rounds at xi = {less[0]:g} than at {more[0]:g}"
    missed = sum(t is None for t in more[1])
    if missed:
        return Claim(
            text, None, f"at {more[0]:g} not reached within {rounds} rounds in {missed} of {len(more[1])} seeds"
        )
    apart = [
        float((rounds + 1 if a is None else a) - b) for a, b in zip(less[1], more[1], strict=True) if b is not None
    ]
    return counted(text, apart, "rounds" + _short(less[1], rounds))


# ---------------------------------------------------------------- noise on embeddings (Fig. 5)
CLIP = 10.0


@dataclass(frozen=True)
class Noises:
    """A source, xi, sigmas in ascending order, and seeds; `each` images an embedding are looked at for copies."""

    ground: Ground
    xi: float
    sigmas: tuple[float, ...]
    seeds: tuple[int, ...]
    each: int


PRIVACY = {
    "small": Noises(
        replace(DIGITS, settings={"feddistr": {"steps": 60, "images": 90}}),
        0.0,
        (0.01, 0.025, 0.05, 0.1, 2.0),
        (0, 1, 2),
        10,
    ),
    # Noise needs a bound on a label's clusters, which the true number is not.
    "paper": Noises(
        replace(CIFAR100, settings={"feddistr": {**CIFAR100.settings["feddistr"], "m": 2}}),
        0.0,
        (0.01, 0.025, 0.05, 0.1, 2.0),
        FIVE,
        10,
    ),
}
PLAIN = "no noise"


def privacy(request: Request) -> Result:
    """Error, epsilon and nearest copies against noise on embeddings."""
    plan = PRIVACY[request.scale]
    _check([plan.ground])
    task = _task(request, plan.ground)
    data = sources.load(task["data"], request.data_dir)
    feddistr = plan.ground.method("feddistr")
    noisy = {f"sigma {s:g}": {**feddistr, "dp": {"clip": CLIP, "sigma": s}} for s in plan.sigmas}
    methods = [{**options, "label": label} for label, options in ({PLAIN: feddistr} | noisy).items()]
    experiment = _experiment("feddistr-privacy", plan.ground, task, plan.xi, methods, plan.seeds)
    found = ran(experiment, request.folder / "runs", request.callback)
    plain = experiment.methods[0].algorithm
    errors = {m.label: _errors(found, m.label) for m in experiment.methods}
    servers = {m.label: _global_errors(found, m.label) for m in experiment.methods}
    copies, real = _copies(found, plan, data)
    where = f"{plan.ground.data}, xi {plan.xi:g}"
    rows: list[Row] = []
    spent: dict[str, float] = {}
    for m in experiment.methods:
        rows += [
            over_seeds(m.label, where, "error", errors[m.label]),
            over_seeds(m.label, where, "error.server", servers[m.label]),
        ]
        if m.label in copies:
            rows.append(over_seeds(m.label, where, "closest", copies[m.label]))
        epsilon = m.algorithm.spent()["epsilon"]
        if not isinstance(epsilon, str):
            spent[m.label] = epsilon
            rows.append(over_seeds(m.label, where, "epsilon", [epsilon] * len(plan.seeds)))
    if real:
        rows.append(over_seeds("real images", where, "closest", real))
    assert found.path is not None
    rows.append(over_seeds("split", where, "xi.realised", _realised(found.path)))
    whole = Result(
        name=request.name,
        scale=request.scale,
        seconds=float(found.summary["seconds"]),
        rows=tuple(rows),
        claims=tuple(_privacy_claims(plan, errors, servers, copies, real)),
        about=f"{plan.ground.data}, {CLIENTS} clients, xi = {plan.xi:g}; {plain.steps} steps of inversion, "
        f"{plain.images} images of each label. An embedding is cut to distance {CLIP:g} from "
        f"where all begin and gets Gaussian noise of standard deviation {CLIP:g} sigma on every number; without noise "
        "it is not cut, and its count goes with it. "
        + (
            "Epsilon, at delta 1e-5, is for one image of one client, by the accountant."
            if spent
            else "Epsilon needs the extra [dp], which is not installed here: sigma stands alone."
        )
        + f" `closest` is the distance from the nearest of {plan.each} images of each embedding to a private image, in "
        "medians of the distance from one private image to the next; `real images` are as many test images. The "
        "paper's Fig. 5 has no printed numbers.",
        curves=tuple(
            _curve(name, range(len(values)), list(values.values()))
            for name, values in (("clients", errors), ("server", servers))
        ),
        axes=(", ".join(f"{i}: {m.label}" for i, m in enumerate(experiment.methods)), "error on test images, %"),
        seeds=plan.seeds,
    )
    return replace(whole, figures=_against_epsilon(whole, spent, errors, servers)) if spent else whole


def _against_epsilon(
    whole: Result,
    spent: Mapping[str, float],
    errors: Mapping[str, Sequence[float]],
    servers: Mapping[str, Sequence[float]],
) -> tuple[tuple[str, bytes], ...]:
    """Fig. 5: the error against epsilon, and beside it what no noise comes to."""
    labels = sorted(spent, key=lambda label: spent[label])
    at = [spent[label] for label in labels]
    lines = []
    for name, values in (("clients", errors), ("server", servers)):
        lines.append(_curve(name, at, [values[label] for label in labels]))
        lines.append(_curve(f"{name}, {PLAIN}", (at[0], at[-1]), [values[PLAIN]] * 2))
    axes = ("epsilon of one image of one client, at delta 1e-5", whole.axes[1])
    return (("epsilon.svg", plot(replace(whole, curves=tuple(lines), axes=axes), log=True)),)


def _privacy_claims(
    plan: Noises,
    errors: Mapping[str, Sequence[float]],
    servers: Mapping[str, Sequence[float]],
    copies: Mapping[str, Sequence[float]],
    real: Sequence[float],
) -> list[Claim]:
    labels = [PLAIN, *(f"sigma {s:g}" for s in plan.sigmas)]
    claims = []
    for whose, found in (("clients", errors), ("server", servers)):
        claims.append(
            ordered(
                f"{whose}: the more noise, the larger the error",
                {f"from {a} to {b}": _minus(found[b], found[a]) for a, b in itertools.pairwise(labels)},
            )
        )
        claims += [
            decide(f"{whose}: noise of {label} costs accuracy", _minus(found[label], found[PLAIN]))
            for label in labels[1:]
        ]
    if PLAIN in copies:
        claims.append(
            decide(
                "without noise no image that is made is nearer to a private one than unseen real images are",
                _minus(copies[PLAIN], real), "medians", 1.0,
            )
        )  # fmt: skip
    return claims


def _copies(found: History, plan: Noises, data: Dataset) -> tuple[dict[str, list[float]], list[float]]:
    """How near images of the embeddings that were kept, and real ones, come to private images, by label and seed.

    Images are made anew: under noise clients do not tell, and they could not without telling of their images.  Where
    there is so much to show that facts have coordinates instead of embeddings, nothing can be made of them.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prior = plan.ground.method("feddistr").get("prior", priors.BUILT_IN)
    maker = imagery.of(prior, device, data.input_shape, data.levels)
    made: dict[str, list[float]] = {}
    real: list[float] = []
    for (label, seed), info in _facts(found).items():
        if info.get("coordinates") != "embedding":
            continue
        v = torch.tensor(info["embeddings"])[info["kept"]]
        key = Key(seed) / "feddistr" / "copies"
        images = maker.sample(v, plan.each, key / "images").flatten(0, 1)
        made.setdefault(label, []).append(nearest(images, data.x_train))
        if label == PLAIN:
            drawn = torch.randperm(len(data.x_test), generator=(key / "real").generator())[: len(images)]
            real.append(nearest(data.x_test[drawn], data.x_train))
    return made, real


def nearest(images: Tensor, private: Tensor) -> float:
    """The least distance from an image to a private one, in medians of the distance from one of these to the next.

    >>> nearest(torch.tensor([[1.0], [9.0]]), torch.tensor([[0.0], [2.0], [4.0]]))
    0.5
    """
    x, own = images.flatten(1), private.flatten(1)
    among = torch.cdist(own, own).fill_diagonal_(torch.inf).amin(1).median()
    return float(torch.cdist(x, own).amin() / among)
