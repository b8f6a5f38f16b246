"""The prior of a dry run, and how work is timed."""

from typing import Any

import pytest
import torch
import toy_prior
from torch import Tensor

from unskew.decide.forecast import measure
from unskew.decide.forecast.dry_run import MadeUp
from unskew.decide.forecast.measure import affine
from unskew.keys import Key
from unskew.local import imagery

X = torch.rand(3, 1, 8, 8)


def real(prior: Any) -> imagery.TaskImagery:
    return imagery.TaskImagery(prior, "toy", (1, 8, 8), ((0.0, 1.0),), None)


@pytest.mark.parametrize("length", [0.0, 0.01])
def test_what_is_made_up_has_the_shapes_of_the_real_thing(length: float) -> None:
    genuine = real(toy_prior.Toy())
    mock = MadeUp(genuine, (1, 8, 8), 3, length)
    v, key = torch.zeros(5, 16), Key(0)
    with toy_prior.toy():
        pairs = [
            (mock.encode(X), genuine.encode(X)),
            (mock.decode(genuine.encode(X)), genuine.decode(genuine.encode(X))),
            (
                mock.invert([genuine.encode(X)] * 5, key, steps=2, batch_size=2),
                genuine.invert([genuine.encode(X)] * 5, key, steps=2, batch_size=2),
            ),
            (mock.sample(v, 4, key), genuine.sample(v, 4, key)),
            (mock.distances(v, key), genuine.distances(v, key)),
            (mock.start(), genuine.start()),
        ]
    for made_up, true in pairs:
        assert made_up.shape == true.shape
        assert made_up.dtype == true.dtype


def test_embeddings_stay_where_they_began_or_lie_apart() -> None:
    def learned(client: int, length: float) -> Tensor:
        made = MadeUp(real(toy_prior.Toy()), (1, 8, 8), client, length)
        return made.invert([X] * 3, Key(0), steps=1, batch_size=1)

    assert torch.equal(learned(0, 0.0), torch.zeros(3, 16))
    assert (torch.pdist(torch.cat([learned(0, 0.01), learned(1, 0.01)])) > 0).all()


def test_a_line_is_put_through_one_and_as_many_as_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s for one, .5 s for each more.  30 s allow 16 (9.5 s; four times that for 64 would be 38 s)."""
    now, asked = [0.0], []

    def once(n: int) -> None:
        asked.append(n)
        now[0] += 1.5 + 0.5 * n

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    assert affine(once, 1000, 30.0) == pytest.approx((2.0, 0.5))
    assert max(asked) == 16


def test_what_is_too_slow_to_be_tried_twice_is_taken_to_cost_as_much_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def once(n: int) -> None:
        now[0] += 5.0 * n

    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])
    assert affine(once, 1000, 1.0) == pytest.approx((5.0, 5.0))
