"""Sites with tables of their own agree on a preprocessing without showing a row, and then prepare rows alike."""

import json
from pathlib import Path

import numpy as np
import polars
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

from unskew.cli.app import app
from unskew.data import load, own
from unskew.data.preprocess import Preprocess
from unskew.deploy.client import account_of, open_client
from unskew.deploy.settings import Site
from unskew.errors import DataError, DataWarning
from unskew.experiment import config
from unskew.runtime.client import ClientRuntime

RNG = np.random.default_rng(8)
SITES = ("basel", "bern")


def tables(folder: Path) -> dict[str, polars.DataFrame]:
    """Bern never measured cholesterol and has no smoker; each file has a test column."""
    frames = {}
    for i, site in enumerate(SITES):
        n = 30
        frames[site] = polars.DataFrame(
            {
                "hospital": [site] * n,
                "age": np.round(RNG.normal(50 + 10 * i, 9, n), 1),
                "chol": [None if i or k % 9 == 0 else float(180 + k) for k in range(n)],
                "smokes": ["no" if i or k % 4 else "yes" for k in range(n)],
                "sick": ["no", "yes", "yes"] * 10,
                "part": ["train", "train", "test"] * 10,
            },
            schema_overrides={"chol": polars.Float64},
        )
        frames[site].write_csv(folder / f"{site}.csv")
    return frames


