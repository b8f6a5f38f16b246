"""The report's part about groups, from a run folder made by hand: 4 clients, 3 rounds, methods hcct and flsc.

    round 1   0 | 1 | 2 | 3
    round 2   0 1 | 2 3
    round 3   0 1 2 | 3       merges 0-1 (benefit 1.5), 0-2 (.25); not made 0-3 (-.5)

Own accuracy in round 3: hcct .9, .8, .7, .6; alone .8, .8, .8, .6: gains 10, 0, -10 and 0 points.
Clients have 10, 20, 25 and 50 examples; with alpha = 5 utilities alone are .5, .75, .8 and .9.
Clients 0, 1 have one domain, 2, 3 the other.  The adjusted Rand index is 0 in round 1 (everybody alone), 1 in round 2,
and 0 in round 3: one pair agrees (0-1) of 3 and 2 pairs, 3 * 2 / 6 = 1 is what chance gives.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import by_hand
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import rewrite

from unskew.info import ClientGroups
from unskew.report import charts, read
from unskew.report.section import Chart, Table
from unskew.report.sections import groups

Info = dict[str, Any]
Rows = Callable[[Chart], list[dict[str, Any]]]


def merge(first: int, second: int, benefit: float | None) -> Info:
    return {"merge": [first, second], "benefit": benefit, "utility": 1.0}


COSINES = [[1.0, 0.8, 0.4, -0.2], [0.8, 1.0, 0.6, 0.0], [0.4, 0.6, 1.0, 0.1], [-0.2, 0.0, 0.1, 1.0]]
ROUND_3: Info = {
    "groups": [[0, 1, 2], [3]], "history": [merge(0, 1, 1.5), merge(0, 2, 0.25)], "beyond": [merge(0, 3, -0.5)],
    "utility": [0.9, 0.8, 0.7, 0.4], "compared": [0, 1, 2, 3], "similarity": COSINES,
}  # fmt: skip
HCCT: list[Info] = [
    {"groups": [[0], [1], [2], [3]], "history": [], "beyond": [], "utility": [None] * 4},
    {"groups": [[0, 1], [2, 3]], "history": [], "beyond": [], "utility": [None] * 4},
    ROUND_3,
]
FLSC: list[Info] = [{"groups": [[0, 1, 2], [1, 2, 3], []]}] * 3
OWN = {"independent": [0.8, 0.8, 0.8, 0.6], "hcct": [0.9, 0.8, 0.7, 0.6], "flsc": [0.9, 0.8, 0.7, 0.6]}
SIZES = [10, 20, 25, 50]
GROUP = {"name": "group", "clients_per_group": 2, "num_clients": None, "min_samples": 2}


def make_run(
    folder: Path,
    info: dict[str, list[Info]] | None = None,
    methods: Sequence[str] = ("independent", "hcct", "flsc"),
    options: str = "alpha = 5.0",
    split: Info = GROUP,
    domains: Sequence[int] = (0, 0, 1, 1),
    sizes: Sequence[int] = SIZES,
    seeds: Sequence[int] = (0,),
) -> Path:
    """A run's folder; without `info` those of the module's head."""
    info = {"hcct": HCCT, "flsc": FLSC} if info is None else info
    metrics, kept = [], []
    for seed in seeds:
        for m in methods:
            for t in range(1, 1 + max(map(len, info.values()), default=3)):
                at = {"method": m, "seed": seed, "round": t}
                metrics.append({**at, "name": "personal.accuracy.mean", "value": 0.5, "weight": 1.0})
                metrics += [
                    {**at, "client": c, "name": "personal.accuracy", "value": a, "weight": 1.0}
                    for c, a in enumerate(OWN[m])
                ]
                if m in info and t <= len(info[m]):
                    kind = "JudgedGroups" if "groups" in info[m][t - 1] else "dict"
                    kept.append({**at, "type": kind, "info": info[m][t - 1]})
    tables = (f'[[methods]]\nname = "{m}"\nlabel = "{m}"\n{options if m == "hcct" else ""}\n' for m in methods)
    by_hand.write(
        folder, methods, seeds, [[n, 0] for n in sizes], "".join(tables), {"independent": "lower"}, {"split": split},
        {"domains": list(domains)} if len(domains) == len(sizes) else {},
    )  # fmt: skip
    rewrite(folder, metrics=metrics, info=kept)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("hcct") / "run")


def _grouping(folder: Path, method: str = "hcct") -> groups.GroupHistory:
    found = groups.grouping(read(folder), method, "independent")
    assert found is not None
    return found


# ---------------------------------------------------------------- numbers
def test_a_group_keeps_its_number_by_the_members_it_keeps() -> None:
    """Round 2: {0, 1} is 0, {2, 3} is 1.  {0, 1, 2} has 2/3 in common with the first and 1/4 with the second."""
    rounds = [((0,), (1,), (2,), (3,)), ((0, 1), (2, 3)), ((0, 1, 2), (3,)), ((0,), (1,), (2, 3))]
    alone = groups.ALONE
    assert groups.numbers(rounds) == [(alone,) * 4, (0, 1), (0, alone), (alone, alone, 1)], "the second is back"
    assert groups.numbers([((0, 1),), ((2, 3),)]) == [(0,), (1,)], "no member in common"


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5))
def test_no_two_groups_of_a_round_share_a_number_and_unchanged_groups_keep_theirs(rounds: list[list[int]]) -> None:
    formed = [tuple(g for g in (tuple(c for c in range(6) if r[c] == k) for k in range(4)) if g) for r in rounds]
    twice = [of for of in formed for _ in range(2)]
    given = groups.numbers(twice)
    assert given[::2] == given[1::2]
    for of, numbers in zip(twice, given, strict=True):
        numbered = [n for n in numbers if n != groups.ALONE]
        assert len(set(numbered)) == len(numbered) == sum(len(g) > 1 for g in of)


# ---------------------------------------------------------------- over a run
def test_agreement_with_the_domains_is_as_worked_out_by_hand(folder: Path) -> None:
    found = _grouping(folder)
    assert found.rand is not None
    assert found.rand.x == (1, 2, 3)
    assert found.rand.mean == pytest.approx((0, 1, 0))


def test_there_is_no_agreement_without_domains_or_with_overlapping_groups(folder: Path, tmp_path: Path) -> None:
    assert _grouping(folder, "flsc").rand is None
    other = make_run(tmp_path / "run", split={"name": "dirichlet", "alpha": 0.1}, domains=())
    assert _grouping(other).rand is None


def test_gains_are_own_accuracy_less_that_of_training_alone(folder: Path) -> None:
    assert _grouping(folder).gains == {0: pytest.approx(0.1), 1: 0, 2: pytest.approx(-0.1), 3: 0}
    assert _row(folder, "hcct") == "hcct 1 1 0 0 0.00"


def _row(folder: Path, method: str) -> str:
    record = read(folder)
    section = groups.section(record, [method], charts.colours(record.methods))
    assert section is not None
    return " ".join((section.tables[0].entries[0].name, *section.tables[0].entries[0].cells))


# ---------------------------------------------------------------- the section
def test_the_matrix_has_a_groups_clients_together_and_their_mean_cosine(folder: Path, rows: Rows) -> None:
    """Inside {0, 1, 2}: (.8 + .4 + .6)/3 = .6; across, with client 3: (-.2 + 0 + .1)/3 = -.033."""
    chart = groups.similarity_chart(_grouping(folder))
    assert chart is not None
    assert "Mean: inside groups 0.60; across -0.03." in chart.caption
    assert [r["value"] for r in rows(chart)] == [v for line in COSINES for v in line]


# ---------------------------------------------------------------- who is with whom
def _members(folder: Path) -> list[Table]:
    record = read(folder)
    section = groups.section(record, record.reports(ClientGroups), charts.colours(record.methods))
    assert section is not None
    return [table for table in section.tables if table.head[0][0] == "client"]


def test_each_client_has_its_group_promise_and_accuracy(tmp_path: Path) -> None:
    hcct, flsc = _members(make_run(tmp_path / "made"))
    assert hcct.caption == "hcct, seed 0, round 3"
    assert [title for title, _ in hcct.head] == ["client", "group", "utility", "utility", "accuracy", "gain over alone"]
    assert [(row.name, *row.cells) for row in hcct.entries] == [
        ("0", "1", "0.90", "0.50", "90.0", "+10.00"),
        ("1", "1", "0.80", "0.75", "80.0", "0.00"),
        ("2", "1", "0.70", "0.80", "70.0", "−10.00"),
        ("3", "alone", "0.40", "0.90", "60.0", "0.00"),
    ]
    assert [title for title, _ in flsc.head] == ["client", "group", "accuracy", "gain over alone"]
    assert flsc.entries[1].cells == ("1, 2", "80.0", "0.00")  # groups may overlap


def test_merges_stand_in_order_and_those_that_were_not_made_last(folder: Path) -> None:
    assert [(row.name, *row.cells) for row in groups.merges_table(_grouping(folder)).entries] == [
        ("1", "0 and 1", "+1.5", "made"),
        ("2", "0 and 2", "+0.25", "made"),
        ("3", "0 and 3", "−0.5", "not made"),
    ]
