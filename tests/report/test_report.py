"""The page, made from synthetic run folders: 4 methods (one a bound), 3 seeds, 20 rounds, 20 clients."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import rewrite

from unskew.errors import RunError
from unskew.keys import Key
from unskew.record.logs import rows
from unskew.report import figures, html, read, stats, summary_text, tables, write_comparison, write_report
from unskew.report.section import Section, Table, TableRow, on_pages
from unskew.tasks.measure import ACCURACY

MODEL_BYTES = 31_400
VOID = {"meta", "br", "hr", "img", "input", "link"}


@dataclass(frozen=True)
class Trained:
    """What a made-up method does: final accuracy, speed, messages."""

    name: str
    top: float
    rate: float
    bound: str | None = None
    control: bool = False
    d2d: bool = False


METHODS = (
    Trained("FedAvg", 0.80, 0.20),
    Trained("FedProx(mu=0.1)", 0.803, 0.19),
    Trained("SCAFFOLD", 0.87, 0.25, control=True, d2d=True),
    Trained("Centralised", 0.95, 0.5, bound="pooled"),
)


def make_run(
    folder: Path,
    methods: Sequence[Trained] = METHODS,
    seeds: Iterable[int] = (0, 1, 2),
    rounds: int = 20,
    clients: int = 20,
    labels: int = 10,
    eval_every: int = 2,
    taking_part: int = 10,
    name: str = "demo",
    finished: bool = True,
    dataset: str = "digits",
    failures: bool = False,
) -> Path:
    """Write a run folder as `unskew run` would, and return it."""
    folder.mkdir(parents=True)
    seeds = list(seeds)
    setting = f"dirichlet(alpha=0.1), {clients} clients"
    metrics, ledger, rows = [], [], []
    for method in methods:
        lasts = []
        for seed in seeds:
            draw = (Key(seed) / "test" / method.name).numpy()
            # Most of the spread is the seed's, common to all methods, as in a real run.
            top = method.top + 0.03 * (seed % 3 - 1) + 0.002 * draw.standard_normal()
            at = {"method": method.name, "seed": seed}
            for r in range(rounds + 1):
                row = {**at, "round": r}
                if r > 0:
                    metrics.append(
                        {**row, "name": "train.loss", "value": 2.3 * max(0.02, 1 - top) ** (r / rounds), "weight": 1.0}
                    )
                    metrics.append({**row, "name": "seconds", "value": 0.2, "weight": 1.0})
                    sent = dict.fromkeys(("down", "up", "d2d"), 0)
                    for c in range(0 if method.bound else taking_part):
                        hops = [("down", 0, c + 1, "model"), ("up", c + 1, 0, "model")]
                        hops += [("up", c + 1, 0, "control")] if method.control else []
                        hops += [("d2d", c + 1, c + 2, "model")] if method.d2d else []
                        for direction, src, dst, kind in hops:
                            size = MODEL_BYTES if kind == "model" else 120
                            sent[direction] += size
                            ledger.append({**row, "hop": 0, "src": src, "dst": dst, "kind": kind, "bytes": size})
                    metrics += [{**row, "name": f"bytes.{d}", "value": n, "weight": 1.0} for d, n in sent.items()]
                if r % eval_every == 0 or r == rounds:
                    accuracy = float(top - (top - 0.1) * np.exp(-method.rate * r) + 0.004 * draw.standard_normal())
                    personal = np.clip(accuracy + 0.12 * draw.standard_normal(clients), 0, 1)
                    values = {
                        "global.accuracy": accuracy,
                        "global.loss": 2.5 * (1.02 - accuracy),
                        "personal.accuracy.mean": float(personal.mean()),
                        "personal.accuracy.std": float(personal.std()),
                        "personal.accuracy.worst_decile": float(np.sort(personal)[: max(1, clients // 10)].mean()),
                    }
                    metrics += [{**row, "name": k, "value": v, "weight": 1.0} for k, v in values.items()]
                    if r == rounds:
                        lasts.append(accuracy)
                        metrics += [
                            {**row, "name": "personal.accuracy", "value": float(a), "weight": 90.0, "client": c}
                            for c, a in enumerate(personal)
                        ]
        std = float(np.std(lasts, ddof=1)) if len(lasts) > 1 else None
        rows.append(
            {"method": method.name, "setting": setting, "metric": "global.accuracy", "mean": float(np.mean(lasts)),
             "std": std, "seeds": lasts}
        )  # fmt: skip
        rows.append({**rows[-1], "metric": "global.accuracy.mean_last_3"})
    run = {
        "schema": 1, "run": name, "created": "2025-06-01T12:00:00+00:00", "command": f"unskew run {name}.toml",
        "unskew": "0.1.0", "config_sha256": "c" * 64,
        "environment": {"python": "3.11.9", "torch": "2.13.0", "numpy": "2.4.6", "platform": "Linux-6.1-x86_64",
                        "cpu": "AMD EPYC", "cores": 2, "device": "cpu", "executor": "sequential",
                        "kernels": "reference"},
        "cells": [{"method": m.name, "setting": setting, "seed": s, "bound": m.bound} for m in methods for s in seeds],
    }  # fmt: skip
    partition = {"schema": 1, "seeds": {str(s): _partition(s, clients, labels, dataset) for s in seeds}}
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "config.toml").write_text(f'[data]\nsource = "{dataset}"\n\n[split]\nname = "dirichlet"\nalpha = 0.1\n')
    (folder / "partition.json").write_text(json.dumps(partition))
    lost = {"method": "FedAvg", "seed": 0, "client": 3, "reason": "late: 9.1 s of 8 s"}
    failed = [{**lost, "round": r} for r in (2, 5, 5)] if failures else []
    rewrite(folder, metrics=metrics, transfers=ledger, failures=failed)
    if finished:
        summary = {"run": name, "fingerprint": "f" * 64, "seconds": 61.2, "rows": rows, "stopped": None}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _partition(seed: int, clients: int, labels: int, dataset: str) -> dict[str, object]:
    draw = (Key(seed) / "test" / "split").numpy()
    counts = np.array([draw.multinomial(n, draw.dirichlet([0.1] * labels)) for n in draw.integers(20, 160, clients)])
    stats = {"sizes": counts.sum(1).tolist(), "label_counts": counts.tolist(), "iid_distance": 0.71, "js": 0.48,
             "effective_classes": 2.31}  # fmt: skip
    return {
        "dataset": dataset, "dataset_sha256": dataset.encode().hex().ljust(64, "0"), "n": int(counts.sum()),
        "seed": seed,
        "split": {"name": "dirichlet", "alpha": 0.1, "clients": clients}, "sha256": f"{seed}".rjust(64, "a"),
        "clients": [], "stats": stats,
    }  # fmt: skip


class _Balance(HTMLParser):
    """Checks that every tag is closed in order, and collects ids, references and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.refs: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for key, value in attrs:
            if key == "id":
                self.ids.append(str(value))
            if key in ("href", "src", "xlink:href"):
                self.refs.append(str(value))
            self.refs += re.findall(r"url\(([^)]*)\)", str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def parsed(page: Path) -> _Balance:
    """The page, after checking that it is balanced, self-contained and under 2 MB."""
    text = page.read_text(encoding="utf-8")
    balance = _Balance()
    balance.feed(text.replace("<wbr>", ""))  # a place to break a word, not the end of one
    balance.close()
    assert balance.open == []
    assert len(balance.ids) == len(set(balance.ids)), "ids clash"
    assert all(ref.startswith(("#", "data:image/png;base64,")) for ref in balance.refs)
    assert {ref[1:] for ref in balance.refs if ref.startswith("#")} <= set(balance.ids)
    assert "http:" not in text
    assert "https:" not in text
    assert "script" not in balance.tags
    assert len(text.encode()) < 2_000_000
    return balance


def said(page: Path) -> str:
    """The words of the page, white space collapsed."""
    return " ".join(" ".join(parsed(page).text).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo", failures=True)


@pytest.fixture(scope="module")
def page(run: Path) -> Path:
    return write_report(run)


def test_the_report_lies_in_the_run_folder_and_is_well_formed(run: Path, page: Path) -> None:
    assert page == run / "report.html"
    assert [p.name for p in run.iterdir() if "report" in p.name] == ["report.html"]
    assert "image" in parsed(page).tags


def test_the_first_paragraph_says_what_was_run_and_what_was_found(page: Path) -> None:
    text = said(page)
    assert "trained 3 methods (FedAvg, FedProx(mu=0.1) and SCAFFOLD), with Centralised as a bound, on digits (" in text
    assert "split over 20 clients by dirichlet(alpha=0.1, clients=20), for 20 rounds, with 3 seeds (0, 1 and 2)" in text
    assert re.search(r"SCAFFOLD \(\+\d\.\d\d \[\+\d\.\d\d, \+\d+\.\d\d\]\) is higher than FedAvg\.", text)
    assert re.search(r"FedProx\(mu=0.1\) \(\S+ \[−\S+, \+\S+\]\) cannot be told apart from FedAvg", text)


@pytest.mark.usefixtures("undrawn")
def test_a_page_says_wherever_it_matters_that_lower_is_better(tmp_path: Path) -> None:
    record = read(make_run(tmp_path / "run"))
    page = write_report(replace(record, headline=replace(record.headline, label="error", direction="lower")))
    text = said(page)
    assert "has the lowest (best) last-round global error" in text
    assert re.search(r"SCAFFOLD \(\+\S+ \[\S+, \S+\]\) is higher \(worse\) than FedAvg\.", text)
    assert "paired differences in last-round error, below zero where the method is better, over 3 seeds" in text
    assert "Global error last round, %, lower is better" in text
    assert "Personal error mean, %, lower is better" in text
    assert "Error on each client’s own test data, lower is better" in text
    assert "Global error minus FedAvg’s, last round, percentage points, lower is better" in text
    assert re.search(r"SCAFFOLD \+\S+ \[\S+, \S+\] higher \(worse\)", text)
    assert "Global error minus FedAvg, percentage points, lower is better: " in page.read_text()


def test_sections_come_in_their_order(page: Path) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", page.read_text())
    assert titles == [
        "Headline", "Results by client", "Differences to FedAvg", "Figures", "Data and skew", "Traffic", "Lost clients",
        "Configuration", "Environment", "Reproduce this run",
    ]  # fmt: skip


def test_a_table_wider_than_the_page_goes_on_below_and_intervals_stay_whole() -> None:
    gain = "−0.2596 [−1.8490, +1.3300]"
    head = (("Method", ""), *((f"Hospital {k}", f"{k} tested") for k in range(12)), ("Words", ""))
    whole = Table("Gains", head, (TableRow("fedavg", (*[gain] * 12, "in words")),), "A note.", frozenset({13}))
    parts = on_pages(whole)
    assert [k for part in parts for k in part.head[1:]] == list(head[1:])
    assert [cell for part in parts for cell in part.entries[0].cells] == [*[gain] * 12, "in words"]
    assert all(part.head[0] == ("Method", "") and 2 <= len(part.head) <= 8 for part in parts)
    last = parts[-1]
    assert [part.text for part in parts] == [frozenset()] * (len(parts) - 1) + [frozenset({len(last.head) - 1})]
    assert [part.caption for part in parts] == ["Gains"] + ["Gains, continued"] * (len(parts) - 1)
    assert on_pages(parts[0]) == [parts[0]]

    shown = html.page("tuning.html", {"name": "", "version": "", "what": "", "lead": "", "file": "", "division": "",
                                      "tried": (), "worth": Section("Gains", tables=(whole,))})  # fmt: skip
    assert shown.count("<table>") == len(parts)
    assert shown.count("A note.") == 1
    assert shown.count("<td>−0.2596 [−1.8490,\N{NO-BREAK SPACE}+1.3300]</td>") == 12
    # Cells break elsewhere: a name goes above its number.
    assert "nowrap" not in shown


@pytest.mark.usefixtures("undrawn")
def test_a_deployed_run_is_not_said_to_be_repeated_by_running_its_configuration(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", METHODS[:1], rounds=2)
    assert "Run the command, or save the configuration above" in said(write_report(folder))
    card = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**card, "command": "unskew deploy"}))
    text = said(write_report(folder))
    assert "Run the command" not in text
    assert "unskew deploy pack config.toml --host HOST . Or simulate it, unskew run config.toml" in text
    (folder / "partition.json").write_text(json.dumps({"schema": 1, "seeds": {}}))
    text = said(write_report(folder))
    assert "unskew deploy pack config.toml --host HOST --clients N --own-data" in text
    assert "the same participants with the same data" in text
    assert "simulate" not in text


