"""Reproductions on data whose clients are really there, and FLamby's published numbers beside ours.

J. Ogier du Terrail et al., "FLamby: Datasets and Benchmarks for Cross-Silo Federated Learning in Realistic Healthcare
Settings", NeurIPS 2022; numbers of the results in its repository (owkin/FLamby, commit edacf54), a value for each of
five seeds.
"""

import json
import lzma
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from unskew.data import sources
from unskew.data.dataset import Dataset
from unskew.data.named import arrays_of
from unskew.data.text import tokens, vocabulary
from unskew.history import History
from unskew.keys import Key
from unskew.papers.claims import Claim, decide, paired, same
from unskew.papers.result import Result, Row, over_seeds
from unskew.papers.toolkit import (
    Draft,
    ReproductionRequest,
    drawn,
    groups_found,
    merged,
    published,
    rows_of,
    write_npz,
)
from unskew.record.logs import ADAPTED, SERVED, gap_name
from unskew.report.stats import welch
from unskew.run import setup as run_setup

HOSPITALS = ("Cleveland", "Hungary", "Switzerland", "Long Beach V.A.")
SEEDS = (42, 43, 44, 45, 46)
Sites = Sequence[Sequence[float]]
"""A number for each site and seed."""

FLAMBY = ("FedAvg", "FedProx", "Scaffold", "FedAdam", "FedYogi", "FedAdagrad")


# ---------------------------------------------------------------- FLamby
def flamby(name: str, clients: int) -> dict[str, list[list[float]]]:
    """FLamby's results: method -> for each client's test set, then the pooled one, the value of each seed."""
    columns = [*(f"client {k}" for k in range(clients)), "pooled"]
    table = published(f"natural-flamby-{name}")
    return {m: [[row[f"{test} seed {s}"] for s in SEEDS] for test in columns] for m, row in table.items()}


def mean_over_clients(by_client: Sequence[Sequence[float]]) -> list[float]:
    """The mean over clients of each seed."""
    return [statistics.fmean(of_seed) for of_seed in zip(*by_client, strict=True)]


def agreement(text: str, ours: Sequence[float], theirs: Sequence[float]) -> Claim:
    """The claim that two means of independent seeds differ by no more than chance: Welch's 95 % interval has 0 in it.

    That is not the claim that they are equal: a wide interval has zero in it, too, and stands beside the verdict.
    """
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    bounds = welch([(ours, theirs)])
    if bounds is None:
        return Claim(text, abs(difference) < 1e-6, f"{100 * difference:+.2f} points, no spread")
    half = bounds[1] - difference
    evidence = (
        f"{100 * statistics.fmean(ours):.2f} ± {100 * statistics.stdev(ours):.2f} against "
        f"{100 * statistics.fmean(theirs):.2f} ± {100 * statistics.stdev(theirs):.2f}: "
        f"{100 * difference:+.2f} ∓ {100 * half:.2f} at 95 %"
    )
    return Claim(text, abs(difference) <= half, evidence)


def of_sites(
    history: History, method: str, seeds: Sequence[int], sites: int, name: str | None = None
) -> list[list[float]]:
    """The headline of each site's own model on its own test data: for each site the value of each seed."""
    by_seed = [[*history.client_values(method, name, s).values()] for s in seeds]
    return [[of[k] for of in by_seed] for k in range(sites)]


def on_all_sites(model: nn.Module, data: Dataset) -> list[float]:
    """A model's accuracy on each site's own test data."""
    assert data.owners is not None
    assert data.own_test is not None
    assert isinstance(data.x_train, torch.Tensor)
    rows = [data.own_test & (data.owners == k) for k in range(len(data.client_names))]
    with torch.no_grad():
        return [float((model(data.x_train[r]).argmax(1) == data.y_train[r]).double().mean()) for r in rows]


