"""FedDif's part of the report, from a run folder made by hand: 4 clients, 2 classes, 2 models, 2 rounds.

Client 0 has 10 examples of class 0, client 1 has 10 of class 1, client 2 has 20 of class 0, client 3 has 10 of class 1.
Round 1: model 0 goes 0 -> 1 in diffusion round 1; model 1 goes 2 -> 3 in diffusion round 1 and on to 1 in round 2.
Round 2: models start at 1 and 3, and nobody moves.

The degrees of learning, with u = (1/2, 1/2) and W the L2 norm:

    model 0   (1, 0), 10 examples        W = sqrt(1/2) = .70711
              (10, 10)/20 = (.5, .5)     W = 0
    model 1   (1, 0), 20 examples        W = .70711
              (20, 10)/30 = (2/3, 1/3)   W = sqrt(2)/6 = .23570
              (20, 20)/40 = (.5, .5)     W = 0
    round 2   (0, 1) and (0, 1)          W = .70711 for both
"""

import importlib.util
import json
import math
import re
import xml.etree.ElementTree as xml
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import rewrite

from unskew import simulate
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddif import FedDif
from unskew.data.split import Dirichlet
from unskew.errors import RunError
from unskew.experiment.config import World
from unskew.info import DiffusionRound, adapter
from unskew.keys import Key
from unskew.record.logs import rows as written
from unskew.report import figures, read, stats, write_report
from unskew.report.sections import cost, diffusion
from unskew.world.wireless import Radio


