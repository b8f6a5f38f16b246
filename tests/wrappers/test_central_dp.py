"""Central differential privacy: its equations by hand, its accountant, and who is accounted for or refused."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import rdp
from hypothesis import given
from hypothesis import strategies as st
from recipe import LOCAL, VARIANTS, simulator

import unskew as us
from unskew.algorithms import TABLE, resolve
from unskew.algorithms.fedavg import FedAvg, ModelMessage, ModelReply
from unskew.errors import ConfigError, QuorumError
from unskew.info import PrivacyBudget, whole
from unskew.keys import Key
from unskew.protocol import Federation, Me, Model, SampleCount, ask, collect, drive, step
from unskew.reduction import ByClient, MeanOf, SumOf, reduced
from unskew.runtime.round import Trace, _Round
from unskew.server import privacy
from unskew.tree import Params
from unskew.wrappers.base import wrap
from unskew.wrappers.central_dp import AdaptiveClip, CentralDP, NoisedSum
from unskew.wrappers.local_dp import LocalDP

UNIFORM = FedAvg(local=LOCAL, weighting="uniform")
QUIET = CentralDP(clip=math.inf, noise_multiplier=0.0)


@dataclass(frozen=True)
class Sent:
    params: Params
    dy: Params
    n: SampleCount = 1


def noised(replies: dict[int, Any], reductions: tuple[Any, ...] = (MeanOf("params"),), **options: Any) -> Any:
    model = {"w": torch.tensor([1.0, 1.0])}
    settings = {"clip": 1.0, "noise": 0.0, "count_noise": 0.0, "cohort": len(replies), "key": Key(1)}
    return reduced((NoisedSum(reductions, model, **(settings | options)),), replies).value


def reply(*w: float) -> ModelReply:
    return ModelReply({"w": torch.tensor(w)}, 1)


def played(by: CentralDP, rounds: int = 2, method: Any = UNIFORM, **options: Any) -> tuple[Any, list[Any]]:
    sim = simulator("fedavg", "perceptron", method=wrap(method, by), **options)
    states = [sim.start()]
    for t in range(1, rounds + 1):
        states.append(sim.round(states[-1], t)[0])
    return sim, states


# ---------------------------------------------------------------- equations
def test_a_far_client_counts_as_one_that_went_as_far_as_the_norm() -> None:
    """Model (1, 1); updates (3, 4) of norm 5 and (.3, .4): clipped (.6, .8); mean (.45, .6), eq. 1 and 2."""
    (mean,), within = noised({0: reply(4.0, 5.0), 1: reply(1.3, 1.4)})
    torch.testing.assert_close(mean["w"], torch.tensor([1.45, 1.6]))
    assert within == 0.5


def test_an_absent_client_counts_as_half_within_the_norm() -> None:
    """Eq. 3, M = 4: one within and one beyond, two gone: b = (1/2 - 1/2) / 4 + 1/2; of one alone (1/2) / 4 + 1/2."""
    near, far = reply(1.3, 1.4), reply(4.0, 5.0)
    assert noised({0: near, 1: far}, cohort=4)[1] == 0.5
    assert noised({0: near}, cohort=4)[1] == 0.625
    assert noised({0: far}, cohort=4)[1] == 0.375


def test_an_absent_client_and_one_without_a_finite_update_count_as_not_moved() -> None:
    """Of a cohort of four one moved by (.3, .4): the mean moves by a quarter of that, whoever replied."""
    (mean,), _ = noised({0: reply(1.3, 1.4), 1: reply(math.nan, 0.0), 2: reply(math.inf, 0.0)}, cohort=4)
    torch.testing.assert_close(mean["w"], torch.tensor([1.075, 1.1]))
    with pytest.raises(QuorumError, match="finite"):
        noised({0: reply(math.nan, 0.0)})


def test_all_that_the_method_takes_is_clipped_together() -> None:
    """A model that moved by (3, 0) and a sum of (0, 4) are one update of norm 5; clipped (.6, 0) and (0, .8)."""
    both = Sent({"w": torch.tensor([4.0, 1.0])}, {"v": torch.tensor([0.0, 4.0])})

    def moved(client: int, sent: Sent) -> Params:
        return {"w": sent.params["w"] - 1.0}

    (mean, total), _ = noised({0: both}, (MeanOf(moved), SumOf("dy")))
    torch.testing.assert_close(mean["w"], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(total["v"], torch.tensor([0.0, 0.8]))


vectors = st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2)


@given(others=st.lists(vectors, max_size=20), one=vectors, other=vectors, clip=st.floats(0.01, 100.0))
def test_a_sum_moves_by_at_most_the_norm_if_a_client_leaves_and_twice_that_if_one_is_replaced(
    others: list[list[float]], one: list[float], other: list[float], clip: float
) -> None:
    def total(mine: list[float] | None) -> torch.Tensor:
        of = [*others, [0.0, 0.0] if mine is None else mine]
        replies = {i: Sent({}, {"w": torch.tensor(v)}) for i, v in enumerate(of)}
        ((table,), _) = noised(replies, (SumOf("dy"),), clip=clip)
        return table["w"].double()

    slack = 1e-4 * clip * (len(others) + 1)  # of float32 sums
    assert float((total(one) - total(None)).norm()) <= clip + slack
    assert float((total(one) - total(other)).norm()) <= 2 * clip + slack


def test_the_noise_on_the_sum_has_the_standard_deviation_z_times_the_clipping_norm() -> None:
    """z = 2, C = .5, M = 4 over 40,000 numbers: 1 on the sum and 1/4 on the mean, up to four standard errors."""
    large = {"w": torch.zeros(40_000)}
    joint = NoisedSum((MeanOf("params"), SumOf("dy")), large, 0.5, 2.0 * 0.5, 0.0, 4, Key(5))
    (mean, total), _ = reduced((joint,), {c: Sent(large, large) for c in range(4)}).value
    assert float(total["w"].std()) == pytest.approx(1.0, abs=4 / math.sqrt(80_000))
    assert float(mean["w"].std()) == pytest.approx(0.25, abs=1 / math.sqrt(80_000))
    assert abs(float(torch.corrcoef(torch.stack([mean["w"], total["w"]]))[0, 1])) < 4 / math.sqrt(40_000)


def test_without_clipping_and_noise_it_is_the_method_to_the_bit() -> None:
    for method in (UNIFORM, us.SCAFFOLD(local=LOCAL), us.FedDyn(local=LOCAL, weighting="uniform")):
        plain = simulator("fedavg", "perceptron", method=method)
        state = plain.start()
        sim, states = played(QUIET, 3, method)
        for t, got in enumerate(states[1:], 1):
            state, _ = plain.round(state, t)
            expected, params = plain.method.serve(state, None), sim.method.serve(got, None)
            assert all(torch.equal(expected[n], params[n]) for n in expected)


def test_a_deployed_servers_noise_follows_from_nothing_that_clients_know_and_is_never_the_same() -> None:
    sim = simulator("fedavg", "perceptron", method=wrap(UNIFORM, CentralDP()))
    sim.clients.remote = True
    one, again = sim.federation(1), sim.federation(1)
    assert one.key == again.key
    assert len({one.private, again.private, one.key}) == 3


# ---------------------------------------------------------------- the accountant
def test_epsilon_is_that_of_dp_accounting_for_the_event_made_by_hand() -> None:
    """z = 4, ten of a thousand clients, 50 rounds: 50 sampled Gaussian mechanisms of 4 / 2 with one client replaced."""
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.SampledWithoutReplacementDpEvent(1000, 10, dp_accounting.GaussianDpEvent(2.0)), 50
    )
    accountant = rdp.RdpAccountant(privacy.ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    by_hand = accountant.compose(event).get_epsilon(1e-5)
    assert privacy.cohort_epsilon(4.0, 1000, 10, 50, 1e-5) == pytest.approx(by_hand, rel=1e-12)
    everyone = dp_accounting.get_epsilon_gaussian(2.0 / math.sqrt(50), 1e-5)
    assert privacy.cohort_epsilon(4.0, 10, 10, 50, 1e-5) == pytest.approx(everyone, rel=1e-12)
    assert by_hand < everyone


def test_trainings_of_the_same_clients_add_up() -> None:
    """Six Gaussian mechanisms of multiplier 4 / 2, three times each, are one of 2 / sqrt(18)."""
    cells = [privacy.Training("one client's data", seed, 2.0, (6, 6), 3, 1e-5) for seed in (0, 1, 2) for _ in range(2)]
    by_hand = dp_accounting.get_epsilon_gaussian(2.0 / math.sqrt(18), 1e-5)
    assert privacy.together_epsilon(cells, 1e-5) == pytest.approx(by_hand, rel=1e-9)
    (text,) = privacy.together(cells)
    assert text.startswith("all 6 trainings with noise on their sums together: epsilon 10.75 at")
    assert privacy.together([*cells[:1], cells[2]._replace(multiplier=0.0)]) == ()
    own = cells[0]._replace(sample=1.0)
    assert privacy.together([cells[0], own, own._replace(covers="one example of a client")]) == ()


def test_cohorts_are_drawn_once_for_all_methods_of_a_seed_and_anew_for_another() -> None:
    """Two methods share a round's cohort, so their sums are one of multiplier z / sqrt(2) over one draw."""
    one = privacy.Training("one client's data", 0, 2.0, (1000, 10), 50, 1e-6)
    both, again = [one, one], [one, one._replace(seed=1)]
    shared = privacy.cohort_epsilon(4.0 / math.sqrt(2), 1000, 10, 50, 1e-6)
    assert privacy.together_epsilon(both, 1e-6) == pytest.approx(shared, rel=1e-9)
    anew = privacy.cohort_epsilon(4.0, 1000, 10, 100, 1e-6)
    assert privacy.together_epsilon(again, 1e-6) == pytest.approx(anew, rel=1e-9)
    assert anew < shared
    # One that ends sooner is together with the other in its own rounds alone, over the larger of both cohorts.
    short = privacy.together_epsilon([one, one._replace(releases=20, sample=(1000, 5))], 1e-6)
    assert short == pytest.approx(by_hand((4.0 / math.sqrt(2), 10, 20), (4.0, 10, 30)), rel=1e-9)
    assert privacy.together_epsilon([one], 1e-6) < short < shared
    # One with all clients in every round, under another seed, is a Gaussian mechanism of 40 / 2 in each of its ten.
    everybody = one._replace(seed=1, multiplier=20.0, sample=(1000, 1000), releases=10)
    assert privacy.together_epsilon([one, everybody], 1e-6) == pytest.approx(
        by_hand((4.0, 10, 50), (40.0, 1000, 10)), rel=1e-9
    )


