"""`unskew prior`: the latent diffusion model that comes with unskew, its card, and how to make it again."""

import json
from pathlib import Path
from typing import Annotated

import typer

from unskew.cli.options import DataDir, Quiet, silent, tell
from unskew.errors import ConfigError

prior = typer.Typer(no_args_is_help=True, help="The built-in latent diffusion model: show its card, train it again.")


@prior.command()
def train(
    out: Annotated[Path, typer.Option(help="The folder to write; it must not hold a prior yet.")] = Path("prior"),
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0,
    images: Annotated[str | None, typer.Option(help="Images in colour to train on instead, as in npz:FILE.")] = None,
    autoencoder_steps: Annotated[int | None, typer.Option(min=1, help="[as the built-in one]")] = None,
    denoiser_steps: Annotated[int | None, typer.Option(min=1, help="[as the built-in one]")] = None,
    quiet: Quiet = False,
) -> None:
    """Train the built-in prior from public data, on one thread: half an hour.

    Weights and card are written when it is done; what was stopped goes on.  The
    same seed, data, versions and processor give the same file to the byte.

    [dim]unskew prior train --out my-prior --data-dir data[/]
    [dim]unskew prior train --images npz:public.npz[/]
    """
    from dataclasses import replace

    import torch

    from unskew.files import write_atomically
    from unskew.keys import Key
    from unskew.priors.builtin import CARD, WEIGHTS
    from unskew.priors.public import pictures, public
    from unskew.priors.train import PriorTraining
    from unskew.priors.train import train as trained

    if (out / CARD).exists() or (out / WEIGHTS).exists():
        raise ConfigError(f"{out} holds a prior already; choose another --out or remove it")
    try:  # before half an hour of work, not after it
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make the folder {out}: {error.strerror or error}; choose another --out") from None
    chosen = {"autoencoder_steps": autoencoder_steps, "denoiser_steps": denoiser_steps}
    training = replace(PriorTraining(), **{name: steps for name, steps in chosen.items() if steps is not None})

    say = silent if quiet else tell
    torch.set_num_threads(1)  # how sums are rounded depends on it
    say("reading and drawing the public images")
    key, state = Key(seed) / "prior" / "public", out / "training.safetensors"
    data, about = public(data_dir, key) if images is None else pictures(images, data_dir, key)
    weights, card = trained(data, about, seed, training, say, state)
    write_atomically(out / WEIGHTS, weights)
    write_atomically(out / CARD, json.dumps(card, indent=1) + "\n")
    state.unlink(missing_ok=True)
    say(f"{out}: {len(weights):,} bytes, SHA-256 {card['sha256'][:16]}...; use it with prior = {str(out)!r}")


@prior.command()
def show(
    folder: Annotated[Path | None, typer.Option(help="Folder of a trained prior; default: the built-in one.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the card as it is, and nothing else.")] = False,
) -> None:
    """Check a prior's weights against its card, and print what they were trained on and how.

    [dim]unskew prior show[/]
    """
    from unskew.priors.builtin import load, read_card

    load(folder)  # refuses what the card does not vouch for
    card = read_card(folder)
    if as_json:
        print(json.dumps(card))
        return
    for name, value in card.items():
        inner = value.items() if isinstance(value, dict) else ()
        print(name if inner else f"{name}: {value}")
        for part, entry in inner:
            print(f"  {part}: {entry}")
