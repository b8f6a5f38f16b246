"""Robust means under attack: accuracy by attack and by the share of malicious clients, and a figure of the latter.

Suites are data with natural clients from a data directory: `wisdm`, activities of 36 phone owners, and `mnist_writers`,
digits by 20 writers.  Without the directory there is `digits`, divided among 20 clients.  The measure is balanced
accuracy on test rows of all clients, which no client trains on and no malicious client changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from unskew.algorithms.fedavg import FedAvg
from unskew.api import simulate
from unskew.bench.toolkit import BenchRow, Say, chosen
from unskew.data.split import Dirichlet
from unskew.experiment.config import Runtime, World
from unskew.files import write_atomically
from unskew.protocol import SgdConfig
from unskew.report import charts, render, section
from unskew.report.stats import curve
from unskew.world.attack import ALIE, IPM, Attack, Backdoor, Gaussian, Honest, LabelFlip, SignFlip
from unskew.wrappers.base import wrap
from unskew.wrappers.robust import GeometricMedian, Median, MultiKrum, NormBound, TrimmedMean

METRICS = {"global.balanced_accuracy": "balanced accuracy", "global.attack_success": "attack success"}
FRACTIONS = (0.0, 0.1, 0.2, 0.3, 0.4)
AT = 0.2
"""Share of malicious clients at which attacks are compared."""
ATTACKS: Mapping[str, Attack] = {
    "sign_flip": SignFlip(AT, scale=3.0),
    "gaussian": Gaussian(AT),
    "ALIE": ALIE(AT, z=1.5),
    "IPM": IPM(AT, epsilon=4.0),
    "label_flip": LabelFlip(AT),
    "backdoor": Backdoor(AT, boost=3.0),
}
WRITERS = 20
"""Writers of MNIST that take part: the first by their number."""
LOCAL = SgdConfig(0.1, batch_size=16)


@dataclass(frozen=True, eq=False)
class Suite:
    """Data with their clients, and how they are trained on."""

    data: Any
    clients: int
    rounds: int
    options: Mapping[str, Any]


def suites(data_dir: Path | None) -> dict[str, Suite]:
    """The natural suites of a data directory, by name; digits without one."""
    by_name: dict[str, Suite] = {}
    if data_dir is not None and (path := data_dir / "federated" / "wisdm.npz").exists():
        with np.load(path) as table:
            x, y, user = (table[key] for key in ("x", "y", "user"))
        # Standardised over all rows, gaps at the mean.
        x = np.nan_to_num((x - np.nanmean(x, 0)) / (np.nanstd(x, 0) + 1e-9)).astype(np.float32)
        by_name["wisdm"] = _suite(x, y, user, 15)
    if data_dir is not None and (path := data_dir / "federated" / "mnist_writers.npz").exists():
        with np.load(path) as table, np.load(data_dir / "mnist" / "mnist.npz") as images:
            writer = table["writer_train"].astype(np.int64)
            rows = np.flatnonzero(np.isin(writer, np.unique(writer)[:WRITERS]))
            by_name["mnist_writers"] = _suite(images["x_train"][rows], images["y_train"][rows], writer[rows], 15)
    digits = Suite("digits", 20, 15, {"split": Dirichlet(num_clients=20, alpha=1.0)})
    return by_name or {"digits": digits}


def _suite(x: Any, y: Any, owner: Any, rounds: int) -> Suite:
    own = {str(c): (x[owner == c], y[owner == c].astype(np.int64)) for c in np.unique(owner)}
    return Suite(own, len(own), rounds, {})


def methods(clients: int, fraction: float) -> dict[str, Any]:
    """FedAvg with its mean and with each robust mean; rules that expect a number of attackers get the true one."""
    plain, malicious = FedAvg(local=LOCAL), int(fraction * clients + 0.5)
    return {
        "mean": plain,
        "median": wrap(plain, Median()),
        "trimmed mean": wrap(plain, TrimmedMean(malicious / clients)),
        "multi-Krum": wrap(plain, MultiKrum(min(malicious, (clients - 3) // 2))),
        "geometric median": wrap(plain, GeometricMedian()),
        "norm bound": wrap(plain, NormBound()),
    }


def measure(
    data_dir: Path | None = None,
    only: Sequence[str] = (),
    quick: bool = False,
    say: Say = print,
    seeds: int = 1,
    figures: Path | None = None,
) -> list[BenchRow]:
    """Measure, as rows of the benchmark's JSON, balanced accuracy by suite, attack, share of attackers and method.

    A row has the mean over seeds, which draw the malicious clients too, and with several their standard deviation and
    the values.

    Args:
        data_dir: Directory with the folder `federated`; None takes digits.
        only: Attacks to measure; by default all.
        quick: Two rounds, one share of malicious clients.
        say: Called with a line for each run.
        seeds: Number of seeds.
        figures: Folder that gets a figure and a table of each suite.

    Raises:
        ConfigError: If an attack in `only` is not measured.
    """
    attacks = chosen(only, dict.fromkeys(ATTACKS, ()), "bench security")
    rows: list[BenchRow] = []
    for name, suite in suites(data_dir).items():
        worlds: list[tuple[str, float, Attack]] = [("none", 0.0, Honest())]
        for label in attacks:
            swept = label == "sign_flip" and not quick
            shares = [f for f in FRACTIONS if f] if swept else [AT]
            worlds += [(label, share, replace(cast(Any, ATTACKS[label]), fraction=share)) for share in shares]
        for label, share, attack in worlds:
            history = simulate(
                methods(suite.clients, share),
                data=suite.data,
                rounds=2 if quick else suite.rounds,
                seeds=range(seeds),
                eval_every=100,
                evaluate=("global", "balanced_accuracy"),
                world=World(attack=attack),
                runtime=Runtime(executor="sequential"),
                progress=False,
                **suite.options,
            )
            case, ends = f"{name}/{label}/{share:g}", history.summary["rows"]
            for end in (end for metric in METRICS for end in ends if end["metric"] == metric):
                row = {"case": case, "what": METRICS[end["metric"]], "contender": end["method"], "value": end["mean"]}
                spread = {} if end["std"] is None else {"deviation": end["std"], "values": end["seeds"]}
                rows.append({**row, "unit": "1", **spread})
            values = [f"{row['contender']} {row['value']:.3f}" for row in rows if row["case"] == case]
            say(f"{case}: {', '.join(values)}")
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            own = [row for row in rows if row["case"].startswith(f"{name}/")]
            write_atomically(figures / f"attacks-{name}.svg", figure(own, name))
            write_atomically(figures / f"attacks-{name}.md", table(own))
    return rows


def table(rows: Sequence[BenchRow]) -> str:
    """Write the rows of a suite as a table in Markdown: percent, with the standard deviation over several seeds."""
    contenders = list(dict.fromkeys(row["contender"] for row in rows))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        _, attack, share = row["case"].split("/")
        at = attack + ": how often it opens" * (row["what"] == "attack success"), f"{100 * float(share):.0f}%"
        spread = f" ± {100 * row['deviation']:.1f}" if "deviation" in row else ""
        lines.setdefault(at, {})[row["contender"]] = f"{100 * row['value']:.1f}{spread}"
    head = ["attack", "malicious clients", *contenders]
    cells = [(*at, *(of.get(c, "–") for c in contenders)) for at, of in lines.items()]
    return render.markdown(section.table("", head, cells))


def figure(rows: Sequence[BenchRow], suite: str) -> str:
    """Draw accuracy against the share of malicious clients that flip signs, with the range of seeds, as SVG."""
    points: dict[str, dict[float, Sequence[float]]] = {}
    for row in rows:
        _, attack, share = row["case"].split("/")
        if row["what"] == "balanced accuracy" and attack in ("none", "sign_flip"):
            points.setdefault(row["contender"], {})[100 * float(share)] = row.get("values", (row["value"],))
    lines = {m: curve(of, list(of.values()), max(map(len, of.values()))) for m, of in points.items()}
    text = f"Balanced accuracy on {suite} by the share of clients that send three times the opposite of their update."
    rows_of = charts.of_curves(lines, 100.0)
    drawn = charts.curves(rows_of, charts.colours(list(lines)), "malicious clients, %", "balanced accuracy, %")
    return charts.document(drawn, f"Malicious clients: {suite}", text)
