from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unskew.keys import Key
from unskew.world.channel import Radio


@given(seed=st.integers(0, 1000), nodes=st.integers(1, 40), law=st.sampled_from(["radius", "area"]))
def test_devices_lie_in_the_ring_and_the_base_station_at_the_origin(seed: int, nodes: int, law: Any) -> None:
    at = Radio(cell_radius_m=250.0, inner=0.1, placement=law).positions(Key(seed), 1, 0, nodes)
    assert at.shape == (nodes, 2)
    assert at[0].tolist() == [0.0, 0.0]
    r = np.hypot(*at[1:].T)
    assert ((r >= 25.0 - 1e-9) & (r <= 250.0 + 1e-9)).all()


@given(seed=st.integers(0, 1000), few=st.integers(1, 30), more=st.integers(0, 30))
def test_a_place_does_not_depend_on_how_many_others_there_are(seed: int, few: int, more: int) -> None:
    many, some = (Radio(placement="area").positions(Key(seed), 1, 0, n) for n in (few + more, few))
    assert np.array_equal(many[:few], some)


def test_when_devices_are_placed_anew() -> None:
    def places(redeploy: Any) -> int:
        radio = Radio(redeploy=redeploy)
        return len({radio.positions(Key(0), *when, 2).tobytes() for when in [(1, 0), (1, 1), (2, 0)]})

    assert [places(r) for r in ("never", "round", "hop")] == [1, 2, 3]
