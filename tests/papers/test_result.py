"""Claims are decided by numbers worked by hand; what is kept is whole and replaced."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew import papers
from unskew.api import History
from unskew.errors import ConfigError, RunError
from unskew.experiment import config
from unskew.papers.result import (
    Claim,
    Curve,
    Result,
    Row,
    curves_of,
    decide,
    ended,
    final,
    interval,
    keep,
    plot,
    ran,
    rows_of,
)
from unskew.run import loop
from unskew.run.callbacks import NoCallback

DIFFERENCES = st.lists(st.floats(-1, 1), min_size=2, max_size=10)


def test_the_interval_of_three_differences_worked_by_hand() -> None:
    """1, 2, 3: mean 2, standard deviation 1, and t(0.975; 2) = 4.302653: half width 4.302653 / sqrt(3) = 2.484138."""
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, -0.484138, 4.484138), abs=1e-6)


def test_the_interval_of_two_differences_worked_by_hand() -> None:
    """0.01, 0.03: mean 0.02, deviation 0.01 sqrt(2), t(0.975; 1) = 12.706205: half width 0.127062."""
    assert interval([0.01, 0.03]) == pytest.approx((0.02, -0.107062, 0.147062), abs=1e-6)


@pytest.mark.parametrize("differences", [[], [0.5], [0.0, 0.0, 0.0], [0.1] * 7, [0.3 - 0.1, 0.4 - 0.2, 0.5 - 0.3]])
def test_without_spread_there_is_no_interval_and_no_verdict(differences: list[float]) -> None:
    """0.3 - 0.1 and 0.4 - 0.2 differ by 3e-17, which is rounding and not what seeds differ by."""
    assert interval(differences) is None
    claim = decide("a is above b", differences)
    assert (claim.holds, claim.verdict) == (None, "undecided")
    assert claim.evidence.endswith("no interval")


def test_a_claim_without_an_interval_still_says_what_was_found() -> None:
    assert decide("", [0.02]).evidence == "+2.00 points in 1 seed, no interval"
    assert decide("", [-0.01, -0.01]).evidence == "-1.00 points in each of 2 seeds, no interval"
    assert decide("", []).evidence == "no interval"


@pytest.mark.parametrize(
    ("differences", "holds", "verdict", "evidence"),
    [
        # 2, 3, 4 points: mean 3, half width 4.302653 / sqrt(3) = 2.48
        ([0.02, 0.03, 0.04], True, "holds", "+3.00 points, 95 % interval [+0.52, +5.48] over 3 seeds"),
        ([-0.02, -0.03, -0.04], False, "does not hold", "-3.00 points, 95 % interval [-5.48, -0.52] over 3 seeds"),
        # 1, 2, 3 points: the interval of the worked example reaches below zero
        ([0.01, 0.02, 0.03], None, "undecided", "+2.00 points, 95 % interval [-0.48, +4.48] over 3 seeds"),
    ],
)
def test_a_claim_holds_if_the_whole_interval_is_on_its_side(
    differences: list[float], holds: bool | None, verdict: str, evidence: str
) -> None:
    claim = decide("a is above b", differences)
    assert claim == Claim("a is above b", holds, evidence)
    assert claim.verdict == verdict


def test_differences_that_are_no_accuracies_keep_their_unit() -> None:
    """1, 2, 3 tenths: mean 0.2, half width 0.2484 as in the worked example."""
    claim = decide("", [0.1, 0.2, 0.3], "in distance", 1.0, 3)
    assert (claim.holds, claim.evidence) == (None, "+0.200 in distance, 95 % interval [-0.048, +0.448] over 3 seeds")
    assert decide("", [0.5], "in distance", 1.0, 3).evidence == "+0.500 in distance in 1 seed, no interval"


@given(DIFFERENCES)
def test_the_opposite_claim_has_the_opposite_verdict(differences: list[float]) -> None:
    one, other = decide("", differences).holds, decide("", [-d for d in differences]).holds
    assert other == (None if one is None else not one)


@given(DIFFERENCES)
def test_no_verdict_goes_against_the_mean(differences: list[float]) -> None:
    holds = decide("", differences).holds
    if holds is not None:
        assert holds == (sum(differences) > 0)


# ---------------------------------------------------------------- what is kept
ROWS = (
    Row("fedavg", "iid, 2 clients", "global.accuracy", 0.9, 0.8, 0.01, "seeds", (0.79, 0.81)),
    Row("fedprox", "iid, 2 clients", "global.accuracy", None, 0.85, None, "clients", (0.85,)),
)
CLAIMS = (Claim("p", True, "e"), Claim("q", False, "f"), Claim("r", None, "g"))
CURVE = Curve("fedavg", (0.0, 1.0), (10.0, 80.0), (9.0, 79.0), (11.0, 81.0))


def made(curves: tuple[Curve, ...] = (CURVE,), seconds: float = 1.5) -> Result:
    return Result("area/name", "small", seconds, ROWS, CLAIMS, "About.", curves, seeds=(0, 1), made="2026-01-01")


def test_json_is_as_it_was_decided() -> None:
    assert json.loads(json.dumps(made().to_json())) == {
        "name": "area/name",
        "scale": "small",
        "seconds": 1.5,
        "rows": [
            {
                "method": "fedavg", "setting": "iid, 2 clients", "metric": "global.accuracy", "paper": 0.9, "ours": 0.8,
                "std": 0.01, "spread_over": "seeds", "seeds": [0.79, 0.81],
            },
            {
                "method": "fedprox", "setting": "iid, 2 clients", "metric": "global.accuracy", "paper": None,
                "ours": 0.85, "std": None, "spread_over": "clients", "seeds": [0.85],
            },
        ],
        "claims": [
            {"text": "p", "holds": True, "evidence": "e"},
            {"text": "q", "holds": False, "evidence": "f"},
            {"text": "r", "holds": "undecided", "evidence": "g"},
        ],
    }  # fmt: skip


def test_a_row_without_a_value_says_why_in_the_table_and_in_json(tmp_path: Path) -> None:
    note = "diverged in seed 1, round 3"
    lost = Row("moon", "iid, 2 clients", "global.accuracy", 0.9, None, None, "seeds", (), note)
    result = replace(made(), rows=(*ROWS, lost))
    said = result.to_json()["rows"]
    assert said[2] == {
        "method": "moon", "setting": "iid, 2 clients", "metric": "global.accuracy", "paper": 0.9, "ours": None,
        "std": None, "spread_over": "seeds", "seeds": (), "note": note,
    }  # fmt: skip
    assert all("note" not in row for row in said[:2])
    folder = keep(result, tmp_path)
    assert "| moon | diverged in seed 1, round 3 (90.00) |" in (folder / "README.md").read_text()
    assert json.loads((folder / "result.json").read_text())["rows"][2]["note"] == note


# ---------------------------------------------------------------- methods that diverge
class Notes(NoCallback):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def of_three(bad: float = 1e30, ugly: float = 0.1) -> config.Experiment:
    """FedAvg beside two FedProx, of which the first cannot but diverge, in the second round of seed 1 at the latest."""
    raw = {
        "rounds": 2,
        "seeds": [1, 2],
        "task": {"data": "digits"},
        "split": {"name": "iid", "num_clients": 3},
        "local": {"lr": 0.1},
        "methods": [
            {"name": "fedprox", "label": "bad (lr)", "local": {"lr": bad}},
            {"name": "fedavg"},
            {"name": "fedprox", "label": "ugly", "local": {"lr": ugly}},
        ],
    }
    return config.parse(raw)


def test_a_method_that_diverges_leaves_the_others_as_they_are_without_it(tmp_path: Path) -> None:
    notes = Notes()
    found = ended(of_three(), tmp_path / "run", notes)
    assert dict(found.diverged) == {"bad (lr)": "diverged in seed 1, round 1"}
    assert found.folder == tmp_path / "run without bad (lr)"
    assert [n for n in notes.said if n.startswith("bad (lr), seed 1: ") and n.endswith("goes on without bad (lr)")]
    alone = replace(of_three(), methods=of_three().methods[1:])
    clean = ran(alone, tmp_path / "clean", NoCallback())
    assert found.history.summary["fingerprint"] == clean.summary["fingerprint"]
    assert final(found.history, "bad (lr)", "global.accuracy") is None
    again = ended(of_three(), tmp_path / "run", NoCallback())
    assert (again.diverged, again.folder) == (found.diverged, found.folder)
    assert again.history.summary == found.history.summary


def test_a_stopped_run_of_the_others_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ended(of_three(), tmp_path / "whole", NoCallback())
    one_round, done = loop._Cell.one_round, []

    def stopped(self: Any) -> None:
        one_round(self)
        done.append(self.method.label)
        if done.count("fedavg") == 3:
            self.run.stop.set()

    with monkeypatch.context() as patch:
        patch.setattr(loop._Cell, "one_round", stopped)
        with pytest.raises(loop.Interrupted):
            ended(of_three(), tmp_path / "run", NoCallback())
    assert not (tmp_path / "run without bad (lr)" / "summary.json").exists()
    found = ended(of_three(), tmp_path / "run", NoCallback())
    assert found.history.summary["fingerprint"] == whole.history.summary["fingerprint"]


def test_several_methods_may_diverge_and_all_of_them(tmp_path: Path) -> None:
    experiment = of_three(ugly=1e30)
    found = ended(experiment, tmp_path / "run", NoCallback())
    assert list(found.diverged) == ["bad (lr)", "ugly"]
    assert found.folder.name == "run without bad (lr) without ugly"
    assert {r["method"] for r in found.history.rows} == {"fedavg"}
    nothing = ended(replace(experiment, methods=experiment.methods[::2]), tmp_path / "none", NoCallback())
    assert list(nothing.diverged) == ["bad (lr)", "ugly"]
    assert nothing.history.rows == []


def test_where_nothing_diverges_the_run_lies_where_it_always_did(tmp_path: Path) -> None:
    found = ended(of_three(bad=0.1), tmp_path / "run", NoCallback())
    assert (found.folder, found.diverged) == (tmp_path / "run", {})
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_what_is_kept_replaces_what_lay_there(tmp_path: Path) -> None:
    folder = keep(made(seconds=1.0), tmp_path)
    assert folder == tmp_path / "area" / "name" / "small"
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "plot.svg", "result.json"]
    assert keep(made(seconds=2.0, curves=()), tmp_path) == folder
    assert json.loads((folder / "result.json").read_text())["seconds"] == 2.0
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "result.json"], "no plot of the run before"
    assert "plot.svg" not in (folder / "README.md").read_text()


def test_figures_beside_the_curves_are_kept_and_shown_and_stale_ones_go(tmp_path: Path) -> None:
    drawn = replace(made(), figures=(("features.svg", b"<svg/>"),))
    folder = keep(drawn, tmp_path)
    assert (folder / "features.svg").read_bytes() == b"<svg/>"
    page = (folder / "README.md").read_text("utf-8")
    assert "](plot.svg)" in page
    assert "](features.svg)" in page
    keep(made(), tmp_path)
    assert sorted(p.name for p in folder.glob("*.svg")) == ["plot.svg"]


def test_a_disk_that_fills_leaves_the_kept_result_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = keep(made(seconds=1.0), tmp_path)
    before = {p.name: p.read_bytes() for p in folder.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unskew.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        keep(made(seconds=2.0), tmp_path)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_a_page_says_where_and_when_it_was_made_and_shows_every_verdict(tmp_path: Path) -> None:
    page = (keep(made(), tmp_path) / "README.md").read_text("utf-8")
    for words in ("2026-01-01", "seeds 0, 1", "PyTorch", "cores", "; 2 s;", "scale small"):
        assert words in page
    for words in ("fedavg", "fedprox", "| p | holds |", "| q | does not hold |", "| r | undecided |", "(plot.svg)"):
        assert words in page


def test_the_plot_is_svg_that_names_its_curves_and_is_the_same_twice() -> None:
    labelled = made((CURVE, Curve("a <b> & [/c]", (0.0, 1.0), (1.0, 2.0), (1.0, 2.0), (1.0, 2.0))))
    drawn = plot(labelled)
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = "".join(root.itertext())
    assert "fedavg" in text
    assert "a <b> & [/c]" in text
    assert "area/name (small)" in text
    assert plot(labelled) == drawn


def test_more_curves_than_colours_are_told_apart() -> None:
    curves = tuple(Curve(f"m{i}", (0.0, 1.0), (float(i), 2.0), (0.0, 1.0), (3.0, 4.0)) for i in range(12))
    text = "".join(ElementTree.fromstring(plot(made(curves))).itertext())
    assert all(f"m{i}" in text for i in range(12))


def test_bands_are_drawn_where_they_do_not_hide_each_other() -> None:
    def drawn(n: int) -> str:
        return plot(
            made(tuple(Curve(f"m{i}", (0.0, 1.0), (1.0, 2.0), (0.0, 1.0), (3.0, 4.0)) for i in range(n)))
        ).decode()

    for n, bands in ((6, 6), (7, 0)):
        assert drawn(n).count("FillBetweenPolyCollection") == bands
        assert ("band from lowest to highest seed" in drawn(n)) == (bands > 0)


# ---------------------------------------------------------------- from a run
def history() -> History:
    rows = [
        {"method": "fedavg", "seed": s, "round": t, "name": "global.accuracy", "value": v, "weight": 1.0}
        for s, values in enumerate([(0.1, 0.5), (0.2, 0.7)])
        for t, v in enumerate(values)
    ]
    rows.append({**rows[0], "client": 3, "value": 0.9})
    rows.append({**rows[0], "name": "global.loss"})
    table = {"setting": "iid", "mean": 0.6, "std": 0.1, "seeds": [0.5, 0.7]}
    found = [{"method": "fedavg", "metric": m, **table} for m in ("global.accuracy", "seconds")]
    return History(rows, {"rows": found}, None)


def test_a_curve_is_the_mean_over_seeds_between_the_lowest_and_the_highest() -> None:
    """Seeds (10, 50) and (20, 70) percent: means 15 and 60.  A single client's row is no part of it."""
    (curve,) = curves_of(history())
    assert (curve.name, curve.x) == ("fedavg", (0.0, 1.0))
    assert curve.mean == pytest.approx((15.0, 60.0))
    assert curve.low == pytest.approx((10.0, 50.0))
    assert curve.high == pytest.approx((20.0, 70.0))