def site_rows(
    method: str,
    setting: str,
    ours: Sites,
    theirs: Sites,
    names: Sequence[str] = HOSPITALS,
    mean: str = "mean accuracy",
    each: str = "accuracy, {}",
) -> list[Row]:
    """A row for the mean over sites and one for each, FLamby's beside ours; `theirs` may be empty."""
    published = mean_over_clients(theirs[: len(ours)]) if theirs else []
    rows = [over_seeds(method, setting, mean, mean_over_clients(ours), _mean(published))]
    for k, name in enumerate(names):
        rows.append(over_seeds(method, setting, each.format(name), ours[k], _mean(theirs[k]) if theirs else None))
    return rows


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def heart(request: ReproductionRequest) -> Result:
    """Four hospitals, by FLamby's protocol."""
    draft = Draft.of(request)
    theirs, base = flamby("heart", len(HOSPITALS)), draft["experiment"]
    base = merged(base, {"task": _plain(request, "heart")})
    seeds = base["seeds"]
    parts = ("federated", "alone", "pooled")
    histories = {part: draft.run(part, base, draft[part]) for part in parts}
    data = run_setup.prepare(draft.experiment("federated", base, draft["federated"])).dataset
    federated = histories["federated"]
    ours = {m: of_sites(federated, m, seeds, len(HOSPITALS)) for m in federated.methods}
    ours["alone"] = of_sites(histories["alone"], "alone", seeds, len(HOSPITALS))
    pooled = [on_all_sites(histories["pooled"].model("Pooled", seed=s), data) for s in seeds]
    ours["Pooled"] = [list(of_site) for of_site in zip(*pooled, strict=True)]
    for k, name in enumerate(HOSPITALS):
        crossed = [on_all_sites(histories["alone"].model("alone", k, s), data) for s in seeds]
        ours[f"{name}'s model"] = [list(of_site) for of_site in zip(*crossed, strict=True)]
        theirs[f"{name}'s model"] = theirs.pop(f"Local {k}")
    theirs["alone"] = [theirs[f"{name}'s model"][k] for k, name in enumerate(HOSPITALS)]
    protocol = ("Pooled", "alone", *FLAMBY, *(f"{name}'s model" for name in HOSPITALS))
    for method in protocol:
        draft.rows += site_rows(method, "FLamby's protocol", ours[method], theirs[method])
    for method in federated.methods:
        if method not in protocol:
            draft.rows += site_rows(method, "beside it", ours[method], [])
    _heart_claims(draft, ours, theirs, protocol)
    from_theirs = alone_from_their_starts(draft, base)
    draft.rows += site_rows("alone, FLamby's five starts", "FLamby's protocol", from_theirs, theirs["alone"])
    for k, name in enumerate(HOSPITALS):
        text = f"{name} alone, from FLamby's own initial weights, is what FLamby's is"
        draft.claims.append(same(text, paired(from_theirs[k], theirs["alone"][k]), 0.02))
    return draft.result()


def alone_from_their_starts(draft: Draft, base: Mapping[str, Any]) -> list[list[float]]:
    """Training alone from FLamby's initial weights, nothing else changed: for each hospital the value of each start."""
    by_start = []
    for start in SEEDS:
        change = {"seeds": [start], "task": {"model_options": {"start": start}}}
        history = draft.run(f"start-{start}", base, draft["alone"], change)
        by_start.append([values[0] for values in of_sites(history, "alone", [start], len(HOSPITALS))])
    return [list(of_site) for of_site in zip(*by_start, strict=True)]


def _heart_claims(
    draft: Draft, ours: Mapping[str, Sites], theirs: Mapping[str, Sites], protocol: Sequence[str]
) -> None:
    """The means agree with FLamby's; who is better off alone; and what the rate has to do with it."""
    mean = {m: mean_over_clients(values) for m, values in ours.items()}
    for m in protocol:
        text = f"{m}: the mean over hospitals differs from FLamby's by no more than chance"
        draft.claims.append(agreement(text, mean[m], mean_over_clients(theirs[m][: len(HOSPITALS)])))
    for text, one, other in (
        ("Cleveland's model, trained alone, beats FedAvg in the mean (FLamby: .722 against .685)",
         "Cleveland's model", "FedAvg"),
        ("FedAvg at ten times FLamby's rate is better: its rate is what holds it back", "FedAvg at .01", "FedAvg"),
    ):  # fmt: skip
        draft.above(text, mean[one], mean[other])
    for k, name in enumerate(HOSPITALS):
        text = f"{name} is better off alone than with FedAvg, both by FLamby's protocol"
        draft.above(text, ours["alone"][k], ours["FedAvg"][k])
    for method in ("FedAvg", "Ditto", "HCCT", "FedDif", "FedDW", "Cyclic"):
        text = f"{method} at .01 ends above training alone in the mean over hospitals"
        draft.above(text, mean[f"{method} at .01"], mean["alone at .01"])


# ---------------------------------------------------------------- Fed-TCGA-BRCA
REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")


