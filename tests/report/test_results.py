"""The table of results, and every format it is written in."""

import csv
import io
from collections.abc import Mapping
from dataclasses import replace

import by_hand
import pytest

from unskew.errors import ConfigError, RunError
from unskew.record.logs import DivergedRow
from unskew.record.reader import Bound, DataSplit, Record
from unskew.report import results, verdict, worth
from unskew.report.render import FORMATS, as_csv, frame, html, latex, markdown, render
from unskew.report.section import Table, TableRow
from unskew.report.tables import SAME_TEST_ROWS, leader, left_out, paired

ACCURACY, PERSONAL = "global.accuracy", "personal.accuracy.mean"


def made(
    values: Mapping[str, list[float]],
    bounds: Mapping[str, Bound] | None = None,
    finished: bool = True,
    metric: str = ACCURACY,
) -> Record:
    """A run of one round: accuracies by method and seed."""
    series = {(m, s, metric): {1: v} for m, vs in values.items() for s, v in enumerate(vs)}
    return by_hand.record(series, bounds, finished, "dirichlet(alpha=0.1), 4 clients")


APART = {"FedAvg": [0.50, 0.60, 0.55], "SCAFFOLD": [0.60, 0.70, 0.66], "Local": [0.90, 0.95, 0.91]}
"""SCAFFOLD - FedAvg = .10, .10, .11: mean .1033, s .0058, t_{.975, 2} = 4.3027, half width .0143: clear of zero."""


# ---------------------------------------------------------------- what is bold
def test_a_method_leads_only_if_it_is_clear_of_every_other() -> None:
    assert leader(made(APART, {"Local": "lower"})) == "SCAFFOLD"
    close = {**APART, "FedProx": [0.58, 0.71, 0.65]}  # -.02, +.01, -.01: nobody knows
    assert leader(made(close, {"Local": "lower"})) is None


def test_local_training_and_pooled_data_are_marked_and_take_no_part() -> None:
    run = made({**APART, "Pooled": [0.99, 0.99, 0.99]}, {"Local": "lower", "Pooled": "pooled"})
    shown = markdown(results.headline(run))
    assert "| Local (training alone) |" in shown
    assert "| Pooled (pooled data) |" in shown
    assert "Bold: better than every other federated method" in shown
    assert verdict.verdict(run).startswith("SCAFFOLD is better than FedAvg by +10.33 points")


def test_nobody_leads_with_one_seed_or_alone() -> None:
    assert leader(made({"FedAvg": [0.5], "SCAFFOLD": [0.9]})) is None
    assert leader(made({"FedAvg": [0.5, 0.6]})) is None
    assert leader(made({"FedAvg": [0.5, 0.6], "Local": [0.1, 0.2]}, {"Local": "lower"})) is None


def test_differences_can_be_taken_to_any_method() -> None:
    rows = {d.method: d for d in paired(made(APART), base="SCAFFOLD")}
    assert rows["FedAvg"].mean == pytest.approx(-0.31 / 3)
    assert (rows["FedAvg"].verdict, rows["Local"].verdict) == ("loses", "gains")


def test_a_difference_that_is_shown_as_zero_is_not_higher() -> None:
    """Differences of 1, 1.1 and 1.2 millionths: the interval excludes zero, and reads 0.00 [0.00, 0.00]."""
    run = made({"FedAvg": [0.5, 0.6, 0.7], "Other": [0.500001, 0.6000011, 0.7000012]})
    (row,) = paired(run)
    assert row.low is not None
    assert row.low > 0
    assert row.verdict == "open"
    assert results.differences(run)[0].entries[0].cells[2:4] == ("undecided", "no")


def test_over_seeds_of_the_same_test_rows_nothing_is_bold_and_a_sentence_says_why() -> None:
    split = DataSplit("d", "", 9, {"name": "natural"}, "", (1,), ((1,),), 0.0, 0.0, 1.0, test_sha256="a")
    same = replace(made(APART, {"Local": "lower"}), partitions=dict.fromkeys(range(3), split))
    assert leader(same) is None
    table = results.headline(same)
    assert not any(row.bold for row in table.entries)
    assert SAME_TEST_ROWS in table.note
    assert verdict.verdict(same).startswith("SCAFFOLD is better than FedAvg on these test rows by +10.33 points")
    assert table.data["same_test_rows"] == [True] * 3
    drawn = replace(same, partitions={s: replace(split, test_sha256=str(s)) for s in range(3)})
    assert leader(drawn) == "SCAFFOLD"
    assert left_out(drawn).startswith("All seeds share the global test set")


# ---------------------------------------------------------------- the table of results
def test_seeds_that_ended_in_other_rounds_have_a_range_and_in_the_frame_a_mean() -> None:
    """Rounds 5, 7 and 10: mean 7.33, standard deviation 2.52."""
    series = {("A", s, "global.accuracy"): {n: 0.5} for s, n in enumerate((10, 7, 5))}
    table = results.headline(by_hand.changed(made({"A": [0.5] * 3}), series))
    assert table.entries[0].cells[:2] == ("3", "5–10")
    assert table.data["round"] == [pytest.approx(7.3333, abs=1e-4)]
    assert table.data["round_std"] == [pytest.approx(2.5166, abs=1e-4)]


