"""What a model goes by and for whom it works: worked numbers, and runs that report them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unskew as us
from unskew.data.inputs import Column
from unskew.record.database import opened
from unskew.run.explain import THRESHOLDS, contrasts, effects, site_curve, values_of
from unskew.tasks.odds import cross_entropy
from unskew.tasks.regression import poisson, squared
from unskew.tasks.survival import cox

DOUBLE = torch.float64


def rows(n: int = 300, d: int = 2, seed: int = 0) -> tuple[np.ndarray[Any, Any], np.random.Generator]:
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(size=(n, d)), np.ones((n, 1))], 1), rng


def of(theta: Any, x: Any, y: Any, loss: Any, ratio: Any, patients: Any = None) -> Any:
    d = len(theta)
    return effects(
        torch.tensor(theta, dtype=DOUBLE),
        torch.tensor(x),
        torch.tensor(y),
        ["e"] * d,
        torch.eye(d, dtype=DOUBLE),
        loss,
        ratio,
        None if patients is None else torch.tensor(patients),
    )


# ---------------------------------------------------------------- effects
def test_logistic_and_poisson_errors_are_those_of_the_information() -> None:
    """I = X' W X with W = p (1 - p) and W = exp(eta), by hand; the maximum is Newton's."""
    x, rng = rows()
    for loss, ratio, mean, weight in (
        (cross_entropy, "odds", lambda eta: 1 / (1 + np.exp(-eta)), lambda m: m * (1 - m)),
        (poisson, "rate", np.exp, lambda m: m),
    ):
        m = mean(x @ [0.8, -0.5, 0.3])
        y = (rng.random(len(x)) < m).astype(float) if ratio == "odds" else rng.poisson(m).astype(float)
        theta = np.zeros(3)
        for _ in range(30):
            m = mean(x @ theta)
            information = x.T @ (weight(m)[:, None] * x)
            theta = theta + np.linalg.solve(information, x.T @ (y - m))
        report = of(theta, x, y, loss, ratio)
        np.testing.assert_allclose(report.errors, np.sqrt(np.diag(np.linalg.inv(information))), rtol=1e-9)
        assert report.step < 1e-6
        away = of(theta + np.eye(3)[1] * report.errors[1], x, y, loss, ratio)
        assert away.step == pytest.approx(1, abs=0.2)  # one standard error from the maximum


def test_least_squares_errors_are_s_times_the_root_of_the_inverse() -> None:
    x, rng = rows()
    y = x @ [1.0, 2.0, 3.0] + rng.normal(size=len(x))
    theta, residuals, *_ = np.linalg.lstsq(x, y, rcond=None)
    report = of(theta, x, y, squared, "")
    variance = residuals[0] / (len(x) - 3)
    np.testing.assert_allclose(report.errors, np.sqrt(variance * np.diag(np.linalg.inv(x.T @ x))), rtol=1e-9)
    more = of([*theta, 0.0], np.c_[x, 1 - x[:, 2]], y, squared, "")  # an input more, which says nothing new
    np.testing.assert_allclose(more.errors[:2], report.errors[:2], rtol=1e-9)


def test_a_patient_with_several_rows_is_one_patient() -> None:
    """Four copies of a row tell no more than one; as rows of their own they would halve the errors."""
    x, rng = rows(60)
    y = (rng.random(60) < 0.5).astype(float)
    theta, four = [0.2, -0.1, 0.3], np.repeat(np.arange(60), 4)
    single = of(theta, x, y, cross_entropy, "odds", np.arange(60))
    copies = of(theta, x[four], y[four], cross_entropy, "odds", four)
    np.testing.assert_allclose(copies.errors, single.errors)
    times = np.stack([np.arange(1.0, 61), y], 1)[four]
    assert of(theta[:2], x[four][:, :2], times, cox, "hazard", four).errors == (None, None)


def test_errors_over_patients_are_the_jackknife_s() -> None:
    """Least squares without each of 20 patients of one to six rows; of what one patient alone has nothing is known."""
    x, rng = rows(70)
    who = np.concatenate([np.arange(20), rng.integers(0, 10, 50)])
    y = x @ [1.0, 0.0, 2.0] + rng.normal(size=20)[who] + rng.normal(size=70)

    def fit(kept: Any) -> Any:
        return np.linalg.lstsq(x[kept], y[kept], rcond=None)[0]

    theta, without = fit(who >= 0), np.array([fit(who != p) for p in range(20)])
    report = of(theta, x, y[:, None], squared, "", who)
    np.testing.assert_allclose(report.errors, np.sqrt(19 / 20 * ((without - theta) ** 2).sum(0)), rtol=1e-6)
    x[:, 1] = who == 3
    errors = of(fit(who >= 0), x, y[:, None], squared, "", who).errors
    assert [error is None for error in errors] == [False, True, False]


def test_a_fit_without_any_error_has_no_effects() -> None:
    x = np.array([[1.0, 1.0], [2.0, 1.0], [4.0, 1.0]])  # whole numbers, whose sums are exact
    assert of([2.0, 3.0], x, x @ [2.0, 3.0], squared, "") is None


def test_cox_by_hand() -> None:
    """Three fail in turn, z = 1, 0, 1.  With w = e^beta and z binary the risk sets add m (1 - m), m their mean of z.

    At beta = 0 these means are 2/3, 1/2 and 1: I = 2/9 + 1/4 + 0.
    """
    y = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]])
    report = of([0.0], np.array([[1.0], [0.0], [1.0]]), y, cox, "hazard")
    assert report.errors[0] == pytest.approx((2 / 9 + 1 / 4) ** -0.5)
    # The slope of l is -sum (z - m) = -(1/3 - 1/2 + 0), so Newton's step is -1/6 I^-1, in errors |1/6| I^-1/2.
    assert report.step == pytest.approx(1 / 6 * (2 / 9 + 1 / 4) ** -0.5)


def test_an_effect_of_which_the_rows_say_nothing_has_no_error() -> None:
    x, rng = rows()
    x[:, 1] = 0.0
    report = of([0.1, 0.2, 0.0], x, (rng.random(len(x)) < 0.5).astype(float), cross_entropy, "odds")
    assert report.errors[1] is None
    assert None not in (report.errors[0], report.errors[2])


def test_contrasts_are_units_and_words_beside_the_first() -> None:
    columns = [
        Column("age", mean=(50.0,), sd=(10.0,), fill=(50.0,), gaps=True),
        Column("constant", mean=(1.0,), sd=(0.0,)),
        Column("smoker", "category", values=("current", "former", "never"), unlearnt=("current",)),
    ]
    names, matrix = contrasts(columns)
    assert names == ["age", "age missing", "smoker: never vs former"]
    # Inputs: age, age missing, constant, three words, bias.
    assert matrix.tolist() == [[0.1, 0, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, -1, 1, 0]]


# ---------------------------------------------------------------- sites and subgroups
def test_net_benefit_calibration_and_ranks_by_hand() -> None:
    """At t = 1/4 the two above it are one true and one false positive: (1 - 1 x 1/3) / 10."""
    p, y = np.array([0.6, 0.3, *[0.1] * 8]), np.array([1.0, 0.0, *[0.0] * 7, 1.0])
    curve = site_curve(3, p, y)
    assert curve.benefit[THRESHOLDS.index(0.25)] == pytest.approx((1 - 1 / 3) / 10)
    # Above .6 one of two ill is found and nobody else, above .3 one of eight well, too.
    assert list(zip(curve.false_alarms, curve.found, strict=True)) == [(0, 0), (0, 0.5), (0.125, 0.5), (1, 1)]
    assert (curve.likely, curve.happened, curve.share) == (pytest.approx((0.1, 0.45)), (0.125, 0.5), 0.2)


def test_values_of_a_column() -> None:
    words = np.array(["f", "m", None, "f"], object)
    assert [(v, c.tolist()) for v, c in values_of(words, np.arange(4))] == [
        ("f", [True, False, False, True]),
        ("m", [False, True, False, False]),
        ("missing", [False, False, True, False]),
    ]
    thirds = list(values_of(np.arange(9.0), np.array([0, 4, 8])))
    assert [c.tolist() for _, c in thirds] == [[True, False, False], [False, True, False], [False, False, True]]


# ---------------------------------------------------------------- runs
def clinic(n: int = 240) -> Any:
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    age, sex = rng.normal(60, 10, n), rng.choice(["f", "m"], n)
    sick = rng.random(n) < 1 / (1 + np.exp(-(0.1 * (age - 60) + (sex == "m"))))
    return pd.DataFrame(
        {
            "site": rng.choice(["Bern", "Chur"], n),
            "age": age,
            "sex": sex,
            "noise": rng.normal(size=n),
            "sick": sick.astype(int),
        }
    )


def run(tmp_path: Path, **options: Any) -> tuple[Any, dict[str, Any]]:
    given: dict[str, Any] = {
        "model": "logistic",
        "local": us.SgdConfig(optimizer="lbfgs"),
        "methods": {"FedAvg": us.FedAvg()}, "target": "sick", "task": "binary",
    } | options  # fmt: skip
    history = us.simulate(
        given.pop("methods"), data=clinic(), client="site", preprocess=True, by="sex", rounds=2, progress=False,
        out=tmp_path / "run", **given,
    )  # fmt: skip
    with opened(tmp_path / "run") as connection:
        found = {kind: json.loads(text) for kind, text in connection.execute("SELECT type, info FROM info")}
    return history, found


def test_a_linear_model_reports_effects_in_the_users_units(tmp_path: Path) -> None:
    _, info = run(tmp_path)
    report = info["Effects"]
    assert (report["names"], report["ratio"]) == (["age", "sex: m vs f", "noise"], "odds")
    assert report["of"] == "1"  # of two words the odds are of the second in the alphabet, "well" and not "sick"
    for name, truth in (("age", 0.1), ("sex: m vs f", 1.0), ("noise", 0.0)):
        k = report["names"].index(name)
        assert abs(report["estimates"][k] - truth) < 3 * report["errors"][k], name
    assert "Importance" not in info
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Effects of columns" in page
    assert "Decision curve, FedAvg" in page
    _, info = run(tmp_path / "survival", task="survival", target=["age", "sick"], model="one_logit")
    assert (info["Effects"]["names"], info["Effects"]["ratio"]) == (["sex: m vs f", "noise"], "hazard")
    assert "Importance" in run(tmp_path / "weighted", task=us.TaskConfig(kind="binary", class_weights="balanced"))[1]


def test_a_run_knows_whose_rows_they_are(tmp_path: Path) -> None:
    pd, errors = pytest.importorskip("pandas"), []
    table = pd.concat([clinic(80).assign(who=range(80))] * 4)
    for who, data in (("who", table), (None, table.drop(columns="who"))):
        folder = tmp_path / str(who)
        us.simulate(
            "fedavg", data=data, target="noise", client="site", patient=who, task="regression", model="logistic",
            preprocess=True, rounds=1, progress=False, out=folder,
        )  # fmt: skip
        with opened(folder) as connection:
            (text,) = connection.execute("SELECT info FROM info WHERE type = 'Effects'").fetchone()
        errors.append(np.array(json.loads(text)["errors"]))
    assert (errors[0] > 1.5 * errors[1]).all()


def test_another_model_reports_importance(tmp_path: Path) -> None:
    _, info = run(tmp_path, model="mlp", local=us.SgdConfig(lr=0.3, local_epochs=10))
    report = info["Importance"]
    mean = dict(zip(report["names"], (sum(costs) / len(costs) for costs in report["lost"]), strict=True))
    assert mean["age"] > max(0.05, mean["noise"])
    assert "Effects" not in info


def test_subgroups_and_sites_are_of_the_held_out_rows(tmp_path: Path) -> None:
    _, info = run(tmp_path)
    groups = info["Subgroups"]["groups"]
    held_out = sum(site["rows"] for site in info["SiteCurves"]["sites"])
    assert [g["value"] for g in groups] == ["f", "m"]
    assert sum(g["rows"] for g in groups) == held_out
    assert all(0.5 < g["result"] <= 1 for g in groups)
    _, info = run(tmp_path / "margins", task=us.TaskConfig(loss="multi_margin"), local=us.SgdConfig())
    assert "SiteCurves" not in info  # whose scores are no chances


def test_noise_covers_none_of_it(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = us.wrap(
        us.FedAvg(local=us.SgdConfig(optimizer="lbfgs")), us.CentralDP(clip=1.0, noise_multiplier=1.0, delta=0.01)
    )
    _, info = run(tmp_path, methods={"private": private})
    assert not {"Effects", "Subgroups", "SiteCurves", "Importance"} & info.keys()