def _neighbour(name: str) -> ModuleType:
    """A test module of reports, for the page checks it has."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = _neighbour("test_report")

COUNTS = [[10, 0], [0, 10], [20, 0], [0, 10]]
FAR, NEAR = math.sqrt(0.5), math.sqrt(2) / 6

Info = dict[str, Any]


def move(model: int, src: int, dst: int, bid: float) -> Info:
    return {"model": model, "src": src, "dst": dst, "bid": bid, "gamma": 4.0}


def info(starts: Sequence[int], hops: Sequence[tuple[float, Sequence[Info]]], sizes: Sequence[int]) -> Info:
    told = [{"hop": k, "efficiency": e, "moves": list(moves)} for k, (e, moves) in enumerate(hops, start=1)]
    return {
        "starts": list(starts), "hops": told, "sizes": list(sizes), "models": len(starts), "iterations": 1 + len(hops),
        "ignored": [], "warnings": [],
    }  # fmt: skip


ROUND_1 = info(
    [0, 2],
    [(2e-6, [move(0, 0, 1, FAR), move(1, 2, 3, FAR - NEAR)]), (1e-6, [move(1, 3, 1, NEAR)])],
    [20, 40],
)
ROUND_2 = info([1, 3], [], [10, 10])

EVEN = '[world.channel]\nname = "even"\ngamma = 1.0\n'
RADIO = '[world.channel]\nname = "radio"\ncell_radius_m = 100.0\nredeploy = "hop"\n'
ACCURACY = {"FedAvg": [0.1, 0.5, 0.4], "FedDif": [0.1, 0.4, 0.6]}


def make_run(
    folder: Path,
    rounds: Sequence[Info] = (ROUND_1, ROUND_2),
    channel: str = EVEN,
    options: str = "",
    accuracy: Mapping[str, Sequence[float]] = ACCURACY,
    counts: Sequence[Sequence[int]] = COUNTS,
    seeds: Sequence[int] = (0,),
    kept: bool = True,
) -> Path:
    """A finished run's folder: FedAvg sends 2 models of 1,000 bytes each way, FedDif what its facts say.

    With `kept` false it has no info, as a run of methods that have none.
    """
    folder.mkdir(parents=True)
    metrics, ledger, work, kept_info = [], [], [], []
    for seed in seeds:
        for method, curve in accuracy.items():
            for t, a in enumerate(curve):
                at = {"method": method, "seed": seed, "round": t}
                metrics.append({**at, "name": "global.accuracy", "value": a, "weight": 1.0})
                if t == 0:
                    continue
                told = rounds[t - 1] if method != "FedAvg" else info([0, 2], [], [10, 20])
                legs = [(0, 0, c + 1) for c in told["starts"]]
                legs += [(h["hop"], m["src"] + 1, m["dst"] + 1) for h in told["hops"] for m in h["moves"]]
                rows = [{**at, "hop": k, "src": s, "dst": d, "kind": "model", "bytes": 1000} for k, s, d in legs]
                rows += [
                    {**at, "hop": len(told["hops"]) + 1, "src": c + 1, "dst": 0, "kind": "model", "bytes": 1000}
                    for c in told["starts"]
                ]
                ledger += rows
                work += [{**at, "hop": k, "client": d - 1, "examples": 10} for k, _, d in legs]
                for d, n in {
                    "down": sum(r["src"] == 0 for r in rows),
                    "up": sum(r["dst"] == 0 for r in rows),
                    "d2d": sum(r["src"] > 0 and r["dst"] > 0 for r in rows),
                }.items():
                    metrics.append({**at, "name": f"bytes.{d}", "value": 1000.0 * n, "weight": 1.0})
                if method != "FedAvg":
                    kept_info.append({**at, "type": "unskew.diffusion", "info": told})
    run = {
        "schema": 1, "run": "made by hand", "created": "2025-06-01T12:00:00+00:00", "command": "unskew run",
        "unskew": "0", "config_sha256": "c" * 64, "environment": {"device": "cpu"}, "parameters": 250,
        "cells": [{"method": m, "setting": "by hand", "seed": s, "bound": None} for s in seeds for m in accuracy],
    }  # fmt: skip
    stats = {
        "sizes": [sum(c) for c in counts], "label_counts": [list(c) for c in counts], "iid_distance": FAR, "js": 0.3,
        "effective_classes": 1.0,
    }  # fmt: skip
    one = {
        "dataset": "made", "dataset_sha256": "d" * 64, "n": 50, "split": {"name": "by hand"}, "sha256": "a" * 64,
        "stats": stats,
    }  # fmt: skip
    methods = "".join(
        f'[[methods]]\nname = "{m.lower()}"\nlabel = "{m}"\n{options if m != "FedAvg" else ""}\n' for m in accuracy
    )
    rows = [
        {"method": m, "setting": "by hand", "metric": "global.accuracy", "mean": c[-1], "std": None, "seeds": [c[-1]]}
        for m, c in accuracy.items()
    ]  # fmt: skip
    summary = {"run": "made by hand", "fingerprint": "f" * 64, "seconds": 1.0, "rows": rows, "stopped": None}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "config.toml").write_text(f"{channel}\n{methods}")
    (folder / "partition.json").write_text(json.dumps({"schema": 1, "seeds": {str(s): one for s in seeds}}))
    (folder / "summary.json").write_text(json.dumps(summary))
    rewrite(folder, metrics=metrics, transfers=ledger, work=work, info=kept_info if kept else ())
    return folder


def svgs(page: Path) -> list[str]:
    """The page's figures."""
    return re.findall(r'<svg role="img".*?</svg>', page.read_text(encoding="utf-8"), flags=re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("feddif") / "run")


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return write_report(folder)


# ---------------------------------------------------------------- degrees of learning
def _round(told: Info, clients: int = 4) -> DiffusionRound:
    context = {"clients": clients}
    round: DiffusionRound = adapter(DiffusionRound).validate_json(json.dumps(told), strict=True, context=context)
    return round


def test_degrees_of_learning_follow_the_models_as_worked_out_by_hand() -> None:
    """See the module: (1, 0) -> (.5, .5), 10 -> 20 examples; (1, 0) -> (2/3, 1/3) -> (.5, .5), 20 -> 30 -> 40."""
    found = diffusion.learning(_round(ROUND_1), np.array(COUNTS))
    assert found.dol == pytest.approx(
        np.array([[[1, 0], [1, 0]], [[0.5, 0.5], [2 / 3, 1 / 3]], [[0.5, 0.5], [0.5, 0.5]]])
    )
    assert found.sizes.tolist() == [[10, 20], [20, 30], [20, 40]]
    ruler = diffusion.ruler({}, np.array(COUNTS))
    distances = np.array([[FAR, FAR], [0, NEAR], [0, 0]])
    assert ruler.simulated(found) == pytest.approx(distances)
    assert ruler.closed(found) == pytest.approx(distances)


