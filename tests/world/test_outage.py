from collections import Counter

import pytest

from unskew.keys import Key
from unskew.world.pace import Outage


@pytest.mark.parametrize(
    ("outage", "fate"),
    [
        (Outage(), None),
        (Outage(unreachable=1.0), "unreachable"),
        (Outage(late=1.0), "late"),
        (Outage(unreachable=1.0, late=1.0), "unreachable"),
    ],
)
def test_what_is_certain(outage: Outage, fate: str | None) -> None:
    assert {outage.fate(Key(s)) for s in range(20)} == {fate}


def test_losses_come_as_often_as_they_should() -> None:
    """Of 4000: unreachable .3, late .7 * .4 = .28; the largest standard deviation is sqrt(4000 * .3 * .7) = 29."""
    outage = Outage(unreachable=0.3, late=0.4)
    counts = Counter(outage.fate(Key(0) / i) for i in range(4000))
    for fate, expected in (("unreachable", 1200), ("late", 1120), (None, 1680)):
        assert abs(counts[fate] - expected) < 5 * 32


def test_a_fate_depends_on_its_address_only() -> None:
    outage = Outage(0.5, 0.5)
    fates = [outage.fate(Key(0) / i) for i in range(20)]
    assert [outage.fate(Key(0) / i) for i in reversed(range(20))] == fates[::-1]
