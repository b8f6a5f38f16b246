"""A coordinator's experiment names nothing that a client reads, unless the participant has named or allowed it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from unskew.deploy.client import open_client
from unskew.deploy.settings import Site
from unskew.errors import DataError
from unskew.runtime.client import ClientRuntime

BASE = {"rounds": 1, "methods": [{"name": "fedavg"}], "split": {"name": "iid", "num_clients": 2}}
ARRAYS = {"x_train": np.zeros((40, 8, 8), np.uint8), "y_train": np.arange(40) % 10}


@pytest.fixture
def allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The participant's policy, which names nothing yet."""
    policy = tmp_path / "policy.toml"
    policy.write_text("")
    monkeypatch.setenv("UNSKEW_POLICY", str(policy))
    monkeypatch.delenv("UNSKEW_DATA", raising=False)
    return policy


def client(folder: Path, experiment: dict[str, object]) -> Path:
    here = folder / "client-0"
    here.mkdir()
    (here / "experiment.toml").write_text(tomli_w.dumps({**BASE, **experiment}))
    return here


def opened(here: Path, site: Site = Site()) -> ClientRuntime:
    return open_client(here, 0, 2, site)


def secret(folder: Path) -> Path:
    np.savez(folder / "secret.npz", **ARRAYS)  # type: ignore[arg-type]
    return folder / "secret.npz"


@pytest.mark.parametrize(
    "experiment",
    [
        *({"task": {"data": f"{kind}:/there/x"}} for kind in ("npz", "images", "run")),
        *(
            {"task": {"data": f"{kind}:/there/x", "data_options": {"target": "y", **client}}}
            for kind in ("csv", "parquet")
            for client in ({}, {"client": "h"})
        ),
        {"task": {"data": "mnist", "data_dir": "/there/x"}},
        {"task": {"data": "wisdm", "data_dir": "/there/x"}, "split": {"name": "natural"}},
        {"split": {"name": "manifest", "path": "/there/x"}},
        {"methods": [{"name": "fedpft", "prior": "/there/x"}]},
    ],
    ids=lambda experiment: json.dumps(experiment)[:60],
)
def test_no_path_in_an_experiment_is_looked_at(experiment: dict[str, object], allow: Path, tmp_path: Path) -> None:
    """There is nothing at the path, and the refusal does not tell."""
    with pytest.raises(
        DataError, match=rf'"/there/x" is not read: the coordinator .* paths = \["/there/x"\] into {allow}'
    ):
        opened(client(tmp_path, experiment))


@pytest.mark.parametrize(
    "experiment", [{"task": {"data": "hub:mnist"}}, {"methods": [{"name": "fedpft", "prior": "hub:a/b"}]}]
)
def test_nothing_is_downloaded_because_a_coordinator_asks_for_it(
    experiment: dict[str, object], allow: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r'"hub:.*" is not read: the coordinator chose it'):
        opened(client(tmp_path, experiment))


def test_data_of_a_client_s_own_do_not_make_the_coordinator_s_readable(allow: Path, tmp_path: Path) -> None:
    """Not even to see if they come with their clients, where no split is named."""
    experiment = {"task": {"data": f"npz:{secret(tmp_path)}", "model": "logistic"}}
    np.savez(tmp_path / "own.npz", **ARRAYS)  # type: ignore[arg-type]
    here, site = client(tmp_path, experiment), Site(f"npz:{tmp_path / 'own.npz'}")
    assert opened(here, site).info.own
    (here / "experiment.toml").write_text(
        tomli_w.dumps({k: v for k, v in {**BASE, **experiment}.items() if k != "split"})
    )
    assert opened(here, site).info.own
    with pytest.raises(DataError, match="is not read: the coordinator chose it"):
        opened(here)


def test_what_the_policy_allows_is_read(allow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = secret(tmp_path)
    here = client(tmp_path, {"task": {"data": f"npz:{path}", "model": "logistic"}})
    for paths in ([str(path)], [str(tmp_path)], ["/"]):
        allow.write_text(tomli_w.dumps({"paths": paths}))
        assert not opened(here).info.own
    allow.write_text(tomli_w.dumps({"paths": [str(tmp_path / "links")]}))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "x.npz").symlink_to(path)
    (here / "experiment.toml").write_text((here / "experiment.toml").read_text().replace("secret", "links/x"))
    with pytest.raises(DataError, match="is not read"):
        opened(here)
    shutil.copy(path, tmp_path / "mnist.npz")
    (here / "experiment.toml").write_text(tomli_w.dumps({**BASE, "task": {"data": "mnist", "model": "logistic"}}))
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    assert opened(here).info.classes[0] == "0"


def test_named_sets_are_found_in_the_participant_s_own_folder_and_nothing_else_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    shutil.copy(secret(tmp_path), mine / "mnist.npz")
    (mine / "a.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    (mine / "b.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    monkeypatch.setenv("UNSKEW_DATA", str(mine))
    task = {"data": "mnist", "model": "logistic", "data_dir": str(tmp_path / "theirs")}
    assert opened(client(tmp_path, {"task": task})).info.classes[0] == "0"
    of_file = {"data": f"csv:{mine}", "model": "logistic", "data_options": {"target": "y"}}
    (tmp_path / "g").mkdir()
    with pytest.raises(DataError, match="is not read: the coordinator chose it"):
        opened(client(tmp_path / "g", {"task": of_file, "split": {"name": "natural"}}))


def test_a_participant_that_keeps_metrics_to_itself_declares_no_number_of_examples(allow: Path, tmp_path: Path) -> None:
    here = client(tmp_path, {})
    assert min(opened(here).info.examples) > 0
    allow.write_text("metrics = false\n")
    assert opened(here).info.examples == ()
