"""Metrics that `evaluate` asks for stand wherever a person looks: history, terminal, page, tables for papers."""

import csv
import io
import re
import statistics
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from records import rewrite
from rich.console import Console

import unskew as us
from unskew.cli.tables import asked
from unskew.record.logs import rows
from unskew.record.reader import read
from unskew.report import table, write_report

EIGHT = (
    "sensitivity", "specificity", "sensitivity_at_90", "balanced_accuracy", "macro_f1", "average_precision", "brier",
    "accuracy",
)  # fmt: skip
METHODS = {"FedAvg": us.FedAvg(), "alone": us.Independent(), "a method of a rather long name": us.FedProx(mu=0.1)}


@pytest.fixture(scope="module", params=[0, 1, 8])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> us.History:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=240) > 0).astype(int)
    return us.simulate(
        METHODS, data=(x, y), task="binary", model="logistic", split=us.IID(3), rounds=2, seeds=(0, 1),
        evaluate=["global", "personal", *EIGHT[: request.param]], out=tmp_path_factory.mktemp("asked") / "run",
        progress=False,
    )  # fmt: skip


def names(run: us.History) -> list[str]:
    return [card["name"] for card in run.summary["asked"]]


def values(run: us.History) -> dict[tuple[str, str], tuple[float, float]]:
    """Mean and standard deviation over seeds of every metric asked for, from the rows of the last round."""
    of: dict[tuple[str, str], list[float]] = {}
    wanted = {f"global.{name}" for name in names(run)} | {f"personal.{name}.mean" for name in names(run)}
    for row in run.rows:
        if row["round"] == 2 and row["name"] in wanted and "client" not in row:
            of.setdefault((row["method"], row["name"]), []).append(row["value"])
    return {at: (statistics.fmean(two), statistics.stdev(two)) for at, two in of.items()}


def shown(run: us.History) -> list[str]:
    """The same as a person reads them: in percent, or with three decimals."""
    plain = ("average_precision", "brier")
    return [
        f"{mean:.3f} ± {std:.3f}" if any(p in name for p in plain) else f"{100 * mean:.1f} ± {100 * std:.1f}"
        for (_, name), (mean, std) in values(run).items()
    ]


def test_every_metric_is_measured_globally_and_for_the_clients(run: us.History) -> None:
    assert len(values(run)) == (2 + 3) * len(names(run))  # training alone has no global model


def test_print_and_notebook_show_them_under_their_names(run: us.History) -> None:
    text = str(run)
    for page in (text, run._repr_html_()):
        assert all(re.search(rf"\b{name}\b", page) for name in names(run))
        assert all(value in page.replace(" %", "") for value in shown(run))
    assert max(map(len, text.splitlines())) <= 120
    assert ("global.NAME" in text) == bool(names(run))
    finding = [card["name"] for card in run.summary["asked"] if card["positive"]]
    assert finding == [
        name for name in names(run) if "sensitivity" in name or name in ("specificity", "average_precision")
    ]
    assert all(f"{name} for 1" in text for name in finding)  # the second class


def test_the_terminal_shows_all_of_them_within_its_width(run: us.History) -> None:
    assert run.path is not None
    for width in (80, 120):
        console = Console(width=width, record=True, file=io.StringIO())
        tables = asked(read(run.path), width)
        for one in tables:
            console.print(one)
        text = console.export_text()
        assert all(value in text for value in shown(run))
        assert "…" not in text
        assert len(tables) <= 2 * len(names(run))


def test_the_page_has_a_table_of_the_global_and_one_of_the_clients_models(run: us.History) -> None:
    assert run.path is not None
    page = unescape(re.sub(r"<[^>]+>", "", (run.path / "report.html").read_text())).replace("\N{NO-BREAK SPACE}", " ")
    assert [value for value in shown(run) if value not in page] == []
    for where in ("global test set", "own test data, mean over clients"):
        assert (f"Last round, {where}" in page) == bool(names(run))
    assert ("lower is better" in page) == ("brier" in names(run))


def test_tables_for_papers_and_spreadsheets_have_them(run: us.History) -> None:
    assert run.path is not None
    record = read(run.path)
    for format in ("markdown", "latex"):
        text = table(record, format).replace(r"$\pm$", "±")
        assert all(value in text for value in shown(run))
    rows = {row["method"]: row for row in csv.DictReader(io.StringIO(table(record, "csv")))}
    for (method, name), (mean, std) in values(run).items():
        column = name.removesuffix(".mean").replace(".", "_")
        assert float(rows[method][column]) == pytest.approx(mean)
        assert float(rows[method][f"{column}_std"]) == pytest.approx(std)


def test_a_run_that_has_not_finished_shows_what_it_has(run: us.History, tmp_path: Path) -> None:
    assert run.path is not None
    metrics = list(rows(run.path, "metrics"))
    for name in ("run.json", "config.toml", "partition.json"):
        (tmp_path / name).write_bytes((run.path / name).read_bytes())
    rewrite(tmp_path, metrics=metrics[: len(metrics) // 2])
    assert len(table(read(tmp_path)).split("\n\n")) >= (2 if names(run) else 1)


def test_own_models_on_the_global_test_set_stand_on_the_page_and_in_the_terminal(tmp_path: Path) -> None:
    run = us.simulate(
        {"FedAvg": us.FedAvg(), "Ditto": us.Ditto()}, data="digits", split=us.IID(3), rounds=1,
        evaluate=["global", "personal_on_global"], out=tmp_path / "run", progress=False,
    )  # fmt: skip
    (value,) = (
        row["value"]
        for row in run.rows
        if (row["method"], row["name"], row["round"]) == ("Ditto", "personal_on_global.accuracy.mean", 1)
    )
    where = "own models on the global test set, mean over clients"
    page = write_report(run.path)
    block = unescape(page.read_text()).split(where)[1].split("</table>")[0]
    assert f"<td>{100 * value:.1f}</td>" in block
    console = Console(file=(out := io.StringIO()), width=80)
    for part in asked(read(run.path), 80):
        console.print(part)
    assert where in " ".join(out.getvalue().split())
    assert f" {100 * value:.1f}" in out.getvalue()