def test_the_pooled_target_is_the_class_shares_of_all_clients() -> None:
    """30 examples of class 0 and 20 of class 1: u = (.6, .4); model 0 ends at (.5, .5), sqrt(2) / 10 from it."""
    found = diffusion.learning(_round(ROUND_1), np.array(COUNTS))
    ruler = diffusion.ruler({"target": "pooled"}, np.array(COUNTS))
    assert ruler.simulated(found)[1, 0] == pytest.approx(math.sqrt(2) / 10)
    assert ruler.words == "L2 distance from pooled class shares"


@given(st.data())
def test_the_closed_form_is_the_recursion_for_every_metric(data: st.DataObject) -> None:
    clients, classes = data.draw(st.integers(2, 6)), data.draw(st.integers(2, 5))
    row = st.lists(st.integers(0, 40), min_size=classes, max_size=classes).filter(any)
    counts = np.array(data.draw(st.lists(row, min_size=clients, max_size=clients)))
    path = data.draw(st.lists(st.integers(0, clients - 1), min_size=1, max_size=8))
    hops = [(1e-6, [move(0, a, b, 0.0)]) for a, b in pairwise(path)]
    found = diffusion.learning(_round(info(path[:1], hops, [0]), clients), counts)
    for metric in ("l2", "l1", "tv", "kl", "js", "w1"):
        for target in ("uniform", "pooled"):
            ruler = diffusion.ruler({"metric": metric, "target": target}, counts)
            # an entropy near zero is a difference of numbers near one
            assert ruler.closed(found) == pytest.approx(ruler.simulated(found), abs=1e-12)


def test_a_chain_without_examples_has_no_distance_until_it_meets_one() -> None:
    counts = np.array([[0, 0], [5, 5]])
    found = diffusion.learning(_round(info([0], [(1e-6, [move(0, 0, 1, 0.1)])], [10]), 2), counts)
    distances = diffusion.ruler({}, counts).simulated(found)
    assert math.isnan(distances[0, 0])
    assert distances[1, 0] == 0


# ---------------------------------------------------------------- over a run
def _diffusion(folder: Path) -> diffusion.Diffusion:
    found = diffusion.diffusion(read(folder), "FedDif", lambda counts: diffusion.ruler({}, counts))
    assert found is not None
    return found


def test_curves_are_means_over_models_and_rounds(folder: Path) -> None:
    """Round 1: .70711, (0 + .23570)/2 = .11785, 0.  Round 2 stays at .70711.  Their means: .70711, .41248, .35355.

    Of the two rounds only the first has diffusion rounds, so the efficiencies are its own.
    """
    found = _diffusion(folder)
    assert found.distance.x == (0, 1, 2)
    assert found.distance.mean == pytest.approx((0.70711, 0.41248, 0.35355), abs=1e-5)
    assert found.closed.mean == pytest.approx(found.distance.mean)
    assert found.efficiency is not None
    assert (found.efficiency.x, found.efficiency.mean) == ((1, 2), pytest.approx((2e-6, 1e-6)))
    assert found.gap < 1e-15
    assert found.overbid < 1e-15
    assert (found.rounds, found.chains, found.mismatched) == (2, 4, 0)
    assert found.hops.mean == 1, "two diffusion rounds, then none"
    assert found.moved == 3 / 4, "3 moves of 2 models in 2 diffusion rounds"
    assert found.stayed == 2 / 4, "both models of round 2, of 4"


def test_the_band_is_over_seeds(tmp_path: Path) -> None:
    """Seed 1 is cut to its first round, whose mean at the end is 0; seed 0 has both rounds and ends at .35355."""
    folder = make_run(tmp_path / "run", seeds=(0, 1))
    rewrite(folder, info=list(written(folder, "info"))[:3])
    found = _diffusion(folder)
    assert found.distance.seeds == 2
    assert found.distance.low[-1] == pytest.approx(0)
    assert found.distance.high[-1] == pytest.approx(FAR / 2)
    assert found.distance.mean[-1] == pytest.approx(FAR / 4)


