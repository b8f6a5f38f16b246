"""DP-SGD inside clients: its step by hand, its limits, its randomness, and what it is accounted for."""

import dataclasses
import math
from typing import Any

import dp_accounting
import pytest
import torch
from dp_accounting import rdp
from recipe import APART, LOCAL, SIZES, simulator, world
from torch import Tensor, nn

import unskew as us
from unskew.algorithms import TABLE, resolve
from unskew.algorithms.fedavg import FedAvg, ModelMessage
from unskew.algorithms.feddistr import EmbeddingNoise, FedDistr
from unskew.algorithms.feddw import DW, LabelNoise
from unskew.errors import ConfigError, DivergedError
from unskew.info import ExampleBudget, whole
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.trainer import LocalTrainer
from unskew.protocol import Layout, Me, Sgd, SgdConfig, hook
from unskew.server import privacy
from unskew.tasks.task import make_task
from unskew.tree import Params
from unskew.wrappers.base import wrap
from unskew.wrappers.dp_sgd import DPSGD, batch, clipped, train

FEDAVG = FedAvg(local=LOCAL)
FULL = SgdConfig(0.5, batch_size=None, local_epochs=3)


def client(layout: Layout, n: int, secret: int = 1) -> Me:
    return Me(0, n, torch.tensor([n, 0]), 1, Key(0), layout, {}, Key(secret), Key(secret))


def linear(x: Tensor, y: Tensor) -> LocalTrainer:
    """A network of one layer without bias, two classes."""
    task = make_task(lambda: nn.Sequential(nn.Linear(x.shape[1], 2, bias=False)), 2)
    return LocalTrainer(task, DeviceData(x, y, (torch.arange(len(x)),), (torch.arange(0),)))


def trained(trainer: LocalTrainer, by: DPSGD, job: Sgd, secret: int = 1) -> Params:
    me = client(trainer.task.layout, len(trainer.device_data.y), secret)
    fitted = train(trainer.local(me, 0), by, me, job)
    assert fitted is not None
    return fitted.params


def test_each_examples_gradient_is_clipped_before_they_are_added() -> None:
    """One layer from zero: both probabilities .5, so the gradient is (p - onehot) x^T.

    x_1 = (3, 4), class 0: rows (-1.5, -2) and (1.5, 2), norm 5 / sqrt(2) = 3.536; C = sqrt(2) scales it by .4 to
    (-.6, -.8), (.6, .8).  x_2 = (.6, -.8), class 1: rows (.3, -.4), (-.3, .4), norm .707: as it is.
    Sum (-.3, -1.2), (.3, 1.2); over n = 2 and by lr = .5: the weights become (.075, .3), (-.075, -.3).
    """
    trainer = linear(torch.tensor([[3.0, 4.0], [0.6, -0.8]]), torch.tensor([0, 1]))
    job = Sgd({"0.weight": torch.zeros(2, 2)}, dataclasses.replace(FULL, local_epochs=1))
    by = DPSGD(clip=math.sqrt(2.0), noise_multiplier=0.0, share=1.0)
    torch.testing.assert_close(trained(trainer, by, job)["0.weight"], torch.tensor([[0.075, 0.3], [-0.075, -0.3]]))


class Slope:
    """The sum of all weights: its gradient is 1 everywhere."""

    def __call__(self, params: Params, aux: Any) -> Tensor:
        return params["0.weight"].sum()


def test_the_divisor_is_the_expected_batch_and_terms_are_not_divided() -> None:
    """From zero an example of class 0 with x = e_i has the gradient -.5 and .5 in column i alone.

    q = .5 of n = 8 and lr = .5: who is drawn moves its column by .5 * .5 / 4, however many are; a term with the
    gradient 1 moves all by -.5 (eq. 2).
    """
    trainer = linear(torch.eye(8), torch.zeros(8, dtype=torch.int64))
    job = Sgd({"0.weight": torch.zeros(2, 8)}, SgdConfig(0.5, local_steps=1), (Slope(),))
    sizes = set()
    for secret in range(1, 5):
        rows = batch(Key(secret) / "dp sgd" / "batch" / 0, 8, 0.5)
        drawn = torch.zeros(8)
        drawn[rows] = 1.0
        after = trained(trainer, DPSGD(noise_multiplier=0.0, share=0.5), job, secret)["0.weight"]
        torch.testing.assert_close(after, torch.stack([drawn, -drawn]) / 16 - 0.5)
        sizes.add(len(rows))
    assert len(sizes) > 1


