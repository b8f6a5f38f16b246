"""The benchmark of half precision at a size that takes no time: what its rows say, and who trains in what."""

import pytest

from unskew.bench import precision as bench
from unskew.bench.toolkit import Workload
from unskew.keys import Key
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Fitted, Me, Sgd


def test_every_case_has_both_precisions_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three contenders, of which one in bfloat16, train once to warm up and once a turn."""
    monkeypatch.setattr(bench, "CASES", {"mlp/b4": (Workload("mlp", (1, 4, 4), 8), 4)})
    trained: list[str] = []
    fit = LocalTrainer.fit

    def watched(self: LocalTrainer, me: Me, job: Sgd, key: Key) -> Fitted | None:
        trained.append(job.config.precision)
        return fit(self, me, job, key)

    monkeypatch.setattr(LocalTrainer, "fit", watched)
    said: list[str] = []
    rows = bench.measure(4, say=said.append)
    assert [r["contender"] for r in rows] == ["float32", "bfloat16", "float32 again"]
    assert (trained.count("float32"), trained.count("bfloat16")) == (10, 5)
    assert (rows[0]["ratio"], rows[0]["low"], rows[0]["high"], rows[0]["ratio_of_minima"]) == (1, 1, 1, 1)
    assert all(r["low"] <= r["ratio"] <= r["high"] and r["turns"] == 4 for r in rows)
    assert all(r["samples_per_second"] == pytest.approx(8 / r["value"]) for r in rows)
    assert len(said) == 1
