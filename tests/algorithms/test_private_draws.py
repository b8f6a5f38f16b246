"""Noise that the server cannot take off: what clients of a deployment draw comes from secrets of their own."""

import dataclasses
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("grpc")

import loopback
import recipe
import toy_prior

from unskew import wire
from unskew.algorithms.feddif import FedDif, Tally
from unskew.algorithms.feddistr import EmbeddingNoise as OnEmbeddings
from unskew.algorithms.feddistr import FedDistr
from unskew.algorithms.feddw import FedDW
from unskew.algorithms.feddw import LabelNoise as OnSoftLabels
from unskew.errors import RunError
from unskew.keys import Key
from unskew.protocol import Me, SgdConfig
from unskew.runtime import client as client_side
from unskew.runtime.in_process import Simulator
from unskew.runtime.message import RoundContext
from unskew.server import privacy
from unskew.tree import leaves

QUICK = SgdConfig(0.02, local_steps=3, batch_size=16, optimizer="adam")
FEDDISTR = FedDistr(steps=2, images=4, m=1, classifier=QUICK, server_model=False, dp=OnEmbeddings(clip=2.0, sigma=0.5))
SMALL = SgdConfig(0.05, batch_size=8)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(privacy, "require", lambda: None)
    with toy_prior.toy():
        yield
    loopback.built.cache_clear()


def deployed(method: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, images: bool = False) -> loopback.Deployed:
    """The algorithm over the loopback; every message finds its client as a fresh process."""
    loopback.built.cache_clear()
    monkeypatch.setattr(loopback, "make", lambda case: method)
    if images:
        monkeypatch.setattr(loopback, "world", lambda network, pooled: toy_prior.clients(network))
    return loopback.Deployed("it", "perceptron", folder, seed=11, method=method)


def simulated(method: Any, images: bool = False) -> Simulator[Any]:
    population, trainer = toy_prior.clients() if images else recipe.world("perceptron", False)
    return Simulator(method, population, recipe.Sequential(trainer), seed=11, clients_per_round=4)


def secrets_of(folder: Path) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in sorted(folder.glob("*/draws.secret"))}


# ---------------------------------------------------------------- the secret
def test_a_client_makes_a_secret_that_survives_it_and_is_in_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four clients, four messages each of which finds a fresh process, and then a server that starts anew."""
    there = deployed(FEDDISTR, tmp_path, monkeypatch, images=True)
    there.runtime.round(there.runtime.start(), 1)
    first = secrets_of(tmp_path)
    assert sorted(first) == ["0", "1", "2", "3"]
    assert len(set(first.values())) == 4
    assert {len(s) for s in first.values()} == {32}
    assert {stat.S_IMODE(p.stat().st_mode) for p in tmp_path.glob("*/draws.secret")} == {0o600}
    again = there.start_server()
    again.round(again.start(), 1)
    assert secrets_of(tmp_path) == first
    assert not list(tmp_path.rglob("*.tmp"))
    envelopes = [m for _, m in (*there.grid.pushed, *there.grid.pulled)]
    said = b"".join(b"".join((envelope.head.encode(), *envelope.parts)) for envelope in envelopes)
    assert len(envelopes) > 16
    for secret in first.values():
        for form in (secret, secret.hex().encode(), str(int.from_bytes(secret, "big")).encode()):
            assert form not in said


def test_a_secret_that_is_damaged_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = deployed(FEDDISTR, tmp_path, monkeypatch, images=True).client_runtime(0)
    secret = client_side.own_secret(runtime.state)
    assert client_side.own_secret(runtime.state) == secret
    (tmp_path / "0" / "draws.secret").write_bytes(b"short")
    with pytest.raises(RunError, match="must hold 32 bytes, got 5"):
        client_side.own_secret(runtime.state)


def context(**other: Any) -> RoundContext:
    return dataclasses.replace(RoundContext("run", "small world", 0, 1), **other)


def test_only_the_same_order_on_the_same_data_draws_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the difference of two uploads would be that of the data, without noise."""
    there = deployed(FEDDISTR, tmp_path, monkeypatch, images=True)

    def me(what: str = "order", data: str = "rows", client: int = 0, **where: Any) -> Me:
        runtime = there.client_runtime(client)  # as a fresh process
        runtime = dataclasses.replace(runtime, info=dataclasses.replace(runtime.info, data=data))
        return client_side._Cell(runtime, context(**where)).me(Key(11) / "x", what)

    same = me()
    assert me().private == same.private
    assert me(attempt="another").private == same.private  # a server that starts again asks for the same again
    others = [me(what="another"), me(data="others"), me(client=1), me(round=2), me(run="b"), me(cell=1)]
    assert len({same.private, same.private_fixed, same.key, *(m.private for m in others)}) == 9
    # Fixed draws are the same for every order, round and run, or they would average out.
    assert {me(what="another").private_fixed, me(round=2).private_fixed, me(run="b").private_fixed} == {
        same.private_fixed
    }
    assert len({same.private_fixed, *(m.private_fixed for m in (me(data="others"), me(client=1), me(cell=1)))}) == 4
    assert me().key == same.key == Key(11) / "x"
    assert str(same.private.seed) not in repr(same)


