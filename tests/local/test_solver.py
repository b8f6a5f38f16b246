"""`SgdConfig(optimizer="lbfgs")`: local training to the optimum, beside scikit-learn, least squares and Newton."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, PoissonRegressor

import unskew as us

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 3)).astype(np.float32)
SCORE = X @ np.array([1.0, -0.5, 0.2])
SOLVED = us.SgdConfig(optimizer="lbfgs", tolerance=1e-6)


def trained(
    y: np.ndarray, task: us.TaskConfig, method: object = us.FedAvg(local=SOLVED), **how: object
) -> torch.nn.Module:
    history = us.simulate(
        method, data=(X, y), test=(-X, y), task=task, model="logistic", split=us.IID(num_clients=1), rounds=1,
        test_fraction=0.0, evaluate=["global"], progress=False, **how,
    )  # fmt: skip
    return history.model(history.methods[0])


def coefficients(model: torch.nn.Module) -> np.ndarray:
    """Weights, then the bias, of a linear model."""
    weight, *bias = (p.detach().double().numpy().ravel() for p in model.parameters())
    return np.concatenate([weight, *bias])


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_logistic_regression_is_scikit_learns_optimum(executor: str) -> None:
    y = RNG.random(120) < 1 / (1 + np.exp(-SCORE))
    model = trained(y.astype(int), us.TaskConfig(), runtime=us.Runtime(executor=executor))
    weight, bias = (p.detach().double().numpy() for p in model.parameters())
    theirs = LogisticRegression(C=np.inf, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(weight[1] - weight[0], theirs.coef_[0], atol=1e-3)
    np.testing.assert_allclose(bias[1] - bias[0], theirs.intercept_[0], atol=1e-3)


def test_a_poisson_regression_is_scikit_learns_optimum_on_counts_over_their_mean() -> None:
    y = RNG.poisson(np.exp(4 + 0.5 * SCORE)).astype(np.float32)
    ours = coefficients(trained(y, us.TaskConfig(kind="regression", loss="poisson")))
    theirs = PoissonRegressor(alpha=0, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(ours, [*theirs.coef_, theirs.intercept_ - np.log(y.mean())], atol=1e-3)


def test_a_linear_model_is_least_squares() -> None:
    y = (SCORE + RNG.normal(size=120)).astype(np.float32)
    model = trained(655 + 1000 * y, us.TaskConfig(kind="regression"))
    ones = np.column_stack([X, np.ones(120)])
    expected = ones @ np.linalg.lstsq(ones, 655 + 1000 * y.astype(np.float64), rcond=None)[0]
    np.testing.assert_allclose(us.predict(model, X), expected, rtol=1e-4, atol=0.5)


def test_a_cox_model_is_the_optimum_of_newtons_steps() -> None:
    times, died = RNG.exponential(np.exp(-SCORE)), RNG.random(120) < 0.7
    model = trained(np.column_stack([times, died]).astype(np.float32), us.TaskConfig(kind="survival"))
    w, x = np.zeros(3), X.astype(np.float64)
    for _ in range(20):
        gradient, hessian = np.zeros(3), np.zeros((3, 3))
        for i in np.flatnonzero(died):
            at_risk = x[times >= times[i]]
            p = np.exp(at_risk @ w)
            p /= p.sum()
            mean = p @ at_risk
            gradient += mean - x[i]
            hessian += (at_risk * p[:, None]).T @ at_risk - np.outer(mean, mean)
        w -= np.linalg.solve(hessian, gradient)
    np.testing.assert_allclose(next(model.parameters()).detach().double().numpy()[0], w, atol=1e-3)


def test_fedprox_ends_where_the_gradient_and_the_pull_are_in_balance() -> None:
    """grad f(w) + mu (w - w0) = 0; of (o - y)^2 the gradient is 2 A'(Aw - y) / n."""
    y = (SCORE - SCORE.mean()).astype(np.float32)
    task, mu = us.TaskConfig(kind="regression", target_scale=False), 0.7
    start = coefficients(trained(y, task, us.FedProx(mu=1e6, local=SOLVED)))
    w = coefficients(trained(y, task, us.FedProx(mu=mu, local=SOLVED)))
    ones = np.column_stack([X, np.ones(120)]).astype(np.float64)
    pull = mu * (w - start)
    assert np.abs(pull).max() > 0.05
    np.testing.assert_allclose(2 / 120 * ones.T @ (ones @ w - y) + pull, 0.0, atol=1e-4)


@pytest.mark.parametrize(
    ("optimizer", "ignored"),
    [("lbfgs", "lr"), ("lbfgs", "batch_size"), ("adam", "momentum"), ("sgd", "eps"), ("sgd", "tolerance")],
)
def test_settings_that_an_optimiser_ignores_are_refused(optimizer: str, ignored: str) -> None:
    with pytest.raises(us.ConfigError, match=f"leave out {ignored}"):
        us.SgdConfig(optimizer=optimizer, **{ignored: 0.5})


@pytest.mark.parametrize("name", ["scaffold", "fednova", "feddc", "perfedavg", "qfedavg", "fedfa", "tthf"])
def test_methods_that_compute_with_steps_at_a_rate_refuse_a_solver(name: str) -> None:
    from unskew.algorithms import METHODS

    with pytest.raises(us.ConfigError, match="lbfgs"):
        METHODS.resolve(name)(local=SOLVED)
