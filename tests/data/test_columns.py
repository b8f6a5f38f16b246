from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import polars

import unskew as us
from unskew.data import own
from unskew.data.inputs import Column, Inputs
from unskew.data.look import describe
from unskew.data.preprocess import ColumnRule, Preprocess
from unskew.data.sources import load

AGE, APART = "\u00e2ge", "a\u0302ge"
DEATH, DEATH_APART = "d\u00e9c\u00e8s", "de\u0301ce\u0300s"
RNG = np.random.default_rng(0)
TABLE = pandas.DataFrame(
    {APART: RNG.normal(60, 9, 60), "b": RNG.normal(size=60), DEATH_APART: ["no", "yes"] * 30, "site": [*"ABC"] * 20}
)
COMPOSED = TABLE.rename(columns={APART: AGE, DEATH_APART: DEATH})


def test_columns_in_two_forms_of_unicode_are_one(tmp_path: Path) -> None:
    wanted = own.dataset(COMPOSED, target=DEATH, client="site", preprocess=Preprocess())
    assert [column.name for column in wanted.inputs.columns] == [AGE, "b"]
    TABLE.to_csv(tmp_path / "apart.csv", index=False)
    polars.DataFrame(TABLE.to_dict("list")).write_parquet(tmp_path / "apart.parquet")
    rules = Preprocess(columns={APART: ColumnRule(scale="agreed")})
    for target in (DEATH, DEATH_APART):
        options = {"target": target, "client": "site"}
        assert load(f"csv:{tmp_path / 'apart.csv'}", None, options, Preprocess()).inputs == wanted.inputs
        assert load(f"parquet:{tmp_path / 'apart.parquet'}", None, options, Preprocess()).inputs == wanted.inputs
        for table in (TABLE, polars.DataFrame(TABLE.to_dict("list")), COMPOSED):
            assert own.dataset(table, **options, preprocess=rules).inputs == wanted.inputs
            assert describe(table, **options) == describe(COMPOSED, target=DEATH, client="site")
    left = load(f"csv:{tmp_path / 'apart.csv'}", None, {"target": DEATH, "client": "site", "leave_out": [APART]})
    assert [column.name for column in left.inputs.columns] == ["b"]


def test_sites_tables_may_have_either_form(tmp_path: Path) -> None:
    of = {"A": TABLE[:20].drop(columns="site"), "B": COMPOSED[20:40].drop(columns="site")}
    sites = describe(of, target=DEATH_APART).sites
    assert [site.name for site in sites] == ["A", "B"]
    history = us.simulate(
        us.FedAvg(), data=of, target=DEATH_APART, model="logistic", preprocess=True, rounds=1, progress=False
    )
    model = history.model("fedavg")
    answers = [us.predict(model, rows) for rows in (TABLE, COMPOSED, TABLE.to_dict("records"))]
    assert answers[0] == answers[1] == answers[2]
    for name, frame in of.items():
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    data = load(f"csv:{tmp_path}", None, {"target": DEATH})
    assert [column.name for column in data.inputs.columns] == [AGE, "b"]
    for column in (AGE, APART):  # as an older version has trained on it
        assert Inputs("table", columns=(Column(column),)).prepare(TABLE).shape == (60, 1)


class Rows(NamedTuple):
    """Inputs and labels, as somebody else's code gives them."""

    x: Any
    y: Any


def test_test_rows_that_are_no_table_stay_as_they_are() -> None:
    x, y = np.arange(24.0).reshape(12, 2), [0, 1] * 6
    data = own.dataset({"A": (x, y), "B": (x + 0.5, y)}, test=Rows((x + 0.25).tolist(), y))
    assert data.y_test.tolist() == y
