"""Kinds of task beside classification: losses and metrics by hand, and each in a run."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import unskew as us
from unskew.data import own
from unskew.errors import ConfigError, DataWarning
from unskew.keys import Key
from unskew.protocol import SgdConfig
from unskew.run.setup import class_weights
from unskew.tasks import kind_of, odds, positions, regression, survival
from unskew.tasks.targets import NUMBER

Array = npt.NDArray[Any]
LN2 = math.log(2)


# ---------------------------------------------------------------- losses and metrics by hand
def test_cox_by_hand() -> None:
    """Times 1, 2, 3, the second censored; log hazards 0, ln 2, 0, so hazards 1, 2, 1.

    The first fails with all at risk: ln(1 + 2 + 1) - 0 = ln 4.  The censored one says nothing.  The third fails alone:
    ln 1 - 0 = 0.
    """
    outputs = torch.tensor([[0.0], [LN2], [0.0]])
    y = torch.tensor([[1.0, 1], [2, 0], [3, 1]])
    torch.testing.assert_close(survival.cox(outputs, y), torch.tensor([math.log(4), 0.0, 0.0]))


def test_tied_events_are_all_at_risk_of_each_other_after_breslow() -> None:
    """Two fail at time 1, hazards 1 and 2, and one lives on with 1: ln 4 - 0 and ln 4 - ln 2."""
    outputs = torch.tensor([[0.0], [LN2], [0.0]])
    y = torch.tensor([[1.0, 1], [1, 1], [3, 0]])
    torch.testing.assert_close(survival.cox(outputs, y), torch.tensor([math.log(4), LN2, 0.0]))


def test_concordance_by_hand() -> None:
    """Times 1 (event), 2 (censored), 2 (event), 3 (event); risks 2, 0, 2, 1.

    The first is comparable with all: it has a higher risk than the second and fourth, equal with the third: 2.5 of 3.
    The event at 2 is comparable with the one censored at 2, who lived longer, and the fourth: 2 of 2.  4.5 of 5.
    """
    y = np.array([[1, 1], [2, 0], [2, 1], [3, 1]], np.float32)
    assert survival.concordance(np.array([[2.0], [0], [2], [1]]), y) == 4.5 / 5
    assert math.isnan(survival.concordance(np.zeros((2, 1)), np.array([[1, 0], [2, 0]], np.float32)))


@given(st.integers(0, 1000))
def test_concordance_is_that_of_lifelines(seed: int) -> None:
    lifelines = pytest.importorskip("lifelines.utils")
    rng = np.random.default_rng(seed)
    time, event, risk = rng.integers(0, 8, 30), rng.integers(0, 2, 30), rng.integers(0, 5, 30)
    event[time.argmin()] = 1
    y = np.stack([time, event], 1).astype(np.float32)
    expected = lifelines.concordance_index(time, -risk, event)
    assert survival.concordance(risk[:, None].astype(float), y) == pytest.approx(expected)


def test_the_values_of_a_concordance_index_s_rows_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events at 1, 2, 3 with risks 3, 1, 2: two of three pairs agree, C = 2/3; every row is in two pairs, p = 2.

    Of these 2, 1 and 1 agree: psi = 2 (a - 2/3 * 2) / 2 = (2/3, -1/3, -1/3), times the root of 3 * 2 / 1.  Variance
    6 * (6/27) / 3 = 4/9: as the jackknife's, whose indices without a row are 0, 1 and 1: 2/3 (4/9 + 1/9 + 1/9).
    """
    monkeypatch.setattr(survival, "FEWEST", 3)
    values = survival.concordance_by_row(np.array([[3.0], [1], [2]]), np.array([[1, 1], [2, 1], [3, 1]], np.float32))
    assert values is not None
    np.testing.assert_allclose(values, 2 / 3 + np.sqrt(6) * np.array([2, -1, -1]) / 3)
    assert values.var() / 3 == pytest.approx(4 / 9)


