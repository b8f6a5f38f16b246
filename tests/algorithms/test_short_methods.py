"""Methods that are a term, a rule or a few steps: a worked example of each, with its derivation."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import unskew as us
from unskew.algorithms import ccvr, fedgen
from unskew.algorithms.fedamp import FedAMPState
from unskew.algorithms.fedlc import Shifted
from unskew.algorithms.fedntd import NotTrue
from unskew.algorithms.fedpac import mixes
from unskew.errors import ConfigError
from unskew.keys import Key
from unskew.protocol import Batch, SgdConfig

ONE = SgdConfig(lr=0.5, local_steps=1, batch_size=None)
"""One step on all of a client's data; at springs y = w - .5 (w - m)."""


def batch(logits: list[list[float]], y: list[int], received: list[list[float]] | None = None) -> Batch:
    z, other = torch.tensor(logits, dtype=torch.float64), torch.tensor(received or logits, dtype=torch.float64)
    rows = torch.ones(len(z), dtype=torch.float64)
    return Batch(z, torch.tensor(y), rows, z, z, rows, lambda params: (other, other))


def test_calibrated_logits_by_hand() -> None:
    """FedLC at tau 1 with 16 and 1 examples: logits 0 become -1/2 and -1; -log softmax is .47408 and .97408."""
    shift = -(torch.tensor([16.0, 1.0], dtype=torch.float64) ** -0.25)
    first = math.log(math.exp(-0.5) + math.exp(-1.0)) + 0.5
    assert first == pytest.approx(0.47408, abs=1e-5)
    for y, loss in ((0, first), (1, first + 0.5)):
        value = Shifted()({}, {"shift": shift}, batch([[0.0, 0.0]], [y]))
        assert value.item() == pytest.approx(loss - math.log(2.0))


@pytest.mark.parametrize("tau", [1.0, 2.0])
def test_not_true_distillation_by_hand(tau: float) -> None:
    """Class 0 is true.  Of the others the received model says 1/2 each, this one e^(1/tau) to 1; the 5 is not seen."""
    q = math.exp(1.0 / tau) / (1.0 + math.exp(1.0 / tau))
    divergence = 0.5 * math.log(0.5 / q) + 0.5 * math.log(0.5 / (1.0 - q))
    value = NotTrue(3.0, tau)({}, {"received": {}}, batch([[5.0, 1.0, 0.0]], [0], [[-3.0, 0.0, 0.0]]))
    assert value.item() == pytest.approx(3.0 * tau**2 * divergence)
    if tau == 1.0:
        assert divergence == pytest.approx(0.12011, abs=1e-5)


def test_not_true_distillation_has_a_gradient_everywhere_but_at_the_true_class() -> None:
    of = batch([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]], [0, 2], [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    logits = of.logits.clone().requires_grad_()
    other = Batch(of.x, of.y, of.mask, of.features, logits, of.loss, of.forward)
    (g,) = torch.autograd.grad(NotTrue(1.0, 1.0)({}, {"received": {}}, other), logits)
    assert g[0, 0] == g[1, 2] == 0.0
    assert bool(g.isfinite().all())
    assert bool((g.abs().sum(1) > 0).all())


def test_a_step_as_long_as_updates_disagree(springs: Any, value: Any) -> None:
    """FedExP: updates 2 and -1, mean 1/2, mean square 5/2: eta = 2.5 / (2 (.25 + .25)) = 2.5, w = 1.25.

    From there: updates 1.375 and -1.625, mean -.125, mean square 2.265625; eta = 2.265625 / (2 .265625) = 4.26471.
    """
    play = springs(m=[4.0, -2.0]).play(us.FedExP(epsilon=0.25, local=ONE), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 1.25, 1.25 - 0.125 * 2.265625 / 0.53125])
    assert [s.eta for s in play.states] == pytest.approx([1.0, 2.5, 2.265625 / 0.53125])


