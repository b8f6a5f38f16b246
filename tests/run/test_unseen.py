"""Clients that come after training: who they are, what they are served, and that training never depends on them."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unskew.algorithms.fedavg import FedAvg
from unskew.data import checked
from unskew.data.federated import FederatedData, federate, from_manifest, to_manifest
from unskew.data.split import Natural
from unskew.deploy import server
from unskew.errors import ConfigError, DataError, ProtocolError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.history import load_run
from unskew.keys import Key
from unskew.record.logs import rows
from unskew.record.reader import read
from unskew.report import stats
from unskew.run import loop
from unskew.run import setup as run_setup
from unskew.run.unseen import UnseenClients, adaptation, served_to
from unskew.runtime.policy import ServerConfig
from unskew.tree import Params

METHODS = """
[[methods]]
name = "fedavg"
[[methods]]
name = "ifca"
clusters = 2
[[methods]]
name = "fedper"
"""


def six(never_train: tuple[str, ...] = ()) -> Any:
    """Two examples each of clients a to f."""
    owners = torch.arange(6).repeat_interleave(2)
    x = torch.arange(12.0)[:, None]
    data = checked("six", x, owners % 2, x, owners % 2, client_train=owners, clients=tuple("abcdef"))
    return replace(data, never_train=never_train)


def parts(fed: FederatedData) -> set[int]:
    return {int(row) for part in ("train", "val", "test") for row in getattr(fed.clients, part).values}


def test_unseen_clients_are_set_aside_by_name_and_no_example_is_lost() -> None:
    fed = federate(six(), Natural(), Key(0), 0.5, unseen=("f", "b"))
    assert fed.client_names == ("a", "c", "d", "e")
    assert fed.unseen is not None
    assert fed.unseen.client_names == ("b", "f")
    assert parts(fed) | parts(fed.unseen) == set(range(12))
    assert not parts(fed) & parts(fed.unseen)


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.25, 2), (0.5, 3), (0.6, 4)])
def test_a_share_is_rounded_halves_up_and_at_least_one(share: float, count: int) -> None:
    """Of six clients .25 is 1.5, so 2; .6 is 3.6, so 4."""
    fed = federate(six(), Natural(), Key(0), 0.5, unseen=share)
    assert fed.unseen is not None
    assert (fed.num_clients, fed.unseen.num_clients) == (6 - count, count)


def test_the_share_is_drawn_under_the_seed_and_other_clients_keep_their_examples() -> None:
    whole = federate(six(), Natural(), Key(3), 0.5)
    drawn = {seed: federate(six(), Natural(), Key(seed), 0.5, unseen=0.5).client_names for seed in range(8)}
    assert len(set(drawn.values())) > 1
    fed = federate(six(), Natural(), Key(3), 0.5, unseen=0.5)
    names = whole.client_names or ()
    for i, name in enumerate(fed.client_names or ()):
        assert torch.equal(fed.clients.train[i], whole.clients.train[names.index(name)])


def test_clients_that_the_data_mark_never_train_whatever_the_setting_says() -> None:
    fed = federate(six(("c",)), Natural(), Key(0), 0.5, unseen=("e",))
    assert fed.client_names == ("a", "b", "d", "f")
    assert fed.unseen is not None
    assert set(fed.unseen.client_names or ()) == {"c", "e"}
    assert (federate(six(("c",)), Natural(), Key(0), 0.5).unseen or fed).client_names == ("c",)


def test_a_manifest_brings_its_unseen_clients_back(tmp_path: Path) -> None:
    fed = federate(six(), Natural(), Key(0), 0.5, unseen=("b",))
    (tmp_path / "m.json").write_text(json.dumps(to_manifest(fed)))
    again = from_manifest(tmp_path / "m.json", six())
    assert fed.unseen is not None
    assert again.unseen is not None
    assert (again.sha256, again.unseen.sha256) == (fed.sha256, fed.unseen.sha256)


def test_a_manifest_whose_unseen_clients_hold_a_trained_example_is_refused(tmp_path: Path) -> None:
    manifest = to_manifest(federate(six(), Natural(), Key(0), 0.5, unseen=("b",)))
    manifest["unseen"]["parts"]["train"] = manifest["parts"]["train"]
    (tmp_path / "m.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="must have each index in one place"):
        from_manifest(tmp_path / "m.json", six())


# ---------------------------------------------------------------- a run
@pytest.fixture(scope="module")
def ran(tiny: Callable[..., Experiment], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unseen") / "run"
    loop.start(tiny("rounds=2", "unseen=0.5", "seeds=[0,1]", "split.num_clients=6", methods=METHODS), folder)
    return folder


def test_training_is_the_same_whatever_becomes_of_the_unseen(
    tiny: Callable[..., Experiment], ran: Path, tmp_path: Path
) -> None:
    """Other epochs and other rounds of evaluation change no number of the clients that train."""

    def trained(folder: Path) -> list[dict[str, Any]]:
        others = ("seconds", "unseen", "gap")
        return [row for row in rows(folder, "metrics") if not row["name"].startswith(others)]

    other = ("rounds=2", "unseen.clients=0.5", "unseen.adapt_epochs=3", "unseen.every=1", "seeds=[0,1]")
    loop.start(tiny(*other, "split.num_clients=6", methods=METHODS), tmp_path / "run")
    assert trained(tmp_path / "run") == trained(ran)


def test_every_method_reports_unseen_clients_after_the_last_round_and_the_gap(ran: Path) -> None:
    got = load_run(ran)
    for method in ("fedavg", "ifca", "fedper"):
        seen, served = got.value(method, "personal.accuracy.mean"), got.value(method, "unseen.accuracy.mean")
        assert got.value(method, "gap.accuracy") == pytest.approx(seen - served)
        adapted = got.value(method, "unseen_adapted.accuracy.mean")
        assert got.value(method, "gap_adapted.accuracy") == pytest.approx(seen - adapted)
        by_client = got.client_values(method, "unseen_adapted.accuracy", seed=1)
        assert set(by_client) == {3, 4, 5}
    rounds = {row["round"] for row in got.rows if row["name"] == "unseen.accuracy.mean"}
    assert rounds == {2}


def test_only_clients_that_trained_are_in_cohorts_ledger_and_label_counts(ran: Path) -> None:
    assert {row[end] for row in rows(ran, "transfers") for end in ("src", "dst")} == {0, 1, 2, 3}  # 0 is the server
    division = read(ran).partitions[0]
    assert len(division.label_counts) == len(division.unseen) == 3


def test_welch_over_two_seeds_averages_the_differences() -> None:
    """Seeds with differences .25 and .15: mean .2.  Variances over n: .005/2 + .02/2 and .02/2 + .005/2, .0125 each.

    The squared standard error of the mean of two is .025 / 4 = .00625, so it is .0791; by Satterthwaite the freedom is
    .025^2 / (2 * .0025^2 + 2 * .01^2) = 2.941, where t is 3.216: .2 -+ .254.
    """
    low, high = stats.welch([((0.8, 0.9), (0.5, 0.7)), ((0.7, 0.9), (0.6, 0.7))]) or (math.nan, math.nan)
    assert (low + high) / 2 == pytest.approx(0.2)
    assert (high - low) / 2 == pytest.approx(0.254, abs=1e-3)


# ---------------------------------------------------------------- what an unseen client is served
@dataclass(frozen=True)
class OnlyOldFriends(FedAvg):
    """A method that has a model for the clients it knows."""

    def serve(self, state: Any, client: int | None) -> Params | None:
        return {0: state.params, 1: state.params}[client or 0]


def test_a_method_that_knows_no_unseen_clients_is_refused_before_any_work() -> None:
    with pytest.raises(ProtocolError, match="unseen_models"):
        served_to(OnlyOldFriends(), FedAvg().init({}, _federation()), 2)


def _federation() -> Any:
    class Fed:
        class layout:
            trainable = ()

            @staticmethod
            def select(groups: Any) -> frozenset[str]:
                return frozenset()

    return Fed()


def two_that_came(tiny: Callable[..., Experiment], method: str, *settings: str) -> Iterator[tuple[Any, Any, Any]]:
    """A method's state before round 1, with two clients that come after training, one after the other."""
    experiment = tiny("unseen=0.5", *settings, methods=f"[[methods]]\n{method}\n")
    setup = run_setup.prepare(experiment)
    fed = run_setup.divide(experiment, setup.dataset, 0)
    sim, _ = run_setup.simulator(run_setup.PreparedRun(experiment, setup, {0: fed}), experiment.methods[0], 0)
    came = UnseenClients(sim, setup.task, fed, 0, 1)
    for i in range(2):
        yield sim.start(), came, came.me(came.first + i, 1)


