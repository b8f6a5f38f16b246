"""The figure of latent clusters, of a run that really was, with the prior that comes with unskew."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from unskew.data.sources import load
from unskew.experiment import config
from unskew.report import read, write_report
from unskew.report.sections import generated_images, one_round
from unskew.run import loop


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients, forty images of two digits, with the built-in prior: one step of everything."""
    folder = tmp_path_factory.mktemp("latents")
    digits = load("digits", None)
    x = ((digits.x_train - digits.x_train.min()) / (digits.x_train.max() - digits.x_train.min()) * 255).byte()[:, 0]
    two = digits.y_train < 2
    np.savez(
        folder / "two.npz", x_train=x[two][:40], y_train=digits.y_train[two][:40], x_test=x[two][40:60],
        y_test=digits.y_train[two][40:60],
    )  # fmt: skip
    method = {
        "name": "feddistr", "m": 2, "steps": 1, "images": 1, "sampling_steps": 1, "server_model": False,
        "classifier": {"lr": 0.1, "local_steps": 1, "batch_size": 8},
    }  # fmt: skip
    experiment = config.parse(
        {
            "name": "latents",
            "rounds": 1,
            "task": {"data": f"npz:{folder / 'two.npz'}", "model": "logistic"},
            "split": {"name": "iid", "num_clients": 2},
            "methods": [method],
            "runtime": {"executor": "sequential"},
        }
    )
    loop.start(experiment, folder / "run")
    return folder / "run"


@pytest.mark.usefixtures("undrawn")
def test_the_clusters_that_are_drawn_are_those_that_embeddings_were_learned_for(ran: Path) -> None:
    record = read(ran)
    r = one_round.one_round(record, "feddistr")
    assert r is not None
    assert r.uploads is not None
    found = generated_images.latents(record, r, {"m": 2})
    assert not isinstance(found, str)
    drawn = [
        (f.client, y, n)
        for f in found
        for (y, _), n in Counter(zip(f.labels.tolist(), f.clusters.tolist(), strict=True)).items()
    ]
    assert sorted(drawn) == sorted(zip(r.uploads.owners, r.uploads.labels, r.uploads.counts, strict=True))
    assert "Latent clusters by client" in write_report(ran).read_text("utf-8")


@pytest.mark.usefixtures("undrawn")
def test_latents_are_not_drawn_without_the_data_or_of_another_prior(ran: Path, tmp_path: Path) -> None:
    record = read(ran)
    r = one_round.one_round(record, "feddistr")
    assert r is not None
    assert "none of unskew’s own" in generated_images.latents(record, r, {"prior": "hub:somebody/something"})
    moved = shutil.copytree(ran, tmp_path / "run")
    text = (moved / "config.toml").read_text()
    (moved / "config.toml").write_text(text.replace("two.npz", "gone.npz"))
    assert "is not on this machine" in generated_images.latents(read(moved), r, {"m": 2})
    assert "No latents are drawn for feddistr: " in write_report(moved).read_text("utf-8")
    assert generated_images.latent_chart("m", []) is None
