"""The table of protections on the privacy page is what the code does: what each method can have, and why not."""

import re
from pathlib import Path

from recipe import APART, simulator

from unskew.algorithms import TABLE, resolve
from unskew.errors import ConfigError
from unskew.wrappers.base import Wrapper, wrap
from unskew.wrappers.robust import Median
from unskew.wrappers.secure_sum import SecureSum

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protections.md"
REASONS = {
    "takes replies as they come": "no: the server does not simply average uploads",
    "marks none": "no: the server does not simply average uploads",
    "by itself": "no: single replies are compared",
    "marked Each": "no: single models are collected",
    "for each group": "no: a mean for each group",
    "by a function of each reply": "no: more than sums weighted by whole numbers",
    "in no sum": "no: replies hold more than sums",
    "sends several": "no: clients are sent different models",
    "3 clients in a round": "no: one client",
}


def verdict(name: str, by: Wrapper) -> str:
    try:
        if name in APART:
            wrap(resolve(name)(), by)
        else:
            sim = simulator(name, "perceptron")
            simulator(name, "perceptron", method=wrap(sim.method, by)).start()
    except ConfigError as error:
        return next(reason for words, reason in REASONS.items() if words in str(error))
    return "yes"


def test_the_privacy_page_names_each_method_and_says_why_not() -> None:
    methods = {entry.name: (verdict(name, SecureSum()), verdict(name, Median())) for name, entry in TABLE.items()}
    text = PAGE.read_text("utf-8").partition("| secure sum | robust means | methods |\n|---|---|---|\n")[2]
    rows = [re.split(r" *\| *", row.strip("| ")) for row in text.partition("\n\n")[0].splitlines()]
    assert {name: (summed, mean) for summed, mean, names in rows for name in names.split(", ")} == methods
