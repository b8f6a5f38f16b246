"""The headline table for papers and spreadsheets."""

import csv
import io
import shutil
import subprocess
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import unskew as us
from unskew.errors import ConfigError, RunError
from unskew.record.logs import DivergedRow
from unskew.record.reader import Bound, DataSplit, Record, RecordedCell, Summary
from unskew.report import table, worth
from unskew.report.export import FORMATS, client_table
from unskew.report.summary_text import found, intervals
from unskew.report.tables import SAME_TEST_ROWS, leader, left_out, paired, standing
from unskew.tasks.measure import Measure

ACCURACY, PERSONAL = "global.accuracy", "personal.accuracy.mean"


def made(
    values: Mapping[str, list[float]],
    bounds: Mapping[str, Bound] | None = None,
    finished: bool = True,
    metric: str = ACCURACY,
) -> Record:
    """A run of one round: accuracies by method and seed."""
    series = {(m, s, metric): {1: v} for m, vs in values.items() for s, v in enumerate(vs)}
    return Record(
        folder=Path("runs/x"),
        name="x",
        created="",
        command="",
        version="",
        environment={},
        config_sha256="",
        config="",
        cells=tuple(RecordedCell(m, "dirichlet(alpha=0.1), 4 clients", s, (bounds or {}).get(m)) for m, s, _ in series),
        series=series,
        clients={},
        flows={},
        partitions={},
        failures=(),
        summary=Summary("f", 1.0, {}, None) if finished else None,
    )


APART = {"FedAvg": [0.50, 0.60, 0.55], "SCAFFOLD": [0.60, 0.70, 0.66], "Local": [0.90, 0.95, 0.91]}
"""SCAFFOLD - FedAvg = .10, .10, .11: mean .1033, s .0058, t_{.975, 2} = 4.3027, half width .0143: clear of zero."""


# ---------------------------------------------------------------- unfinished runs
def test_rows_of_runs_that_are_not_finished_are_marked() -> None:
    runs, run_of = {"a": True, "b": False, "b/c": True}, {"a/A": "a", "b/A": "b", "b/c/A": "b/c"}
    merged = replace(made({"a/A": [0.5], "b/A": [0.5], "b/c/A": [0.5]}, finished=False), runs=runs, run_of=run_of)
    assert [row["finished"] for row in csv.DictReader(io.StringIO(table(merged, "csv")))] == ["True", "False", "True"]
    assert "Not finished: b." in table(merged)


# ---------------------------------------------------------------- rounds
def test_seeds_that_ended_in_other_rounds_have_a_range_and_in_csv_a_mean() -> None:
    """Rounds 5, 7 and 10: mean 7.33, standard deviation 2.52."""
    series = {("A", s, "global.accuracy"): {n: 0.5} for s, n in enumerate((10, 7, 5))}
    run = replace(made({"A": [0.5] * 3}), series=series)
    assert table(run).splitlines()[2].startswith("| A | 3 | 5–10 | ")
    assert " & 5--10 & " in table(run, "latex")
    (row,) = csv.DictReader(io.StringIO(table(run, "csv")))
    assert float(row["round"]) == pytest.approx(7.3333, abs=1e-4)
    assert float(row["round_std"]) == pytest.approx(2.5166, abs=1e-4)


# ---------------------------------------------------------------- what is bold
def test_a_method_leads_only_if_it_is_clear_of_every_other() -> None:
    assert leader(made(APART, {"Local": "lower"})) == "SCAFFOLD"
    close = {**APART, "FedProx": [0.58, 0.71, 0.65]}  # -.02, +.01, -.01: nobody knows
    assert leader(made(close, {"Local": "lower"})) is None


def test_a_bound_never_leads_and_never_stands_in_the_way() -> None:
    assert leader(made(APART)) == "Local"
    assert leader(made(APART, {"Local": "pooled"})) == "SCAFFOLD"


def test_local_training_and_pooled_data_are_marked_and_take_no_part() -> None:
    run = made({**APART, "Pooled": [0.99, 0.99, 0.99]}, {"Local": "lower", "Pooled": "pooled"})
    text = table(run)
    assert "| Local (local training) |" in text
    assert "| Pooled (pooled data) |" in text
    assert "Bold: higher than every other federated method" in text
    assert "Local and Pooled take no part in that." in text
    assert "SCAFFOLD has the highest last-round global accuracy of the federated methods, 65.3" in found(run)
    assert "take" not in table(made(APART))


