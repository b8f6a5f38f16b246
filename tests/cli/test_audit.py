"""`unskew audit`: which methods of a file it attacks."""

from pathlib import Path

import pytest

from .conftest import TINY, Unskew

SAMPLED = """
[[methods]]
name = "fedavg"
label = "sampled"
with = ["dp_sgd"]
"""
NOISY = """
[[methods]]
name = "fedavg"
label = "noisy"
with = ["central_dp"]
"""


@pytest.mark.seconds
def test_noise_in_the_steps_is_named_and_the_others_are_attacked(unskew: Unskew, here: Path) -> None:
    (here / "tiny.toml").write_text(TINY + SAMPLED + NOISY)
    said = unskew("audit", "tiny.toml", "--runs", "1", "--set", "rounds=1", "--json")
    assert said.code == 0, said.err
    assert "no attack is known here on sampled: its noise is in each step" in said.err
    assert '"noisy"' in said.out
    assert "sampled" not in said.out


def test_before_any_run_a_file_with_nothing_to_attack_is_refused(unskew: Unskew, here: Path) -> None:
    (here / "tiny.toml").write_text(TINY + SAMPLED)
    said = unskew("audit", "tiny.toml")
    assert (said.code, said.out) == (2, "")
    assert "ConfigError: no method has noise on models" in said.err