def test_of_several_models_an_unseen_client_takes_the_one_with_the_lowest_loss_on_its_training_data(
    tiny: Callable[..., Experiment],
) -> None:
    for state, came, me in two_that_came(tiny, 'name = "ifca"\nclusters = 2'):
        model, _ = came.models(state, me)
        losses = [came.training_loss(of, me) for of in state.models]
        assert came.training_loss(model, me) == min(losses)
    assert losses[0] != losses[1]


def test_a_model_that_became_nan_is_nobody_s_choice(tiny: Callable[..., Experiment]) -> None:
    for state, came, me in two_that_came(tiny, 'name = "ifca"\nclusters = 3'):
        broken = {name: t * math.nan for name, t in state.models[0].items()}
        model, _ = came.models(replace(state, models=(broken, *state.models[1:])), me)
        assert came.training_loss(model, me) == min(came.training_loss(of, me) for of in state.models[1:])


def test_in_several_clusters_an_unseen_client_takes_the_mean_of_those_with_the_lowest_losses(
    tiny: Callable[..., Experiment],
) -> None:
    """FLSC's own rule, `a_k` of eq. 1; with one membership it is IFCA's (I-28)."""
    for state, came, me in two_that_came(tiny, 'name = "flsc"\nclusters = 3\nmemberships = 2'):
        model, _ = came.models(state, me)
        assert model is not None
        _, a, b = sorted(state.models, key=lambda of: -came.training_loss(of, me))
        torch.testing.assert_close(model, {name: (a[name] + b[name]) / 2 for name in a})


