import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from unskew.data.sources import load
from unskew.errors import DataError


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNSKEW_DATA", raising=False)


def pictures(n: int = 20, colour: bool = True, seed: int = 0) -> npt.NDArray[np.uint8]:
    shape = (n, 6, 5, 3) if colour else (n, 6, 5)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def plain(colour: bool = True) -> dict[str, npt.NDArray[Any]]:
    return {
        "x_train": pictures(20, colour),
        "y_train": np.arange(20, dtype=np.uint8) % 4,
        "x_test": pictures(8, colour, seed=1),
        "y_test": np.arange(8, dtype=np.uint8) % 4,
    }


def save_npz(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return f"npz:{path}"


# digits


def test_the_test_part_of_digits_is_a_fifth_of_each_class():
    data = load("digits")
    train, test = data.y_train.bincount(), data.y_test.bincount()
    assert torch.equal(test, ((train + test) * 0.2 + 0.5).long())


# normalisation


def test_images_are_standardised_with_the_training_part(tmp_path: Path):
    arrays = plain()
    data = load(save_npz(tmp_path / "a.npz", arrays))
    x = torch.from_numpy(arrays["x_train"]).permute(0, 3, 1, 2) / 255
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True, correction=0)
    x_test = torch.from_numpy(arrays["x_test"]).permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(data.x_train, (x - mean) / std, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(data.x_test, (x_test - mean) / std, rtol=1e-4, atol=1e-5)


def test_a_constant_channel_becomes_zero(tmp_path: Path):
    arrays = plain()
    arrays["x_train"][..., 1] = 137
    data = load(save_npz(tmp_path / "a.npz", arrays))
    assert not data.x_train[:, 1].any()
    assert data.x_train[:, 0].any()


# layouts


# bad input


def whole_file(path: Path) -> bytes:
    save_npz(path, plain())
    return path.read_bytes()


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b"not a zip at all",
        lambda b: b[: len(b) // 2],
        lambda b: b[:400] + bytes([b[400] ^ 255]) + b[401:],
    ],
    ids=["empty", "text", "truncated", "one byte flipped"],
)
def test_a_corrupt_file_is_named_with_size_and_hash(tmp_path: Path, damage: Any):
    path = tmp_path / "a.npz"
    content = damage(whole_file(path))
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(f"npz:{path}")
    assert str(path) in str(caught.value)
    assert f"{len(content):,} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}" in str(caught.value)


def test_pickled_objects_are_never_loaded(tmp_path: Path):
    path = tmp_path / "a.npz"
    np.savez(path, **plain() | {"x_train": np.array([{}, "x"], dtype=object)})  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"pickled objects, which are never loaded .*SHA-256"):
        load(f"npz:{path}")


# real files