def test_nobody_leads_with_one_seed_or_alone() -> None:
    assert leader(made({"FedAvg": [0.5], "SCAFFOLD": [0.9]})) is None
    assert leader(made({"FedAvg": [0.5, 0.6]})) is None
    assert leader(made({"FedAvg": [0.5, 0.6], "Local": [0.1, 0.2]}, {"Local": "lower"})) is None


def test_a_method_without_the_metric_is_no_competitor_in_it() -> None:
    both = made(APART, {"Local": "lower"})
    assert leader(both, PERSONAL) is None


def test_differences_can_be_taken_to_any_method() -> None:
    rows = {d.method: d for d in paired(made(APART), base="SCAFFOLD")}
    assert rows["FedAvg"].mean == pytest.approx(-0.31 / 3)
    assert (rows["FedAvg"].verdict, rows["Local"].verdict) == ("lower", "higher")


def test_a_difference_that_is_shown_as_zero_is_not_higher() -> None:
    """Differences of 1, 1.1 and 1.2 millionths: the interval excludes zero, and reads 0.00 [0.00, 0.00]."""
    (row,) = paired(made({"FedAvg": [0.5, 0.6, 0.7], "Other": [0.500001, 0.6000011, 0.7000012]}))
    assert row.low is not None
    assert row.low > 0
    assert (row.verdict, standing([row])[1]) == ("undecided", ())


def test_of_an_error_the_table_says_that_lower_is_better() -> None:
    run = made(APART)
    run = replace(run, headline=replace(run.headline, label="error", direction="lower"))
    head = table(run).splitlines()[0]
    assert "| global error, %, lower is better |" in head
    assert "global accuracy, % |" in table(made(APART)).splitlines()[0]


def test_over_seeds_of_the_same_test_rows_nothing_is_bold_and_a_sentence_says_why() -> None:
    split = DataSplit("d", "", 9, {"name": "natural"}, "", (1,), ((1,),), 0.0, 0.0, 1.0, test_sha256="a")
    same = replace(made(APART, {"Local": "lower"}), partitions=dict.fromkeys(range(3), split))
    assert leader(same) is None
    assert "**" not in table(same)
    assert SAME_TEST_ROWS in table(same)
    assert "SCAFFOLD (+10.33 [+8.90, +11.77]) is higher than FedAvg on these test rows." in found(same)
    assert [row["same_test_rows"] for row in csv.DictReader(io.StringIO(table(same, "csv")))] == ["True"] * 3
    drawn = replace(same, partitions={s: replace(split, test_sha256=str(s)) for s in range(3)})
    assert leader(drawn) == "SCAFFOLD"
    assert SAME_TEST_ROWS not in table(drawn)
    assert "The global test set is the same under every seed" in table(drawn)


# ---------------------------------------------------------------- the formats
def test_markdown_has_the_leader_in_bold_and_the_bounds_marked() -> None:
    head, rule, *rows = table(made(APART, {"Local": "pooled"})).splitlines()
    assert head.count("|") == rule.count("|") == rows[0].count("|")
    assert rows[0].startswith("| FedAvg | 3 | 1 | 55.0 ± 5.0 | – | – |")
    assert rows[1].startswith("| SCAFFOLD | 3 | 1 | **65.3 ± 5.0** | – | +10.33 [+8.90, +11.77] |")
    assert rows[2].startswith("| Local (pooled data) | 3 | 1 | 92.0 ± 2.6 |")
    assert rows[-1].startswith(
        "Last round, and beside it the mean of the last fifth of evaluations, a dash where it is"
    )
    assert "not finished" not in rows[-1]
    assert table(made(APART, finished=False)).endswith(" Not finished: x.\n")


def test_markdown_names_cannot_break_the_table() -> None:
    text = table(made({"a|b*c_\n<d>": [0.5, 0.6]}))
    assert r"| a\|b\*c\_ \<d> | 2 |" in text


def test_no_name_in_markdown_is_an_image_a_link_or_html() -> None:
    """The attack that worked: whoever pasted the table of somebody's run had a picture loaded from elsewhere."""
    run = replace(made({"![x](https://x.org/a.png)": [0.5]}, finished=False), name="<img src=x>[y][z]")
    *_, row, _, note = table(run).splitlines()
    assert row.startswith(r"| \![x\](https://x.org/a.png) | 1 |")
    assert note.endswith(r"Not finished: \<img src=x>[y\][z].")