def test_the_headline_row_is_the_mean_and_std_of_the_last_round(run: Path, page: Path) -> None:
    """Recomputed here from the factory's summary rows, which hold the last accuracies by seed."""
    rows = json.loads((run / "summary.json").read_text())["rows"]
    for row in (r for r in rows if r["metric"] == "global.accuracy"):
        shown = f"{100 * np.mean(row['seeds']):.1f} ± {100 * np.std(row['seeds'], ddof=1):.1f}"
        assert shown in said(page)


def test_a_regression_has_no_skew_of_classes_and_its_spread_two_figures(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", METHODS[:2], labels=1, rounds=4)
    as_rmse(folder)
    text = said(write_report(folder))
    for words in ("Classes by client", "IID distance", "Jensen-Shannon", "Effective classes", "nat"):
        assert not re.search(rf"\b{words}\b", text), words
    (row, _) = tables.headline(read(folder))
    assert row.shared is not None
    assert f"{row.measure.show(row.shared.mean)}{row.measure.spread(row.shared.std)}" in text


def as_rmse(folder: Path) -> None:
    """Turn a run's accuracies into root mean squared errors."""
    named = [{**row, "name": row["name"].replace(".accuracy", ".rmse")} for row in rows(folder, "metrics")]
    rewrite(folder, metrics=named)
    for file in ("run.json", "summary.json"):
        text = (folder / file).read_text().replace(".accuracy", ".rmse")
        (folder / file).write_text(text)
    run = json.loads((folder / "run.json").read_text())
    card = {"name": "rmse", "label": "root mean squared error", "direction": "lower", "low": 0.0, "high": None,
            "percent": False}  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run | {"measures": [card]}))


