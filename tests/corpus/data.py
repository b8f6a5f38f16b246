"""The forms of data that go in, as a user has them: each a function from an empty folder to `simulate`'s arguments."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import torch
from PIL import Image

import unskew as us

from . import adaptors
from .inputs import SITES, Case, base, draws, images, rows, table

NUMBERS = ["age", "dose", "smoker"]


def plain(*more: str) -> pandas.DataFrame:
    """Columns that need no preparation, without gaps."""
    return table()[["age", "smoker", "ill", "site", *more]]


def prepared(*more: str) -> pandas.DataFrame:
    """Columns with gaps and words."""
    return table()[["age", "dose", "ward", "smoker", "ill", "site", *more]]


def of_polars(frame: pandas.DataFrame) -> polars.DataFrame:
    return polars.DataFrame(
        {name: polars.Series(values, nan_to_null=True) for name, values in frame.to_dict("list").items()}
    )


OF_SITES: Case = {"target": "ill", "client": "site"}
ALL: Case = {**OF_SITES, "preprocess": True}


def named() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    x, y = rows()
    return {site: (x[i::3], y[i::3]) for i, site in enumerate(SITES)}


def of_arrays() -> dict[str, Any]:
    x, y = rows()
    words = np.array(["calm", "ill", "well"])
    masked = np.ma.masked_array(x, x > 2)
    return {
        "arrays": {"data": (x, y)},
        "lists": {"data": (x.tolist(), y.tolist())},
        "tensors": {"data": (torch.from_numpy(x), torch.from_numpy(y))},
        "float64": {"data": (x.astype("float64"), y.astype("int16"))},
        "labels in words": {"data": (x, words[y])},
        "labels of true and false": {"data": (x, y == 0)},
        "labels as an ordered category": {
            "data": (x, pandas.Categorical(words[y], ["well", "calm", "ill"], ordered=True))
        },
        "labels 1 and 2": {"data": (x, 1 + (y > 0))},
        "a test part": {"data": (x[:60], y[:60]), "test": (x[60:], y[60:])},
        "a test fraction": {"data": (x, y), "test_fraction": 0.4, "val_fraction": 0.25},
        "clients": {"data": named()},
        "clients with test rows": {
            "data": named(),
            "test": {site: (x[i : i + 6], y[i : i + 6]) for i, site in enumerate(SITES)},
        },
        "clients with validation rows": {"data": named(), "val_fraction": 0.25},
        "clients of frames": {
            "data": {site: (pandas.DataFrame(a, columns=list("abcde")), b) for site, (a, b) in named().items()}
        },
        "patients": {"data": (x, y, np.arange(72) // 3), "val_fraction": 0.2},
        "patients of clients": {
            "data": {site: (a, b, np.arange(24) // 2) for site, (a, b) in named().items()},
            "patient_ids": "site",
        },
        "times": {
            "data": named(),
            "test": us.Latest({site: np.arange(24) * 2 % 23 for site in SITES}, share=0.25),
            "val_fraction": 0.25,
        },
        "gaps in arrays": {"data": {site: (masked[i::3], y[i::3]) for i, site in enumerate(SITES)}, "preprocess": True},
        "a number": {"data": (x, (3 * x[:, 0]).astype("float64")), "task": "regression", "split": us.IID(4)},
        "a number in bins": {"data": (x, 3.0 * x[:, 0]), "task": us.TaskConfig(kind="regression", bins=3)},
        "several labels": {"data": (x, (x[:, :3] > 0).astype(int)), "task": "multi_label", "split": us.IID(4)},
        "times and events": {
            "data": (x, np.stack([10 + 3 * x[:, 0], x[:, 1] > 0], 1)),
            "task": "survival",
            "split": us.IID(4),
        },
        "grades": {"data": (x, y), "task": "ordinal"},
        "images of bytes": {"data": images(), "model": "cnn_small"},
        "images in colour": {"data": (np.repeat(images()[0][..., None], 3, -1), images()[1]), "model": "cnn_small"},
        "images of floats": {"data": (images()[0][:, None] / np.float32(255), images()[1]), "model": "cnn_small"},
        "images of clients": {
            "data": {site: (images()[0][i::3], np.arange(16) % 2) for i, site in enumerate(SITES)},
            "model": "cnn_small",
        },
        "volumes": {"data": (np.repeat(images()[0][:, None, :4], 2, 1)[:, :, None] / np.float32(255), images()[1])},
        "series": {"data": (x[:70].reshape(14, 5, 5).repeat(4, 0), np.arange(56) % 2)},
        "token ids": {
            "data": (draws(5).integers(0, 9, (60, 6)), y[:60]),
            "model": None,
            "task": us.TaskConfig(model="bag_of_words"),
        },
        "next tokens": {
            "data": (tokens()[:, :-1], tokens()[:, 1:]),
            "model": None,
            "task": "next_token",
            "split": us.IID(4),
        },
        "next tokens, filled up": {
            "data": (tokens()[:, :-1], np.where(np.arange(7) < 3, -100, tokens()[:, 1:])),
            "model": None,
            "task": "next_token",
            "split": us.IID(4),
        },
        "texts": {"data": (texts(), y[:60] == 0), "model": None},
        "texts of clients": {
            "data": {site: (texts()[i::3], (y[:60] == 0)[i::3]) for i, site in enumerate(SITES)},
            "model": None,
        },
        "a named set": {"data": "digits", "split": us.IID(3)},
        "a named set, loaded": lambda: {"data": us.load("digits"), "split": us.IID(3)},
        "hospitals by name": {"data": "heart", "task": "binary"},
        "hospitals by name, unscaled": {
            "data": "heart",
            "task": us.TaskConfig(kind="binary"),
            "preprocess": us.Preprocess(scale="none"),
        },
    }


def tokens() -> np.ndarray:
    return draws(6).integers(0, 6, (40, 8))


def texts() -> list[str]:
    words = np.array(["Fever", "cough", "SLEPT", "well,", "no", "complaints", "again"])
    return [" ".join(row) for row in words[draws(7).integers(0, 7, (60, 8))]]


class Pairs(torch.utils.data.Dataset[Any]):
    """A torch data set of (input, label)."""

    classes = ("cat", "cow", "dog")

    def __len__(self) -> int:
        return 72

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        x, y = rows()
        return torch.from_numpy(x[i]), int(y[i])


def of_frames() -> dict[str, Case]:
    frame = prepared()
    category = frame.assign(
        ward=frame["ward"].astype("category"), ill=pandas.Categorical(frame["ill"], ["yes", "no"], ordered=True)
    )
    coded = us.Preprocess(columns={"age": us.ColumnRule(kind="category")})
    decades = plain().assign(age=table()["age"] // 20)
    survival = table()[["age", "smoker", "days", "died", "site"]]
    pair = torch.from_numpy(rows()[0]), torch.from_numpy(rows()[1])
    half = {"data": frame, **OF_SITES}
    return {
        "pandas": {"data": plain(), **OF_SITES},
        "pandas, prepared": {"data": frame, **ALL},
        "pandas, nobody's": {"data": plain().drop(columns="site"), "target": "ill", "split": us.IID(3)},
        "pandas, categories": {"data": category, **ALL},
        "pandas, nullable": {"data": frame.convert_dtypes(), **ALL},
        "pandas, rows labelled": {"data": frame.set_index(np.arange(60) + 100), **ALL},
        "polars": {"data": of_polars(plain()), **OF_SITES},
        "polars, prepared": {"data": of_polars(frame), **ALL},
        "frames of clients": {"data": dict(iter(frame.groupby("site"))), "target": "ill", "preprocess": True},
        "hugging face": {"data": HuggingFace(frame.to_dict("list")), **ALL},
        "hugging face, images": {
            "data": HuggingFace(
                {
                    "image": [Image.fromarray(p) for p in images()[0]],
                    "label": images()[1].tolist(),
                    "site": list(SITES) * 16,
                },
                {"label": ["zero", "one", "two"]},
            ),
            "target": "label",
            "client": "site",
            "model": "cnn_small",
        },
        "hugging face, two parts": {
            "data": {
                "train": HuggingFace(frame[:40].to_dict("list")),
                "test": HuggingFace(frame[40:].to_dict("list")),
            },
            "target": "ill",
            "preprocess": True,
            "split": us.IID(3),
        },
        "torch data set": {"data": Pairs()},
        "torch tensor data set": {"data": torch.utils.data.TensorDataset(*pair)},
        "a share for testing": {**half, "preprocess": True, "test": 0.25},
        "a column of the test part": {"data": prepared("part"), **ALL, "test": "part"},
        "a table for testing": {"data": frame[:48], **ALL, "test": frame[48:].assign(site=list(SITES) * 4)},
        "the latest, a share": {"data": prepared("day"), **ALL, "test": us.Latest("day", share=0.25)},
        "the latest, after a day": {
            "data": table()[["age", "smoker", "ill", "day"]].assign(site=list(SITES) * 20),
            **ALL,
            "test": us.Latest("day", after="2024-02-10", gap=3),
            "val_fraction": 0.2,
        },
        "patients of a table": {"data": prepared("patient"), **ALL, "patient": "patient", "test": 0.25},
        "patients, the sites' own": {
            "data": prepared("patient").assign(patient=np.tile(np.arange(12), 5)),
            **ALL,
            "patient": "patient",
            "patient_ids": "site",
        },
        "patients, the network's": {
            "data": prepared("patient").assign(patient=np.tile(np.arange(12), 5)),
            **ALL,
            "patient": "patient",
            "patient_ids": "network",
        },
        "scaled by site": {**half, "preprocess": us.Preprocess(scale="site", missing="site median")},
        "not scaled": {**half, "preprocess": us.Preprocess(scale="none", missing="agreed mean")},
        "numbers that are codes": {"data": decades, **OF_SITES, "preprocess": coded},
        "survival": {
            "data": survival,
            "target": ["days", "died"],
            "client": "site",
            "task": "survival",
            "preprocess": True,
        },
        "regression": {
            "data": frame.drop(columns="ill"),
            "target": "age",
            "client": "site",
            "task": "regression",
            "preprocess": True,
        },
        "multi label": {
            "data": plain().assign(cough=table()["died"], fever=table()["smoker"]).drop(columns=["ill", "smoker"]),
            "target": ["cough", "fever"],
            "client": "site",
            "task": "multi_label",
        },
        "classes named": {
            "data": frame,
            **ALL,
            "task": us.TaskConfig(kind="binary", data_options={"classes": ["yes", "no"]}),
        },
        "an unseen client": {**half, "preprocess": True, "unseen": ["Chur"]},
    }


class HuggingFace:
    """What the corpus needs of a Hugging Face data set, which is not installed everywhere."""

    def __init__(self, columns: dict[str, Any], names: dict[str, list[str]] | None = None) -> None:
        self.columns, self.names = columns, names or {}

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    @property
    def features(self) -> dict[str, Any]:
        feature = type("Feature", (), {})
        given = {name: feature() for name in self.columns}
        for name, names in self.names.items():
            given[name].names = names
        return given

    def __getitem__(self, name: str) -> Any:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def csv(**options: Any) -> Case:
    columns = {"target": "ill", "client": "site", **options}
    return {"data": None, "task": us.TaskConfig(data="csv:t.csv", data_options=columns), "preprocess": True}


def of_files() -> dict[str, Any]:
    here, frame = Path(), prepared()

    def written(case: Case, file: str = "t.csv", **how: Any) -> Case:
        frame.to_csv(here / file, index=False, **how)
        return {key: value for key, value in case.items() if value is not None}

    def path() -> Case:
        frame.to_csv(here / "t.csv", index=False)
        return {"data": "t.csv", **ALL}

    def parquet() -> Case:
        of_polars(frame).write_parquet(here / "t.parquet")
        return {"data": here / "t.parquet", **ALL}

    def thousands() -> Case:
        text = frame.assign(dose=[f"{value * 10:,.1f}" for value in frame["dose"].fillna(7000)])
        text.to_csv(here / "t.csv", index=False, sep=";")
        return {key: value for key, value in csv(separator=";", thousands=",").items() if value is not None}

    def one_file_a_site() -> Case:
        (here / "sites").mkdir()
        for site, rows_of in frame.groupby("site"):
            rows_of.drop(columns="site").to_csv(here / "sites" / f"{site}.csv", index=False)
        return {"data": "csv:sites", "target": "ill", "preprocess": True}

    def test_file() -> Case:
        frame[:48].to_csv(here / "t.csv", index=False)
        frame[48:].assign(site=list(SITES) * 4).to_csv(here / "new.csv", index=False)
        return {key: value for key, value in csv(test="new.csv").items() if value is not None}

    def npz(**more: Any) -> Case:
        x, y = rows()
        np.savez(here / "a.npz", **{"x_train": x[:60], "y_train": y[:60], **more})
        return {"data": "npz:a.npz"}

    def pictures(where: str, **options: Any) -> Case:
        pixels, labels = images()
        for i, (picture, label) in enumerate(zip(pixels, labels, strict=True)):
            at = (
                here
                / "scans"
                / where.format(site=SITES[i // 16], label="abc"[label], part="test" if i % 4 else "train", who=i // 6)
            )
            at.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(at / f"{i:02d}.png")
        task = us.TaskConfig(data="images:scans", model="cnn_small", data_options=options)
        return {"task": task, "model": None}

    def labelled(**options: Any) -> Case:
        pixels, labels = images()
        (here / "scans").mkdir()
        columns: dict[str, Any] = {"file": [f"{i:02d}.png" for i in range(48)], "dx": ["abc"[y] for y in labels]}
        columns |= {
            "hospital": np.repeat(SITES, 16),
            "who": np.arange(48) // 2,
            "part": ["train", "train", "test"] * 16,
        }
        for name, picture in zip(columns["file"], pixels, strict=True):
            Image.fromarray(picture).save(here / "scans" / name)
        pandas.DataFrame(columns).to_csv(here / "scans" / "labels.csv", index=False)
        named_columns = {"labels": "labels.csv", "image": "file", "target": "dx", "client": "hospital", **options}
        task = us.TaskConfig(data="images:scans", model="cnn_small", data_options=named_columns)
        return {"task": task, "model": None}

    return {
        "csv": lambda: written(csv()),
        "csv by path": path,
        "csv, semicolons": lambda: written(csv(separator=";"), sep=";"),
        "csv, decimal commas": lambda: written(csv(separator=";", decimal=","), sep=";", decimal=","),
        "csv, tabs, declared": lambda: written(csv(separator="\t"), sep="\t"),
        "csv, thousands": thousands,
        "csv, words for gaps": lambda: written(csv(gaps=["k.A."]), na_rep="k.A."),
        "csv, cp1252": lambda: written(csv(encoding="cp1252"), encoding="cp1252"),
        "csv, columns left out": lambda: written(csv(leave_out=["ward"])),
        "csv, a test file": test_file,
        "parquet": parquet,
        "one file a site": one_file_a_site,
        "npz": npz,
        "npz, own clients": lambda: npz(client_train=np.arange(60) % 3, clients=np.array(SITES)),
        "npz, own test rows": lambda: npz(
            client_train=np.arange(60) % 3, x_test=rows()[0][60:], y_test=rows()[1][60:], client_test=np.arange(12) % 3
        ),
        "npz, domains": lambda: npz(domain_train=np.arange(60) % 2, domains=np.array(["old", "new"])),
        "images by site": lambda: pictures("{site}/{label}"),
        "images by site and part": lambda: pictures("{site}/{part}/{label}"),
        "images by site and patient": lambda: pictures("{site}/{label}/{who}", patient="folder", patient_ids="site"),
        "images, another size": lambda: pictures("{site}/{label}", size=10, channels=3, classes=["c", "b", "a"]),
        "images that a table names": labelled,
        "images that a table names, with a test part": lambda: labelled(test="part"),
        "images that a table names, patients": lambda: labelled(patient="who"),
    }


@functools.cache
def cases() -> dict[str, Any]:
    """Arguments of `simulate` by name, or functions that make them in the working directory."""
    forms = {"arrays": of_arrays(), "frames": of_frames(), "files": of_files()}
    return {f"{kind}: {name}": case for kind, of_kind in forms.items() for name, case in of_kind.items()}


def entry(name: str, here: Path) -> Case:
    """What clients train and are tested on."""
    case = cases()[name]
    case = {**(case() if callable(case) else case)}
    task = case.get("task")
    if isinstance(task, us.TaskConfig) and ":" in task.data:
        case = {"data": ..., "model": None, **case}
    return adaptors.prepared(base(**{"split": None, **case}))
