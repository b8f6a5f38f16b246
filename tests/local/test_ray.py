"""The executor on a Ray cluster, as far as it can be tried without one, and a run by it."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.local import ray
from unskew.local.executor import PoolParts
from unskew.local.ray import RAY, Packed, _Arguments, _still_used
from unskew.run import loop
from unskew.signals import handled
from unskew.tree import Params

PARTS = PoolParts(lambda cell: None, 1, 1 << 12)


def test_without_ray_the_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert RAY.start is not None
    with pytest.raises(ConfigError, match=r"needs Ray: pip install 'unskew\[ray\]'"):
        RAY.start(PARTS)


def test_ray_client_is_refused_before_anything_is_begun() -> None:
    assert RAY.start is not None
    with pytest.raises(ConfigError, match=r"Ray Client's, which carries every byte twice.*address = 'auto'"):
        RAY.start(PARTS, address="ray://head:10001")


def test_a_value_travels_in_pieces_that_ray_copies_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of 192, 64 and 4 bytes, the last of which fills up 64: 320 bytes, in pieces of 100."""
    monkeypatch.setattr(ray, "PIECE_BYTES", 100)
    value = {"w": torch.arange(48.0), "b": torch.ones(8, dtype=torch.int64), "n": torch.tensor(3.0)}
    packed = Packed.of(value)
    assert [len(piece) for piece in packed.pieces] == [100, 100, 100, 20]
    assert packed.nbytes == 320
    read = packed.read(Params)
    assert list(read) == list(value)
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in value.items())


def test_a_message_of_several_clients_is_copied_once_by_an_actor_and_given_up_with_the_next() -> None:
    cpu, first, second = torch.device("cpu"), Packed.of({"w": torch.ones(4)}), Packed.of({"w": torch.zeros(4)})
    common: dict[int, Any] = {}
    arguments = _Arguments((first, second), cpu, common)
    place = {"argument": 0, "common": 7}
    one, two = arguments.read(place, Params), arguments.read(place, Params)
    assert one["w"].data_ptr() == two["w"].data_ptr()
    assert arguments.read({"argument": 1, "common": 8}, Params)["w"].tolist() == [0.0] * 4
    assert arguments.read({"body": None}, None) is None, "a value without tensors is in the request itself"
    assert list(common) == [7, 8]
    heads = [{"message": {"argument": 0, "common": 8}, "memory": {"body": None}, "key": [1]}]
    assert list(_still_used(common, heads)) == [8]


def test_an_object_store_smaller_than_rays_least_is_refused_before_any_work(
    tiny: Callable[..., Experiment], tmp_path: Path
) -> None:
    settings = ("runtime.executor=ray", "runtime.workers=1", "runtime.executor_options={store_mb=74}")
    with pytest.raises(ConfigError, match=r"runtime\.executor_options\.store_mb must be >= 75, got 74"):
        loop.start(tiny(*settings), tmp_path / "ray")
    assert not (tmp_path / "ray").exists()


def test_sigterm_stays_with_who_handles_it_when_ray_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own ends the process at once: Slurm's preemption would cost the rounds since the last checkpoint."""

    def init(**settings: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))  # as Ray 2.60 does

    heard: list[int] = []

    def ours(number: int, _: object) -> None:
        heard.append(number)

    monkeypatch.setattr(ray, "imported", lambda: SimpleNamespace(init=init))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with handled([signal.SIGTERM], ours):
        ray.connect("local")
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_run_by_a_local_ray_ends_with_the_bits_of_one_in_sequence(
    tiny: Callable[..., Experiment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no token of Ray's is left in the home folder, which clusters begun later would ask for."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'unskew[ray]'")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    settings = ("runtime.executor=ray", "runtime.workers=1", "runtime.executor_options={store_mb=100}")
    by_ray = loop.start(tiny(*settings), tmp_path / "ray")
    alone = loop.start(tiny("runtime.executor=sequential"), tmp_path / "alone")
    assert by_ray.summary["fingerprint"] == alone.summary["fingerprint"]
    assert not (tmp_path / ".ray").exists()