def test_a_method_for_own_models_has_its_difference_in_these() -> None:
    """Ditto's global model is FedAvg's: a table of its differences said 0.00 and nothing of what Ditto is for."""
    shared, own = made(dict.fromkeys(APART, APART["FedAvg"])), made(APART, metric=PERSONAL)
    config = '[[methods]]\nname = "ditto"\nlabel = "SCAFFOLD"'
    run = by_hand.changed(shared, {**by_hand.series(shared), **by_hand.series(own)}, config=config)
    table = results.headline(run)
    at = {title: k - 1 for k, (title, _) in enumerate(table.head)}
    assert table.entries[1].cells[at["minus FedAvg"]] == "0.00 [in every seed]"
    assert table.entries[1].cells[at["own, minus FedAvg"]] == "+10.33 [+8.90, +11.77]"
    assert "own, minus FedAvg" not in dict(results.headline(replace(run, config="")).head)
    assert table.data["personal_difference"][1] == pytest.approx(0.31 / 3)
    assert table.data["personal_difference_low_95"][1] == pytest.approx(0.0890, abs=1e-4)


def test_chosen_columns_stand_beside_the_method_in_their_order() -> None:
    table = results.headline(made(APART, {"Local": "pooled"}), ["difference", "global"])
    assert table.head == (("method", ""), ("minus FedAvg", "points, 95 %"), ("global accuracy", "%"))
    assert table.entries[0].cells == ("–", "55.0 ± 5.0")
    with pytest.raises(ConfigError, match=r"of x has the columns seeds, .*; got 'globl'; did you mean global?"):
        results.headline(made(APART), ["globl"])


def test_seeds_under_which_a_method_diverged_are_said_first() -> None:
    lost = DivergedRow(method="FedAvg", seed=2, round=1, reason="loss")
    run = replace(made(APART), diverged=(lost,))
    says = "FedAvg diverged under 1 of 3 seeds (seed 2 in round 1): its results are of the others alone."
    assert says in verdict.serious(run)


@pytest.mark.parametrize("format", FORMATS)
def test_a_run_that_has_not_measured_anything_has_a_table_too(format: str) -> None:
    assert "FedAvg" in render(results.headline(made({"FedAvg": [0.5]}, finished=False, metric="train.loss")), format)


# ---------------------------------------------------------------- the formats
TABLE = Table(
    "A caption", (("method", ""), ("accuracy", "%"), ("reading", "")),
    (
        TableRow("FedAvg", ("55.0 ± 5.0", "as it was")),
        TableRow("SCAFFOLD", ("65.3", "better"), below="new", bold=frozenset({0})),
    ),
    "A note.", frozenset({2}), {"method": ["FedAvg", "SCAFFOLD"], "accuracy": [0.55, 0.6533]},
)  # fmt: skip


def test_no_name_in_markdown_is_an_image_a_link_or_html() -> None:
    """The attack that worked: whoever pasted the table of somebody's run had a picture loaded from elsewhere."""
    run = replace(
        made({"![x](https://x.org/a.png)": [0.5], "a|b*c_\n<d>": [0.5]}, finished=False), name="<img src=x>[y][z]"
    )
    shown = markdown(results.headline(run))
    assert r"| \![x\](https://x.org/a.png) | 1 |" in shown
    assert r"| a\|b\*c\_ \<d> | 1 |" in shown
    assert r"Not finished: \<img src=x>[y\][z]." in shown


def test_latex_is_escaped_and_uses_booktabs() -> None:
    name = r"50% of_a & b#{c}$d^e~f\g<h>"
    lines = latex(
        results.headline(made({"FedAvg": [0.5, 0.6], name: [0.6, 0.72], "[ours]": [0.1, 0.2], "*": [0.1, 0.2]}))
    ).splitlines()
    escaped = (
        r"50\% of\_a \& b\#\{c\}\$d\textasciicircum{}e\textasciitilde{}f\textbackslash{}g\textless{}h\textgreater{}"
    )
    assert lines[0] == r"% \usepackage{booktabs}"
    (row,) = [line for line in lines if line.startswith("50")]
    assert row.startswith(rf"{escaped} & 2 & 1 & 66.0 $\pm$ 8.5 & ")
    assert "+11.00 [$-$1.71, +23.71]" in row
    # A row that begins with [ or * would be an option of the one before.
    assert any(line.startswith("{}[ours] & ") for line in lines)
    assert any(line.startswith("{}* & ") for line in lines)
    assert [line for line in lines if line.startswith("\\") and "rule" in line] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]


