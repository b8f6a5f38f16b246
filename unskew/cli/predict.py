"""`unskew predict`: a trained model on new rows, images, texts or arrays."""

import codecs
import csv
import io
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unskew.cli.options import AllowCode, AsJson, Decimal, Encoding, Gaps, Separator, Thousands, find_own_code
from unskew.errors import ConfigError, RunError, shown
from unskew.words import counted, in_a_cell, some

if TYPE_CHECKING:
    from unskew.run.models import ModelCard
    from unskew.run.predictions import Row

MOST_SAID = 10
"""Most different predictions whose numbers are said."""


def predict(
    model: Annotated[Path, typer.Argument()],
    files: Annotated[list[Path], typer.Argument(metavar="FILE...")],
    method: Annotated[str | None, typer.Option(help="Label of the method, if the run has several.")] = None,
    client: Annotated[
        str | None, typer.Option(help="Client whose model is used, by name, or number if no name is one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; default: the smallest of the run.")] = None,
    rows_of: Annotated[
        str | None, typer.Option(help="Client whose rows they are, where a global model has numbers of each client.")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Also each class's probability.")] = False,
    threshold: Annotated[
        float | None,
        typer.Option(help="Of two classes: probability of the second from which on it is predicted; default: .5."),
    ] = None,
    separator: Separator = None,
    thousands: Thousands = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    gaps: Gaps = None,
    out: Annotated[Path | None, typer.Option(help="The CSV file to write; default: stdout.")] = None,
    allow_code: AllowCode = False,
    as_json: AsJson = False,
) -> None:
    """Predict with a trained model, for each row of a table, image, text or example of an array.

    MODEL is a run's folder, that of a deployed client, or a file that
    unskew show --model wrote.  FILE is a table (.csv, .parquet) with the columns that were trained
    on; images, or folders of them; a text a line (.txt); or an array (.npy).
    A table comes back as it is written, with the column predicted; of survival
    it is log_relative_risk: the higher, the earlier the event.

    [dim]unskew predict runs/hospitals new.csv --method FedAvg --out answers.csv[/]
    [dim]unskew predict ward-3.safetensors new-scans/ --probabilities[/]
    """
    from unskew import tasks
    from unskew.data.tables import kind_of, separator_of
    from unskew.files import write_atomically
    from unskew.run import models
    from unskew.run.predictions import predict_files

    written_as = (".json",) if as_json else (".csv", ".tsv", ".txt")
    if out is not None and out.suffix and out.suffix.lower() not in written_as:
        raise ConfigError(
            f"--out is a {'JSON' if as_json else 'CSV'} file, got {out.name}; name it with {written_as[0]} at its end"
        )
    if out is not None and out.exists():
        raise RunError(f"{out} exists already; choose another --out")
    if out is not None and not out.absolute().parent.is_dir():
        raise RunError(f"there is no folder {out.parent}; make it, or choose another --out")
    if allow_code:
        find_own_code()
    network = models.load_model(model, method, client, seed, allow_code=allow_code)
    inputs = models.card_of(network).inputs
    if rows_of is None and len(inputs.clients) > 1 and any(column.by_client for column in inputs.columns):
        raise ConfigError(
            "the global model scales each client's rows by that client's own numbers: say whose rows these are with "
            f"--rows-of, or take a client's own model with --client (clients: {some(inputs.clients)})"
        )
    if rows_of is not None and not any(column.by_client for column in inputs.columns):
        raise ConfigError("the model scales all clients' rows alike: leave --rows-of out")
    known: dict[str, Any] = {"separator": separator, "thousands": thousands, "decimal": decimal, "encoding": encoding}
    given = {key: value for key, value in known.items() if value is not None}
    written = replace(inputs.notation, gaps=(*inputs.notation.gaps, *(gaps or ())), **given)
    rows = predict_files(network, files, written, rows_of, probabilities, threshold)
    card = models.card_of(network)
    kind = tasks.kind_of(card.task.kind)
    if as_json:
        text = json.dumps({"rows": rows}) + "\n"
    else:
        is_csv = kind_of(str(files[0])) == "csv"
        between = separator_of(files[0], written) if is_csv else ","
        mark, end = _mark_and_end(files[0]) if is_csv and out is not None else ("", "\n")
        text = mark + _as_csv(rows, kind.predicted, between, written.decimal, end)
    if out is None:
        print(text, end="")
    else:
        write_atomically(out, text)
    meaning = f" ({kind.meaning})" if kind.meaning else ""
    print(shown(f"{_said([row[kind.predicted] for row in rows])}{meaning}; {_which(card)}"), file=sys.stderr)


def _mark_and_end(path: Path) -> tuple[str, str]:
    """The byte-order mark that a CSV file begins with, empty without one, and what its first line ends in."""
    with path.open("rb") as file:
        line = file.readline()
    return "\ufeff" * line.startswith(codecs.BOM_UTF8), "\r\n" if line.endswith(b"\r\n") else "\n"


def _as_csv(rows: "list[Row]", predicted: str, separator: str, decimal: str, end: str = "\n") -> str:
    lines = io.StringIO(newline="")
    table = csv.DictWriter(lines, rows[0], delimiter=separator, lineterminator=end)
    table.writeheader()
    for row in rows:  # names of classes are the model's, which may be somebody else's; the rest is the user's own
        answer = {predicted: _named(row[predicted])}
        table.writerow({name: _cell(value, decimal) for name, value in {**row, **answer}.items()})
    return lines.getvalue()


def _named(prediction: Any) -> Any:
    if isinstance(prediction, list | tuple):
        return [_named(one) for one in prediction]
    return in_a_cell(prediction) if isinstance(prediction, str) else prediction


def _cell(value: Any, decimal: str) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}".replace(".", decimal)
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _said(found: list[Any]) -> str:
    """Number of predictions of each class, or the range of those that are numbers."""
    if all(isinstance(one, float) for one in found):
        return f"{counted(len(found), 'prediction')}, from {min(found):.4g} to {max(found):.4g}"
    numbers = Counter("; ".join(one) if isinstance(one, list | tuple) else str(one) for one in found).most_common()
    more = f" and {len(numbers) - MOST_SAID:,} others" if len(numbers) > MOST_SAID else ""
    each = ", ".join(f"{name or 'none'} {n:,}" for name, n in numbers[:MOST_SAID])
    return f"{counted(len(found), 'prediction')}: {each}{more}"


def _which(card: "ModelCard") -> str:
    owner = "global model" if card.client is None else f"model of client {card.client_name or card.client}"
    return f"{owner} of {card.method}, seed {card.seed}"
