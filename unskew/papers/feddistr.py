"""Reproductions of FedDistr: its published numbers, and ours beside them.

The method's page says what the paper leaves open and how it was read.

Error      the paper's utility loss: 1 - accuracy on test images of all labels, absolute, not relative to training in
           one place.  A method with one model has that model's error.  For FedDistr and Gaussian mixtures `error` is
           the mean over the clients' own classifiers, trained on data from others and on own images, and
           `error.server` is that of the server's classifier, trained only on data from the clients.
xi         average entanglement of five clients; the value reached with whole images is shown beside the one asked for.
           Base distributions are labels at `small`, CIFAR-100's subclasses at `paper`.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors.torch
import torch
from annotated_types import Ge
from torch import Tensor

from unskew import models, priors
from unskew.algorithms.fedavg import ModelMessage, ModelReply
from unskew.algorithms.oneshot import longer
from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.data.rows import as_tensor
from unskew.errors import DataError
from unskew.experiment.config import Experiment
from unskew.history import History
from unskew.info import Embeddings
from unskew.keys import Key
from unskew.local import imagery
from unskew.papers.claims import LEVEL, Claim, counted, decide, ordered, paired, within
from unskew.papers.result import Result, plot
from unskew.papers.toolkit import (
    Draft,
    ReproductionRequest,
    Settings,
    by_round,
    drawn,
    final,
    merged,
    percent,
    pixels,
    published,
    write_npz,
)
from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, sgd, step
from unskew.record.logs import rows as log
from unskew.report.stats import Curve
from unskew.run.folder import read_json
from unskew.tree import Params

TABLE2 = published("feddistr-table2")
"""Table 2, by xi.  FedAvg's parameters are a ResNet-18 with 1,000 outputs, so what one client sends in one round;
FedDistr's are read as all clients' embeddings together."""

UTILITY_LOSS = {method: cells["utility loss"] / 100 for method, cells in published("feddistr-text").items()}

BASELINES = ("fedavg", "fedprox", "scaffold", "moon")

FLAT = 0.05
"""Largest difference of two errors that the paper calls "about" the same."""

WIDE = 0.10
"""A wide margin."""


# ---------------------------------------------------------------- data
def ground(draft: Draft, name: str) -> Settings:
    """The experiment's settings on a ground, its images drawn; of CIFAR-100 those of the ground's subclasses.

    Raises:
        DataError: If the images are not there, or too few of them.
    """
    table = merged(draft["experiment"], draft["grounds"][name])
    task, draw = table["task"], table.pop("draw", None)
    if "subclasses" in table:
        data = sources.load(task["data"], draft.request.data_dir)
        arrays = superclasses(data, table.pop("subclasses"), table.pop("per_subclass"))
        task |= write_npz(draft.request.folder / "data" / f"{task['data']}.npz", arrays)
    else:
        task |= drawn(draft.request, task["data"], draw)
    return table


def superclasses(data: Dataset, subclasses: Sequence[Sequence[int]], enough: int) -> dict[str, Any]:
    """Images of the subclasses: a superclass is the label, and its subclass the domain."""
    wanted = torch.tensor(subclasses).flatten()
    have = int(torch.bincount(data.y_train, minlength=100)[wanted].min())
    if have < enough:
        raise DataError(
            f"the paper's scale needs all of CIFAR-100, {enough} training images of a class, and the data folder "
            f"has {have}; put the whole set there, or use --scale small"
        )
    of = {fine: (coarse, j) for coarse, pair in enumerate(subclasses) for j, fine in enumerate(pair)}
    out: dict[str, Any] = {"domains": np.array(["first", "second"])}
    for part, x, y in (("train", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        rows = torch.isin(y, wanted).nonzero()[:, 0]
        places = np.array([of[fine] for fine in y[rows].tolist()])
        out |= {f"x_{part}": pixels(data, x[rows]), f"y_{part}": places[:, 0]}
        if part == "train":
            out["domain_train"] = places[:, 1]
    return out


def _prior(ground: Mapping[str, Any]) -> str:
    return str(ground["methods"]["feddistr"].get("prior", priors.BUILT_IN))


# ---------------------------------------------------------------- the one-shot ensemble
@dataclass(frozen=True)
class SentParameters:
    """The common initial model, and the parameters that clients sent, under CLIENT/NAME."""

    initial: Params
    members: Params


@dataclass(frozen=True)
class Ensemble:
    """Clients train to the end once and send their models, which vote (Guha et al. 2019).

    An ensemble is not one set of parameters, so it is not a method for general use: it serves all its members in one,
    which only `voted` can read, and must not be evaluated as a global model.

    Attributes:
        local, rounds_worth: As in one-shot averaging (`unskew.algorithms.oneshot`).
    """

    local: SgdConfig = SgdConfig()
    rounds_worth: Annotated[int, Ge(1)] = 20

    def init(self, params: Params, fed: Federation) -> SentParameters:
        """Start before any client has sent a model."""
        return SentParameters(params, {})

    def round(self, state: SentParameters, fed: Federation) -> Plan[SentParameters]:
        """Train and collect in round 1, do nothing later."""
        if fed.round > 1:
            return state
        replies = yield from ask(self.train, dict.fromkeys(fed.sample(), ModelMessage(state.initial)))
        return SentParameters(state.initial, {f"{c}/{n}": t for c, r in replies.items() for n, t in r.params.items()})

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        """Train from the common model; this client keeps what it sends."""
        params = yield from sgd(msg.params, longer(self.local, self.rounds_worth))
        return ModelReply(params, me.n), params

    def personalise(self, me: Me, params: Params | None, memory: Params | None) -> Step[Params]:
        """Return this client's member: the model it trained by itself."""
        yield from ()
        return memory or me.initial

    def serve(self, state: SentParameters, client: ClientId | None) -> Params | None:
        """All members for the saved result; for a client its own."""
        return state.members if client is None else None


