"""Campaigns: claims as data, decided one after another, no arm twice, stopped and killed anywhere."""

import contextlib
import json
import re
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unskew.cli.app import app
from unskew.errors import ConfigError, RunError
from unskew.experiment.config import UntilDecided
from unskew.papers import campaign
from unskew.papers.campaign import QUEUE, Campaign, CampaignWork, known
from unskew.papers.claims import Comparison
from unskew.run.cell import Cell, Observer
from unskew.tasks.measure import ACCURACY

TWO = """
title = "Two tiny claims"
rule = { until = 0.5, most = 7 }

[experiment]
rounds = 2
evaluate = ["global"]
task = { data = "digits", model = "mlp", model_options = { hidden = [16] } }
split = { name = "iid", num_clients = 4 }
local = { lr = 0.3, batch_size = 64 }
methods = { fedavg = {}, same = { name = "fedprox", mu = 0.0 }, slow = { name = "fedavg", local = { lr = 1e-6 } } }

[reproductions.tiny]

[[reproductions.tiny.claims]]
text = "a term of no weight changes nothing"
above = "same"
below = "fedavg"
within = 0.1

[[reproductions.tiny.claims]]
text = "a millionth of the learning rate is better"
above = "slow"
below = "fedavg"

[[claims]]
of = "tiny"
claim = "a term*"
scale = "small"
rule = { least = 2 }

[[claims]]
of = "tiny"
claim = "a millionth*"
scale = "small"
"""


@pytest.fixture(autouse=True)
def _digits(_digits_are_read_once: None) -> None:
    """Arms are many runs on the same digits."""


def loaded(folder: Path, text: str = TWO) -> Campaign:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "two.toml").write_text(text, "utf-8")
    return campaign.load(folder / "two.toml")


class Count(Observer):
    """Counts rounds, and breaks off after so many as `kill -9` would: nothing more is written."""

    def __init__(self, most: int = 1000) -> None:
        self.rounds, self.most = 0, most

    def ended_round(self, cell: Cell) -> None:
        self.rounds += 1
        if self.rounds == self.most:
            raise Killed


class Killed(BaseException):
    """Stands for kill -9."""


def silent(text: str) -> None:
    pass


def claims(folder: Path) -> list[Any]:
    state = json.loads((folder / "status.json").read_text("utf-8"))
    return [(c["holds"], c["ended"], c["evidence"]) for c in state["claims"]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, _digits_are_read_once: None) -> tuple[Campaign, Path, int]:
    place = tmp_path_factory.mktemp("done")
    two, count = loaded(place), Count()
    campaign.run(two, place / "out", count, say=silent)
    return two, place / "out", count.rounds


# ---------------------------------------------------------------- running
def test_claims_are_decided_and_an_arm_that_two_share_runs_once(done: tuple[Campaign, Path, int]) -> None:
    """Claim 1 is decided at the second seed; claim 2 goes on to its sixth, with FedAvg's first two at hand."""
    _, folder, rounds = done
    same, (verdict, ended, evidence) = claims(folder)
    assert same == (True, "decided", "+0.00 points in each of 2 seeds, no interval, 0.1 allowed")
    assert (verdict, ended) == (False, "decided")
    assert re.fullmatch(r"-.* points, 95 % confidence sequence \[-.*, -.*\] over 6 seeds", evidence)
    needed = 6
    assert rounds == 2 * (2 + 2 * needed)  # two rounds of: `same` under two seeds, FedAvg and `slow` under all
    arms = [p for p in (folder / "arms").glob("*/seed-*") if (p / "summary.json").exists()]
    assert len(arms) == 2 + 2 * needed