def test_binary_metrics_by_hand() -> None:
    """Scores -2, 0.5, 1 | -1, 2 of classes 0, 0, 0 | 1, 1.

    Of six pairs 1 stands above 0 in: -1 over -2, 2 over all three: 4/6.  Ordered from the top 1, 0, 0, 1, 0: precision
    1/1 and 2/4 at the ones, mean 3/4.  One of three zeros and one of two ones are found: balanced 5/12.  With no false
    alarm among three zeros (specificity 1) the threshold is above 1 and finds one of two.
    """
    outputs, y = np.array([[-2.0], [0.5], [1], [-1], [2]]), np.array([0, 0, 0, 1, 1])
    assert odds.auroc(outputs, y) == pytest.approx(4 / 6)
    assert odds.average_precision(outputs, y) == pytest.approx(3 / 4)
    measures = {m.name: m for m in odds.BINARY.measures}
    assert measures["balanced_accuracy"].whole is not None
    assert measures["balanced_accuracy"].whole(outputs, y) == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert odds.sensitivity_at(outputs, y, 0.9) == 0.5
    assert odds.sensitivity_at(outputs, y, 0.3) == 1.0  # at a specificity of 1/3
    brier = odds.squared_error(torch.tensor([[0.0], [0.0]]), torch.tensor([0, 1]))
    assert brier.tolist() == [0.25, 0.25]
    assert odds.cross_entropy(torch.zeros(1, 1), torch.tensor([1])).item() == pytest.approx(LN2)


def test_a_metric_of_one_class_is_not_defined() -> None:
    ones = np.ones(3, np.int64)
    scores = np.zeros((3, 1))
    assert math.isnan(odds.auroc(scores, ones))
    assert math.isnan(odds.average_precision(scores, ones - 1))
    assert math.isnan(odds.average_precision(scores, ones))
    assert math.isnan(odds.sensitivity_at(scores, ones, 0.9))
    assert math.isnan(odds.recall(scores, ones, 0))
    assert math.isnan(regression.r2(scores, np.ones(3)))
    assert math.isnan(odds.macro_auroc(scores, np.ones((3, 1))))
    assert math.isnan(odds.mean_average_precision(scores, np.zeros((3, 1))))
    assert math.isnan(odds.mean_average_precision(scores, np.ones((3, 1))))


def test_regression_losses_by_hand() -> None:
    """Errors 1 and -2.  Poisson with log rates 0 and ln 2 of counts 1 and 3: 1 - 0, and 2 - 3 ln 2."""
    outputs, y = torch.tensor([[1.0], [0.0]]), torch.tensor([0.0, 2.0])
    assert regression.squared(outputs, y).tolist() == [1, 4]
    assert regression.absolute(outputs, y).tolist() == [1, 2]
    assert regression.huber(outputs, y).tolist() == [0.5, 1.5]
    poisson = regression.poisson(torch.tensor([[0.0], [LN2]]), torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(poisson, torch.tensor([1.0, 2 - 3 * LN2]))
    assert regression.r2(np.array([[1.0], [2], [4]]), np.array([1.0, 2, 3])) == 0.5  # 1 - 1 / 2


def test_next_token_takes_the_last_positions() -> None:
    """Three positions, targets for two: the first row of logits does not count; of uniform logits the loss is ln 2."""
    outputs = torch.tensor([[[9.0, 0], [0, 0], [0, 0]]])
    y = torch.tensor([[1, 0]])
    assert positions.cross_entropy(outputs, y).item() == pytest.approx(LN2)
    assert positions.accuracy(torch.tensor([[[9.0, 0], [0, 1], [0, 1]]]), y).item() == 0.5


def test_multi_label_metrics_by_hand() -> None:
    """Label 0 is ranked well (1), label 1 badly: one positive in the last of two places, 1/2.  Label 2 never occurs.

    At a logit of 0: found 1 of 2, 1 false alarm: precision and recall 1/2.
    """
    outputs, y = np.array([[1.0, 1, -1], [-1, -1, -1]]), np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    assert odds.mean_average_precision(outputs, y) == 0.75
    assert odds.macro_auroc(outputs, y) == 0.5
    assert odds.micro_f1(outputs, y) == 0.5
    assert odds.micro_f1(outputs - 9, y) == 0.0  # none is predicted
    assert all(np.isnan(measure.whole(outputs, 0 * y)) for measure in odds.MULTI_LABEL.measures if measure.whole)
    loss = odds.of_each_label(torch.zeros(1, 3), torch.tensor([[1.0, 0, 1]]))
    assert loss.item() == pytest.approx(LN2)


def test_ordinal_by_hand() -> None:
    """Four grades, three outputs.  Of the second example the last step is likelier than the one before: grade 1 counts.

    sigmoid(log 3) = 3/4, sigmoid(-log 3) = 1/4.  P(y > 0, 1, 2) = 3/4, 1/4, 1/4, the least so far: 1/4, 1/2, 0, 1/4.
    Loss of y = 2 there: 1[y > k] = 1, 1, 0: -(log 3/4 + log 1/4 + log 1/4) / 3.
    """
    log3 = math.log(3)
    outputs = torch.tensor([[log3, log3, log3], [log3, -log3, log3], [-log3, log3, log3]])
    assert odds.predicted(outputs).tolist() == [3, 1, 0]
    assert odds.probabilities(outputs)[1].tolist() == pytest.approx([0.25, 0.5, 0.0, 0.25])
    y = torch.tensor([3, 2, 2])
    assert odds.steps_off(outputs, y).tolist() == [0, 1, 2]
    assert odds.correct(outputs, y).tolist() == [True, False, False]
    assert float(odds.cross_entropy(outputs, y)[1]) == pytest.approx((2 * math.log(4) + math.log(4 / 3)) / 3)


def test_quadratic_kappa_by_hand() -> None:
    """Truth 0, 1, 2, 2, predictions 0, 1, 1, 2: squared errors sum to 1.

    Were they independent, of 4 truths with 4 predictions each: 0: 0+1+1+4 = 6, 1: 1+0+0+1 = 2, 2 twice: 4+1+1+0 = 6
    each; 20 / 4 = 5.  1 - 1/5 = .8.
    """
    outputs = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, -1.0], [1.0, 1.0]])
    assert odds.quadratic_kappa(outputs, np.array([0, 1, 2, 2])) == pytest.approx(0.8)
    assert math.isnan(odds.quadratic_kappa(outputs[1:], np.array([1, 1, 1])))


