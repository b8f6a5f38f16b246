import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from unskew.data import fonts
from unskew.data.assign import assign
from unskew.data.dataset import Dataset
from unskew.data.domains import Part, coloured, join
from unskew.data.federated import federate, from_manifest, to_manifest
from unskew.data.fonts import printed
from unskew.data.sources import load
from unskew.data.split import ByGroup, record
from unskew.errors import ConfigError, DataError
from unskew.experiment import config
from unskew.keys import Key
from unskew.run.doctor import _data

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real data sets of ../shared/data are not here")

BUILTIN = Path(config.__file__).parent / "builtin"

LUMA = np.array([0.299, 0.587, 0.114])
Images = npt.NDArray[np.uint8]


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSKEW_DATA", raising=False)


def arrays(n: int, n_test: int, size: int, colour: bool, seed: int = 0) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(seed)
    shape = (size, size, 3) if colour else (size, size)
    return {
        "x_train": rng.integers(0, 256, (n, *shape), dtype=np.uint8),
        "y_train": np.arange(n) % 10,
        "x_test": rng.integers(0, 256, (n_test, *shape), dtype=np.uint8),
        "y_test": np.arange(n_test) % 10,
    }


SETS = {
    "mnist": arrays(60, 20, 28, False),
    "usps": arrays(40, 30, 16, False),
    "mnist_m": arrays(50, 12, 32, True),
    "svhn": arrays(45, 25, 32, True),
    "synth_digits": arrays(70, 15, 32, True),
}


def folder(path: Path, *names: str) -> Path:
    for name in names:
        np.savez(path / f"{name}.npz", **SETS[name])  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return load("digit_domains", folder(tmp_path_factory.mktemp("data"), "mnist", "usps", "mnist_m"))


# printed digits


@pytest.fixture(scope="module")
def pictures() -> Images:
    return printed(np.arange(1500) % 10, Key(5))


def test_printed_digits_are_the_same_today_as_when_they_were_made():
    """Under Matplotlib 3.8.4, 3.9.4, 3.10.9 and 3.11.2 (FreeType 2.6.1 and 2.14.3), with AVX2 and without, alike."""
    x = printed(np.arange(100) % 10, Key(0))
    assert (x.dtype, x.shape) == (np.uint8, (100, 28, 28, 3))
    assert hashlib.sha256(x.tobytes()).hexdigest() == "60406c26b9a0b31b4a486112f39d8e1e9b5c004293ea5657d20cf5bc993c7850"


@pytest.mark.seconds
def test_an_image_depends_on_its_own_place_and_label_only(pictures: Images):
    """300 images are two chunks of work, 1,500 are six."""
    labels = np.arange(300) % 10
    labels[7] = 0
    fewer = printed(labels, Key(5))
    others = np.delete(np.arange(300), 7)
    assert np.array_equal(fewer[others], pictures[others])
    assert not np.array_equal(fewer[7], pictures[7])


def test_no_two_printed_digits_are_alike(pictures: Images):
    assert len(np.unique(pictures.reshape(len(pictures), -1), axis=0)) == len(pictures)
    assert not (printed(np.arange(10), Key(6)) == pictures[:10]).all((1, 2, 3)).any()


@pytest.mark.seconds
def test_in_no_image_is_the_digit_lost():
    """The same draws with a 1 and an 8: what differs is the digit.  The contrast asked for is a quarter of 255, 64, of
    which blur and noise leave half to the faintest of all, that is 32 less a little."""
    a, b = (printed(np.full(300, digit), Key(3)).astype(np.float64) @ LUMA for digit in (1, 8))
    assert np.abs(a - b).max((1, 2)).min() > 25


def test_printed_digits_can_be_read(pictures: Images):
    """The nearest of 1,000 others, by brightness relative to the median, has the same label; chance is a tenth."""
    y = np.arange(len(pictures)) % 10
    x = pictures.astype(np.float64) @ LUMA
    x = np.abs(x - np.median(x, (1, 2), keepdims=True))[:, 4:24, 4:24].reshape(len(x), -1)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    nearest = (x[1000:] @ x[:1000].T).argmax(1)
    assert (y[nearest] == y[1000:]).mean() > 0.6


