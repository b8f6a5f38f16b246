"""The mock prior, and what the real one's work takes."""

from typing import Any

import pytest
import torch
import toy_prior
from torch import Tensor, nn

from unskew.decide.forecast import measure
from unskew.decide.forecast.measure import affine, outputs
from unskew.decide.forecast.mock_prior import MockPrior, PriorRequest
from unskew.decide.forecast.prior_trial import at_once, seconds_of, working_bytes
from unskew.keys import Key
from unskew.local import imagery

X = torch.rand(3, 1, 8, 8)
ASKED = [
    PriorRequest("toy", "encode"),
    PriorRequest("toy", "decode"),
    PriorRequest("toy", "invert", 100, 8),
    PriorRequest("toy", "sample"),
    PriorRequest("toy", "distances"),
]


class Layered(toy_prior.Toy):
    """A toy whose every answer passes two layers: 16 to 4 to 16 numbers for each latent."""

    layers = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 16)).requires_grad_(False)

    def decode(self, latents: Tensor) -> Tensor:
        return super().decode(self.layers(latents.flatten(1)).reshape(latents.shape))

    def predict(self, latents: Tensor, embeddings: Tensor, times: Tensor) -> Tensor:
        moved = self.layers(embeddings)[:, None].expand(-1, latents.shape[1], -1)
        self.layers(latents.flatten(2))
        return super().predict(latents, moved.mean(1), times)


def real(prior: Any) -> imagery.TaskImagery:
    return imagery.TaskImagery(prior, "toy", (1, 8, 8), ((0.0, 1.0),), None)


@pytest.mark.parametrize("length", [0.0, 0.01])
def test_what_is_made_up_has_the_shapes_of_the_real_thing(length: float) -> None:
    noted: list[tuple[str, int]] = []
    genuine = real(toy_prior.Toy())
    mock = MockPrior(genuine, (1, 8, 8), 3, length, lambda asked, n, same: noted.append((asked.what, n)))
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
    assert noted == [("encode", 3), ("decode", 3), ("invert", 5), ("sample", 20), ("distances", 5)]


def test_embeddings_stay_where_they_began_or_lie_apart() -> None:
    def learned(client: int, length: float) -> Tensor:
        made = MockPrior(real(toy_prior.Toy()), (1, 8, 8), client, length, lambda *_: None)
        return made.invert([X] * 3, Key(0), steps=1, batch_size=1)

    assert torch.equal(learned(0, 0.0), torch.zeros(3, 16))
    assert (torch.pdist(torch.cat([learned(0, 0.01), learned(1, 0.01)])) > 0).all()


def test_equal_images_are_told_from_others() -> None:
    noted: list[Any] = []
    made = MockPrior(real(toy_prior.Toy()), (1, 8, 8), 0, 0.0, lambda asked, n, same: noted.append(same))
    v = torch.zeros(2, 16)
    for args in ((v, 3, Key(0)), (v.clone(), 3, Key(0)), (v + 1, 3, Key(0)), (v, 4, Key(0)), (v, 3, Key(1))):
        made.sample(*args)
    assert noted[0] == noted[1]
    assert len(set(noted)) == 4


def test_layers_are_counted_by_what_they_put_out() -> None:
    """(5, 4) and (5, 16) float32: 80 and 320 bytes; the sequence that holds them puts out nothing of its own."""
    assert outputs(lambda: Layered.layers(torch.zeros(5, 16))) == [80, 320]


def test_an_inversion_keeps_all_layers_twice_and_the_rest_two_in_turn() -> None:
    """A decoded latent passes 16 and 64 bytes, together 80, and 64 latents go together at most.

    One step of an inversion with 8 latents of a cluster: 80 bytes for its embedding, 640 for its latents, all twice;
    8 clusters go together.
    """
    genuine = real(Layered())
    assert working_bytes(PriorRequest("toy", "decode"), genuine, X, 3) == 3 * 80
    assert working_bytes(PriorRequest("toy", "decode"), genuine, X, 1000) == 64 * 80
    assert working_bytes(PriorRequest("toy", "invert", 100, 8), genuine, X, 5) == 5 * 2 * 720
    assert at_once(PriorRequest("toy", "invert", 100, 8), genuine) == 8


@pytest.mark.parametrize("asked", ASKED, ids=lambda a: a.what)
def test_whatever_is_asked_of_a_prior_can_be_timed(asked: PriorRequest) -> None:
    one, more = seconds_of(asked, real(toy_prior.Toy()), X, 20, 0.05)
    assert one > 0
    assert more >= 0


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
