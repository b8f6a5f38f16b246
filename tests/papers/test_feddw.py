"""FedDW's reproductions."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from unskew.errors import RunError
from unskew.papers import Request, feddw, keep
from unskew.papers.result import Result, ran
from unskew.run.callbacks import NoCallback

SHARED = Path(__file__).parents[3] / "shared" / "data"
TOY = feddw.Ground("digits", "mlp", 1, 2, 16, 1e-2, 0.05, 1, train=300, test=100)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every data set is three hundred digits of 8x8, and a round or two are enough."""
    monkeypatch.setitem(feddw.GROUNDS, "small", dict.fromkeys(("mnist", "cifar10", "cifar100", "imdb"), TOY))
    monkeypatch.setitem(feddw.TABLE1_PLANS, "small", (("cifar10",), (0,)))
    monkeypatch.setitem(feddw.COMPATIBILITY_PLANS, "small", (("cifar10", (0, 1), 2), ("cifar100", (0,), 1)))
    monkeypatch.setitem(feddw.MU_PLANS, "small", ((0.0, 0.1, 10.0), (0, 1), 2))
    monkeypatch.setitem(feddw.CONSISTENCY_PLANS, "small", ((0, 1), 3))
    columns = (feddw.Scaled("standard"), feddw.Scaled("N=50", clients=15), feddw.Scaled("more rounds", work=(2, 1)))
    columns += (feddw.Scaled("N=100", clients=20),)
    monkeypatch.setitem(feddw.SCALE_PLANS, "small", (("fedavg", "fedper", "feddw"), (0, 1), columns))


def request(name: str, folder: Path) -> Request:
    return Request(f"feddw/{name}", "small", folder, SHARED, NoCallback())


def by(result: Result) -> dict[tuple[str, str, str], Any]:
    return {(r.method, r.setting, r.metric): r for r in result.rows}


# ---------------------------------------------------------------- published numbers
def test_table_1_is_whole_and_two_runs_of_it_crashed() -> None:
    assert len(feddw.TABLE1) == 12
    assert all(len(row) == len(feddw.COLUMNS) == 8 for row in feddw.TABLE1.values())
    assert [(m, feddw.COLUMNS[i]) for m, row in feddw.TABLE1.items() for i, v in enumerate(row) if v is None] == [
        ("perfedavg", ("pathological", "cifar10")),
        ("perfedavg", ("pathological", "cifar100")),
    ]


@pytest.mark.parametrize(
    ("method", "setting", "data", "value"),
    [
        ("fedavg", "practical", "mnist", 99.31),
        ("feduv", "practical", "imdb", 68.22),
        ("fedbabu", "pathological", "mnist", 96.78),
        ("fedproto", "pathological", "cifar100", 16.48),
        ("local", "pathological", "imdb", 51.11),
        ("feddw", "pathological", "cifar10", 57.73),
    ],
)
def test_published_accuracies_are_in_their_columns(method: str, setting: str, data: str, value: float) -> None:
    assert feddw.TABLE1[method][feddw.COLUMNS.index((setting, data))] == value


def test_the_papers_tables_agree_where_they_repeat_each_other() -> None:
    """Table II: "standard" is Table I's practical CIFAR-10 (FedAvg rounded), ResNet-18 the practical CIFAR-100.

    Table IV without the term is Table I's pathological CIFAR-100, and FedAvg with it is FedDW.
    """
    cifar10, cifar100 = (feddw.COLUMNS.index(("practical", d)) for d in ("cifar10", "cifar100"))
    hard = feddw.COLUMNS.index(("pathological", "cifar100"))
    assert feddw.TABLE2.keys() == feddw.TABLE1.keys()
    for method, row in feddw.TABLE2.items():
        assert len(row) == len(feddw.TABLE2_COLUMNS)
        assert row[0] == pytest.approx(feddw.TABLE1[method][cifar10], abs=0.05)
        assert row[5] == feddw.TABLE1[method][cifar100]
    assert [m for m, row in feddw.TABLE2.items() if None in row] == ["feduv"]
    for base in ("fedavg", "moon", "feduv", "fedprox"):
        assert feddw.TABLE4[base][0] == feddw.TABLE1[base][hard]
    assert feddw.TABLE4["fedavg"][1] == feddw.TABLE1["feddw"][hard]
    assert feddw.TABLE4["feddistill_plus"] == (43.96, 47.26)
    assert feddw.TABLE3["feddw"] / feddw.TABLE3["fedavg"] == pytest.approx(1.0037, abs=1e-4)