def test_clients_start_where_momentum_leads(springs: Any, value: Any) -> None:
    """FedACG at lam 1/2, beta 0: w = m = .5; then from v = .75: y = 2.375, -.625, mean .875, momentum .375."""
    play = springs(m=[4.0, -2.0]).play(us.FedACG(lam=0.5, beta=0.0, local=ONE), 2)
    assert [value(p) for p in play.params] == pytest.approx([0.0, 0.5, 0.875])
    assert play.states[-1].moments.m["head.weight"].item() == pytest.approx(0.375)


def test_the_pull_of_accelerated_clients_is_to_the_model_they_were_sent(springs: Any, value: Any) -> None:
    """At beta 1 two steps from v = 0: y = m / 2, then y - .5 ((y - m) + y) = m / 2: 2 and -1."""
    play = springs(m=[4.0, -2.0]).play(us.FedACG(0.5, 1.0, local=SgdConfig(lr=0.5, local_steps=2, batch_size=None)), 1)
    assert value(play.params[1]) == pytest.approx(0.5)


def test_gradients_of_the_worst_point_nearby(springs: Any, value: Any) -> None:
    """FedSAM at rho .1: g = -4 and 2, at -.1 and .1 they are -4.1 and 2.1: y = 2.05, -1.05, mean .5."""
    play = springs(m=[4.0, -2.0], n=[1, 3]).play(us.FedSAM(0.1, local=ONE), 1)
    assert value(play.params[1]) == pytest.approx((2.05 - 3 * 1.05) / 4)


def test_models_near_a_copy_that_follows(springs: Any, value: Any) -> None:
    """pFedMe at lam 1, K 1, eta 1/2: theta = 0 - .5 (0 - m) = m / 2, w = 0 - .5 (0 - theta) = m / 4: mean .25."""
    method = us.PFedMe(lam=1.0, eta=0.5, inner_steps=1, local=ONE)
    play = springs(m=[4.0, -2.0]).play(method, 1)
    assert value(play.params[1]) == pytest.approx(0.25)
    assert [value(play.own(c)) for c in (0, 1)] == pytest.approx([2.0, -1.0])


def test_a_copy_that_moves_all_the_way_is_the_own_model(springs: Any, value: Any) -> None:
    play = springs(m=[4.0, -2.0]).play(us.PFedMe(2.0, 0.5, 3, local=SgdConfig(lr=0.1, local_steps=2)), 1)
    assert value(play.params[1]) == pytest.approx(sum(value(play.own(c)) for c in (0, 1)) / 2)


def test_a_mixture_whose_share_is_learned(springs: Any, value: Any) -> None:
    """APFL, one client, m 4, eta .1, a 1/2.  Round 1: g = -4: w = .4, v = .2, and a stays, as v = w before it.

    Round 2: u = .3, g(u) = -3.7; a = .5 - .1 (.2 - .4) (-3.7) = .426; w = .4 + .36; v = .2 + .1 .426 3.7 = .35762.
    """
    play = springs(m=[4.0]).play(us.APFL(local=SgdConfig(lr=0.1, local_steps=1, batch_size=None)), 2)
    memory = play.sim.memory.get(0)
    assert (memory.share, value(memory.own)) == pytest.approx((0.426, 0.35762))
    assert value(play.params[-1]) == pytest.approx(0.76)
    assert value(play.own(0)) == pytest.approx(0.426 * 0.35762 + 0.574 * 0.76)


def test_near_models_count_more(value: Any) -> None:
    """FedAMP, alpha 1, sigma 4, models 0 and 2: xi = e^(-1) / 4 = .09197; u = .18394.  Near models are capped at 1."""
    models = {0: {"head.weight": torch.zeros(1, 1)}, 1: {"head.weight": torch.full((1, 1), 2.0)}}
    state = FedAMPState({"head.weight": torch.full((1, 1), 7.0)}, models)
    assert value(us.FedAMP(alpha=1.0, sigma=4.0).near(0, state)) == pytest.approx(2 * math.exp(-1) / 4)
    assert value(us.FedAMP(alpha=1e6, sigma=4.0).near(0, state)) == pytest.approx(2.0)
    alike = {c: {"head.weight": torch.ones(1, 1)} for c in range(14)}  # 13 thirteenths add up to a little more than 1
    assert value(us.FedAMP(alpha=1e6).near(0, FedAMPState(state.initial, alike))) == pytest.approx(1.0)
    assert value(us.FedAMP().near(5, state)) == pytest.approx(1.0)  # it has not trained: the mean
    assert value(us.FedAMP().near(5, FedAMPState(state.initial, {}))) == pytest.approx(7.0)


