"""Folders of images as hospitals keep them."""

from pathlib import Path

import numpy as np
import pytest

from unskew.data.sources import load
from unskew.errors import DataError, DataWarning

Image = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(6)


def pictures(root: Path, *parts: str) -> None:
    for i, site in enumerate(("Basel", "Bern")):
        for part in parts or ("",):
            for label in ("benign", "malignant"):
                folder = root / site / part / label
                folder.mkdir(parents=True)
                for k in range(5):
                    Image.fromarray(RNG.integers(0, 255, (6, 4 + 2 * i * (k == 9)), np.uint8)).save(folder / f"{k}.png")


def test_folders_of_images_are_clients_and_classes(tmp_path: Path) -> None:
    """2 sites x 2 classes x 5 images; a fifth of each site's ten is its own test part."""
    pictures(tmp_path / "scans")
    data = load(f"images:{tmp_path / 'scans'}")
    assert (data.client_names, data.classes) == (("Basel", "Bern"), ("benign", "malignant"))
    assert (data.input_shape, len(data.y_train), len(data.y_test)) == ((1, 6, 4), 20, 4)
    pictures(tmp_path / "parted", "train", "test")
    parted = load(f"images:{tmp_path / 'parted'}", None, {"size": 3})
    assert parted.own_test is not None
    assert (parted.input_shape, int(parted.own_test.sum())) == ((1, 3, 3), 20)


def test_an_image_that_is_none_and_sizes_that_differ_are_named(tmp_path: Path) -> None:
    pictures(tmp_path / "a")
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "a" / "Bern" / "benign" / "z.png")
    with pytest.raises(DataError, match=r"z\.png is 9 x 9, .*0\.png is 4 x 6; give a size"):
        load(f"images:{tmp_path / 'a'}")
    (tmp_path / "a" / "Bern" / "benign" / "z.png").write_text("no image")
    with pytest.raises(DataError, match=r"z\.png is not a readable image"):
        load(f"images:{tmp_path / 'a'}")


def test_class_folders_that_differ_in_case_alone_are_warned_of(tmp_path: Path) -> None:
    for site, label in (("Basel", "cat"), ("Basel", "dog"), ("Bern", "Cat"), ("Bern", "dog")):
        folder = tmp_path / site / label
        folder.mkdir(parents=True)
        for i in range(4):
            Image.new("L", (8, 8), 60 * i).save(folder / f"{i}.png")
    with pytest.warns(DataWarning, match=r"labels 'Cat' \(only Bern\), 'cat' \(only Basel\) differ in case"):
        load(f"images:{tmp_path}", None)
