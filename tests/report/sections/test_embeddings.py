"""The report's part about one round of embeddings, from a run folder made by hand: 3 clients, made by hand.

Embeddings have two numbers.  Client 0 has labels 0, 0 and 1, client 1 labels 0 and 1, client 2 label 2:

    number   0       1       2       3       4       5
    at       (0, 0)  (4, 0)  (0, 3)  (0, 1)  (0, 6)  (8, 8)
    client   0       0       0       1       1       2
    label    0       0       1       0       1       2

Matched are 0 with 3 at distance 1 and 2 with 4 at distance 3; half the distance of client 0's two of label 0 is 2.
"""

import base64
import dataclasses
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import by_hand
import numpy as np
import pytest
from PIL import Image
from records import rewrite
from torch import Tensor

from unskew import priors
from unskew.errors import DataError
from unskew.info import Embeddings, adapter
from unskew.keys import Key
from unskew.local import imagery
from unskew.report import charts, read, tables
from unskew.report.section import Chart, Section
from unskew.report.sections import embeddings, generated_images

Info = dict[str, Any]
Rows = Callable[[Chart], list[dict[str, Any]]]
SEEN = {"server": "each participant's embeddings", "clients": "the embeddings that were kept"}
SAID: Info = {"warnings": [], "ignored": []}
ROUND: Info = {
    "embeddings": [[0.0, 0.0], [4.0, 0.0], [0.0, 3.0], [0.0, 1.0], [0.0, 6.0], [8.0, 8.0]],
    "coordinates": "embedding",
    "labels": [0, 0, 1, 0, 1, 2],
    "counts": [20, 10, 5, 12, 3, 30],
    "owners": [0, 0, 0, 1, 1, 2],
    "sent": 6,
    "distance": "l2",
    "threshold": 2.0,
    "pairs": [[0, 3, 1.0], [2, 4, 3.0]],
    "sets": [[0, 3], [1], [2], [4], [5]],
    "kept": [0, 1, 2, 4, 5],
    "closest": {"0": 0.9, "1": 0.7, "2": None},
    "trained_at": "each client",
    "privacy": {"epsilon": "no guarantee", **SEEN},
    **SAID,
}
COVERED: Info = {"privacy": {"epsilon": 8.0, "delta": 1e-5, "covers": "the embeddings of one client", **SEEN}}


def kind(info: Info) -> str:
    """The type of a row."""
    return {"embeddings": "Embeddings", "components": "Mixtures"}.get(next(iter(info)), "Info")


Told = Callable[[int, int], Info]


def first_round(info: Info = ROUND) -> Told:
    return lambda seed, t: info if t == 1 else SAID


ACCURACIES = {"feddistr": lambda t: 0.8 if t else 0.1, "fedavg": lambda t: 0.1 + 0.2 * min(t, 4)}
"""By round: FedAvg is as good after the fourth."""
BYTES = {"feddistr": lambda t: 4000 if t == 1 else 0, "fedavg": lambda t: 400_000 if t else 0}


def make_run(
    folder: Path, methods: dict[str, Told] | None = None, rounds: int = 5, seeds: Sequence[int] = (0,),
    settings: str = "",
) -> Path:  # fmt: skip
    """A run's folder; `methods` give the facts of a seed and round, and beside them there is FedAvg."""
    methods = {"feddistr": first_round()} if methods is None else methods
    metrics, kept, ledger = [], [], []
    for seed in seeds:
        for m in (*methods, "fedavg"):
            for t in range(rounds + 1):
                at = {"method": m, "seed": seed, "round": t}
                value, sent = ACCURACIES.get(m, lambda t: 0.5)(t), BYTES.get(m, lambda t: 4000 * (t == 1))(t)
                for name, number in (("global.accuracy", value), ("bytes.up", sent)):
                    metrics.append({**at, "name": name, "value": number, "weight": 1.0})
                if sent:
                    ledger.append({**at, "hop": 0, "src": 1, "dst": 0, "kind": "control", "bytes": sent})
                if t and m in methods:
                    reported = methods[m](seed, t)
                    kept.append({**at, "type": kind(reported), "info": reported})
    table = "".join(f'[[methods]]\nlabel = "{m}"\n{settings}\n' for m in methods)
    by_hand.write(
        folder, (*methods, "fedavg"), seeds, [[40, 0], [0, 40], [20, 20]], table, command="unskew run feddistr"
    )
    rewrite(folder, metrics=metrics, info=kept, transfers=ledger)
    return folder


def uploads(info: Info = ROUND) -> Embeddings:
    sent: Embeddings = adapter(Embeddings).validate_json(json.dumps(info), strict=True)
    return sent


