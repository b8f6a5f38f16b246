"""The library's face: an experiment in five lines, under the same checks as a file's."""

import dataclasses
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unskew as us
from unskew import algorithms
from unskew.algorithms.fedavg import FedAvgState
from unskew.errors import ConfigError, DivergedError, RunError, UnskewError
from unskew.experiment import config, from_python
from unskew.experiment.config import Experiment
from unskew.protocol import Federation, Plan
from unskew.run import loop
from unskew.run.cell import Cell, Observer
from unskew.tree import Params

pytestmark = pytest.mark.usefixtures("undrawn", "unreported")
SPLIT = us.Dirichlet(alpha=0.5, num_clients=4, min_samples=10)
TINY: dict[str, Any] = {"split": SPLIT, "rounds": 2, "model": "logistic"}
FAST = us.SgdConfig(lr=0.1, local_epochs=1, batch_size=64)


@dataclasses.dataclass(frozen=True)
class Halved(us.FedAvg):
    """A stranger's method: FedAvg that goes only a part of the way."""

    part: float = 0.5

    def round(self, state: FedAvgState, fed: Federation) -> Plan[FedAvgState]:
        mean = yield from super().round(state, fed)
        return FedAvgState({n: w + self.part * (mean.params[n] - w) for n, w in state.params.items()})


class Odd:
    """A value that no file can hold."""


@dataclasses.dataclass(frozen=True)
class Strange(us.FedAvg):
    """A method with such a value in it."""

    odd: Odd = Odd()


PAIR = (np.eye(4, dtype=np.float32)[np.arange(80) % 4], np.arange(80) % 2)


def test_local_is_for_methods_that_have_none_of_their_own(tmp_path: Path) -> None:
    methods = {
        "by name": "fedavg+clip_norm",
        "by default": us.Ditto(lam=0.5),
        "wrapped": us.FedDW(mu=0.1),
        "its own": us.FedAvg(us.SgdConfig(lr=0.3)),
        "a bound": "centralised",
    }
    us.simulate(methods, **TINY, local=us.SgdConfig(lr=0.02, batch_size=64), out=tmp_path / "r", progress=False)
    made = {m.label: m.options["local"]["lr"] for m in config.load(tmp_path / "r/config.toml").methods}
    assert made == {"by name": 0.02, "by default": 0.02, "wrapped": 0.02, "its own": 0.3, "a bound": 0.02}
    with pytest.raises(ConfigError, match=r"^local must be SgdConfig\(\.\.\.\), as in SgdConfig\(lr=0.05\), got 0\.1$"):
        us.simulate("fedavg", **TINY, local=0.1)  # type: ignore[arg-type]


def pull(params: Params, aux: Any) -> torch.Tensor:
    return 0.5 * torch.stack([(w - aux["anchor"][n]).square().sum() for n, w in params.items()]).sum()


def accuracies(found: us.History) -> list[float]:
    return [row["value"] for row in found.rows if row["name"] == "global.accuracy"]


# ---------------------------------------------------------------- five lines
@pytest.mark.parametrize(
    ("methods", "labels"),
    [
        (us.FedAvg(), ["fedavg"]),
        ("scaffold", ["scaffold"]),
        ([us.FedAvg(), us.FedProx(mu=0.1), us.FedAdam(), us.FedYogi(), us.FedAdagrad()], None),
        (("fedavg", us.FedNova()), ["fedavg", "fednova"]),
        ({"A": us.FedAvg(), "B": "fedprox", 3: us.OneShot()}, ["A", "B", "3"]),
        ([us.Independent(), us.Centralised()], ["independent", "centralised"]),
        (Halved(), ["Halved"]),
    ],
)
def test_methods_are_an_algorithm_a_name_several_or_a_mapping(methods: object, labels: list[str] | None) -> None:
    found = us.simulate(methods, **{**TINY, "rounds": 1})
    labels = labels or ["fedavg", "fedprox", "fedadam", "fedyogi", "fedadagrad"]
    assert list(dict.fromkeys(row["method"] for row in found.summary["rows"])) == labels