def unskew(*args: str) -> str:
    result = CliRunner().invoke(app, ["data", *args], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def agreed(folder: Path) -> str:
    for site in SITES:
        path = str(folder / f"{site}.csv")
        columns = ("--target", "sick", "--client", "hospital", "--test", "part")
        unskew(path, *columns, "--sums", str(folder / f"{site}.json"))
    return unskew(*(str(folder / f"{site}.json") for site in SITES))


def site(
    folder: Path, number: int, preprocessing: dict[str, object] | None, file: Path | None = None, **options: object
) -> Path:
    """The folder of a client with a table of its own; `options` are further ones of the data."""
    here = folder / f"client-{number}"
    here.mkdir()
    experiment = {
        "rounds": 1,
        "method": {"name": "fedavg"},
        "task": {
            "data": "csv:coordinators.csv",
            "model": "logistic",
            "data_options": {"target": "sick", "client": "hospital", "test": "part", **options},
            **({} if preprocessing is None else {"preprocess": preprocessing}),
        },
    }
    (here / "experiment.toml").write_text(tomli_w.dumps(experiment))
    OWN[here] = Site(f"csv:{file or folder / f'{SITES[number]}.csv'}")
    return here


OWN: dict[Path, Site] = {}
"""What each site says of its own table, by its folder."""


def opened(folder: Path) -> ClientRuntime:
    return open_client(folder, int(folder.name[7:]), 2, OWN[folder])


@pytest.mark.filterwarnings("ignore:column 'chol' has no value at bern")
def test_what_sites_agree_on_is_what_all_their_training_rows_together_would_give(tmp_path: Path) -> None:
    """Rows as they come out of the agreed numbers at each site are those of one table of all, to a float's rounding."""
    frames = tables(tmp_path)
    text = agreed(tmp_path)
    told = json.loads((tmp_path / "basel.json").read_text())
    assert told["smokes"]["words"] == ["no", "yes"]
    assert set(told["age"]) == {"n", "mean", "m2", "gaps", "words"}  # and no row
    experiment = config.parse(config.tomllib.loads(f'rounds = 1\nmethod = {{ name = "fedavg" }}\n{text}'))
    rules = experiment.task.preprocess
    together = own.dataset(
        polars.concat(frames.values()), target="sick", client="hospital", test="part", preprocess=Preprocess()
    )
    options = {"target": "sick", "client": "hospital", "test": "part", "alone": True}
    for i, name in enumerate(SITES):
        alone = load(f"csv:{tmp_path / f'{name}.csv'}", None, options, rules)
        assert together.owners is not None
        assert together.own_test is not None
        mine = (together.owners == i) & ~together.own_test
        assert torch.allclose(alone.x_train, together.x_train[mine], atol=1e-5)  # type: ignore[arg-type]


def test_an_experiment_does_not_make_a_site_test_on_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack that worked: the server had the accuracy on a file that nobody had named, and its number of rows."""
    tables(tmp_path)
    folder = site(tmp_path, 0, None, test=str(tmp_path / "bern.csv"), leave_out=["hospital", "part", "chol", "smokes"])
    with pytest.raises(
        DataError, match=r"and the file '\S+bern\.csv' is not read: the coordinator chose it and nobody"
    ):
        opened(folder)
    monkeypatch.setenv("UNSKEW_POLICY", str(tmp_path / "policy.toml"))
    (tmp_path / "policy.toml").write_text(tomli_w.dumps({"paths": [str(tmp_path)]}))
    assert opened(folder).info.own


def test_columns_come_in_the_experiments_order_whatever_the_files(tmp_path: Path) -> None:
    frames = tables(tmp_path)
    columns = config.tomllib.loads(agreed(tmp_path))["task"]["preprocess"]["columns"]
    before = opened(site(tmp_path, 0, {"columns": columns}))
    rows = before.open_setup(0).trainer.device_data.x
    frames["basel"].select(reversed(frames["basel"].columns)).write_csv(tmp_path / "basel.csv")
    after = opened(tmp_path / "client-0")
    assert after.info.columns == before.info.columns
    assert torch.equal(after.open_setup(0).trainer.device_data.x, rows)


def test_without_preprocessing_a_client_tells_whether_its_columns_are_others(tmp_path: Path) -> None:
    labels = {"sick": ["no", "yes"] * 20, "part": ["train", "train", "test", "test"] * 10}
    given = {"age": RNG.normal(size=40), "bp": RNG.normal(size=40)}
    told = set()
    for names in (("age", "bp"), ("bp", "age"), ("height", "weight")):
        frame = {name: given.get(name, given["age"]) for name in names}
        polars.DataFrame({**frame, **labels}).write_csv(tmp_path / "basel.csv")
        folder = tmp_path / "-".join(names)
        folder.mkdir()
        told.add(opened(site(folder, 0, None, tmp_path / "basel.csv")).info.columns)
    assert len(told) == 3
    assert not any(name in hashed for hashed in told for name in given)


@pytest.mark.parametrize(
    ("column", "changes"),
    [
        ("age", {"n": -20}),
        ("age", {"n": 10**30}),
        ("age", {"n": 19}),
        ("chol", {"n": 20}),
        ("age", {"mean": float("nan")}),
        ("age", {"mean": 1e300}),
        ("age", {"m2": -1.0}),
        ("age", {"m2": float("inf")}),
        ("chol", {"n": 0}),
        ("chol", {"n": 0, "mean": 0.0}),
        ("chol", {"n": 1}),
        ("age", {"words": ["old"]}),
        ("smokes", {"words": [f"w{i}" for i in range(5000)]}),
        ("smokes", {"words": ["yes", "yes"]}),
    ],
)
def test_statistics_that_no_rows_have_are_refused(column: str, changes: dict[str, object], tmp_path: Path) -> None:
    frames = tables(tmp_path)
    if column == "age":  # the number of rows is known from another column
        for name, frame in frames.items():
            frame.with_columns(weight=polars.col("age") + 20).write_csv(tmp_path / f"{name}.csv")
    agreed(tmp_path)
    basel = json.loads((tmp_path / "basel.json").read_text())
    basel[column] |= changes
    (tmp_path / "basel.json").write_text(json.dumps(basel))
    with pytest.raises(DataError, match=f"basel: the sums of column '{column}' are those of no rows"):
        unskew(str(tmp_path / "bern.json"), str(tmp_path / "basel.json"))


def test_no_experiment_opens_a_new_privacy_account_by_reading_other_columns(tmp_path: Path) -> None:
    """The attack that worked: with `leave_out` in the experiment the data had another hash, and nothing was spent."""
    one, other = tmp_path / "own.csv", tmp_path / "other.csv"
    rows = "".join(f"{i},{i * i % 7},{i % 2}\n" for i in range(20))
    one.write_text(f"a,b,label\n{rows}")
    other.write_text(f"a,b,label\n{rows}20,1,0\n")
    columns = ({"leave_out": leave_out, "target": "label", "alone": True} for leave_out in ([], ["b"]))
    hashes = [load(f"csv:{one}", data_options=options).sha256 for options in columns]
    assert hashes[0] != hashes[1]
    assert account_of(f"csv:{one}") != account_of(f"csv:{other}")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.csv").write_bytes(one.read_bytes())
    assert account_of(f"csv:{tmp_path / 'folder'}") != ""
    # What is read of a name, or of a file that is not there, is the experiment's choice: the name is the account.
    assert account_of("digits") == account_of("digits") != account_of("hub:digits") != account_of("csv:/nowhere.csv")


def test_sums_of_a_single_row_are_refused_and_of_few_rows_warned_of(tmp_path: Path) -> None:
    """Of one row the mean is that row."""
    rows = ["age,sick,part", *(f"{60 + i},{i % 2},train" for i in range(5)), "50,1,test"]
    options = ("--target", "sick", "--test", "part", "--sums", str(tmp_path / "x.json"))
    for n, says in ((1, None), (4, "has fewer than 5 training rows with a value or a word in age")):
        path = tmp_path / f"{n}.csv"
        path.write_text("\n".join([rows[0], *rows[1 : n + 1], rows[-1]]))
        if says is None:
            with pytest.raises(DataError, match="has one value of age, and its mean is that value itself"):
                unskew(str(path), *options)
            assert not (tmp_path / "x.json").exists()
        else:
            with pytest.warns(DataWarning, match=says):
                unskew(str(path), *options)


def sums_file(folder: Path, site: str, column: str, **of: object) -> str:
    path = folder / f"{site}.json"
    path.write_text(json.dumps({column: {"n": 0, "mean": 0.0, "m2": 0.0, "gaps": False, **of}}))
    return str(path)


@pytest.mark.parametrize("odd", ["no\x9b31m", "no\u202e", "\x1b[31m"])
def test_words_and_names_that_a_terminal_would_obey_are_not_agreed_on(odd: str, tmp_path: Path) -> None:
    """Before, they stood in the experiment's file as they are, and in the terminal."""
    basel = sums_file(tmp_path, "basel", "sex", words=["yes", "x"])
    for column, words in (("sex", [odd, "x"]), (odd, ["yes", "x"])):
        with pytest.raises(DataError, match=r"^bern: the sums of column .* are those of no rows") as refused:
            unskew(basel, sums_file(tmp_path, "bern", column, words=words))
        assert odd not in str(refused.value)


@pytest.mark.parametrize("named", [True, False])
def test_a_site_of_its_own_keeps_patients_apart(named: bool, tmp_path: Path) -> None:
    """Basel's ten patients have three rows each: two test, of the other eight a quarter validate, whole."""
    frame = tables(tmp_path)["basel"].drop("chol", "smokes", "part")
    who = [k // 3 for k in range(30)]
    part = {"part": ["test" if w < 2 else "train" for w in who]} if named else {}
    columns = {"who": who, "row": [k + 0.1 * (k % 2 + 1) for k in range(30)], **part}
    frame.with_columns(**{name: polars.Series(values) for name, values in columns.items()}).write_csv(
        tmp_path / "basel.csv"
    )
    folder = site(tmp_path, 0, None, patient="who")
    text = (folder / "experiment.toml").read_text()
    (folder / "experiment.toml").write_text(
        "val_fraction = 0.25\n" + (text if named else text.replace('test = "part"\n', ""))
    )
    runtime = opened(folder)
    data = runtime.open_setup(0).trainer.device_data
    train, val, test = (
        {int(x) // 3 for x in rows[:, 1]} for rows in (data.x[data.train[0]], data.x[data.val[0]], data.x_test)
    )
    assert [len(of) for of in (train, val, test)] == [6, 2, 2]
    assert train | val | test == set(range(10))
