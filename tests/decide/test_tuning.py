"""`us.tune` and `unskew tune`: equal budgets, validation rows only, a search that goes on, and what comes out."""

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unskew as us
from unskew import api
from unskew.data.split import FromManifest
from unskew.decide.cells import Queue, run
from unskew.decide.crew import Here
from unskew.decide.sites import sites_of
from unskew.decide.training import Training, TrainingWork
from unskew.decide.tuning.page import write_tuning
from unskew.decide.tuning.result import NO_GAIN, compared, corrected
from unskew.decide.tuning.search import Budget, Searched, Trial, optuna_module
from unskew.decide.tuning.space import LR, present, ranges_of, with_values
from unskew.errors import ConfigError, DataError, DivergedError, RunError
from unskew.experiment import config
from unskew.run.setup import divide, prepare
from unskew.schema import Search

team = importlib.import_module("unskew.decide.crew")
optuna = pytest.importorskip("optuna", reason="optuna is not installed (extra [tune])")


def clients(seed: int = 0) -> dict[str, tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {
        f"site {k}": ((x := rng.normal(size=(24, 4)).astype(np.float32)), (x[:, 0] + 0.3 * k > 0).astype(np.int64))
        for k in range(3)
    }


def tune(out: Path, data: Any = None, **options: Any) -> Any:
    asked: dict[str, Any] = {"trials": 3, "rounds": 2, "final_seeds": 2, "progress": False, **options}
    return us.tune({"FedProx": us.FedProx(mu=0.1), "FedAvg": us.FedAvg()}, out=out, data=data or clients(), **asked)


# ---------------------------------------------------------------- what is searched
def test_ranges_stand_beside_hyperparameters_and_hold_the_present_value() -> None:
    assert ranges_of(config.method("fedprox", {"mu": 20.0, "local": {"lr": 0.3}})) == {
        LR: Search(0.01, 3.0),
        "mu": Search(0.001, 20.0),
    }
    assert ranges_of(config.method("fedprox", {"mu": 0.0}))["mu"] == Search(0.001, 10.0)
    assert set(ranges_of(config.method("fedadam", {}))) == {LR, "server_lr"}


def test_values_are_put_where_they_belong_and_everything_else_stays() -> None:
    method = config.method("fedprox", {"mu": 0.5, "local": {"lr": 0.2, "batch_size": 7}})
    tuned = with_values(method, {LR: 0.4, "mu": 2.0})
    assert (tuned.options["mu"], tuned.options["local"]["lr"], tuned.options["local"]["batch_size"]) == (2.0, 0.4, 7)
    assert present(tuned, ranges_of(tuned)) == {LR: 0.4, "mu": 2.0}


def test_without_optuna_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(RunError, match=r"pip install 'unskew\[tune\]'"):
        optuna_module()


@pytest.mark.parametrize(
    "rule", [{"metric": 0.9}, {"patience": 2}, {"seconds": 5.0}], ids=lambda rule: next(iter(rule))
)
def test_a_rule_that_would_end_no_trial_is_refused_before_any_work(rule: dict[str, Any], tmp_path: Path) -> None:
    """Before, trials ignored it, and the tuned file had it."""
    with pytest.raises(ConfigError, match=rf"^stop\.{next(iter(rule))} would be ignored: .* leave it out"):
        tune(tmp_path / "out", stop={**rule, "megabytes": 1.0})
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match=rf"^stop\.{next(iter(rule))} would be ignored"):
        us.advise(clients(), stop=rule, progress=False)


# ---------------------------------------------------------------- the search
def test_each_method_has_the_same_budget_and_begins_with_its_present_settings(tmp_path: Path) -> None:
    tuning = tune(tmp_path / "out", trials=4, pruner="none")
    assert [len(s.trials) for s in tuning.searches] == [4, 4]
    prox, avg = tuning.searches
    assert prox.trials[0].values == {LR: 0.1, "mu": 0.1}
    assert avg.trials[0].values == {LR: 0.1}
    for s in tuning.searches:
        scores = [t.score for t in s.trials]
        assert s.trials[s.best].score == max(scores)
        assert all(r.low <= t.values[n] <= r.high for t in s.trials for n, r in s.ranges.items())


def test_test_rows_decide_nothing(tmp_path: Path) -> None:
    """With other labels on the clients' test rows trials are the same; only what is reported differs."""
    tested = [{name: (x[:9] + 0.1, np.full(9, label)) for name, (x, _) in clients().items()} for label in (0, 1)]
    one, other = (tune(tmp_path / f"{i}", test=test, pruner="none", final_seeds=1) for i, test in enumerate(tested))
    assert [t.score for s in one.searches for t in s.trials] == [t.score for s in other.searches for t in s.trials]
    assert of_trials(one) == of_trials(other)
    assert one.worth["FedAvg"].before != other.worth["FedAvg"].before