def test_personalised_methods_are_published_with_their_own_models_on_everybodys_test_set() -> None:
    own = {m for m, kind in feddw.PUBLISHED_AS.items() if kind == "PG"}
    assert own == {"fedrep", "fedproto", "fedala", "fedper", "local"}
    assert set(feddw.PUBLISHED_AS.values()) == {"G", "PG"}


# ---------------------------------------------------------------- what is run
@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_method_can_be_made_on_every_ground(scale: str) -> None:
    for name, ground in feddw.GROUNDS[scale].items():
        methods = feddw._methods(ground, (*feddw.TABLE1, "feddistill_plus"))
        methods += [feddw._with_term(m, ground.mu) for m in feddw._methods(ground, tuple(feddw.TABLE4))]
        task = {"data": ground.data, "model": ground.model, "model_options": dict(ground.options)}
        made = feddw._experiment(name, ground, task, feddw.SETTINGS["pathological"], methods, (0,))
        kinds = {m.label: m.algorithm for m in made.methods}
        assert kinds["feddw"].dw.mu == kinds["moon+dw"].dw.mu == ground.mu
        assert (kinds["perfedavg"].local.optimizer, kinds["perfedavg"].local.lr) == ("sgd", ground.outer)
        assert made.cohort(10) == 5


def test_a_local_epoch_on_the_head_is_one_less_on_the_body() -> None:
    """FedRep's five epochs at the published size are one on the head and four on the body."""
    paper = feddw.GROUNDS["paper"]["mnist"]
    task = {"data": "mnist", "model": paper.model}
    (rep, avg) = feddw._experiment("x", paper, task, None, feddw._methods(paper, ("fedrep", "fedavg")), (0,)).methods
    assert rep.algorithm.head_epochs + rep.algorithm.local.epochs == avg.algorithm.local.epochs == 5


def test_what_is_drawn_of_the_images_is_drawn_once(tmp_path: Path, toy: None) -> None:
    first, second = (feddw._task(request("x", tmp_path / w), TOY)["data"].removeprefix("npz:") for w in "ab")
    assert Path(first).read_bytes() == Path(second).read_bytes()
    assert feddw._task(request("x", tmp_path), replace(TOY, train=None, test=None))["data"] == "digits"


# ---------------------------------------------------------------- the reproductions at toy size
def test_table_1_names_every_accuracy_and_puts_the_papers_beside_its_own_kind(tmp_path: Path, toy: None) -> None:
    result = feddw.table1(request("table1", tmp_path))
    found = by(result)
    g, p, pg = (f"{name} ({kind})" for kind, name in feddw.ACCURACY.items())
    for (method, setting, metric), row in found.items():
        assert metric.endswith((" (G)", " (P)", " (PG)"))
        published = feddw.TABLE1[method][feddw.COLUMNS.index((setting.split(", ")[1], "cifar10"))]
        of_the_kind = metric == (g if feddw.PUBLISHED_AS[method] == "G" else pg)
        assert row.paper == (published / 100 if of_the_kind and published is not None else None)
    assert {(m, s) for m, s, _ in found} == {(m, f"cifar10, {s}") for m in feddw.TABLE1 for s in feddw.SETTINGS}
    assert {m for m, _, metric in found if metric == p} == set(feddw.TABLE1)
    assert {m for m, _, metric in found if metric == g} == set(feddw.TABLE1) - {"fedrep", "fedproto", "fedper", "local"}
    assert found["feddw", "cifar10, practical", g].seeds == found["feddw", "cifar10, practical", pg].seeds
    # FedDW is published above all eleven on CIFAR-10, but one of them crashed on pathological data.
    assert len(result.claims) == 11 + 10
    assert "feddw (G) ends above fedper (PG) on cifar10, practical" in {c.text for c in result.claims}


