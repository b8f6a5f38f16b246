"""FedDistr's reproductions: what is published, what is counted and claimed, and toy runs of all three."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from toy_prior import toy as toy_prior

from unskew import papers
from unskew.api import History
from unskew.data import sources
from unskew.errors import ConfigError, DataError
from unskew.papers import Request, feddistr
from unskew.papers.feddistr import Ground, Level, Noises, Rounds, counted, nearest, reaching, slower, within
from unskew.papers.result import Result, Row, ordered
from unskew.run.callbacks import NoCallback

SHARED = Path(__file__).parents[3] / "shared"
SEEDS = (0, 1)


# ---------------------------------------------------------------- published numbers
def published() -> str:
    spec = SHARED / "spec" / "systems.md"
    if not spec.is_file():
        pytest.skip(f"{spec} is not here")
    return spec.read_text("utf-8").split("## F4.")[1].split("## F5.")[0]


def test_table_2_is_transcribed() -> None:
    lines = [[c.strip() for c in line.strip("|").split("|")] for line in published().splitlines() if line[:3] == "| 0"]
    units = {"M": 1e6, "K": 1e3}
    found = {(float(xi), method): (int(n), float(p[:-1]) * units[p[-1]]) for xi, method, n, p in lines}
    assert found == {
        **{(xi, "FedAvg"): (n, feddistr.FEDAVG_NUMBERS) for xi, n in feddistr.TABLE2.items()},
        **{(xi, "FedDistr"): (1, feddistr.FEDDISTR_NUMBERS) for xi in feddistr.TABLE2},
    }


def test_utility_losses_of_the_text_are_transcribed() -> None:
    ours, moons, everywhere = (int(n) / 100 for n in re.findall(r"(\d+) %", published()))
    assert {"feddistr": ours, "moon": moons} == feddistr.UTILITY_LOSS
    assert everywhere == ours


def test_subclasses_are_pairs_of_ten_superclasses() -> None:
    file = SHARED / "data" / "cifar100" / "cifar100.npz"
    if not file.is_file():
        pytest.skip(f"{file} is not here")
    with np.load(file) as arrays:
        coarse = dict(zip(arrays["y_train"].tolist(), arrays["c_train"].tolist(), strict=True))
    pairs = [tuple(coarse[fine] for fine in pair) for pair in feddistr.SUBCLASSES]
    assert pairs == [(c, c) for c in range(10)]
    assert all(a != b for a, b in feddistr.SUBCLASSES)


# ---------------------------------------------------------------- data
PLACES = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a `usps` of 4 x 4 pixels: a bright row or column, whose place is the label."""
    rng = np.random.default_rng(0)
    x, y = np.full((240, 4, 4), 70, np.uint8), np.tile(np.arange(PLACES), 40)
    for image, place in zip(x, y, strict=True):
        (image if place < 4 else image.T)[place % 4] = 220
    x = np.clip(x + rng.integers(-12, 13, x.shape), 0, 255).astype(np.uint8)
    x[0, 0, 0], x[0, 3, 3] = 0, 255
    root = tmp_path_factory.mktemp("data")
    np.savez(root / "usps.npz", x_train=x[:180], y_train=y[:180], x_test=x[180:], y_test=y[180:])
    return root


QUICK = {"lr": 0.02, "local_steps": 40, "optimizer": "adam"}
GROUND = Ground(
    "usps",
    "mlp",
    {"lr": 0.1, "local_epochs": 1, "batch_size": 16},
    {"hidden": [12]},
    {
        "feddistr": {"steps": 20, "images": 12, "classifier": QUICK},
        "fedpft": {"m": 1, "images": 12, "classifier": QUICK},
    },
)


@pytest.fixture
def _toy() -> Iterator[None]:
    threads = torch.get_num_threads()
    with toy_prior():
        yield
    torch.set_num_threads(threads)


def request(name: str, where: Path, data_dir: Path | None, scale: str = "small") -> Request:
    return Request(f"feddistr/{name}", scale, where, data_dir, NoCallback())