def test_own_models_are_pulled_to_their_means(springs: Any, value: Any) -> None:
    """FedAMP at lam = alpha = 1: round 1 from 0, which is pulled to 0: 2 and -1; round 2 from there, u = w by xi 0."""
    play = springs(m=[4.0, -2.0]).play(us.FedAMP(sigma=1e-3, local=ONE), 2)
    assert [value(play.own(c)) for c in (0, 1)] == pytest.approx([3.0, -1.5])
    assert play.params[-1] is None


def test_with_even_labels_the_generic_model_is_fedavgs(classes: Any, equal: Any) -> None:
    """FedRoD: log n_c is the same for all classes, which a softmax does not see; heads differ, bodies are common."""
    world = classes()
    even = torch.full_like(world.population.histograms, 2)
    world.population.__dict__["histograms"] = even
    local = SgdConfig(lr=0.1, local_epochs=2, batch_size=4)
    rod, avg = (world.play(kind(local=local), 3) for kind in (us.FedRoD, us.FedAvg))
    equal(rod.params, avg.params)
    own = [rod.own(c) for c in (0, 1)]
    for name, t in rod.params[-1].items():
        same = [torch.equal(o[name], t) for o in own]
        assert same == [not name.startswith("head")] * 2


def test_plain_gradients_are_asked_for() -> None:
    for kind in (us.APFL, us.FedSAM, us.PerFedAvg):
        with pytest.raises(ConfigError, match="momentum"):
            kind(local=SgdConfig(momentum=0.9))
    us.FedSAM(rho=0.0, local=SgdConfig(momentum=0.9))


def test_a_class_that_a_client_lacks_is_all_but_left_out() -> None:
    """FedLC: with the task's own loss nothing moves the logit of a class without examples, 1e-8^(-1/4) = 100 below."""
    shift = -(torch.tensor([4.0, 4.0, 1e-8], dtype=torch.float64) ** -0.25)
    of = batch([[0.0, 0.0, 0.0]], [0])
    logits: Tensor = of.logits.clone().requires_grad_()
    other = Batch(of.x, of.y, of.mask, of.features, logits, of.loss, of.forward)
    whole = Shifted()({}, {"shift": shift}, other) + torch.nn.functional.cross_entropy(logits, of.y)
    (g,) = torch.autograd.grad(whole, logits)
    torch.testing.assert_close(g[0], torch.tensor([-0.5, 0.5, 0.0], dtype=torch.float64), rtol=0, atol=1e-15)


def test_heads_are_mixed_as_far_as_variance_asks_for() -> None:
    """FedPAC, h 1 and 3: shares 1 - a and a of the other minimise 4 a^2 + v ((1 - a)^2 + a^2): a = v / (4 + 2 v)."""
    h = [torch.tensor([[1.0]]), torch.tensor([[3.0]])]
    for v, a in ((0.0, 0.0), (4.0, 1 / 3), (1e9, 0.5)):
        shares = mixes(h, [v, v])
        assert [x.tolist() for x in shares] == [
            pytest.approx([1 - a, a], abs=1e-3),
            pytest.approx([a, 1 - a], abs=1e-3),
        ]


def test_models_that_are_better_here_are_taken(springs: Any, value: Any) -> None:
    """FedFomo: round 1 leaves 2 and 1.  At m 4 the other, 1, is worse; at m 2 the other, 2, has no loss."""
    play = springs(m=[4.0, 2.0]).play(us.FedFomo(epsilon=0.0, local=ONE), 2)
    assert [value(play.own(c)) for c in (0, 1)] == pytest.approx([3.0, 2.0])
    assert play.states[-1].affinity == {0: {1: 0.0}, 1: {0: 1.0}}