def test_a_smaller_budget_is_that_of_every_method(tmp_path: Path) -> None:
    """Before, a method whose trials of a larger budget were in the folder had the best of all of them."""
    of: dict[str, Any] = {
        "out": tmp_path,
        "data": clients(),
        "rounds": 1,
        "final_seeds": 1,
        "progress": False,
        "pruner": "none",
    }
    avg, prox = {"FedAvg": us.FedAvg()}, {"FedProx": us.FedProx(mu=0.1)}
    us.tune({**avg, **prox}, **of, trials=1)
    kept = [(t.values, t.score) for t in us.tune({**avg, **prox}, **of, trials=4).searches[0].trials]
    fewer = us.tune({**avg, **prox}, **of, trials=2)
    assert [(t.values, t.score) for t in fewer.searches[0].trials] == kept[:2]
    assert [len(s.trials) for s in fewer.searches] == [2, 2]
    assert {m["trials"] for m in json.loads((tmp_path / "tuning.json").read_text())["methods"].values()} == {2}


def of_classes(*positives: int) -> dict[str, Any]:
    """Clients of 24 rows, of which so many are positive."""
    data = clients()
    return {name: (x, np.arange(24) < k) for (name, (x, _)), k in zip(data.items(), positives, strict=True)}


@pytest.mark.filterwarnings("ignore:site .* of one class only")
@pytest.mark.parametrize("seed", range(2))
def test_trials_are_judged_by_a_fold_in_which_the_headline_is_defined(seed: int, tmp_path: Path) -> None:
    """Before, all trials had diverged if the one positive row was not in the first fold."""
    tested = {name: (x, np.arange(24) < 12) for name, (x, _) in clients(1).items()}
    tuning = us.tune(
        "fedavg", out=tmp_path, data=of_classes(1, 0, 0), test=tested, task="binary", rounds=1, trials=1,
        final_seeds=1, seeds=[seed], progress=False,
    )  # fmt: skip
    assert [t.state for t in tuning.searches[0].trials] == ["complete"]


@pytest.mark.filterwarnings("ignore:site .* of one class only")
def test_data_in_which_no_trial_could_be_judged_are_refused(tmp_path: Path) -> None:
    tested = {name: (x, np.arange(24) < 12) for name, (x, _) in clients(1).items()}
    data = {"data": of_classes(24, 0, 0), "test": tested}
    with pytest.raises(
        DataError, match=r"^AUROC is defined for no client's validation rows in any of \d folds.*val_frac"
    ):
        us.tune("fedavg", out=tmp_path / "out", **data, task="binary", rounds=1, progress=False)
    assert not (tmp_path / "out").exists()


def test_trials_end_by_bytes_in_the_round_in_which_a_run_does(tmp_path: Path) -> None:
    """Before, they ended before the limit was reached, a round earlier."""
    sent = us.simulate("fedavg", data=clients(), rounds=1, progress=False).value("fedavg", "bytes.total")
    asked: dict[str, Any] = {"data": clients(), "rounds": 4, "stop": {"megabytes": 1.5 * sent / 1e6}, "progress": False}
    (searched,) = us.tune("fedavg", out=tmp_path, trials=1, final_seeds=1, **asked).searches
    assert searched.trials[0].rounds == 2
    assert us.simulate("fedavg", **asked).value("fedavg", "bytes.total") == 2 * sent


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tuning of two trials a method, and its folder."""
    folder = tmp_path_factory.mktemp("searched")
    return tune(folder, trials=2, rounds=1, seeds=[3]), folder


def test_fresh_seeds_follow_those_of_the_search_and_the_file_has_fresher_ones(searched: Any) -> None:
    tuning, folder = searched
    assert tuning.seeds == (4, 5)
    written = config.load(folder / "tuned.toml")
    assert written.seeds == (6, 7, 8, 9, 10)
    assert [m.label for m in written.methods] == ["FedProx", "FedAvg"]
    for method, s in zip(written.methods, tuning.searches, strict=True):
        assert present(method, s.ranges) == pytest.approx(dict(s.trials[s.best].values))
    assert json.loads((folder / "tuning.json").read_text())["methods"]["FedProx"]["trials"] == 2


def test_the_tuned_file_tests_on_rows_that_no_trial_has_read_whatever_its_seed(searched: Any) -> None:
    """Sites of one's own have no test rows of theirs: drawn anew under another seed, they would be rows of trials."""
    tuning, folder = searched
    written = config.load(folder / "tuned.toml")
    for seed in written.seeds[:2]:
        fed = divide(written, prepare(written).dataset, seed)
        assert fed.clients.test.values.tolist() == tuning.sites.fed.clients.test.values.tolist()


