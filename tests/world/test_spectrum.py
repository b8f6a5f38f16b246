"""Sub-frames: worked numbers, what the released code counts, and that who needs less is never done later."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unskew.keys import Key
from unskew.pricing.radio import PRESETS
from unskew.world import spectrum as module
from unskew.world.spectrum import Airtime, Spectrum

# So many blocks asked for that the Poisson process always meets the cap: 100 free in every sub-frame.
STEADY = Spectrum(rbs=100, free_rbs=1e4, cellular_users=0, share=(1.0, 1.0))
PAPER, P000, P001 = (PRESETS[name].spectrum for name in ("paper", "p000", "p001"))
NEEDS = st.lists(st.floats(0.01, 3000.0), min_size=1, max_size=6)


def test_a_resource_block_is_180_hertz_seconds() -> None:
    """12 * 15 kHz * 1 ms."""
    assert Spectrum().rb_hz_s == pytest.approx(180.0)


def test_equal_shares_by_hand() -> None:
    """100 free, two links of equal weight: 50 each.  Needs 120 and 50 end after 3 and 1; 170 blocks in all."""
    assert STEADY.shared(Key(0), np.array([120.0, 50.0])) == Airtime(3, 170)


def test_cellular_users_take_their_share_too() -> None:
    """With two of them each link has 25: 120 takes 5."""
    spectrum = replace(STEADY, cellular_users=2)
    assert spectrum.shared(Key(0), np.array([120.0, 50.0])).subframes == 5


def test_shares_in_whole_blocks_are_rounded_up() -> None:
    """Three links of 33.3 or 34: a need of 34 takes 2 or 1."""
    needs = np.array([34.0, 34.0, 34.0])
    assert STEADY.shared(Key(0), needs).subframes == 2
    assert replace(STEADY, whole_rbs=True).shared(Key(0), needs).subframes == 1


def test_devices_queue() -> None:
    """Needs 99.5, 100 and 100.2 are 100 + 100 + 101 blocks: 301 of 100 in a sub-frame take 4."""
    assert STEADY.queued(Key(0), np.array([99.5, 100.0, 100.2])) == Airtime(4, 301)
    assert STEADY.queued(Key(0), np.array([99.5, 100.0, 100.0])) == Airtime(3, 300)


def test_the_lost_last_chunk_takes_blocks_away_but_no_sub_frame() -> None:
    """FD-B10.  Needs 120 and 50 of 50 each: counted 50 + 50 + 20 and 50, lost 50 + 50 and nothing."""
    needs = np.array([120.0, 50.0])
    assert replace(STEADY, last_chunk="lost").shared(Key(0), needs) == Airtime(3, 100)
    for t in range(20):
        key = Key(t)
        lost, counted = (replace(P001, last_chunk=c).shared(key, 40.0 * needs) for c in ("lost", "counted"))  # type: ignore[arg-type]
        assert lost.subframes == counted.subframes
        assert lost.rbs < counted.rbs


@given(needs=NEEDS, seed=st.integers(0, 50), more=st.floats(1.0, 50.0), preset=st.sampled_from([PAPER, P000, P001]))
def test_who_needs_less_is_never_done_later(needs: list[float], seed: int, more: float, preset: Spectrum) -> None:
    less = np.array(needs)
    for turn in (preset.shared, preset.queued):
        assert turn(Key(seed), less).subframes <= turn(Key(seed), less * more).subframes


@pytest.mark.parametrize("preset", [PAPER, P001], ids=["paper", "p001"])
def test_beyond_the_numbers_drawn_the_mean_rate_takes_over(preset: Spectrum, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty links of some 10,000 sub-frames each: 1,000 drawn and the rest at their mean, within 3 % of all drawn."""
    needs = np.linspace(0.5, 1.0, 20) * 10_000 * preset.free_rbs / 30
    exact = preset.shared(Key(0), needs)
    queue = preset.queued(Key(0), needs)
    monkeypatch.setattr(module, "DRAWS", 1000 * 30)
    assert preset.shared(Key(0), needs).subframes == pytest.approx(exact.subframes, rel=0.03)
    assert preset.shared(Key(0), needs).rbs == pytest.approx(exact.rbs, rel=0.03)
    monkeypatch.setattr(module, "DRAWS", 1000)
    assert preset.queued(Key(0), needs).subframes == pytest.approx(queue.subframes, rel=0.03)
    assert preset.shared(Key(0), needs).subframes <= preset.shared(Key(0), 1.001 * needs).subframes
