"""`unskew audit`: an attack on a method's differential privacy, and what its claim is worth."""

import json
import sys
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unskew.cli.options import AllowCode, AsJson, DataDir, Settings, find_own_code, load_own, located, then
from unskew.cli.tables import print_page
from unskew.words import counted

if TYPE_CHECKING:
    from unskew.experiment.config import Experiment


def audit(
    experiment: Annotated[str, typer.Argument()],
    settings: Settings = None,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs; by default what it takes to measure clipping.")] = None,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="Probability that a correct epsilon passes.")
    ] = 0.99,
    out: Annotated[Path | None, typer.Option(help="Also write a page there, as HTML.")] = None,
    data_dir: DataDir = None,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Attack methods that claim differential privacy, and compare leakage with claim.

    EXPERIMENT is a TOML file, or the folder of a run.  Its clients become
    canaries, which upload far along random directions, so that clipping and
    noise of what is released can be measured.  Less noise, longer updates or
    noise used twice mean that the claim is false: exit status 1.
    A folder with a method or network of your own needs [bold]--allow-code[/].

    [dim]unskew audit private.toml[/]
    [dim]unskew audit runs/private --out audit.html[/]
    """
    from unskew.errors import ConfigError
    from unskew.protocol import hook
    from unskew.report import audit_page
    from unskew.report.page import write_page
    from unskew.run.audit import audit as attack
    from unskew.run.audit import taken_apart

    path = Path(experiment)
    chosen = _read(path, experiment, located(settings, data_dir), allow_code)
    private = [m for m in chosen.methods if hook(m.method, "planned") is not None]
    if not private:
        raise ConfigError('no method has differential privacy to audit; add it with: with = ["central_dp"]')
    left_out = [m.label for m in private if taken_apart(m)[0] is None]
    private = [m for m in private if m.label not in left_out]
    if left_out:
        print(f"no attack is known here on {', '.join(left_out)}: its noise is in each step (dp_sgd)", file=sys.stderr)
    if not private:
        raise ConfigError("no method has noise on models, which is what an audit attacks: central_dp or local_dp")
    audits = []
    for method in private:
        print(f"{method.label}: runs of {counted(chosen.rounds, 'round')}", file=sys.stderr)
        audits.append(attack(chosen, method, runs, confidence))
    page = audit_page.page(audits, chosen.name)
    if as_json:
        rows = [asdict(a) | {"claimed": a.claimed if isfinite(a.claimed) else None, "holds": a.holds} for a in audits]
        print(json.dumps({"rows": rows}))
    else:
        print_page(page)
    if out is not None:
        print(f"page: {write_page(page, out)}", file=sys.stderr)
    if not all(a.holds for a in audits):
        raise typer.Exit(1)
    if not as_json:
        then("run", experiment)


def _read(path: Path, name: str, settings: list[str], allow_code: bool) -> "Experiment":
    """The experiment of a file, or of a run's folder, whose code is imported only if it is allowed."""
    if not (path / "config.toml").is_file():
        return load_own(name, settings)
    from unskew.experiment import config

    if allow_code:
        find_own_code()
    return config.load(path / "config.toml", settings, allow_code=allow_code)