def test_a_bid_that_promises_what_the_move_does_not_bring_is_told(tmp_path: Path) -> None:
    """The second move of model 1 brings .23570; its bid says .33570."""
    told = json.loads(json.dumps(ROUND_1))
    told["hops"][1]["moves"][0]["bid"] = NEAR + 0.1
    assert _diffusion(make_run(tmp_path / "run", [told, ROUND_2])).overbid == pytest.approx(0.1)


def test_chain_sizes_that_are_not_the_partitions_are_told(tmp_path: Path) -> None:
    found = _diffusion(make_run(tmp_path / "run", [{**ROUND_1, "sizes": [20, 41]}, ROUND_2]))
    assert found.mismatched == 1
    assert "In 1 round of FedDif the chains’ examples in its info are not those" in diffusion.lead([found])


# ---------------------------------------------------------------- the page
@pytest.fixture(scope="module")
def radio_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_run(tmp_path_factory.mktemp("radio") / "run", channel=RADIO))


def test_sub_frames_and_joules_are_drawn_only_where_a_radio_was_modelled(page: Path, radio_page: Path) -> None:
    priced = {"Global accuracy by sub-frames", "Global accuracy by energy"}
    for where, shown in ((page, False), (radio_page, True)):
        assert (priced <= set(re.findall(r"<strong>(.*?)</strong>", where.read_text()))) is shown
        text = pages.said(where)
        assert ("Sub-frames of 1 ms" in text) is shown
        assert ("Energy J" in text) is shown
        assert ("Priced under" in text) is shown


def test_the_page_has_the_cost_and_the_diffusion_after_the_figures(page: Path) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", page.read_text())
    assert titles[2:6] == ["Figures", "Cost to target", "Diffusion", "Data and skew"]
    text = pages.said(page)
    assert "FedDif: 1 diffusion round per communication round on average" in text
    assert "goes from 0.707 to 0.354" in text
    assert re.search(r"over 4 chains it is never further from the simulated distance than (0|\de-1[67])\.", text)
    titles = re.findall(r"<strong>(.*?)</strong>", page.read_text())
    assert {"IID distance by diffusion round", "Diffusion efficiency by diffusion round",
            "Where the models of FedDif went"} <= set(titles)  # fmt: skip


def test_every_figure_is_well_formed_and_takes_its_colours_from_the_page(radio_page: Path) -> None:
    drawn = svgs(radio_page)
    assert len(drawn) == 9, "difference; accuracy by round, MB, sub-frames, J; distance, efficiency, cell; labels"
    for svg in drawn:
        assert xml.fromstring(svg).tag == "svg"
        assert not re.search(r"#0d0e|#0a0b|#01020|#04050|#07080", svg)
    iid = next(s for s in drawn if "IID distance by diffusion round" in s)
    assert "FedDif from 0.707 to 0.354" in iid
    cell = next(s for s in drawn if "Moves of FedDif" in s)
    assert "diffusion round 2: model 1 from client 3 to 1" in cell
    assert "diffusion round 2: 1 of 2 move" in cell


def test_the_paths_are_spelled_out(page: Path) -> None:
    text = pages.said(page)
    assert "0 0 → 1 20 0.707 0.000 1 2 → 3 → 1 40 0.707 0.000" in text


def test_without_a_radio_clients_stand_on_a_circle_and_the_page_says_so(page: Path) -> None:
    text = pages.said(page)
    assert "No radio was modelled in this run, so there are no places: clients stand on a circle" in text
    assert "triangle" not in text


def test_with_a_radio_devices_are_where_the_channel_had_them(tmp_path: Path) -> None:
    """The channel counts diffusion rounds from 0, so the second one on the page is hop 1 of the run's channel."""
    folder = make_run(tmp_path / "run", channel=RADIO)
    shown = _diffusion(folder).shown
    assert shown is not None
    ground = diffusion.ground(read(folder), shown, 4)
    radio = Radio(cell_radius_m=100.0)
    expected = radio.positions(Key(0) / "channel", 1, 1, 5)[1:]
    assert ground.at(2) == pytest.approx(expected)
    assert ground.radius == 100
    assert "the circle the edge of the cell, 100 m from it; devices are placed at random anew in each" in ground.words
    priced = cost.priced(read(folder))
    assert priced is not None
    assert priced.words.startswith("Priced under this run’s own radio: of 106 resource blocks")


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_facts_has_the_page_it_had(tmp_path: Path) -> None:
    bare = write_report(make_run(tmp_path / "bare", kept=False))
    titles = re.findall(r"<h2>(.*?)</h2>", bare.read_text())
    assert titles == [
        "Headline", "Differences to FedAvg", "Figures", "Data and skew", "Traffic", "Configuration",
        "Environment", "Reproduce this run",
    ]  # fmt: skip
    assert len(svgs(bare)) == 4


