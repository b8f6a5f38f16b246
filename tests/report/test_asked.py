"""Metrics that `evaluate` asks for stand wherever a person looks: history, terminal, page, tables for papers."""

import re
import statistics
from html import unescape
from pathlib import Path

import numpy as np
import pytest

import unskew as us
from unskew.record.reader import read
from unskew.report import render, results

EIGHT = (
    "sensitivity", "specificity", "sensitivity_at_90", "balanced_accuracy", "macro_f1", "average_precision", "brier",
    "accuracy",
)  # fmt: skip
METHODS = {"FedAvg": us.FedAvg(), "alone": us.Independent(), "a method of a rather long name": us.FedProx(mu=0.1)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> us.History:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 4)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=240) > 0).astype(int)
    return us.simulate(
        METHODS, data=(x, y), task="binary", model="logistic", split=us.IID(3), rounds=2, seeds=(0, 1),
        evaluate=["global", "personal", *EIGHT], out=tmp_path_factory.mktemp("asked") / "run",
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


def test_they_stand_in_text_and_on_the_page(run: us.History) -> None:
    assert run.path is not None
    text = render.text(results.headline(read(run.path)), 80)
    assert all(value in text for value in shown(run))
    assert max(map(len, text.splitlines()), default=0) <= 80
    page = unescape(re.sub(r"<[^>]+>", "", (run.path / "report.html").read_text())).replace("\N{NO-BREAK SPACE}", " ")
    assert [value for value in shown(run) if value not in page] == []
    finding = [card["label"] for card in run.summary["asked"] if card["positive"]]
    assert all(f"{label}" in page for label in finding)


def test_tables_for_papers_and_spreadsheets_have_them(run: us.History) -> None:
    assert run.path is not None
    record = read(run.path)
    for format in (render.markdown, render.latex):
        text = format(results.headline(record)).replace(r"$\pm$", "±")
        assert all(value in text for value in shown(run))
    frame = results.frame(record)
    at = {method: i for i, method in enumerate(frame["method"])}
    for (method, name), (mean, std) in values(run).items():
        column = name.removesuffix(".mean").replace(".", "_")
        assert frame[column][at[method]] == pytest.approx(mean)
        assert frame[f"{column}_std"][at[method]] == pytest.approx(std)


def test_own_models_on_the_global_test_set_have_a_column(tmp_path: Path) -> None:
    run = us.simulate(
        {"FedAvg": us.FedAvg(), "Ditto": us.Ditto()}, data="digits", split=us.IID(3), rounds=1,
        evaluate=["global", "personal_on_global"], out=tmp_path / "run", progress=False,
    )  # fmt: skip
    (value,) = (
        row["value"]
        for row in run.rows
        if (row["method"], row["name"], row["round"]) == ("Ditto", "personal_on_global.accuracy.mean", 1)
    )
    (table,) = [results.headline(read(tmp_path / "run"), ["own_on_global_accuracy"])]
    assert table.entries[1].cells == (f"{100 * value:.1f}",)
