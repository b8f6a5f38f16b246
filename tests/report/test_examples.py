"""A report's numbers of examples add up: those for training, and those for tests, apart."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import unskew as us

RNG = np.random.default_rng(0)
SITES = {
    name: (RNG.normal(size=(n, 3)).astype(np.float32), np.arange(n) % 2)
    for name, n in (("Basel", 40), ("Bern", 50), ("Chur", 60))
}


@pytest.mark.parametrize(
    ("more", "says", "row"),
    [
        ({"test": 0.2, "val_fraction": 0.25}, "", ["150", "90", "30", "24", "36"]),
        (
            {"test": us.Latest({name: range(len(y)) for name, (_, y) in SITES.items()}, share=0.2)},
            "Own tests are each client’s latest examples.",
            ["150", "120", "30", "32", "48"],
        ),
    ],
)
def test_training_and_test_examples_are_counted_apart(more: Any, says: str, row: list[str], tmp_path: Path) -> None:
    us.simulate("fedavg", data=SITES, model="logistic", rounds=1, out=tmp_path / "run", progress=False, **more)
    page = (tmp_path / "run" / "report.html").read_text()
    assert says in unescape(re.sub(r"<[^>]+>", "", page))
    table = page[page.index("smallest client") :]
    cells = [unescape(cell) for cell in re.findall(r"<td>([^<]*)</td>", table)]
    assert cells[1:6] == row