# ---------------------------------------------------------------- in a run
RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)).astype(np.float32)
RISK = X @ np.array([1.0, -1.0, 0.5, 0.0])
TOKENS = RNG.integers(0, 5, (120, 6))
DATA: dict[str, tuple[Array, Array]] = {
    "binary": (X, np.where(RISK > 0.5, "ill", "well")),
    "regression": (X, RISK),
    "survival": (X, np.stack([RNG.exponential(np.exp(-RISK)), RNG.random(120) < 0.6], 1)),
    "next_token": (TOKENS[:, :-1], TOKENS[:, 1:]),
    "multi_label": (X, np.stack([RISK, -RISK, X[:, 0]], 1) > 0),
    "ordinal": (X, np.digitize(RISK, [-1.0, 0.0, 1.5])),
}
ASKED = {
    "binary": ["average_precision", "brier", "sensitivity_at_80"],
    "regression": ["r2", "mae", "rmse"],
    "survival": [],
    "next_token": ["accuracy"],
    "multi_label": ["macro_auroc", "micro_f1"],
    "ordinal": ["quadratic_kappa", "accuracy"],
}
LOCAL = SgdConfig(lr=0.1, batch_size=7)
THREE = us.IID(num_clients=3)


def run(kind: str | us.TaskConfig, executor: str = "sequential", data: Any = None, **options: Any) -> us.History:
    name = kind if isinstance(kind, str) else kind.kind
    return us.simulate(
        us.FedAvg(local=LOCAL),
        **{
            "data": DATA[name] if data is None else data,
            "task": kind,
            "split": THREE,
            "rounds": 2,
            "progress": False,
            "runtime": us.Runtime(executor=executor, workers=2 if executor == "workers" else None),
            **options,
        },
    )


def last(history: us.History) -> dict[str, float]:
    rows = [r for r in history.rows if r["round"] == 2 and "client" not in r]
    return {r["name"]: r["value"] for r in rows if r["name"] != "seconds"}


@pytest.mark.parametrize("kind", DATA)
def test_every_executor_gives_a_kind_the_same_metrics(kind: str) -> None:
    """Batches of 7 leave a short one, which the stacked executor may fill up, but not where risk sets are batches."""
    asked = ["global", "personal", *ASKED[kind]]
    plain = last(run(kind, evaluate=asked))
    headline = kind_of(kind).headline
    assert {headline.shared, headline.own, *(f"global.{name}" for name in ASKED[kind])} <= set(plain)
    for executor in ("stacked", "workers") if kind in ("survival", "next_token") else ("stacked",):
        assert last(run(kind, executor, evaluate=asked)) == pytest.approx(plain, rel=2e-5, abs=2e-6)