def voted(task: Mapping[str, Any], data: Dataset, file: Path) -> float:
    """Error of the members in `file` on the test set: the class with the largest mean probability."""
    with Key(0).ambient():
        options = task.get("model_options", {})
        network = models.build(task["model"], data.input_shape, data.num_classes, **options).eval()
    tensors = safetensors.torch.load(file.read_bytes())
    total = torch.zeros(len(data.y_test), data.num_classes)
    for c in sorted({name.partition("/")[0] for name in tensors}):
        network.load_state_dict({n.partition("/")[2]: t for n, t in tensors.items() if n.startswith(f"{c}/")})
        with torch.no_grad():
            total += torch.cat([network(x).softmax(1) for x in torch.split(as_tensor(data.x_test), 500)])
    return float((total.argmax(1) != data.y_test).double().mean())


# ---------------------------------------------------------------- runs and their numbers
def at_xi(
    draft: Draft, folder: str, ground: Mapping[str, Any], xi: float, *layers: Mapping[str, Any]
) -> tuple[Experiment, History]:
    """An experiment on a ground at one xi, with the methods named in the layers' `compare`, and its run."""
    table = merged(ground, {"split": {"xi": xi}}, *layers)
    methods = table.pop("compare")
    # Worker processes would each make the images that all clients have in common, and those are most of the work.
    imagines = any(table["methods"][m].get("name", m) in ("feddistr", "fedpft") for m in methods)
    if imagines and not torch.cuda.is_available():
        table["runtime"] = {"executor": "sequential"}
    compared = draft.experiment(folder, table, methods=methods)
    return compared, draft.complete(compared, folder)


def run_parts(draft: Draft, ground: Mapping[str, Any], where: str, xi: float) -> Iterable[History]:
    """The reproduction's parts at one xi, each in a run of its own."""
    return [at_xi(draft, f"{where}-xi-{xi:g}-{part}", ground, xi, layer)[1] for part, layer in draft["parts"].items()]


GLOBAL_ACCURACY, CLIENTS_ACCURACY = "global.accuracy", "personal_on_global.accuracy.mean"


