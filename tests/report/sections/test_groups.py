"""The report's part about groups, from a run folder made by hand: 4 clients, 3 rounds, methods hcct and flsc.

    round 1   0 | 1 | 2 | 3
    round 2   0 1 | 2 3
    round 3   0 1 2 | 3       merges 0-1 (benefit 1.5), 0-2 (.25); not made 0-3 (-.5)

Own accuracy in round 3: hcct .9, .8, .7, .6; alone .8, .8, .8, .6: gains 10, 0, -10 and 0 points.
Clients have 10, 20, 25 and 50 examples; with alpha = 5 utilities alone are .5, .75, .8 and .9.
Clients 0, 1 have one domain, 2, 3 the other.  The adjusted Rand index is 0 in round 1 (everybody alone), 1 in round 2,
and 0 in round 3: one pair agrees (0-1) of 3 and 2 pairs, 3 * 2 / 6 = 1 is what chance gives.
"""

import base64
import importlib.util
import json
import math
import re
import struct
import xml.etree.ElementTree as xml
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew import simulate
from unskew.algorithms import hcct
from unskew.algorithms.ifca import IFCA
from unskew.algorithms.independent import Independent
from unskew.data.split import Dirichlet
from unskew.errors import RunError
from unskew.report import figures, members, read, stats, write_report
from unskew.report import page as html
from unskew.report.sections import group_figures, group_history, groups
from unskew.report.worth import alone


def _neighbour(name: str) -> ModuleType:
    """A test module of reports, for the page checks it has."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = _neighbour("test_report")

Info = dict[str, Any]


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
    folder.mkdir(parents=True)
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
                    kind = "unskew.judged-groups" if "groups" in info[m][t - 1] else "dict"
                    kept.append({**at, "type": kind, "info": info[m][t - 1]})
    run = {
        "schema": 1, "run": "made by hand", "created": "2025-06-01T12:00:00+00:00", "command": "unskew run",
        "unskew": "0", "config_sha256": "c" * 64, "environment": {"device": "cpu"}, "parameters": 250,
        "cells": [
            {"method": m, "setting": "by hand", "seed": s, "bound": "lower" if m == "independent" else None}
            for s in seeds for m in methods
        ],
    }  # fmt: skip
    one = {
        "dataset": "made", "dataset_sha256": "d" * 64, "n": sum(sizes), "split": split, "sha256": "a" * 64,
        "stats": {"sizes": list(sizes), "label_counts": [[n, 0] for n in sizes], "iid_distance": 0.7, "js": 0.3,
                  "effective_classes": 1.0, **({"domains": list(domains)} if len(domains) == len(sizes) else {})},
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "config.toml").write_text(
        "".join(f'[[methods]]\nname = "{m}"\nlabel = "{m}"\n{options if m == "hcct" else ""}\n' for m in methods)
    )
    (folder / "partition.json").write_text(json.dumps({"schema": 1, "seeds": {str(s): one for s in seeds}}))
    for name, rows in (("metrics", metrics), ("info", kept)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("hcct") / "run")


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return write_report(folder)


def svgs(page: Path) -> list[str]:
    """The page's figures."""
    return re.findall(r'<svg (?:style="[^"]*" )?role="img".*?</svg>', page.read_text(encoding="utf-8"), flags=re.S)


def _grouping(folder: Path, method: str = "hcct") -> group_history.GroupHistory:
    found = group_history.grouping(read(folder), method, "independent")
    assert found is not None
    return found


# ---------------------------------------------------------------- numbers and flows
def test_a_group_keeps_its_number_by_the_members_it_keeps() -> None:
    """Round 2: {0, 1} is 0, {2, 3} is 1.  {0, 1, 2} has 2/3 in common with the first and 1/4 with the second."""
    tracks = group_history.Tracks()
    assert tracks.number(((0,), (1,), (2,), (3,))) == (group_history.ALONE,) * 4
    assert tracks.number(((0, 1), (2, 3))) == (0, 1)
    assert tracks.number(((0, 1, 2), (3,))) == (0, group_history.ALONE)
    assert tracks.number(((0,), (1,), (2, 3))) == (group_history.ALONE, group_history.ALONE, 1), "the second is back"


