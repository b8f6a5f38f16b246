"""The page and the verdict, of synthetic run folders: 4 methods (one a bound), 3 seeds, 20 rounds, 20 clients."""

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import by_hand
import numpy as np
import pytest
from records import rewrite

from unskew.errors import RunError
from unskew.keys import Key
from unskew.record.logs import rows
from unskew.report import read, results, tables, verdict, write_comparison, write_report
from unskew.report.together import incomparable, merge

pytestmark = pytest.mark.usefixtures("undrawn")  # but for the page that the module makes once
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
    eval_every: int = 2,
    taking_part: int = 10,
    name: str = "demo",
    finished: bool = True,
    dataset: str = "digits",
    failures: bool = False,
) -> Path:
    """Write a run folder as `unskew run` would, and return it."""
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
        rows.append({**rows[-1], "metric": "global.accuracy.mean_last_fifth"})
    draw = (Key(seeds[0]) / "test" / "split").numpy()
    counts = [draw.multinomial(n, draw.dirichlet([0.1] * 10)).tolist() for n in draw.integers(20, 160, clients)]
    split = {"dataset": dataset, "dataset_sha256": dataset.encode().hex().ljust(64, "0"),
             "split": {"name": "dirichlet", "alpha": 0.1, "clients": clients}}  # fmt: skip
    config = f'[data]\nsource = {json.dumps(dataset)}\n\n[split]\nname = "dirichlet"\nalpha = 0.1\n'
    bounds = {m.name: m.bound for m in methods}
    by_hand.write(folder, [m.name for m in methods], seeds, counts, config, bounds, split, name=name, setting=setting)
    lost = {"method": "FedAvg", "seed": 0, "client": 3, "reason": "late: 9.1 s of 8 s"}
    failed = [{**lost, "round": r} for r in (2, 5, 5)] if failures else []
    rewrite(folder, metrics=metrics, transfers=ledger, failures=failed)
    if finished:
        summary = {"run": name, "fingerprint": "f" * 64, "seconds": 61.2, "rows": rows, "stopped": None}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


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
        if not self.open or self.open[-1] not in ("style", "script"):
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
    assert len(text.encode()) < 2_500_000
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


def _begun(row: dict[str, object]) -> bool:
    order = ["FedAvg", "FedProx(mu=0.1)"]
    return row["method"] in order and (row["method"] == "FedAvg" or row["seed"] != 2 or int(str(row["round"])) <= 6)


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


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script> $\\frac{1}$ & "quotes" | --> ]]>'
    methods = (Trained(evil, 0.8, 0.2), Trained("FedAvg", 0.7, 0.2))
    page = write_report(
        make_run(tmp_path / "run", methods, rounds=4, name="</title><img src=x onerror=y>", dataset=evil)
    )
    assert "<script>alert" not in page.read_text()
    assert evil in "".join(parsed(page).text)
    assert "img" not in parsed(page).tags


