"""Claims are decided by numbers worked by hand."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from unskew.papers.claims import SAME, Claim, Comparison, decide, every, over_seeds, without_defaults
from unskew.tasks.measure import ACCURACY, Measure

MSE = Measure("mse", "mean squared error", "lower", high=None, percent=False)


@pytest.mark.parametrize("differences", [[], [0.5], [0.0], [0.1] * 7, [0.3 - 0.1, 0.4 - 0.2, 0.5 - 0.3]])
def test_without_spread_there_is_no_interval_and_no_verdict(differences: list[float]) -> None:
    """0.3 - 0.1 and 0.4 - 0.2 differ by 3e-17, which is rounding and not what seeds differ by."""
    claim = decide("a is above b", differences)
    assert (claim.holds, claim.verdict) == (None, "undecided")
    assert claim.evidence.endswith("no interval")


@pytest.mark.parametrize(
    ("differences", "holds", "verdict", "evidence"),
    [
        # 2, 3, 4 points: mean 3, half width 4.302653 / sqrt(3) = 2.48
        ([0.02, 0.03, 0.04], True, "holds", "+3.00 points, 95 % interval [+0.52, +5.48] over 3 seeds"),
        ([-0.02, -0.03, -0.04], False, "does not hold", "-3.00 points, 95 % interval [-5.48, -0.52] over 3 seeds"),
        # 1, 2, 3 points: 2 ± 2.48 reaches below zero
        ([0.01, 0.02, 0.03], None, "undecided", "+2.00 points, 95 % interval [-0.48, +4.48] over 3 seeds"),
    ],
)
def test_a_claim_holds_if_the_whole_interval_is_on_its_side(
    differences: list[float], holds: bool | None, verdict: str, evidence: str
) -> None:
    claim = decide("a is above b", differences)
    assert (claim.holds, claim.evidence, claim.verdict, claim.seeds) == (holds, evidence, verdict, 3)
    shown = re.findall(r"[+-]\d\.\d\d(?=[],])", evidence)
    assert claim.interval == pytest.approx([float(bound) for bound in shown], abs=0.005)
    assert Claim(**json.loads(json.dumps(without_defaults(claim)))) == replace(claim, interval=list(claim.interval))


def test_what_lies_within_half_a_point_on_both_sides_is_level() -> None:
    """-.001, 0, .001: 0 ± 4.302653 x .001 / sqrt(3) = ± .002484; twice that is ± .004968, three times ± .007452."""
    claim = decide("a is above b", [-0.001, 0.0, 0.001])
    assert (claim.holds, claim.level, claim.verdict) == (False, True, "does not hold: level within 0.5 points")
    assert claim.evidence == "+0.00 points, 95 % interval [-0.25, +0.25] over 3 seeds"
    assert decide("", [-0.002, 0.0, 0.002]).level
    assert decide("", [-0.003, 0.0, 0.003]).holds is None
    same, of_bytes = decide("", [0.0, 0.0, 0.0]), decide("", [0.0, 0.0, 0.0], "MB")
    assert [(c.holds, c.level) for c in (same, of_bytes)] == [(False, True), (False, False)]
    assert of_bytes.evidence == "+0.00 MB in each of 3 seeds, no interval"
    assert decide("", [-0.001, 0.0, 0.001], "AUROC", 1.0).holds is None


def test_equal_is_an_interval_within_a_point() -> None:
    """.001, .002, .0015: mean .0015, half width 4.3027 x .0005 / sqrt(3) = .00124; .030 to .032: .031 ± .0025."""
    equal, apart = ([0.0, 0.0, 0.0], [0.001, 0.002, 0.0015]), ([0.02, 0.02], [0.030, 0.031, 0.032])
    assert [decide("", differences, within=SAME).holds for differences in (*equal, *apart)] == 2 * [True] + 2 * [False]
    assert {decide("", differences, within=SAME).holds for differences in ([-0.05, 0.0, 0.05], [0.001])} == {None}


def test_an_order_holds_if_all_of_its_steps_do_and_shows_the_smallest() -> None:
    """.02, .03, .04: .03 ± 4.3027 x .01 / sqrt(3) = ± .0248; 0, .05, .1: .05 ± .124."""
    clear, unclear, wrong = [0.02, 0.03, 0.04], [0.0, 0.05, 0.1], [-0.41, -0.4, -0.39]
    claim = every("", {"b above a": clear, "c above a": [0.4, 0.5, 0.6]})
    assert claim.holds is True
    assert claim.evidence.startswith("b above a: +3.00 points, 95 % interval [+0.52, +5.48] over 3 seeds, ")
    assert claim.evidence.endswith("; the smallest of 2")
    assert every("", {"b": clear, "c": unclear}).holds is None
    assert every("", {"b": clear, "c": unclear, "d": wrong}).holds is False
    assert every("", {"b": [0.1, 0.1]}).holds is True
    assert every("", {"b": [0.0, 0.0], "c": clear}).holds is False
    assert every("", {"b": [0.3]}).holds is None
    assert every("", {}).holds is None


def test_seeds_that_are_added_until_a_claim_is_decided_pay_for_the_looks() -> None:
    """.02, .03, .04 are above zero by Student's interval; a confidence sequence has none of three."""
    high, zero = (over_seeds(m, "", "x", of) for m, of in (("a", (0.02, 0.03, 0.04)), ("b", (0.0, 0.0, 0.0))))
    above, over = Comparison("", "a", "b", metric="x"), Comparison("", "a", "", metric="x", beyond=0.1)
    for claim, pairs in ((above, [(high, zero)]), (above, [(high, zero)] * 2), (over, [(high, high)] * 2)):
        assert [claim.of("", pairs, sequential).holds for sequential in (False, True)] == [True, None]