def by_hand(*parts: tuple[float, int, int]) -> float:
    """The epsilon of noised sums at delta 1e-6 by dp-accounting: z, the cohort out of 1,000 clients, and how many."""
    accountant = rdp.RdpAccountant(privacy.ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    for z, cohort, rounds in parts:
        event: Any = dp_accounting.GaussianDpEvent(z / 2)
        if cohort < 1000:
            event = dp_accounting.SampledWithoutReplacementDpEvent(1000, cohort, event)
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, rounds))
    return float(accountant.get_epsilon(1e-6))


@pytest.mark.parametrize("by", [CentralDP(delta=0.2), LocalDP(delta=0.2, noise_multiplier=5.0)])
def test_a_delta_that_gives_a_client_away_is_refused(by: Any) -> None:
    """Of six clients one in five is allowed to be seen as a whole."""
    with pytest.raises(ConfigError, match=r"delta must be below one over the number of clients, 1 / 6 = .*, got 0\.2"):
        simulator("fedavg", "perceptron", method=wrap(UNIFORM, by)).start()
    simulator("fedavg", "perceptron", method=wrap(UNIFORM, dataclasses.replace(by, delta=0.1))).start()


def test_every_round_reports_what_has_been_spent() -> None:
    sim, states = played(CentralDP(clip=0.5, noise_multiplier=3.0, delta=1e-3), clients_per_round=2)
    n = len(sim.federation(1).clients)
    for t, state in enumerate(states[1:], 1):
        spent = whole(sim.method.info(state), PrivacyBudget)
        assert spent.privacy.epsilon == pytest.approx(privacy.cohort_epsilon(3.0, n, 2, t, 1e-3), abs=1e-6)
        assert (spent.releases, spent.clip, spent.noise) == (t, 0.5, 1.5)
        assert "does not know whom a round asked" in spent.privacy.covers


