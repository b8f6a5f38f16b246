"""Reproductions on data with natural clients, and FLamby's published numbers beside ours.

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
from unskew.data.inputs import tokens, vocabulary
from unskew.history import History
from unskew.keys import Key
from unskew.papers.claims import Claim, decide, paired
from unskew.papers.study import Draft, ReproductionRequest, merged, published, rows_of, write_npz
from unskew.report.stats import welch
from unskew.run import setup as run_setup

SEEDS = (42, 43, 44, 45, 46)
NEAR = 0.02
"""Two points: within them a number is FLamby's."""

Sites = Sequence[Sequence[float]]
"""A number for each site and seed."""


# ---------------------------------------------------------------- FLamby
def flamby(name: str, clients: int) -> dict[str, list[list[float]]]:
    """FLamby's results: method -> values by seed, for each client's test set."""
    tests, table = [f"client {k}" for k in range(clients)], published(f"natural-flamby-{name}")
    return {m: [[row[f"{test} seed {s}"] for s in SEEDS] for test in tests] for m, row in table.items()}


def agreement(text: str, ours: Sequence[float], theirs: Sequence[float]) -> Claim:
    """The claim that the means of independent seeds agree: Welch's 95 % interval of their difference is within NEAR.

    That it has zero in it alone would say no more than that it is wide.
    """
    difference, bounds = statistics.fmean(ours) - statistics.fmean(theirs), welch([(ours, theirs)])
    half = 0.0 if bounds is None else bounds[1] - difference
    least, most = abs(difference) - half, abs(difference) + half
    means = [f"{100 * statistics.fmean(of):.2f} ± {100 * statistics.stdev(of):.2f}" for of in (ours, theirs)]
    evidence = f"{' against '.join(means)}: {100 * difference:+.2f} ∓ {100 * half:.2f} at 95 %, {100 * NEAR:g} allowed"
    return Claim(text, True if most <= NEAR else False if least > NEAR else None, evidence)


def of_sites(history: History, method: str, name: str | None = None) -> list[list[float]]:
    """The headline of each site's own model on its own test data: values by seed, for each site."""
    by_seed = [history.client_values(method, name, seed).values() for seed in history.record.seeds]
    return [list(of_site) for of_site in zip(*by_seed, strict=True)]


def on_all_sites(history: History, method: str, data: Dataset, client: int | None = None) -> list[list[float]]:
    """A model's accuracy on each site's own test data: values by seed, for each site."""
    assert data.owners is not None
    assert data.own_test is not None
    assert isinstance(data.x_train, torch.Tensor)
    rows = [data.own_test & (data.owners == k) for k in range(len(data.client_names))]
    models = [history.model(method, client, seed) for seed in history.record.seeds]
    with torch.no_grad():
        return [
            [float((model(data.x_train[r]).argmax(1) == data.y_train[r]).double().mean()) for model in models]
            for r in rows
        ]


def by_seed(sites: Sites) -> list[float]:
    """The mean over sites of each seed."""
    return [statistics.fmean(of_seed) for of_seed in zip(*sites, strict=True)]


def add_sites(draft: Draft, method: str, setting: str, ours: Sites, theirs: Sites) -> None:
    """Add a row for the mean over sites and one for each, beside FLamby's mean over seeds where there is one."""
    mean, each = draft["called"]
    names = [mean, *(each.format(name) for name in draft["sites"])]
    printed = [statistics.fmean(of) for of in (by_seed(theirs), *theirs)] if theirs else [None] * len(names)
    for name, values, paper in zip(names, [by_seed(ours), *ours], printed, strict=True):
        draft.add(method, setting, name, values, paper)


def beside_flamby(
    draft: Draft, ours: Mapping[str, Sites], theirs: Mapping[str, Sites], else_: str, sites: str, judged: Sequence[str]
) -> None:
    """Add the rows of each method, and the claims that means over sites are FLamby's."""
    for m in sorted(ours, key=lambda m: m not in theirs):
        add_sites(draft, m, "FLamby's protocol" if m in theirs else else_, ours[m], theirs.get(m, ()))
    for m in judged:
        text = f"{m}: the mean over {sites} is FLamby's within two points"
        draft.claims.append(agreement(text, by_seed(ours[m]), by_seed(theirs[m])))