def tcga_brca(request: ReproductionRequest) -> Result:
    """Six regions, by FLamby's protocol."""
    draft = Draft.of(request)
    theirs, base = flamby("tcga_brca", len(REGIONS)), draft["experiment"]
    base = merged(base, {"task": _plain(request, "tcga_brca")})
    seeds = base["seeds"]
    by_method: dict[str, list[list[float]]] = {}
    for part in ("federated", "alone", "scaled"):
        history = draft.run(part, base, draft[part])
        by_method |= {m: of_sites(history, m, seeds, len(REGIONS), "personal.concordance") for m in history.methods}
    theirs["alone"] = [theirs.pop(f"Local {k}")[k] for k in range(len(REGIONS))]
    for method, ours in by_method.items():
        published_here = theirs.get(method, [])
        setting = "FLamby's protocol" if published_here else "age scaled"
        draft.rows += site_rows(method, setting, ours, published_here, REGIONS, "mean concordance", "{}")
    mean = {m: mean_over_clients(values) for m, values in by_method.items()}
    for method in ("Pooled", "FedAdam", "FedAdagrad"):
        text = f"{method}: the mean over regions differs from FLamby's by no more than chance"
        draft.claims.append(agreement(text, mean[method], mean_over_clients(theirs[method][: len(REGIONS)])))
    lottery, scaled = statistics.stdev(mean["FedAvg"]), statistics.stdev(mean["FedAvg, age scaled, .1"])
    draft.claims.append(
        Claim(
            "age unscaled makes FedAvg a lottery: scaled, its spread over seeds is less than half at the same rate",
            scaled < lottery / 2,
            f"standard deviation {lottery:.3f} unscaled, {scaled:.3f} scaled",
        )
    )
    for method in ("FedAvg", "FedAdam", "Ditto", "Cyclic"):
        text = f"{method} is worth it for the mean region against training alone, age scaled"
        draft.above(text, mean[f"{method}, age scaled"], mean["alone, age scaled"], "concordance", 1.0, "+.3f")
    return draft.result()


def _plain(request: ReproductionRequest, name: str) -> dict[str, str]:
    """Task settings for a data set of FLamby's as it is, without the scaling that it has by name."""
    root = request.data_dir or os.environ.get("UNSKEW_DATA", "data")
    return write_npz(request.folder / "data" / f"{name}.npz", arrays_of(name, root))


# ---------------------------------------------------------------- a language model, film by film
FILM = 20
"""Reviews from which on a film is a client."""
TOKENS = 80


