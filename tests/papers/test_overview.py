"""The page over all kept results: what is counted, and what stands for a headline."""

from pathlib import Path

import pytest

from unskew.errors import ConfigError, RunError
from unskew.papers import keep, overview
from unskew.papers.claims import Claim, decide, over_seeds
from unskew.papers.result import Result


def result(name: str, *claims: Claim, seconds: float = 60.0, scale: str = "small") -> Result:
    return Result(name, scale, seconds, (over_seeds("fedavg", "x", "global.accuracy", [0.5]),), claims, "about")


def test_keeping_a_result_writes_the_page(tmp_path: Path) -> None:
    """Two papers: ours in the order of the papers, a stranger's after them; what stands before the made part stays."""
    keep(result("mine/one", Claim("a|b", True, "+1.00 points")), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    (tmp_path / "README.md").write_text(text.replace("# Results that are kept", "# Mine"), "utf-8")
    keep(result("feddw/mu", Claim("c", False, "-1.00 points"), Claim("d", None, "no interval")), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert text.startswith("# Mine")
    assert text.index("| [feddw](feddw/README.md) | reduced | 2 | 0 | 1 | 1 | 1 min 0 s |") < text.index(
        "| [mine](mine/README.md) |"
    )
    own = (tmp_path / "feddw" / "README.md").read_text("utf-8")
    assert "| [feddw/mu](mu/small/README.md) | reduced | 2 | 0 | 1 | 1 | 1 min 0 s |" in own


HEADLINES = """
[[headlines]]
paper = "Mine"
says = "one is above (Table I)"
reproduction = "mine/one"
claim = "c *"

[[headlines]]
paper = "Mine"
says = "two is above"
reproduction = "mine/one"
claim = "a"
ours = true
"""


def test_a_headline_stands_on_the_largest_size_and_of_these_on_the_most_seeds(tmp_path: Path) -> None:
    """Small says it holds with 9 seeds; the paper's size decides, though of one seed, then of the result with three."""
    sizes = '[full]\n"mine/one/paper" = "all of it"\n"mine/more/paper" = "all of it"\n'
    verdicts = '[verdicts]\nMine = "In short."\n'
    (tmp_path / "headlines.toml").write_text(verdicts + HEADLINES.replace("mine/one", "mine/*") + sizes, "utf-8")
    keep(result("mine/one", Claim("a", False, "-1"), Claim("c (1)", True, "+1", seeds=9)), tmp_path)
    keep(result("mine/one", Claim("c (1)", None, "-2", seeds=1), scale="paper"), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    stands = "[all of it](mine/one/paper/README.md); the paper's size |"
    assert f"| Mine | one is above (Table I) | undecided | {stands}" in text
    stands = "[mine/one](mine/one/small/README.md); our own question |"
    assert f"| Mine | two is above | does not hold | {stands}" in text
    keep(result("mine/more", Claim("c (1)", False, "-2", seeds=3), scale="paper"), tmp_path)
    own = (tmp_path / "mine" / "README.md").read_text("utf-8")
    assert "In short." in own
    stands = "[all of it](more/paper/README.md); the paper's size |"
    assert f"| one is above (Table I) | -2 | does not hold | {stands}" in own
    assert "| headlines | holds | less than published | does not hold | undecided |\n|---|---:|---:|---:|---:|\n" in own
    assert "| the paper's size | 0 | 0 | 1 | 0 |" in own


@pytest.mark.parametrize(("gain", "verdict"), [(0.02, "less than published"), (0.08, "holds")])
def test_an_amount_is_less_than_published_only_below_it(gain: float, verdict: str, tmp_path: Path) -> None:
    """Published are 5 points; ours are within a tenth of a point of 2, or of 8."""
    headline = '[[headlines]]\npaper = "Mine"\nsays = "5"\nreproduction = "mine/one"\nclaim = "a"\namount = true\n'
    (tmp_path / "headlines.toml").write_text(headline, "utf-8")
    keep(result("mine/one", decide("a", [gain - 0.001, gain, gain + 0.001], published=0.05)), tmp_path)
    assert f"| Mine | 5 | {verdict} |" in (tmp_path / "README.md").read_text("utf-8")


def test_a_headline_without_a_claim_is_refused(tmp_path: Path) -> None:
    (tmp_path / "headlines.toml").write_text(HEADLINES, "utf-8")
    with pytest.raises(RunError, match="no result of mine/one has a claim that fits 'c \\*'; correct or remove it"):
        keep(result("mine/one", Claim("a", False, "-1")), tmp_path)
    (tmp_path / "headlines.toml").write_text(HEADLINES.replace("ours = true", 'ours = "papr"'), "utf-8")
    with pytest.raises(ConfigError, match=r"headlines\.1\.ours must be"):
        overview.pages(tmp_path)