def test_printed_digits_come_in_all_colours(pictures: Images):
    """A uniform colour has mean 127.5 and deviation 255 / sqrt(12) = 74 in each channel; an image's mean has less, for
    it is over background and strokes."""
    mean = pictures.mean((1, 2))
    assert mean.mean(0) == pytest.approx(np.full(3, 127.5), abs=8)
    assert mean.std(0).min() > 40


def test_no_glyph_reaches_the_rim_of_its_cell():
    """The farthest ink from an edge: weight .6, rim 1.5 and half a pixel of coverage, 2.6 pixels, at 14 / 64 pixels a
    point 11.9 points."""
    cells, half = fonts._cells()
    rim = np.stack([cells[..., 0, :], cells[..., -1, :], cells[..., :, 0], cells[..., :, -1]])
    assert rim.max() < -2.6 * fonts.CAP / 14
    assert half.min() > 0
    assert (cells.reshape(len(fonts.FACES), 10, -1).max(2) > 2).all()


def test_what_cannot_be_printed_is_refused(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(DataError, match=r"labels\[1\] is 10, printed digits must be 0\.\.9"):
        printed(np.array([3, 10]), Key(0))
    monkeypatch.setattr(fonts, "FACES", ("Papyrus",))
    with pytest.raises(DataError, match=r"the font .*Papyrus\.ttf of Matplotlib cannot be read: .*reinstall"):
        printed(np.array([3]), Key(0))


# one layout


@given(st.sampled_from([5, 8, 16, 28, 32, 40]), st.sampled_from([(), (1,), (3,)]), st.integers(0, 99))
def test_images_are_resampled_as_pytorch_does(size: int, channels: tuple[int, ...], seed: int):
    x = np.random.default_rng(seed).integers(0, 256, (2, size, size + 1, *channels), dtype=np.uint8)
    planes = torch.from_numpy(x if channels else x[..., None]).permute(0, 3, 1, 2).double()
    theirs = F.interpolate(planes, (28, 28), mode="bilinear", align_corners=False).permute(0, 2, 3, 1).numpy()
    assert np.abs(coloured(x) - theirs).max() <= 0.5 + 1e-9


def test_between_two_pixels_the_image_goes_evenly():
    """Width 2 to 28: output i has its middle at (2i + 1) / 28 - 1/2 of the first pixel's: 56ths (2i + 1) * 2 - 28, so
    pixels 0 and 56 give 0 up to i = 6, then 2, 6, 10, ..., 54, then 56."""
    x = np.broadcast_to(np.array([0, 56], np.uint8), (1, 2, 2))
    row = [0] * 7 + list(range(2, 56, 4)) + [56] * 7
    assert coloured(x)[0, :, :, 1].tolist() == [row] * 28


def test_mnist_m_is_cut_to_the_mnist_digit_and_others_are_resampled():
    x = SETS["mnist_m"]["x_train"][:4]
    part = Part(x, np.arange(4), x[:2], np.arange(2))
    whole = join({"mnist_m": part, "svhn": part}, Key(0))
    assert np.array_equal(whole["x_train"][:4], x[:, 2:30, 2:30])
    assert np.array_equal(whole["x_train"][4:], coloured(x))


# data sets


def test_five_domains_are_equally_large_and_in_order(small: Dataset):
    """The smallest training part is USPS's 40, the smallest test part MNIST-M's 12."""
    assert small.domain_names == ("mnist", "usps", "mnist_m", "digits", "printed")
    assert (tuple(small.x_train.shape), tuple(small.x_test.shape)) == ((200, 3, 28, 28), (60, 3, 28, 28))
    assert small.domains is not None
    assert small.domains.tolist() == [g for g in range(5) for _ in range(40)]
    assert small.y_train[160:].bincount().tolist() == [4] * 10
    assert small.classes == tuple("0123456789")


def test_the_five_of_fedbn_are_found_by_name(tmp_path: Path):
    """The smallest: USPS's 40 of training, MNIST-M's 12 of test."""
    data = load("digit_five", folder(tmp_path, *SETS))
    assert data.domain_names == ("mnist", "svhn", "usps", "synth_digits", "mnist_m")
    assert (len(data.y_train), len(data.y_test)) == (200, 60)


def test_a_domain_keeps_its_examples_and_their_labels(small: Dataset):
    """All 40 of USPS stay, in order; of MNIST's 60, 40 do, and each is one of them with its label."""
    x = SETS["usps"]["x_train"]
    where = small.domains == 1
    assert small.y_train[where].tolist() == SETS["usps"]["y_train"].tolist()
    grey = small.x_train[where]
    spread = coloured(x).astype(np.float64)[..., 0]
    assert np.corrcoef(grey[:, 0].numpy().ravel(), spread.ravel())[0, 1] == pytest.approx(1)
    red = small.x_train[small.domains == 0][:, 0].reshape(40, -1).double().numpy()
    theirs = SETS["mnist"]["x_train"].reshape(60, -1).astype(np.float64)
    alike = np.corrcoef(red, theirs)[:40, 40:]
    assert alike.max(1) == pytest.approx(np.ones(40))
    assert SETS["mnist"]["y_train"][alike.argmax(1)].tolist() == small.y_train[small.domains == 0].tolist()


def test_the_constants_are_those_of_all_domains_together(small: Dataset):
    assert small.domains is not None
    assert small.x_train.mean((0, 2, 3)).abs().max() < 1e-5
    assert small.x_train.std((0, 2, 3), correction=0).numpy() == pytest.approx(np.ones(3), abs=1e-4)
    means = torch.stack([small.x_train[small.domains == g].mean() for g in range(5)])
    assert means.std() > 0.1


def test_every_load_is_the_same(small: Dataset, tmp_path: Path):
    again = load("digit_domains", folder(tmp_path, "mnist", "usps", "mnist_m"))
    assert again.sha256 == small.sha256
    assert torch.equal(again.x_train, small.x_train)
    assert torch.equal(again.x_test, small.x_test)


def test_missing_sets_are_named_with_every_place(tmp_path: Path):
    folder(tmp_path, "mnist", "usps", "mnist_m")
    with pytest.raises(DataError) as caught:
        load("digit_five", tmp_path)
    said = str(caught.value)
    assert (
        "digit_five needs mnist, svhn, usps, synth_digits, mnist_m, of which svhn, synth_digits cannot be found" in said
    )
    for name in ("svhn", "synth_digits"):
        for place in (f"{name}.npz", f"{name}/x_train.npy", f"{name}/{name}.npz", f"{name}/train_1.npz"):
            assert str(tmp_path / place) in said
    assert str(tmp_path / "usps.npz") not in said
    with pytest.raises(DataError, match=r"no data folder is given; .* mnist\.npz .*, usps\.npz .*, mnist_m\.npz \("):
        load("digit_domains")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.full(40, 10)}, r"usps: y_train\[0\] is 10, must be 0\.\.9"),
        ({"y_test": np.full(30, -1)}, r"usps: y_test\[0\] is -1, must be 0\.\.9"),
        ({"y_train": np.arange(3)}, "usps: x_train has 40 entries for 3 examples"),
        ({"x_train": np.zeros((40, 256))}, r"usps: x_train and x_test must be of one kind"),
        ({"x_test": np.zeros((30, 3, 16, 16), np.uint8)}, r"usps: x_train holds examples of shape \(16, 16\), x_test"),
    ],
)
def test_a_domain_that_does_not_fit_is_refused(tmp_path: Path, changes: dict[str, Any], message: str):
    folder(tmp_path, "mnist", "mnist_m")
    np.savez(tmp_path / "usps.npz", **SETS["usps"] | changes)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message) as caught:
        load("digit_domains", tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_domain_without_a_test_part_sets_a_fifth_aside(tmp_path: Path):
    """USPS has 4 of each digit and a fifth of 4 is .8, so 1 of each is set aside: its 30 are the fewest for training,
    its 10 the fewest for testing (MNIST-M has 50 and 12)."""
    folder(tmp_path, "mnist", "mnist_m")
    train = {key: value for key, value in SETS["usps"].items() if key.endswith("train")}
    np.savez(tmp_path / "usps.npz", **train)  # type: ignore[arg-type]
    data = load("digit_domains", tmp_path)
    assert (len(data.y_train), len(data.y_test)) == (150, 50)


def test_the_doctor_looks_for_files_and_not_for_sets_made_of_them(tmp_path: Path):
    said = {f.what: f.found for f in _data(folder(tmp_path, "mnist"))}
    assert "data set mnist" in said
    assert "usps, mnist_m, svhn, synth_digits, cifar10" in said["data folder"]


# clients


def test_two_clients_of_each_domain_hold_as_many_as_they_may(small: Dataset):
    """20 of a domain's 40 for each client, of which 10 stay, half of them for testing."""
    fed = federate(small, ByGroup(2, max_samples=10), Key(0), test_fraction=0.5)
    assert small.domains is not None
    assert [(len(c.train), len(c.test)) for c in fed.clients] == [(5, 5)] * 10
    held = [torch.cat([c.train, c.test]) for c in fed.clients]
    assert [set(small.domains[h].tolist()) for h in held] == [{g} for g in range(5) for _ in range(2)]
    assert len(torch.cat(held).unique()) == 100


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 2**32))
def test_a_lower_cap_keeps_some_of_the_same(low: int, more: int, seed: int):
    groups = np.repeat([0, 1], 40)
    capped, higher, free = (
        assign(ByGroup(2, min_samples=1, max_samples=cap), np.zeros(80, int), 1, Key(seed), groups)
        for cap in (low, low + more, None)
    )
    assert [len(c) for c in capped] == [min(low, 20)] * 4
    for a, b, c in zip(capped, higher, free, strict=True):
        assert (np.diff(a) > 0).all()
        assert set(a.tolist()) <= set(b.tolist()) <= set(c.tolist())