def test_a_group_without_a_member_in_common_is_a_new_one() -> None:
    tracks = group_history.Tracks()
    tracks.number(((0, 1),))
    assert tracks.number(((2, 3),)) == (1,)


def test_flows_of_the_worked_example() -> None:
    """From {0, 1}, {2, 3} to {0, 1, 2}, {3}: two stay, one comes over, one is left alone."""
    before, after = (
        group_history.places(((0, 1), (2, 3)), (0, 1)),
        group_history.places(((0, 1, 2), (3,)), (0, group_history.ALONE)),
    )
    assert group_history.flows(before, after, 4) == {(0, 0): 2.0, (1, 0): 1.0, (1, group_history.ALONE): 1.0}


_PLACES = st.dictionaries(st.integers(0, 7), st.lists(st.integers(-1, 4), min_size=1, max_size=3).map(tuple))


@given(_PLACES, _PLACES)
def test_flows_lose_nobody_and_who_stays_does_not_flow(before: group_history.Place, after: group_history.Place) -> None:
    moved = group_history.flows(before, after, 8)
    assert math.fsum(moved.values()) == pytest.approx(8)
    still = group_history.flows(before, before, 8)
    assert all(a == b for a, b in still)
    for a, height in still.items():
        assert math.fsum(v for (x, _), v in moved.items() if x == a[0]) == pytest.approx(height)


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=5))
def test_no_two_groups_of_a_round_share_a_number_and_unchanged_groups_keep_theirs(rounds: list[list[int]]) -> None:
    tracks = group_history.Tracks()
    for labels in rounds:
        formed = tuple(g for g in (tuple(c for c in range(6) if labels[c] == k) for k in range(4)) if g)
        found = tracks.number(formed)
        numbered = [n for n in found if n != group_history.ALONE]
        assert len(set(numbered)) == len(numbered) == sum(len(g) > 1 for g in formed)
        assert tracks.number(formed) == found


# ---------------------------------------------------------------- over a run
def test_agreement_with_the_domains_is_as_worked_out_by_hand(folder: Path) -> None:
    found = _grouping(folder)
    assert found.rand is not None
    assert found.rand.x == (1, 2, 3)
    assert found.rand.mean == pytest.approx((0, 1, 0))


@pytest.mark.usefixtures("undrawn")
def test_there_is_no_agreement_without_domains_or_with_overlapping_groups(folder: Path, tmp_path: Path) -> None:
    assert _grouping(folder, "flsc").rand is None
    other = make_run(tmp_path / "run", split={"name": "dirichlet", "alpha": 0.1}, domains=())
    assert _grouping(other).rand is None
    assert "Groups against the clients’ domains" not in pages.said(write_report(other))


def test_gains_are_own_accuracy_less_that_of_training_alone(folder: Path) -> None:
    assert _grouping(folder).gains == {0: {0: pytest.approx(0.1), 1: 0, 2: pytest.approx(-0.1), 3: 0}}
    assert _row(folder, "hcct") == "hcct 1.0 1.0 0.00"


@pytest.mark.usefixtures("undrawn")
def test_only_whose_interval_excludes_zero_is_called_better_or_worse_off(folder: Path, tmp_path: Path) -> None:
    page = write_report(folder, tmp_path / "page.html").read_text()
    assert page.count(">Better off<") == page.count(">Worse off<") == 1
    assert "by any difference" not in page


def _row(folder: Path, method: str) -> str:
    record = read(folder)
    marks = dict(zip(record.methods, figures.looks([False] * len(record.methods)), strict=True))
    section = groups.section(record, [method], marks)
    assert section is not None
    return " ".join((section.tables[0].entries[0].name, *section.tables[0].entries[0].cells))