def test_points_within_half_a_point_are_level_and_other_units_narrow() -> None:
    """A twentieth of a point up and down, eight times: a confidence sequence well within .5."""
    rule, points = UntilDecided(until=0.5, most=8), Comparison("", "a", "b")
    other = Comparison("", "a", "b", unit="loss", factor=1.0)

    def ended(compared: Comparison, differences: list[float]) -> str:
        return campaign.so_far(compared, [(d / compared.factor, 0.0) for d in differences], rule).ended

    level = points.claim("", [0.0005, -0.0005] * 4, [0.0] * 8, sequential=True)
    assert (level.holds, level.level, ended(points, [0.05, -0.05] * 4)) == (False, True, "decided")
    assert ended(points, [0.0] * 6) == "decided"
    assert not ended(points, [-0.1, -0.5] * 4)  # [-.62, +.02]
    assert ended(other, [0.05, -0.05] * 4) == "the interval is narrower than 0.5"
    assert not ended(points, [0.5, -0.5] * 4)


def test_seeds_whose_number_is_fixed_are_looked_at_once_by_students_interval() -> None:
    """2, 3, 4 points: 3 ± 2.48, and no confidence sequence of three; nothing is said before the last of them."""
    points, gains = Comparison("", "a", "b"), [(0.02, 0.0), (0.03, 0.0), (0.04, 0.0)]
    for most, count, ended in ((3, 3, "decided"), (3, 2, ""), (4, 3, "")):
        rule = UntilDecided(until=0.5, least=3, most=most)
        assert campaign.so_far(points, gains[:count], rule).ended == ended


def test_a_number_that_is_no_measure_of_models_has_the_unit_of_the_file() -> None:
    """Bytes were shown in points, a hundred times as many."""
    sent = Comparison("", "a", "b", metric="bytes.up", unit="MB", factor=1e-6)
    assert sent.about([ACCURACY]) == sent
    assert Comparison("", "a", "b", unit="MB").about([ACCURACY]) == Comparison("", "a", "b", metric="global.accuracy")


def test_a_claim_may_compare_two_metrics(done: tuple[Campaign, Path, int]) -> None:
    two, folder, _ = done
    first = replace(two.claims[0], compared=replace(two.claims[0].compared, within=None, against="global.loss"))
    assert "+0.00" in str(campaign.standing(two.claims[0], known(folder)))
    assert "+0.00" not in str(campaign.standing(first, known(folder)))


def test_bytes_are_those_of_all_rounds(done: tuple[Campaign, Path, int]) -> None:
    """Four clients send 64 x 16 + 16 + 16 x 10 + 10 numbers in each of two rounds; the last alone counted."""
    two, folder, _ = done
    arm = campaign.ran(two.claims[0].arms[0], two.claims[0].rule, known(folder))[0]
    sent = arm.values["bytes.up"] or 0.0
    assert 2 * 4 * 4 * 1210 < sent < 2.2 * 4 * 4 * 1210


def test_arms_that_are_done_are_carried_to_another_machine_without_their_runs(
    done: tuple[Campaign, Path, int], tmp_path: Path
) -> None:
    two, folder, _ = done
    shutil.copy(folder / QUEUE, tmp_path)
    here, there = (campaign.to_json(two, known(of)) for of in (folder, tmp_path))
    assert there == here
    assert there["done"] == len(two.claims)
    campaign.run(two, tmp_path, Observer(), say=silent)
    assert not list(tmp_path.rglob("run.json"))
    for damage in ('"card"', '{"seconds": 1, "values": 3}', '{"seconds": 1, "measures": [3]}'):
        with contextlib.closing(sqlite3.connect(tmp_path / QUEUE)) as file:
            file.execute("UPDATE cells SET outcome = ?", (damage,))
            file.commit()
        with pytest.raises(RunError, match=r"sqlite has no outcomes to go on from \(.*\); delete it"):
            campaign.to_json(two, known(tmp_path))


