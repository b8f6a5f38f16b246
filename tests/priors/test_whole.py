"""FedDistr at its defaults with the prior that comes with unskew, on digits that this prior has never seen."""

from pathlib import Path

import pytest

from unskew.experiment import config
from unskew.run import loop
from unskew.run.folder import read_json

BAR = 0.82
"""What a study with an earlier prior reached on ten digits in one round, by clients that have two each."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_round_teaches_ten_digits_to_clients_that_have_two(tmp_path: Path) -> None:
    experiment = config.parse(
        {
            "name": "whole",
            "rounds": 1,
            "task": {"data": "digits", "model": "cnn_small"},
            "split": {"name": "entangled", "num_clients": 5, "xi": 0.0, "bases": "labels"},
            "evaluate": ["global", "personal_on_global"],
            "local": {"lr": 0.1, "local_epochs": 5, "batch_size": 32},
            "runtime": {"executor": "sequential"},
            "methods": [{"name": "feddistr"}, {"name": "independent"}],
        }
    )
    loop.start(experiment, tmp_path / "run")
    rows = read_json(tmp_path / "run" / "summary.json")["rows"]
    ends = {(r["method"], r["metric"]): r["mean"] for r in rows}
    assert ends["feddistr", "global.accuracy"] >= BAR  # the server's, from images alone
    assert ends["feddistr", "personal_on_global.accuracy.mean"] >= BAR
    assert ends["independent", "personal_on_global.accuracy.mean"] <= 0.25
