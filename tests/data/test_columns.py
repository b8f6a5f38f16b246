from pathlib import Path

import numpy as np
import pandas
import polars

from unskew.data import own
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
    polars.DataFrame({**TABLE.to_dict("list"), "__index_level_0__": 0}).write_parquet(tmp_path / "apart.parquet")
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
