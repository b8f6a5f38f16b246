"""The benchmark of malicious clients: its rows, and the figure that is drawn from them."""

import pytest

from unskew.bench.security import figure, measure


@pytest.mark.slow
def test_every_method_has_a_row_before_and_after_an_attack_and_a_line_in_the_figure() -> None:
    rows = measure(None, ("backdoor",), quick=True, say=lambda _: None)
    cases = {(row["case"], row["what"]) for row in rows}
    assert cases == {
        ("digits/none/0", "balanced accuracy"),
        ("digits/backdoor/0.2", "balanced accuracy"),
        ("digits/backdoor/0.2", "attack success"),
    }
    methods = {row["contender"] for row in rows}
    assert len(rows) == 3 * len(methods) == 18
    assert all(0.0 <= row["value"] <= 1.0 for row in rows)
    assert all(name in figure(rows, "digits") for name in methods)