def test_images_that_are_drawn_keep_their_levels(folder: Path, tmp_path: Path) -> None:
    """What a prior sees of 90 of 180 images is what it sees of the file."""
    task = feddistr._task(request("x", tmp_path, folder), replace(GROUND, train=90, test=30))
    with np.load(folder / "usps.npz") as whole, np.load(tmp_path / "data" / "usps.npz") as part:
        assert part["x_train"].dtype == np.uint8
        assert (len(part["x_train"]), len(part["x_test"])) == (90, 30)
        rows = [np.flatnonzero((whole["x_train"] == image).all((1, 2))) for image in part["x_train"]]
        assert all(len(r) == 1 for r in rows)
        assert (whole["y_train"][np.concatenate(rows)] == part["y_train"]).all()
    assert sources.load(task["data"]).levels is not None


def test_all_images_are_read_where_they_lie(folder: Path, tmp_path: Path) -> None:
    task = feddistr._task(request("x", tmp_path, folder), GROUND)
    assert (task["data"], task["data_dir"]) == ("usps", str(folder))


def test_the_papers_scale_is_refused_without_the_prior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("tradeoff", "communication", "privacy"):
        with pytest.raises(ConfigError, match=r"needs the package diffusers.*unskew\[diffusion\]"):
            papers.reproduce(f"feddistr/{name}", "paper", tmp_path / name, None, NoCallback())


def hundred(root: Path, each: int) -> None:
    y = np.repeat(np.arange(100), each)
    x = np.stack([np.full((2, 2, 3), label, np.uint8) for label in y])
    np.savez(root / "cifar100.npz", x_train=x, y_train=y, x_test=x[::each], y_test=y[::each])


def test_the_papers_scale_is_refused_on_a_part_of_cifar_100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feddistr, "_check", lambda grounds: None)
    hundred(tmp_path, 2)
    for name in ("tradeoff", "communication", "privacy"):
        with pytest.raises(DataError, match=r"needs all of CIFAR-100, 500 training images of a class, and .* has 2"):
            papers.reproduce(f"feddistr/{name}", "paper", tmp_path / name, tmp_path, NoCallback())