def test_only_a_method_that_is_better_than_every_other_is_bold(tmp_path: Path) -> None:
    def bold(methods: Sequence[Trained]) -> list[str]:
        folder = make_run(tmp_path / str(len(methods)), methods, rounds=2)
        headline = write_report(folder).read_text().split("<h2>Headline")[1].split("</table>")[0]
        rows = headline.split("<tbody>")[1].split("</tr>")[:-1]
        return [m.name for m, row in zip(methods, rows, strict=True) if 'class="head"' in row]

    assert bold([METHODS[0], METHODS[2], METHODS[3]]) == ["SCAFFOLD"]
    assert bold(METHODS[:2]) == []


def test_traffic_is_shown_in_megabytes_and_transfers(page: Path) -> None:
    """10 clients x 20 rounds = 200 uploads; 200 x 31,400 B = 6.28 MB; SCAFFOLD's control: 200 x 120 B = 0.024 MB."""
    text = said(page)
    assert "SCAFFOLD model 6.28 200 6.28 200 6.28 200 control 0 0 0.024 200 0 0" in text


def test_figures_take_their_colours_from_the_page_and_tell_their_content(page: Path) -> None:
    svgs = re.findall(r"<svg role=.*?</svg>", page.read_text(), flags=re.S)
    assert len(svgs) == 9
    for svg in svgs:
        assert "currentColor" in svg
        assert not re.search(r"#0d0e|#0a0b|#01020|#04050|#07080|dc:date|DejaVu|xmlns", svg)
        assert len(re.findall(r'aria-label="([^"]{30,})"', svg)) == 1
    assert "Global accuracy by round, mean over seeds: FedAvg from" in page.read_text()


def test_equal_input_gives_equal_bytes_whatever_the_users_style(run: Path, page: Path, tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.fonttype": "path"}):
        again = write_report(run, tmp_path / "again.html")
        assert matplotlib.rcParams["font.size"] == 30
    assert again.read_bytes() == page.read_bytes()


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script> $\\frac{1}$ & "quotes" | --> ]]>'
    methods = (Trained(evil, 0.8, 0.2), Trained("FedAvg", 0.7, 0.2))
    page = write_report(
        make_run(tmp_path / "run", methods, rounds=4, name="</title><img src=x onerror=y>", dataset=evil)
    )
    assert "<script" not in page.read_text()
    assert evil in "".join(parsed(page).text)
    assert "img" not in parsed(page).tags