def test_the_folder_of_a_tuning_can_be_moved(own_rules: Any, tmp_path: Path) -> None:
    """Before, the file had the whole path of its division, and data lay beside it in vain."""
    moved = shutil.copytree(own_rules[0], tmp_path / "moved")
    written = config.load(moved / "tuned.toml")
    assert str(own_rules[0]) not in (moved / "tuned.toml").read_text()
    assert written.split == FromManifest(str(moved / "clients.json"))


@pytest.fixture(scope="module")
def own_rules(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[Any, ...]]]:
    """A tuning of an experiment that adds seeds until it is decided, and names a cluster; with what began there."""
    began: list[tuple[Any, ...]] = []

    def actors(work: Any, address: str, count: int | None) -> Any:
        began.append((address, count))
        return team.Here(work)

    folder = tmp_path_factory.mktemp("rules")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "OnRay", actors)
        runtime = us.Runtime(executor="ray", workers=3, executor_options={"address": "here:1", "store_mb": 100})
        tune(folder, trials=1, rounds=1, final_seeds=1, seeds=us.UntilDecided(until=3.0, most=10), runtime=runtime)
    return folder, began


def test_the_rule_that_adds_seeds_and_the_runtime_are_those_of_the_tuned_file(own_rules: Any) -> None:
    """Before, the rule became five seeds, and the runtime was that of the trials."""
    written = config.load(own_rules[0] / "tuned.toml")
    assert written.until == us.UntilDecided(until=3.0, most=10, first=11)
    assert written.seeds == tuple(range(11, 21))
    assert (written.runtime.executor, written.runtime.workers) == ("ray", 3)
    assert written.runtime.executor_options == {"address": "here:1", "store_mb": 100}


def test_the_cluster_that_an_experiment_names_trains_the_trials(own_rules: Any) -> None:
    """Before, its options were refused as those of an executor that has none."""
    assert own_rules[1] == [("here:1", 3)]


