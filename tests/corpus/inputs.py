"""The small inputs of the corpus, made from keyed draws."""

import functools
from typing import Any

import numpy as np
import pandas

import unskew as us

LOCAL = us.SgdConfig(lr=0.1, batch_size=8)
SITES = ("Basel", "Bern", "Chur")
Case = dict[str, Any]
TINY = """
name = "tiny"
rounds = 2
seeds = [0, 1]
task = { data = "digits", model = "logistic" }
split = { name = "dirichlet", num_clients = 4, alpha = 0.5, min_samples = 10 }
local = { lr = 0.1, local_epochs = 1, batch_size = 64 }
[[methods]]
name = "fedavg"
[[methods]]
name = "fedprox"
"""


def draws(key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=key))


@functools.cache
def rows(classes: int = 3, n: int = 72) -> tuple[np.ndarray, np.ndarray]:
    """Five numbers a row, and classes that follow from them, mostly."""
    rng = draws(1)
    x = rng.normal(size=(n, 5)).round(3).astype("float32")
    score = x[:, :classes] + 0.5 * rng.normal(size=(n, classes))
    return x, score.argmax(1)


@functools.cache
def images(n: int = 48, side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = draws(2)
    y = np.arange(n) % 3
    x = rng.integers(0, 90, (n, side, side), dtype=np.uint8)
    for c in range(3):
        x[y == c, 2 * c : 2 * c + 2] += 120
    return x, y


@functools.cache
def table() -> pandas.DataFrame:
    """Sixty patients of three hospitals: numbers, a word, gaps, a day, who it is, and what is to be learned."""
    rng = draws(4)
    age, dose = rng.integers(20, 90, 60), (1000 * rng.random(60)).round(1)
    columns = {
        "age": age,
        "dose": np.where(rng.random(60) < 0.1, np.nan, dose),
        "ward": rng.choice(["north", "south", "west"], 60),
        "smoker": rng.random(60) < 0.4,
        "ill": np.where(age + 30 * rng.normal(size=60) > 55, "yes", "no"),
        "site": np.repeat(SITES, (24, 20, 16)),
        "patient": [f"p{i // 2:02d}" for i in range(60)],
        "day": pandas.date_range("2024-01-01", periods=60).strftime("%Y-%m-%d"),
        "days": (100 * rng.random(60)).round(1) + 1,
        "died": rng.integers(0, 2, 60),
        "part": np.where(np.arange(60) % 4 == 3, "test", "train"),
    }
    return pandas.DataFrame(columns)


def base(**more: Any) -> Case:
    split = us.Dirichlet(alpha=1.0, num_clients=5, min_samples=6)
    own = {"data": rows(), "model": "logistic", "split": split, "rounds": 2, "local": LOCAL}
    return {"methods": "fedavg", **own, "runtime": us.Runtime(executor="sequential"), **more}
