"""A coordinator's experiment names nothing that a client reads, unless the participant has named or allowed it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tomli_w

pytest.importorskip("grpc", reason="a deployment needs the extra [deploy]")

from unskew.data.places import reading_only
from unskew.deploy import folders, operate, signing
from unskew.deploy.client import _has_own_sets, open_client
from unskew.deploy.settings import Address, ServerConfig, Site
from unskew.errors import ConfigError, DataError, DeployError
from unskew.experiment import config

from .conftest import Lines

BASE = {"rounds": 1, "method": {"name": "fedavg"}, "split": {"name": "iid", "num_clients": 2}}
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
    (here / "client.toml").write_text(tomli_w.dumps({"client": 0, "num_clients": 2}))
    return here


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
        {"method": {"name": "fedpft", "prior": "/there/x"}},
    ],
    ids=lambda experiment: json.dumps(experiment)[:60],
)
def test_no_path_in_an_experiment_is_looked_at(experiment: dict[str, object], allow: Path, tmp_path: Path) -> None:
    """There is nothing at the path, and the refusal does not tell."""
    with pytest.raises(
        DataError, match=rf'"/there/x" is not read: the coordinator .* paths = \["/there/x"\] into {allow}'
    ):
        open_client(client(tmp_path, experiment))


@pytest.mark.parametrize(
    "experiment", [{"task": {"data": "hub:mnist"}}, {"method": {"name": "fedpft", "prior": "hub:a/b"}}]
)
def test_nothing_is_downloaded_because_a_coordinator_asks_for_it(
    experiment: dict[str, object], allow: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=r'"hub:.*" is not read: the coordinator chose it'):
        open_client(client(tmp_path, experiment))


def test_data_of_a_client_s_own_do_not_make_the_coordinator_s_readable(allow: Path, tmp_path: Path) -> None:
    """Not even to see if they come with their clients: the fingerprint of the experiment would tell."""
    experiment = {"task": {"data": f"npz:{secret(tmp_path)}", "model": "logistic"}}
    np.savez(tmp_path / "own.npz", **ARRAYS)  # type: ignore[arg-type]
    here, site = client(tmp_path, experiment), Site(f"npz:{tmp_path / 'own.npz'}")
    assert open_client(here, site).info.own
    (here / "experiment.toml").write_text(
        tomli_w.dumps({k: v for k, v in {**BASE, **experiment}.items() if k != "split"})
    )
    with pytest.raises(DataError, match="is not read: the coordinator chose it"):
        open_client(here, site)


def test_no_settings_of_a_folder_name_data(allow: Path, tmp_path: Path) -> None:
    """The attack that worked: a client.toml of the coordinator's that the participant seemed to have changed."""
    path, address = secret(tmp_path), Address("127.0.0.1", 8443)
    folders.pack(tmp_path / "f", config.parse(BASE), 2, address, address)
    here = tmp_path / "f" / "client-0"
    text = (here / "client.toml").read_text()
    for line in (f'data = "npz:{path}"', f'data_dir = "{tmp_path}"', f'experiment = "{path}"'):
        (here / "client.toml").write_text(f"{text}{line}\n")
        with pytest.raises(DeployError, match=r"client\.toml was changed since it was packed"):
            operate.check_signature(here, print)
        for name in (signing.MANIFEST, signing.SIGNATURE, signing.KEY):
            (here / name).unlink()
        signing.sign(signing.new_key(), here)
        operate.check_signature(here, print, remember=False)
        with pytest.raises(ConfigError, match=rf"unknown key {line.split()[0]}"):
            open_client(here)


def test_a_participant_s_data_are_asked_for(allow: Path, tmp_path: Path, said: Lines) -> None:
    address, federation = Address("127.0.0.1", 8443), tmp_path / "f"
    folders.pack(federation, config.parse(BASE), 2, address, address, config=ServerConfig(2, own_data=True))
    here, site = federation / "client-0", Site(f"npz:{secret(tmp_path)}")
    with pytest.raises(ConfigError, match=r"say where they lie, with --data npz:/absolute/path/own\.npz"):
        open_client(here)
    operate.check_signature(here, said, site)
    assert said.lines[-1] == f"data: {site.data}"
    assert open_client(here, site).info.own


def test_what_the_policy_allows_is_read(allow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = secret(tmp_path)
    here = client(tmp_path, {"task": {"data": f"npz:{path}", "model": "logistic"}})
    for paths in ([str(path)], [str(tmp_path)], ["/"]):
        allow.write_text(tomli_w.dumps({"paths": paths}))
        assert not open_client(here).info.own
    allow.write_text(tomli_w.dumps({"paths": [str(tmp_path / "links")]}))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "x.npz").symlink_to(path)
    (here / "experiment.toml").write_text((here / "experiment.toml").read_text().replace("secret", "links/x"))
    with pytest.raises(DataError, match="is not read"):
        open_client(here)
    shutil.copy(path, tmp_path / "mnist.npz")
    (here / "experiment.toml").write_text(tomli_w.dumps({**BASE, "task": {"data": "mnist", "model": "logistic"}}))
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path))
    assert open_client(here).info.classes[0] == "0"


def test_named_sets_are_found_in_the_participant_s_own_folder_and_nothing_else_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, address = tmp_path / "mine", Address("127.0.0.1", 8443)
    mine.mkdir()
    shutil.copy(secret(tmp_path), mine / "mnist.npz")
    (mine / "a.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    (mine / "b.csv").write_text("x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(20)))
    monkeypatch.setenv("UNSKEW_DATA", str(mine))
    task = {"data": "mnist", "model": "logistic", "data_dir": str(tmp_path / "theirs")}
    folders.pack(tmp_path / "f", config.parse({**BASE, "task": task}), 2, address, address)
    assert open_client(tmp_path / "f" / "client-0").info.classes[0] == "0"
    of_file = {"data": f"csv:{mine}", "model": "logistic", "data_options": {"target": "y"}}
    natural = {**BASE, "task": of_file, "split": {"name": "natural"}}
    folders.pack(tmp_path / "g", config.parse(natural), 2, address, address)
    with pytest.raises(DataError, match="is not read: the coordinator chose it"):
        open_client(tmp_path / "g" / "client-0")


def test_the_coordinator_s_folder_of_named_sets_is_taken_where_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = config.TaskConfig(data="mnist", data_dir=str(tmp_path / "theirs"))
    assert not _has_own_sets(task)  # without a folder of its own there is no other
    monkeypatch.setenv("UNSKEW_DATA", str(tmp_path / "mine"))
    with reading_only((), (str(tmp_path),), "policy.toml"):
        assert not _has_own_sets(task)
    with reading_only((), (), "policy.toml"):
        assert _has_own_sets(task)


def test_a_participant_that_keeps_metrics_to_itself_declares_no_number_of_examples(allow: Path, tmp_path: Path) -> None:
    address = Address("127.0.0.1", 8443)
    folders.pack(tmp_path / "f", config.parse(BASE), 2, address, address)
    assert min(open_client(tmp_path / "f" / "client-0").info.examples) > 0
    allow.write_text("metrics = false\n")
    assert open_client(tmp_path / "f" / "client-1").info.examples == ()