def test_a_history_is_rows_curves_and_values() -> None:
    """Worked from the rows: a curve is the mean over seeds of each round, a value that of the last round."""
    found = us.simulate({"a": us.FedAvg(local=FAST)}, **TINY, seeds=range(2))
    assert all({"method", "seed", "round", "name", "value", "weight"} <= set(row) for row in found.rows)
    json.dumps(found.rows, allow_nan=False)
    by = {(r["seed"], r["round"]): r["value"] for r in found.rows if r["name"] == "global.accuracy"}
    curve = found.curve("a")
    assert [t for t, _ in curve] == [0, 1, 2]
    assert [v for _, v in curve] == pytest.approx([(by[0, t] + by[1, t]) / 2 for t in range(3)])
    assert found.value("a") == pytest.approx(curve[-1][1])
    assert found.value("a", "bytes.total") > 0
    assert found.curve("a", "train.loss")[0][0] == 1
    for wrong in (lambda: found.curve("b"), lambda: found.value("b")):
        with pytest.raises(KeyError, match="no method 'b' in this run; it has a"):
            wrong()
    for wrong in (lambda: found.curve("a", "global.acuracy"), lambda: found.value("a", "global.acuracy")):
        with pytest.raises(KeyError, match=r"no global.acuracy of a; did you mean global.accuracy"):
            wrong()


def test_the_same_call_twice_has_the_same_bits_and_leaves_global_randomness_alone() -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    first = us.simulate("fedavg", **TINY, clients_per_round=2)
    second = us.simulate("fedavg", **TINY, clients_per_round=2)
    assert first.summary["fingerprint"] == second.summary["fingerprint"]
    assert accuracies(first) == accuracies(second)
    assert torch.equal(torch.get_rng_state(), torch_before)
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_before, strict=True))  # noqa: NPY002


