"""What the public doors do is what the corpus says; where it is meant to change, `make corpus` rewrites it."""

import pytest

from . import answers
from .compare import CONCERNS, MACHINE, computed, differences, kept, this_machine

KEPT = {concern: kept(concern) for concern in CONCERNS}


@pytest.mark.parametrize(
    ("concern", "name"),
    [
        pytest.param(concern, name, marks=[pytest.mark.network] * (name in answers.NETWORK), id=f"{concern}/{name}")
        for concern, module in CONCERNS.items()
        for name in module.cases()
    ],
)
def test_an_entry_is_as_it_was(concern: str, name: str) -> None:
    assert name in KEPT[concern], f"{concern}.json has no entry {name!r}; make corpus adds it"
    old, new = KEPT[concern][name], computed(concern, name)
    here = KEPT[concern][MACHINE] == this_machine() and "fingerprint" in old
    if not here and isinstance(old, dict):  # another machine's sums are rounded otherwise
        old, new = ({k: v for k, v in entry.items() if k != "fingerprint"} for entry in (old, new))
    assert not (lines := differences(old, new)), "\n".join((f"{concern}/{name}", *lines))


@pytest.mark.parametrize("concern", CONCERNS)
def test_no_entry_is_of_a_case_that_is_gone(concern: str) -> None:
    assert sorted(set(KEPT[concern]) - {MACHINE}) == sorted(CONCERNS[concern].cases())


def test_a_run_that_was_stopped_and_resumed_is_that_which_was_not() -> None:
    assert KEPT["runs"]["stopped and resumed"] == KEPT["runs"]["not stopped"]