@dataclass(frozen=True)
class Fewer(FedAvg):
    """FedAvg of four clients in round 1, of two later."""

    def round(self, state: Any, fed: Federation) -> Any:
        return (yield from self.meet(fed.sample(4 if fed.round == 1 else 2), state, fed))


def test_every_round_counts_as_one_of_the_largest_cohort() -> None:
    """Four of six clients, then two of six: epsilon is that of two rounds of four."""
    sim, states = played(CentralDP(noise_multiplier=3.0), 2, Fewer(local=LOCAL, weighting="uniform"))
    spent = whole(sim.method.info(states[2]), PrivacyBudget)
    assert spent.privacy.epsilon == pytest.approx(privacy.cohort_epsilon(3.0, 6, 4, 2, 1e-5), abs=1e-6)
    assert "4 of 6 clients" in spent.privacy.clients


def test_no_round_begins_that_would_exceed_the_budget() -> None:
    n = len(simulator("fedavg", "perceptron", method=UNIFORM).federation(1).clients)
    two = privacy.cohort_epsilon(8.0, n, n, 2, 1e-5)
    sim, states = played(CentralDP(clip=0.5, noise_multiplier=8.0, max_epsilon=two), 4)
    assert [s.releases for s in states] == [0, 1, 2, 2, 2]
    assert sim.method.serve(states[2], None) is sim.method.serve(states[4], None)
    spent = whole(sim.method.info(states[4]), PrivacyBudget)
    assert spent.privacy.epsilon <= two
    assert "no further round" in spent.warnings[0]
    assert not whole(sim.method.info(states[2]), PrivacyBudget).warnings


