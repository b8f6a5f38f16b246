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
METHODS = PAGE.parents[1] / "algorithms"
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
def test_the_privacy_page_and_the_method_s_own_say_which_protections_it_can_have(name: str) -> None:
    robust = verdict(name, Median())
    row = f"| {TABLE[name].name} | {verdict(name, SecureSum())} | {robust} |"
    assert row in PAGE.read_text("utf-8").splitlines(), row
    begins, guide = "**Malicious clients.**  ", "[{} means](../guides/malicious-clients.md)"
    if robust == "yes":
        says = f"{begins}{guide.format('Robust')} stand in for the mean of models"
    else:
        says = f"{begins}No defence: {robust.removeprefix('no: ')}, so that {guide.format('robust')} are refused."
    assert f"\n{says}" in (METHODS / f"{name}.md").read_text("utf-8"), says


def test_the_table_has_no_other_methods() -> None:
    text = PAGE.read_text("utf-8").partition("| method | secure sum | robust means |\n|---|---|---|\n")[2]
    rows = text.partition("\n\n")[0].splitlines()
    assert [row.split(" | ")[0] for row in rows] == [f"| {entry.name}" for entry in TABLE.values()]
