"""The method that others are compared with is what the run says it is, whatever its label."""

from pathlib import Path

import pytest

import unskew as us
from unskew.report import read, tables


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        ({"FedAvg-prox": us.FedProx(mu=0.5), "Average": us.FedAvg()}, "Average"),
        ({"FedAvg-prox": us.FedProx(mu=0.5), "own head": us.FedAvg(personal=("head",))}, None),
    ],
)
def test_labels_do_not_decide_which_method_is_fedavg(
    methods: dict[str, object], expected: str | None, tmp_path: Path
) -> None:
    """FedProx called FedAvg-prox was the report's reference, and FedAvg called Average was none."""
    us.simulate(methods, split=us.IID(num_clients=3), rounds=1, out=tmp_path / "r", progress=False)
    record = read(tmp_path / "r")
    assert tables.reference(record) == expected
    assert [d.method for d in tables.paired(record)] == (["FedAvg-prox"] if expected else [])
    summarised = {metric for _, metric in record.summary.means} if record.summary else set()
    assert {m for m in summarised if m.startswith("global.accuracy.minus_")} == (
        {f"global.accuracy.minus_{expected}"} if expected else set()
    )
