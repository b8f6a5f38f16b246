import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unskew.keys import Key, _seeded, numpy_each

parts = st.lists(st.integers() | st.text(max_size=5), max_size=4).map(tuple)


@given(st.integers(), parts)
@pytest.mark.seconds
def test_the_same_path_gives_the_same_draw_whatever_was_drawn_before(seed: int, path: tuple[int | str, ...]) -> None:
    key = Key(seed, path)
    first = torch.rand(3, generator=key.generator())
    torch.rand(3, generator=(key / "other").generator())
    assert torch.equal(torch.rand(3, generator=Key(seed, path).generator()), first)
    assert np.array_equal(key.numpy().random(3), Key(seed, path).numpy().random(3))


@given(st.integers(), parts, st.integers(), parts)
def test_different_addresses_have_different_numbers(
    seed: int, path: tuple[int | str, ...], other_seed: int, other: tuple[int | str, ...]
) -> None:
    # 63 bits: a collision among the few pairs drawn here would be a defect of the encoding, not chance.
    assert (Key(seed, path).number() == Key(other_seed, other).number()) == ((seed, path) == (other_seed, other))


def test_a_number_and_its_text_are_different_places() -> None:
    assert (Key(0) / 1).number() != (Key(0) / "1").number()


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a", "s1:b"), ("as1:b",)),
        ((1, 2), (12,)),
        (("a",), ("a", "")),
        ((-1,), ("-1",)),
    ],
)
def test_no_part_can_imitate_a_separator(one: tuple[int | str, ...], two: tuple[int | str, ...]) -> None:
    assert Key(0, one).number() != Key(0, two).number()


def test_the_order_of_draws_does_not_matter() -> None:
    def draw(name: str) -> float:
        return float(torch.rand((), generator=(Key(3) / name).generator()))

    forwards = [draw("a"), draw("b")]
    assert [draw("b"), draw("a")] == forwards[::-1]


def test_the_hash_is_the_one_that_recorded_runs_were_made_with() -> None:
    """blake2b-64 of `i1:7s5:roundi1:3s7:shuffle`, halved: written out so that a change of hashing is noticed."""
    key = Key(7) / "round" / 3 / "shuffle"
    assert key.number() == 5_442_348_492_338_320_066
    assert 0 <= key.number() < 2**63


def test_ambient_puts_the_global_state_back_and_gives_the_same_draws_each_time() -> None:
    torch.manual_seed(11)
    before = torch.get_rng_state()
    with Key(5).ambient():
        first = torch.rand(4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    with Key(5).ambient():
        assert torch.equal(torch.rand(4), first)


def test_ambient_puts_the_global_state_back_after_a_failure() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), Key(5).ambient():
        torch.rand(4).tolist()[0] / 0
    assert torch.equal(torch.get_rng_state(), before)


def test_ambient_leaves_the_generators_of_other_devices_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` would seed every CUDA device as well, and nobody would put those back."""
    touched: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", touched.append)
    with Key(5).ambient():
        torch.rand(1)
    assert not touched


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_ambient_leaves_the_gpus_state_as_it_was_and_keys_it_when_asked() -> None:
    device = torch.device("cuda")
    before = torch.cuda.get_rng_state(device)
    with Key(5).ambient():
        pass
    assert torch.equal(torch.cuda.get_rng_state(device), before)
    with Key(5).ambient(device):
        first = torch.rand(4, device=device)
    assert torch.equal(torch.cuda.get_rng_state(device), before)
    with Key(5).ambient(device):
        assert torch.equal(torch.rand(4, device=device), first)


@given(st.lists(st.integers(0, 2**70), max_size=5), st.lists(st.text(max_size=3), max_size=3))
def test_generators_of_many_keys_are_those_of_each(seeds: list[int], parts: list[str]) -> None:
    keys = [Key(seed, (part,)) for seed in seeds for part in parts]
    many = [(draw.permutation(9).tolist(), draw.random(), int(draw.integers(7))) for draw in numpy_each(keys)]
    each = [(draw.permutation(9).tolist(), draw.random(), int(draw.integers(7))) for draw in map(Key.numpy, keys)]
    assert many == each


def test_generators_of_more_keys_than_are_seeded_at_once_are_those_of_each() -> None:
    keys = [Key(1) / i for i in range(4097)]
    assert [draw.random() for draw in numpy_each(keys)] == [key.numpy().random() for key in keys]


@pytest.mark.parametrize("number", [0, 1, 2**32 - 1, 2**32, 2**63 - 1])
def test_seeds_are_spread_as_numpys_seed_sequence_does(number: int) -> None:
    seeded = _seeded(np.array([number], np.uint64))
    assert seeded[0].tolist() == np.random.SeedSequence(number).generate_state(4, np.uint64).tolist()