def both_errors(history: History, method: str) -> dict[str, tuple[float, ...]]:
    """The mean error over the clients' final models, and that of the server's, by seed, under the method's names."""
    names = {method: CLIENTS_ACCURACY, f"{method} (server)": GLOBAL_ACCURACY}
    return {name: tuple(1.0 - a for a in final(history, method, metric)) for name, metric in names.items()}


def errors_by_round(history: History, method: str) -> dict[int, list[float]]:
    """The global model's errors after each round, by seed."""
    return {t: [1.0 - a for a in v] for t, v in sorted(by_round(history, method).items()) if t}


def add_realised(draft: Draft, history: History, where: str) -> None:
    """Add the average entanglement reached with whole images."""
    seeds = read_json(history.folder / "partition.json")["seeds"]
    draft.add("split", where, "xi.realised", [float(fed["stats"]["entanglement"]) for fed in seeds.values()])


def shown(history: History) -> dict[tuple[str, int], Mapping[str, Any]]:
    """The info FedDistr reported in its round, by label and seed."""
    every = log(history.folder, "info")
    return {(r["method"], r["seed"]): r["info"] for r in every if r["round"] == 1 and r["type"] == Embeddings.__name__}


def level_line(rounds: int, errors: Sequence[float]) -> Curve:
    """A level curve, for a method with a single round."""
    return percent((1, rounds), [errors] * 2)


# ---------------------------------------------------------------- utility loss against rounds
@dataclass(frozen=True, eq=False)
class Level:
    """Results on one source at one xi.

    Attributes:
        xi: The entanglement asked for.
        errors: Final errors, by name and seed; "feddistr (server)" and "fedpft (server)" are the server's classifiers.
        by_round: Errors after each round of the methods with many.
    """

    xi: float
    errors: Mapping[str, Sequence[float]]
    by_round: Mapping[str, Mapping[int, Sequence[float]]]


def tradeoff(request: ReproductionRequest) -> Result:
    """One round of FedDistr, many of its rivals and one of cheaper ones, at four levels of xi."""
    draft = Draft.of(request)
    rounds, (x, y) = draft["parts"]["many"]["rounds"], draft["axes"]
    grounds = draft.grounds(draft["compare_on"], partial(ground, draft))
    for name, table in grounds.items():
        levels = [_level(draft, table, name, xi) for xi in draft["xi"]]
        draft.claims += tradeoff_claims(name, levels)
        for level in levels:
            # Level for methods with a single round.
            lines = {
                m: percent(by, list(by.values()))
                if (by := level.by_round.get(m))
                else level_line(rounds, level.errors[m])
                for m in DRAWN
            }
            if draft.curves:
                drawing = plot(f"{request.name}: {name}, xi {level.xi:g}", request.scale, lines, (x, y))
                draft.figures.append((f"rounds-{name}-xi-{level.xi:g}.svg", drawing))
            draft.curves = draft.curves or lines
        lines = {m: percent(range(1, len(levels) + 1), [level.errors[m] for level in levels]) for m in DRAWN}
        drawing = plot(f"{request.name}: {name}", request.scale, lines, ("xi, by its place in the list", y))
        draft.figures.append((f"xi-{name}.svg", drawing))
    return draft.result()