def test_latex_is_escaped_and_uses_booktabs() -> None:
    name = r"50% of_a & b#{c}$d^e~f\g<h>"
    text = table(made({"FedAvg": [0.5, 0.6], name: [0.6, 0.72]}), "latex")
    escaped = (
        r"50\% of\_a \& b\#\{c\}\$d\textasciicircum{}e\textasciitilde{}f\textbackslash{}g\textless{}h\textgreater{}"
    )
    lines = text.splitlines()
    assert lines[0] == r"% \usepackage{booktabs}"
    assert lines[2] == r"\begin{tabular}{lrrrrrrrrr}"
    assert (
        r"method & seeds & round & global accuracy, \% & mean of last fifth & minus FedAvg, points [95 \%]" in lines[4]
    )
    (row,) = [line for line in lines if line.startswith("50")]
    assert row.startswith(rf"{escaped} & 2 & 1 & 66.0 $\pm$ 8.5 & -- & +11.00 [$-$1.71, +23.71] & -- & -- & -- & -- \\")
    assert [line for line in lines if line.startswith("\\") and "rule" in line] == [
        r"\toprule", r"\midrule", r"\bottomrule",
    ]  # fmt: skip


def test_a_latex_row_that_begins_with_a_bracket_is_no_option_of_the_one_before() -> None:
    text = table(made({"FedAvg": [0.5], "[ours]": [0.6], "*": [0.7]}), "latex")
    assert "\n{}[ours] & " in text
    assert "\n{}* & " in text


def test_latex_has_greek_letters_and_bars_that_its_text_fonts_lack() -> None:
    text = table(made({"FedAvg": [0.5], "μ = 0.1|Δ": [0.6]}), "latex")
    assert r"$\mu$ = 0.1\textbar{}$\Delta$ & 1 &" in text
    assert "μ = 0.1" in table(made({"FedAvg": [0.5], "μ = 0.1": [0.6]}), "markdown")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not on PATH, so no LaTeX can be tried")
def test_latex_compiles(tmp_path: Path) -> None:
    if subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True, timeout=60).returncode:
        pytest.skip("LaTeX is there without booktabs (Debian: texlive-latex-recommended)")
    body = table(made({"FedAvg": [0.5, 0.6], r"[a]_%$#^~\{}&<>|αΩ": [0.6, 0.7]}, {}), "latex")
    (tmp_path / "t.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\n" + body + "\\end{document}"
    )
    subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, check=True, capture_output=True, timeout=60)


def test_csv_is_unrounded_and_says_what_a_number_is_compared_with() -> None:
    text = table(made({**APART, 'a,"b"': [0.1, 0.2, 1 / 3]}, {"Local": "lower"}), "csv")
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(text))}
    assert list(rows) == ["FedAvg", "SCAFFOLD", "Local", 'a,"b"']
    assert float(rows["SCAFFOLD"]["global_accuracy"]) == pytest.approx(1.96 / 3)
    assert float(rows['a,"b"']["global_accuracy"]) == (0.1 + 0.2 + 1 / 3) / 3
    assert float(rows["SCAFFOLD"]["difference_low_95"]) == pytest.approx(0.0890, abs=1e-4)
    assert (rows["SCAFFOLD"]["compared_with"], rows["FedAvg"]["compared_with"]) == ("FedAvg", "")
    assert (rows["Local"]["bound"], rows["FedAvg"]["bound"]) == ("lower", "")
    assert rows["FedAvg"]["seconds"] == rows["FedAvg"]["mb_up"] == ""
    assert rows["FedAvg"]["setting"] == "dirichlet(alpha=0.1), 4 clients"
    assert rows["SCAFFOLD"]["global_accuracy_tail"] == rows["SCAFFOLD"]["difference_tail"] == ""  # one evaluation


def test_a_method_for_own_models_is_compared_once_in_the_sentences_and_below_the_table() -> None:
    """Ditto’s global model is about FedAvg’s; what counts is its clients' own, beside the two others' global ones."""
    run = made(APART | {"FedProx": [0.6, 0.7, 0.66], "Ditto": [0.5, 0.61, 0.56]})
    own = {(m, s, PERSONAL): {1: v} for m, of in APART.items() for s, v in enumerate(of)}
    own |= {("Ditto", s, PERSONAL): {1: v} for s, v in enumerate(APART["SCAFFOLD"])}
    run = replace(run, series={**run.series, **own}, for_own=frozenset({"Ditto"}))
    below = intervals(run, "FedAvg")
    assert "Corrected for 3 comparisons (Holm), all of them still differ." in found(run)
    assert "Corrected for 3 comparisons (Holm), all of them still differ." in below
    both = replace(run, for_own=frozenset({"Ditto", "Local"}))
    assert "Corrected for 2 comparisons of clients’ own models (Holm), all of them still differ." in intervals(
        both, "FedAvg"
    )


