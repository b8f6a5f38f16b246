"""Writes the table of results into README.md:  python docs/readme_table.py

It is made from the kept results of two reproductions; a test compares the page with it.
"""

import json
import math
from pathlib import Path
from typing import Any

from scipy import special

from unskew.report.stats import CONFIDENCE
from unskew.report.tables import BOUNDS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
BEGIN, END = "<!-- made by docs/readme_table.py -->\n", "<!-- end -->\n"
SETS = {"digits": "digits", "Fashion-MNIST": "fashion_mnist"}
REFERENCES = {"independent": BOUNDS["lower"], "centralised": BOUNDS["pooled"]}

Kept = dict[tuple[str, str], Any]


def kept(name: str) -> Kept:
    """The rows of a kept result by (method, metric)."""
    path = ROOT / "docs" / "results" / "noniid" / name / "small" / "result.json"
    return {(row["method"], row["metric"]): row for row in json.loads(path.read_text("utf-8"))["rows"]}


def table() -> str:
    """A row for each method; for each data set its accuracy, and its difference to FedAvg, bold where decided."""
    results = {title: kept(name) for title, name in SETS.items()}
    head = ["method"]
    for title, rows in results.items():
        head += [f"{title}, {len(rows['fedavg', 'global.accuracy']['seeds'])} seeds", "minus FedAvg"]
    lines = [[*head, "sent, MB"], ["---"] * (2 * len(SETS) + 2)]
    for method in dict.fromkeys(method for method, _ in results["digits"]):
        cells = [f"{method} ({REFERENCES[method]})" if method in REFERENCES else method]
        for rows in results.values():
            cells += [_accuracy(rows, method), _difference(rows, method)]
        lines.append([*cells, " / ".join(f"{r[method, 'bytes.total']['ours'] / 1e6:.0f}" for r in results.values())])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _accuracy(rows: Kept, method: str) -> str:
    row = rows.get((method, "global.accuracy"))
    return "–" if row is None else f"{100 * row['ours']:.1f} ± {100 * row['std']:.1f}"


def _difference(rows: Kept, method: str) -> str:
    row = rows.get((method, "global.accuracy.minus_fedavg"))
    if row is None:
        return "–"
    n = len(row["seeds"])
    half = 100 * float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * row["std"] / math.sqrt(n)
    mean = 100 * row["ours"]
    text = f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"
    return f"**{text}**" if abs(mean) > half else text


def written(page: str) -> str:
    """The page with the table of today."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