def _level(draft: Draft, ground: Mapping[str, Any], name: str, xi: float) -> Level:
    """All methods of one source at one xi, in three runs: in rounds, with a prior, and the ensemble."""
    once, many, members = run_parts(draft, ground, name, xi)
    data = sources.load(ground["task"]["data"], draft.request.data_dir)
    files = [members.folder / "models" / f"ensemble-seed{seed}.safetensors" for seed in ground["seeds"]]
    rounds = {m: errors_by_round(many, m) for m in BASELINES}
    errors: dict[str, Sequence[float]] = {m: by[max(by)] for m, by in rounds.items()}
    errors |= {**both_errors(once, "feddistr"), **both_errors(once, "fedpft")}
    errors |= {
        "oneshot": [1.0 - a for a in final(many, "oneshot", GLOBAL_ACCURACY)],
        "ensemble": [voted(ground["task"], data, file) for file in files],
        "alone": [1.0 - a for a in final(members, "ensemble", CLIENTS_ACCURACY)],
    }
    sent = {m: final(many, m, "bytes.total") for m in (*BASELINES, "oneshot")}
    sent |= {m: final(once, m, "bytes.total") for m in ("feddistr", "fedpft")}
    # Nothing but the members has to travel: the voting is done at the server.
    sent["ensemble"] = final(members, "ensemble", "bytes.up")
    where = f"{name}, xi {xi:g}"
    for method, values in errors.items():
        if method.endswith(" (server)"):
            draft.add(method.removesuffix(" (server)"), where, "error.server", values)
            continue
        printed = UTILITY_LOSS.get(method) if method != "moon" or xi == 0.0 else None
        draft.add(method, where, "error", values, printed)
        draft.add(method, where, "error.first", rounds[method][1] if method in rounds else values)
        if method in sent:
            draft.add(method, where, "bytes.total", sent[method])
    infos = [info for (m, _), info in shown(once).items() if m == "feddistr"]
    draft.add("feddistr", where, "embeddings.sent", [float(info["sent"]) for info in infos])
    draft.add("feddistr", where, "embeddings.kept", [float(len(info["kept"])) for info in infos])
    add_realised(draft, many, where)
    return Level(xi, errors, rounds)


def tradeoff_claims(source: str, levels: Sequence[Level]) -> list[Claim]:
    """The paper's three claims and one of ours, for the clients' models and for the server's."""
    claims = []
    baselines = "FedAvg, FedProx, SCAFFOLD and MOON"
    base = levels[0]
    for who in ("feddistr", "feddistr (server)"):
        mine = {level.xi: level.errors[who] for level in levels}
        claims += [
            flat_claim(source, who, mine),
            ordered(
                f"{source}: after one round {who} is ahead of {baselines} by {100 * WIDE:g} points at every xi",
                {
                    f"{m} at xi {level.xi:g}, beyond {100 * WIDE:g}": paired(level.by_round[m][1], mine[level.xi], WIDE)
                    for level in levels
                    for m in BASELINES
                },
            ),
            ordered(
                f"{source}: {who} stays ahead of {baselines} at xi = {base.xi:g}",
                {f"{m} above it by": paired(base.errors[m], mine[base.xi]) for m in BASELINES},
            ),
            ordered(
                f"{source} (not the paper's): {who} errs less than the other methods with one round, Gaussian "
                "mixtures, one-shot averaging and the ensemble, at every xi",
                {
                    f"{m} at xi {level.xi:g} above it by": paired(level.errors[m], mine[level.xi])
                    for level in levels
                    for m in (who.replace("feddistr", "fedpft"), "oneshot", "ensemble")
                },
            ),
        ]
    return claims


ONCE = ("feddistr", "feddistr (server)", "fedpft", "oneshot", "ensemble")
DRAWN = (*ONCE[:2], *BASELINES, *ONCE[2:])
"""Methods in drawing order: the method compared with all others must be visible."""


# ---------------------------------------------------------------- the error against xi alone (Fig. 4)
def flat(request: ReproductionRequest) -> Result:
    """FedDistr's error at several levels of xi, without the methods it is compared with."""
    draft = Draft.of(request)
    levels, grounds = draft["xi"], draft.grounds(draft["compare_on"], partial(ground, draft))
    for name, table in grounds.items():
        errors: dict[str, dict[float, Sequence[float]]] = {}
        for xi in levels:
            (once,) = run_parts(draft, table, name, xi)
            where, infos = f"{name}, xi {xi:g}", shown(once)
            for method in once.methods:
                both = both_errors(once, method)
                for who, values in both.items():
                    errors.setdefault(who, {})[xi] = values
                draft.add(method, where, "error", both[method], UTILITY_LOSS["feddistr"])
                draft.add(method, where, "error.server", both[f"{method} (server)"])
                kept = [float(len(info["kept"])) / info["sent"] for (m, _), info in infos.items() if m == method]
                draft.add(method, where, "embeddings.kept_share", kept)
            add_realised(draft, once, where)
        draft.claims += [flat_claim(name, who, by_xi) for who, by_xi in errors.items()]
        draft.claims += [flat_claim(name, who, errors[who], LEVEL) for who in once.methods]
        lines = {who: percent(range(1, len(levels) + 1), list(by_xi.values())) for who, by_xi in errors.items()}
        draft.curves = draft.curves or lines
    return draft.result()