def test_a_cap_below_the_minimum_or_one_is_refused():
    labels, groups = np.zeros(10, int), np.repeat([0, 1], 5)
    with pytest.raises(ConfigError, match=r"split\.max_samples must be at least min_samples, 2, got 1 \(group\)"):
        assign(ByGroup(max_samples=1), labels, 1, Key(0), groups)
    with pytest.raises(ConfigError, match=r"split\.max_samples must be >= 1, got 0 \(group\)"):
        assign(ByGroup(max_samples=0), labels, 1, Key(0), groups)


def test_a_capped_division_is_recorded_and_read_back(small: Dataset, tmp_path: Path):
    fed = federate(small, ByGroup(2, max_samples=7), Key(1))
    assert record(ByGroup(2, max_samples=7))["max_samples"] == 7
    path = tmp_path / "split.json"
    path.write_text(json.dumps(to_manifest(fed)))
    again = from_manifest(path, small)
    assert again.sha256 == fed.sha256
    assert again.split == fed.split


def test_an_experiment_names_domains_and_cap():
    raw = {
        "rounds": 1,
        "task": {"data": "digit_domains", "model": "digit_model"},
        "split": {"name": "group", "clients_per_group": 2, "max_samples": 370},
        "method": {"name": "fedavg"},
    }
    experiment = config.parse(raw)
    assert experiment.split == ByGroup(2, max_samples=370)
    assert config.parse(config.resolved(experiment)) == experiment
    uncapped = config.parse(raw | {"split": {"name": "group"}})
    assert "max_samples" not in config.resolved(uncapped)["split"]
    with pytest.raises(ConfigError, match="max_samples"):
        config.parse(raw | {"split": {"name": "group", "max_samples": 0}})


# real files


@needs_shared
def test_the_five_domains_of_real_data():
    """The smallest is scikit-learn's digits: 1,797 less the fifth set aside, 1,438 and 359.  In the built-in experiment
    a client has the paper's 185 examples for training."""
    data = load("digit_domains", SHARED)
    assert data.domains is not None
    assert data.domains.bincount().tolist() == [1438] * 5
    assert len(data.y_test) == 5 * 359
    assert data.input_shape == (3, 28, 28)
    for g in range(5):
        assert data.y_train[data.domains == g].bincount(minlength=10).min() > 90
    domains = config.load(BUILTIN / "domains.toml")
    assert domains.task.data == "digit_domains"
    fed = federate(data, domains.split, Key(0), domains.test_fraction)
    assert [(len(c.train), len(c.test)) for c in fed.clients] == [(185, 185)] * 10