@pytest.mark.usefixtures("undrawn")
def test_gains_are_not_taken_between_different_rounds(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = [r for r in lines if r["method"] != "independent" or r["round"] < 3]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in kept))
    assert _grouping(folder).gains == {}
    assert "The run has no results of local training beside these" in pages.said(write_report(folder))


def test_utility_alone_is_one_less_alpha_over_the_examples() -> None:
    """alpha = 5: 1 - 5/10, 5/20, 5/25, 5/50; "size" makes it 0."""
    assert group_figures.utility_alone({"alpha": 5.0}, SIZES) == pytest.approx((0.5, 0.75, 0.8, 0.9))
    assert group_figures.utility_alone({"alpha": "size"}, SIZES) == (0, 0, 0, 0)
    assert group_figures.utility_alone({"alpha": [5, 10, 5, 5]}, SIZES) == pytest.approx((0.5, 0.5, 0.8, 0.9))
    assert group_figures.utility_alone({}, SIZES) is None
    assert group_figures.utility_alone({"alpha": [1, 2]}, SIZES) is None


# ---------------------------------------------------------------- the page
def test_the_page_has_the_figures_of_the_groups_in_words_for_a_stranger(page: Path) -> None:
    text = pages.said(page)
    assert "hcct: in round 3 of seed 0, 1 group of two or more, 1 client alone." in text
    titles = re.findall(r"<strong>(.*?)</strong>", page.read_text())
    assert titles[-8:-1] == [
        "Groups against the clients’ domains", "How alike the clients of hcct are",
        "Should I join? The clients of hcct", "Should I join? The clients of flsc",
        "Who was in which group of hcct", "How the groups of hcct formed", "Who was in which group of flsc",
    ]  # fmt: skip
    assert "Here the benefit of the last merge was +0.25 and that of the next would have been −0.5." in text
    assert "A client in several groups counts in equal parts." in text
    assert "Not for flsc, whose groups overlap." in text
    assert "a bar above its circle says join" in text


def test_every_figure_is_well_formed_has_ids_of_its_own_and_takes_its_colours_from_the_page(page: Path) -> None:
    drawn = svgs(page)
    ids = [i for svg in drawn for i in re.findall(r'\bid="([^"]*)"', svg)]
    assert len(ids) == len(set(ids))
    for svg in drawn:
        assert xml.fromstring(svg).tag == "svg"
        assert not re.search(r"#0d0e|#0a0b|#01020|#04050|#07080", svg)
    tree = next(s for s in drawn if "Merges of hcct" in s)
    assert "made: 0 with 1 (+1.5), 0 with 2 (+0.25); not made: 0 with 3 (−0.5)." in tree
    flow = next(s for s in drawn if "Groups of hcct" in s)
    assert "round 1: everybody alone; round 3: clients 0, 1, 2." in flow


@pytest.mark.usefixtures("undrawn")
def test_the_numbers_of_the_groups_stand_above_the_gains(page: Path) -> None:
    """Clients 0, 1, 2 are in group 1, client 3 is alone."""
    drawn = next(s for s in svgs(page) if "By client of hcct" in s)
    above = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert above.count("1") == 3 + 1, "the number of client 1 stands below"
    assert above.count("–") == 1
    assert above.count("group") == 1
    assert "the groups’ numbers stand above" in pages.said(page)


@pytest.mark.usefixtures("undrawn")
def test_a_client_in_no_group_does_not_look_like_one_that_is_alone(page: Path, tmp_path: Path) -> None:
    left_out = [{"groups": [[0, 1, 2]], "utility": [0.5] * 4}]
    folder = make_run(tmp_path / "run", {"hcct": left_out})
    text = pages.said(write_report(folder))
    assert "grey is alone, dashed is in no group" in text
    assert "dashed is in no group" not in pages.said(page), "client 3 is alone there"