def test_an_adaptive_norm_finds_the_quantile_and_its_noise_is_paid_for() -> None:
    """Andrew et al., theorem 1: noise z_delta on the sum and sigma_b on counts of 1/2 are one mechanism of z."""
    by = CentralDP(noise_multiplier=1.0, adaptive=AdaptiveClip(noise=3.0))
    z = by.sum_noise(10)
    assert 1.0 / math.sqrt(z**-2 + (2 * 3.0) ** -2) == pytest.approx(1.0)
    assert z > 1.0
    _, states = played(CentralDP(clip=1e-3, noise_multiplier=0.0, adaptive=AdaptiveClip(lr=1.0)), 2)
    # Nobody is within the first norm: b = 0, and C grows by exp(eta gamma) = e^.5.
    assert states[1].clip == pytest.approx(1e-3 * math.exp(0.5))
    _, states = played(CentralDP(clip=1e6, noise_multiplier=0.0, adaptive=AdaptiveClip(0.9, lr=1.0)), 1)
    # Everybody is: b = 1, and C shrinks by exp(-eta (1 - gamma)) = e^-.1.
    assert states[1].clip == pytest.approx(1e6 * math.exp(-0.1))
    with pytest.raises(ConfigError, match=r"adaptive\.noise must be > noise_multiplier / 2 = 1, got 1"):
        CentralDP(noise_multiplier=2.0, adaptive=AdaptiveClip(noise=1.0))


def test_the_norm_follows_the_noised_count() -> None:
    """Eq. 3 with nobody within C: ln(C' / C) = -eta (b - gamma), b = sigma_b N / M, of one draw N for one key."""

    def share(noise: float) -> float:
        by = CentralDP(clip=1e-3, noise_multiplier=1e-3, adaptive=AdaptiveClip(noise=noise, lr=1.0))
        return by.adaptive.quantile - math.log(played(by, 1)[1][1].clip / 1e-3) if by.adaptive else 0.0

    assert share(2.0) != pytest.approx(0.0, abs=1e-3)
    assert share(4.0) == pytest.approx(2 * share(2.0))


# ---------------------------------------------------------------- composition
@dataclass(frozen=True)
class Claimed:
    """A model, and a weight that is no number of examples."""

    params: Model
    weight: float


@dataclass(frozen=True)
class Asks(FedAvg):
    """A method that asks for something else than FedAvg does."""

    what: Callable[[Any, Any, Federation], Any] = lambda method, model, fed: iter(())

    def round(self, state: Any, fed: Federation) -> Any:
        yield from self.what(self, ModelMessage(state.params), fed)
        return state

    @step
    def claim(self, me: Me, msg: ModelMessage, memory: None) -> tuple[Claimed, None]:
        return Claimed(msg.params, 1.0), None


