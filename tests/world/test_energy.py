import numpy as np
import pytest

from unskew.world.spectrum import Energy


def test_transmission_by_hand() -> None:
    """23 dBm are .2 W.  40 Mbit at 2 bit/s/Hz are 20 MHz·s, one second of that band: .2 J; .8 J at 25 % efficiency."""
    power, hz_s = np.array([0.2]), np.array([20e6])
    assert Energy().transmit_j(power, hz_s, 20e6) == pytest.approx([0.2])
    assert Energy(amplifier_efficiency=0.25).transmit_j(power, hz_s, 20e6) == pytest.approx([0.8])


def test_receiving_is_left_out_unless_given() -> None:
    hz_s = np.array([20e6, 40e6])
    assert Energy().receive_j(hz_s, 20e6).tolist() == [0.0, 0.0]
    assert Energy(receive_w=0.1).receive_j(hz_s, 20e6) == pytest.approx([0.1, 0.2])


def test_computing_by_hand() -> None:
    """1e-28 * (1e9)^2 * 2e4 = 2e-6 J an example."""
    assert Energy().compute_j(500) == pytest.approx(1e-3)
    assert Energy(clock_hz=2e9).compute_j(500) == pytest.approx(4e-3)


def test_a_measurement_takes_the_formulas_place() -> None:
    assert Energy(joules_per_example=0.5, clock_hz=2e9).compute_j(10) == 5.0
