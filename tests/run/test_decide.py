"""Seeds until it is decided: the interval that may be looked at after every seed, and runs that stop by it."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unskew.experiment import config
from unskew.experiment.config import Experiment, fingerprint
from unskew.record.logs import rows
from unskew.report import page, read, tables
from unskew.run import decide, loop
from unskew.run.cell import Cell, Observer


# ---------------------------------------------------------------- the interval
def test_the_interval_by_hand() -> None:
    """Differences 1, 1, 3, 3, 2, 2, 2: m = 2, s^2 = 4/6, no skewness; n = 7, g = 1, alpha = .05.

    K = (8 * 400)^(1/7) = 3.1676; t* = sqrt(6 * 2.1676 / (1 - 3.1676/8)) = 4.6402; half = t* sqrt(4/6) / sqrt(7).
    """
    ends = decide.interval([1.0, 1.0, 3.0, 3.0, 2.0, 2.0, 2.0])
    assert ends == pytest.approx((2 - 1.4320, 2 + 1.4320), abs=1e-4)


def test_the_interval_is_longer_on_the_side_of_the_tail_by_hand() -> None:
    """Differences 0, 0, 0, 0, 0, 0, 7: m = 1, s^2 = 42/6, c = (6 * -1 + 216) / 7 / 6^(3/2) = 2.0412; t* as above.

    The low end is 1 - 4.6402 (s / sqrt(7) is 1), the high one further off by 2.0412 / (3 sqrt(7)) = 0.2572 times
    1 + 2 t*^2 = 44.062: 1 + 4.6402 + 11.3316.
    """
    values = [0.0] * 6 + [7.0]
    assert decide.interval(values) == pytest.approx((1 - 4.6402, 1 + 4.6402 + 11.3316), abs=1e-3)
    assert decide.interval([-v for v in values]) == pytest.approx((-1 - 4.6402 - 11.3316, -1 + 4.6402), abs=1e-3)


def test_five_seeds_decide_nothing_and_so_does_what_has_no_spread() -> None:
    assert decide.interval([0.01, 0.0100001, 0.01, 0.01, 0.01]) is None
    assert decide.interval([0.01] * 10) is None
    assert decide.interval([0.0] * 2) == (0.0, 0.0)
    assert decide.interval([0.1, math.inf, 0.2, 0.1, 0.1, 0.1]) is None
    assert decide.interval([0.1, 0.2, 0.1, 0.2, 0.1, 0.2][: decide.FIRST]) is not None


def test_a_comparison_is_decided_by_sign_or_by_width() -> None:
    """Of the last one the interval has zero in it: it is decided as soon as it may be that wide."""
    assert decide.is_decided([0.1, 0.11, 0.09, 0.1, 0.12, 0.1], until=1e-9)
    assert decide.is_decided([-0.1, -0.11, -0.09, -0.1, -0.12, -0.1], until=1e-9)
    near = [0.01, -0.01, 0.005, -0.005, 0.0, 0.0]
    low, high = decide.interval(near) or (0.0, 0.0)
    assert low < 0.0 < high
    assert not decide.is_decided(near, until=0.99 * (high - low))
    assert decide.is_decided(near, until=1.01 * (high - low))
    assert not decide.is_settled({"a": [0.1, 0.11, 0.09, 0.1, 0.12, 0.1], "b": near}, until=1e-9)


# ---------------------------------------------------------------- what repeated looks cost
DRAWS: dict[str, Callable[[np.random.Generator], Any]] = {
    "normal": lambda rng: rng.standard_normal((200, 30)),
    "Cauchy": lambda rng: rng.standard_cauchy((200, 30)),
    "two values": lambda rng: rng.choice([-1.0, 1.0], (200, 30)),
    "exponential": lambda rng: rng.exponential(size=(200, 30)) - 1.0,
}


@pytest.mark.parametrize("shape", DRAWS)
def test_equal_methods_are_called_different_in_at_most_five_percent_of_runs(shape: str) -> None:
    """After whichever of 30 seeds one looks: of 200 runs 10 on average, and 9 more are three standard deviations."""
    wrong = 0
    for run in DRAWS[shape](np.random.default_rng(21)):
        ends = (decide.interval(run[:n]) for n in range(decide.FIRST, 31))
        wrong += any(low * high > 0 for low, high in filter(None, ends))
    assert wrong <= 10 + 9


# ---------------------------------------------------------------- runs
TWO = """
[[methods]]
name = "fedavg"
[[methods]]
name = "fedavg"
label = "slow"
local = { lr = 0.0001, batch_size = 128 }
"""
SHORT = ("rounds=2", "runtime.checkpoint_every=1")


class Killed(Exception):
    """Stands for kill -9: the run writes nothing any more."""


class KillAfter(Observer):
    """Ends the run after so many rounds of all its cells."""

    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def ended_round(self, cell: Cell) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


def content(folder: Path) -> tuple[list[Any], str, list[int]]:
    summary = json.loads((folder / "summary.json").read_text())
    metrics = [r for r in rows(folder, "metrics") if r["name"] != "seconds"]
    return metrics, summary["fingerprint"], summary["seeds"]


@pytest.fixture(scope="module")
def until(tiny: Callable[..., Experiment]) -> Experiment:
    return tiny(*SHORT, "seeds={ until = 0.1, most = 9 }", methods=TWO)


@pytest.fixture(scope="module")
def decided(until: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return loop.start(until, tmp_path_factory.mktemp("until") / "run").folder


def test_a_run_stops_at_the_first_seed_at_which_it_is_decided(decided: Path, until: Experiment) -> None:
    """A learning rate of a thousandth loses by many points, which differ from seed to seed: seven are needed."""
    _, _, seeds = content(decided)
    record = read(decided)
    assert record.seeds == tuple(seeds) == tuple(range(7))
    (row,) = tables.paired(record)
    assert row.verdict == "loses"
    assert (row.low, row.high) == pytest.approx(decide.interval(row.values), rel=1e-12)
    assert not any(decide.is_decided(row.values[:n], 0.001) for n in range(7))
    assert set(record.partitions) == set(seeds)
    assert "intervals are a confidence sequence" in page.html(page.of_run(record))


def test_seeds_that_a_decision_needs_have_the_bits_of_a_list_of_seeds(
    decided: Path, tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    listed = loop.start(tiny(*SHORT, "seeds=[0, 1, 2, 3, 4, 5, 6]", methods=TWO), tmp_path / "listed")
    assert listed.summary["fingerprint"] == content(decided)[1]
    assert read(tmp_path / "listed").until is None


@pytest.mark.parametrize("rounds", [7, 28])
def test_a_killed_run_goes_on_to_the_same_seeds_and_bits(
    decided: Path, until: Experiment, tmp_path: Path, rounds: int
) -> None:
    """Killed in the second seed, and in the last round of the seventh, before the decision is known."""
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        loop.start(until, folder, KillAfter(rounds))
    assert len(read(folder).seeds) == math.ceil(rounds / 4)
    shutil.rmtree(folder / "models")
    (folder / "models").mkdir()
    loop.resume(folder)
    assert content(folder) == content(decided)


# ---------------------------------------------------------------- settings
def test_the_rule_is_written_in_the_place_of_seeds_and_read_back(until: Experiment) -> None:
    table = config.resolved(until)
    assert table["seeds"] == {"until": 0.1, "most": 9, "least": 6, "first": 0, "metric": "last_round"}
    assert "until" not in table
    assert config.parse(table) == until
    assert fingerprint(config.parse(table)) == fingerprint(until)
