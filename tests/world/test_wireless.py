"""The radio: worked numbers of the path, what is symmetric, what a draw depends on, outage."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.keys import Key
from unskew.pricing.radio import PRESETS
from unskew.world.channel import Array, Radio

KEY = Key(0) / "channel"
PAPER, P001 = PRESETS["paper"].channel, PRESETS["p001"].channel
SEEDS = st.integers(0, 1000)


def db(x: Array) -> Array:
    levels: Array = 10.0 * np.log10(x)
    return levels


# ---------------------------------------------------------------- worked examples
def test_path_loss_by_hand() -> None:
    """-30 - 37.5 log10(d): -30 dB at 1 m, -67.5 at 10, -105 at 100, and -30 - 37.5 * 2.39794 = -119.92 at 250."""
    assert db(Radio().gain(np.array([1.0, 10.0, 100.0, 250.0]))) == pytest.approx(
        [-30.0, -67.5, -105.0, -119.9228], abs=1e-4
    )


def test_snr_at_a_hundred_metres_by_hand() -> None:
    """Noise -174 + 10 log10(20e6) = -100.99 dBm.  Up: 23 - 105 + 100.99 = 18.99 dB; down: 20 dB more.

    A device at height 0 below the base station, so that the ground distance is the link's.
    """
    radio = Radio(bs_height_m=0.0, cell_radius_m=100.0, inner=0.999999, redeploy="never")
    up, down = radio.snr(KEY, 1, 0, np.array([1, 0]), np.array([0, 1]))
    assert db(np.array([up, down])) == pytest.approx([18.9897, 38.9897], abs=1e-3)
    gamma = radio.links(KEY, 1, 0, np.array([1]), np.array([0]))
    assert gamma == pytest.approx([math.log2(1.0 + 10**1.89897)], abs=1e-3)


def test_height_counts_on_links_of_the_base_station_and_between_devices_only_if_asked_for() -> None:
    """Ground distances d: sqrt(d^2 + 23.5^2) to the base station; d between devices, or as long as p001 has it."""
    src, dst = np.array([0, 2]), np.array([1, 1])
    at = Radio().positions(KEY, 3, 0, 3)
    ground = np.hypot(*(at[src] - at[dst]).T)
    slant = np.sqrt(ground**2 + 23.5**2)
    assert Radio().distance(KEY, 3, 0, src, dst) == pytest.approx([slant[0], ground[1]])
    assert P001.distance(KEY, 3, 0, src, dst) == pytest.approx(slant)


def test_an_underlay_is_noise_between_devices_and_not_at_the_base_station() -> None:
    """The receiver hears 23 dBm = .2 W of the one cellular user times the gain (1), beside the noise."""
    alone, under = Radio(redeploy="never"), Radio(redeploy="never", underlay=1)
    src, dst = np.array([1, 1, 0]), np.array([2, 0, 2])
    user = under.positions(KEY / "underlay", 1, 0, 2)[1]
    heard = 10**-0.7 * 10**-3.0 * np.linalg.norm(user - alone.positions(KEY, 1, 0, 3)[2]) ** -3.75
    noise = 10**-20.4 * 20e6
    before, after = (radio.snr(KEY, 1, 0, src, dst) for radio in (alone, under))
    assert after == pytest.approx(before * [noise / (noise + heard), 1.0, 1.0])


def test_without_a_station_the_server_is_one_more_device() -> None:
    """Its links have a device's power and height and are the same both ways; those of the others are as they were."""
    with_it, without = (Radio(server=server).spectral_efficiency(KEY, 1, 0, 5) for server in ("station", "device"))
    assert torch.equal(without, without.T)
    assert torch.equal(without[1:, 1:], with_it[1:, 1:])
    assert (without[0, 1:] < with_it[0, 1:]).all()


