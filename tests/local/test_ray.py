"""The executor on a Ray cluster, as far as it can be tried without one, and a run by it."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.local import ray
from unskew.local.executor import PoolParts
from unskew.local.ray import RAY
from unskew.run import loop
from unskew.signals import handled

PARTS = PoolParts(lambda cell: None, 1, 1 << 12)


def test_without_ray_the_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert RAY.start is not None
    with pytest.raises(ConfigError, match=r"needs Ray: pip install 'unskew\[ray\]'"):
        RAY.start(PARTS)


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