class FilmReader(nn.Module):
    """A BERT of two layers for token ids (N, tokens), 0 is padding; with the weights of a file."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, weights: str = "", words: int = 5000) -> None:
        from transformers import BertConfig, BertForSequenceClassification  # takes seconds

        super().__init__()
        sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"intermediate_size": 128, "vocab_size": words, "max_position_embeddings": input_shape[0]}
        sizes["num_labels"] = num_classes
        self.bert = BertForSequenceClassification(BertConfig(**sizes))
        if weights:
            self.load_state_dict(torch.load(weights, weights_only=True))

    def forward(self, x: torch.Tensor) -> Any:
        """Logits (N, classes)."""
        return self.bert(x, attention_mask=(x > 0).long()).logits


def pretrained(x: torch.Tensor, y: torch.Tensor, file: Path) -> str:
    """Train a reader on public reviews, two epochs of AdamW, into a file, unless it is there already."""
    if file.is_file():
        return str(file)
    with Key(0).ambient():
        network = FilmReader(tuple(x.shape[1:]), 2)
        optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
        for rows in torch.split(torch.cat([torch.randperm(len(x)) for _ in range(2)]), 32):
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    torch.save(network.state_dict(), file)
    return str(file)


def films(request: ReproductionRequest, number: int, public: int) -> dict[str, Any]:
    """Task settings for IMDB by film: `number` drawn films are clients, and a reader knows `public` reviews of others.

    Words are those of the public reviews; test rows are reviews of films that no client has.
    """
    root = Path(request.data_dir or os.environ.get("UNSKEW_DATA", "data"))
    with lzma.open(root / "imdb" / "imdb.json.xz", "rt", encoding="utf8") as f:
        book = json.load(f)
    film, y = np.array(book["film_train"]), np.array(book["y_train"])
    names, counts = np.unique(film, return_counts=True)
    chosen = np.sort((Key(0) / "films").numpy().choice(names[counts >= FILM], number, replace=False))
    own, others = np.flatnonzero(np.isin(film, chosen)), np.flatnonzero(~np.isin(film, names[counts >= FILM]))[:public]
    ids = vocabulary([book["x_train"][i] for i in others], 5000)
    x, known = (tokens([book["x_train"][i] for i in rows], ids, TOKENS) for rows in (own, others))
    arrays = {
        "x_train": x.numpy(), "y_train": y[own], "client_train": np.searchsorted(chosen, film[own]),
        "clients": np.array([f"tt{name:07d}" for name in chosen]), "classes": np.array(["negative", "positive"]),
        "x_test": tokens(book["x_test"][:1000], ids, TOKENS).numpy(), "y_test": np.array(book["y_test"][:1000]),
    }  # fmt: skip
    task = write_npz(request.folder / "data" / "films.npz", arrays)
    weights = pretrained(known, torch.from_numpy(y[others]), request.folder / "data" / "reader.pt")
    return {"task": {**task, "model": f"{__name__}:FilmReader", "model_options": {"weights": weights}}}


def imdb_films(request: ReproductionRequest) -> Result:
    """All weights against adapters, of which both halves travel, or one."""
    draft = Draft.of(request)
    base = merged(draft["experiment"], films(request, draft["films"], draft["public"]))
    for part in ("whole", "adapters", "alone"):
        history = draft.run(part, base, draft[part])
        draft.rows += rows_of(history, ("global.accuracy", "personal.accuracy.mean", "personal.accuracy.worst_decile"))
        for row in rows_of(history, ("bytes.total",)):
            kilobytes = [n / draft["experiment"]["rounds"] / 1000 for n in row.seeds]
            draft.add(row.method, row.setting, "kB a round", kilobytes)
    data, options = sources.load(base["task"]["data"]), base["task"]["model_options"]
    with torch.no_grad():
        right = FilmReader(data.input_shape, 2, **options).eval()(data.x_test).argmax(1) == data.y_test
    draft.add("as pre-trained", draft.rows[0].setting, "global.accuracy", [float(right.double().mean())])
    values = {(r.method, r.metric): r.seeds for r in draft.rows}
    own, both = "personal.accuracy.mean", "FedAvg of adapters"
    for one, other in (("FedAvg", "alone"), (both, "FedAvg"), ("FFA-LoRA", both), ("FedSA-LoRA", both)):
        draft.above(f"{one} is better than {other} for the films' own reviews", values[one, own], values[other, own])
    return draft.result()


# ---------------------------------------------------------------- unseen clients and known groups
def _suite(request: ReproductionRequest) -> Result:
    """Every method for clients that trained and for unseen ones, and its groups beside the known ones."""
    draft = Draft.of(request)
    base = draft["experiment"]
    task = {"task": drawn(request, base["task"]["data"], None)}
    compared = draft.experiment("", base, task)
    history = draft.complete(compared, "")
    h = history.headline
    own, served, adapted = h.own, f"{SERVED}.{h.name}.mean", f"{ADAPTED}.{h.name}.mean"
    metrics = (h.shared, f"{h.shared}.mean_last_fifth", own, h.worst, served, adapted, "bytes.total")
    gaps = (gap_name(models, h.name) for models in (SERVED, ADAPTED))
    draft.rows += rows_of(history, (*metrics, *gaps))
    rand = groups_found(history)
    draft.rows += [over_seeds(m, draft.rows[0].setting, "adjusted Rand", values) for m, values in rand.items()]
    sign = 1.0 if h.higher else -1.0
    shown = "points" if h.percent else h.label, h.scale, "+.3f" if h.bounded and not h.percent else "+.2f"
    values = {(r.method, r.metric): [sign * v for v in r.seeds] for r in draft.rows}
    for m in compared.methods:
        if (m.label, served) not in values:
            continue
        mine = {metric: values[m.label, metric] for metric in (own, served, adapted)}
        if m.name not in ("independent", "centralised"):
            text = f"{m.label} is worth it against training alone for clients that trained"
            draft.above(text, mine[own], values["alone", own], *shown)
        if m.name != "independent":
            text = f"{m.label} serves unseen clients worse than clients that trained"
            draft.above(text, mine[own], mine[served], *shown)
            draft.above(f"adapting helps unseen clients of {m.label}", mine[adapted], mine[served], *shown)
    for method, indices in rand.items():
        text = f"{method} finds the two known groups (adjusted Rand above .5)"
        draft.claims.append(decide(text, [v - 0.5 for v in indices], "of the index", 1.0, "+.2f"))
    return draft.result()


mnist_writers = landmine = wisdm = parkinsons = shakespeare = _suite