def test_with_little_time_no_arm_begins_that_would_not_end_in_it(tmp_path: Path) -> None:
    """Both arms of the first claim take a second; an arm of the second is said to take an hour."""
    text = TWO.replace('"a term*"', '"a term*"\nminutes = 0.01').replace('"a millionth*"', '"a mil*"\nminutes = 60')
    campaign.run(loaded(tmp_path, text), tmp_path / "out", Observer(), say=silent, minutes=1.0)
    (_, ended, _), (_, left_open, _) = claims(tmp_path / "out")
    assert (ended, left_open) == ("decided", "")


def test_json_stands_alone(done: tuple[Campaign, Path, int]) -> None:
    _, folder, _ = done
    words = ["reproduce", "--campaign", str(folder.parent / "two.toml"), "--out", str(folder), "--json", "--quiet"]
    printed = CliRunner().invoke(app, words)
    assert json.loads(printed.stdout)["done"] == 2, printed.output
    assert "a term of no weight changes nothing" in printed.stderr


def test_a_run_of_something_else_in_an_arm_s_place_is_not_believed_nor_imported(
    done: tuple[Campaign, Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack that worked: a folder from elsewhere had a network of its own, imported to resume the arm."""
    two, folder, _ = done
    arm = two.claims[0].arms[0]
    (theirs := tmp_path / "arms" / arm.address / "seed-0").mkdir(parents=True)
    written = folder / "arms" / arm.address / "seed-0" / "config.toml"
    (theirs / "config.toml").write_text(re.sub(r'model = "mlp"', 'model = "evil:Net"', written.read_text()))
    (theirs / "run.json").write_text("{}")
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match=r"seed-0 holds a run of another experiment; remove it"):
        CampaignWork(tmp_path).train(arm.cell(0).asked)


def test_a_campaign_killed_anywhere_goes_on_to_the_same_numbers(
    done: tuple[Campaign, Path, int], tmp_path: Path
) -> None:
    """Killed in the middle of an arm; `tests/decide/test_cells.py` has queues that are."""
    two, count = loaded(tmp_path), Count(7)
    with pytest.raises(Killed):
        campaign.run(two, tmp_path / "out", count, say=silent)
    again = Count()
    campaign.run(two, tmp_path / "out", again, say=silent)
    assert claims(tmp_path / "out") == claims(done[1])
    assert done[2] <= count.rounds + again.rounds <= done[2] + 2


def test_a_divergence_ends_the_claim_and_not_the_campaign(tmp_path: Path) -> None:
    text = TWO.replace("lr = 1e-6", "lr = 1e30").replace(
        'same = { name = "fedprox", mu = 0.0 }', 'same = { name = "fedavg" , local = { lr = 1e30 } }'
    )
    two = loaded(tmp_path, text)
    campaign.run(two, tmp_path / "out", Observer(), say=silent)
    assert all(ended.startswith("diverged: ") for _, ended, _ in claims(tmp_path / "out"))
    assert re.search(r"slow, seed 0: .* learning rate 1e\+30", (tmp_path / "out" / "status.json").read_text("utf-8"))
    count = Count()
    campaign.run(two, tmp_path / "out", count, say=silent)
    assert count.rounds == 0


# ---------------------------------------------------------------- the file
@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"a millionth*"', '"a millon*"', "claims.1.claim: tiny has no claim that fits 'a millon"),
        ('of = "tiny"', 'of = "feddw/gian"', "claims.0.of: there is no 'feddw/gian'; did you mean feddw/gain?"),
        ("most = 7", "most = 4", "claims.1.rule: most must be at least 6"),
        ("most = 7", "mots = 7", "unknown key claims.0.rule.mots"),
        ("rounds = 2", "rounds = 0", "claims.0, tiny: rounds must be >= 1, got 0"),
        ('of = "tiny"', 'of = "hcct/table4"', "claims.0, hcct/table4: unknown key divide"),
    ],
)
def test_a_bad_campaign_is_refused_in_one_sentence_before_anything_runs(
    tmp_path: Path, old: str, new: str, text: str
) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        loaded(tmp_path, TWO.replace(old, new, 1))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
