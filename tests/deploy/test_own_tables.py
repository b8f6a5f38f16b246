"""Sites with tables of their own agree on numbers before the first round without showing a row."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import tomli_w
import torch
from loopback import Loopback

from unskew import wire
from unskew.data import build, load, sources
from unskew.data.preprocess import ColumnSums, Preprocess, impossible
from unskew.deploy import guest, resident, trial
from unskew.deploy.client import account_of, open_client
from unskew.deploy.settings import Site
from unskew.errors import ConfigError, DataError, DataWarning
from unskew.experiment.config import Experiment
from unskew.record.logs import rows
from unskew.record.reader import read as read_run
from unskew.run.models import load_model, predict
from unskew.runtime.client import ClientRuntime
from unskew.runtime.message import REPLIES, Envelope, decode, encode, read, write

from .party import Party

Small = Callable[..., Experiment]
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


def site(
    folder: Path,
    number: int,
    preprocessing: dict[str, object] | None,
    file: Path | None = None,
    method: object = "fedavg",
    **options: object,
) -> Path:
    """The folder of a client with a table of its own; `options` are further ones of the data."""
    here = folder / f"client-{number}"
    here.mkdir()
    experiment = {
        "rounds": 1,
        "methods": [method],
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


# ---------------------------------------------------------------- agreeing over the federation
@pytest.fixture
def party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Party:
    monkeypatch.setattr(resident, "LOOK_S", 0.0)
    monkeypatch.setattr(resident, "write_report", lambda run: run)
    return Party(tmp_path)


def of_tables(small: Small, data: object, *settings: str) -> Experiment:
    """The experiment on tables, whose numbers must be agreed on."""
    options = "data_options={target='sick', client='hospital', test='part'}"
    task = f"task={{data='csv:{data}', model='logistic', preprocess={{scale='agreed'}}, {options}}}"
    return small(task, "split={name='natural'}", "local.batch_size=8", 'evaluate=["personal"]', *settings)


def released(party: Party, site: str) -> list[str]:
    audit = map(json.loads, (party.folder / site / "audit.jsonl").read_text().splitlines())
    return [what for row in audit for what in row.get("released", ()) if what == "sums"]


pytestmark = pytest.mark.filterwarnings(
    "ignore:column 'chol' has no value at bern", "ignore:fewer than 5 training rows"
)


def test_numbers_are_agreed_on_before_the_first_round_and_the_run_is_the_simulations_to_the_bit(
    party: Party, small: Small, tmp_path: Path
) -> None:
    """Each site tells its sums once, which its audit log and the record have, and a run that goes on asks no more."""
    (tmp_path / "all").mkdir()
    tables(tmp_path / "all")
    experiment = of_tables(small, tmp_path / "all", 'evaluate=["global"]')
    for name in SITES:
        party.join(name, data=f"csv:{tmp_path / 'all' / name}.csv")
    party.federation.queue(experiment, {"wait_s": 5.0})
    assert party.run() == ["done"], party.said
    record = party.record("small")
    (compared,) = trial.compare(record, trial.simulate(experiment, tmp_path / "simulated"))
    assert (compared.max_abs_diff, compared.bytes_equal) == (0.0, True)
    assert [(r["client"], r["way"]) for r in rows(record, "network") if r["what"] == "sums"] == [(0, "up"), (1, "up")]
    (record / "summary.json").unlink()
    party.federation.put("experiments", party.federation.experiment("small")["id"], state="failed")
    party.come("basel")
    party.federation.queue(experiment, {"wait_s": 5.0})
    assert party.run() == ["done"], party.said
    assert [released(party, name) for name in SITES] == [["sums"]] * 2


def test_a_site_whose_policy_keeps_sums_goes_by_those_of_the_others(party: Party, small: Small, tmp_path: Path) -> None:
    tables(tmp_path)
    (tmp_path / "policy.toml").write_text("sums = false")
    party.join("basel", data=f"csv:{tmp_path / 'basel.csv'}")
    party.join("bern", data=f"csv:{tmp_path / 'bern.csv'}", policy=str(tmp_path / "policy.toml"))
    party.federation.queue(of_tables(small, "nowhere.csv"), {"wait_s": 5.0, "min_clients": 1})
    assert party.run() == ["done"], party.said
    assert any("policy.toml has sums = false" in text for text in party.said)
    assert (released(party, "basel"), released(party, "bern")) == (["sums"], [])
    assert {r["client"] for r in rows(party.record("small"), "work")} == {0, 1}


def test_a_coordinator_without_the_table_prepares_rows_as_the_sites_do(
    party: Party, small: Small, tmp_path: Path
) -> None:
    frames = tables(tmp_path)
    for name in SITES:
        party.join(name, data=f"csv:{tmp_path / name}.csv")
    party.federation.queue(of_tables(small, "nowhere.csv", "seeds=[0, 1]"), {"wait_s": 5.0})
    assert party.run() == ["done"], party.said
    assert read_run(party.record("small")).same_test_rows  # a site reads its table once
    of_site, of_all = load_model(party.folder / "bern" / "experiments" / "small"), load_model(party.record("small"))
    theirs, ours = (predict(model, frames["basel"], probabilities=True) for model in (of_site, of_all))
    assert theirs == ours


def test_sums_of_no_rows_are_refused_by_the_server_and_the_run_goes_on_without_that_site(
    party: Party, small: Small, tmp_path: Path
) -> None:
    tables(tmp_path)
    for name in SITES:
        party.join(name, data=f"csv:{tmp_path / name}.csv")
    honest = party.hub.handlers[party.node("bern")]

    def lies(envelope: Envelope) -> Envelope:
        head = read(honest(envelope), REPLIES)
        return write("hello", replace(head, sums={**(head.sums or {}), "age": ColumnSums(1, 33.0, 0.0)}))

    party.hub.handlers[party.node("bern")] = lies
    party.federation.queue(of_tables(small, "nowhere.csv"), {"wait_s": 5.0, "min_clients": 1})
    assert party.run() == ["done"], party.said
    assert any("(bern) is refused: the sums of column 'age' are those of no rows" in text for text in party.said)


def test_sites_agree_inside_another_system_too(small: Small, tmp_path: Path) -> None:
    """Each message opens the site anew, as Flower does."""
    (tmp_path / "all").mkdir()
    tables(tmp_path / "all")
    experiment = of_tables(small, tmp_path / "all", 'evaluate=["global"]')
    offer = guest.offered(experiment, 2, wait_s=5.0)

    def site_of(client: int, message: Envelope) -> Envelope:
        own = Site(f"csv:{tmp_path / 'all' / SITES[client]}.csv")
        opened = functools.partial(guest.opened, offer, client, own)
        return decode(guest.answer(opened, b"".join(encode(message))))

    record = guest.run(Loopback({c: functools.partial(site_of, c) for c in (0, 1)}), offer, allow_code=False)
    (compared,) = trial.compare(record, trial.simulate(experiment, tmp_path / "simulated"))
    assert (compared.max_abs_diff, compared.bytes_equal) == (0.0, True)


def test_sums_have_no_noise_so_a_method_that_adds_some_needs_declared_numbers(tmp_path: Path) -> None:
    tables(tmp_path)
    noise = {"name": "fedavg", "with": [{"name": "local_dp", "clip": 1.0, "noise_multiplier": 1.0}]}
    with pytest.raises(ConfigError, match=r"sums of columns stay here \(the noise of .* does not cover them"):
        opened(site(tmp_path, 0, {}, method=noise, classes=["no", "yes"]))


# ---------------------------------------------------------------- a site by itself
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


def test_declared_numbers_need_no_sums_and_columns_come_in_the_experiments_order(tmp_path: Path) -> None:
    frames = tables(tmp_path)
    number = {"mean": 50.0, "sd": 9.0, "gaps": False}
    columns = {"chol": {**number, "gaps": True}, "smokes": {"words": ["no", "yes"], "gaps": False}, "age": number}
    before = opened(site(tmp_path, 0, {"columns": columns}))
    rows = before.open_setup(0).trainer.device_data.x
    frames["basel"].select(reversed(frames["basel"].columns)).write_csv(tmp_path / "basel.csv")
    after = opened(tmp_path / "client-0")
    assert (before.info.sums, after.info.columns) == (None, before.info.columns)
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


AGE, CHOL, SMOKES = (
    ColumnSums(20, 50.0, 90.0),
    ColumnSums(18, 190.0, 9.0, True),
    ColumnSums(0, 0.0, 0.0, False, ("no",)),
)


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
        ("age", {"words": ("old",)}),
        ("smokes", {"words": tuple(f"w{i}" for i in range(5000))}),
        ("smokes", {"words": ("yes", "yes")}),
        ("smokes", {"words": ("no\x9b31m",)}),
        ("smokes", {"words": ("no\u202e",)}),
    ],
)
def test_statistics_that_no_rows_have_are_refused(column: str, changes: dict[str, Any]) -> None:
    """Those of words that a terminal would obey, too, which stood in the experiment as they were."""
    told = {
        "age": AGE,
        "weight": AGE,
        "chol": CHOL,
        "smokes": SMOKES,
    }  # the number of rows is known from another column
    assert impossible(told) == ""
    told[column] = replace(told[column], **changes)
    assert impossible(told) == f"the sums of column {column!r} are those of no rows"
    assert wire.decode(wire.encode(told), dict[str, ColumnSums]).keys() == told.keys()


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
    lines = ["age,sick,part", *(f"{60 + i},{i % 2},train" for i in range(5)), "50,1,test"]
    options = {"target": "sick", "test": "part", "alone": True}
    for n in (1, 4):
        path = tmp_path / f"{n}.csv"
        path.write_text("\n".join([lines[0], *lines[1 : n + 1], lines[-1]]))
        rows = sources.table(f"csv:{path}", None, options, rules=Preprocess())
        assert rows is not None
        if n == 1:
            with pytest.raises(DataError, match="'age' has one value, and its mean is that value"):
                build.sums(rows)
        else:
            with pytest.warns(DataWarning, match="fewer than 5 training rows have a value or a word in age"):
                assert build.sums(rows)["age"].n == 4


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