@pytest.mark.parametrize(
    ("kind", "is_one"),
    [
        ("binary", lambda p: p in ("ill", "well")),
        ("regression", lambda p: isinstance(p, float)),
        ("survival", lambda p: isinstance(p, float)),
        ("next_token", lambda p: type(p) is int and p in range(5)),
        ("multi_label", lambda p: isinstance(p, list) and set(p) <= {"0", "1", "2"}),
        ("ordinal", lambda p: type(p) is int and p in range(4)),
    ],
)
def test_a_trained_model_predicts_what_the_kind_says(kind: str, is_one: Callable[[Any], bool], tmp_path: Path) -> None:
    history = run(kind)
    model = history.model("fedavg")
    predicted = us.predict(model, DATA[kind][0][:5])
    assert len(predicted) == 5
    assert all(map(is_one, predicted))
    if kind in ("binary", "multi_label"):
        for answer, row in zip(predicted, us.predict(model, DATA[kind][0][:5], probabilities=True), strict=True):
            likely = [name for name, p in row.items() if p > 0.5]
            assert likely == ([answer] if kind == "binary" else answer)
            assert kind != "binary" or sum(row.values()) == pytest.approx(1)
    elif kind == "ordinal":
        for row in us.predict(model, DATA[kind][0][:5], probabilities=True):
            assert list(row) == [0, 1, 2, 3]
            assert min(row.values()) >= 0
            assert sum(row.values()) == pytest.approx(1)
    else:
        with pytest.raises(ConfigError, match=f"learned {kind} with the loss .*no probabilities of classes"):
            us.predict(model, DATA[kind][0][:5], probabilities=True)
    us.save_model(model, tmp_path / "model.safetensors")
    assert us.predict(us.load_model(tmp_path / "model.safetensors"), DATA[kind][0][:5]) == predicted


def spread(outputs: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """A metric of somebody's own, which must see what the built-in ones see."""
    return float(np.abs(outputs[:, 0] - y).max())


@pytest.mark.usefixtures("unreported")
@pytest.mark.parametrize("loss", ["squared", "absolute", "huber"])
def test_a_scaled_target_is_learned_as_the_standardised_one_and_measured_in_its_own_unit(
    loss: str, tmp_path: Path
) -> None:
    """By the chain rule (o - (y - m) / s)^2 has the gradient of a target that was standardised beforehand."""
    mean, sd = 128.0, 16.0  # powers of two: both ways round alike
    z = (8 * RISK).round() / 8
    as_is = us.TaskConfig(kind="regression", loss=loss, target_scale=False)
    plain = run(as_is, data=(X, z), evaluate=["global", "mae", spread])
    task = us.TaskConfig(kind="regression", loss=loss, target_scale=(mean, sd))
    scaled = run(task, data=(X, mean + sd * z), evaluate=["global", "mae", spread], out=tmp_path / "r")
    for ours, theirs in zip(plain.model("fedavg").parameters(), scaled.model("fedavg").parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    standard, natural = last(plain), last(scaled)
    assert natural["global.loss"] == pytest.approx(standard["global.loss"], rel=1e-4)
    assert natural["global.rmse"] == pytest.approx(sd * standard["global.rmse"], rel=1e-4)
    for name in ("global.mae", "global.spread"):
        assert natural[name] == pytest.approx(sd * standard[name], rel=1e-4)
    expected = mean + sd * np.array(us.predict(plain.model("fedavg"), X[:5]))
    np.testing.assert_allclose(us.predict(us.load_model(tmp_path / "r", "fedavg"), X[:5]), expected, rtol=1e-5)


PADDED = np.where(np.arange(5) < np.arange(1, 121)[:, None] % 5 + 1, TOKENS[:, 1:], -100)
"""Targets of texts of one to five tokens."""


def test_what_fills_up_a_text_counts_nowhere() -> None:
    """By hand: the same outputs cut off where the text ends.  Where all counts, it is the plain mean, bit for bit."""
    y, outputs = torch.from_numpy(PADDED), torch.from_numpy(RNG.normal(size=(120, 7, 5)).astype(np.float32))
    for of in (positions.cross_entropy, positions.accuracy):
        lengths = (y >= 0).sum(1).tolist()
        alone = [of(outputs[i : i + 1, 2 : 2 + n], y[i : i + 1, :n]) for i, n in enumerate(lengths)]
        torch.testing.assert_close(of(outputs, y), torch.cat(alone))
        assert float(of(outputs, y).min()) >= 0
    assert float(positions.accuracy(F.one_hot(y.clamp(0), 5).float(), y).max()) == 1.0
    whole = torch.from_numpy(TOKENS[:, 1:])
    plain = F.cross_entropy(outputs[:, 2:].flatten(0, 1), whole.flatten(), reduction="none").view(120, 5).mean(1)
    assert torch.equal(positions.cross_entropy(outputs, whole), plain)


# ---------------------------------------------------------------- class weights
def test_balanced_weights_of_a_client_are_those_of_its_own_labels() -> None:
    """3 of class 0 and 1 of class 1: 4 / (2 * 3) and 4 / (2 * 1), which add up to 4; a client of one class keeps 1."""
    y = np.array([0, 0, 0, 1, 1, 1])
    both, one = (X[:4], y[:4]), (X[4:6], y[4:])
    with pytest.warns(DataWarning, match="a, b have fewer than 5 training rows"):
        data = own.dataset({"a": both, "b": one}, test=(X[:2], y[:2]))
    fed = us.federate(data, us.Natural(), Key(0), test_fraction=0.0)
    weights = class_weights(us.TaskConfig(class_weights="balanced"), data, fed, None)
    assert weights is not None
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 2 / 3, 2 / 3, 2.0, 1.0, 1.0]))
    given = class_weights(us.TaskConfig(class_weights=(1.0, 9.0)), data, fed, None)
    assert given is not None
    assert given.tolist() == [1, 1, 1, 9, 9, 9]


