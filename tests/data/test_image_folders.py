"""Folders of images as hospitals keep them."""

import shutil
import struct
import zlib
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


def png_of_16_bits(path: Path, colour_type: int) -> None:
    """One pixel; Pillow writes none in colour. 2 is RGB, 4 grey with alpha, 6 RGB with alpha."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", 1, 1, 16, colour_type, 0, 0, 0)
    row = bytes(1 + 2 * {2: 3, 4: 2, 6: 4}[colour_type])
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(row)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("colour_type", [2, 4, 6])
def test_16_bits_a_channel_are_refused_in_colour_too(colour_type: int, tmp_path: Path) -> None:
    """Before, their upper 8 bits were read without a word."""
    pictures(tmp_path)
    png_of_16_bits(tmp_path / "Bern" / "benign" / "deep.png", colour_type)
    with pytest.raises(DataError, match=r"deep\.png: an image of 8 bits a channel is needed, got 16 bits, .* Scale"):
        load(f"images:{tmp_path}", None, {"size": 4})


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


def test_grey_images_that_were_saved_with_colours_are_taken_by_a_model_of_grey_ones(tmp_path: Path) -> None:
    scan = Image.fromarray(RNG.integers(0, 255, (8, 8), np.uint8))
    grey = Inputs("images", (0.5,), (0.1,), shape=(1, 8, 8))
    files = [tmp_path / f"{mode}.png" for mode in ("L", "RGB", "RGBA", "LA", "P")]
    for file in files:
        (scan.convert("RGB").quantize(256) if file.stem == "P" else scan.convert(file.stem)).save(file)
    first, *others = image_folders.read_files(files, grey)
    for other in others:
        np.testing.assert_array_equal(other, first)
    for i in range(3):
        Image.new("RGB", (8, 8), (9, 9, 8)).save(tmp_path / f"red{i}.png")
    coloured = [tmp_path / f"red{i}.png" for i in range(3)]
    with pytest.raises(DataError, match=r"red0\.png has colours, and the model was trained on grey images"):
        image_folders.read_files([*files, *coloured], grey)


def of_patients(root: Path) -> None:
    """6 patients of each site and class, with three images each."""
    for site in ("Basel", "Bern"):
        for i in range(12):
            folder = root / site / ("benign", "malignant")[i % 2] / f"patient {i}"
            folder.mkdir(parents=True)
            for k in range(3):
                Image.fromarray(RNG.integers(0, 255, (6, 4), np.uint8)).save(folder / f"{k}.png")


def test_a_patient_in_the_folders_of_both_parts_is_refused(tmp_path: Path) -> None:
    of_patients(tmp_path / "a")
    for site in ("Basel", "Bern"):
        for part in ("train", "test"):
            shutil.copytree(tmp_path / "a" / site, tmp_path / "b" / site / part)
    with pytest.raises(DataError, match=r"is for training in .* and for testing in"):
        load(f"images:{tmp_path / 'b'}", None, {"patient": "folder", "patient_ids": "site"})