def test_a_clipped_sum_never_moves_further_than_the_norm_by_one_example() -> None:
    g = {"w": torch.tensor([[30.0, 40.0], [0.3, 0.4], [math.inf, 0.0], [0.0, 0.0]])}
    torch.testing.assert_close(clipped(g, 1.0), torch.tensor([0.9, 1.2]))
    torch.testing.assert_close(clipped({"w": g["w"][:1]}, math.inf), torch.tensor([30.0, 40.0]))


@pytest.mark.parametrize("far", [1e25, 3e38])
def test_no_single_example_decides_whether_training_ends(far: float) -> None:
    """Its loss overflows, and its gradient is clipped, or not finite and zero: all that shows has noise.

    Without noise there is no guarantee, and the loss says at once that something is wrong.
    """
    x = torch.tensor([[1.0, 0.0], [-far, far]])
    trainer, by = linear(x, torch.tensor([0, 0])), DPSGD(clip=1.0, noise_multiplier=1.0, share=1.0)
    job = Sgd({"0.weight": torch.tensor([[1e15, 0.0], [0.0, 1e15]])}, SgdConfig(0.5, local_steps=2))
    assert bool(trained(trainer, by, job)["0.weight"].isfinite().all())
    with pytest.raises(DivergedError, match="a loss or parameter became NaN or infinite"):
        trained(trainer, dataclasses.replace(by, noise_multiplier=0.0), job)
    loud = dataclasses.replace(by, noise_multiplier=100.0)
    with pytest.raises(DivergedError, match="client 0: a parameter became NaN or infinite"):
        trained(trainer, loud, dataclasses.replace(job, config=SgdConfig(1e38, local_steps=2)))


@pytest.mark.parametrize("case", ["fedavg", "fedprox", "scaffold", "feddyn", "feddc", "fedper", "fedavg, momentum"])
def test_without_noise_and_clipping_full_batches_train_as_without_the_wrapper(case: str) -> None:
    plain = simulator(case, "perceptron").method
    plain = dataclasses.replace(plain, local=dataclasses.replace(plain.local, batch_size=None, local_epochs=3))
    plain = wrap(plain, us.KeepOptimizer()) if "momentum" in case else plain
    models = []
    for method in (plain, wrap(plain, DPSGD(clip=math.inf, noise_multiplier=0.0, share=1.0))):
        sim = simulator(case, "perceptron", method=method)
        state = sim.start()
        for t in (1, 2):
            state, _ = sim.round(state, t)
        models.append(sim.method.serve(state, 0))
    assert not torch.equal(models[0]["0.weight"], sim.population.initial["0.weight"])
    for name, t in models[0].items():
        torch.testing.assert_close(models[1][name], t, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("share", [1.0, 0.25])
def test_noise_has_its_standard_deviation_and_follows_from_the_clients_secret(share: float) -> None:
    """Zero inputs have zero gradients: all that moves 40,000 weights is lr z C / (q n) = .5 * 3 * .5 / (q * 2)."""
    trainer = linear(torch.zeros(2, 20_000), torch.tensor([0, 1]))
    job = Sgd({"0.weight": torch.zeros(2, 20_000)}, SgdConfig(0.5, local_steps=1))
    by, std = DPSGD(clip=0.5, noise_multiplier=3.0, share=share), 0.375 / share
    one, again, other = (trained(trainer, by, job, secret)["0.weight"].flatten() for secret in (1, 1, 2))
    assert torch.equal(one, again)
    assert float(one.std()) == pytest.approx(std, abs=4 * std / math.sqrt(80_000))
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 4 / math.sqrt(40_000)


def test_every_example_is_in_a_batch_by_itself_with_the_declared_probability() -> None:
    """40,000 examples, q = .3: 12,000 within four standard errors; neighbours are drawn independently."""
    rows = batch(Key(1), 40_000, 0.3)
    assert len(rows) == pytest.approx(12_000, abs=4 * math.sqrt(40_000 * 0.21))
    drawn = torch.zeros(40_000)
    drawn[rows] = 1.0
    assert abs(float(torch.corrcoef(torch.stack([drawn[:-1], drawn[1:]]))[0, 1])) < 4 / math.sqrt(40_000)
    assert torch.equal(batch(Key(1), 5, 1.0), torch.arange(5))
    assert not torch.equal(rows, batch(Key(2), 40_000, 0.3))


def test_epsilon_is_what_dp_accounting_says_of_poisson_samples() -> None:
    """q = .01, z = 1.1, 1,000 steps; the orders are dp-accounting's that lie among ours."""
    accountant = rdp.RdpAccountant(privacy.ORDERS, dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, 1000))
    by_theirs = accountant.get_epsilon(1e-5)
    assert privacy.composed_epsilon((((1.1, 0.01), 1000),), 1e-5) == pytest.approx(by_theirs, rel=1e-9)
    assert privacy.composed_epsilon((((1.1, 1.0), 10),), 1e-5) == privacy.epsilon(1.1, 10, 1e-5)
    assert privacy.composed_epsilon((((0.0, 0.1), 1),), 1e-5) == math.inf
    assert privacy.composed_epsilon((((0.0, 0.1), 0),), 1e-5) == 0.0