def test_csv_is_unrounded_and_says_what_a_number_is_compared_with() -> None:
    written = render(results.headline(made({**APART, 'a,"b"': [0.1, 0.2, 1 / 3]}, {"Local": "lower"})), "csv")
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(written))}
    assert list(rows) == ["FedAvg", "SCAFFOLD", "Local", 'a,"b"']
    assert float(rows["SCAFFOLD"]["global"]) == pytest.approx(1.96 / 3)
    assert float(rows['a,"b"']["global"]) == (0.1 + 0.2 + 1 / 3) / 3
    assert float(rows["SCAFFOLD"]["difference_low_95"]) == pytest.approx(0.0890, abs=1e-4)
    assert (rows["Local"]["bound"], rows["FedAvg"]["bound"]) == ("lower", "")
    assert rows["FedAvg"]["setting"] == "dirichlet(alpha=0.1), 4 clients"


def test_no_name_in_a_csv_is_a_formula_and_every_number_is_one() -> None:
    """The attack that worked: a label of somebody else's run was a formula for whoever opened the table."""
    names = ["=cmd|' /C calc'!A0", "+1+1", "-1.5", "@SUM(1)", "FedAvg"]
    rows = list(
        csv.DictReader(io.StringIO(render(results.headline(made({n: [0.1, 0.2, 0.3] for n in names}, {})), "csv")))
    )
    assert sorted(row["method"] for row in rows) == sorted(
        ["'=cmd|' /C calc'!A0", "'+1+1", "-1.5", "'@SUM(1)", "FedAvg"]
    )
    assert all(float(row["difference"]) == 0.0 for row in rows if row["difference"])


def test_csv2_is_csv_with_semicolons_decimal_commas_and_a_byte_order_mark() -> None:
    assert as_csv({"a": [1.5, None], "b;c": ["x", "=1"]}, ";", ",") == 'a;"b;c"\n1,5;x\n;\'=1\n'
    assert render(TABLE, "csv2").startswith("\ufeffmethod;accuracy\nFedAvg;0,55")
    assert frame(replace(TABLE, data={})) == {
        "method": ("FedAvg", "SCAFFOLD"), "accuracy, %": ("55.0 ± 5.0", "65.3"), "reading": ("as it was", "better")
    }  # fmt: skip


def test_html_escapes_names_and_keeps_intervals_whole() -> None:
    evil = TableRow("<script>x</script>", ("+1.00 [−1.71, +23.71]", "a & b"))
    written = html(replace(TABLE, entries=(evil,)))
    assert "<script" not in written
    assert "+1.00 [−1.71,\N{NO-BREAK SPACE}+23.71]" in written
    assert '<td class="text"><span>a &amp; b</span></td>' in written


# ---------------------------------------------------------------- by client
def _with_clients() -> Record:
    """Two sites with ten test rows each; under FedAvg Bern has .9 and .7, alone .5 both times."""
    run = made({"alone": [0.5, 0.5], "FedAvg": [0.7, 0.6]}, {"alone": "lower"}, metric=PERSONAL)
    of = {"FedAvg": [(0.5, 0.9), (0.5, 0.7)], "alone": [(0.5, 0.5), (0.5, 0.5)]}
    clients = {(m, s, "personal"): dict(enumerate(v)) for m, by_seed in of.items() for s, v in enumerate(by_seed)}
    tested = {key: {0: 10.0, 1: 10.0} for key in clients}
    split = DataSplit("d", "", 9, {"name": "natural"}, "", (1, 1), ((1,),) * 2, 0.0, 0.0, 1.0)
    splits = {0: replace(split, client_names=("=Basel", "Bern")), 1: replace(split, client_names=("=Basel", "Bern"))}
    return by_hand.changed(run, None, clients, tested, partitions=splits)


def test_by_client_there_are_value_test_rows_and_gain_of_each_method() -> None:
    """Bern's mean under FedAvg is .8, standard deviation .1414, its gain .3."""
    run = _with_clients()
    rows = list(csv.DictReader(io.StringIO(render(results.by_client(run), "csv"))))
    assert [(row["method"], row["client"]) for row in rows] == [
        ("alone", "'=Basel"), ("alone", "Bern"), ("FedAvg", "'=Basel"), ("FedAvg", "Bern")
    ]  # fmt: skip
    bern = rows[-1]
    assert (bern["test_rows"], bern["seeds"], bern["seed"]) == ("10", "2", "")
    assert [float(bern[key]) for key in ("accuracy", "accuracy_std", "gain")] == pytest.approx(
        [0.8, 0.1414, 0.3], abs=1e-4
    )
    (gain,) = [row for row in worth.rows(run) if row["client"] == "Bern"]
    assert [float(bern[f"gain_{end}_95"]) for end in ("low", "high")] == [gain["low"], gain["high"]]


def test_clients_that_each_seed_draws_anew_have_a_row_each() -> None:
    run = _with_clients()
    drawn = replace(run, partitions={s: replace(of, client_names=()) for s, of in run.partitions.items()})
    data = results.by_client(drawn).data
    rows = zip(data["method"], data["client"], data["seed"], data["accuracy"], strict=True)
    assert [row[1:] for row in rows if row[0] == "FedAvg"] == [(0, 0, 0.5), (1, 0, 0.9), (0, 1, 0.5), (1, 1, 0.7)]


def test_a_run_without_results_of_clients_has_no_table_by_client() -> None:
    with pytest.raises(RunError, match="has no results of single clients"):
        results.by_client(made(APART))
