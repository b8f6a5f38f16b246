"""Campaigns: claims as data, decided one after another, no arm twice, stopped and killed anywhere."""

import contextlib
import json
import re
import shutil
import sqlite3
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from unskew.cli.app import app
from unskew.decide.cells import QueuedCell
from unskew.errors import ConfigError, RunError
from unskew.experiment.config import UntilDecided
from unskew.papers import campaign
from unskew.papers.campaign import QUEUE, CampaignWork, Card, Entry, Planned, cards_in
from unskew.papers.claims import Comparison, Row
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


Claims = tuple[Planned, ...]


def loaded(folder: Path, text: str = TWO) -> Claims:
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


POINTS = Comparison("", "a", "b", metric="x")


def claims(folder: Path) -> list[Any]:
    (page,) = json.loads((folder / "status.json").read_text("utf-8"))
    return [(c["holds"], c["evidence"]) for c in page["claims"]]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, _digits_are_read_once: None) -> tuple[Claims, Path, int]:
    place = tmp_path_factory.mktemp("done")
    two, count = loaded(place), Count()
    campaign.run(two, place / "out", count)
    return two, place / "out", count.rounds


# ---------------------------------------------------------------- running
def test_claims_are_decided_and_an_arm_that_two_share_runs_once(done: tuple[Claims, Path, int]) -> None:
    """Claim 1 is decided at the second seed; claim 2 goes on to its sixth, with FedAvg's first two at hand."""
    _, folder, rounds = done
    same, (verdict, evidence) = claims(folder)
    assert same == (True, "+0.00 points in each of 2 seeds, no interval, 0.1 allowed")
    assert verdict is False
    assert re.fullmatch(r"-.* points, 95 % confidence sequence \[-.*, -.*\] over 6 seeds", evidence)
    needed = 6
    assert rounds == 2 * (2 + 2 * needed)  # two rounds of: `same` under two seeds, FedAvg and `slow` under all
    arms = [p for p in (folder / "arms").glob("*/seed-*") if (p / "summary.json").exists()]
    assert len(arms) == 2 + 2 * needed


def ended(differences: list[float], compared: Comparison = POINTS, **rule: Any) -> str:
    """Why a claim gets no more seeds, whose arms differ by so much under the first of them."""
    rows = [Row(method, "", "x", None, None, None, "seeds", ()) for method in "ab"]
    arms = {row: QueuedCell({}, name=row.method) for row in rows}
    entry = Entry(title="", of="", rule=UntilDecided(until=0.5, **rule))
    planned = Planned(entry, compared, [(rows[0], rows[1])], arms)
    cards: campaign.Cards = defaultdict(dict)
    for seed, d in enumerate(differences):
        cards["a"][seed], cards["b"][seed] = Card(1.0, {"x": d / compared.factor}), Card(1.0, {"x": 0.0})
    cards["b"][len(differences)] = Card(1.0, {"x": 1.0})  # run for another claim
    return campaign.standing(planned, cards)[1]


def test_points_within_half_a_point_are_level_and_other_units_narrow() -> None:
    """A twentieth of a point up and down, eight times: a confidence sequence well within .5."""
    other = Comparison("", "a", "b", unit="loss", factor=1.0)
    assert ended([0.05, -0.05] * 4) == "decided"
    assert ended([0.0] * 6) == "decided"
    assert not ended([-0.1, -0.5] * 4)  # [-.62, +.02]
    assert ended([0.05, -0.05] * 4, other) == "the interval is narrower than 0.5"
    assert not ended([0.5, -0.5] * 4, other)
    assert ended([0.5, -0.5] * 4, other, most=8) == "8 seeds, the most"


@pytest.mark.parametrize(("most", "count", "why"), [(3, 3, "decided"), (3, 2, ""), (4, 3, "")])
@pytest.mark.parametrize("claimed", [{}, {"below": "", "beyond": 0.1}])
def test_seeds_whose_number_is_fixed_are_looked_at_once_by_students_interval(
    most: int, count: int, why: str, claimed: dict[str, Any]
) -> None:
    """2, 3, 4 points: 3 ± 2.48, and no confidence sequence of three; nothing is said before the last of them.

    A number that is to be above .1 points was tested by Student's interval after each seed.
    """
    assert ended([2.0, 3.0, 4.0][:count], replace(POINTS, **claimed), least=3, most=most) == why


def test_a_number_that_is_no_measure_of_models_has_the_unit_of_the_file() -> None:
    """Bytes were shown in points, a hundred times as many."""
    sent = Comparison("", "a", "b", metric="bytes.up", unit="MB", factor=1e-6)
    assert sent.about([ACCURACY]) == sent
    assert Comparison("", "a", "b", unit="MB").about([ACCURACY]) == Comparison("", "a", "b", metric="global.accuracy")


def test_a_claim_may_compare_two_metrics(done: tuple[Claims, Path, int]) -> None:
    """The same arm's loss and accuracy, one claim about the two methods, and one that lacks its metric."""
    (first, _), folder, _ = done
    arms, ((a, b),) = first.arms, first.pairs
    ours, loss, none = b, replace(b, metric="global.loss"), replace(b, metric="global.accuracies")

    def said(*pairs: tuple[Row, Row]) -> str:
        used = {row: arms[replace(row, metric=a.metric)] for pair in pairs for row in pair}
        compared = replace(first.compared, within=None)
        claim, _ = campaign.standing(replace(first, compared=compared, pairs=pairs, arms=used), cards_in(folder))
        return claim.evidence

    assert "+0.00" in said((a, b))
    assert "+0.00" not in said((loss, ours))
    assert "the smallest of 2" in said((a, b), (loss, ours))
    assert said((a, none)).endswith("; fedavg, seed 0: no global.accuracies; did you mean global.accuracy?")