def test_nothing_is_claimed_where_the_paper_has_feddw_no_higher() -> None:
    """MNIST: FedUV has the same mean on practical data, FedBABU a higher one on pathological data."""
    published = feddw.TABLE1["feddw"]
    above = {
        at: {m for m, row in feddw.TABLE1.items() if row[at] is not None and row[at] < published[at]}  # type: ignore[operator]
        for at in (0, 4)
    }
    assert set(feddw.TABLE1) - above[0] == {"feddw", "feduv"}
    assert set(feddw.TABLE1) - above[4] == {"feddw", "fedbabu"}


def test_the_term_is_compared_with_the_same_method_without_it(tmp_path: Path, toy: None) -> None:
    result = feddw.compatibility(request("compatibility", tmp_path))
    found, g = by(result), "global.accuracy (G)"
    for base, (without, mixed) in feddw.TABLE4.items():
        own = "cifar10, pathological"
        apart = found[f"{base}+dw", own, "global.accuracy.minus_base (G)"]
        pairs = zip(found[f"{base}+dw", own, g].seeds, found[base, own, g].seeds, strict=True)
        assert apart.seeds == pytest.approx([a - b for a, b in pairs])
        assert (found[base, own, g].paper, apart.paper) == (None, None)
        there = "cifar100, pathological"
        assert (found[base, there, g].paper, found[f"{base}+dw", there, g].paper) == (without / 100, mixed / 100)
    assert len(result.claims) == 2 * len(feddw.TABLE4)
    assert [name for name, _ in result.figures] == ["cifar10.svg", "cifar100.svg"]
    for _, svg in result.figures:
        assert all(f">{base}<" in svg.decode() for base in feddw.TABLE4)


def test_accuracy_is_found_for_every_strength(tmp_path: Path, toy: None) -> None:
    result = feddw.mu(request("mu", tmp_path))
    methods = {"fedavg", "feddw mu=0", "feddw mu=0.1", "feddw mu=10"}
    assert {(r.method, r.setting) for r in result.rows} == {
        (m, f"cifar10, {s}") for m in methods for s in feddw.SETTINGS
    }
    # Three strengths against FedAvg and the paper's against two others, under two settings.
    assert len(result.claims) == 2 * (3 + 2)
    assert [name for name, _ in result.figures] == ["mu.svg"]


def test_distances_are_those_of_every_round_and_the_figures_are_kept(tmp_path: Path, toy: None) -> None:
    result = feddw.consistency(request("consistency", tmp_path / "runs"))
    assert [(c.name, c.x) for c in result.curves] == [
        (name, (1.0, 2.0, 3.0)) for name in ("fedavg, IID", "fedavg, non-IID", "feddw, non-IID", "feddw mu=10, non-IID")
    ]
    found = by(result)
    for curve in result.curves:
        method, setting = curve.name.split(", ")
        row = found[method, f"cifar10, {setting}", "sl_cr_distance.last"]
        assert curve.mean[-1] == pytest.approx(row.ours)
        assert 0.0 < row.ours < 20**0.5
    assert len(result.claims) == 3
    folder = keep(result, tmp_path / "kept")
    drawn = {p.name for p in folder.glob("*.svg")}
    relations = {f"relations-{which}-iid.svg" for which in ("fedavg", "fedavg-non", "feddw-non", "feddw-mu-10-non")}
    assert drawn == {"plot.svg", "features.svg", "norms.svg", *relations}
    assert all(f"]({name})" in (folder / "README.md").read_text("utf-8") for name in drawn)


def test_class_norms_stand_against_the_shares_of_the_last_cohort(tmp_path: Path, toy: None) -> None:
    """Half of the clients of seed 0 and 1 trained last; the norms are those of the models that were kept."""
    feddw.consistency(request("consistency", tmp_path))
    drawn = feddw._norms(tmp_path / "non-IID", "feddw")
    assert len(drawn) == 2
    for seed, (shares, norms) in enumerate(drawn):
        assert sum(shares) == pytest.approx(1.0)
        assert max(shares) - min(shares) > 0.02
        file = tmp_path / "non-IID" / "models" / f"feddw-seed{seed}.safetensors"
        weight = safetensors.torch.load(file.read_bytes())["head.weight"]
        assert norms == pytest.approx(weight.norm(dim=1).tolist(), abs=1e-5)


