"""Sites with folders of images of their own: PATH/CLASS/file, for a client is one site."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from unskew.data import load
from unskew.deploy.client import account_of, open_client
from unskew.errors import ConfigError, DataError

Image = pytest.importorskip("PIL.Image")

RNG = np.random.default_rng(9)
CLASSES = ("effusion", "normal")


def pictures(folder: Path, *classes: str) -> Path:
    for label in classes:
        (folder / label).mkdir(parents=True)
        for i in range(10):
            Image.fromarray(RNG.integers(0, 255, (8, 8), np.uint8)).save(folder / label / f"{i}.png")
    return folder


def client(folder: Path, number: int, images: Path, options: dict[str, object], **settings: str) -> Path:
    """The folder of a client with images of its own; `options` are those of the experiment's data."""
    here = folder / f"client-{number}"
    here.mkdir()
    experiment = {
        "rounds": 1,
        "method": {"name": "fedavg"},
        "task": {"data": "images:coordinators", "model": "cnn_small", "data_options": options},
    }
    (here / "experiment.toml").write_text(tomli_w.dumps(experiment))
    own = {"client": number, "num_clients": 2, "data": f"images:{images}", **settings}
    (here / "client.toml").write_text(tomli_w.dumps(own))
    return here


def test_a_site_opens_with_its_own_folder_of_classes(tmp_path: Path) -> None:
    """Ten images of each class, of which a fifth is for testing, as of any client without a test part."""
    opened = [
        open_client(client(tmp_path, i, pictures(tmp_path / name, *CLASSES), {"size": 12}))
        for i, name in enumerate(("basel", "bern"))
    ]
    one, other = (runtime.info for runtime in opened)
    assert one.classes == other.classes == CLASSES
    assert one.layout == other.layout
    assert (one.own, one.examples) == (True, (16,))
    assert opened[0].account == account_of(f"images:{tmp_path / 'basel'}") != ""


def test_a_site_that_lacks_a_class_goes_by_the_experiments(tmp_path: Path) -> None:
    images = pictures(tmp_path / "bern", "normal")
    assert open_client(client(tmp_path, 0, images, {})).info.classes == ("normal",)  # which the server refuses
    assert open_client(client(tmp_path, 1, images, {"classes": list(CLASSES)})).info.classes == CLASSES


def test_a_folder_with_sites_in_it_is_not_one_client_s(tmp_path: Path) -> None:
    for site in ("Basel", "Bern"):
        pictures(tmp_path / "all" / site, *CLASSES)
    text = r"Basel is the folder of none of the classes .*Here you can change your data and client\.toml; what"
    with pytest.raises(DataError, match=text):
        open_client(client(tmp_path, 0, tmp_path / "all", {"classes": list(CLASSES)}))


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            ("a.dcm", "b.dcm"),
            r"client's folder, and none of its 2 files is read: 2 end in \.dcm; expected is PATH/CLASS/",
        ),
        ((), "has no file; expected is PATH/CLASS/file, or PATH/train/CLASS/file and PATH/test/CLASS/file"),
        (("val/x/1.png", "train/x/1.png"), "has the folders train, val; expected is PATH/CLASS/file, or"),
    ],
)
def test_another_layout_is_told_as_a_clients(files: tuple[str, ...], says: str, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    for name in files:
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_bytes(b"x")
    with pytest.raises(DataError, match=says):
        open_client(client(tmp_path, 0, own, {}))


def test_settings_of_csv_files_are_refused_for_images(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"separator of client\.toml say how a CSV file is written, and data is images"
    ):
        open_client(client(tmp_path, 0, pictures(tmp_path / "own", *CLASSES), {}, separator=";"))


def test_noise_on_examples_needs_constants_that_no_image_moves(tmp_path: Path) -> None:
    """DPSGD clips single examples: with its own mean, one image moves the others of its client."""
    here = client(tmp_path, 0, pictures(tmp_path / "own", *CLASSES), {})
    experiment = tomllib.loads((here / "experiment.toml").read_text())
    del experiment["method"]
    noised = {"name": "fedavg", "with": [{"name": "dp_sgd", "noise_multiplier": 1.0, "share": 0.5, "delta": 0.01}]}
    experiment |= {"methods": [noised], "evaluate": ["global"]}
    (here / "experiment.toml").write_text(tomli_w.dumps(experiment))
    with pytest.raises(ConfigError, match=r"standardised by their own mean .* unless task\.data_options names both"):
        open_client(here)
    experiment["task"]["data_options"] = {"mean": [0.5], "std": [0.25]}
    (here / "experiment.toml").write_text(tomli_w.dumps(experiment))
    assert open_client(here).info.examples == ()  # which it keeps to itself


def test_a_client_may_divide_its_images_itself(tmp_path: Path) -> None:
    for part in ("train", "test"):
        pictures(tmp_path / "own" / part, *CLASSES)
    data = load(f"images:{tmp_path / 'own'}", None, {"alone": True})
    assert (len(data.y_train), len(data.y_test), data.owners) == (20, 20, None)