@dataclasses.dataclass(frozen=True)
class Toy:
    """A prior whose images are all as bright as the first number of their embedding, in eighths."""

    width: int = 2
    image_shape: tuple[int, int, int] = (1, 8, 8)

    def encode(self, images: Tensor) -> Tensor:
        return priors.fitted(images, self.image_shape)

    def sample(
        self, embeddings: Tensor, count: int, key: Key, guidance: float | None = None, steps: int | None = None
    ) -> Tensor:
        if embeddings.shape[1] != self.width:
            raise DataError(f"embeddings must have width {self.width}, got {embeddings.shape[1]}")
        return (embeddings[:, :1] / 8).clamp(0, 1)[:, :, None, None, None].expand(-1, count, 1, 8, 8)


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(priors, "load", lambda source, device="cpu": Toy())
    imagery._loaded.cache_clear()
    yield
    imagery._loaded.cache_clear()


def made(folder: Path, options: Info | None = None) -> Chart | str:
    record = read(folder)
    sent = tables.reported(record, "feddistr", Embeddings)[0][1]
    return generated_images.gallery("feddistr", 0, sent, options or {})


# ---------------------------------------------------------------- the section
def _section(folder: Path, method: str = "feddistr") -> Section:
    section = embeddings.section(read(folder), [method], charts.colours([method]))
    assert section is not None
    return section


def test_a_round_is_drawn_though_later_rounds_have_nothing_to_show(tmp_path: Path) -> None:
    section = _section(make_run(tmp_path / "run"))
    assert "6 embeddings of 3 clients, 1 of 2 matched pairs taken for the same." in section.lead
    # Of five whose label occurs again all but number 2; label 0 has two others of five, label 1 has one.
    assert "For 80 % the nearest one has the same label, by chance 32 %." in section.lead
    titles = " | ".join(chart.title for chart in section.charts)
    for title in ("Embeddings by client", "What clients have in common", "Images by class"):
        assert title in titles


def test_the_weakest_guarantee_and_the_nearest_image_of_all_seeds_are_told(tmp_path: Path) -> None:
    def told(seed: int, t: int) -> Info:
        privacy = {**COVERED["privacy"], "epsilon": 8.0 + seed}
        found = {**ROUND, "privacy": privacy, "closest": {"0": 0.9 - 0.2 * seed, "1": None}}
        return found if t == 1 else SAID

    (row,) = _section(make_run(tmp_path / "run", {"feddistr": told}, seeds=(0, 1))).tables[0].entries
    assert row.cells[:2] == ("0.70 (client 0)", "ε = 9 at δ = 1e-05. Covers the embeddings of one client.")


# ---------------------------------------------------------------- alignment
def test_matches_have_their_distance_and_what_came_of_them() -> None:
    assert [(m["pair"], m["distance"], m["state"]) for m in embeddings.matched(uploads())] == [
        ("0: 0 and 1 (0, 3)", 1, "joined"), ("1: 0 and 1 (2, 4)", 3, "too far apart")
    ]  # fmt: skip
    near = uploads({**ROUND, "threshold": 5.0})
    assert embeddings.matched(near)[1]["state"] == "near, its set has that client"
    through = uploads({**ROUND, "sets": [[0, 3], [1], [2, 4], [5]]})
    assert embeddings.matched(through)[1]["state"] == "joined", "through a third client's"


# ---------------------------------------------------------------- the plane
def test_embeddings_of_two_numbers_lose_nothing_in_the_plane(rows: Rows) -> None:
    chart = embeddings.plane_chart("feddistr", uploads())
    assert chart is not None
    assert "The plane holds 100 % of the variance" in chart.caption
    points = [r for r in rows(chart) if "client" in r]
    assert [r["client"] for r in points] == ["0", "0", "0", "1", "1", "2"]
    assert [r["open"] for r in points] == [False, False, False, True, False, False]
    at = np.array([[r["x"], r["y"]] for r in points])
    sent = np.array(ROUND["embeddings"])
    assert np.linalg.norm(at[:, None] - at, axis=2) == pytest.approx(
        np.linalg.norm(sent[:, None] - sent, axis=2), abs=1e-3
    )


# ---------------------------------------------------------------- pictures
def test_pictures_are_made_of_the_embeddings(tmp_path: Path) -> None:
    """Class 0 has three embeddings, so four images of each are made; that of 10 images is at 4, half bright."""
    chart = made(make_run(tmp_path / "run"))
    assert isinstance(chart, Chart)
    for text in ("class 2, client 2", "client 1, n 12, merged"):
        assert text in chart.html
    (png,) = re.findall(r'base64,([^"]*)"><small>client 0, n 10<', chart.html)
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(png))))
    assert pixels.shape == (8, 4 * 9, 3)
    assert (pixels[:, :8] == 128).all()


def test_of_classes_and_embeddings_beyond_the_limit_those_with_the_most_images_are_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Client 0 has 30 images of label 0 and 5 of label 1, client 1 has 12 and 3, client 2 has 30 of label 2."""
    monkeypatch.setattr(generated_images, "MOST_ROWS", 2)
    monkeypatch.setattr(generated_images, "MOST_BLOCKS", 2)
    rows, labels = generated_images.by_label(uploads())
    assert rows == {0: [0, 3], 2: [5]}
    assert labels == 3
