"""Folders of images as hospitals keep them."""

from pathlib import Path

import numpy as np
import pytest

import unskew as us
from unskew.data import image_folders
from unskew.data.inputs import Inputs
from unskew.data.sources import load
from unskew.errors import DataError, DataWarning

Image = pytest.importorskip("PIL.Image")
ImageOps = pytest.importorskip("PIL.ImageOps")

RNG = np.random.default_rng(6)


def pictures(root: Path, *parts: str) -> None:
    for i, site in enumerate(("Basel", "Bern")):
        for part in parts or ("",):
            for label in ("benign", "malignant"):
                folder = root / site / part / label
                folder.mkdir(parents=True)
                for k in range(5):
                    Image.fromarray(RNG.integers(0, 255, (6, 4 + 2 * i * (k == 9)), np.uint8)).save(folder / f"{k}.png")


def test_an_image_that_is_none_and_sizes_that_differ_are_named(tmp_path: Path) -> None:
    pictures(tmp_path / "a")
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "a" / "Bern" / "benign" / "z.png")
    with pytest.raises(DataError, match=r"z\.png is 9 x 9, .*0\.png is 4 x 6; give a size"):
        load(f"images:{tmp_path / 'a'}")
    (tmp_path / "a" / "Bern" / "benign" / "z.png").write_text("no image")
    with pytest.raises(DataError, match=r"z\.png is not a readable image"):
        load(f"images:{tmp_path / 'a'}")


def saved(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 255, (6, 4), np.uint8)).save(file)


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    pictures(tmp_path)
    for name in ("Basel/benign/a.dcm", "Bern/benign/b.DCM", "Bern/malignant/c.gif", "notes"):
        (tmp_path / name).write_bytes(b"x")
    saved(tmp_path / "Bern" / "loose.png")
    with pytest.warns(DataWarning) as warned:
        data = load(f"images:{tmp_path}")
    said = [str(one.message) for one in warned]
    assert said == list(data.notes)
    assert len(said) == 1
    assert all(name in said[0] for name in ("5 files in", "a.dcm", "b.DCM", "8-bit PNG"))
    assert len(data.y_train) == 20


@pytest.mark.parametrize("link", ["Chur", "Bern/unclear", "Bern/benign/9.png"], ids=["site", "class", "file"])
def test_links_in_the_folder_are_refused(link: str, tmp_path: Path) -> None:
    pictures(tmp_path / "scans")
    pictures(tmp_path / "elsewhere")
    target = {"Chur": "Basel", "Bern/unclear": "Basel/benign"}.get(link, "Basel/benign/0.png")
    (tmp_path / "link").symlink_to(tmp_path / "scans")
    load(f"images:{tmp_path / 'link'}")
    (tmp_path / "scans" / link).symlink_to(tmp_path / "elsewhere" / target)
    for given in ("scans", "link"):
        with pytest.raises(DataError, match=rf"{link} is a link, .* put a copy there"):
            load(f"images:{tmp_path / given}")


@pytest.mark.parametrize("ending", ["png", "jpg", "tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_turned_as_the_camera_noted(orientation: int, ending: str, tmp_path: Path) -> None:
    """As Pillow's own function turns them, which is not used because it stumbles over other tags."""
    level = np.kron([[0, 80, 160], [240, 200, 40]], np.ones((8, 8))).astype(np.uint8)
    tags = Image.Exif()
    tags[0x0112] = orientation
    file = tmp_path / f"a.{ending}"
    Image.fromarray(level).save(file, exif=tags)
    upright = ImageOps.exif_transpose(Image.open(file))
    assert np.array_equal(image_folders.pixels([file], None, 1)[0], np.asarray(upright))


def test_a_model_takes_files_as_it_was_trained_on_them(tmp_path: Path) -> None:
    """A wide photo, lying on its side, is turned and stretched to 8 x 8; a grey file is one of a colour model, too."""
    for site in ("Basel", "Bern"):
        for label, level in (("dark", 40), ("light", 200)):
            for i in range(10):
                file = tmp_path / "scans" / site / label / f"{i}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(RNG.integers(level - 30, level + 30, (9, 9, 3), dtype=np.uint8)).save(file)
    task = us.TaskConfig(f"images:{tmp_path / 'scans'}", "mlp", data_options={"size": 8})
    history = us.simulate(us.FedAvg(us.SgdConfig(lr=0.1)), task=task, rounds=3, progress=False)
    model = history.model("FedAvg")
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = Image.fromarray(np.repeat(np.arange(0, 240, 20, np.uint8)[None], 6, 0))
    photo.save(tmp_path / "lying.png", exif=exif)
    Image.new("RGB", (30, 20), (210, 200, 190)).save(tmp_path / "light.jpg")
    files = [tmp_path / "light.jpg", str(tmp_path / "lying.png")]
    upright = photo.transpose(Image.Transpose.ROTATE_270).resize((8, 8))
    arrays = np.stack([np.asarray(Image.open(files[0]).resize((8, 8))), np.stack([np.asarray(upright)] * 3, 2)])
    found = us.predict(model, files, probabilities=True)
    assert found == us.predict(model, arrays, probabilities=True)
    assert us.predict(model, files[:1]) == us.predict(model, files[0]) == us.predict(model, str(files[0])) == ["light"]
    with pytest.raises(DataError, match=r"gone\.png"):
        us.predict(model, [tmp_path / "gone.png"])
    grey = Inputs("images", (0.5,), (0.1,), shape=(1, 8, 8))
    with pytest.raises(
        DataError,
        match=r"light\.jpg has colours, and the model was trained on grey images",
    ):
        image_folders.read_files([tmp_path / "light.jpg"], grey)