def test_fedavg_is_not_changed_by_being_watched(tmp_path: Path, toy: None) -> None:
    watched = {**feddw._WATCHED, "label": "watched"}
    task = feddw._task(request("x", tmp_path), TOY)
    methods = [{"name": "fedavg"}, watched]
    experiment = feddw._experiment("x", TOY, task, feddw.SETTINGS["practical"], methods, (0, 1))
    found = ran(experiment, tmp_path / "run", NoCallback())
    losses = {m: [r["value"] for r in found.rows if (r["method"], r["name"]) == (m, "global.loss")] for m in
              ("fedavg", "watched")}  # fmt: skip
    assert losses["fedavg"] == losses["watched"]


def test_scaling_keeps_the_papers_columns_apart(tmp_path: Path, toy: None) -> None:
    result = feddw.scale(request("scale", tmp_path))
    papers = {
        (r.method, r.setting.split(": ")[0]): r.paper
        for r in result.rows
        if r.paper is not None and (".best" not in r.metric)
    }
    assert papers == {
        (m, f"digits, {column}"): feddw.TABLE2[m][feddw.TABLE2_COLUMNS.index(column)] / 100  # type: ignore[operator]
        for m in ("fedavg", "fedper", "feddw")
        for column in ("standard", "N=50", "N=100", "more rounds")
    }
    assert len(result.claims) == 4 * 2 + 2
    assert any("15 clients, 1 rounds of 2" in r.setting for r in result.rows)


DIVERGED = "diverged in seed 0, round 1"