# ---------------------------------------------------------------- who draws from it
def test_noise_on_embeddings_is_not_what_the_seed_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the noise the two are equal; with it every number differs, and by as much as two noises do."""
    sim, there = simulated(FEDDISTR, True), deployed(FEDDISTR, tmp_path, monkeypatch, True)
    here, far = (r.round(r.start(), 1)[0].info.uploads for r in (sim, there.runtime))
    assert here.labels.tolist() == far.labels.tolist()
    apart = here.embeddings - far.embeddings
    assert bool((apart != 0).all())
    # sigma .5 of R 2 is a standard deviation of 1, that of a difference 1.41.
    assert float(apart.std()) == pytest.approx(2**0.5, abs=0.35)


@pytest.mark.parametrize("plain", [True, False])
def test_noise_on_soft_labels_is_not_what_the_seed_says(
    plain: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = FedDW(local=SMALL, dp=None if plain else OnSoftLabels(noise_multiplier=1.0))
    sim, there = simulated(method), deployed(method, tmp_path, monkeypatch)
    here, far = (r.round(r.start(), 1)[0].totals for r in (sim, there.runtime))
    assert bool((here.sums == far.sums).all()) is plain
    assert bool((here.counts != far.counts).any()) is not plain


def test_the_mask_of_a_sum_is_a_private_draw() -> None:
    population, _ = recipe.world("perceptron", False)
    me = population.me(0, 1, Key(3) / "ask")

    def masked(private: Key) -> torch.Tensor:
        reply, _ = FedDif(target="pooled").tally(dataclasses.replace(me, private=private), Tally(None, None), None)
        mask, counts = reply.mask.value, reply.counts.value
        assert torch.equal(counts - mask, me.histogram) or torch.equal(mask - counts, me.histogram)
        return torch.stack(sorted((mask, counts), key=lambda t: t.tolist()))

    assert torch.equal(masked(Key(1)), masked(Key(1)))
    assert not bool((masked(Key(1)) == masked(Key(2))).any())


def test_in_a_simulation_private_draws_follow_from_the_seed() -> None:
    population, _ = recipe.world("perceptron", False)
    me, later = (population.me(2, t, Key(3) / "round" / t, "train") for t in (1, 2))
    assert me.private == population.me(2, 1, Key(3) / "round" / 1, "train").private
    assert me.private not in (me.key, later.private, population.me(2, 1, Key(3) / "round" / 1, "other").private)
    assert me.private_fixed == later.private_fixed != population.me(1, 1, Key(3)).private_fixed
    states = [wire.encode(s.round(s.start(), 1)[0]) for s in (simulated(FEDDISTR, True) for _ in range(2))]
    assert states[0] == states[1]


# ---------------------------------------------------------------- draws that can hide something
def test_private_draws_heed_all_of_their_seed() -> None:
    """PyTorch's own generator on the CPU takes two seeds with equal low 32 bits for one."""
    seeds = (5, 5 + (1 << 40), 5 + (1 << 255))
    alike = [torch.randn(3, generator=torch.Generator().manual_seed(s)) for s in seeds[:2]]
    assert torch.equal(*alike)
    drawn = [(Key(s) / "noise").normal(3).tolist() for s in seeds]
    assert len(set(map(tuple, drawn))) == 3


def test_private_draws_are_normal_and_uniform_and_keyed() -> None:
    """100,000 draws: mean within .013 and variance within .018 of 0 and 1, four standard errors of each."""
    x = Key(4).normal(100, 1000)
    assert x.shape == (100, 1000)
    assert abs(float(x.mean())) < 0.013
    assert float(x.var()) == pytest.approx(1.0, abs=0.018)
    assert float((x.abs() > 1.959964).double().mean()) == pytest.approx(0.05, abs=0.003)
    assert torch.equal(Key(4).normal(3), x.flatten()[:3])
    bits = Key(4).bits(1000)
    assert bits.dtype == torch.int64
    for place_ in range(64):
        assert int(((bits >> place_) & 1).sum()) == pytest.approx(500, abs=80)
    assert Key(4).normal(0, 3).shape == (0, 3)
    assert len(list(leaves(bits))) == 1
