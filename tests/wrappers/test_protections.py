"""The table of protections on the privacy page is what the code does: what each method can have, and why not."""

from pathlib import Path

import pytest
from recipe import APART, simulator

from unskew.algorithms import TABLE, resolve
from unskew.errors import ConfigError
from unskew.wrappers.base import Wrapper, wrap
from unskew.wrappers.robust import Median
from unskew.wrappers.secure_sum import SecureSum

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "privacy.md"
REASONS = {
    "marks none": "no: the server does not simply average uploads",
    "by itself": "no: single replies are compared",
    "collects": "no: single models are collected",
    "for each group": "no: a mean for each group",
    "those of each group": "no: a sum for each group",
    "by a function of each reply": "no: more than sums weighted by whole numbers",
    "in no sum": "no: replies hold more than sums",
    "sends several or none": "no: clients are sent different models",
    "3 clients in a round": "no: one client",
}


def verdict(name: str, by: Wrapper) -> str:
    try:
        if name in APART:
            wrap(resolve(name)(), by)
        else:
            sim = simulator(name, "perceptron")
            simulator(name, "perceptron", algorithm=wrap(sim.algorithm, by)).start()
    except ConfigError as error:
        return next(reason for words, reason in REASONS.items() if words in str(error))
    return "yes"


@pytest.mark.parametrize("name", TABLE)
def test_the_privacy_page_says_which_protections_a_method_can_have(name: str) -> None:
    row = f"| {TABLE[name].name} | {verdict(name, SecureSum())} | {verdict(name, Median())} |"
    assert row in PAGE.read_text("utf-8").splitlines(), row


def test_the_table_has_no_other_methods() -> None:
    text = PAGE.read_text("utf-8").partition("| method | secure sum | robust means |\n|---|---|---|\n")[2]
    rows = text.partition("\n\n")[0].splitlines()
    assert [row.split(" | ")[0] for row in rows] == [f"| {entry.name}" for entry in TABLE.values()]