@pytest.fixture
def too_fast(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Gives one of the methods a learning rate that no run survives."""

    def make(label: str) -> None:
        methods = feddw._methods

        def known(ground: feddw.Ground, labels: Any) -> list[dict[str, Any]]:
            fast = {"local": {"optimizer": "sgd", "lr": 1e30}}
            return [{**m, **(fast if m["label"] == label else {})} for m in methods(ground, labels)]

        monkeypatch.setattr(feddw, "_methods", known)

    return make


def test_a_method_that_diverges_is_a_row_and_the_rest_goes_on(tmp_path: Path, toy: None, too_fast: Any) -> None:
    too_fast("moon")
    result = feddw.table1(request("table1", tmp_path))
    lost = [r for r in result.rows if r.method == "moon"]
    at = {s: feddw.COLUMNS.index((s, "cifar10")) for s in feddw.SETTINGS}
    assert [(r.setting, r.metric, r.paper, r.ours, r.std, r.seeds, r.note) for r in lost] == [
        (f"cifar10, {s}", "global.accuracy (G)", feddw.TABLE1["moon"][at[s]] / 100, None, None, (), DIVERGED)  # type: ignore[operator]
        for s in feddw.SETTINGS
    ]
    assert {r.method for r in result.rows if r.ours is not None} == set(feddw.TABLE1) - {"moon"}
    about = [c for c in result.claims if "above moon" in c.text]
    assert [(c.holds, c.evidence) for c in about] == [(None, f"moon {DIVERGED}")] * 2
    assert len(result.claims) == 11 + 10
    page = (keep(result, tmp_path / "kept") / "README.md").read_text("utf-8")
    assert f"| moon | cifar10, practical | {DIVERGED} (64.33) |" in page


@pytest.mark.parametrize("name", ["compatibility", "mu", "consistency", "scale"])
def test_every_reproduction_outlives_a_method(name: str, tmp_path: Path, toy: None, too_fast: Any) -> None:
    too_fast(label := {"compatibility": "moon", "mu": "fedavg", "consistency": "feddw", "scale": "feddw"}[name])
    result = getattr(feddw, name)(request(name, tmp_path))
    assert {r.note for r in result.rows if r.method == label} == {DIVERGED}
    touched = [c for c in result.claims if c.evidence.endswith(DIVERGED)]
    assert touched
    assert all(c.holds is None for c in touched)
    assert [r for r in result.rows if r.ours is not None]
    assert keep(result, tmp_path / "kept").is_dir()


def test_a_reproduction_that_was_stopped_is_not_mixed_with_another(tmp_path: Path, toy: None) -> None:
    feddw.mu(request("mu", tmp_path))
    again = feddw.mu(request("mu", tmp_path))
    assert {r.method for r in again.rows} == {"fedavg", "feddw mu=0", "feddw mu=0.1", "feddw mu=10"}
    feddw.MU_PLANS["small"] = ((0.0, 0.5), (0, 1), 2)  # the fixture puts it back
    with pytest.raises(RunError, match="another experiment"):
        feddw.mu(request("mu", tmp_path))


# ---------------------------------------------------------------- overhead
def _measured(case: str, contender: str, ratio: float, bar: float | None = None) -> dict[str, Any]:
    row = {"case": case, "contender": contender, "ratio": ratio, "low": ratio - 0.01, "high": ratio + 0.01}
    return {**row, "ratio_of_minima": ratio, "turns": 9, **({} if bar is None else {"bar": bar, "met": ratio <= bar})}


@pytest.mark.parametrize(("ratio", "verdict"), [(1.01, True), (1.025, True), (1.05, False)])
def test_an_overhead_is_held_against_its_bar(
    ratio: float, verdict: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the median; the middle half, which reaches 0.01 to both sides, stands beside it.  The bar is 1.03."""
    rows = [_measured("resnet18/b128", who, 1.0) for who in ("fedavg", "fedavg again", "soft labels", "term")]
    rows.append(_measured("resnet18/b128", "feddw", ratio, 1.03))
    rows.append(_measured("resnet18/b128", "perfedavg", 1.9))
    rows += [_measured("mlp/b128", who, 1.0) for who in ("fedavg", "fedavg again", "soft labels", "feddw")]
    monkeypatch.setattr(feddw, "measure", lambda turns, say: rows)
    result = feddw.overhead(request("overhead", tmp_path))
    (claim,) = result.claims
    assert claim.holds is verdict
    assert f"median {ratio:.3f}, middle half [{ratio - 0.01:.3f}, {ratio + 0.01:.3f}]" in claim.evidence
    found = by(result)
    assert found["feddw", "resnet18/b128", "cpu_time.ratio"].paper == pytest.approx(16.11 / 16.05)
    assert found["feddw", "mlp/b128", "cpu_time.ratio"].paper is None
    assert found["perfedavg", "resnet18/b128", "cpu_time.ratio"].paper == pytest.approx(19.17 / 16.05)


def test_what_the_benchmark_measures_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from unskew.bench import feddw as bench

    monkeypatch.setattr(bench, "CASES", tuple(c for c in bench.CASES if c.model == "cnn_cifar10"))
    monkeypatch.setitem(feddw.OVERHEAD_PLANS, "small", 2)
    result = feddw.overhead(request("overhead", tmp_path))
    assert {r.method for r in result.rows} == {*feddw.TABLE3, "fedavg again", "soft-label pass alone"} - {"fedavg"}
    assert all(r.ours > 0 for r in result.rows)
    assert len(result.claims) == 1


# ---------------------------------------------------------------- real data
@pytest.mark.slow
@pytest.mark.parametrize(("data", "rounds"), [("mnist", 1), ("cifar10", 1), ("imdb", 4)])
def test_every_network_of_table_1_learns_on_the_data_at_hand(data: str, rounds: int, tmp_path: Path) -> None:
    if not (SHARED / data).is_dir():
        pytest.skip(f"{SHARED / data} is not here")
    ground = replace(feddw.GROUNDS["small"][data], rounds=rounds, epochs=1)
    task = feddw._task(request("x", tmp_path), ground)
    experiment = feddw._experiment("x", ground, task, None, feddw._methods(ground, ("feddw",)), (0,))
    found = ran(experiment, tmp_path / "r", NoCallback())
    losses = [r["value"] for r in found.rows if r["name"] == "global.loss"]
    assert losses[-1] < losses[0]
