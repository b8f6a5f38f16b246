"""The page over all kept results: what is counted, what is said, and that it is the page of today."""

import json
import re
from pathlib import Path

import pytest

from unskew.errors import RunError
from unskew.papers import keep, overview
from unskew.papers.claims import Claim
from unskew.papers.result import Result, over_seeds

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def result(name: str, *claims: Claim, seconds: float = 60.0) -> Result:
    return Result(name, "small", seconds, (over_seeds("fedavg", "x", "global.accuracy", [0.5]),), claims, "about")


def test_the_page_of_kept_results_is_of_today() -> None:
    """When this fails: python -m unskew.papers.overview"""
    text = (RESULTS / "README.md").read_text("utf-8")
    assert text == overview.written(text, RESULTS), "python -m unskew.papers.overview writes it"


def test_every_kept_claim_is_on_the_page_and_the_counts_add_up() -> None:
    text = (RESULTS / "README.md").read_text("utf-8")
    claims = [c for path in RESULTS.glob("*/*/*/result.json") for c in json.loads(path.read_text("utf-8"))["claims"]]
    tables = text[text.index("\n### ") :]
    lines = re.findall(r"^\| .* \| (?:holds|does not hold|undecided) \| .*\|$", tables, re.M)
    assert len(lines) == len(claims)
    match = re.search(r"Of (\d+) claims \*\*(\d+) hold, (\d+) do not, (\d+) are undecided", text)
    assert match is not None
    total, hold, fail, undecided = map(int, match.groups())
    assert total == hold + fail + undecided == len(claims)
    assert hold == sum(c["holds"] is True for c in claims)


def test_keeping_a_result_writes_the_page(tmp_path: Path) -> None:
    """Two papers: ours in the order of the papers, a stranger's after them."""
    keep(result("mine/one", Claim("a|b", True, "+1.00 points")), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "Of 1 claims **1 hold, 0 do not, 0 are undecided**" in text
    (tmp_path / "README.md").write_text(text.replace("# Results that are kept", "# Mine"), "utf-8")
    keep(result("feddw/mu", Claim("c", False, "-1.00 points"), Claim("d", None, "no interval")), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert text.startswith("# Mine")
    assert "Of 3 claims **1 hold, 1 do not, 1 are undecided**" in text
    assert (
        "a reason is named for 0, and proven by a run that differs in that alone for 0.  All of it took 2 min 0 s."
        in text
    )
    assert text.index("### feddw/mu, small") < text.index("### mine/one, small")
    assert "| a\\|b | +1.00 points | holds |  |" in text
    assert "| c | -1.00 points | does not hold | not known yet |" in text
    assert "| [feddw/mu](#feddwmu-small) | small | 2 | 0 | 1 | 1 | 1 min 0 s |" in text


def test_reasons_are_named_by_a_pattern_and_one_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reasons.toml").write_text('["mine/one"]\n"c *" = "Proven by mine/two: the size"\n', "utf-8")
    keep(result("mine/one", Claim("c (1)", False, "-1"), Claim("c (2)", True, "+1"), Claim("e", False, "-2")), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "| c (1) | -1 | does not hold | Proven by mine/two: the size |" in text
    assert "| c (2) | +1 | holds |  |" in text
    assert "a reason is named for 1, and proven by a run that differs in that alone for 1." in text
    with pytest.raises(RunError, match="mine/one has no claim that does not hold and fits 'c \\*'; remove it"):
        keep(result("mine/one", Claim("c (1)", True, "+1")), tmp_path)


def test_a_reason_within_the_evidence_gets_its_own_column(tmp_path: Path) -> None:
    keep(result("mine/one", Claim("as published: x", False, "1 beside 2 %: the data; the size")), tmp_path)
    line = "| as published: x | 1 beside 2 % | does not hold | differs from the paper's: the data; the size |"
    assert line in (tmp_path / "README.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        # s = .9 / 2 * sqrt(3) / 4.3027 = .18115; four seeds: 3.1824 s / 2 = .2882 < .35.
        ("+0.35 points, 95 % interval [-0.10, +0.80] over 3 seeds", "3 seeds; a difference of this size would take 4"),
        (
            "+0.00 points, 95 % interval [-0.10, +0.10] over 3 seeds",
            "3 seeds; a difference of this size would take over 1000",
        ),
        ("no interval", ""),
    ],
)
def test_the_seeds_that_would_decide_it_are_named(evidence: str, words: str) -> None:
    assert overview.seeds_needed(evidence) == words


def test_what_is_no_result_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "small").mkdir(parents=True)
    (tmp_path / "a" / "b" / "small" / "result.json").write_text("{}", "utf-8")
    with pytest.raises(RunError, match=r"a/b/small/result.json is not a kept result: KeyError: 'name'; keep it again"):
        overview.kept(tmp_path)
