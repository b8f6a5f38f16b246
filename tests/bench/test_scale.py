"""`unskew bench scale`: what it measures is right to say, how long it takes is the machine's affair."""

import json
import math
import os

import pytest
from typer.testing import CliRunner

from unskew.bench import scale
from unskew.cli.app import app
from unskew.errors import ConfigError, UnskewError


def test_a_trial_measures_every_stage_of_two_populations() -> None:
    printed = CliRunner().invoke(app, ["bench", "scale", "--quick", "--json"])
    assert printed.exit_code == 0, printed.output
    rows = json.loads(printed.stdout)["rows"]
    measured = {(r["clients"], r["what"]) for r in rows if "clients" in r}
    assert measured == {(n, what) for n in (20, 60) for what in ("split", "round", "evaluation", "run", "folder")}
    assert all(r["value"] > 0 and r.get("peak_gb", 1) > 0.05 for r in rows if "clients" in r)
    assert {r["what"] for r in rows if r["what"].startswith("slope")} == {
        f"slope of {what}" for what in ("split", "round", "evaluation", "run")
    }


def test_the_slope_is_the_power_of_the_number_of_clients() -> None:
    """Seconds n^2 / 100 from 10 to 100, and constant from there: slopes 2 and 0; from 5 to 10, 100 times is 6.6."""
    seconds = [(10, 1.0), (100, 100.0), (1000, 100.0)]
    rows = [{"what": "round", "clients": n, "cohort": 10, "value": s, "unit": "s"} for n, s in seconds]
    rows += [{"what": "round", "clients": n, "cohort": 5, "value": 1.0, "unit": "s"} for n in (10, 100)]
    rows += [{"what": "folder", "clients": n, "value": 1.0, "unit": "MB"} for n in (10, 100)]
    assert [(r["case"], r["value"]) for r in scale.slopes(rows)] == [
        ("10 to 100, 10 a round", 2.0),
        ("100 to 1,000, 10 a round", 0.0),
        ("5 to 10 a round of 10", 0.0),
        ("5 to 10 a round of 100", pytest.approx(math.log(100, 2), abs=1e-5)),
        ("10 to 100, 5 a round", 0.0),
    ]


def test_a_process_that_ends_without_a_result_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "_population", lambda *_, **__: os._exit(0))
    with pytest.raises(UnskewError, match="measuring 1,000 clients ended without a result"):
        scale.measure([1000], [10])


def test_a_trial_takes_no_populations_of_ones_own() -> None:
    refused = CliRunner().invoke(app, ["bench", "scale", "--quick", "--cohort", "3"])
    assert isinstance(refused.exception, ConfigError)
    assert "--quick has populations and cohorts of its own" in str(refused.exception)