def test_clients_and_classes_with_names_are_called_by_them(tmp_path: Path) -> None:
    """In the figure of labels and below it, in trees, similarities and gains, and in the command's table."""
    folder = make_run(tmp_path / "run")
    division = json.loads((folder / "partition.json").read_text())
    cities = ["Bergen", "Lyon", "Porto", "Graz"]
    division["seeds"]["0"] |= {"client_names": cities, "classes": ["healthy", "ill"]}
    (folder / "partition.json").write_text(json.dumps(division))
    page = write_report(folder)
    text = pages.said(page)
    assert "Clients: 0 Bergen, 1 Lyon, 2 Porto, 3 Graz" in text
    assert "Classes: 0 healthy, 1 ill" in text
    assert "Clients with a domain in common: Bergen, Lyon; Porto, Graz." in text
    drawn = {s[:4000][s.index("aria-label") :][:60]: s for s in svgs(page)}
    for title in ("Shares of 2 classes", "Merges of hcct", "Cosine of every two", "By client of hcct"):
        (svg,) = (s for words, s in drawn.items() if title in words)
        assert all(f">{city}<" in svg for city in cities), title
    joined = members.section(read(folder))
    assert joined is not None
    assert [row.name for row in joined.tables[0].entries] == cities


@pytest.mark.usefixtures("undrawn")
def test_the_page_says_which_clients_have_a_domain_in_common(page: Path, tmp_path: Path) -> None:
    assert "Clients with a domain in common: 0, 1; 2, 3." in pages.said(page)
    own = make_run(tmp_path / "run", domains=(3, 2, 0, 1))
    assert "Every client has a domain of its own." in pages.said(write_report(own))


def test_the_heatmap_has_the_groups_clients_together_and_their_mean_cosine(page: Path) -> None:
    """Inside {0, 1, 2}: (.8 + .4 + .6)/3 = .6; across, with client 3: (-.2 + 0 + .1)/3 = -.033."""
    drawn = next(s for s in svgs(page) if "Cosine of every two" in s)
    assert "Mean inside groups 0.60. Mean across -0.03." in drawn
    encoded = re.search(r'href="data:image/png;base64,\s*([^"]*)"', drawn)
    assert encoded is not None
    # A PNG's size stands after its signature and the head of its first chunk.
    assert struct.unpack(">II", base64.b64decode(encoded[1])[16:24]) == (4, 4)


def test_shades_are_blue_above_and_orange_below_zero_and_clear_where_nothing_is_known() -> None:
    pixels = figures.shades(np.array([[1.0, -0.5], [0.0, math.nan]]))
    assert pixels[0, 0].tolist() == [*bytes.fromhex(figures.BLUE[1:]), 255]
    assert pixels[0, 1].tolist() == [*bytes.fromhex(figures.ORANGE[1:]), 128]
    assert pixels[1, :, 3].tolist() == [0, 0]


@pytest.mark.usefixtures("undrawn")
def test_a_fixed_number_of_groups_is_told_as_the_reason_of_the_cut(tmp_path: Path) -> None:
    text = pages.said(write_report(make_run(tmp_path / "run", options="groups = 2")))
    assert "It is where the requested number of groups was reached, whatever the benefit." in text
    assert "Merges are made while their benefit is positive." not in text


@pytest.mark.usefixtures("undrawn")
def test_the_alphas_of_a_pilot_and_the_chosen_one_are_a_table(tmp_path: Path) -> None:
    tried = [{"alpha": 0.0, "groups": 4, "accuracy": 0.5, "loss": 1.0}, {"alpha": 5.0, "groups": 2, "accuracy": 0.75}]
    rounds = [*HCCT[:2], {**ROUND_3, "alpha": 5.0, "tried": tried}]
    record = read(make_run(tmp_path / "run", {"hcct": rounds}, ("independent", "hcct"), 'alpha = "auto"'))
    section = groups.section(record, ["hcct"], {"hcct": figures.looks([False])[0]})
    assert section is not None
    table = section.tables[-1]
    assert [(row.name, *row.cells) for row in table.entries] == [("0", "4", "50.0", ""), ("5", "2", "75.0", "chosen")]


def test_without_training_alone_the_page_says_what_is_missing(tmp_path: Path) -> None:
    text = pages.said(write_report(make_run(tmp_path / "run", methods=("hcct", "flsc"))))
    assert "No method of this run trains every client alone, so the gain from joining is not known" in text
    assert "Should I join? The clients of hcct" in text, "its utilities are there"
    assert "Should I join? The clients of flsc" not in text


