"""`unskew price`: the cost of recorded runs in a radio cell."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from unskew import errors
from unskew.cli.options import AsJson
from unskew.cli.tables import in_lines, run_names
from unskew.cli.text import escape
from unskew.errors import ConfigError
from unskew.words import counted, of_seeds

if TYPE_CHECKING:
    from unskew.pricing.presets import PricingPreset
    from unskew.pricing.radio import Ledger
    from unskew.pricing.traffic import RecordedRun
    from unskew.tasks.measure import Measure

LEDGERS: "dict[str, Ledger]" = {"measured": "measured", "table3": "feddif_table3", "subframes": "feddif_subframes"}

SENT = (("MB down", "megabytes.down"), ("MB d2d", "megabytes.d2d"), ("MB up", "megabytes.up"), ("MB", "megabytes"))
ON_AIR = (
    ("MHz·s", "hz_s"),
    ("sub-frames", "subframes"),
    ("s on air", "seconds"),
    ("J sending", "joules.transmit"),
    ("J computing", "joules.compute"),
)


def price(
    runs: Annotated[list[Path], typer.Argument()],
    channel: Annotated[
        str | None,
        typer.Option(help="paper, p000, p001, or a TOML file; default the run's own radio, else paper."),
    ] = None,
    ledger: Annotated[
        str, typer.Option(help="measured: our bytes; table3, subframes: as FedDif's two papers count.")
    ] = "measured",
    target: Annotated[
        str | None,
        typer.Option(help="Also the cost to this accuracy, for example 0.7, or to fedavg-peak."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what recorded runs cost on the air: bytes, bandwidth, sub-frames, seconds, joules; no training is repeated.

    RUNS are run folders, finished or not, of any methods.  Placement, fading
    and spectrum are drawn from the run's seeds: the same run, the same price.
    Accuracies are the last round's, on the test set.

    [dim]unskew price runs/digits-20260101-120000[/]
    [dim]unskew price runs/a runs/b --channel p001 --target fedavg-peak[/]
    """
    from unskew.experiment.config import plain
    from unskew.pricing.radio import price as priced
    from unskew.pricing.summary import cost_summary
    from unskew.pricing.traffic import read

    if ledger not in LEDGERS:
        raise ConfigError(f"--ledger must be one of {', '.join(LEDGERS)}, got {ledger!r}")
    rows: list[Mapping[str, Any]] = []
    remarks: list[str] = []
    presets: dict[str, dict[str, Any]] = {}
    headlines: dict[str, Measure] = {}
    for name, folder in zip(run_names(runs), runs, strict=True):
        run = read(folder)
        headlines[run.headline.name] = run.headline
        at, preset = _preset(channel, ledger, run)
        costs = priced(run.trainings, preset.channel, preset.spectrum, preset.energy, LEDGERS[ledger], run.model_bytes)
        summary = cost_summary(run, costs, target)
        several = len(runs) > 1
        rows += [{**row, "method": f"{name}/{row['method']}"} if several else row for row in summary.rows]
        noted = (*_channel_remark(run, channel, ledger, at), *summary.remarks)
        remarks += [f"{name}: {remark}" if several else remark for remark in noted]
        presets[name] = {"channel": at, "settings": plain(preset)}
    if as_json:
        document = {"run": " ".join(presets), "ledger": LEDGERS[ledger], "target": target, "presets": presets}
        print(json.dumps({**document, "rows": rows, "remarks": remarks}))
        return
    console = Console()
    where = ", ".join(dict.fromkeys(t["channel"] for t in presets.values()))
    seeds = max(len(row["seeds"]) for row in rows)
    spread = f"mean ± deviation over {counted(seeds, 'seed')}"
    shown = tuple((m.label + " %" * m.percent, m.name) for m in headlines.values())
    label = " and ".join(m.label for m in headlines.values())
    scale = {m.name: m.scale for m in headlines.values()}
    for columns, title in (
        ((*shown, *SENT), f"ledger {LEDGERS[ledger]}: {spread}"),
        (ON_AIR, f"on the air, channel {where}"),
        ((("rounds", "to_target.rounds"), *_until(SENT)), f"until {label} {target} on the test set"),
        (_until(ON_AIR), f"until {label} {target}, on the air"),
    ):
        if any(row["metric"] == metric for row in rows for _, metric in columns):
            console.print(_table(rows, title, columns, scale))
    for remark in remarks:
        print(errors.shown(remark), file=sys.stderr)


def _preset(channel: str | None, ledger: str, run: "RecordedRun") -> "tuple[str, PricingPreset]":
    from unskew.pricing.presets import PricingPreset, preset

    if channel is not None:
        return channel, preset(channel)
    if ledger == "subframes":
        return "p001", preset("p001")
    return ("the run's own", PricingPreset(run.channel)) if run.channel is not None else ("paper", preset("paper"))


def _channel_remark(run: "RecordedRun", channel: str | None, ledger: str, at: str) -> list[str]:
    if channel is not None or run.other_channel is None or ledger == "table3":  # which is of bytes alone
        return []
    return [
        f"the run's own channel {run.other_channel!r} tells no powers and no bandwidth, so costs on the air are "
        f"those of {at!r} instead; name a cell with --channel"
    ]


Shown = tuple[tuple[str, str], ...]


def _until(columns: Shown) -> Shown:
    return tuple((heading, f"to_target.{metric}") for heading, metric in columns)


def _table(rows: Sequence[Mapping[str, Any]], title: str, columns: Shown, scales: Mapping[str, float]) -> Table:
    by = {(r["method"], r["metric"]): r for r in rows}
    table = Table(title=escape(title), box=SIMPLE, padding=(0, 1), pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    for heading, _ in columns:
        table.add_column(heading, justify="right")
    asked = {metric for _, metric in columns}
    for method in dict.fromkeys(r["method"] for r in rows):
        counts = {r["metric"]: len(r["seeds"]) for r in rows if r["method"] == method}
        trained = max(counts.values())
        reached = max((n for metric, n in counts.items() if metric in asked), default=trained)
        name = method + of_seeds(reached, trained - reached)  # under the others a target was not reached
        table.add_row(escape(in_lines(name)), *(_cell(by.get((method, metric)), scales) for _, metric in columns))
    return table


def _cell(row: Mapping[str, Any] | None, scales: Mapping[str, float]) -> str:
    if row is None:
        return "–"
    metric = row["metric"].removeprefix("to_target.")
    scale = scales.get(metric, 1e-6 if metric == "hz_s" else 1.0)
    mean, std = row["mean"] * scale, (row["std"] or 0.0) * scale
    if 0.0 < abs(mean) < 1e-3:
        return f"{mean:.3g}" + (f" ± {std:.1g}" if std else "")
    # Three significant digits of the mean, and the deviation to the same place.
    places = max(2 - math.floor(math.log10(abs(mean))), 0) if mean else 0
    spread = f"{std:,.{places}f}"
    return f"{mean:,.{places}f}" + (f" ± {spread}" if spread.strip("0.") else "")
