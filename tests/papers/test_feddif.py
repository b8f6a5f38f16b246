"""FedDif's reproductions."""

from pathlib import Path
from typing import Any

from unskew.papers import feddif
from unskew.papers.claims import Row, over_seeds
from unskew.papers.study import Draft, made
from unskew.pricing import radio
from unskew.run.cell import Observer

SHARED = Path(__file__).parents[3] / "shared" / "data"


def draft_of(name: str, folder: Path, **changes: Any) -> Draft:
    return Draft(f"feddif/{name}", "small", folder, SHARED, Observer(), changes)


def test_the_cost_formula_is_the_published_one_but_for_an_erratum() -> None:
    """3.11 * 15 * (T + I) MB are all entries of Table 3, but FedSwap's for soft, whose term of T is missing."""
    for method, row in feddif.TABLE3.items():
        for setting in (s for s in ("hard", "soft", "IID") if f"{s} T" in row):
            rounds, passes = int(row[f"{setting} T"]), int(row[f"{setting} I"])
            counted = 0 if (method, setting) == ("FedSwap", "soft") else rounds
            assert abs(radio.table3_mb(counted, passes) - row[f"{setting} MB"]) <= 0.5


def test_p001s_rounds_follow_from_the_models_it_sent(tmp_path: Path) -> None:
    """1,600 models to and from ten devices are 80 rounds: 175,554 / 80 = 2194.4 sub-frames in each."""
    result = made(draft_of("subframes", tmp_path, rounds=1, seeds=[0]), feddif.subframes)
    printed = {(r.method, r.metric): r.paper for r in result.rows}
    assert printed["FedAvg", "subframes_per_round"] == 175_554 / 80
    assert printed["FedDif", "diffusion_rounds_per_round"] == 10.24
    assert printed["FedDif, stop = decrement", "diffusion_rounds_per_round"] is None


def test_diffusion_rounds_are_counted_for_each_value_and_even_labels_need_fewest(tmp_path: Path) -> None:
    """Ten clients with even labels train each model once and then gain nothing: no more than one diffusion round."""
    changes = {"rounds": 1, "seeds": [0], "sweeps": {"alpha": [0.1, 1.0, 100.0], "epsilon": [0.04]}}
    found = made(draft_of("diffusion-rounds", tmp_path, **changes), feddif.diffusion_rounds)
    rounds = {r.setting: r for r in found.rows}
    assert rounds["alpha 1"].paper == rounds["epsilon 0.04"].paper == 10.24
    assert rounds["alpha 1"].seeds == rounds["epsilon 0.04"].seeds
    assert 0.0 <= rounds["alpha 100"].ours <= 1.0 < rounds["alpha 0.1"].ours
    assert found.claims[0].text == "alpha 0.1 takes more diffusion rounds than alpha 100"


def costs(method: str, formula: tuple[float, ...], mb: float) -> list[Row]:
    numbers = {"formula_mb": formula, "megabytes": (mb,) * len(formula)}
    rows = [over_seeds(method, "hard", f"to_target.{name}", v) for name, v in numbers.items()]
    return [over_seeds(method, "hard", "global.accuracy", (0.5, 0.6, 0.7)), *rows]


def test_feddif_can_spend_less_by_the_formula_and_more_in_bytes(tmp_path: Path) -> None:
    """FedAvg: T + I = 100, 110, 120; FedDif 50, 50, 60: 50 to 55 % saved.  In bytes it spends twice as much."""
    rows = costs("fedavg", (100.0, 110.0, 120.0), 10.0)
    rows += costs("feddif eps1", (50.0, 50.0, 60.0), 20.0)
    spent = (("fedavg", 3), ("feddif eps1", 2))
    rows += [over_seeds(m, "hard", "to_target.subframes", (9.0,) * n) for m, n in spent]
    draft = draft_of("accuracy", tmp_path)
    draft.rows = rows
    draft.judge()
    _, formula, wire, subframes = draft.claims
    assert formula.holds is True
    assert formula.evidence.startswith("+51.5 % of fedavg's cost saved")
    assert "-100.0 % of fedavg's cost saved" in wire.evidence
    assert (subframes.holds, subframes.evidence) == (None, "in 2 of 3 seeds alone")
