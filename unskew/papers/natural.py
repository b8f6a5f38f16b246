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

from unskew.data.federated import FederatedData
from unskew.data.inputs import tokens, vocabulary
from unskew.decide.sites import sites_of
from unskew.history import History
from unskew.keys import Key
from unskew.papers.claims import Claim
from unskew.papers.study import Draft, merged, published, rows_of, write_npz
from unskew.report.stats import welch

SEEDS = (42, 43, 44, 45, 46)
NEAR = 0.02
"""Two points: within them a number is FLamby's."""

BySeed = Sequence[float]


# ---------------------------------------------------------------- FLamby
def named(draft: Draft, sites: Sequence[BySeed]) -> dict[str, BySeed]:
    """Values by seed of the mean over sites and of each site, under their names in rows, from those of each site."""
    mean, each = draft["called"]
    by_site = {each.format(name): of for name, of in zip(draft["sites"], sites, strict=True)}
    return {mean: [statistics.fmean(of_seed) for of_seed in zip(*sites, strict=True)], **by_site}


def flamby(draft: Draft) -> dict[str, dict[str, BySeed]]:
    """FLamby's results by method, as `named`; "alone" is each site's own "Local" model on its own test set."""
    sites, table = draft["sites"], published(draft.name.replace("/", "-flamby-"))
    tests = [[f"client {k} seed {s}" for s in SEEDS] for k in range(len(sites))]
    values = {m: [[row[column] for column in test] for test in tests] for m, row in table.items()}
    local = [values.pop(f"Local {k}") for k in range(len(sites))]
    values |= {f"{name}'s model": of for name, of in zip(sites, local, strict=True)}
    return {m: named(draft, of) for m, of in {**values, "alone": [of[k] for k, of in enumerate(local)]}.items()}


def agreement(text: str, ours: BySeed, theirs: BySeed) -> Claim:
    """The claim that the means of independent seeds agree: Welch's 95 % interval of their difference is within NEAR.

    That it has zero in it alone would say no more than that it is wide.
    """
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    low, high = welch([(ours, theirs)]) or (difference, difference)
    means = [f"{100 * statistics.fmean(of):.2f} ± {100 * statistics.stdev(of):.2f}" for of in (ours, theirs)]
    evidence = f"{' against '.join(means)}: {100 * difference:+.2f} ∓ {50 * (high - low):.2f} at 95 %"
    holds = True if low >= -NEAR and high <= NEAR else False if low > NEAR or high < -NEAR else None
    return Claim(text, holds, f"{evidence}, {100 * NEAR:g} allowed")


def of_sites(draft: Draft, history: History, method: str) -> dict[str, BySeed]:
    """The headline of each site's own model on its own test data, as `named`."""
    by_seed = [history.client_values(method, seed=seed).values() for seed in history.record.seeds]
    return named(draft, list(zip(*by_seed, strict=True)))


def on_all_sites(
    draft: Draft, history: History, method: str, fed: FederatedData, client: int | None = None
) -> dict[str, BySeed]:
    """A model's accuracy on each site's own test data, as `named`."""
    x, y = fed.dataset.x_train, fed.dataset.y_train
    models = [history.model(method, client, seed) for seed in history.record.seeds]
    with torch.no_grad():
        right = [[(model(x[rows]).argmax(1) == y[rows]).double() for model in models] for rows in fed.clients.test]
    return named(draft, [[float(of.mean()) for of in of_site] for of_site in right])


def beside_flamby(draft: Draft, ours: Mapping[str, Mapping[str, BySeed]]) -> None:
    """Add the rows of each method beside FLamby's means over seeds, and the claims that means over sites are its."""
    theirs, mean = flamby(draft), draft["called"][0]
    for m in sorted(ours, key=lambda m: m not in theirs):
        setting = "FLamby's protocol" if m in theirs else draft["otherwise"]
        for name, values in ours[m].items():
            draft.add(m, setting, name, values, statistics.fmean(theirs[m][name]) if m in theirs else None)
    for m in draft.settings.get("judged", [m for m in ours if m in theirs]):
        text = f"{m}: the mean over {draft['over']} is FLamby's within two points"
        draft.claims.append(agreement(text, ours[m][mean], theirs[m][mean]))


def heart(draft: Draft) -> None:
    """Four hospitals, by FLamby's protocol."""
    hospitals, base = draft["sites"], draft.ground()
    federated, alone, pooled = (draft.run(part, base, draft[part]) for part in ("federated", "alone", "pooled"))
    fed = sites_of(draft.experiment("federated", base, draft["federated"])).fed
    ours = {m: of_sites(draft, run, m) for run in (federated, alone) for m in run.methods}
    ours["Pooled"] = on_all_sites(draft, pooled, "Pooled", fed)
    ours |= {f"{name}'s model": on_all_sites(draft, alone, "alone", fed, k) for k, name in enumerate(hospitals)}
    beside_flamby(draft, ours)
    for name, row in zip(hospitals, [*ours["alone"]][1:], strict=True):
        text = f"{name} is better off alone than with FedAvg, both by FLamby's protocol"
        draft.above(text, ours["alone"][row], ours["FedAvg"][row])