def flat_claim(source: str, who: str, errors: Mapping[float, Sequence[float]], margin: float = FLAT) -> Claim:
    """The claim that errors by xi are that at the first xi, within a margin."""
    base, *others = errors
    return within(
        f"{source}: the error of {who} is flat in xi, within {100 * margin:g} points of that at {base:g}",
        {f"xi {xi:g}": paired(errors[xi], errors[base]) for xi in others},
        margin,
    )


# ---------------------------------------------------------------- the cost for FedAvg (Table 2)
def communication(request: ReproductionRequest) -> Result:
    """Rounds and bytes until FedAvg is as good as FedDistr."""
    draft = Draft.of(request)
    rounds, grounds = draft["parts"]["fedavg"]["rounds"], draft.grounds(draft["compare_on"], partial(ground, draft))
    curves: dict[str, Curve] = {}
    for name, table in grounds.items():
        needed: dict[float, list[int | None]] = {}
        for xi in draft["xi"]:
            once, many = run_parts(draft, table, name, xi)
            where, printed = f"{name}, xi {xi:g}", TABLE2.get(f"{xi:g}", {})
            mine, by = both_errors(once, "feddistr"), errors_by_round(many, "fedavg")
            _sent_once(draft, once, mine, where)
            _sent_by_fedavg(draft, many, by, where)
            for whose, errors in zip(("clients", "server"), mine.values(), strict=True):
                first = reaching(by, errors)
                _reached(draft, once, many, first, where, whose, printed if whose == "clients" else {})
                needed.setdefault(xi, first)
            curves[f"fedavg, xi {xi:g}"] = percent(by, list(by.values()))
            curves[f"feddistr, xi {xi:g}"] = level_line(rounds, mine["feddistr"])
        for less, more in itertools.pairwise(draft["xi"]):
            draft.claims.append(slower(name, (less, needed[less]), (more, needed[more]), rounds))
    draft.curves = curves
    return draft.result()


def _sent_once(draft: Draft, once: History, errors: Mapping[str, Sequence[float]], where: str) -> None:
    """Add what FedDistr sends, and its errors."""
    numbers = [float(info["width"] * info["sent"]) for info in shown(once).values()]
    printed = next(iter(TABLE2.values()))  # the same at every xi
    for metric, values, paper in (
        ("rounds.to_clients", [1.0] * len(numbers), printed["feddistr rounds"]),
        ("error", errors["feddistr"], None),
        ("error.server", errors["feddistr (server)"], None),
        ("bytes.up", final(once, "feddistr", "bytes.up"), None),
        ("bytes.down", final(once, "feddistr", "bytes.down"), None),
        ("bytes.to_clients", final(once, "feddistr", "bytes.total"), None),
        ("numbers.once", numbers, printed["feddistr parameters"]),
    ):
        draft.add("feddistr", where, metric, values, paper)


def _sent_by_fedavg(draft: Draft, many: History, errors: Mapping[int, Sequence[float]], where: str) -> None:
    """Add what FedAvg sends, and its errors."""
    parameters = float(read_json(many.folder / "run.json")["parameters"])
    best = [min(values) for values in zip(*errors.values(), strict=True)]
    draft.add("fedavg", where, "error", errors[max(errors)])
    draft.add("fedavg", where, "error.best", best)
    printed = next(iter(TABLE2.values()))["fedavg parameters"]
    draft.add("fedavg", where, "numbers.once", [parameters] * len(best), printed)
    for metric in ("bytes.up", "bytes.down"):
        draft.add("fedavg", where, metric, final(many, "fedavg", metric))
    add_realised(draft, many, where)