def test_settings_of_pytorch_are_as_they_were_afterwards_in_an_error_too() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        us.simulate("fedavg", **TINY, runtime=us.Runtime(threads=1, deterministic=True))
        assert torch.get_num_threads() == 2
        assert not torch.are_deterministic_algorithms_enabled()
        with pytest.raises(DivergedError, match="round 1, client"):
            us.simulate(us.FedAvg(us.SgdConfig(lr=1e30)), split=SPLIT, rounds=9, runtime=us.Runtime(threads=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_runs_in_several_threads_are_the_runs_that_they_are_alone() -> None:
    """Dropout draws from a generator that all threads share, and settings of PyTorch's are theirs in common, too."""
    settings = {**TINY, "model": "hcct_mlp", "progress": False}
    alone = us.simulate("fedavg", **settings)
    with ThreadPoolExecutor(3) as threads:
        runs = [threads.submit(us.simulate, "fedavg", **settings) for _ in range(3)]
    found = [run.result() for run in runs]
    assert [run.summary["fingerprint"] for run in found] == 3 * [alone.summary["fingerprint"]]
    assert not any(run.notes for run in found)


def test_a_run_does_not_depend_on_the_settings_that_its_caller_has_made() -> None:
    alone = us.simulate("fedavg", **TINY).summary["fingerprint"]
    for around in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with around:
            assert us.simulate("fedavg", **TINY).summary["fingerprint"] == alone
    torch.set_default_dtype(torch.float64)
    try:
        assert us.simulate("fedavg", **TINY).summary["fingerprint"] == alone
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------- a folder that can be resumed, or says that it cannot
def test_out_keeps_a_run_folder_that_reads_back(tmp_path: Path) -> None:
    kept = us.simulate({"x": us.FedProx(mu=0.3, local=FAST)}, **TINY, out=tmp_path / "r")
    assert kept.path == tmp_path / "r"
    for name in ("run.json", "config.toml", "partition.json", "run.sqlite", "summary.json"):
        assert (tmp_path / "r" / name).is_file()
    again = us.load_run(loop.resume(tmp_path / "r").folder)
    assert (again.rows, again.summary) == (kept.rows, kept.summary)
    with pytest.raises(RunError, match=r"exists already; unskew\.resume\(.*\) goes on .*, and a new run needs another"):
        us.simulate("fedavg", data="no such data", out=tmp_path / "r")  # before anything is read


@pytest.mark.parametrize("name", algorithms.TABLE)
def test_every_method_made_in_python_is_written_as_what_makes_it_again(name: str) -> None:
    """Else resume would go on with another method: FedProx(mu=0.1) is a FedAvg with a term no file can hold."""
    made = from_python.method_of(config.method(name, {}).method)
    again = config.method(made.name, made.options)
    assert (made.name, again.method) == (name, made.method)


@pytest.mark.parametrize(
    "method",
    [us.FedAvg(terms=(pull,)), us.FedProx(sampling="size"), Strange()],
)
def test_what_no_file_can_describe_runs_but_is_never_resumed_as_something_else(method: object, tmp_path: Path) -> None:
    us.simulate({"mine": method}, **TINY, out=tmp_path / "r")
    (tmp_path / "r" / "summary.json").unlink()
    with pytest.raises(ConfigError, match=r"was given as a value, which no file holds.*a method needs a new run"):
        loop.resume(tmp_path / "r")


def test_a_class_of_ones_own_is_written_with_its_place_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_strangers_module.py").write_text(
        "import dataclasses\nimport unskew as us\n"
        "@dataclasses.dataclass(frozen=True)\nclass Mine(us.FedAvg):\n    part: float = 0.5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from importlib import import_module

    made = import_module("a_strangers_module").Mine(part=0.25)
    kept = us.simulate(made, **TINY, out=tmp_path / "r")
    (method,) = config.load(tmp_path / "r" / "config.toml", allow_code=True).methods
    assert (method.name, method.options["part"], method.method) == ("a_strangers_module:Mine", 0.25, made)
    assert kept.value("Mine") > 0


def test_ctrl_c_does_not_advise_to_resume_what_is_gone(tmp_path: Path) -> None:
    class Stops(Observer):
        def ended_round(self, cell: Cell) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="nothing is kept of a run without out=FOLDER"):
        us.simulate("fedavg", **TINY, callback=Stops())
    with pytest.raises(KeyboardInterrupt, match=r"after round 1 of .*; continue with: unskew\.resume\('.*r'\)$"):
        us.simulate("fedavg", **TINY, callback=Stops(), out=tmp_path / "r")
    with pytest.raises(RunError, match=r"is not done.*unskew\.resume.*unfinished=True"):
        us.load_run(tmp_path / "r")
    so_far = us.load_run(tmp_path / "r", unfinished=True)
    assert [t for t, _ in so_far.curve("fedavg")] == [0, 1]
    assert so_far.value("fedavg") == so_far.curve("fedavg")[-1][1]
    assert "This run has not finished" in str(so_far)
    assert "<svg" in so_far._repr_html_()
    resumed = us.resume(tmp_path / "r")
    assert resumed.summary["fingerprint"] == us.simulate("fedavg", **TINY).summary["fingerprint"]
    assert us.resume(tmp_path / "r").rows == resumed.rows  # a cell that is run again


class OwnNet(nn.Module):
    """A network that a notebook might define."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


@pytest.mark.parametrize("by", ["module", "function"])
def test_a_run_of_a_model_that_is_a_value_goes_on_with_the_same_one(tmp_path: Path, by: str) -> None:
    class StopsOnce(Observer):
        def ended_round(self, cell: Cell) -> None:
            if cell.round == 1:
                raise KeyboardInterrupt

    model: Any = OwnNet() if by == "module" else lambda shape, classes: nn.Linear(shape[0], classes)
    other: Any = OwnNet() if by == "module" else lambda shape, classes: nn.Linear(shape[0], classes, bias=False)
    settings: dict[str, Any] = {"data": PAIR, "split": us.IID(num_clients=4), "rounds": 2, "model": model}
    whole = us.simulate(us.FedAvg(FAST), **settings)
    with pytest.raises(KeyboardInterrupt, match=r"unskew\.resume\('.*r'\)$"):
        us.simulate(us.FedAvg(FAST), **settings, callback=StopsOnce(), out=tmp_path / "r")
    with pytest.raises(ConfigError, match=r"was given as a value.*unskew\.resume\(FOLDER, model=\.\.\.\)"):
        us.resume(tmp_path / "r")
    with pytest.raises(RunError, match=r"the network .* was changed since the run began"):
        us.resume(tmp_path / "r", model=other)
    resumed = us.resume(tmp_path / "r", model=model)
    assert resumed.summary["fingerprint"] == whole.summary["fingerprint"]
    assert us.predict(resumed.model("fedavg"), PAIR[0]) == us.predict(whole.model("fedavg"), PAIR[0])


def test_a_loss_and_a_metric_given_as_values_are_given_again(tmp_path: Path) -> None:
    def doubled(outputs: Any, y: Any) -> Any:
        return 2 * nn.functional.cross_entropy(outputs, y, reduction="none")

    def shift(outputs: Any, y: Any) -> float:
        return float(outputs.mean() - y.mean())

    class StopsOnce(Observer):
        def ended_round(self, cell: Cell) -> None:
            if cell.round == 1:
                raise KeyboardInterrupt

    settings: dict[str, Any] = {"split": us.IID(num_clients=4), "rounds": 2, "evaluate": ["global", shift]}
    whole = us.simulate(us.FedAvg(FAST), **settings, loss=doubled)
    with pytest.raises(KeyboardInterrupt, match=r"unskew\.resume\('.*r'\)$"):
        us.simulate(us.FedAvg(FAST), **settings, loss=doubled, callback=StopsOnce(), out=tmp_path / "r")
    with pytest.raises(ConfigError, match=r"^loss '.*doubled' was given as a value.*resume\(FOLDER, loss=\.\.\."):
        us.resume(tmp_path / "r", metrics=[shift])
    with pytest.raises(ConfigError, match="was given no metric float as a value; leave it out"):
        us.resume(tmp_path / "r", loss=doubled, metrics=[shift, float])
    resumed = us.resume(tmp_path / "r", loss=doubled, metrics=[shift])
    assert resumed.summary["fingerprint"] == whole.summary["fingerprint"]
    assert resumed.value("fedavg", "global.shift") == whole.value("fedavg", "global.shift")


def shifted(one: Any) -> Any:
    """A transform that draws from NumPy's global generator."""
    return one + np.random.randint(1, 10)  # noqa: NPY002


ZEROS: dict[str, Any] = {
    "data": (np.zeros((40, 2), np.float32), np.arange(40) % 2),
    "split": us.IID(num_clients=2),
    "rounds": 4,
    "transform": shifted,
}


def test_a_transform_changes_training_examples_alone_and_anew_each_time() -> None:
    """All rows are 0; training rows come to the network as 1 to 9."""
    seen: list[list[float]] = [[]]

    class Watches(nn.Linear):
        def forward(self, x: Any) -> Any:
            if self.training:
                seen[-1] += x[:, 0].tolist()
            else:
                assert not x.any()
            return super().forward(x)

    class Rounds(Observer):
        def ended_round(self, cell: Cell) -> None:
            seen.append([])

    runtime = us.Runtime(executor="sequential", threads=1)
    us.simulate(us.FedAvg(FAST), **ZEROS, model=Watches(2, 2), callback=Rounds(), runtime=runtime)
    _, *rounds, _ = seen  # networks are probed before the first
    assert all(of and set(of) <= set(range(1, 10)) for of in rounds)
    assert len(set(map(tuple, rounds))) == len(rounds) == 3


# ---------------------------------------------------------------- refusals
LR = us.SgdConfig(lr=-1.0)
REFUSED: dict[str, tuple[dict[str, Any], type[UnskewError], str]] = {
    "lr of a stranger": ({"methods": Halved(local=LR)}, ConfigError, r"^Halved\.local\.lr must be > 0"),
    "lr beside code": ({"methods": us.FedAvg(LR, terms=(pull,))}, ConfigError, r"^FedAvg\.local\.lr must be > 0"),
    "lr deep inside": (
        {"methods": us.FedProx(local=LR, sampling="size")}, ConfigError, r"^SizeSampled\.of\.local\.lr must be > 0"
    ),
    "one logit": ({"data": PAIR, "model": nn.Linear(4, 1)}, ConfigError, "give its last layer 2 outputs"),
    "another width": ({"data": PAIR, "model": nn.Linear(5, 2)}, ConfigError, r"^Linear cannot take .* shape \(4,\)"),
    "a module for several": (
        {"methods": "ifca", "data": PAIR, "model": nn.Linear(4, 2)}, ConfigError,
        "ifca: this method needs several initial models",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_by_its_name_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    changes, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        us.simulate(**{"methods": "fedavg", **TINY, **changes}, out=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- the package
def test_every_name_of_the_package_resolves_and_no_other() -> None:
    assert dir(us) == sorted(us.__all__)
    assert len(set(us.__all__)) == len(us.__all__)
    for name in us.__all__:
        assert getattr(us, name) is not None
    with pytest.raises(AttributeError, match="No unskew attribute fedfoo"):
        _ = us.fedfoo  # type: ignore[attr-defined]
    scope: dict[str, Any] = {}
    exec("from unskew import *", scope)
    assert set(us.__all__) <= set(scope)


def test_type_checkers_see_the_names_that_python_sees() -> None:
    """The stub is the one list; `import X as X` is how a stub says that X is public."""
    import ast

    tree = ast.parse(Path(us.__file__).with_suffix(".pyi").read_text("utf-8"))
    names = [a for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names]
    assert [a.asname for a in names] == [a.name for a in names]
    assert sorted(us.__all__) == sorted(a.name for a in names)


def test_every_setting_of_an_experiment_can_be_given_in_python() -> None:
    """What simulate does not take, TaskConfig and Runtime do, but for what concerns reporting alone.

    `seeds` takes the rule that is called `until` in an experiment.
    """
    import inspect

    given = set(inspect.signature(us.simulate).parameters)
    fields = {f.name for f in dataclasses.fields(Experiment)}
    assert fields - given == {"name", "until"}
