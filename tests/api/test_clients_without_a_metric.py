"""A mean over clients says over how many it is, where some of them have no value."""

import numpy as np
import numpy.typing as npt
import pytest

import unskew as us
from unskew.record.reader import read
from unskew.report import results

RNG = np.random.default_rng(5)


def _site(labels: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    return RNG.normal(size=(len(labels), 3)), labels


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> us.History:
    both, one = np.tile([0, 1], 20), np.ones(40, int)
    sites = {"Basel": _site(both), "Bern": _site(both), "Chur": _site(one), "Zug": _site(one)}
    out = tmp_path_factory.mktemp("runs") / "hospitals"
    return us.simulate(
        "fedavg", data=sites, task=us.TaskConfig(model="mlp", kind="binary"), rounds=2, progress=False, out=out,
        evaluate=["global", "personal", "average_precision"],
    )  # fmt: skip


def test_every_table_says_over_how_many_clients_the_mean_is(run: us.History) -> None:
    table = results.headline(read(run.folder))
    assert ("own AUROC", " (2 of 4 clients)") in table.head
    assert "(2 of 4 clients)" in str(run)
    assert "2 of 4 clients" in (run.folder / "report.html").read_text()


def test_a_mean_over_all_clients_says_nothing(run: us.History) -> None:
    rows = {row["metric"]: row for row in run.summary["rows"]}
    assert rows["personal.auroc.mean"]["clients"] == [2, 4]
    assert "clients" not in rows["personal.loss.mean"]
    assert "clients" not in rows["global.auroc"]
