"""The page over all kept results: what is counted, and what stands for a headline."""

from pathlib import Path

import pytest

from unskew.errors import RunError
from unskew.papers import keep, overview
from unskew.papers.claims import Claim, decide
from unskew.papers.result import Result, over_seeds


def result(name: str, *claims: Claim, seconds: float = 60.0, scale: str = "small") -> Result:
    return Result(name, scale, seconds, (over_seeds("fedavg", "x", "global.accuracy", [0.5]),), claims, "about")


def test_keeping_a_result_writes_the_page(tmp_path: Path) -> None:
    """Two papers: ours in the order of the papers, a stranger's after them; what stands around the made part stays."""
    keep(result("mine/one", Claim("a|b", True, "+1.00 points")), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    (tmp_path / "README.md").write_text(text.replace("# Results that are kept", "# Mine"), "utf-8")
    keep(result("feddw/mu", Claim("c", False, "-1.00 points"), Claim("d", None, "no interval")), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert text.startswith("# Mine")
    assert text.index("| [feddw](feddw/README.md) | reduced | 2 | 0 | 1 | 0 | 1 | 1 min 0 s |") < text.index(
        "| [mine](mine/README.md) |"
    )
    own = (tmp_path / "feddw" / "README.md").read_text("utf-8")
    assert "| [feddw/mu](mu/small/README.md) | reduced | 2 | 0 | 1 | 0 | 1 | 1 min 0 s |" in own


def test_reasons_are_counted_and_one_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reasons.toml").write_text('["mine/one"]\n"c *" = "Proven by mine/two: the size"\n', "utf-8")
    claims = Claim("c (1)", False, "-1"), Claim("c (2)", True, "+1"), Claim("e", False, "-2"), Claim("f", None, "")
    level = decide("x ends above y", [-0.001, 0.0, 0.001], published=0.0937)
    own = Claim("as published: x", False, "1 beside 2 %: the data; the size")
    keep(result("mine/one", *claims, level, own), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert "Of 4 claims that do not hold or are not as published, a reason is named for 2 and proven for 1." in text
    assert "| reduced | 6 | 1 | 3 | 1 | 1 |" in text
    with pytest.raises(RunError, match="mine/one has no claim that does not hold and fits 'c \\*'; remove it"):
        keep(result("mine/one", Claim("c (1)", True, "+1")), tmp_path)


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
ours = true
"""


def test_a_headline_stands_on_the_largest_size_and_of_these_on_the_most_seeds(tmp_path: Path) -> None:
    """Small says it holds with 9 seeds; the paper's size decides, though of one seed, then of the result with three."""
    sizes = "".join(
        f'\n[[sizes]]\nresult = "mine/{r}/paper"\ndata = "all of it"\nfull = true\n' for r in ("one", "more")
    )
    verdicts = '[verdicts]\nMine = "In short."\n'
    (tmp_path / "headlines.toml").write_text(verdicts + HEADLINES.replace("mine/one", "mine/*") + sizes, "utf-8")
    keep(result("mine/one", Claim("a", False, "-1"), Claim("c (1)", True, "+1 over 9 seeds")), tmp_path)
    keep(result("mine/one", Claim("c (1)", None, "-2 in 1 seed"), scale="paper"), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    stands = "[all of it](mine/one/paper/README.md); the paper's size |"
    assert f"| Mine | one is above (Table I) | undecided | {stands}" in text
    assert "| Mine | two is above | undecided | mine/two, not kept yet |" in text
    keep(result("mine/more", Claim("c (1)", False, "-2 over 3 seeds"), scale="paper"), tmp_path)
    own = (tmp_path / "mine" / "README.md").read_text("utf-8")
    assert "In short." in own
    stands = "[all of it](more/paper/README.md); the paper's size |"
    assert f"| one is above (Table I) | -2 over 3 seeds | does not hold | {stands}" in own
    assert "| headlines | does not hold | undecided |\n|---|---:|---:|\n| the paper's size | 1 | 0 |" in own


def test_a_headline_without_a_claim_is_refused(tmp_path: Path) -> None:
    (tmp_path / "headlines.toml").write_text(HEADLINES, "utf-8")
    with pytest.raises(RunError, match="mine/one has no claim that fits 'c \\*'; correct or remove it"):
        keep(result("mine/one", Claim("a", False, "-1")), tmp_path)
    (tmp_path / "headlines.toml").write_text(HEADLINES.replace("ours = true", 'ours = "papr"'), "utf-8")
    with pytest.raises(RunError, match=r"headlines\.1\.ours must be"):
        overview.pages(tmp_path)


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.01, 0.02, 0.03], "less than published"),  # 2 ± 2.48 points, 9.37 published
        ([0.08, 0.09, 0.10], "holds"),
        ([0.05, 0.10, -0.02], "undecided"),
    ],
)
def test_a_headline_about_an_amount_fails_with_it(differences: list[float], verdict: str, tmp_path: Path) -> None:
    more = 'paper = "M"\nsays = "+9.37"\nreproduction = "mine/one"\nclaim = "*"\namount = true\nreason = "the size"\n'
    (tmp_path / "headlines.toml").write_text(f"[[headlines]]\n{more}", "utf-8")
    keep(result("mine/one", decide("x", differences, published=0.0937)), tmp_path)
    text = (tmp_path / "README.md").read_text("utf-8")
    assert f"| {verdict} | " in text
    assert "* **+9.37** the size\n" in (tmp_path / "mine" / "README.md").read_text("utf-8")


def test_what_is_no_result_is_refused_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a" / "b" / "small").mkdir(parents=True)
    (tmp_path / "a" / "b" / "small" / "result.json").write_text("{}", "utf-8")
    with pytest.raises(RunError, match=r"a/b/small/result.json is not a kept result: KeyError: 'name'; keep it again"):
        overview.kept(tmp_path)