def test_several_differences_are_within_a_margin_if_all_are() -> None:
    """.01, .02, .03: .02 ± 4.3027 x .01 / sqrt(3) = ± .0248, inside .05; .08, .09, .1: .09 ± .0248, outside.

    Of three it is ± .0442, which reaches in; .19 ± .0442 does not.
    """
    inside, outside, unclear = [0.01, 0.02, 0.03], [0.08, 0.09, 0.10], [-0.06, 0.0, 0.06]
    assert every("", {"a": inside, "b": [0.0, 0.0, 0.0]}, within=0.05).holds is True
    assert every("", {"a": inside, "b": unclear}, within=0.05).holds is None
    assert every("", {"c": outside}, within=0.05).holds is False
    assert every("", {"a": inside, "b": unclear, "c": outside}, within=0.05).holds is None
    claim = every("", {"a": inside, "b": unclear, "c": [v + 0.1 for v in outside]}, within=0.05)
    assert claim.holds is False
    assert claim.evidence.startswith("c: +19.00 points, 95 % interval [+16.52, +21.48]")
    assert claim.evidence.endswith("; the largest of 3, 1 refuted")


def test_a_number_may_be_held_against_another_than_zero() -> None:
    """.92, .93, .94: .93 ± .0248, above .9 and not above .91; no worse than .5 points is .005 below zero."""
    verdicts = [decide("", [0.92, 0.93, 0.94], "", 1.0, least=least).holds for least in (0.9, 0.91, 0.96)]
    assert verdicts == [True, None, False]
    assert decide("", [-0.003, -0.002, -0.001], least=-0.005).holds is True


def test_counts_that_are_all_equal_decide() -> None:
    assert [decide("", [n, n], "MB", counts=True).holds for n in (0.1, 0.0, -0.1)] == [True, False, False]