class Hidden(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


class Bent(Hidden):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


Bent.__qualname__ = "Hidden"


def frozen() -> torch.nn.Module:
    network = Hidden()
    network.body.requires_grad_(False)
    return network


def seconds_of(out: Path, model: Any = Hidden, **given: Any) -> float:
    """The time of the one trial, which is the same where it was not trained again."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        given["model"] = model()
    tuning = us.tune("fedavg", out=out, data=clients(), trials=1, rounds=1, final_seeds=1, progress=False, **given)
    return tuning.searches[0].trials[0].seconds


def test_a_search_goes_on_with_the_same_network_alone(tmp_path: Path) -> None:
    """Before, trials of another network of that name counted as its own, and nothing was trained."""
    first = seconds_of(tmp_path)
    assert seconds_of(tmp_path) == first
    assert len({first, *(seconds_of(tmp_path, model) for model in (Bent, frozen))}) == 3


def test_a_search_with_a_function_that_no_file_holds_is_not_continued(tmp_path: Path) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    seconds_of(tmp_path, loss=loss)
    with pytest.raises(RunError, match=r"sqlite has outcomes of .*loss.*may have changed; give another folder"):
        seconds_of(tmp_path, loss=loss)


def test_settings_that_no_range_holds_are_tried_first_as_they_are(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"trials": 2, "rounds": 1, "final_seeds": 1, "pruner": "none", "progress": False}
    (s,) = us.tune({"Ditto": us.Ditto(lam=0.0)}, out=tmp_path, data=clients(), **asked).searches
    assert s.trials[0].values == {LR: 0.1}
    assert set(s.trials[1].values) == {LR, "lam"}
    assert "as it was" in (tmp_path / "tuning.html").read_text()


def test_settings_that_were_kept_gain_nothing_in_every_seed(tmp_path: Path) -> None:
    """Before, they had an interval over test rows, and could not be told apart from themselves."""
    tuning = tune(tmp_path, trials=1, rounds=1)
    assert tuning.worth.keys() == {"FedProx", "FedAvg"}
    assert all(w.kept and w.gain == NO_GAIN and w.before == w.after for w in tuning.worth.values())
    page = (tmp_path / "tuning.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    assert "0.00 [in every seed]" in page
    of = json.loads((tmp_path / "tuning.json").read_text())["methods"]["FedAvg"]
    assert (of["kept"], of["gain"]) == (True, [0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("diverging", "rate", "fate"),
    [
        ({0.2: 1}, 0.1, "diverged under 0 (default) and 1 (tuned) fresh seeds"),
        ({0.1: 2}, 0.2, "diverged under 2 (default) and 0 (tuned) fresh seeds"),
        ({0.1: 1, 0.2: 1}, 0.2, "diverged under 1 (default) and 1 (tuned) fresh seeds"),
    ],
)
def test_settings_that_diverge_under_a_fresh_seed_are_named_and_the_safer_ones_taken(
    diverging: dict[float, int], rate: float, fate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, tuned settings that diverged were in tuned.toml, and nothing said which of the two did."""

    class Failing(Training):
        def go_on(self, rounds: int) -> None:
            if self.seed <= diverging.get(self.method.options["local"]["lr"], 0):
                raise DivergedError("it diverged")
            super().go_on(rounds)

    monkeypatch.setattr("unskew.decide.training.Training", Failing)
    experiment, inputs = api.described("fedavg", {"rounds": 1}, data=clients())
    method, tuned = config.method("fedavg", {"local": {"lr": 0.1}}), Trial({LR: 0.2}, 0.9, "complete", 1, 1.0)
    searched = Searched(method, ranges_of(method), (tuned,), 0)
    sites, fresh = sites_of(experiment, inputs), (1, 2)
    worth = run([compared(sites, searched, fresh, print)], Queue(), Here(TrainingWork(sites)))
    tuning = corrected(sites, (searched,), worth, Budget(1), fresh)
    assert f"{method.label} {fate}" in str(tuning)
    assert [m.options["local"]["lr"] for m in tuning.experiment.methods] == [rate]
    write_tuning(tuning, tmp_path)
    assert ("default kept" in (tmp_path / "tuning.html").read_text()) == (rate == 0.1)


def of_trials(tuning: Any) -> list[Any]:
    return [[(t.values, t.score, t.state, t.rounds) for t in s.trials] for s in tuning.searches]


@pytest.mark.seconds
def test_trials_are_the_same_with_any_number_of_workers_and_where_a_search_goes_on(tmp_path: Path) -> None:
    """Two methods over two batches and a part, and rounds enough that some are pruned; one diverges at once."""
    asked: dict[str, Any] = {"rounds": 5, "pruner": "hyperband", "final_seeds": 1}
    tune(tmp_path / "one", trials=3, **asked)
    one = tune(tmp_path / "one", trials=10, **asked)
    assert of_trials(tune(tmp_path / "two", workers=2, trials=10, **asked)) == of_trials(one)
    assert {t.state for s in one.searches for t in s.trials} >= {"pruned", "complete"}
    again = tune(tmp_path / "one", trials=10, **asked)
    assert [t.seconds for s in again.searches for t in s.trials] == [t.seconds for s in one.searches for t in s.trials]


def test_a_time_pays_for_the_first_trials_that_it_has_room_for(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"data": clients(), "rounds": 2, "final_seeds": 1, "progress": False}
    (s,) = us.tune({"FedAvg": us.FedAvg(us.SgdConfig(lr=1e20))}, out=tmp_path, seconds=1e-6, **asked).searches
    assert [t.state for t in s.trials] == ["diverged"]
    assert s.best is None
    two = [Trial({}, seconds=3.0)] * 2
    assert [Budget(seconds=5.0).next(two[:n]) for n in (0, 1, 2)] == [1, 1, 0]


def test_a_training_has_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums depend on their number, and results may not depend on that of the workers."""
    threads, go_on = [], Training.go_on

    def noted(self: Training, *args: Any) -> bool:
        threads.append(torch.get_num_threads())
        return go_on(self, *args)

    monkeypatch.setattr(Training, "go_on", noted)
    asked: dict[str, Any] = {"rounds": 1, "trials": 1, "final_seeds": 1, "progress": False}
    us.tune("fedavg", out=tmp_path, data=clients(), runtime=us.Runtime(threads=2), **asked)
    assert threads == [1, 1]


@pytest.mark.network
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_trials_on_ray_are_those_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'unskew[ray]'")
    on_ray = tune(tmp_path / "ray", trials=2, ray="local", workers=2)
    assert of_trials(on_ray) == of_trials(tune(tmp_path / "here", trials=2))