def test_an_unfinished_run_says_so_and_counts_only_the_seeds_that_came_furthest(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", finished=False)
    # FedProx was on its third seed, at round 6, when the power went.
    rewrite(folder, metrics=[row for row in rows(folder, "metrics") if _begun(row)])
    text = said(write_report(folder))
    assert "This run has not finished; rows count the seeds that came furthest." in text
    assert "FedProx(mu=0.1) seed 2 at round 6" in text
    table = results.headline(read(folder), ["seeds"])
    assert [row.cells[0] for row in table.entries[:3]] == ["3", "2 of 3", "0 of 3"]


# ---------------------------------------------------------------- several runs
def test_like_runs_of_single_methods_are_compared_as_one_run_of_all(run: Path, tmp_path: Path) -> None:
    """The same numbers in one run of two methods and in two runs of one: the same differences."""
    whole = read(make_run(tmp_path / "whole", METHODS[:2]))
    split = [make_run(tmp_path / m.name, [m], name=m.name) for m in METHODS[:2]]
    page = said(write_comparison(split, tmp_path / "out.html", [m.name for m in METHODS[:2]]))
    assert "Differences to FedAvg/FedAvg" in page
    merged = merge([read(f) for f in split], ["a", "b"])
    assert merged.baseline == "a/FedAvg"
    (of_one,), (of_two,) = tables.paired(whole), tables.paired(merged)
    assert (of_two.values, of_two.low, of_two.high) == (of_one.values, of_one.low, of_one.high)
    second = make_run(tmp_path / "b", METHODS[:2], name="second", failures=True)
    merged = merge([read(run), read(second)], ["demo", "second"])
    assert merged.baseline == "demo/FedAvg"
    assert results.frame(merged)["run"] == ["demo"] * 4 + ["second"] * 2
    lost = results.lost(merged)
    assert [row.name for row in lost.entries] == ["demo/FedAvg", "second/FedAvg"]


def test_a_method_for_own_models_is_compared_by_these_in_a_comparison_of_runs_too(tmp_path: Path) -> None:
    """Labels of merged runs are others than config.toml's, and each run has a config.toml of its own."""
    base, ditto = METHODS[:2]
    for name, method, entry in (("one", base, "fedavg"), ("two", ditto, "ditto")):
        folder = make_run(tmp_path / name, [method], name=name)
        (folder / "config.toml").write_text(f'[[methods]]\nname = "{entry}"\nlabel = "{method.name}"\n')
    merged = merge([read(tmp_path / n) for n in ("one", "two")], ["one", "two"])
    assert merged.for_own == {"two/FedProx(mu=0.1)"}
    (by_own,), (by_global,) = verdict.compared(merged), tables.paired(merged)
    assert by_own.values == tables.paired(merged, merged.headline.own)[0].values != by_global.values


def settings(model: str, lr: float, label: str) -> str:
    return (
        f'clients_per_round = 3\n[task]\ndata = "d"\nmodel = "{model}"\n'
        f'[[methods]]\nname = "x"\nlabel = "{label}"\nlocal = {{ lr = {lr}, local_epochs = 2 }}\n'
    )


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("", 'model = "logistic"', "in model: logistic against mlp"),
        ("data_options = { alpha = 0.1 }", "data_options = { alpha = 0.5 }",
         "in data_options.alpha: 0.5 against 0.1"),
        ('loss = "cross_entropy"', 'loss = "multi_margin"', "in loss: multi_margin against cross_entropy"),
        ("[world.outage]\nunreachable = 0.3\nlate = 0.1", "[world.outage]\nunreachable = 0.3\nlate = 0.2",
         "in world.outage.late: 0.2 against 0.1."),
        ("", "", ""),
    ],
)  # fmt: skip
def test_runs_that_differ_in_more_than_their_methods_are_not_comparable(
    tmp_path: Path, first: str, second: str, reason: str
) -> None:
    folders = [make_run(tmp_path / m.name, [m], name=m.name) for m in METHODS[:2]]
    for folder, changed in zip(folders, (first, second), strict=True):
        text = settings("mlp", 0.1, "x")
        text = (
            text.replace('model = "mlp"', changed)
            if "model" in changed
            else text.replace("[[methods]]", f"{changed}\n[[methods]]", 1)
        )
        (folder / "config.toml").write_text(text)
    records = [read(folder) for folder in folders]
    reasons = " ".join(incomparable(dict(zip("ab", records, strict=True))))
    assert reason in reasons if reason else reasons == ""
    merged = merge(records, ["a", "b"])
    assert merged.comparable == (not reason)
    assert (verdict.verdict(merged) == "These runs are not comparable, so no differences are given.") == bool(reason)
    assert bool(results.differences(merged)) == (not reason)


def test_where_one_run_has_not_finished_seeds_count_that_stand_at_the_same_round(tmp_path: Path) -> None:
    ended, cut = make_run(tmp_path / "a", METHODS[:1], name="a"), make_run(tmp_path / "b", METHODS[1:2], name="b")
    (cut / "summary.json").unlink()
    metrics = list(rows(cut, "metrics"))
    last = max(row["round"] for row in metrics)
    rewrite(cut, metrics=[row for row in metrics if row["round"] < last])
    merged = merge([read(ended), read(cut)], ["a", "b"])
    assert not merged.finished
    assert tables.paired(merged) == ()