def test_a_curve_ends_where_the_first_seed_does() -> None:
    """One that was stopped early leaves no mean of the others behind it."""
    found = history()
    found.rows.append({**found.rows[0], "seed": 1, "round": 2, "value": 0.9})
    (curve,) = curves_of(found)
    assert curve.x == (0.0, 1.0)
    assert found.curve("fedavg") == [(0, pytest.approx(0.15)), (1, pytest.approx(0.6))]


def test_chosen_metrics_become_rows_beside_the_published_number() -> None:
    (row,) = rows_of(history(), ("global.accuracy",), {("fedavg", "global.accuracy"): 0.65})
    assert row == Row("fedavg", "iid", "global.accuracy", 0.65, 0.6, 0.1, "seeds", (0.5, 0.7))
    assert rows_of(history(), ("global.accuracy",))[0].paper is None


# ---------------------------------------------------------------- the table of reproductions
def test_every_reproduction_can_be_found_and_is_described() -> None:
    from importlib import import_module

    for name, entry in papers.TABLE.items():
        module, _, attribute = entry.target.partition(":")
        assert callable(getattr(import_module(module), attribute)), name
        assert entry.about


def test_names_scales_and_folders_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean noniid/digits"):
        papers.reproduce("noniid/digit", "small", tmp_path / "r", None, NoCallback())
    with pytest.raises(ConfigError, match=r"small, paper, got 'large'"):
        papers.reproduce("noniid/digits", "large", tmp_path / "r", None, NoCallback())
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").touch()
    with pytest.raises(RunError, match="exists already"):
        papers.reproduce("noniid/digits", "small", tmp_path / "taken", None, NoCallback())
    assert not (tmp_path / "r").exists()
