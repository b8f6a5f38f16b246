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

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import by_hand
import numpy as np
import pytest
from records import rewrite

import unskew as us
from unskew.info import DiffusionRound, adapter
from unskew.record.logs import rows as written
from unskew.report import read
from unskew.report.sections import cost, diffusion

COUNTS = [[10, 0], [0, 10], [20, 0], [0, 10]]
FAR, NEAR = math.sqrt(0.5), math.sqrt(2) / 6

Info = dict[str, Any]


def move(model: int, src: int, dst: int, bid: float) -> Info:
    return {"model": model, "src": src, "dst": dst, "bid": bid, "gamma": 4.0}


def info(starts: Sequence[int], hops: Sequence[tuple[float, Sequence[Info]]], sizes: Sequence[int]) -> Info:
    told = [
        {"hop": k, "efficiency": e, "moves": list(moves), "exchange": k} for k, (e, moves) in enumerate(hops, start=1)
    ]
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
                    kept_info.append({**at, "type": "DiffusionRound", "info": told})
    methods = "".join(
        f'[[methods]]\nname = "{m.lower()}"\nlabel = "{m}"\n{options if m != "FedAvg" else ""}\n' for m in accuracy
    )
    rows = [
        {"method": m, "setting": "by hand", "metric": "global.accuracy", "mean": c[-1], "std": None, "seeds": [c[-1]]}
        for m, c in accuracy.items()
    ]  # fmt: skip
    summary = {"run": "made by hand", "fingerprint": "f" * 64, "seconds": 1.0, "rows": rows, "stopped": None}
    by_hand.write(folder, list(accuracy), seeds, counts, f"{channel}\n{methods}")
    (folder / "summary.json").write_text(json.dumps(summary))
    rewrite(folder, metrics=metrics, transfers=ledger, work=work, info=kept_info if kept else ())
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("feddif") / "run")


# ---------------------------------------------------------------- degrees of learning
def _round(told: Info, clients: int = 4) -> DiffusionRound:
    context = {"clients": clients}
    round: DiffusionRound = adapter(DiffusionRound).validate_json(json.dumps(told), strict=True, context=context)
    return round


def test_degrees_of_learning_follow_the_models_as_worked_out_by_hand() -> None:
    """See the module: (1, 0) -> (.5, .5), 10 -> 20 examples; (1, 0) -> (2/3, 1/3) -> (.5, .5), 20 -> 30 -> 40."""
    pooled = diffusion.learned(_round(ROUND_1), np.array(COUNTS))
    assert pooled.tolist() == [[[10, 0], [20, 0]], [[10, 10], [20, 10]], [[10, 10], [20, 20]]]
    _, between = diffusion.ruler({}, np.array(COUNTS))
    assert between(pooled) == pytest.approx(np.array([[FAR, FAR], [0, NEAR], [0, 0]]))


def test_a_chain_without_examples_has_no_distance_until_it_meets_one() -> None:
    counts = np.array([[0, 0], [5, 5]])
    pooled = diffusion.learned(_round(info([0], [(1e-6, [move(0, 0, 1, 0.1)])], [10]), 2), counts)
    distances = diffusion.ruler({}, counts)[1](pooled)
    assert math.isnan(distances[0, 0])
    assert distances[1, 0] == 0


# ---------------------------------------------------------------- over a run
def _diffusion(folder: Path) -> diffusion.Diffusion:
    found = diffusion.diffusion(read(folder), "FedDif")
    assert found is not None
    return found


def test_curves_are_means_over_models_and_rounds(folder: Path) -> None:
    """Round 1: .70711, (0 + .23570)/2 = .11785, 0.  Round 2 stays at .70711.  Their means: .70711, .41248, .35355.

    Of the two rounds only the first has diffusion rounds, so the efficiencies are its own.
    """
    found = _diffusion(folder)
    assert found.distance.x == (0, 1, 2)
    assert found.distance.mean == pytest.approx((0.70711, 0.41248, 0.35355), abs=1e-5)
    assert found.efficiency is not None
    assert (found.efficiency.x, found.efficiency.mean) == ((1, 2), pytest.approx((2e-6, 1e-6)))
    assert found.rounds == 2
    assert found.hops.mean == 1, "two diffusion rounds, then none"
    assert found.moved == 3 / 4, "3 moves of 2 models in 2 diffusion rounds"
    assert found.stayed == 2 / 4, "both models of round 2, of 4"