def test_the_gains_of_many_clients_have_their_names_and_the_numbers_of_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = 30
    monkeypatch.setitem(OWN, "hcct", [0.5] * n)
    monkeypatch.setitem(OWN, "independent", [0.25] * n)
    rows: dict[str, list[Info]] = {"hcct": [{"groups": [list(range(17)), list(range(17, n))]}]}
    folder = make_run(tmp_path / "run", rows, ("independent", "hcct"), sizes=[20] * n, split={"name": "iid"})
    g = group_history.grouping(read(folder), "hcct", "independent")
    assert g is not None
    named = replace(g, called=lambda c: f"Regional University Hospital number {c + 1:02} of the north")
    chart = group_figures.gain_chart(named, {}, [20] * n, "independent", "gain")
    assert chart is not None
    assert chart.wide
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", chart.svg)
    assert [t for t in texts if t.startswith("…")] == [f"…{c + 1:02}…" for c in range(n)]
    assert (texts.count("1"), texts.count("2")) == (17, 13)


def test_a_figure_alone_in_its_row_keeps_to_half_the_page_and_stays_a_figure(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", info={"flsc": FLSC}, methods=("independent", "flsc"))
    drawn = [s for s in svgs(write_report(folder)) if s.startswith('<svg style="max-width:34rem"')]
    assert len(drawn) == 1
    assert xml.fromstring(drawn[0]).tag == "svg"


def test_newcomers_and_a_client_without_a_direction_are_drawn_and_named(tmp_path: Path) -> None:
    blank = [[None if 3 in (i, j) else COSINES[i][j] for j in range(4)] for i in range(4)]
    rows = [{"groups": [[0, 1, 2]]}, {**ROUND_3, "similarity": blank, "beyond": []}]
    text = pages.said(write_report(make_run(tmp_path / "run", info={"hcct": rows})))
    assert "Dashed: clients in no group, not yet or no longer there or not heard of." in text
    assert "Blank rows: clients whose update has no direction." in text
    assert "Not in the tree: 1 client not compared in that partition." in text


@pytest.mark.slow
def test_a_hundred_restless_clients_make_a_small_page_and_a_thousand_leave_figures_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(n: int, rounds: int) -> list[Info]:
        # Groups of three whose members are others in every round.
        found = []
        for t in range(rounds):
            order = sorted(range(n), key=lambda c: (c * (2 * t + 7) + t) % n)
            groups = [sorted(order[i : i + 3]) for i in range(0, n, 3)]
            merges = [merge(g[0], c, 0.5) for g in groups for c in g[1:]]
            beyond = [merge(groups[0][0], g[0], -0.1) for g in groups[1:]]
            wave = [[round(math.cos(i * j + t), 4) for j in range(n)] for i in range(n)] if n <= 100 else None
            found.append({
                "groups": groups, "history": merges, "beyond": beyond, "utility": [0.5] * n,
                **({"compared": list(range(n)), "similarity": wave} if wave else {}),
            })  # fmt: skip
        return found

    for n, rounds in ((100, 20), (1000, 3)):
        monkeypatch.setitem(OWN, "hcct", [0.5] * n)
        monkeypatch.setitem(OWN, "independent", [0.4] * n)
        folder = make_run(
            tmp_path / str(n),
            {"hcct": rows(n, rounds)},
            ("independent", "hcct"),
            sizes=[20] * n,
            split={"name": "iid"},
            domains=(),
        )
        page = write_report(folder)
        text = pages.said(page)
        assert page.stat().st_size < 700_000
        assert "Hollow: the groups beyond the 12 largest, together." in text
        assert ("How the groups of hcct formed" in text) is (n == 100)
        left_out = "gains of single clients are drawn for up to 100 clients"
        assert (left_out in text) is (n == 1000)
    assert "Drawn are 16 of 20 rounds." in pages.said(tmp_path / "100" / "report.html")


@pytest.mark.usefixtures("undrawn")
def test_a_page_without_groups_is_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run", info={"hcct": [{"swaps": 3}] * 3})
    now = write_report(folder).read_bytes()
    monkeypatch.setattr(html, "SECTIONS", replace(html.SECTIONS, ours={}))
    assert write_report(folder).read_bytes() == now


def test_only_seeds_that_count_are_read_and_the_first_is_drawn(tmp_path: Path) -> None:
    found = _grouping(make_run(tmp_path / "run", seeds=(3, 5)))
    assert found.seed == 3
    assert found.several == stats.Spread((1.0, 1.0))
    assert found.rand is not None
    assert found.rand.seeds == 2


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.update(groups=[[0, 4]]), r"info\.groups\.0\.1: clients must be below 4, got 4"),
        (lambda f: f.update(groups=[[1, 1]]), r"a group must name clients once each, got \[1, 1\]"),
        (lambda f: f.update(groups=[3]), r"info\.groups\.0 must be a list, got 3"),
        (lambda f: f.update(utility=[1.0]), r"info\.utility: must have a value for each of 4 clients, got 1"),
        (lambda f: f.update(utility=["a"] * 4), r"info\.utility\.0 must be a number, got \"a\""),
        (lambda f: f["history"].append(merge(1, 2, 0.1)), r"a merge joins clients 1 and 2, already in one group"),
        (
            lambda f: f["history"].append(merge(0, 9, 0.1)),
            r"history\.2\.merge\.1: clients must be below 4, got 9",
        ),
        (lambda f: f["history"][0].update(benefit="big"), r"info\.history\.0\.benefit must be a number, got \"big\""),
        (lambda f: f["similarity"].pop(), r"similarity must be a square matrix of the 4 clients in compared"),
        (lambda f: f.update(similarity=[1, 2, 3, 4]), r"info\.similarity\.0 must be a list, got 1"),
        (lambda f: f.update(compared=[0, 1, 2, 4]), r"info\.compared\.3: clients must be below 4, got 4"),
    ],
)
def test_info_that_cannot_be_are_named_with_their_line(
    tmp_path: Path, edit: Callable[[Info], object], message: str
) -> None:
    row = json.loads(json.dumps(ROUND_3))
    edit(row)
    folder = make_run(tmp_path / "run", info={"hcct": [*HCCT[:2], row]})
    with pytest.raises(RunError, match=r"info\.jsonl, line 3: .*") as refused:
        write_report(folder)
    assert re.search(message, str(refused.value))