def test_bytes_are_those_of_all_rounds(done: tuple[Claims, Path, int]) -> None:
    """Four clients send 64 x 16 + 16 + 16 x 10 + 10 numbers in each of two rounds; the last alone counted."""
    (first, _), folder, _ = done
    for arm in first.arms.values():
        sent = cards_in(folder)[arm.key][0].values["bytes.up"]
        assert 2 * 4 * 4 * 1210 < sent < 2.2 * 4 * 4 * 1210


def test_arms_that_are_done_are_carried_to_another_machine_without_their_runs(
    done: tuple[Claims, Path, int], tmp_path: Path
) -> None:
    two, folder, _ = done
    shutil.copy(folder / QUEUE, tmp_path)
    here, there = ([r.to_json() for r in campaign.results(two, cards_in(of))] for of in (folder, tmp_path))
    assert there == here
    (page,) = campaign.results(two, cards_in(tmp_path))
    assert (page.name, page.seeds) == ("campaign/tiny", tuple(range(6)))
    assert page.about.startswith("Two tiny claims. Claims with a confidence sequence got seeds")
    assert "them. Run on digits: 1,438 examples, mlp, 4 clients, 2 rounds, lr 0.3, batch size 64. Run" in page.about
    needed = {"same": 2, "fedavg": 6, "slow": 6}
    ends = [(m, f"global.accuracy{end}", n) for m, n in needed.items() for end in ("", ".mean_last_fifth")]
    assert [(row.method, row.metric, len(row.seeds)) for row in page.rows] == ends
    campaign.run(two, tmp_path, Observer())
    assert not list(tmp_path.rglob("run.json"))
    for damage in ('"card"', '{"seconds": 1, "values": 3}', '{"seconds": 1, "measures": [3]}'):
        with contextlib.closing(sqlite3.connect(tmp_path / QUEUE)) as file:
            file.execute("UPDATE cells SET outcome = ?", (damage,))
            file.commit()
        with pytest.raises(RunError, match=r"sqlite has no outcomes to go on from \(.*\); delete it"):
            cards_in(tmp_path)


def test_with_little_time_no_arm_begins_that_would_not_end_in_it(tmp_path: Path) -> None:
    """Both arms of the first claim take a second; an arm of the second is said to take an hour."""
    text = TWO.replace('"a term*"', '"a term*"\nminutes = 0.01').replace('"a millionth*"', '"a mil*"\nminutes = 60')
    campaign.run(loaded(tmp_path, text), tmp_path / "out", Observer(), minutes=1.0)
    (decided, _), (_, left_open) = claims(tmp_path / "out")
    assert (decided, left_open) == (True, "no interval; open")


def test_json_stands_alone(done: tuple[Claims, Path, int]) -> None:
    _, folder, _ = done
    words = ["reproduce", "--campaign", str(folder.parent / "two.toml"), "--out", str(folder), "--json"]
    printed = CliRunner().invoke(app, words)
    assert [len(page["claims"]) for page in json.loads(printed.stdout)] == [2], printed.output
    assert "a term of no weight changes nothing" in printed.stderr


def test_a_run_of_something_else_in_an_arm_s_place_is_not_believed_nor_imported(
    done: tuple[Claims, Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack that worked: a folder from elsewhere had a network of its own, imported to resume the arm."""
    two, folder, _ = done
    arm = next(iter(two[0].arms.values()))
    (theirs := tmp_path / "arms" / arm.key / "seed-0").mkdir(parents=True)
    written = folder / "arms" / arm.key / "seed-0" / "config.toml"
    (theirs / "config.toml").write_text(re.sub(r'model = "mlp"', 'model = "evil:Net"', written.read_text()))
    (theirs / "run.json").write_text("{}")
    (tmp_path / "evil.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match=r"seed-0 holds a run of another experiment; remove it"):
        CampaignWork(tmp_path).train({**arm.asked, "arm": arm.key, "seed": 0})


def test_a_campaign_killed_anywhere_goes_on_to_the_same_numbers(done: tuple[Claims, Path, int], tmp_path: Path) -> None:
    """Killed in the middle of an arm; `tests/decide/test_cells.py` has queues that are."""
    two, count = loaded(tmp_path), Count(7)
    with pytest.raises(Killed):
        campaign.run(two, tmp_path / "out", count)
    again = Count()
    campaign.run(two, tmp_path / "out", again)
    assert claims(tmp_path / "out") == claims(done[1])
    assert done[2] <= count.rounds + again.rounds <= done[2] + 2


def test_a_divergence_ends_the_claim_and_not_the_campaign(tmp_path: Path) -> None:
    text = TWO.replace("lr = 1e-6", "lr = 1e30").replace(
        'same = { name = "fedprox", mu = 0.0 }', 'same = { name = "fedavg" , local = { lr = 1e30 } }'
    )
    two = loaded(tmp_path, text)
    campaign.run(two, tmp_path / "out", Observer())
    for method, (holds, evidence) in zip(("same", "slow"), claims(tmp_path / "out"), strict=True):
        assert holds is None
        assert re.match(rf"no interval.*; {method}, seed 0: .* learning rate 1e\+30", evidence)
    count = Count()
    campaign.run(two, tmp_path / "out", count)
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