def test_what_counts_the_chance_of_test_rows_is_not_said_to_be_wider() -> None:
    split = DataSplit("d", "", 9, {"name": "natural"}, "", (1,), ((1,),), 0.0, 0.0, 1.0, test_sha256="a")
    run = replace(made(APART, {"Local": "lower"}), partitions=dict.fromkeys(range(3), split))
    text = intervals(run, "FedAvg")
    assert "The answer whether federation is worth it counts that, too" in text
    assert "wider" not in text


def test_a_method_for_own_models_has_its_difference_in_these() -> None:
    """Ditto's global model is FedAvg's: a table of its differences said 0.00 and nothing of what Ditto is for."""
    shared, own = made(dict.fromkeys(APART, APART["FedAvg"])), made(APART, metric=PERSONAL)
    config = '[[methods]]\nname = "ditto"\nlabel = "SCAFFOLD"'
    run = replace(shared, series={**shared.series, **own.series}, config=config)
    head, _, _, row, *_ = ([cell.strip() for cell in line.split("|")] for line in table(run).splitlines())
    assert row[head.index("minus FedAvg, points [95 %]")] == "0.00 [in every seed]"
    assert row[head.index("personal minus FedAvg, points [95 %]")] == "+10.33 [+8.90, +11.77]"
    assert "personal minus" not in table(replace(run, config=""))
    assert r"personal minus FedAvg, points [95 \%]" in table(run, "latex")
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(table(run, "csv")))}
    assert float(rows["SCAFFOLD"]["personal_difference"]) == pytest.approx(0.31 / 3)
    assert float(rows["SCAFFOLD"]["personal_difference_low_95"]) == pytest.approx(0.0890, abs=1e-4)
    assert rows["FedAvg"]["personal_difference"] == ""


@pytest.mark.parametrize("format", FORMATS)
def test_a_run_that_has_not_measured_anything_has_a_table_too(format: str) -> None:
    assert "FedAvg" in table(made({"FedAvg": [0.5]}, finished=False, metric="train.loss"), format)


def test_chosen_columns_stand_beside_the_method_in_their_order_and_the_note_has_what_is_left_out() -> None:
    run = made(APART, {"Local": "pooled"})
    head, _, row, *_, note = table(run, columns=["difference", "global"]).splitlines()
    assert head == "| method | minus FedAvg, points [95 %] | global accuracy, % |"
    assert row == "| FedAvg | – | 55.0 ± 5.0 |"
    assert note.startswith("Last round (1); mean ± standard deviation over seeds (3). Bold: higher than every other")
    assert r"SCAFFOLD & \textbf{65.3 $\pm$ 5.0} \\" in table(run, "latex", ["global"])
    *_, note = table(run, columns=["seeds", "round", "mb"]).splitlines()
    assert note == "Last round; mean ± standard deviation over seeds. " + left_out(run)


def test_a_further_metric_is_a_column_if_it_is_chosen() -> None:
    auroc = Measure("auroc", "AUROC", percent=False)
    series = {("A", s, "personal.auroc.mean"): {1: v} for s, v in enumerate((0.5, 0.75))}
    run = made({"A": [0.5, 0.6]})
    run = replace(run, asked=(auroc,), series=run.series | series)
    assert table(run, columns=["global", "personal_auroc"]).splitlines()[2] == "| A | 55.0 ± 7.1 | 0.625 ± 0.177 |"
    assert "Last round, own test data" in table(run)
    assert "Last round, own test data" not in table(run, columns=["global"])


@pytest.mark.parametrize(
    ("format", "columns", "problem"),
    [
        ("markdown", ["globl"], r"of x has the columns method, seeds, .*; got 'globl'; did you mean global?"),
        ("latex", [""], "got ''"),
        ("csv", ["global"], "columns are chosen in markdown and latex; csv has all of them"),
    ],
)
def test_columns_that_there_are_not_are_refused(format: str, columns: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        table(made(APART), format, columns)


def test_a_saved_table_says_why_seeds_are_missing() -> None:
    lost = DivergedRow(method="FedAvg", seed=2, round=1, reason="loss")
    run = replace(made(APART), diverged=(lost,))
    assert "FedAvg diverged under 1 of 3 seeds (seed 2 in round 1): its results are of the others alone." in table(run)


def test_an_unknown_format_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"markdown, latex, csv, csv2, got 'latx'; did you mean latex\?"):
        table(made(APART), "latx")