@pytest.mark.usefixtures("undrawn")
def test_info_of_another_shape_bring_the_costs_and_no_diffusion(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", kept=False)
    row = {"method": "FedDif", "seed": 0, "round": 1, "type": "dict", "info": {"swaps": 3}}
    rewrite(folder, info=[row])
    titles = re.findall(r"<h2>(.*?)</h2>", write_report(folder).read_text())
    assert "Cost to target" in titles
    assert "Diffusion" not in titles


@pytest.mark.usefixtures("undrawn")
def test_a_round_in_which_no_model_moves_has_no_path_to_draw(tmp_path: Path) -> None:
    text = pages.said(write_report(make_run(tmp_path / "run", [ROUND_2, ROUND_2])))
    assert "FedDif: 0 diffusion rounds per communication round on average" in text
    assert "Where the models of FedDif went" not in text
    assert "Diffusion efficiency by diffusion round" not in text


@pytest.mark.slow
def test_a_large_cell_stays_small_and_says_what_is_left_out(tmp_path: Path) -> None:
    clients, models, hops = 1000, 300, 20
    counts = [[1 + c % 7, 1 + c % 3] for c in range(clients)]
    told = [
        (1e-6, [move(m, m + k * models % clients, m + (k + 1) * models % clients, 0.0) for m in range(models)])
        for k in range(hops)
        if (k + 2) * models <= clients
    ]
    # the rest of the hops move the first model alone
    at = told[-1][1][0]["dst"]
    for k in range(len(told), hops):
        told.append((1e-6, [move(0, at, k, 0.0)]))
        at = k
    one = info(range(models), told, [0] * models)
    text = pages.said(write_report(make_run(tmp_path / "run", [one, one], counts=counts)))
    assert "Drawn: the first 6 of 20 diffusion rounds, the first 16 of 300 models" in text
    assert "200 of the clients that take no part" in text
    assert "The first 16 of 300 models." in text


@pytest.mark.usefixtures("undrawn")
def test_warnings_stand_among_the_notes_and_ignored_bids_beside_the_lost_clients(tmp_path: Path) -> None:
    warned = {**ROUND_1, "warnings": ["nobody can send"]}
    again = {**ROUND_2, "warnings": ["nobody can send", "and <b>this</b>"],
             "ignored": [{"client": 3, "step": "bid", "reason": "diffusion round 1: not finite"}]}  # fmt: skip
    folder = make_run(tmp_path / "run", [warned, again])
    lost = {
        "method": "FedDif",
        "seed": 0,
        "round": 2,
        "client": 3,
        "step": "bid",
        "reason": "diffusion round 1: not finite",
    }
    rewrite(folder, failures=[lost])
    text = pages.said(write_report(folder))
    assert "FedDif: nobody can send (first at seed 0, round 1, in 2 rounds of all seeds together)" in text
    assert "FedDif: and <b>this</b> (seed 0, round 2)" in text
    assert "diffusion round 1: not finite 1 1 2–2" in text
    assert "FedDif ignored 1 reply that could not be right: those clients did reply, and are counted here too." in text


# ---------------------------------------------------------------- cost to target
def _rows(folder: Path) -> list[str]:
    """The table of costs as text, without a radio."""
    record = read(folder)
    marks = dict(zip(record.methods, figures.looks([False] * len(record.methods)), strict=True))
    section = cost.section(record, marks, cost.quantities(record), None)
    assert section is not None
    return [" ".join((entry.name, *entry.cells)) for entry in section.tables[0].entries]


def _spent(folder: Path) -> dict[str, cost.Reached]:
    record = read(folder)
    aim = cost.target(record)
    assert aim is not None
    return {row.method: row for row in cost.reached(record, aim, cost.quantities(record))}


def test_the_cost_to_fedavgs_peak_is_what_was_sent_until_then(folder: Path) -> None:
    """FedAvg peaks at .5 in round 1: 1 leg, 2 models down and 2 up, 4,000 bytes.

    FedDif is at .4 in round 1 and at .6 in round 2.  Round 1 has 3 legs and 2 + 3 + 2 models, round 2 one leg and 4.
    """
    rows = _spent(folder)
    assert {m: r.rounds.values if r.rounds else None for m, r in rows.items()} == {"FedAvg": (1,), "FedDif": (2,)}
    got = {m: {q: s.values[0] for q, s in r.spent.items() if s} for m, r in rows.items()}
    assert got == {
        "FedAvg": {"Iterations": 1, "Models": 4, "Traffic": pytest.approx(0.004)},
        "FedDif": {"Iterations": 4, "Models": 11, "Traffic": pytest.approx(0.011)},
    }


def test_the_table_of_costs_gives_every_unit(radio_page: Path) -> None:
    text = pages.said(radio_page)
    assert (
        "The target is FedAvg’s best value on the test curve: 50.0 %, each seed its own. That is a reporting choice"
        in text
    )
    head = "Method Seeds that reached it Rounds Iterations training legs Models sent Traffic MB Sub-frames of 1 ms "
    assert head + "Time s, radio and training Energy J, radio and training" in text
    assert re.search(
        r"FedAvg 1 of 1 1 1 4 0\.0040 \d+ [\d.]+ [\d.]+ FedDif 1 of 1 2 4 11 0\.011 \d+ [\d.]+ [\d.]+", text
    )


def test_a_method_that_never_gets_there_is_not_reached(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", accuracy={"FedAvg": [0.1, 0.5, 0.4], "FedDif": [0.1, 0.2, 0.49]})
    assert _spent(folder)["FedDif"].rounds is None
    assert _rows(folder)[1] == "FedDif 0 of 1 not reached – – –"


def test_each_seed_has_its_own_target_and_the_spread_is_of_those_that_reached_it(tmp_path: Path) -> None:
    """FedAvg peaks at .5 (seed 0) and, edited, at .7 (seed 1), which FedDif, ending at .6, does not reach."""
    folder = make_run(tmp_path / "run", seeds=(0, 1))
    lines = list(written(folder, "metrics"))
    for row in lines:
        if (row["method"], row["seed"], row["round"], row["name"]) == ("FedAvg", 1, 2, "global.accuracy"):
            row["value"] = 0.7
    rewrite(folder, metrics=lines)
    rows = _spent(folder)
    assert rows["FedAvg"].rounds == stats.Spread((1.0, 2.0))
    assert (rows["FedDif"].rounds, rows["FedDif"].seeds) == (stats.Spread((2.0,)), 2)
    assert _rows(folder) == [
        "FedAvg 2 of 2 1.5 ± 0.7 1.5 ± 0.7 6.0 ± 2.8 0.0060 ± 0.0028",
        "FedDif 1 of 2 2 4 11 0.011",
    ]


def test_without_fedavg_the_target_is_the_lowest_of_the_peaks(tmp_path: Path) -> None:
    """Peaks .6 and .45, so the target is .45: A has it in round 2, B in round 1."""
    curves = {"A": [0.1, 0.4, 0.6], "B": [0.1, 0.45, 0.3]}
    rows = _spent(make_run(tmp_path / "run", accuracy=curves))
    assert {m: r.rounds.values if r.rounds else None for m, r in rows.items()} == {"A": (2,), "B": (1,)}


def test_the_target_of_an_error_is_the_worst_of_the_best_ones_too(tmp_path: Path) -> None:
    """The lowest errors are .2 and .35, so the target is .35: A has it in round 1, B in round 2."""
    run = read(make_run(tmp_path / "run", accuracy={"A": [0.9, 0.3, 0.2], "B": [0.9, 0.6, 0.35]}))
    run = replace(run, headline=replace(run.headline, label="error", direction="lower"))
    aim = cost.target(run)
    assert aim is not None
    assert aim == cost.Target({0: 0.35}, "the worst of the methods’ best values on the test curve")
    rounds = {row.method: row.rounds for row in cost.reached(run, aim, ())}
    assert rounds == {"A": stats.Spread((1.0,)), "B": stats.Spread((2.0,))}


# ---------------------------------------------------------------- what can be wrong with the log
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.update(starts=[0, 4]), r"info\.starts\.1: clients must be below 4, got 4"),
        (lambda f: f.update(starts=[0, "2"]), r"info\.starts\.1 must be an integer, got \"2\""),
        (lambda f: f.update(models=3), r"info: models is 3, but starts names 2"),
        (
            lambda f: f["hops"][1].update(hop=3),
            r"info: hops must be counted from 1 without a gap, got 3 as number 2",
        ),
        (lambda f: f["hops"][0]["moves"][0].update(model=2), r"info: a move must name a model below 2, got 2"),
        (
            lambda f: f["hops"][0]["moves"][0].update(dst=9),
            r"hops\.0\.moves\.0\.dst: clients must be below 4, got 9",
        ),
        (lambda f: f["hops"][1]["moves"][0].update(src=0), r"model 1 moves from client 0, but client 3 has it"),
        (lambda f: f["hops"][0]["moves"].append(move(0, 0, 3, 0.1)), r"a model moves twice in diffusion round 1"),
        (lambda f: f["hops"][0].update(efficiency="much"), r"info\.hops\.0\.efficiency must be a number, got \"much\""),
        (lambda f: f["hops"][0]["moves"][0].pop("bid"), r"info\.hops\.0\.moves\.0\.bid is required"),
        (lambda f: f.update(warnings=[3]), r"info\.warnings\.0 must be a string, got 3"),
        (lambda f: f.update(ignored="all"), r"info\.ignored must be a list, got \"all\""),
    ],
)
def test_info_that_cannot_be_are_named_with_their_line(
    tmp_path: Path, edit: Callable[[Info], object], message: str
) -> None:
    folder = make_run(tmp_path / "run")
    first, *rest = written(folder, "info")
    edit(first["info"])
    rewrite(folder, info=[first, *rest])
    with pytest.raises(RunError, match=r"run\.sqlite: .*") as refused:
        write_report(folder)
    assert re.search(message, str(refused.value))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ('metric = "emd"', r"metric must be one of l2, l1, tv, kl, js, w1, got 'emd'"),
        ("target = [0.2, 0.3, 0.5]", r"target must be uniform, pooled or 2 class shares"),
    ],
)
def test_a_measure_that_is_none_is_refused(tmp_path: Path, options: str, message: str) -> None:
    with pytest.raises(RunError, match=message):
        write_report(make_run(tmp_path / "run", options=options))