def _reached(
    draft: Draft,
    once: History,
    many: History,
    first: Sequence[int | None],
    where: str,
    whose: str,
    printed: Mapping[str, float],
) -> None:
    """Add rows and claims about the rounds in which FedAvg was as good as FedDistr's clients, or as its server."""
    rounds, cost = draft["parts"]["fedavg"]["rounds"], running_bytes(many, "fedavg")
    draft.add("fedavg", where, f"reached.to_{whose}", [float(t is not None) for t in first])
    there = [(t, by[t - 1]) for t, by in zip(first, cost, strict=True) if t is not None]
    if there:
        draft.add("fedavg", where, f"rounds.to_{whose}", [float(t) for t, _ in there], printed.get("fedavg rounds"))
        draft.add("fedavg", where, f"bytes.to_{whose}", [b for _, b in there])
    # Where it was not reached the bytes of all rounds are less than it takes.
    spent = [by[-1] if t is None else by[t - 1] for t, by in zip(first, cost, strict=True)]
    short, sent = _short(first, rounds), final(once, "feddistr", "bytes.total")
    more = f"{where}: FedAvg transmits more until it is as good as FedDistr's {whose}"
    draft.claims.append(counted(more, paired(spent, sent), f"MB{short}", 1e-6, "+.3f"))


def reaching(errors: Mapping[int, Sequence[float]], wanted: Sequence[float]) -> list[int | None]:
    """The first round with at most the error wanted, by seed; None if there is none.

    >>> reaching({1: [0.5, 0.5], 2: [0.2, 0.3]}, [0.25, 0.25])
    [2, None]
    """
    return [
        # A mean over clients is rounded.
        next((t for t in sorted(errors) if errors[t][i] <= e + 1e-9), None)
        for i, e in enumerate(wanted)
    ]


def running_bytes(history: History, method: str) -> list[list[float]]:
    """Bytes of all rounds up to each, by seed."""
    down, up = (by_round(history, method, f"bytes.{way}") for way in ("down", "up"))
    table = np.array([[a + b for a, b in zip(down[t], up[t], strict=True)] for t in sorted(down)])
    total: list[list[float]] = table.cumsum(0).T.tolist()
    return total


def _short(reached: Sequence[int | None], rounds: int) -> str:
    """A note on seeds that did not reach the error; empty if all did."""
    missed = sum(t is None for t in reached)
    return f" (at least: not reached within {rounds} rounds in {missed} of {len(reached)} seeds)" if missed else ""


def slower(
    source: str, less: tuple[float, Sequence[int | None]], more: tuple[float, Sequence[int | None]], rounds: int
) -> Claim:
    """The claim that FedAvg needs more rounds at the smaller xi.

    If FedAvg did not get there at the smaller xi, it needs at least one round more than were run; if not at the larger,
    nothing is known.
    """
    text = f"{source}: FedAvg needs more rounds at xi = {less[0]:g} than at {more[0]:g}"
    missed = sum(t is None for t in more[1])
    if missed:
        seeds = f"{missed} of {len(more[1])} seeds"
        return Claim(text, None, f"at {more[0]:g} not reached within {rounds} rounds in {seeds}")
    apart = [
        float((rounds + 1 if a is None else a) - b) for a, b in zip(less[1], more[1], strict=True) if b is not None
    ]
    return counted(text, apart, "rounds" + _short(less[1], rounds))


# ---------------------------------------------------------------- noise on embeddings (Fig. 5)
PLAIN = "no noise"


