"""The page over all kept results: what is counted, what is said, and that it is the page of today."""

from pathlib import Path

import pytest

from unskew.errors import RunError
from unskew.papers import keep, overview
from unskew.papers.claims import Claim, decide
from unskew.papers.result import Result, over_seeds


def result(name: str, *claims: Claim, seconds: float = 60.0, scale: str = "small") -> Result:
    return Result(name, scale, seconds, (over_seeds("fedavg", "x", "global.accuracy", [0.5]),), claims, "about")


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
        "0 are level within 0.5 points, a reason is named for 0, and proven for 0.  All of it took 2 min 0 s." in text
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
    assert "a reason is named for 1, and proven for 1." in text
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


def test_level_and_what_was_published_stand_in_the_table(tmp_path: Path) -> None:
    level = decide("x ends above y", [-0.001, 0.0, 0.001], published=0.0937)
    keep(result("mine/one", level, decide("z ends above y", [0.01, 0.02, 0.03])), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    ours = "+0.00 points, 95 % interval [-0.25, +0.25] over 3 seeds"
    assert "| claim | ours | published | verdict | reason |" in text
    verdict = "does not hold: level within 0.5 points"
    assert f"| x ends above y | {ours} | +9.37, excluded | {verdict} | not known yet |" in text
    assert "Of 2 claims **0 hold, 1 do not, 1 are undecided**" in text
    assert "Of those that do not hold, 1 are level within 0.5 points, " in text
    assert "Of 1 published differences our intervals exclude 1." in text


HEADLINES = """
[[headlines]]
paper = "Mine"
says = "one is above (Table I)"
reproduction = "mine/one"
claim = "c *"

[[headlines]]
paper = "Mine"
says = "two is above"
reproduction = "mine/two"
claim = "*"
"""


def test_headlines_come_first_with_the_claim_that_stands_for_each(tmp_path: Path) -> None:
    (tmp_path / "headlines.toml").write_text(HEADLINES, "utf-8")
    keep(result("mine/one", Claim("a", False, "-1"), Claim("c (1)", True, "+1"), Claim("c (2)", None, "?")), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "Of 2 headline claims 1 holds, 0 do not, 1 is undecided.\n\n" in text
    assert "| Mine | one is above (Table I) | +1 ([mine/one](#mineone-small)) | holds |  |" in text
    assert "| Mine | two is above | not kept yet (mine/two) | undecided |  |" in text
    assert text.index("What the papers are known for") < text.index("All claims by reproduction")
    with pytest.raises(RunError, match="mine/one has no claim that fits 'c \\*'; correct or remove it"):
        keep(result("mine/one", Claim("a", False, "-1")), tmp_path)
    (tmp_path / "headlines.toml").write_text("[[headlines]]\npaper = 'Mine'\n", "utf-8")
    with pytest.raises(RunError, match=r"headlines\.0\.says is required"):
        overview.page(tmp_path)


def test_a_headline_is_read_at_the_papers_size_unless_it_names_another(tmp_path: Path) -> None:
    small = HEADLINES.replace("(Table I)", "at small").replace("[[headlines]]", '[[headlines]]\nscale = "small"', 1)
    (tmp_path / "headlines.toml").write_text(HEADLINES + small, "utf-8")
    keep(result("mine/one", Claim("c (1)", True, "+1")), tmp_path)
    keep(result("mine/one", Claim("c (1)", False, "-2"), scale="paper"), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "| one is above (Table I) | -2 ([mine/one](#mineone-paper), at the paper's size) | does not hold |" in text
    assert "| one is above at small | +1 ([mine/one](#mineone-small)) | holds |" in text
    (tmp_path / "headlines.toml").write_text(small.replace('"small"', '"papr"'), "utf-8")
    with pytest.raises(RunError, match=r"headlines\.0\.scale must be"):
        overview.page(tmp_path)


def test_what_a_paper_does_not_claim_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "headlines.toml").write_text(
        HEADLINES.replace("[[headlines]]", "[[headlines]]\nours = true", 1), "utf-8"
    )
    keep(result("mine/one", Claim("c (1)", True, "+1")), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert (
        "Of 2 headline claims 1 holds, 0 do not, 1 is undecided.\nThe papers do not claim 1 of them; of these 1 holds, "
        "0 do not, 0 are undecided.\n\n"
    ) in text
    assert "| Mine | one is above (Table I) (not the paper's) | +1 " in text


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.01, 0.02, 0.03], "does not hold: excluded"),  # 2 ± 2.48 points, 9.37 published
        ([0.08, 0.09, 0.10], "holds"),
        ([0.05, 0.10, -0.02], "undecided"),
    ],
)
def test_a_headline_about_an_amount_fails_with_it(differences: list[float], verdict: str, tmp_path: Path) -> None:
    more = 'paper = "M"\nsays = "+9.37"\nreproduction = "mine/one"\nclaim = "*"\namount = true\nreason = "the size"\n'
    (tmp_path / "headlines.toml").write_text(f"[[headlines]]\n{more}", "utf-8")
    keep(result("mine/one", decide("x", differences, published=0.0937)), tmp_path)
    assert f" | {verdict} | the size |" in (tmp_path / "README.md").read_text("utf-8")


def test_what_is_no_result_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "small").mkdir(parents=True)
    (tmp_path / "a" / "b" / "small" / "result.json").write_text("{}", "utf-8")
    with pytest.raises(RunError, match=r"a/b/small/result.json is not a kept result: KeyError: 'name'; keep it again"):
        overview.kept(tmp_path)