def test_unseen_clients_adapt_with_balanced_weights_of_their_own(tiny: Callable[..., Experiment]) -> None:
    """n / (k n_c) of an example of class c, so that each class of a client has n / k in all, as where others train."""
    balanced = "task.class_weights='balanced'"
    for _, came, me in two_that_came(tiny, 'name = "fedavg"', balanced):
        data = came.trainer.device_data
        rows = data.train[me.id]
        of_class = torch.zeros(10).index_add_(0, data.y[rows], data.weights[rows])
        present = me.histogram > 0
        alike = (me.histogram.sum() / present.sum()).expand(int(present.sum()))
        torch.testing.assert_close(of_class[present], alike.float())


def test_adapting_is_so_many_epochs_of_the_methods_own_local_training(tiny: Callable[..., Experiment]) -> None:
    experiment = tiny("unseen=0.5", "local.local_steps=7")
    method = experiment.methods[0].method
    (request,) = [next(adaptation(method, 4)(None, {}, None))]  # type: ignore[arg-type]
    assert (request.config.local_epochs, request.config.local_steps) == (4, None)
    assert (request.config.lr, request.config.batch_size) == (method.local.lr, method.local.batch_size)


def test_a_deployment_refuses_unseen_clients(tmp_path: Path, tiny: Callable[..., Experiment]) -> None:
    (tmp_path / "experiment.toml").write_text(config.to_toml(tiny("unseen=0.5")))
    with pytest.raises(ConfigError, match="to hold a site out, name the others by --site"):
        server.serve(None, tmp_path, ServerConfig(num_clients=2, min_clients=1))  # type: ignore[arg-type]