def privacy(request: ReproductionRequest) -> Result:
    """Error, epsilon and nearest copies against noise on embeddings."""
    draft = Draft.of(request)
    name, xi = draft["compare_on"], draft["xi"]
    table = ground(draft, name)
    options = {**table["methods"]["feddistr"], "name": "feddistr"}
    noisy = {f"sigma {s:g}": {**options, "dp": {"clip": draft["clip"], "sigma": s}} for s in draft["sigmas"]}
    methods = {PLAIN: options, **noisy}
    compared, history = at_xi(draft, "runs", table, xi, {"methods": methods, "compare": list(methods)})
    where = f"{name}, xi {xi:g}"
    every = {label: tuple(both_errors(history, label).values()) for label in methods}
    both = {who: {label: values[i] for label, values in every.items()} for i, who in enumerate(("clients", "server"))}
    copies, real = _copies(draft, history, table)
    spent: dict[str, float] = {}
    for m in compared.methods:
        draft.add(m.label, where, "error", both["clients"][m.label])
        draft.add(m.label, where, "error.server", both["server"][m.label])
        if m.label in copies:
            draft.add(m.label, where, "closest", copies[m.label])
        epsilon = m.method.spent().epsilon
        if not isinstance(epsilon, str):
            spent[m.label] = epsilon
            draft.add(m.label, where, "epsilon", [epsilon] * len(compared.seeds))
    if real:
        draft.add("real images", where, "closest", real)
    add_realised(draft, history, where)
    if PLAIN in copies:
        text = "without noise no image that is made is nearer to a private one than unseen real images are"
        draft.claims.append(decide(text, paired(copies[PLAIN], real), "medians", 1.0))
    draft.curves = {who: percent(range(len(values)), list(values.values())) for who, values in both.items()}
    if spent:
        draft.figures.append(("epsilon.svg", _against_epsilon(draft, spent, both)))
    else:
        request.notes.append("Epsilon needs the extra [dp], which is not installed here: sigma stands alone.")
    return draft.result()


def _against_epsilon(
    draft: Draft, spent: Mapping[str, float], both: Mapping[str, Mapping[str, Sequence[float]]]
) -> bytes:
    """Fig. 5: the error against epsilon, with the error without noise beside it."""
    labels = sorted(spent, key=lambda label: spent[label])
    at = [spent[label] for label in labels]
    lines = {}
    for who, values in both.items():
        lines[who] = percent(at, [values[label] for label in labels])
        lines[f"{who}, {PLAIN}"] = percent((at[0], at[-1]), [values[PLAIN]] * 2)
    axes = ("epsilon of one image of one client, at delta 1e-5", draft["axes"][1])
    return plot(draft.request.name, draft.request.scale, lines, axes, log=True)


def _copies(draft: Draft, history: History, ground: Mapping[str, Any]) -> tuple[dict[str, list[float]], list[float]]:
    """Least distances of generated images, and of real ones, to private images, by label and seed.

    Images are generated anew: under noise clients do not report distances, which would reveal their images.  If the
    info has only coordinates of the embeddings, because there are many, nothing can be generated.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = sources.load(ground["task"]["data"], draft.request.data_dir)
    maker = imagery.of(_prior(ground), device, data.input_shape, data.inputs.levels)
    private = as_tensor(data.x_train)
    copies: dict[str, list[float]] = {}
    real: list[float] = []
    for (label, seed), info in shown(history).items():
        if info.get("coordinates") != "embedding":
            continue
        v = torch.tensor(info["embeddings"])[info["kept"]]
        key = Key(seed) / "feddistr" / "copies"
        images = maker.sample(v, draft["each"], key / "images").flatten(0, 1)
        copies.setdefault(label, []).append(nearest(images, private))
        if label == PLAIN:
            rows = torch.randperm(len(data.x_test), generator=(key / "real").generator())[: len(images)]
            real.append(nearest(data.x_test[rows], private))
    return copies, real


def nearest(images: Tensor, private: Tensor) -> float:
    """The least distance from an image to a private one, in medians of the distance from one of these to the next.

    >>> nearest(torch.tensor([[1.0], [9.0]]), torch.tensor([[0.0], [2.0], [4.0]]))
    0.5
    """
    x, own = images.flatten(1), private.flatten(1)
    among = torch.cdist(own, own).fill_diagonal_(torch.inf).amin(1).median()
    return float(torch.cdist(x, own).amin() / among)