def test_steps_follow_from_epochs_and_share_and_not_from_a_clients_size() -> None:
    by = DPSGD(share=0.1)
    assert by.steps_in(SgdConfig(local_epochs=3)) == 30
    assert DPSGD(share=0.3).steps_in(SgdConfig()) == 4
    assert DPSGD(share=1 / 49).steps_in(SgdConfig()) == 49  # 1 / (1 / 49) is 49.00000000000001
    assert by.steps_in(SgdConfig(local_steps=7)) == 7


@pytest.mark.parametrize("around", [(), (us.ClipNorm(1e9),)], ids=["alone", "with another wrapper inside"])
def test_a_divisor_counts_the_steps_that_are_taken_not_those_of_mini_batches(around: tuple[Any, ...]) -> None:
    """Three epochs of all examples are three steps; with batches of two, FedDC by itself counts three times as many."""
    models = []
    for size in (None, 2):
        local = SgdConfig(0.5, batch_size=size, local_epochs=3)
        method = us.FedDC(alpha=0.1, divisor="code", local=local)
        if size is not None:
            method = wrap(method, *around, DPSGD(clip=math.inf, noise_multiplier=0.0, share=1.0))
        sim = simulator("feddc", "perceptron", method=method)
        state = sim.start()
        for t in (1, 2, 3):
            state, _ = sim.round(state, t)
        models.append(sim.method.serve(state, 0))
    torch.testing.assert_close(models[1], models[0], rtol=1e-4, atol=1e-5)


def test_what_each_client_has_spent_is_reported_and_those_without_budget_are_asked_no_more() -> None:
    """Two epochs at q = .5 are four steps a round; the budget is that of eight."""
    budget = privacy.composed_epsilon((((2.0, 0.5), 8),), 1e-5)
    method = wrap(FEDAVG, DPSGD(noise_multiplier=2.0, share=0.5, max_epsilon=budget))
    sim = simulator("fedavg", "perceptron", method=method, clients_per_round=4)
    state = sim.start()
    asked = dict.fromkeys(range(len(SIZES)), 0)
    while not state.stopped:
        state, _ = sim.round(state, sum(asked.values()) + 1)
        asked = {**asked, **state.asked}
        info = whole(sim.method.info(state), ExampleBudget)
        for c, k in state.asked.items():
            assert k <= 2
            assert info.spent[c] == pytest.approx(privacy.composed_epsilon((((2.0, 0.5), 4 * k),), 1e-5), abs=1e-6)
        assert info.privacy.epsilon == max(info.spent.values())
    assert info.warnings
    (cost,) = method.spending("train", ModelMessage({}))
    assert (cost.multiplier, cost.mechanisms, cost.most) == (2.0, 4, 8)
    assert method.has_dp_noise
    assert method.uses_private_randomness


