"""What is kept of a result is whole and replaced; its page and its figure say what they show."""

import json
from dataclasses import replace
from pathlib import Path

from unskew.papers.claims import Claim, Row, over_seeds
from unskew.papers.result import Result, keep, lines, pivot
from unskew.report.page import html
from unskew.report.stats import Curve

ROWS = (
    Row("fedavg", "iid, 2 clients", "global.accuracy", 0.9, 0.8, 0.01, "seeds", (0.79, 0.81)),
    Row("fedprox", "iid, 2 clients", "global.accuracy", None, 0.85, None, "clients", (0.85,)),
)
CLAIMS = (Claim("p", True, "e"), Claim("q", False, "f"), Claim("r", None, "g"))
CURVE = Curve((0.0, 1.0), (10.0, 80.0), (9.0, 79.0), (11.0, 81.0), 2)


def example(curves: bool = True, seconds: float = 1.5) -> Result:
    drawn = {"fedavg": CURVE} if curves else {}
    return Result("area/name", "small", seconds, ROWS, CLAIMS, "About.", drawn, seeds=(0, 1), date="2026-01-01")


def test_json_is_as_it_was_decided() -> None:
    card = json.loads(json.dumps(example().to_json()))
    assert [*card.items()][:3] == [("name", "area/name"), ("scale", "small"), ("seconds", 1.5)]
    assert list(card) == ["name", "scale", "seconds", "rows", "claims"]
    assert card["rows"][0] == {
        "method": "fedavg", "setting": "iid, 2 clients", "metric": "global.accuracy", "paper": 0.9, "ours": 0.8,
        "std": 0.01, "spread_over": "seeds", "seeds": [0.79, 0.81],
    }  # fmt: skip
    assert [card["rows"][1][key] for key in ("paper", "std", "spread_over")] == [None, None, "clients"]
    assert card["claims"] == [
        {"text": text, "holds": holds, "evidence": evidence}
        for text, holds, evidence in (("p", True, "e"), ("q", False, "f"), ("r", None, "g"))
    ]


def test_a_result_is_a_page_and_markdown_beside_its_figures(tmp_path: Path) -> None:
    result = replace(example(), figures=(lines("By mu", {"fedavg": CURVE}, ("mu", "%")),))
    page = html(result.page())
    assert "Claims: 1 holds, 1 does not hold, 1 undecided." in page
    assert pivot([over_seeds("fedavg", "iid", "alpha", [], 0.5)])[1] == [["fedavg", "iid", "no value (0.5)"]]
    assert "By mu" in page
    folder = keep(result, tmp_path)
    text = (folder / "README.md").read_text()
    assert {path.name for path in folder.glob("*.svg") if f"]({path.name})" in text} >= {"by-mu.svg"}
    assert "| p | holds | e |" in text
