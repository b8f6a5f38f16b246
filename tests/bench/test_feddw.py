"""The benchmark of FedDW's cost at a size that takes no time: what its rows say, and that it runs what it names."""

import itertools
from dataclasses import replace

import pytest
import torch

from unskew.bench import feddw as bench
from unskew.bench.feddw import Case
from unskew.papers import feddw as papers

TINY = (
    Case("mlp", (1, 4, 4), 2, 1.08),
    Case("cnn_small", (1, 8, 8), 1, None, (("norm", "batch"),)),
    Case("mlp", (1, 4, 4), 2, None, held=True),
)
CONTENDERS = {
    "fedavg": "cpu_seconds_per_epoch",
    "feddw": "cpu_seconds_per_epoch",
    "fedavg again": "cpu_seconds_per_epoch",
    "soft labels": "soft_label_pass",
    "term": "term_alone",
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "BATCH", 12)
    monkeypatch.setattr(bench, "CASES", TINY)


def test_every_case_has_a_row_for_each_contender_and_says_what_was_measured() -> None:
    """Of 6 turns a network whose epoch is one batch takes one."""
    rows = bench.measure(6, say=lambda _: None)
    labels = ("mlp/b12", "cnn_small/b12", "mlp, held/b12")
    assert [(r["case"], r["contender"], r["what"]) for r in rows] == [
        (case, contender, what) for case in labels for contender, what in CONTENDERS.items()
    ]
    assert [r["turns"] for r in rows] == [6] * 5 + [1] * 5 + [6] * 5
    assert [(r["case"], r["contender"], r["bar"]) for r in rows if "bar" in r] == [("mlp/b12", "feddw", 1.08)]


@pytest.mark.parametrize(("ratio", "met"), [(1.08, True), (1.081, False)])
def test_a_bar_is_met_by_the_median(ratio: float, met: bool) -> None:
    """However far the turns stray: here from .5 to 2."""
    _, row = bench._rows(TINY[0], {"fedavg": [1.0] * 5, "feddw": [0.5, 0.5, ratio, 2.0, 2.0]})
    assert (row["met"], row["bar"]) == (met, 1.08)


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.label)
def test_the_contenders_do_what_they_are_called(case: Case) -> None:
    """FedAvg twice ends in the same bits; the term moves the classifier; the soft labels of n examples sum to n."""
    work = bench._contenders(case)
    plain, pulled, again = (work[name]().params for name in ("fedavg", "feddw", "fedavg again"))
    assert all(torch.equal(plain[n], again[n]) for n in plain)
    assert not torch.equal(plain["head.weight"], pulled["head.weight"])
    assert ("head.bias" in plain) == case.held
    sums = work["soft labels"]()
    assert sums.shape == (10, 10)
    assert float(sums.sum()) == pytest.approx(case.batches * 12, rel=1e-5)


def test_the_other_methods_of_table_3_do_a_clients_whole_step() -> None:
    """MOON remembers: its second epoch has the term.  All end elsewhere."""
    work = bench._contenders(replace(TINY[0], others=True))
    assert {*work} == {*CONTENDERS, *papers.TABLE3}
    names = [name for name in papers.TABLE3 if name not in ("fedavg", "feddw")]
    ends = {name: [work[name]().params["body.fc1.weight"] for _ in range(2)] for name in names}
    assert [n for n, (one, two) in ends.items() if not torch.equal(one, two)] == ["moon"]
    assert not any(torch.equal(ends[a][1], ends[b][1]) for a, b in itertools.combinations(names, 2))