# ---------------------------------------------------------------- symmetry
@given(seed=SEEDS, nodes=st.integers(2, 12), fading=st.sampled_from(["none", "rayleigh"]))
def test_expected_efficiency_between_devices_is_the_same_both_ways(seed: int, nodes: int, fading: str) -> None:
    gamma = Radio(fading=fading).spectral_efficiency(Key(seed), 1, 0, nodes)  # type: ignore[arg-type]
    assert gamma.shape == (nodes, nodes)
    assert torch.equal(gamma[1:, 1:], gamma[1:, 1:].T)
    assert (gamma[0, 1:] > gamma[1:, 0]).all()  # 43 dBm down, 23 up
    assert gamma.diagonal().tolist() == [0.0] * nodes
    assert (gamma + torch.eye(nodes) > 0).all()


def instant(radio: Radio, key: Key, round: int, hop: int, nodes: int) -> torch.Tensor:
    """Efficiency in this hop's fading [src, dst]; 0 from a node to itself."""
    src, dst = np.divmod(np.arange(nodes * nodes), nodes)
    gamma = torch.from_numpy(radio.links(key, round, hop, src, dst)).float().reshape(nodes, nodes)
    return gamma.fill_diagonal_(0.0)


def test_fading_differs_by_direction_round_and_hop_but_not_what_is_expected() -> None:
    radio = Radio(fading="rayleigh", redeploy="never")
    drawn = [instant(radio, KEY, t, k, 6) for t, k in ((1, 0), (1, 1), (2, 0))]
    assert all((a != b)[~torch.eye(6, dtype=torch.bool)].all() for a, b in itertools.pairwise(drawn))
    assert (drawn[0] != drawn[0].T)[~torch.eye(6, dtype=torch.bool)].all()
    expected = [radio.spectral_efficiency(KEY, t, k, 6) for t, k in ((1, 0), (1, 1), (2, 0))]
    assert all(torch.equal(e, expected[0]) for e in expected)


def test_the_fading_power_is_an_exponential_above_its_floor() -> None:
    """Floor .01: mean 1.01, P(power > 1.01) = 1/e = .368; n = 100 * 99 links, five deviations."""
    radio = Radio(fading="rayleigh", redeploy="never")
    src, dst = (a.reshape(-1) for a in np.meshgrid(np.arange(1, 101), np.arange(1, 101)))
    src, dst = src[src != dst], dst[src != dst]
    snr = radio.snr(KEY, 1, 0, src, dst)
    power = (2.0 ** radio.links(KEY, 1, 0, src, dst) - 1.0) / snr
    n = len(power)
    assert power.min() >= 0.01 - 1e-9
    assert abs(power.mean() - 1.01) < 5 / math.sqrt(n)
    assert abs((power > 1.01).mean() - math.exp(-1)) < 5 * 0.48 / math.sqrt(n)


# ---------------------------------------------------------------- purity
@given(seed=SEEDS, nodes=st.integers(2, 15), more=st.integers(0, 15), round=st.integers(1, 9), hop=st.integers(0, 5))
def test_a_link_is_the_same_alone_in_the_matrix_and_in_a_larger_federation(
    seed: int, nodes: int, more: int, round: int, hop: int
) -> None:
    radio = Radio(fading="rayleigh")
    whole = instant(radio, Key(seed), round, hop, nodes + more)
    assert torch.equal(instant(radio, Key(seed), round, hop, nodes), whole[:nodes, :nodes])
    alone = radio.links(Key(seed), round, hop, np.array([nodes - 1]), np.array([0]))
    assert whole[nodes - 1, 0].item() == pytest.approx(float(alone[0]), rel=1e-6)


@given(seed=SEEDS, better=st.sampled_from(["beta0_db", "kappa", "ue_dbm", "bs_height_m", "noise_dbm_hz"]))
def test_no_link_of_a_better_radio_is_worse(seed: int, better: str) -> None:
    change = {"beta0_db": -25.0, "kappa": 3.0, "ue_dbm": 30.0, "bs_height_m": 5.0, "noise_dbm_hz": -180.0}
    now, then = (
        instant(replace(PAPER, **extra), Key(seed), 1, 0, 8)  # type: ignore[arg-type]
        for extra in ({}, {better: change[better]})
    )
    assert (then >= now).all()
    assert (then > now).any()