# ---------------------------------------------------------------- a run that was run, and a browser
def test_what_a_run_records_is_drawn(tmp_path: Path) -> None:
    simulate(
        {"alone": Independent(), "HCCT": hcct.HCCT(alpha=40.0), "IFCA": IFCA(clusters=2)},
        split=Dirichlet(alpha=0.1, num_clients=6), rounds=3, out=tmp_path / "run",
    )  # fmt: skip
    record = read(tmp_path / "run")
    found = group_history.grouping(record, "HCCT", alone(record))
    assert found is not None
    assert found.cut is not None
    at, judged = found.cut
    assert at == 3
    forest = group_figures._Forest(range(6))
    for m in judged.history:
        assert forest.join(*m.merge)
    assert sorted(tuple(sorted(g)) for g in forest.members.values()) == sorted(found.last.groups)
    assert len(judged.history) + len(judged.beyond) == 5
    assert "How the groups of HCCT formed" in pages.said(write_report(tmp_path / "run"))


@pytest.mark.slow
@pages.needs_browser
@pages.on_both
def test_a_browser_shows_the_figures_without_overflow_in_both_schemes(
    page: Path, tmp_path: Path, width: int, scheme: int
) -> None:
    measured = pages.measure(page, tmp_path, width, scheme)
    assert measured["width"] == width
    assert measured["over"] <= 0, "the page scrolls sideways"
    assert measured["text"] == measured["ink"], "figure text follows the page's colour"