def test_one_of_many_intervals_below_zero_refutes_nothing_by_itself() -> None:
    """-.05, -.04, -.03: -.04 ± t s / sqrt(3), s = .01.

    Student's t with two degrees of freedom is 4.303 at 97.5 %, 7.649 at 99.17 % and 10.886 at 99.58 %: half a width of
    .0248 alone, .0442 of three, .0628 of six.  So it lies below zero alone and not among three or more.
    """
    above, below = [0.10, 0.11, 0.12], [-0.05, -0.04, -0.03]
    assert every("", {"a": below}).holds is False
    assert every("", {"a": below, "b": above, "c": above}).holds is None
    claim = every("", {"a": below, **dict.fromkeys("bcdef", above)})
    assert claim.holds is None
    alone, of_six = "95 % interval [-6.48, -1.52] over 3 seeds", "[-10.28, +2.28] for 6 comparisons"
    assert claim.evidence == f"a: -4.00 points, {alone}, {of_six}; the smallest of 6"
    assert every("", {"a": [-0.51, -0.5, -0.49], **dict.fromkeys("bcdef", above)}).holds is False
    assert every("", dict.fromkeys("abcdef", above)).holds is True
    assert every("", {"a": above, "b": [0.1]}).holds is None
    assert every("", {"a": above, "b": [-0.1, -0.1]}).holds is False


def test_the_better_number_is_the_smaller_one_where_that_is_better() -> None:
    """An error of .2 beside .5; what is compared has the name and the unit of the task's measure."""
    better = Comparison("", "a", "b", metric="personal.{headline}.mean", better=True)
    pair = [(over_seeds("a", "", "x", [0.20, 0.21, 0.19]), over_seeds("b", "", "x", [0.5, 0.5, 0.5]))]
    of_errors, of_shares = better.about([MSE]), better.about([ACCURACY])
    assert (of_errors.metric, of_errors.unit) == ("personal.mse.mean", "mean squared error")
    assert (of_shares.metric, of_shares.unit) == ("personal.accuracy.mean", "points")
    assert [of_errors.of("", pair).holds, of_shares.of("", pair).holds] == [True, False]
    assert replace(better, better=False).about([MSE]).of("", pair).holds is False


def test_a_claim_may_be_about_one_method() -> None:
    """.19, .2, .21: .2 ± .0248; beside a published .25 they are 20 % too small, ± 9.94."""
    row, alone = over_seeds("a", "", "x", [0.19, 0.20, 0.21], 0.25), Comparison("", "a", "", unit="%", form="+.1f")
    above = [replace(alone, beyond=n).of("", [(row, row)]).holds for n in (15.0, 19.0, 23.0)]
    near = [replace(alone, share=True, within=n).of("", [(row, row)]) for n in (30.0, 20.0, 10.0)]
    assert above == [claim.holds for claim in near] == [True, None, False]
    assert near[0].evidence == "-20.0 %, 95 % interval [-29.9, -10.1] over 3 seeds, 30 allowed"


def test_pairs_in_the_same_words_are_decided_as_each_of_them_is() -> None:
    """1 and .7 ± .0248 in two runs: .3 above and no more, 30 % saved, and worse where less is better."""
    of = {"a": [1.0, 1.0, 1.0], "b": [0.71, 0.70, 0.69]}
    rows = [over_seeds(m, f"d, {k}", "error", values) for k in "xy" for m, values in of.items()]

    def folded(**changes: Any) -> Claim:
        claim = replace(Comparison("", "a", "b", metric="error"), **changes)
        return claim.of("", [pair for where in ("d, x", "d, y") for pair in claim.pairs(rows, where)])

    assert folded().evidence.startswith("x: +30.00 points, 95 % interval [+27.52, +32.48] over 3 seeds, [")
    assert folded(share=True, unit="% saved", form="+.1f").evidence.startswith("x: +30.0 % saved, ")
    assert [folded(beyond=n).holds for n in (20.0, 30.0)] == [True, None]
    assert [folded(better=True).holds, folded(above="b", below="", beyond=60.0).holds] == [False, True]
    elsewhere = [replace(row, setting=f"e{row.setting[1:]}") for row in rows]
    both = [(a, b) for of_ground in (rows, elsewhere) for a, b in [of_ground[:2]]]
    assert Comparison("", "a", "b", metric="error").of("", both).evidence.endswith("; the smallest of 2")
