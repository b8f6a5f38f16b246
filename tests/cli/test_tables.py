"""Tables in a terminal: nothing is cut off, and a method keeps its name."""

import io
from functools import partial
from typing import Any

import pytest
from rich.console import Console

from unskew.cli.tables import print_fitting, results
from unskew.tasks.measure import ACCURACY, Measure

BRIER = Measure("brier", "Brier score", "lower", 0.0, 2.0, percent=False)


def printed(
    measure: Measure, unseen: bool, width: int = 80, steady: bool = True, undefined: int = 0, **more: Any
) -> str:
    parts = ["global.{}", "global.{}.best", "global.{}.mean_last_fifth", "personal.{}.mean", "personal.{}.worst_decile"]
    parts += ["unseen.{}.mean", "unseen_adapted.{}.mean"] if unseen else []
    rows: list[dict[str, Any]] = [
        {
            "method": method,
            "metric": name,
            "mean": 0.123456,
            "std": 0.0123456,
            "seeds": [len(name) * steady, 2],
            "undefined": undefined,
        }
        for method in ("fedavg", "independent", "made-by-somebody:Else")
        for name in [*(part.format(measure.name) for part in parts), "bytes.total", "seconds"]
    ]
    text = io.StringIO()
    summary = {"run": "r", "rows": rows, "headline": measure.card()}
    print_fitting(Console(file=text, width=width), partial(results, summary, **more))
    return text.getvalue()


@pytest.mark.parametrize("measure", [ACCURACY, BRIER])
@pytest.mark.parametrize("unseen", [False, True])
def test_nothing_is_cut_off_in_eighty_columns(measure: Measure, unseen: bool) -> None:
    text = printed(measure, unseen)
    assert "…" not in text
    for name in (" fedavg ", " independen", "made-by-so", "MB"):
        assert name in text
    assert " s" in text.splitlines()[2]
    assert measure.show(0.123456) in text


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("unseen", [False, True])
def test_methods_keep_their_names_where_a_seed_is_missing(unseen: bool, width: int) -> None:
    """Each number is then followed by "(1 of 3 seeds)", which is longer than the number."""
    text = printed(BRIER, unseen, width, undefined=2)
    assert "…" not in text
    for name in (" fedavg ", " independen", "made-by-so"):
        assert name in text
    assert text.count("0.123") >= 3 * 3
    assert max(map(len, text.splitlines())) <= width


def test_standard_deviations_are_shown_where_they_fit() -> None:
    assert "12.3 ± 1.2" in printed(ACCURACY, unseen=False)
    assert "0.123 ± 0.012" in printed(BRIER, unseen=False)
    fewer = printed(BRIER, unseen=True)  # eighty columns hold the headline's, but not those that have a note
    assert fewer.count("0.123 ± 0.012") == 3
    assert "best*" not in fewer
    assert "±" not in printed(BRIER, unseen=True, width=70)
    assert printed(BRIER, unseen=True, width=200).count("0.123 ± 0.012") == 3 * 5


def test_what_the_headings_abbreviate_is_said_below() -> None:
    text = " ".join(printed(ACCURACY, unseen=False).split())
    assert "worst 1/10: mean of the worst tenth of the clients; MB: sent in all; s: by the clock, in all" in text


def test_the_mean_of_the_last_evaluations_is_shown_where_it_is_not_the_last_one() -> None:
    assert "last 1/5: mean of the last fifth of evaluations" in " ".join(printed(ACCURACY, unseen=False).split())
    assert "last 1/5" not in printed(ACCURACY, unseen=False, steady=False)


@pytest.mark.parametrize("width", [80, 120])
def test_what_does_not_compete_is_marked(width: int) -> None:
    text = printed(ACCURACY, False, width, bounds={"independent": "local training"})
    assert "local training made-by-" in " ".join(text.split())
    assert "training" not in printed(ACCURACY, False, width)


def test_of_an_error_the_table_says_that_lower_is_better() -> None:
    assert "Brier score, lower is better: last round" in " ".join(printed(BRIER, unseen=False).split())
    assert "better" not in printed(ACCURACY, unseen=False)


def test_runs_of_several_numbers_of_seeds_are_said_to_be() -> None:
    rows = [
        {"method": method, "metric": "global.accuracy", "mean": 0.5, "std": None, "seeds": list(range(seeds))}
        for method, seeds in (("one/fedavg", 3), ("two/fedavg", 2))
    ]
    titles = [results({"run": "r", "rows": some, "headline": ACCURACY.card()}).title for some in (rows, rows[:1])]
    assert [str(title).rpartition("over ")[2] for title in titles] == ["2 to 3 seeds", "3 seeds"]