def test_batchnorm_is_refused_even_where_it_stays_on_the_client() -> None:
    for method in (FEDAVG, FedAvg(local=LOCAL, personal=("norm",))):
        with pytest.raises(ConfigError, match="BatchNorm mixes examples; use a model without it"):
            simulator("fedavg", "normalised", method=wrap(method, DPSGD())).start()


ACCOUNTED = {
    "fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi", "feddyn", "feddc", "fedper", "fedbn",
    "scaffold",
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_every_method_is_accounted_for_or_refused_before_any_work(name: str) -> None:
    """Refused for what it sends, for a loop of its own, a second training, or terms that see batches."""
    if name in APART:
        with pytest.raises(ConfigError, match="DPSGD"):
            wrap(resolve(name)(), DPSGD())
        return
    sim = simulator(name, "perceptron")
    try:
        method = wrap(sim.method, DPSGD(share=0.5))
        wrapped = simulator(name, "perceptron", method=method)
        state = wrapped.start()
    except ConfigError as refused:
        message = str(refused)
        assert "DPSGD" in message
        assert name not in ACCOUNTED
        return
    state, _ = wrapped.round(state, 1)
    assert sum(state.asked.values()) >= 1


def test_noise_before_or_around_it_and_what_sends_more_are_refused() -> None:
    wrap(FEDAVG, us.ClipNorm(1.0), DPSGD(), us.TopK(0.1))
    for order in (
        (us.LocalDP(), DPSGD()),
        (DPSGD(), us.LocalDP()),
        (DPSGD(), us.CentralDP()),
        (us.CentralDP(), DPSGD()),
    ):
        with pytest.raises(ConfigError, match="one guarantee"):
            wrap(FEDAVG, *order)
    for order in ((us.DW(), DPSGD()), (DPSGD(), us.DW())):
        with pytest.raises(ConfigError, match="DPSGD"):
            wrap(FEDAVG, *order)


def test_a_client_that_trains_under_it_sees_neither_counts_of_classes_nor_losses() -> None:
    _, trainer = world("perceptron")
    sim = simulator("fedavg", "perceptron")
    seen: list[Any] = []

    by = DPSGD(share=1.0)
    method = wrap(FEDAVG, by)
    me = dataclasses.replace(client(trainer.task.layout, SIZES[0]), histogram=torch.tensor([5, 4, 0]))

    def begin(me: Me, msg: Any, memory: Any) -> Any:
        seen.append(me.histogram.tolist())
        fitted = yield Sgd(sim.population.initial, LOCAL)
        seen.append(fitted.loss)
        return None, None

    work = by.work(method.of, "train", begin, me, None, None)
    request = next(work)
    with pytest.raises(StopIteration):
        work.send(trainer.answer(me, 0, request))
    assert seen[0] == [0, 0, 0]
    assert math.isnan(seen[1])


# ---------------------------------------------------------------- under attack


EMBEDDINGS = FedDistr(m=1, dp=EmbeddingNoise(sigma=1.0, delta=0.025))


@pytest.mark.parametrize(
    "method",
    [
        us.wrap(us.FedAvg(), DPSGD(share=0.5, delta=0.025), us.ClipNorm(1.0)),
        us.FedDW(dp=LabelNoise(noise_multiplier=1.0, delta=0.025)),
        us.wrap(EMBEDDINGS, DW()),
    ],
    ids=["gradients", "soft labels", "embeddings, inside"],
)
def test_a_delta_that_gives_an_example_away_is_refused(method: Any) -> None:
    check = hook(method, "check_examples")
    check(39)
    with pytest.raises(ConfigError, match="delta must be below one over the number of a client's examples, 1 / 40"):
        check(40)