def test_what_is_held_out_is_not_trained_on(springs: Any, value: Any) -> None:
    """FedFomo with one of two held out: of three examples the first and third are trained on."""
    play = springs(m=[4.0, 4.0], n=[3, 1]).play(us.FedFomo(hold_out=2, local=ONE), 1)
    assert [w.examples for w in play.traces[0].work] == [2, 1]


def test_moments_of_all_clients_are_those_of_their_examples_together() -> None:
    """CCVR, eq. 1 and 2, beside numpy's covariance of the features in one place."""
    draw = Key(0).generator()
    parts = [torch.randn(n, 3, generator=draw, dtype=torch.float64) + n for n in (5, 9)]
    of = [
        ccvr.FeatureMoments(
            torch.tensor([len(x), 0]), torch.stack([x.mean(0), x[0] * 0]), torch.stack([x.T @ x / len(x)] * 2)
        )
        for x in parts
    ]
    n, mu, s = ccvr.pooled(of)
    both = torch.cat(parts)
    assert n.tolist() == [14, 0]
    torch.testing.assert_close(mu[0], both.mean(0))
    torch.testing.assert_close(s[0], both.T.cov())


def test_a_head_is_calibrated_on_virtual_features(classes: Any, equal: Any) -> None:
    """CCVR: two classes at -1 and 1 are told apart; the row of a third stays.  Training goes on as FedAvg's."""
    noise = 0.1 * torch.randn(40, 1, generator=Key(4).generator(), dtype=torch.float64)
    x = torch.tensor([-1.0, 1.0]).double().repeat_interleave(20)[:, None] + noise
    params = {"head.weight": torch.zeros(3, 1), "head.bias": torch.full((3,), -9.0)}
    new = ccvr.calibrated(params, "head.weight", x, torch.arange(2).repeat_interleave(20))
    assert (x.float() @ new["head.weight"].T + new["head.bias"]).argmax(1).tolist() == [0] * 20 + [1] * 20
    assert (new["head.weight"][2].item(), new["head.bias"][2].item()) == (0.0, -9.0)
    local = SgdConfig(lr=0.1, local_epochs=1, batch_size=4)
    calibrated, plain = (classes().play(kind(local=local), 2) for kind in (us.CCVR, us.FedAvg))
    equal([s.params for s in calibrated.states], plain.params)


def test_heads_learn_from_generated_features() -> None:
    """FedGen, eq. 2: one feature 2 of class 1, weights 0 and 1, no bias: -log(e^2 / (1 + e^2)) = .12693."""
    aux = {"generated": torch.tensor([[2.0]]), "labels": torch.tensor([1])}
    value = fedgen.OnGenerated(3.0, "head.weight")({"head.weight": torch.tensor([[0.0], [1.0]])}, aux)
    assert value.item() == pytest.approx(3 * 0.12693, abs=1e-4)


def test_a_generator_makes_what_the_heads_agree_on() -> None:
    """FedGen, eq. 1: after some rounds a client's head, the identity, tells what was made of each class."""
    method = us.FedGen(steps=300, spread=0.0)
    draw = Key(1).generator()
    sizes = {"hidden": (64, 3 + 32), "out": (3, 64)}
    start = {n: torch.randn(*of, generator=draw, dtype=torch.float64) / 8 for n, of in sizes.items()}
    heads = [{"head.weight": torch.eye(3)}] * 2
    replies = [fedgen.FedGenReply({}, 6, h, torch.tensor([1, 2, 3])) for h in heads]
    shares = torch.tensor([2.0, 4.0, 6.0], dtype=torch.float64)
    right = []
    for g in (start, method.taught(start, replies, "head.weight", shares, Key(2))):
        x, y = fedgen.generated(g, shares, 500, Key(3))
        right.append(float((x.argmax(1) == y).double().mean()))
    assert right[0] < 0.6
    assert right[1] > 0.9
    assert y.bincount().tolist() == pytest.approx([83, 167, 250], abs=40)