def test_remarks_are_sentences_that_leave_names_of_methods_as_they_are(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", [Trained("fedbn", 0.8, 0.2)])
    card = json.loads((folder / "run.json").read_text())
    remarks = ["fedbn: nothing stays with a client", "the folder b holds no file: is something missing there?"]
    (folder / "run.json").write_text(json.dumps({**card, "remarks": remarks}))
    text = said(write_report(folder))
    assert "fedbn: nothing stays with a client. " in text
    assert "The folder b holds no file: is something missing there? " in text


def test_labels_that_are_one_but_for_case_are_noted_unless_they_are_named(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", labels=3)
    file = folder / "partition.json"
    partition = json.loads(file.read_text())
    for fed in partition["seeds"].values():
        fed["classes"] = ["no", "Yes", "yes"]
    file.write_text(json.dumps(partition))
    assert "Labels 'Yes', 'yes' differ in case, accents or spaces alone" in said(write_report(folder))
    (folder / "config.toml").write_text('[task.data_options]\nclasses = ["no", "Yes", "yes"]\n')
    assert "differ in case" not in said(write_report(folder))


def test_an_unfinished_run_says_so_and_counts_only_the_seeds_that_came_furthest(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    # FedProx was on its third seed, at round 6, when the power went.
    rewrite(folder, metrics=[row for row in rows(folder, "metrics") if _begun(row)])
    text = said(write_report(folder))
    assert "This run has not finished: there is no summary.json." in text
    assert "FedProx(mu=0.1) seed 2 at round 6" in text
    assert "SCAFFOLD seed 0 at round 0" in text
    assert re.search(r"FedProx\(mu=0.1\) \d\d\.\d ± [^–]* 2 of 3 20 SCAFFOLD –", text)
    assert re.search(r"SCAFFOLD (– )+0 of 3 – ", text)
    assert "fingerprint none: the run has not finished" in text


def _begun(row: dict[str, object]) -> bool:
    order = ["FedAvg", "FedProx(mu=0.1)"]
    return row["method"] in order and (row["method"] == "FedAvg" or row["seed"] != 2 or int(str(row["round"])) <= 6)


def test_a_run_that_wrote_nothing_but_its_name_has_a_report(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    rewrite(folder, metrics=(), transfers=())
    for name in ("partition.json", "config.toml"):
        (folder / name).unlink()
    text = said(write_report(folder))
    assert "has not finished" in text
    assert "The run has not written its partition.json." in text


def test_one_seed_allows_no_interval_and_says_so(tmp_path: Path) -> None:
    text = said(write_report(make_run(tmp_path / "run", seeds=[0], rounds=4)))
    assert "With fewer than two seeds no interval is possible" in text
    assert "no interval possible" in text
    assert "One seed: no band." in text
    assert "nan" not in text.lower()


@pytest.mark.usefixtures("undrawn")
def test_contradicting_files_are_reported(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", rounds=4)
    summary = json.loads((folder / "summary.json").read_text())
    summary["rows"][0]["mean"] = 0.99
    (folder / "summary.json").write_text(json.dumps(summary))
    row = {"method": "FedAvg", "seed": 0, "round": 4, "hop": 0, "src": 0, "dst": 1, "kind": "model", "bytes": 7}
    rewrite(folder, transfers=[*rows(folder, "transfers"), row])
    text = said(write_report(folder))
    assert "summary.json gives a last-round accuracy of 0.9900" in text
    # 3 seeds x 4 rounds x 10 clients x 31,400 B = 3,768,000 B.
    assert "the ledger books 3,768,007 bytes down, the metrics 3,768,000" in text
    rewrite(folder, metrics=list(rows(folder, "metrics"))[:40])
    text = said(write_report(folder))
    assert re.search(
        r"SCAFFOLD: summary.json gives a last-round accuracy of 0\.\d+, but the record has no global", text
    )


def test_a_large_run_stays_under_two_megabytes(tmp_path: Path) -> None:
    methods = tuple(Trained(f"Method {i}", 0.7 + 0.01 * i, 0.02) for i in range(8))
    folder = make_run(
        tmp_path / "run", methods, seeds=(0, 1), rounds=250, clients=120, labels=100, eval_every=1, taking_part=1
    )
    text = said(write_report(folder))
    assert "Drawn at 200 of 251 evaluations." in text
    assert "The first 100 of 120 clients are drawn." in text
    assert "No method of this run is plain FedAvg" in text


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_of_like_runs_has_a_row_for_each_run_and_method(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "b", METHODS[:2], name="second")
    text = said(write_comparison([run, other], tmp_path / "out.html"))
    assert "so their numbers can be compared" in text
    assert re.search(r"SCAFFOLD demo \d\d\.\d ± ", text)
    assert re.search(r"FedAvg second \d\d\.\d ± ", text)
    assert "demo / FedAvg" in text
    assert "Differences to demo / FedAvg" in text, "each run has a FedAvg; the first run's is the one"
    rows = {d.method: d for d in tables.paired(read(run))}
    found = tables.bracket(rows["FedProx(mu=0.1)"])
    assert f"demo / FedProx(mu=0.1) ({found})" in text


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_shows_all_that_the_reports_of_its_runs_do(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / n, METHODS[:2], name=n, failures=n == "one") for n in ("one", "two")]
    card = json.loads((folders[1] / "run.json").read_text())
    card["environment"] = {**card["environment"], "cores": 64, "device": "NVIDIA H100"}
    (folders[1] / "run.json").write_text(json.dumps(card))
    foretold = {"method": "FedAvg", "bytes": {"down": 1_000_000, "up": 0, "d2d": 0}, "seconds": 2.5}
    plan = {"methods": [foretold], "seconds": 9.75, "memory": {"peak": 10**8}}
    (folders[0] / "plan.json").write_text(json.dumps(plan))
    record = read(folders[0])
    assert record.predicted is not None
    text = " ".join(said(write_comparison(folders, tmp_path / "out.html")).split())
    assert "Spread over clients, last round" in text
    (row, *_) = tables.traffic(record)
    assert f"one / FedAvg model {tables.amount(row.mb['down', 'model'])}" in text
    assert "one / FedAvg late: 9.1 s of 8 s 3 1 2–5" in text
    assert "two / FedAvg late" not in text
    assert "FedAvg s 2.50" in text, "what was foretold for the run that has a plan.json"
    environment = text.partition("Environment")[2]
    assert "python 3.11.9" in environment, "what is common is said once"
    assert "Run cores device one 2 cpu two 64 NVIDIA H100" in environment


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_of_many_runs_opens_with_their_number(tmp_path: Path) -> None:
    """As of a sweep: the names stand in the tables, not in the lead."""
    folders = [make_run(tmp_path / f"run-{i}", METHODS[:1], seeds=[0], rounds=2, name=f"swept-{i}") for i in range(8)]
    page = write_comparison(folders, tmp_path / "many.html").read_text("utf-8")
    header = page[page.index("<header>") : page.index("</header>")]
    assert "<title>8 runs · unskew</title>" in page
    assert "8 runs side by side" in header
    assert "From swept-0 to swept-7" in header
    assert "swept-3" not in header
    assert "<dt>swept-3</dt><dd>This run trained" in page
    few = write_comparison(folders[:3], tmp_path / "few.html").read_text("utf-8")
    assert "<h3>swept-1</h3>" in few[: few.index("</header>")]


def test_methods_of_one_mean_share_the_first_place(tmp_path: Path) -> None:
    record = read(make_run(tmp_path / "run", METHODS[:2]))
    first, second = record.methods
    assert f"{first} has the highest" in summary_text.found(record)
    for seed in record.seeds:
        record.series[second, seed, record.headline.shared] = record.series[first, seed, record.headline.shared]
    assert f"{first} and {second} share the highest" in summary_text.found(record)


def test_methods_without_a_global_model_are_not_said_to_lack_an_evaluation(tmp_path: Path) -> None:
    record = read(make_run(tmp_path / "run", METHODS[:2]))
    second = record.methods[1]
    for seed in record.seeds:
        del record.series[second, seed, record.headline.shared]
    found = summary_text.found(record)
    assert f"Of no other competing method was a global model evaluated on the seeds of {record.methods[0]}, so" in found
    assert f"{record.methods[0]} has a last-round global accuracy of" in found
    one = read(make_run(tmp_path / "one", METHODS[:1]))
    assert summary_text.found(one).endswith("%.")
    assert "Of no other" not in summary_text.found(one)
    assert "the highest" not in summary_text.found(one)


@pytest.mark.usefixtures("undrawn")
def test_like_runs_of_single_methods_are_compared_as_one_run_of_all(tmp_path: Path) -> None:
    """The same numbers in one run of two methods and in two runs of one: the same differences and the same words."""
    whole = read(make_run(tmp_path / "whole", METHODS[:2]))
    split = [make_run(tmp_path / m.name, [m], name=m.name) for m in METHODS[:2]]
    page = said(write_comparison(split, tmp_path / "out.html"))
    assert "Differences to FedAvg" in page
    assert summary_text.found(whole) in " ".join(page.split())
    together, base = tables.together([read(f) for f in split], [{m.name: m.name} for m in METHODS[:2]])
    assert base == "FedAvg"
    assert tables.paired(together, base=base) == tables.paired(whole)
    assert tables.paired(whole) != ()


@pytest.mark.usefixtures("undrawn")
def test_a_method_for_own_models_is_compared_by_these_in_a_comparison_of_runs_too(tmp_path: Path) -> None:
    """Labels of merged runs are others than config.toml's, and each run has a config.toml of its own."""
    base, ditto = METHODS[:2]
    tables_of = {
        m.name: f'[[methods]]\nname = "{n}"\nlabel = "{m.name}"\n' for m, n in ((base, "fedavg"), (ditto, "ditto"))
    }
    for name, methods in (("whole", METHODS[:2]), ("one", [base]), ("two", [ditto])):
        folder = make_run(tmp_path / name, methods, name=name)
        (folder / "config.toml").write_text("".join(tables_of[m.name] for m in methods))
    of_one = summary_text.found(read(tmp_path / "whole"))
    assert "By the accuracy of clients’ own models on their own test data" in of_one
    together, first = tables.together(
        [read(tmp_path / n) for n in ("one", "two")], [{m.name: f"{m.name}, merged"} for m in (base, ditto)]
    )
    assert summary_text.found(together, first).replace(", merged", "") == of_one


def test_differences_are_drawn_of_the_models_that_a_method_is_for_without_those_that_are_none(tmp_path: Path) -> None:
    made = read(make_run(tmp_path / "run", METHODS[:3], rounds=2))
    record = replace(made, for_own=frozenset({"SCAFFOLD"}))
    marks = dict(zip(record.methods, figures.looks([False] * 3), strict=True))
    rows = tables.paired(record, base="FedAvg")
    none = [replace(d, values=(0.0,) * len(d.values)) if d.method != "SCAFFOLD" else d for d in rows]
    (own,) = html._differences_charts(record, none, marks, "FedAvg")
    assert own.title == "Personal accuracy, mean over clients, minus FedAvg"
    assert "SCAFFOLD" in own.svg
    both = html._differences_charts(record, rows, marks, "FedAvg")
    assert [c.title for c in both] == ["Global accuracy minus FedAvg", own.title]
    assert "SCAFFOLD" not in both[0].svg
    (of_global,) = html._differences_charts(replace(record, for_own=frozenset()), none, marks, "FedAvg")
    assert "Left out, since equal to FedAvg in every seed: FedProx(mu=0.1)." in of_global.caption


@pytest.mark.usefixtures("undrawn")
def test_a_run_s_report_says_first_what_else_differs_than_the_method(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", METHODS[:2])
    local = {
        "FedAvg": "batch_size = 8, momentum = 0.0, lr = 0.1",
        "FedProx(mu=0.1)": "batch_size = 8, momentum = 0.9, lr = 0.1",
    }
    methods = "".join(
        f'[[methods]]\nname = "x"\nlabel = "{m}"\nweighting = "{w}"\nlocal = {{ {local[m]} }}\n'
        for m, w in zip(local, ("samples", "uniform"), strict=True)
    )
    (folder / "config.toml").write_text(methods)
    text = summary_text.set_apart([read(folder)])
    assert text == (
        "Not only the methods differ: momentum is 0.9 for FedProx(mu=0.1) and 0.0 for FedAvg; weighting is uniform for "
        "FedProx(mu=0.1) and samples for FedAvg."
    )
    page = said(write_report(folder, tmp_path / "out.html"))
    assert page.index("Not only the methods differ") < page.index("has the highest")
    (folder / "config.toml").write_text(methods.replace("0.9", "0.0").replace("uniform", "samples"))
    assert summary_text.set_apart([read(folder)]) == ""
    (folder / "config.toml").write_text(methods.replace("0.9", "0.0, local_steps = 20").replace("uniform", "samples"))
    assert "local_steps is 20 for FedProx(mu=0.1) and none for FedAvg" in summary_text.set_apart([read(folder)])
    more = methods.replace("0.9", '0.0, clip_norm = 1.0, precision = "bfloat16"').replace("uniform", "samples")
    (folder / "config.toml").write_text(more)  # FedAvg's lacks what is none, and what was not there yet
    assert summary_text.set_apart([read(folder)]) == (
        "Not only the methods differ: clip_norm is 1.0 for FedProx(mu=0.1) and none for FedAvg; precision is bfloat16 "
        "for FedProx(mu=0.1) and float32 for FedAvg."
    )


def settings(model: str, lr: float, label: str) -> str:
    return (
        f'clients_per_round = 3\n[task]\ndata = "d"\nmodel = "{model}"\n'
        f'[[methods]]\nname = "x"\nlabel = "{label}"\nlocal = {{ lr = {lr}, local_epochs = 2 }}\n'
    )


@pytest.mark.usefixtures("undrawn")
def test_another_network_makes_runs_incomparable_and_another_learning_rate_is_said(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / m.name, [m], name=m.name) for m in METHODS[:2]]
    (folders[0] / "config.toml").write_text(settings("mlp", 0.1, "FedAvg"))
    (folders[1] / "config.toml").write_text(settings("mlp", 0.01, "FedProx(mu=0.1)"))
    page = said(write_comparison(folders, tmp_path / "out.html"))
    assert "so their numbers can be compared" in page
    assert "Not only the methods differ: lr is 0.01 for FedProx(mu=0.1) and 0.1 for FedAvg." in page
    (folders[1] / "config.toml").write_text(settings("logistic", 0.1, "FedProx(mu=0.1)"))
    page = said(write_comparison(folders, tmp_path / "out.html"))
    assert "These runs are not comparable." in page
    assert "in network: model logistic against model mlp" in page
    assert "Not only the methods differ" not in page
    (folders[1] / "config.toml").write_text(settings("logistic", 0.01, "FedProx(mu=0.1)"))
    assert "Not only the methods differ: lr is 0.01" in said(write_comparison(folders, tmp_path / "out.html"))
    assert "Differences to" not in page


@pytest.mark.usefixtures("undrawn")
def test_own_models_of_other_clients_are_not_compared_and_other_rounds_are_said(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / m.name, [m], name=m.name) for m in METHODS[:2]]
    plain = settings("mlp", 0.1, "FedAvg")
    (folders[0] / "config.toml").write_text(plain)
    other = settings("mlp", 0.1, "FedProx(mu=0.1)")
    (folders[1] / "config.toml").write_text(f'evaluate_clients = "cohort"\n{other}')
    assert "in clients evaluated: cohort against all" in said(write_comparison(folders, tmp_path / "out.html"))
    (folders[1] / "config.toml").write_text(f"eval_every = 5\n{other}")
    page = said(write_comparison(folders, tmp_path / "out.html"))
    assert "so their numbers can be compared" in page
    assert "evaluated in other rounds (“FedAvg”: every round; “FedProx(mu=0.1)”: every 5 rounds)" in page
    (folders[0] / "config.toml").write_text(f"eval_every = 5\n{plain}")
    assert "evaluated in other rounds" not in said(write_comparison(folders, tmp_path / "out.html"))


@pytest.mark.usefixtures("undrawn")
def test_runs_on_data_that_clients_kept_to_themselves_are_not_taken_for_comparable(tmp_path: Path) -> None:
    """A federation's clients declared data of their own: its partition.json has no seeds."""
    folders = [make_run(tmp_path / m.name, [m], name=m.name) for m in METHODS[:2]]
    (folders[1] / "partition.json").write_text('{"schema": 1, "seeds": {}}')
    sentence = "does not say which data its clients trained on: nothing shows that they are the same."
    page = said(write_comparison(folders, tmp_path / "out.html"))
    assert "These runs are not comparable." in page
    assert page.count(sentence) == 1
    assert "Differences to" not in page
    (folders[0] / "partition.json").write_text('{"schema": 1, "seeds": {}}')
    assert said(write_comparison(folders, tmp_path / "out.html")).count(sentence) == 2
    alone = said(write_report(folders[0]))
    assert "data that the clients kept to themselves" in alone
    assert "Clients trained on data of their own, of which nothing is known here." in alone
    assert "has not written its partition.json" not in alone


def test_where_one_run_has_not_finished_seeds_count_that_stand_at_the_same_round(tmp_path: Path) -> None:
    ended, cut = make_run(tmp_path / "a", METHODS[:1], name="a"), make_run(tmp_path / "b", METHODS[1:2], name="b")
    (cut / "summary.json").unlink()
    written = list(rows(cut, "metrics"))
    last = max(row["round"] for row in written)
    rewrite(cut, metrics=[row for row in written if row["round"] < last])
    labels = [{m.name: m.name} for m in METHODS[:2]]
    together, base = tables.together([read(ended), read(cut)], labels)
    assert not together.finished
    assert tables.paired(together, base=base) == ()


@pytest.mark.usefixtures("undrawn")
def test_settings_of_the_data_and_of_the_task_are_not_said_to_be_the_network_s(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / m.name, [m], name=m.name) for m in METHODS[:2]]
    for folder, alpha, loss in zip(folders, (0.1, 0.5), ("cross_entropy", "multi_margin"), strict=True):
        options = f'data_options = {{ alpha = {alpha} }}\nloss = "{loss}"\n[[methods]]'
        (folder / "config.toml").write_text(settings("mlp", 0.1, "x").replace("[[methods]]", options))
    page = said(write_comparison(folders, tmp_path / "out.html"))
    assert "in settings of the data: data_options alpha 0.5 against data_options alpha 0.1" in page
    assert "in task: loss multi_margin against loss cross_entropy" in page
    assert "in network" not in page


@pytest.mark.usefixtures("undrawn")
def test_of_what_differs_only_the_settings_that_do_are_said(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / m.name, [m], name=m.name) for m in METHODS[:2]]
    for folder, late in zip(folders, (0.1, 0.2), strict=True):
        world = f"[world.outage]\nunreachable = 0.3\nlate = {late}\n[world.channel]\nname = 'even'\n[[methods]]"
        (folder / "config.toml").write_text(settings("mlp", 0.1, "x").replace("[[methods]]", world, 1))
    text = said(write_comparison(folders, tmp_path / "out.html"))
    assert "in world: outage late 0.2 against outage late 0.1." in text


def test_a_comparison_names_what_makes_runs_incomparable(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "b", METHODS[:2], seeds=(0, 1), rounds=10, dataset="usps")
    partition = json.loads((other / "partition.json").read_text())
    partition["seeds"]["1"]["sha256"] = "e" * 64
    partition["seeds"]["1"]["split"] = {"name": "shards", "per_client": 2}
    (other / "partition.json").write_text(json.dumps(partition))
    text = said(write_comparison([run, other], tmp_path / "out.html"))
    assert "These runs are not comparable." in text
    assert "in data: usps (757370730000) against digits (646967697473)" in text
    assert "in rounds: 10 against 20" in text
    assert "in seeds: 0, 1 against 0, 1, 2" in text
    assert f"“demo ({other})” differs from “demo ({run})” in the split of seed 1: hash eeeeeeeeeeee against " in text
    assert "aaaaaaaaaaaa (name shards, per_client 2 against name dirichlet, " in text
    assert f"demo ({other})" in text, "runs of one name are told apart by folder"


def test_a_comparison_of_one_run_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"at least two run folders, got 1"):
        write_comparison([run], tmp_path / "out.html")