# ---------------------------------------------------------------- a run that was run, and a browser
@pytest.mark.usefixtures("undrawn")
def test_what_a_run_records_agrees_with_lemma_2_and_so_do_its_bids(tmp_path: Path) -> None:
    simulate(
        {"FedAvg": FedAvg(), "FedDif": FedDif(epsilon=0.05, metric="tv", target="pooled")},
        split=Dirichlet(alpha=0.1, num_clients=8), rounds=2, clients_per_round=3, world=World(channel=Radio()),
        out=tmp_path / "run",
    )  # fmt: skip
    record = read(tmp_path / "run")
    options = {"metric": "tv", "target": "pooled"}
    found = diffusion.diffusion(record, "FedDif", lambda counts: diffusion.ruler(options, counts))
    assert found is not None
    assert found.hops.mean >= 1
    assert found.mismatched == 0
    assert found.gap < 1e-12
    assert found.overbid < 1e-9
    passes = record.passes["FedDif", 0]
    iterations = {t: info.iterations for _, t, info in diffusion.info_of(record, "FedDif", DiffusionRound)}
    assert passes == iterations, "legs counted in the work are those FedDif counted"
    assert "this run’s own radio" in pages.said(write_report(tmp_path / "run"))


@pytest.mark.slow
@pages.needs_browser
@pages.on_both
def test_a_browser_shows_the_figures_without_overflow_in_both_schemes(
    page: Path, tmp_path: Path, width: int, scheme: int
) -> None:
    measured = pages.measure(page, tmp_path, width, scheme)
    assert measured["width"] == width
    assert measured["over"] <= 0, "the page scrolls sideways"
    assert measured["drawn"] == 7
    assert measured["text"] == measured["ink"], "figure text follows the page's colour"