def tcga_brca(draft: Draft) -> None:
    """Six regions, by FLamby's protocol."""
    base = draft.ground()
    runs = [draft.run(part, base, draft[part]) for part in ("federated", "alone", "scaled")]
    beside_flamby(draft, {m: of_sites(draft, run, m) for run in runs for m in run.methods})


# ---------------------------------------------------------------- a language model, film by film
FILM = 20
"""Reviews from which on a film is a client."""
TOKENS, WORDS = 80, 5000
"""Length of a review in words, and words that are known."""


class FilmReader(nn.Module):
    """A BERT of two layers for token ids (N, tokens), with 0 for padding; its weights are read from a file."""

    def __init__(self, input_shape: tuple[int, ...], num_classes: int, weights: str = "") -> None:
        from transformers import BertConfig, BertForSequenceClassification  # takes seconds

        super().__init__()
        sizes: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        sizes |= {"intermediate_size": 128, "vocab_size": WORDS, "max_position_embeddings": input_shape[0]}
        sizes["num_labels"] = num_classes
        self.bert = BertForSequenceClassification(BertConfig(**sizes))
        if weights:
            self.load_state_dict(torch.load(weights, weights_only=True))

    def forward(self, x: torch.Tensor) -> Any:
        """Logits (N, classes)."""
        return self.bert(x, attention_mask=(x > 0).long()).logits


def pretrain(x: torch.Tensor, y: torch.Tensor, file: Path) -> None:
    """Train a reader on public reviews, two epochs of AdamW, and write it to a file."""
    with Key(0).ambient():
        network = FilmReader(tuple(x.shape[1:]), 2)
        optimiser = torch.optim.AdamW(network.parameters(), lr=1e-3)
        for rows in torch.split(torch.cat([torch.randperm(len(x)) for _ in range(2)]), 32):
            loss = nn.functional.cross_entropy(network(x[rows]), y[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    torch.save(network.state_dict(), file)


def films(draft: Draft) -> dict[str, Any]:
    """Task settings for IMDB by film: of so many films each is a client, and a reader is pretrained on other reviews.

    The vocabulary is that of the public reviews; test rows are reviews of films that no client has.
    """
    root = Path(draft.data_dir or os.environ.get("UNSKEW_DATA", "data"))
    with lzma.open(root / "imdb" / "imdb.json.xz", "rt", encoding="utf8") as f:
        book = json.load(f)
    film, y = np.array(book["film_train"]), np.array(book["y_train"])
    names, counts = np.unique(film, return_counts=True)
    large = names[counts >= FILM]
    chosen = np.sort((Key(0) / "films").numpy().choice(large, draft["films"], replace=False))
    own, others = np.flatnonzero(np.isin(film, chosen)), np.flatnonzero(~np.isin(film, large))[: draft["public"]]
    ids = vocabulary([book["x_train"][i] for i in others], WORDS)
    x, known = (tokens([book["x_train"][i] for i in rows], ids, TOKENS) for rows in (own, others))
    arrays = {
        "x_train": x.numpy(), "y_train": y[own], "client_train": np.searchsorted(chosen, film[own]),
        "clients": np.array([f"tt{name:07d}" for name in chosen]), "classes": np.array(["negative", "positive"]),
        "x_test": tokens(book["x_test"][:1000], ids, TOKENS).numpy(), "y_test": np.array(book["y_test"][:1000]),
    }  # fmt: skip
    task = write_npz(draft.folder / "data" / "films.npz", arrays)
    weights = draft.folder / "data" / "reader.pt"
    if not weights.is_file():
        pretrain(known, torch.from_numpy(y[others]), weights)
    return {"task": {**task, "model": f"{__name__}:FilmReader", "model_options": {"weights": str(weights)}}}


def imdb_films(draft: Draft) -> None:
    """Federated training of all weights, of adapters, and of one half of the adapters."""
    base = merged(draft["experiment"], films(draft))
    runs = [draft.run(part, base, draft[part]) for part in ("whole", "adapters", "alone")]
    for history in runs:
        draft.rows += rows_of(history, draft["metrics"])
        for row in rows_of(history, ("bytes.total",)):
            kilobytes = [n / draft["experiment"]["rounds"] / 1000 for n in row.seeds]
            draft.add(row.method, row.setting, "kB a round", kilobytes)
    _, before = runs[0].curve("FedAvg")[0]  # the model is the same under all seeds
    draft.add("as pre-trained", draft.rows[0].setting, "global.accuracy", [before])
