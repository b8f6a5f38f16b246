"""The benchmark's rows: what they compare, and that they are about the same embeddings."""

import pytest
import torch

from unskew import priors
from unskew.bench import prior as bench
from unskew.errors import DivergedError
from unskew.priors.builtin import BuiltIn


def test_a_ratio_says_how_many_times_faster_than_one_at_a_time() -> None:
    """Seconds: best 2 against best 6, three times.  Images: 10 against 5 a second, twice."""
    prior = priors.load()
    seconds = bench._rows(prior, "s", "s", {"batched": [2.0, 4.0], "one at a time": [6.0, 8.0]}, 1.8)
    assert [(r["contender"], r["value"], r["ratio"], r["low"], r["high"]) for r in seconds] == [
        ("batched", 2.0, 3.0, 2.0, 3.0),
        ("one at a time", 6.0, 1.0, 1.0, 1.0),
    ]
    assert [r.get("bar") for r in seconds] == [1.8, None]
    images = bench._rows(prior, "i", "1/s", {"batched": [10.0], "one at a time": [5.0]}, None)
    assert [(r["value"], r["ratio"]) for r in images] == [(10.0, 2.0), (5.0, 1.0)]


@pytest.mark.slow
def test_it_measures_both_contenders() -> None:
    said: list[str] = []
    rows = bench.measure(steps=1, images=1, repeats=1, digits=2, say=said.append)
    assert [(r["what"], r["contender"], r["turns"]) for r in rows] == [
        ("seconds_per_embedding", "batched", 1),
        ("seconds_per_embedding", "one at a time", 1),
        ("images_per_second", "batched", 1),
        ("images_per_second", "one at a time", 1),
    ]
    assert all(r["value"] > 0 for r in rows)
    assert len(said) == 4


def test_a_prior_that_mixes_up_a_batch_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = BuiltIn.loss

    def mixed(self: BuiltIn, latents: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return real(self, latents, v.mean(0).expand_as(v) + 0.1 * v, *rest)

    monkeypatch.setattr(BuiltIn, "loss", mixed)
    with pytest.raises(DivergedError, match="mixes up the entries of a batch"):
        bench.measure(steps=1, images=1, repeats=1, digits=2)
