import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.units import Bytes, bits, dbm, human_bytes, ratio, watt


@pytest.mark.parametrize(("level", "power"), [(30.0, 1.0), (0.0, 0.001), (23.0, 0.19952623149688797)])
def test_a_level_in_dbm_is_a_power(level: float, power: float) -> None:
    """P = 1 mW * 10^(level / 10)."""
    assert watt(level) == pytest.approx(power, rel=1e-12)


@given(st.floats(-150.0, 80.0))
def test_watt_and_dbm_are_inverse(level: float) -> None:
    assert dbm(watt(level)) == pytest.approx(level, abs=1e-9)


@pytest.mark.parametrize(("db", "expected"), [(0.0, 1.0), (20.0, 100.0), (-10.0, 0.1)])
def test_a_ratio_in_db(db: float, expected: float) -> None:
    assert ratio(db) == pytest.approx(expected, rel=1e-12)


def test_a_byte_has_eight_bits() -> None:
    assert bits(Bytes(3)) == 24.0


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1 kB"), (1_234_567, "1.23 MB"), (2.5e9, "2.5 GB"), (3e12, "3 TB")],
)
def test_bytes_as_people_write_them(n: float, text: str) -> None:
    assert human_bytes(n) == text


@given(st.integers(0, 999_400_000_000_000))
def test_bytes_never_need_an_exponent(n: int) -> None:
    assert "e+" not in human_bytes(n)


def test_a_count_that_rounds_up_takes_the_next_unit() -> None:
    assert human_bytes(999_600) == "1 MB"
