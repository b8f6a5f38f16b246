"""Images that a table names, as most public collections of medical images come."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import unskew as us
from unskew import tasks
from unskew.data.dataset import Dataset
from unskew.data.rows import as_tensor
from unskew.data.sources import load
from unskew.errors import ConfigError, DataError

Image = pytest.importorskip("PIL.Image")
tomli_w = pytest.importorskip("tomli_w")

OPTIONS = {"labels": "labels.csv", "image": "file", "target": "dx", "client": "hospital"}
SITES = ("Bern", "Basel", "Chur")


def picture(file: Path, level: int) -> None:
    """An image of one level, by which it is known again."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((4, 6), level, np.uint8)).save(file)


def table(root: Path, rows: list[str], header: str = "file,dx,hospital,patient,part") -> None:
    (root / "labels.csv").write_text("\n".join([header, *rows]) + "\n")


def scans(root: Path) -> Path:
    """30 images, ten of each site: image i is of level i, of class i % 2, of the site i % 3 and of patient i // 6."""
    for i in range(30):
        picture(root / f"part_{i % 2}" / f"{i:03}.png", i)
    part = ["test" if i % 5 == 0 else "train" for i in range(30)]
    table(root, [f"{i:03},{('benign', 'malignant')[i % 2]},{SITES[i % 3]},{i // 6},{part[i]}" for i in range(30)])
    return root


def read(root: Path, **options: object) -> Dataset:
    return load(f"images:{root}", None, {k: v for k, v in {**OPTIONS, **options}.items() if v is not None})


def levels(data: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Levels of the images that train and of those that test."""
    (mean,), (std,) = data.inputs.mean, data.inputs.std
    both = as_tensor(data.x_train), as_tensor(data.x_test)
    level = [np.rint((x[:, 0, 0, 0].numpy() * std + mean) * 255).astype(int) for x in both]
    own = np.zeros(len(level[0]), bool) if data.own_test is None else data.own_test.numpy()
    return level[0][~own], level[1]


@pytest.mark.parametrize(
    ("rows", "options", "says"),
    [
        (
            ["000,a,Bern", "0000.png,b,Basel", "gone,a,Basel"],
            {},
            r"column 'file' of labels\.csv: '0000\.png' in line 3 names no image below .*; did you mean 000\.png\?",
        ),
        (["000,a,Bern", "part_0/000.png,b,Basel"], {}, r"'part_0/000\.png' in line 3 names the image of line 2"),
        (["000,a,Bern", ",b,Basel"], {}, "in line 3 names no image .* or leave the row out"),
        (["same,a,Bern", "001,b,Basel"], {}, r"'same' in line 2 may be any of .*0/same\.png.*1/same\.png: write"),
        (["../../x,a,Bern", "/etc/x,b,Basel"], {}, "'../../x' in line 2 names no image below"),
        (["000,a,Bern"], {"labels": "../labels.csv"}, r"labels: \.\./labels\.csv is no table .* in "),
    ],
)  # fmt: skip
def test_what_cannot_be_read_so_is_told(
    rows: list[str], options: Mapping[str, object], says: str, tmp_path: Path
) -> None:
    for name in ("part_0/000.png", "part_1/001.png", "part_0/same.png", "part_1/same.png"):
        picture(tmp_path / "x" / name, 3)
    table(tmp_path / "x", rows, "file,dx,hospital")
    with pytest.raises((DataError, ConfigError), match=says):
        read(tmp_path / "x", **options)


def test_a_link_out_of_the_folder_is_refused_though_a_row_names_it(tmp_path: Path) -> None:
    picture(tmp_path / "secret.png", 1)
    scans(tmp_path / "x")
    (tmp_path / "x" / "part_0" / "030.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match="is a link"):
        read(tmp_path / "x")


def test_several_labels_of_an_image_are_columns_of_0_and_1(tmp_path: Path) -> None:
    scans(tmp_path)
    table(tmp_path, [f"{i:03},{i % 2},{i % 3 % 2},{SITES[i % 3]}" for i in range(30)], "file,cough,fever,hospital")
    options = {"labels": "labels.csv", "image": "file", "target": ["cough", "fever"], "client": "hospital"}
    kind = tasks.kind_of("multi_label")
    data = load(f"images:{tmp_path}", None, options, targets=kind.targets)
    assert data.outputs == ("cough", "fever")
    trained, tested = levels(data)
    assert data.own_test is not None
    (train, test) = data.y_train[data.own_test.logical_not()], data.y_test
    for level, y in ((trained, train), (tested, test)):
        assert y.tolist() == [[i % 2, i % 3 % 2] for i in level]
    with pytest.raises(DataError, match=r"target: there is no column 'cuogh'; did you mean cough\?"):
        load(f"images:{tmp_path}", None, options | {"target": ["cuogh", "fever"]}, targets=kind.targets)
    with pytest.raises(DataError, match="classes are one label an example"):
        load(f"images:{tmp_path}", None, options)
    task = us.TaskConfig(f"images:{tmp_path}", "mlp", kind="multi_label", data_options=options)
    history = us.simulate("fedavg", task=task, rounds=1, progress=False)
    assert set(us.predict(history.model("fedavg"), [tmp_path / "part_0" / "000.png"])[0]) <= {"cough", "fever"}