def heart(draft: Draft) -> None:
    """Four hospitals, by FLamby's protocol."""
    hospitals, base = draft["sites"], draft.ground()
    theirs = flamby("heart", len(hospitals))
    runs = {part: draft.run(part, base, draft[part]) for part in ("federated", "alone", "pooled")}
    data = run_setup.prepare(draft.experiment("federated", base, draft["federated"])).dataset
    ours = {m: of_sites(runs["federated"], m) for m in runs["federated"].methods}
    ours |= {"alone": of_sites(runs["alone"], "alone"), "Pooled": on_all_sites(runs["pooled"], "Pooled", data)}
    for k, name in enumerate(hospitals):
        ours[f"{name}'s model"] = on_all_sites(runs["alone"], "alone", data, k)
        theirs[f"{name}'s model"] = theirs.pop(f"Local {k}")
    theirs["alone"] = [theirs[f"{name}'s model"][k] for k, name in enumerate(hospitals)]
    beside_flamby(draft, ours, theirs, "beside it", "hospitals", [m for m in ours if m in theirs])
    for k, name in enumerate(hospitals):
        text = f"{name} is better off alone than with FedAvg, both by FLamby's protocol"
        draft.above(text, ours["alone"][k], ours["FedAvg"][k])
    # Training alone from FLamby's initial weights, nothing else changed, start by start.
    starts = {start: {"seeds": [start], "task": {"model_options": {"start": start}}} for start in SEEDS}
    each = [of_sites(draft.run(f"start-{k}", base, draft["alone"], of), "alone") for k, of in starts.items()]
    from_theirs = [[values[k][0] for values in each] for k in range(len(hospitals))]
    add_sites(draft, "alone, FLamby's five starts", "FLamby's protocol", from_theirs, theirs["alone"])
    for k, name in enumerate(hospitals):
        text = f"{name} alone, from FLamby's own initial weights, is what FLamby's is"
        draft.claims.append(decide(text, paired(from_theirs[k], theirs["alone"][k]), within=NEAR))


def tcga_brca(draft: Draft) -> None:
    """Six regions, by FLamby's protocol."""
    base, theirs = draft.ground(), flamby("tcga_brca", len(draft["sites"]))
    theirs["alone"] = [theirs.pop(f"Local {k}")[k] for k in range(len(draft["sites"]))]
    runs = [draft.run(part, base, draft[part]) for part in ("federated", "alone", "scaled")]
    ours = {m: of_sites(run, m, "personal.concordance") for run in runs for m in run.methods}
    beside_flamby(draft, ours, theirs, "age scaled", "regions", ("Pooled", "FedAdam", "FedAdagrad"))


# ---------------------------------------------------------------- a language model, film by film
FILM = 20
"""Reviews from which on a film is a client."""
TOKENS = 80


class FilmReader(nn.Module):
    """A BERT of two layers for token ids (N, tokens), with 0 for padding; its weights are read from a file."""

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
    """Train a reader on public reviews, two epochs of AdamW, and write it to a file, unless that exists."""
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
    """Task settings for IMDB by film: `number` drawn films are clients, and a reader is pretrained on `public` other
    reviews.

    The vocabulary is that of the public reviews; test rows are reviews of films that no client has.
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


def imdb_films(draft: Draft) -> None:
    """Federated training of all weights, of adapters, and of one half of the adapters."""
    base = merged(draft["experiment"], films(draft.request, draft["films"], draft["public"]))
    for part in ("whole", "adapters", "alone"):
        history = draft.run(part, base, draft[part])
        draft.rows += rows_of(history, draft["metrics"])
        for row in rows_of(history, ("bytes.total",)):
            kilobytes = [n / draft["experiment"]["rounds"] / 1000 for n in row.seeds]
            draft.add(row.method, row.setting, "kB a round", kilobytes)
    data, options = sources.load(base["task"]["data"]), base["task"]["model_options"]
    with torch.no_grad():
        right = FilmReader(data.input_shape, 2, **options).eval()(data.x_test).argmax(1) == data.y_test
    draft.add("as pre-trained", draft.rows[0].setting, "global.accuracy", [float(right.double().mean())])
