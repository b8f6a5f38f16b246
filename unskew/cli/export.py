"""`unskew export`: a trained model as one self-describing file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from unskew.cli.options import AsJson, as_file
from unskew.errors import ConfigError, RunError, shown


def export(
    folder: Annotated[Path, typer.Argument()],
    method: Annotated[str | None, typer.Option(help="Label of the method, if the run has several.")] = None,
    client: Annotated[
        str | None, typer.Option(help="Client, by name, or number if no name is one; default: global.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; default: the smallest of the run.")] = None,
    at: Annotated[
        str | None,
        typer.Option(
            "--round", metavar="N", help="A round whose model was kept, or best by validation; default: the last."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file; default METHOD-client-NAME-seed0.safetensors.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write a trained model as one safetensors file: weights, and how to build the network and prepare inputs.

    FOLDER is a run's folder, or that of a deployed client, which has the
    client's own model.

    [dim]unskew export runs/digits-20260101-120000 --method hcct --client 3[/]
    [dim]unskew export client-3 --out mine.safetensors[/]
    """
    from unskew.run import models

    of_round = None if at is None else _round(at)
    card = models.find(folder, method, client, seed, of_round)
    whose = "global" if card.client is None else f"client{card.client}"
    whose += "" if card.round is None else f"-round{card.round}"
    if card.client_name is not None:
        whose = f"client-{as_file(card.client_name)}"
    path = out or Path(f"{as_file(card.method)}-{whose}-seed{card.seed}.safetensors")
    if path.exists():
        raise RunError(f"{path} exists already; choose another --out")
    if not path.absolute().parent.is_dir():
        raise RunError(f"there is no folder {path.parent}; make it, or choose another --out")
    models.export(folder, path, card.method, client, card.seed, card.round)
    if as_json:
        print(json.dumps({"file": str(path), **asdict(card)}))
        return
    owner = "global model" if card.client is None else f"model of client {card.client_name or card.client}"
    when = "" if card.round is None else f", round {card.round}"
    print(shown(f"{path}: {owner} of {card.method}, seed {card.seed}{when}; network {card.task.model}"))
    print("\nimport unskew as us")
    print(f"model = us.load_model({str(path)!r})  # a torch.nn.Module")
    print("us.predict(model, x)  # raw inputs in, predictions out")
    print("\nWithout unskew: network.load_state_dict(safetensors.torch.load_file(...));")
    print('the file\'s metadata say how inputs are prepared; the guide "Use a trained model" has it in full.')
    rate = (card.task.kind, card.task.loss) == ("regression", "poisson")
    if rate or card.task.target_scale is not None:
        shift, scale = card.task.target_scale or (0.0, 1.0)
        seen = "exp(out)" if rate else "out"
        print(f"What this network itself returns is on a scale of its own: y = {seen} * {scale:.15g} + {shift:.15g}")


def _round(text: str) -> int | Literal["best"]:
    if text == "best":
        return "best"
    if not text.isdecimal():
        raise ConfigError(f"--round must be a round's number or best, got {text!r}")
    return int(text)
