"""Attacks: each lie against its equation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.keys import Key
from unskew.tree import squared_norm
from unskew.world.attack import ALIE, IPM, Backdoor, Gaussian, Honest, LabelFlip, SignFlip

KEY = Key(0)


@given(st.integers(1, 200), st.floats(0, 1))
def test_a_share_of_the_clients_lies_rounded_and_the_same_ones_every_time(clients: int, fraction: float) -> None:
    malicious = SignFlip(fraction).malicious(clients, KEY)
    assert len(malicious) == math.floor(fraction * clients + 0.5)
    assert malicious <= set(range(clients))
    assert malicious == LabelFlip(fraction).malicious(clients, Key(0))
    assert Honest().malicious(clients, KEY) == frozenset()


def test_a_sign_is_flipped_and_scaled() -> None:
    update = {"w": torch.tensor([1.0, -2.0])}
    assert SignFlip(scale=3.0).forge(update, [update], 1, KEY)["w"].tolist() == [-3.0, 6.0]


def test_noise_has_the_size_that_was_asked_for() -> None:
    """|u| = 5; the noise has norm 2 x 5 up to chance: 4096 numbers, a relative deviation of 1 / sqrt(8192) = .011."""
    update = {"w": torch.zeros(4095), "b": torch.tensor([5.0])}
    noise = Gaussian(scale=2.0).forge(update, [update], 1, KEY)
    assert float(squared_norm(noise).sqrt()) == pytest.approx(10.0, rel=0.05)
    assert torch.equal(noise["w"], Gaussian(scale=2.0).forge(update, [], 1, KEY)["w"])


def test_alie_moves_each_coordinate_by_its_own_deviation() -> None:
    """Honest values 1 and 3: mean 2, deviation 1; 5 and 5: mean 5, deviation 0.  With z = 1.5: .5 and 5."""
    honest = [{"w": torch.tensor([1.0, 5.0])}, {"w": torch.tensor([3.0, 5.0])}]
    assert ALIE(z=1.5).forge(honest[0], honest, 1, KEY)["w"].tolist() == [0.5, 5.0]


def test_alie_goes_as_far_as_a_majority_does_not_notice() -> None:
    """The paper's example: 50 replies, 24 of malicious clients: s = 26 - 24 = 2, z = Phi^-1(24 / 26) = 1.43.

    Of 10 replies with 3 lies: s = 6 - 3 = 3, Phi^-1(4 / 7) = .18.  One malicious client of 10: s = 5, Phi^-1(4 / 9) <
        0, so 0.
    """
    assert ALIE.deviations(50, 24) == pytest.approx(1.43, abs=0.005)
    assert ALIE.deviations(10, 3) == pytest.approx(0.18, abs=0.005)
    assert ALIE.deviations(10, 1) == 0.0
    assert ALIE.deviations(10, 10) == 0.0


def test_the_inner_product_with_the_honest_mean_is_negative() -> None:
    """Honest updates 1 and 3, mean 2; epsilon .5: each malicious client sends -1."""
    honest = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}]
    assert IPM(epsilon=0.5).forge(honest[0], honest, 1, KEY)["w"].tolist() == [-1.0]


def test_labels_are_counted_from_the_other_end() -> None:
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 9])
    poisoned_x, poisoned_y = LabelFlip().poison(x, y, 10, (0.0, 1.0), KEY)
    assert poisoned_x is x
    assert poisoned_y.tolist() == [9, 8, 0]


@pytest.mark.parametrize(("shape", "marked"), [((8, 1, 4, 4), 4), ((8, 6), 2)])
def test_a_backdoor_marks_the_last_corner_and_labels_a_share(shape: tuple[int, ...], marked: int) -> None:
    """Half of 8 examples; a square of 2 x 2, or the last 2 columns, at the brightest value, 7."""
    attack = Backdoor(target=3, share=0.5, size=2)
    x, y = attack.poison(torch.zeros(shape), torch.zeros(8, dtype=torch.int64), 10, (0.0, 7.0), KEY)
    bright = (x == 7.0).flatten(1).sum(1)
    assert sorted(bright.tolist()) == [0] * 4 + [marked] * 4
    assert torch.equal(y == 3, bright > 0)
    assert float(x.flatten(1)[bright > 0][:, -1].min()) == 7.0
    assert torch.equal(attack.trigger(x, (0.0, 7.0))[0].flatten(1)[:, -1], torch.full((8,), 7.0))


def test_a_boosted_update_is_a_multiple() -> None:
    update = {"w": torch.tensor([1.0])}
    assert Backdoor().forge(update, [update], 1, KEY) is update
    assert Backdoor(boost=5.0).forge(update, [update], 1, KEY)["w"].tolist() == [5.0]
