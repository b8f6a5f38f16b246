"""Sites with folders of images of their own: PATH/CLASS/file, for a client is one site."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from unskew.deploy.client import account_of, open_client
from unskew.deploy.settings import Site
from unskew.errors import ConfigError, DataWarning
from unskew.runtime.client import ClientRuntime

Image = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(9)
CLASSES = ("effusion", "normal")


def pictures(folder: Path, *classes: str) -> Path:
    for label in classes:
        (folder / label).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(RNG.integers(0, 255, (8, 8), np.uint8)).save(folder / label / f"{i}.png")
    return folder


def client(folder: Path, number: int, images: Path, options: dict[str, object], **own: Any) -> Path:
    """The folder of a client with images of its own; `options` are those of the experiment's data."""
    here = folder / f"client-{number}"
    here.mkdir()
    experiment = {
        "rounds": 1,
        "methods": [{"name": "fedavg"}],
        "task": {"data": "images:coordinators", "model": "cnn_small", "data_options": options},
    }
    (here / "experiment.toml").write_text(tomli_w.dumps(experiment))
    OWN[here] = Site(**{"data": f"images:{images}", **own})
    return here


OWN: dict[Path, Site] = {}
"""What each site says of its own images, by its folder."""


def opened(folder: Path) -> ClientRuntime:
    return open_client(folder, int(folder.name[7:]), 2, OWN[folder])


def test_a_site_opens_with_its_own_folder_of_classes(tmp_path: Path) -> None:
    """Ten images of each class, of which a fifth is for testing, as of any client without a test part."""
    runtimes = [
        opened(client(tmp_path, i, pictures(tmp_path / name, *CLASSES), {"size": 12}))
        for i, name in enumerate(("basel", "bern"))
    ]
    one, other = (runtime.info for runtime in runtimes)
    assert one.classes == other.classes == CLASSES
    assert one.layout == other.layout
    assert (one.own, one.examples) == (True, (16,))
    assert runtimes[0].account == account_of(f"images:{tmp_path / 'basel'}") != ""


def test_a_site_that_lacks_a_class_goes_by_the_experiments(tmp_path: Path) -> None:
    images = pictures(tmp_path / "bern", "normal")
    assert opened(client(tmp_path, 0, images, {})).info.classes == ("normal",)  # which the server refuses
    with pytest.warns(DataWarning, match="this client has training images of one class only"):
        assert opened(client(tmp_path, 1, images, {"classes": list(CLASSES)})).info.classes == CLASSES


def test_noise_on_examples_needs_constants_that_no_image_moves(tmp_path: Path) -> None:
    """DPSGD clips single examples: with its own mean, one image moves the others of its client."""
    here = client(tmp_path, 0, pictures(tmp_path / "own", *CLASSES), {})
    experiment = tomllib.loads((here / "experiment.toml").read_text())
    del experiment["methods"]
    noised = {"name": "fedavg", "with": [{"name": "dp_sgd", "noise_multiplier": 1.0, "share": 0.5, "delta": 0.01}]}
    experiment |= {"methods": [noised], "evaluate": ["global"]}
    (here / "experiment.toml").write_text(tomli_w.dumps(experiment))
    with pytest.raises(ConfigError, match=r"standardised by their own mean .*name task\.data_options\.mean and std"):
        opened(here)
    experiment["task"]["data_options"] = {"mean": [0.5], "std": [0.25], "classes": list(CLASSES)}
    (here / "experiment.toml").write_text(tomli_w.dumps(experiment))
    assert opened(here).info.examples == ()  # which it keeps to itself