# ---------------------------------------------------------------- the section
def test_with_a_radio_devices_are_where_the_channel_had_them(tmp_path: Path) -> None:
    """The channel counts diffusion rounds from 0, so the second one on the page is hop 1 of the run's channel."""
    folder = make_run(tmp_path / "run", channel=RADIO)
    shown = _diffusion(folder).shown
    assert shown is not None
    places, radius = diffusion.ground(read(folder), shown)
    radio = us.Radio(cell_radius_m=100.0)
    expected = radio.positions(us.Key(0) / "channel", 1, 1, 5)[1:]
    assert places(2) == pytest.approx(expected)
    assert radius == 100


# ---------------------------------------------------------------- cost to target
def _rows(folder: Path) -> list[str]:
    """The table of costs as text, without a radio."""
    record = read(folder)
    section = cost.section(record)
    assert section is not None
    return [" ".join((entry.name, *entry.cells)) for entry in section.tables[0].entries]


def _spent(folder: Path) -> dict[str, list[tuple[float, ...] | None]]:
    """By method rounds, iterations, models and MB of each seed, None where it did not get there."""
    return {m: [s and s.values for s in spreads] for m, (_, spreads) in cost.reached(read(folder)).items()}


def test_the_cost_to_fedavgs_peak_is_what_was_sent_until_then(folder: Path) -> None:
    """FedAvg peaks at .5 in round 1: 1 leg, 2 models down and 2 up, 4,000 bytes.

    FedDif is at .4 in round 1 and at .6 in round 2.  Round 1 has 3 legs and 2 + 3 + 2 models, round 2 one leg and 4.
    """
    assert _spent(folder) == {
        "FedAvg": [(1,), (1,), (4,), (pytest.approx(0.004),)],
        "FedDif": [(2,), (4,), (11,), (pytest.approx(0.011),)],
    }


def test_a_method_that_never_gets_there_is_not_reached(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", accuracy={"FedAvg": [0.1, 0.5, 0.4], "FedDif": [0.1, 0.2, 0.49]})
    assert _spent(folder)["FedDif"][0] is None
    assert _rows(folder)[1] == "FedDif 0 of 1 – – – –"


def test_each_seed_has_its_own_target_and_the_spread_is_of_those_that_reached_it(tmp_path: Path) -> None:
    """FedAvg peaks at .5 (seed 0) and, edited, at .7 (seed 1), which FedDif, ending at .6, does not reach."""
    folder = make_run(tmp_path / "run", seeds=(0, 1))
    lines = list(written(folder, "metrics"))
    for row in lines:
        if (row["method"], row["seed"], row["round"], row["name"]) == ("FedAvg", 1, 2, "global.accuracy"):
            row["value"] = 0.7
    rewrite(folder, metrics=lines)
    assert _rows(folder) == [
        "FedAvg 2 of 2 1.50 ± 0.71 1.50 ± 0.71 6.00 ± 2.83 0.00600 ± 0.00283",
        "FedDif 1 of 2 2 4 11 0.0110",
    ]


def test_the_target_of_an_error_is_the_worst_of_the_best_ones_too(tmp_path: Path) -> None:
    """The lowest errors are .2 and .35, so the target is .35: A has it in round 1, B in round 2."""
    run = read(make_run(tmp_path / "run", accuracy={"A": [0.9, 0.3, 0.2], "B": [0.9, 0.6, 0.35]}))
    run = replace(run, headline=replace(run.headline, label="error", direction="lower"))
    assert cost.target(run) == ({0: 0.35}, "the worst of the methods’ best values on the test curve")
    assert {m: spreads[0] and spreads[0].values for m, (_, spreads) in cost.reached(run).items()} == {
        "A": (1,),
        "B": (2,),
    }
