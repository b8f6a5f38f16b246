"""What is kept of a result is whole and replaced; its page and its figure say what they show."""

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from unskew.papers.claims import Claim
from unskew.papers.result import Result, Row, keep, plot
from unskew.report.stats import Curve

# ---------------------------------------------------------------- what is kept
ROWS = (
    Row("fedavg", "iid, 2 clients", "global.accuracy", 0.9, 0.8, 0.01, "seeds", (0.79, 0.81)),
    Row("fedprox", "iid, 2 clients", "global.accuracy", None, 0.85, None, "clients", (0.85,)),
)
CLAIMS = (Claim("p", True, "e"), Claim("q", False, "f"), Claim("r", None, "g"))
CURVE = Curve((0.0, 1.0), (10.0, 80.0), (9.0, 79.0), (11.0, 81.0), 2)
AXES = ("round", "accuracy, %")


def example(curves: bool = True, seconds: float = 1.5) -> Result:
    lines = {"fedavg": CURVE} if curves else {}
    return Result("area/name", "small", seconds, ROWS, CLAIMS, "About.", lines, seeds=(0, 1), date="2026-01-01")


def test_json_is_as_it_was_decided() -> None:
    assert json.loads(json.dumps(example().to_json())) == {
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
    result = replace(example(), rows=(*ROWS, lost))
    rows = result.to_json()["rows"]
    assert rows[2] == {
        "method": "moon", "setting": "iid, 2 clients", "metric": "global.accuracy", "paper": 0.9, "ours": None,
        "std": None, "spread_over": "seeds", "seeds": (), "note": note,
    }  # fmt: skip
    assert all("note" not in row for row in rows[:2])
    folder = keep(result, tmp_path)
    assert "| moon | diverged in seed 1, round 3 (90.00) |" in (folder / "README.md").read_text()
    assert json.loads((folder / "result.json").read_text())["rows"][2]["note"] == note


def test_what_is_kept_replaces_what_lay_there(tmp_path: Path) -> None:
    folder = keep(example(seconds=1.0), tmp_path)
    assert folder == tmp_path / "area" / "name" / "small"
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "plot.svg", "result.json"]
    assert keep(example(seconds=2.0, curves=False), tmp_path) == folder
    assert json.loads((folder / "result.json").read_text())["seconds"] == 2.0
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "result.json"], "no plot of the run before"
    assert "plot.svg" not in (folder / "README.md").read_text()


def test_figures_beside_the_curves_are_kept_and_shown_and_stale_ones_go(tmp_path: Path) -> None:
    drawn = replace(example(), figures=(("features.svg", b"<svg/>"),))
    folder = keep(drawn, tmp_path)
    assert (folder / "features.svg").read_bytes() == b"<svg/>"
    page = (folder / "README.md").read_text("utf-8")
    assert "](plot.svg)" in page
    assert "](features.svg)" in page
    keep(example(), tmp_path)
    assert sorted(p.name for p in folder.glob("*.svg")) == ["plot.svg"]


def test_a_page_says_where_and_when_it_was_made_and_shows_every_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cores are those that the process may use, not those of the machine."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(77)), raising=False)
    page = (keep(example(), tmp_path) / "README.md").read_text("utf-8")
    for words in ("2026-01-01", "seeds 0, 1", "PyTorch", ", 77 cores", "; 2 s;", "scale small"):
        assert words in page
    for words in ("fedavg", "fedprox", "| p | holds |", "| q | does not hold |", "| r | undecided |", "(plot.svg)"):
        assert words in page


def test_the_plot_is_svg_that_names_its_curves_and_is_the_same_twice() -> None:
    labelled = {"fedavg": CURVE, "a <b> & [/c]": Curve((0.0, 1.0), (1.0, 2.0), (1.0, 2.0), (1.0, 2.0), 2)}
    drawn = plot("area/name", "small", labelled, AXES)
    root = ElementTree.fromstring(drawn)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = "".join(root.itertext())
    assert "fedavg" in text
    assert "a <b> & [/c]" in text
    assert "area/name (small)" in text
    assert plot("area/name", "small", labelled, AXES) == drawn


def test_more_curves_than_colours_are_told_apart() -> None:
    curves = {f"m{i}": Curve((0.0, 1.0), (float(i), 2.0), (0.0, 1.0), (3.0, 4.0), 2) for i in range(12)}
    text = "".join(ElementTree.fromstring(plot("x", "small", curves, AXES)).itertext())
    assert all(f"m{i}" in text for i in range(12))
