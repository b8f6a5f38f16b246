"""`unskew show`: what recorded runs found, for a terminal, a paper, a spreadsheet, a program or a browser."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from unskew.cli.options import AsJson, then
from unskew.cli.tables import comparability, of_several, print_next, print_results, results_json, run_names
from unskew.errors import ConfigError, RunError, shown

if TYPE_CHECKING:
    from unskew.pricing.radio import Ledger, PricingPreset
    from unskew.pricing.traffic import RecordedRun
    from unskew.record.reader import Record

Format = Literal["text", "md", "latex", "csv", "csv2", "json", "html"]
LEDGERS: "dict[str, Ledger]" = {"measured": "measured", "table3": "feddif_table3", "subframes": "feddif_subframes"}


def show(
    runs: Annotated[list[Path], typer.Argument()],
    format: Annotated[
        str, typer.Option(help="text, md, latex, csv, csv2 (; and decimal commas), json, html.")
    ] = "text",
    out: Annotated[Path | None, typer.Option(help="The page, with --format html; default in the run's folder.")] = None,
    columns: Annotated[str | None, typer.Option(help="Columns of the table, by commas: seeds,global,gain.")] = None,
    by_client: Annotated[bool, typer.Option("--by-client", help="Each client's results instead of means.")] = False,
    cost: Annotated[bool, typer.Option("--cost", help="What the runs cost on the air.")] = False,
    channel: Annotated[
        str | None, typer.Option(help="With --cost: paper, p000, p001 or a TOML file; default the run's own, or paper.")
    ] = None,
    ledger: Annotated[
        str, typer.Option(help="With --cost: measured bytes, or as FedDif's papers count: table3, subframes.")
    ] = "measured",
    target: Annotated[
        str | None, typer.Option(help="With --cost: also up to this accuracy, as 0.7, or fedavg-peak.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a trained model into one safetensors file.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="With --model: the method, if the run has several.")] = None,
    client: Annotated[str | None, typer.Option(help="With --model: the client's own model; default: global.")] = None,
    seed: Annotated[int | None, typer.Option(help="With --model: the seed; default: the smallest.")] = None,
    at: Annotated[
        str | None, typer.Option("--round", metavar="N", help="With --model: a round that was kept, or best.")
    ] = None,
    share: Annotated[
        Path | None, typer.Option(help="Copy results alone into this new folder: no data, no models.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what runs found: a table, a sentence of verdict, notes, and with --format html the whole page.

    RUNS are folders of runs, finished or not, or of a deployed client for its
    model.  Several are set side by side; where they differ in more than their
    methods, the reasons are given instead of differences.

    [dim]unskew show runs/digits-20260101-120000[/]
    [dim]unskew show runs/a runs/b --format html --out ab.html[/]
    [dim]unskew show runs/a --format latex --columns global,gain > table.tex[/]
    [dim]unskew show runs/a --model mine.safetensors --method fedavg[/]
    """
    form = "json" if as_json else format
    if form not in get_args(Format):
        raise ConfigError(f"--format must be one of {', '.join(get_args(Format))}, got {format!r}")
    if model is not None or share is not None:
        if len(runs) > 1:
            raise ConfigError("--model and --share take one run; give its folder alone")
        if share is not None:
            from unskew.report.share import share as write_copy

            print(write_copy(runs[0], share))
        if model is not None:
            _save_model(runs[0], model, method, client, seed, at, form == "json")
    elif cost:
        _show_costs(runs, channel, ledger, target, form)
    else:
        _show_results(runs, form, out, columns, by_client)


def _show_results(runs: list[Path], form: str, out: Path | None, columns: str | None, by_client: bool) -> None:
    from unskew.report import read, results, verdict
    from unskew.report.render import render
    from unskew.report.together import merge

    if by_client and columns is not None:
        raise ConfigError("--columns chooses among those of means, and --by-client prints others; give one of them")
    names = run_names(runs)
    records = [read(folder) for folder in runs]
    record = records[0] if len(runs) == 1 else merge(records, names)
    chosen = [name.strip() for name in columns.split(",")] if columns is not None else []
    if form == "html" and not (by_client or chosen):
        print(_write_page(runs, records, names, out))
        return
    if by_client:
        tables = [results.by_client(record)]
        if form == "json":
            print(json.dumps(tables[0].data))
            return
    elif form == "json":
        print(results_json(_summary(runs, record)))
        return
    elif form == "text" and not chosen:
        print_results(record)
        print_next(runs[0], record) if len(runs) == 1 else then("show", *runs, "--format", "html")
        return
    else:
        tables = [results.headline(record, chosen)]
    for note in verdict.serious(record):
        print(shown(note), file=sys.stderr)
    print(shown("\n".join(render(table, form) for table in tables)), end="")


def _write_page(runs: list[Path], records: "Sequence[Record]", names: Sequence[str], out: Path | None) -> Path:
    from unskew.report import write_comparison, write_report

    if len(runs) == 1:
        return write_report(records[0], out)
    return write_comparison(runs, Path("comparison.html") if out is None else out, names)