def test_a_superclass_is_the_label_and_its_subclass_the_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every image is as bright as its label of CIFAR-100; there are two of each."""
    monkeypatch.setattr(feddistr, "PER_SUBCLASS", 2)
    hundred(tmp_path, 2)
    task = feddistr._task(request("x", tmp_path, tmp_path), feddistr.CIFAR100)
    with np.load(tmp_path / "data" / "cifar100.npz") as made:
        fine = made["x_train"][:, 0, 0, 0].tolist()
        for brightness, label, domain in zip(fine, made["y_train"], made["domain_train"], strict=True):
            # The brightest of the file, 99, has become 255.
            assert round(brightness * 99 / 255) == feddistr.SUBCLASSES[label][domain]
        assert len(made["x_test"]) == 20
    assert sources.load(task["data"]).group_names == ("first", "second")


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_every_scale_describes_possible_experiments(scale: str) -> None:
    for plan in (feddistr.TRADEOFF[scale], feddistr.COMMUNICATION[scale]):
        for ground in plan.grounds:
            task = {"data": "digits", "model": ground.model, "model_options": dict(ground.options)}
            methods = [ground.method(m) for m in ("feddistr", "fedpft", *feddistr.BASELINES)]
            made = feddistr._experiment("x", ground, task, 0.057, methods, plan.seeds, plan.rounds)
            assert {m.label for m in made.methods} == {"feddistr", "fedpft", *feddistr.BASELINES}
            assert made.methods[2].algorithm.local.lr == ground.local["lr"]
    assert feddistr.TRADEOFF[scale].levels == (0.0, 0.003, 0.057, 0.385)
    noises = feddistr.PRIVACY[scale]
    assert list(noises.sigmas) == sorted(noises.sigmas)
    assert noises.ground.method("feddistr").get("m") != "oracle"


# ---------------------------------------------------------------- what is counted and claimed
def test_several_differences_are_within_a_margin_if_all_are() -> None:
    """.01, .02, .03: .02 ± 4.3027 x .01 / sqrt(3) = ± .0248, inside .05; .08, .09, .1: .09 ± .0248, outside."""
    inside, outside, unclear = [0.01, 0.02, 0.03], [0.08, 0.09, 0.10], [-0.06, 0.0, 0.06]
    assert within("", {"a": inside, "b": [0.0, 0.0, 0.0]}, 0.05).holds is True
    assert within("", {"a": inside, "b": unclear}, 0.05).holds is None
    claim = within("", {"a": inside, "b": unclear, "c": outside}, 0.05)
    assert claim.holds is False
    assert claim.evidence.startswith("of 3 differences the largest: c +9.00 points, 95 % interval [+6.52, +11.48]")


def test_counts_that_are_all_alike_decide_by_their_sign() -> None:
    assert counted("", [3.0, 3.0], "rounds").holds is True
    assert counted("", [0.0, 0.0], "rounds").holds is False
    assert counted("", [3.0], "rounds").holds is None
    assert counted("", [-30.0, 20.0], "rounds").holds is None
    assert counted("", [10.0, 11.0, 12.0], "rounds").evidence.startswith("+11.0 rounds, 95 % interval [+8.5, +13.5]")


def test_an_accuracy_is_reached_in_the_first_round_that_has_it() -> None:
    accuracy = {0: [0.9, 0.9, 0.9], 1: [0.2, 0.7, 0.3], 2: [0.8, 0.6, 0.3], 3: [0.7, 0.9, 0.3]}
    assert reaching(accuracy, [0.75, 0.65, 0.5]) == [2, 1, None]
    # 1 / 3 + 1 / 3 + 1 / 3 of clients' models may be a hair above what it is the mean of.
    assert reaching({1: [0.3]}, [0.1 + 0.2]) == [1]


def test_what_was_not_reached_took_one_round_more_at_least() -> None:
    assert slower("", (0.0, [30, 40]), (0.1, [10, 21]), 60).holds is True
    late = slower("", (0.0, [None, None]), (0.1, [10, 10]), 60)
    assert late.holds is True
    assert "+51.0 rounds (at least: not reached within 60 rounds in 2 of 2 seeds) in each" in late.evidence
    assert slower("", (0.0, [10, 10]), (0.1, [30, 30]), 60).holds is False
    lost = slower("", (0.0, [30, 40]), (0.1, [10, None]), 60)
    assert lost.holds is None
    assert lost.evidence == "at 0.1 not reached within 60 rounds in 1 of 2 seeds"


def level(xi: float, mine: Sequence[float], others: Sequence[float], first: Sequence[float]) -> Level:
    errors = {
        **dict.fromkeys(("feddistr", "feddistr (server)"), mine),
        **dict.fromkeys((*feddistr.BASELINES, "fedpft", "fedpft (server)", "oneshot", "ensemble", "alone"), others),
    }
    return Level(xi, History([], {}, None), errors, dict.fromkeys(feddistr.BASELINES, first))


def test_the_papers_claims_hold_where_its_figures_are_so_and_fail_where_they_are_not() -> None:
    """Of three seeds: .2, .21, .205, rivals .4, .42, .41 in the end and .6, .62, .61 after one round, at both xi.

    Differences: .2, .21, .205 in the end, .3, .31, .305 beyond ten points: .205 and .305 ± .0124, and ± .0365 for the
    eight comparisons of the first round.
    """
    mine, others, first = [0.2, 0.21, 0.205], [0.4, 0.42, 0.41], [0.6, 0.62, 0.61]
    good = feddistr._tradeoff_claims("usps", [level(0.0, mine, others, first), level(0.385, mine, others, first)])
    assert [c.holds for c in good] == [True] * 8
    bad = feddistr._tradeoff_claims("usps", [level(0.0, others, mine, mine), level(0.385, first, mine, mine)])
    assert [c.holds for c in bad] == [False] * 8
    assert len({c.text for c in good}) == 8
    assert not [c.text for c in good if "all others" in c.text]
    unclear = feddistr._tradeoff_claims(
        "usps", [level(0.0, [0.2, 0.3], [0.3, 0.2], [0.4, 0.3]), level(0.385, [0.3, 0.2], [0.4, 0.42], [0.4, 0.3])]
    )
    assert [c.holds for c in unclear] == [None] * 8


@pytest.mark.parametrize("who", ["feddistr", "feddistr (server)"])
def test_cheaper_rivals_are_compared_at_every_level_and_for_both_models(who: str) -> None:
    """Ahead of each rival at both levels but of one at the second, by which it is beaten clearly."""
    mine, others, first = [0.2, 0.21], [0.4, 0.42], [0.6, 0.62]
    rivals = ("fedpft" if who == "feddistr" else "fedpft (server)", "oneshot", "ensemble")
    for rival in rivals:
        beaten = level(0.385, mine, others, first)
        beaten = replace(beaten, errors={**beaten.errors, rival: [0.05, 0.06]})
        claims = feddistr._tradeoff_claims("usps", [level(0.0, mine, others, first), beaten])
        (claim,) = (c for c in claims if "one round, Gaussian mixtures" in c.text and f": {who} errs" in c.text)
        assert claim.holds is False
        assert f"of 6 differences, 1 of them below zero, the smallest: {rival} at xi 0.385" in claim.evidence


def test_one_of_many_intervals_below_zero_refutes_nothing_by_itself() -> None:
    """-.05, -.04, -.03: -.04 ± t s / sqrt(3), s = .01.

    Student's t with two degrees of freedom is 4.303 at 97.5 %, 7.649 at 99.17 % and 10.886 at 99.58 %: half a width of
    .0248 alone, .0442 of three, .0628 of six.  So it lies below zero alone and not among three or more.
    """
    above, below = [0.10, 0.11, 0.12], [-0.05, -0.04, -0.03]
    assert ordered("", {"a": below}).holds is False
    assert ordered("", {"a": below, "b": above, "c": above}).holds is None
    claim = ordered("", {"a": below, **dict.fromkeys("bcdef", above)})
    assert claim.holds is None
    assert claim.evidence == (
        "of 6 differences the smallest: a -4.00 points, 95 % interval [-6.48, -1.52], [-10.28, +2.28] for 6 comparisons"
    )
    assert ordered("", {"a": [-0.51, -0.5, -0.49], **dict.fromkeys("bcdef", above)}).holds is False
    assert ordered("", dict.fromkeys("abcdef", above)).holds is True
    assert ordered("", {"a": above, "b": [0.1]}).holds is None
    assert ordered("", {"a": above, "b": [-0.1, -0.1]}).holds is False
    assert ordered("", {}).holds is None


def test_noise_is_claimed_to_cost_and_images_not_to_be_copies() -> None:
    plan = replace(feddistr.PRIVACY["small"], sigmas=(0.1, 0.2))
    rising = {feddistr.PLAIN: [0.1, 0.12, 0.11], "sigma 0.1": [0.2, 0.23, 0.21], "sigma 0.2": [0.3, 0.34, 0.31]}
    falling = dict(zip(rising, reversed(list(rising.values())), strict=True))
    far, near = [0.8, 0.82, 0.81], [0.4, 0.41, 0.4]
    good = feddistr._privacy_claims(plan, rising, rising, {feddistr.PLAIN: far}, near)
    assert [c.holds for c in good] == [True] * 7
    bad = feddistr._privacy_claims(plan, falling, falling, {feddistr.PLAIN: near}, far)
    assert [c.holds for c in bad] == [False] * 7
    # Without embeddings to make images of nothing is said of copies.
    assert len(feddistr._privacy_claims(plan, rising, rising, {}, [])) == 6


def test_the_nearest_image_is_measured_in_distances_of_private_ones() -> None:
    """Private ones at 0, 2, 4, 8 are 2, 2, 2, 4 from the next; an image at 3.5 is .5 from one: .25 medians."""
    private = torch.tensor([0.0, 2.0, 4.0, 8.0])[:, None, None, None]
    assert nearest(torch.tensor([3.5, 20.0])[:, None, None, None], private) == 0.25


# ---------------------------------------------------------------- toy runs
def rows(result: Result) -> dict[tuple[str, str, str], Row]:
    found = {(r.method, r.setting, r.metric): r for r in result.rows}
    assert len(found) == len(result.rows)
    return found


def test_all_three_are_in_the_table() -> None:
    for name in ("tradeoff", "communication", "privacy"):
        assert papers.TABLE[f"feddistr/{name}"].target == f"unskew.papers.feddistr:{name}"


@pytest.mark.usefixtures("_toy")
def test_one_round_is_set_beside_many(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(feddistr.TRADEOFF, "small", Rounds((GROUND,), (0.0, 0.385), 3, SEEDS))
    result = feddistr.tradeoff(request("tradeoff", tmp_path, folder))
    found = rows(result)
    at = "usps, xi 0"
    names = {m for m, where, metric in found if (where, metric) == (at, "error")}
    assert names == {*feddistr.BASELINES, "feddistr", "fedpft", "oneshot", "ensemble", "alone"}
    assert found["feddistr", "usps, xi 0.385", "error"].paper == 0.4
    assert found["moon", at, "error"].paper == 0.6
    assert found["moon", "usps, xi 0.385", "error"].paper is None
    assert found["feddistr", at, "error"].seeds == found["feddistr", at, "error.first"].seeds
    # Four clients of five own one label of six.  Alone they know no other; what is imagined tells them all.
    assert found["alone", at, "error"].ours > 0.7
    assert found["feddistr", at, "error"].ours < 0.4
    assert found["feddistr", at, "error.server"].ours < 0.2
    # 3 rounds of a model down and up against embeddings of 16 numbers.
    sent = found["fedavg", at, "bytes.total"].ours
    assert sent == pytest.approx(3 * found["oneshot", at, "bytes.total"].ours)
    assert sent == pytest.approx(6 * found["ensemble", at, "bytes.total"].ours, rel=0.05)
    assert found["fedavg", at, "numbers"].ours == sent / 4
    assert found["scaffold", at, "bytes.total"].ours > 1.9 * sent
    assert found["feddistr", at, "embeddings.sent"].seeds == found["feddistr", at, "embeddings.kept"].seeds
    assert found["split", at, "xi.realised"].ours == 0.0
    assert found["split", "usps, xi 0.385", "xi.realised"].ours == pytest.approx(0.385, abs=0.05)
    assert len(result.claims) == 8
    assert {c.name for c in result.curves} == {*feddistr.BASELINES, *feddistr.ONCE}
    assert [name for name, _ in result.figures] == ["rounds-usps-xi-0.385.svg", "xi-usps.svg"]
    # What was begun is not begun again.
    assert feddistr.tradeoff(request("tradeoff", tmp_path, folder)).rows == result.rows


def test_members_are_averaged_by_one_shot_averaging_and_vote_here(folder: Path, tmp_path: Path) -> None:
    """The mean of the members, weighted by their examples, is what one-shot averaging serves of the same clients."""
    ground, worth = GROUND, {"rounds_worth": 2}
    task = feddistr._task(request("x", tmp_path, folder), ground)
    runs = {}
    for name, evaluate in (("oneshot", ("global",)), (f"{feddistr.__name__}:Ensemble", ("personal_on_global",))):
        methods = [{"name": name, "label": "it", **worth}]
        experiment = feddistr._experiment("x", ground, task, 0.057, methods, (0,), 2, evaluate)
        runs[name] = feddistr.ran(experiment, tmp_path / name.rpartition(":")[2], NoCallback()).path / "models"
    averaged, members = (safetensors.torch.load((p / "it-seed0.safetensors").read_bytes()) for p in runs.values())
    partition = feddistr.read_json(tmp_path / "oneshot" / "partition.json")["seeds"]["0"]
    n = torch.tensor([len(c["train"]) for c in partition["clients"]], dtype=torch.float64)
    for name, tensor in averaged.items():
        mean = sum(w * members[f"{c}/{name}"] for c, w in enumerate((n / n.sum()).tolist()))
        assert torch.allclose(mean, tensor, atol=1e-5), name


def test_a_class_wins_with_the_largest_mean_probability(folder: Path, tmp_path: Path) -> None:
    """Constant members: logits (3, 0, 0, ...), (0, 1, 0, ...) and (0, 1, 0, ...).

    Of ten classes, 0 has e^3 / (e^3 + 9) = .69 and twice 1 / (e + 9) = .09, 1 has .03 and twice .23: 0 wins, though two
    of three would choose 1.  A sixth of the test images has label 0.
    """
    members = {}
    for c, (place, logit) in enumerate(((0, 3.0), (1, 1.0), (1, 1.0))):
        bias = torch.zeros(10)
        bias[place] = logit
        members |= {f"{c}/head.weight": torch.zeros(10, 16), f"{c}/head.bias": bias}
    file = tmp_path / "members.safetensors"
    file.write_bytes(safetensors.torch.save(members))
    ground = Ground("usps", "logistic", {})
    assert feddistr.voted(ground, sources.load("usps", folder), file) == pytest.approx(5 / 6)


ROUNDS = 40
"""Enough for FedAvg to be as good as FedDistr under both seeds of the toy."""


@pytest.mark.usefixtures("_toy")
def test_fedavg_is_followed_until_it_is_as_good(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(feddistr.COMMUNICATION, "small", Rounds((GROUND,), (0.0, 0.057), ROUNDS, SEEDS))
    result = feddistr.communication(request("communication", tmp_path, folder))
    found = rows(result)
    for xi in ("0", "0.057"):
        at = f"usps, xi {xi}"
        # 16 inputs, 12 hidden units, ten classes, of which six occur.
        assert found["fedavg", at, "numbers.once"].ours == 16 * 12 + 12 + 12 * 10 + 10
        assert found["fedavg", at, "numbers.once"].paper == 11.7e6
        once = found["feddistr", at, "numbers.once"]
        assert once.paper == 30e3
        assert all(n % 16 == 0 for n in once.seeds)
        assert found["fedavg", at, "reached.to_clients"].seeds == (1.0, 1.0)
        rounds = found["fedavg", at, "rounds.to_clients"]
        assert rounds.paper == feddistr.TABLE2[float(xi)]
        assert all(1 <= t <= ROUNDS for t in rounds.seeds)
        each = (found["fedavg", at, "bytes.up"].ours + found["fedavg", at, "bytes.down"].ours) / ROUNDS
        for t, spent in zip(rounds.seeds, found["fedavg", at, "bytes.to_clients"].seeds, strict=True):
            assert spent == pytest.approx(t * each)
    assert [c.text.partition(": ")[2] for c in result.claims if "xi 0:" in c.text] == [
        "FedAvg transmits more until it is as good as FedDistr's clients",
        "FedAvg needs more than one round to be as good as FedDistr's clients",
        "FedAvg transmits more until it is as good as FedDistr's server",
        "FedAvg needs more than one round to be as good as FedDistr's server",
    ]
    assert result.claims[-1].text == "usps: FedAvg needs more rounds at xi = 0 than at 0.057"


@pytest.mark.usefixtures("_toy")
@pytest.mark.parametrize("accountant", [False, True])
def test_noise_needs_no_accountant_and_is_accounted_for_by_one(
    accountant: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sigma .5 is a multiplier of .25, and three embeddings of a label may change."""

    def epsilon(multiplier: float, releases: int, delta: float) -> float:
        if not accountant:
            raise ConfigError("the accountant is not installed")
        assert (releases, delta) == (3, 1e-5)
        return 1 / multiplier

    monkeypatch.setattr("unskew.server.privacy.epsilon", epsilon)
    monkeypatch.setitem(feddistr.PRIVACY, "small", Noises(GROUND, 0.0, (0.01, 0.5), SEEDS, 4))
    result = feddistr.privacy(request("privacy", tmp_path, folder))
    found = rows(result)
    at = "usps, xi 0"
    assert found["sigma 0.5", at, "error"].ours > found["no noise", at, "error"].ours + 0.1
    assert found["sigma 0.5", at, "closest"].ours > found["no noise", at, "closest"].ours > 0.0
    assert len(found["real images", at, "closest"].seeds) == 2
    assert {m for m, _, metric in found if metric == "epsilon"} == (
        {"sigma 0.01", "sigma 0.5"} if accountant else set()
    )
    if accountant:
        assert found["sigma 0.5", at, "epsilon"].ours == 4.0
    assert ("needs the extra [dp]" in result.about) is not accountant
    assert [c.name for c in result.curves] == ["clients", "server"]
    assert len(result.claims) == 7