@pytest.mark.usefixtures("undrawn")
def test_a_page_that_cannot_be_written_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "report.html").write_text("the old page")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"report\.html cannot be written: No space left on device"):
        write_report(run, tmp_path / "report.html")
    assert [p.read_text() for p in tmp_path.iterdir()] == ["the old page"]
    monkeypatch.undo()
    with pytest.raises(RunError, match=r"cannot be written: No such file or directory"):
        write_report(run, tmp_path / "absent" / "report.html")


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on PATH, so no browser can show the page")
on_both = pytest.mark.parametrize(("width", "scheme"), [(1200, 1), (390, 0)], ids=["desktop-light", "phone-dark"])


def measure(page: Path, place: Path, width: int, scheme: int) -> dict[str, Any]:
    """What a browser says of a page: a copy of it measures itself.

    In an iframe, because a headless window is never narrower than 500 px.
    """
    probe = """<script>addEventListener("load", () => {
      const s = document.scrollingElement, svg = document.querySelectorAll("figure svg[role=img]");
      document.title = JSON.stringify({over: s.scrollWidth - innerWidth, width: innerWidth,
        page: getComputedStyle(document.body).backgroundColor,
        text: getComputedStyle(document.querySelector("figure svg text")).fill,
        ink: getComputedStyle(document.body).color,
        drawn: [...svg].filter(e => e.getBoundingClientRect().height > 60).length});
      parent.postMessage(document.title, "*");
    });</script>"""
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text())  # the page itself forbids scripts
    (place / "inner.html").write_text(text.replace("</body>", probe + "</body>"))
    (place / "outer.html").write_text(
        f'<iframe src="inner.html" width="{width}" height="900" style="border:0"></iframe><pre id="o"></pre>'
        '<script>addEventListener("message", e => { document.getElementById("o").textContent = e.data; });</script>'
    )
    shown = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={place / 'profile'}", f"--blink-settings=preferredColorScheme={scheme}",
            "--virtual-time-budget=4000", "--dump-dom", (place / "outer.html").as_uri(),
        ],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    found = re.search(r'<pre id="o">(.+?)</pre>', shown)
    assert found, f"the page did not report back: {shown[:300]}"
    measured: dict[str, Any] = json.loads(found[1].replace("&quot;", '"'))
    return measured