def _summary(runs: list[Path], record: "Record") -> dict[str, Any]:
    """The summary of a run, or of several as one."""
    from unskew.history import load_run
    from unskew.report import tables, verdict
    from unskew.run.metrics import result_row

    summaries = [load_run(folder).summary for folder in runs]
    in_words = {
        "verdict": verdict.verdict(record),
        "notes": [*verdict.serious(record), *verdict.notes(record)],
    }
    if len(runs) == 1:
        return {**summaries[0], **in_words}
    records = record.parts.values()
    whole = of_several(record.name, dict(zip(record.parts, summaries, strict=True)))
    whole["rows"] += [
        result_row(d.method, record.cell(d.method).setting, f"{metric}.minus_{record.baseline}", d.values)
        for metric in (record.headline.shared, record.headline.own)
        for d in tables.paired(record, metric)
    ]
    return {
        **whole,
        **in_words,
        **comparability(record.parts),
        "same_test_rows": any(r.same_test_rows for r in records) if any(len(r.seeds) > 1 for r in records) else None,
        "diverged": record.diverged,
        **({} if record.until is None else {"seeds": record.seeds}),
    }


# ---------------------------------------------------------------- costs on the air
def _show_costs(runs: list[Path], channel: str | None, ledger: str, target: str | None, form: str) -> None:
    """Bytes, bandwidth, sub-frames, seconds and joules of recorded runs; no training is repeated.

    Placement, fading and spectrum are drawn from the run's seeds: the same run, the same price.
    """
    from unskew.experiment.config import plain
    from unskew.pricing.radio import price
    from unskew.pricing.summary import cost_summary
    from unskew.pricing.traffic import read
    from unskew.report.render import render
    from unskew.report.results import costs

    if ledger not in LEDGERS:
        raise ConfigError(f"--ledger must be one of {', '.join(LEDGERS)}, got {ledger!r}")
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    presets: dict[str, dict[str, Any]] = {}
    measures = {}
    for name, folder in zip(run_names(runs), runs, strict=True):
        run = read(folder)
        measures[run.headline.name] = run.headline
        at, preset = _preset(channel, ledger, run)
        priced = price(run.trainings, preset, LEDGERS[ledger], run.model_bytes)
        summary = cost_summary(run, priced, target)
        prefix, colon = (f"{name}/", f"{name}: ") if len(runs) > 1 else ("", "")
        rows += [{**row, "method": f"{prefix}{row['method']}"} for row in summary.rows]
        notes += [f"{colon}{note}" for note in (*_channel_note(run, channel, ledger, at), *summary.notes)]
        presets[name] = {"channel": at, "settings": plain(preset)}
    if form == "json":
        document = {"run": " ".join(presets), "ledger": LEDGERS[ledger], "target": target, "presets": presets}
        print(json.dumps({**document, "rows": rows, "notes": notes}))
        return
    where = ", ".join(dict.fromkeys(t["channel"] for t in presets.values()))
    tables = costs(rows, list(measures.values()), f"ledger {LEDGERS[ledger]}", f"channel {where}", target)
    print(shown("\n".join(render(table, form) for table in tables)), end="")
    for note in notes:
        print(shown(note), file=sys.stderr)


def _preset(channel: str | None, ledger: str, run: "RecordedRun") -> "tuple[str, PricingPreset]":
    from unskew.pricing.radio import PricingPreset, preset

    if channel is not None:
        return channel, preset(channel)
    if ledger == "subframes":
        return "p001", preset("p001")
    return ("the run's own", PricingPreset(run.channel)) if run.channel is not None else ("paper", preset("paper"))


def _channel_note(run: "RecordedRun", channel: str | None, ledger: str, at: str) -> list[str]:
    if channel is not None or run.other_channel is None or ledger == "table3":  # which is of bytes alone
        return []
    return [
        f"the run's own channel {run.other_channel!r} tells no powers and no bandwidth, so costs on the air are "
        f"those of {at!r} instead; name a cell with --channel"
    ]


# ---------------------------------------------------------------- a trained model
def _save_model(
    folder: Path, path: Path, method: str | None, client: str | None, seed: int | None, at: str | None, as_json: bool
) -> None:
    """Write a trained model as one safetensors file: weights, and how to build the network and prepare inputs."""
    from unskew.run import models

    if at is not None and at != "best" and not at.isdecimal():
        raise ConfigError(f"--round must be a round's number or best, got {at!r}")
    kept: int | Literal["best"] | None = None if at is None else "best" if at == "best" else int(at)
    if path.exists():
        raise RunError(f"{path} exists already; choose another --model")
    if not path.absolute().parent.is_dir():
        raise RunError(f"there is no folder {path.parent}; make it, or choose another --model")
    card = models.export(folder, path, method, client, seed, kept)
    if as_json:
        print(json.dumps({"file": str(path), **asdict(card)}))
        return
    owner = "global model" if card.client is None else f"model of client {card.client_name or card.client}"
    when = "" if card.round is None else f", round {card.round}"
    print(shown(f"{path}: {owner} of {card.method}, seed {card.seed}{when}; network {card.task.model}"))
    print(f"In Python: model = unskew.load_model({str(path)!r}); unskew.predict(model, x) takes raw inputs.")
    rate = (card.task.kind, card.task.loss) == ("regression", "poisson")
    if rate or card.task.target_scale is not None:
        numbers = card.task.target_scale or (0.0, 1.0)
        shift, scale = (list(of) if isinstance(of, tuple) else f"{of:.15g}" for of in numbers)
        seen = "exp(out)" if rate else "out"
        print(f"Without unskew this network returns another scale: y = {seen} * {scale} + {shift}")