# ---------------------------------------------------------------- from a file, and losses and metrics of one's own
def worst_error(outputs: Array, y: Array) -> float:
    return -float(np.abs(outputs[:, 0] - y).max())


def quartic(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs[:, 0] - y).abs() ** 1.5


@pytest.mark.usefixtures("undrawn")
def test_losses_and_metrics_of_ones_own_are_functions(tmp_path: Path) -> None:
    history = run("regression", loss=quartic, evaluate=["global", worst_error, "mae"], out=tmp_path / "run")
    dataset = own.dataset(DATA["regression"], targets=NUMBER)
    predicted = np.array(us.predict(history.model("fedavg"), dataset.x_test.numpy()))
    errors = np.abs(predicted - dataset.y_test.numpy())
    assert last(history)["global.worst_error"] == pytest.approx(-errors.max(), rel=1e-5)
    assert last(history)["global.loss"] == pytest.approx((errors**1.5).mean(), rel=1e-4)


def test_calibration_is_the_same_in_any_order_of_rows_with_equal_scores() -> None:
    """Scores 0, 0, 0, 1 with one, none, none and one positive: a third in the lower place, all in the upper."""
    scores, y = np.array([[0.0], [0.0], [0.0], [1.0]]), np.array([1, 0, 0, 1])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        curve = odds.ranked(scores[order], y[order])
        assert curve is not None
        assert curve.happened == pytest.approx((1 / 3, 1.0))
        assert curve.likely == pytest.approx((0.5, 1 / (1 + math.exp(-1))))
    distinct = odds.ranked(np.arange(20.0)[:, None], np.arange(20) % 2)
    assert distinct is not None
    assert distinct.happened == (0.5,) * 10


@pytest.mark.usefixtures("unreported")
def test_targets_are_scaled_by_the_rows_that_train_under_each_seed(tmp_path: Path) -> None:
    """Test rows count nowhere, and the models of a seed keep the numbers of its own training rows."""
    how = {"model": "logistic", "task": "regression", "split": us.IID(num_clients=2), "rounds": 1, "progress": False}
    given = us.simulate(us.FedAvg(), data=(X[:64], RISK[:64]), test=(X[64:], 1e6 + RISK[64:]), test_fraction=0.0, **how)
    scale = given.model("fedavg").unskew.task.target_scale
    assert scale == pytest.approx((RISK[:64].mean(), RISK[:64].std()), rel=1e-5)
    us.simulate(us.FedAvg(), data=(X, RISK), seeds=[0, 1], out=tmp_path / "r", **how)
    one, two = (us.load_model(tmp_path / "r", "fedavg", seed=seed).unskew.task.target_scale for seed in (0, 1))
    assert one != two
    assert one == pytest.approx((RISK.mean(), RISK.std()), rel=0.5)