@needs_browser
@on_both
def test_a_browser_shows_the_page_without_overflow_in_both_schemes(
    page: Path, tmp_path: Path, width: int, scheme: int
) -> None:
    measured = measure(page, tmp_path, width, scheme)
    assert measured["width"] == width
    assert measured["over"] <= 0, "the page scrolls sideways"
    assert measured["drawn"] == 9
    assert measured["text"] == measured["ink"], "figure text follows the page's colour"
    assert measured["page"] == ("rgb(255, 255, 255)" if scheme == 1 else "rgb(20, 23, 27)")


@needs_browser
@on_both
def test_a_browser_shows_a_comparison_of_four_runs_without_overflow_in_both_schemes(
    tmp_path: Path, width: int, scheme: int
) -> None:
    folders = [
        make_run(tmp_path / f"run-{i}", [method], seeds=[0, 1], rounds=10, name=f"a-rather-long-name-of-a-run-{i}")
        for i, method in enumerate(METHODS)
    ]
    measured = measure(write_comparison(folders, tmp_path / "comparison.html"), tmp_path, width, scheme)
    assert measured["width"] == width
    assert measured["over"] <= 0, "the page scrolls sideways"
    assert measured["drawn"] == 8, (
        "differences, accuracy by round, MB and seconds, personal accuracy, both losses, spread over clients"
    )
    assert measured["text"] == measured["ink"], "figure text follows the page's colour"