def asked(reduction: Any = MeanOf("params"), step: str = "train", cohort: Any = lambda fed: fed.sample()) -> Any:
    """The request for a reduction of replies to a step, from a cohort that is all sent one model."""

    def request(method: Any, message: Any, fed: Federation) -> Any:
        return ask(getattr(method, step), dict.fromkeys(cohort(fed), message), reduce=reduction)

    return request


def copied(method: Any, message: ModelMessage, fed: Federation) -> Any:
    """FedAvg's request with a model for each client that only looks like the others'."""
    copies = {c: ModelMessage({n: t.clone() for n, t in message.params.items()}) for c in fed.sample()}
    return ask(method.train, copies, reduce=MeanOf("params"))


UNCOVERED = [
    (lambda method, message, fed: collect([]), "collects values that clients hold"),
    (lambda method, message, fed: ask(method.train, dict.fromkeys(fed.sample(), message)), "reads every single reply"),
    (asked(ByClient("n")), "takes ByClient of the replies to step 'train', which is not a sum"),
    (asked(MeanOf("params", by=lambda c, r: c % 2)), "makes a mean for each group of clients"),
    (asked(MeanOf("params", lambda c, r: 2.0)), "all must have equal weight"),
    (asked(MeanOf("params", "weight"), "claim"), "all must have equal weight"),
    (asked(cohort=lambda fed: fed.clients[:3]), "asks clients that were not drawn uniformly for step 'train'"),
    (asked(cohort=lambda fed: fed.sample(3, [5, 1, 1, 1, 1, 1])), "that were not drawn uniformly"),
    (copied, "sends different models in step 'train'"),
]


@pytest.mark.parametrize(("what", "says"), UNCOVERED)
def test_what_a_noised_sum_does_not_cover_is_refused_before_round_1(what: Any, says: str) -> None:
    sim = simulator("fedavg", "perceptron", method=wrap(Asks(LOCAL, what=what), CentralDP()), clients_per_round=3)
    with pytest.raises(ConfigError, match=f"CentralDP covers one sum over a cohort in each round, and Asks .*{says}"):
        sim.start()


def test_a_second_sum_in_a_round_is_refused() -> None:
    def twice(method: Any, message: Any, fed: Federation) -> Any:
        for _ in range(2):
            yield from asked()(method, message, fed)

    sim = simulator("fedavg", "perceptron", method=wrap(Asks(LOCAL, what=twice), CentralDP()))
    with pytest.raises(ConfigError, match="covers one sum in each round, and Asks asks for a second one"):
        sim.round(sim.start(), 1)


def test_statistics_of_batches_get_no_noise() -> None:
    for method, by in ((FedAvg(local=LOCAL, personal=("norm",)), CentralDP()), (UNIFORM, QUIET)):
        simulator("fedavg", "normalised", method=wrap(method, by)).start()
    with pytest.raises(ConfigError, match=r"averages statistics of batches \(.*\), which noise may make negative"):
        simulator("fedavg", "normalised", method=wrap(UNIFORM, CentralDP())).start()


@pytest.mark.parametrize("name", TABLE)
def test_every_method_is_accounted_for_or_refused_before_any_work(name: str) -> None:
    """Accounted for: a plan gets one noised sum in a round, and of each reply nothing."""
    sim = started(name)
    if isinstance(sim, ConfigError):
        assert "CentralDP" in str(sim)
        return
    state, exchanges, asked = sim.start(), _Round(sim, 1, Trace(), {}), []

    def answer(want: Any) -> Any:
        asked.append(want)
        assert [type(r) for r in want.reduce] == [NoisedSum]
        got = exchanges.answer(want)
        assert all(nothing_of(r) for r in got.replies.values())
        return got

    after = drive(sim.method.round(state, sim.federation(1)), answer)
    assert len(asked) == after.releases == 1


def started(name: str) -> Any:
    """A simulator of the method with noise, started; or its refusal."""
    method = resolve(name)(**(VARIANTS[name][1] if "lora" in name else {}))
    try:
        sim = simulator("fedavg", "perceptron", method=wrap(method, CentralDP()), clients_per_round=3)
        sim.start()
    except ConfigError as refused:
        return refused
    return sim


def nothing_of(left: Any) -> bool:
    """True if all that is left of a reply is None."""
    return left is None or all(nothing_of(value) for value in vars(left).values())
