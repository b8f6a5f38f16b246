"""The executor on a Ray cluster, as far as it can be tried without one, and a run by it."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from unskew.errors import ConfigError
from unskew.experiment.config import Experiment
from unskew.local.executor import PoolParts
from unskew.local.ray import RAY, code_hash
from unskew.run import loop

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


def test_the_code_of_a_package_is_known_by_its_content(tmp_path: Path) -> None:
    """Two checkouts of one version are two kinds of machine."""
    for folder, text in (("one", "A = 1"), ("same", "A = 1"), ("other", "A = 2")):
        (tmp_path / folder / "part").mkdir(parents=True)
        (tmp_path / folder / "part" / "module.py").write_text(text)
    one, same, other = (code_hash(tmp_path / folder) for folder in ("one", "same", "other"))
    assert one == same != other


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