def test_names_at_an_axis_are_told_apart() -> None:
    hospital = "Regional University Hospital number {:02} of the northern network"
    assert figures.apart([hospital.format(k) for k in (1, 12)]) == ["…01…", "…12…"]
    assert figures.apart(["Bern", "Basel"]) == ["Bern", "Basel"]
    assert figures.apart([hospital]) == ["Regional Univer…"]
    alike = ["Universitätsspital Basel", "Universitätsspital_Basel_Nord", "Universitätsspital_Basel_Ost"]
    assert figures.apart(alike) == alike
    nothing_left = ["Hospital of the north", "Hospital of the north of the north"]
    assert len(set(figures.apart(nothing_left))) == 2


def test_texts_for_who_cannot_see_the_figures_name_the_axis_and_the_worst(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", METHODS[:2], rounds=4)
    as_rmse(folder)
    alts = re.findall(r'aria-label="([^"]*)"', write_report(folder).read_text())
    assert any(re.search(r"by round, mean over seeds: FedAvg from \S+ to \S+ at round 4;", alt) for alt in alts)
    assert any(re.search(r"by traffic, mean over seeds: FedAvg from \S+ to \S+ at 2.51 MB;", alt) for alt in alts)
    assert any(re.search(r"by time, mean over seeds: FedAvg from \S+ to \S+ at 0.8 s;", alt) for alt in alts)
    worst = max(tables.client_accuracies(read(folder), "FedAvg") or ())
    assert any(f"worst {worst:.4g}; FedProx" in alt for alt in alts)


def test_of_a_bound_too_the_mark_of_who_trained_is_filled() -> None:
    (look,) = figures.looks([True])
    svg = figures.newcomers_chart("new", [("pooled", look, 0.9, 0.5, 0.7)], "alt", ACCURACY)
    filled = re.findall(r"fill: var\(--(\w+)\)", svg)
    assert filled[:2] == ["bound", "page"], "who trained, and who did not"


def test_a_level_line_leaves_the_axis_as_the_others_made_it() -> None:
    look, bound = figures.looks([False, True])
    curves = [stats.Curve((0.0, end / 2, end), *[(0.1, 0.5, 0.9)] * 3, 1) for end in (0.05, 50.0)]
    lines = [figures.Line(f"m{i}", look, c) for i, c in enumerate(curves)]
    flat = [figures.Line("pooled", bound, curves[0])]
    ticks = [
        re.findall(r">(?:−|-)?[\d.]+<", figures.lines_chart("x", lines, "MB", "accuracy, %", 100.0, "alt", level))
        for level in ([], flat)
    ]
    assert ticks[0] == ticks[1]
    assert not any("-" in t or "−" in t for t in ticks[1])


def test_ticks_of_a_logarithmic_axis_are_plain_numbers() -> None:
    """SVG text has no mathematics: Matplotlib's own formatter would show `$\\mathdefault{10^{-2}}$`."""
    curve = stats.Curve((0.0, 1.0, 2.0), (1.0, 0.1, 0.01), (1.0, 0.1, 0.01), (1.0, 0.1, 0.01), 1)
    look = figures.looks([False])[0]
    drawn = str(figures.lines_chart("x", [figures.Line("m", look, curve)], "round", "loss", 1, "falls"))
    assert "mathdefault" not in drawn
    assert ">0.01<" in drawn
