"""Numbers of single clients, and of their test rows, as a record has them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from records import rewrite

from unskew.experiment.config import Experiment
from unskew.history import load_run
from unskew.record import reader
from unskew.record.frame import RowResults
from unskew.record.logs import rows as recorded
from unskew.run import loop

EVERYTHING = "evaluate=['global','personal','personal_on_global','macro_f1']"


@pytest.fixture(scope="module")
def run(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loop.start(tiny("rounds=2", EVERYTHING), tmp_path_factory.mktemp("clients") / "run").folder


def test_numbers_of_clients_are_those_of_the_last_round(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [r for r in recorded(run, "metrics") if "client" in r]
    names = {f"{part}.{m}" for part in ("personal", "personal_on_global") for m in ("accuracy", "loss", "macro_f1")}
    assert {(r["name"], r["round"]) for r in rows} == {(name, 2) for name in names}
    few = load_run(run)
    assert [r for r in few.rows if "client" in r] == rows
    monkeypatch.setattr(reader, "MANY", 3)
    many = load_run(run)
    assert not any("client" in row for row in many.rows)
    for name in names:
        values = {r["client"]: r["value"] for r in rows if r["name"] == name}
        assert few.client_values("fedavg", name) == many.client_values("fedavg", name, seed=0) == values
        assert list(values) == [0, 1, 2, 3]
    for kept in (few, many):
        with pytest.raises(KeyError, match=r"fedavg, seed 1, has no personal\.accuracy of single clients"):
            kept.client_values("fedavg", seed=1)


def test_results_by_test_row_come_back(run: Path) -> None:
    tested = RowResults({1: (np.array([7, 8]), np.array([0.5, 1.0])), 4: (np.array([2]), np.zeros(1))}, True)
    rewrite(run, tested=[{"method": "fedavg", "seed": 0, "round": 2, **row} for row in tested.rows()])
    back = reader.read(run).tested_rows["fedavg", 0]
    assert back.ranked
    assert list(back.rows()) == list(tested.rows())