def test_the_command_prints_the_table_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with warnings.catch_warnings():  # Typer 0.20 imports what click 8.5 calls deprecated; not ours to mend
        warnings.filterwarnings("ignore", message="'click", category=DeprecationWarning)
        from unskew.cli import main

        folder = tmp_path / "run"
        us.simulate("fedavg", rounds=1, out=folder)
        for words, begins in (
            ([], "| method |"),
            (["--format", "csv"], "run,method,"),
            (["--columns", "mb, seeds"], "| method | MB | seeds |"),
            (["--by-client", "--columns", "mb"], ""),
            (["--format", "x"], ""),
        ):
            monkeypatch.setattr(sys, "argv", ["unskew", "table", str(folder), *words])
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
            said = capsys.readouterr()
            assert said.out.startswith(begins) if begins else said.out == ""
            assert (ended.value.code in (0, None)) == (begins != "")
    assert said.err == "ConfigError: a table is written as markdown, latex, csv, csv2, got 'x'\n"


def test_no_name_in_a_csv_is_a_formula_and_every_number_is_one() -> None:
    """The attack that worked: a label of somebody else's run was a formula for whoever opened the table."""
    names = ["=cmd|' /C calc'!A0", "+1+1", "-1.5", "@SUM(1)", "FedAvg"]
    made_rows = table(made({name: [0.1, 0.2, 0.3] for name in names}, {}), "csv")
    rows = list(csv.DictReader(io.StringIO(made_rows)))
    assert sorted(row["method"] for row in rows) == sorted(
        ["'=cmd|' /C calc'!A0", "'+1+1", "-1.5", "'@SUM(1)", "FedAvg"]
    )
    assert all(float(row["difference"]) == 0.0 for row in rows if row["difference"])


def test_csv2_is_csv_with_semicolons_decimal_commas_and_a_byte_order_mark() -> None:
    for write, run in ((table, made(APART)), (client_table, _with_clients())):
        plain, other = (
            list(csv.reader(io.StringIO(write(run, of)), delimiter=d)) for of, d in (("csv", ","), ("csv2", ";"))
        )
        assert other[0] == ["\ufeffrun", *plain[0][1:]]
        numbers = [cell.replace(".", ",") for row in plain[1:] for cell in row if "alpha" not in cell]
        assert [cell for row in other[1:] for cell in row if "alpha" not in cell] == numbers
        assert any("," in cell for cell in numbers)


# ---------------------------------------------------------------- by client
def _with_clients() -> Record:
    """Two sites with ten test rows each; under FedAvg Bern has .9 and .7, alone .5 both times."""
    run = made({"alone": [0.5, 0.5], "FedAvg": [0.7, 0.6]}, {"alone": "lower"}, metric=PERSONAL)
    of = {"FedAvg": [(0.5, 0.9), (0.5, 0.7)], "alone": [(0.5, 0.5), (0.5, 0.5)]}
    clients = {(m, s): dict(enumerate(values)) for m, by_seed in of.items() for s, values in enumerate(by_seed)}
    tested = {key: {0: 10.0, 1: 10.0} for key in clients}
    split = DataSplit("d", "", 9, {"name": "natural"}, "", (1, 1), ((1,),) * 2, 0.0, 0.0, 1.0)
    splits = {0: replace(split, client_names=("=Basel", "Bern")), 1: replace(split, client_names=("=Basel", "Bern"))}
    return replace(run, clients=clients, tested=tested, partitions=splits)


def test_by_client_there_are_value_test_rows_and_gain_of_each_method() -> None:
    """Bern's mean under FedAvg is .8, standard deviation .1414, its gain .3."""
    run = _with_clients()
    rows = list(csv.DictReader(io.StringIO(client_table(run, "csv"))))
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
    assert "| FedAvg | Bern | 10 | 2 | 80.0 ± 14.1 | +30.00 [" in client_table(run)
    assert r"FedAvg & Bern & 10 & 2 & 80.0 $\pm$ 14.1 & +30.00 [" in client_table(run, "latex")


def test_clients_that_each_seed_draws_anew_have_a_row_each() -> None:
    run = _with_clients()
    drawn = replace(run, partitions={s: replace(of, client_names=()) for s, of in run.partitions.items()})
    rows = list(csv.DictReader(io.StringIO(client_table(drawn, "csv"))))
    assert [(row["client"], row["seed"], row["accuracy"]) for row in rows if row["method"] == "FedAvg"] == [
        ("0", "0", "0.5"), ("1", "0", "0.9"), ("0", "1", "0.5"), ("1", "1", "0.7")
    ]  # fmt: skip


def test_a_run_without_results_of_clients_has_no_table_by_client() -> None:
    with pytest.raises(RunError, match="has no results of single clients"):
        client_table(made(APART))
