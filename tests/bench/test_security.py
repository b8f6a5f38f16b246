"""The benchmark of malicious clients: its rows, and the figure that is drawn from them."""

import pytest

from unskew.bench.security import figure, measure, table

ROWS = [
    {"case": "ours/none/0", "what": "balanced accuracy", "contender": "mean", "value": 0.9},
    {"case": "ours/sign_flip/0.2", "what": "balanced accuracy", "contender": "mean", "value": 0.5},
    {"case": "theirs/none/0", "what": "balanced accuracy", "contender": "mean", "value": 0.1},
]


def test_a_table_shows_the_spread_over_seeds() -> None:
    once = "| attack | malicious clients | mean |\n|---|---|---|\n| none | 0% | 90.0 |\n| sign_flip | 20% | 50.0 |\n"
    assert table(ROWS, "ours") == once
    of_two = [row | {"deviation": 0.02, "values": [row["value"] - 0.01, row["value"] + 0.01]} for row in ROWS]
    assert table(of_two, "ours") == once.replace("90.0", "90.0 ± 2.0").replace("50.0", "50.0 ± 2.0")
    assert "mean" in figure(of_two, "ours")


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
