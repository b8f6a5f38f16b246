"""What happens to a packed folder on its way to a participant is noticed, file by file."""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="a deployment needs the extra [deploy]")

from unskew.deploy import folders, operate, signing
from unskew.deploy.client import open_client
from unskew.deploy.settings import Address, Site, read_rules
from unskew.errors import ConfigError, DeployError
from unskew.experiment import config
from unskew.runtime.policy import SitePolicy


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    table = {"name": "tiny", "rounds": 1, "split": {"name": "iid", "num_clients": 2}, "methods": [{"name": "fedavg"}]}
    folder = tmp_path_factory.mktemp("pack") / "federation"
    address = Address("127.0.0.1", 8443)
    folders.pack(folder, config.parse(table), 2, address, address)
    return folder


@pytest.fixture
def client(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed / "client-0", tmp_path / "client-0"))


def test_a_folder_as_it_was_packed_is_accepted_with_its_coordinator_s_fingerprint(packed: Path, tmp_path: Path) -> None:
    signed = [signing.check(packed / f"client-{c}", tmp_path / "accepted", remember=False) for c in (0, 1)]
    assert signed[0] == signed[1] == signing.Signed(signing.fingerprint_of(packed / "client-1"), ())
    assert len(signed[0].fingerprint) == 39
    assert (packed / "authority" / "coordinator.key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "files",
    [
        [[1, "x"]],
        [["a", "x"]],
        {"a": 1},
        {"": "x"},
        {"a\0": "x"},
        {"\ud800": "x"},
        {"x" * 5000: "x"},
        {"x/" * 5000 + "x": "x"},
        {"../server/server.toml": "x"},
        {"/etc/passwd": "x"},
    ],
    ids=lambda files: repr(files)[:20],
)
def test_a_signed_manifest_that_names_no_files_of_the_folder_is_refused(
    client: Path, tmp_path: Path, files: object
) -> None:
    """One odd name or sum among those of files that are there and as they were signed."""
    key = signing.new_key()
    signing.sign(key, client)
    if isinstance(files, dict):
        files = json.loads((client / "manifest.json").read_text())["files"] | files
    (client / "manifest.json").write_text(json.dumps({"files": files}))
    (client / "manifest.sig").write_bytes(key.sign((client / "manifest.json").read_bytes()))
    with pytest.raises(DeployError, match=r"manifest\.json is not a list of files; ask the coordinator"):
        signing.check(client, tmp_path / "accepted")


@pytest.mark.parametrize(
    "name", ["experiment.toml", "client.toml", "ca.crt", "README.md", "coordinator.pub", "manifest.sig"]
)
def test_a_changed_file_is_refused_by_its_name(client: Path, packed: Path, tmp_path: Path, name: str) -> None:
    other = tmp_path / "other"
    folders.pack(other, config.load(packed / "server" / "experiment.toml"), 2, *(Address("127.0.0.1", 1),) * 2)
    shutil.copy(other / "client-1" / name, client / name)
    if name in ("experiment.toml", "client.toml", "README.md"):
        (client / name).write_text((client / name).read_text() + "\n# changed\n")
    with pytest.raises(DeployError, match=rf"{name} was changed since|manifest\.json was not signed by the key"):
        signing.check(client, tmp_path / "accepted")


def test_a_manifest_that_was_mended_after_a_change_is_refused(client: Path, tmp_path: Path) -> None:
    text = (client / "experiment.toml").read_text() + "\n"
    old = signing._sha256(client / "experiment.toml")
    (client / "experiment.toml").write_text(text)
    mended = (client / "manifest.json").read_text().replace(old, signing._sha256(client / "experiment.toml"))
    (client / "manifest.json").write_text(mended)
    with pytest.raises(DeployError, match=r"was not signed by the key of coordinator\.pub"):
        signing.check(client, tmp_path / "accepted")


@pytest.mark.parametrize("name", ["experiment.toml", "client.toml", "client.key", "manifest.json", "manifest.sig"])
def test_a_missing_file_is_refused_by_its_name(client: Path, tmp_path: Path, name: str) -> None:
    (client / name).unlink()
    with pytest.raises(DeployError, match=name.replace(".", r"\.")):
        signing.check(client, tmp_path / "accepted")


@pytest.mark.parametrize("name", ["numpy.py", "sitecustomize.py", "extra/own.npz", ".env"])
def test_an_added_file_is_refused_by_its_name(client: Path, tmp_path: Path, name: str) -> None:
    (client / name).parent.mkdir(exist_ok=True)
    (client / name).write_text("print('run')")
    with pytest.raises(DeployError, match=f"{name.split('/')[0]} was not packed"):
        signing.check(client, tmp_path / "accepted")


def test_a_secret_for_noise_that_came_with_the_folder_is_refused_and_one_made_here_is_not(
    client: Path, tmp_path: Path
) -> None:
    """Whoever chose `draws.secret` can take off all noise that is drawn from it."""
    accepted = tmp_path / "accepted"
    (client / "state").mkdir()
    (client / "state" / "draws.secret").write_bytes(b"\0" * 32)
    with pytest.raises(DeployError, match=r"has run before \(it has state\), .* ask the coordinator for a fresh one"):
        signing.check(client, accepted)
    shutil.rmtree(client / "state")
    signing.check(client, accepted, remember=False)  # --check starts nothing, and remembers nothing
    (client / "state").mkdir()
    with pytest.raises(DeployError, match="has run before"):
        signing.check(client, accepted)
    (client / "state").rmdir()
    signing.check(client, accepted)
    assert len((client / "state" / "draws.secret").read_bytes()) == 32
    signing.check(client, accepted)


def test_a_folder_that_is_sent_again_with_a_secret_is_not_taken_for_the_one_that_runs(
    packed: Path, client: Path, tmp_path: Path
) -> None:
    """The attack that worked: after a clean start, the same signed folder with a secret that somebody else chose."""
    accepted, again = tmp_path / "accepted", tmp_path / "again"
    signing.check(client, accepted)
    for planted in (b"A" * 32, None):
        shutil.copytree(packed / "client-0", again)
        (again / "state").mkdir()
        (again / "state" / "rounds").mkdir()
        if planted is not None:
            (again / "state" / "draws.secret").write_bytes(planted)
            (again / "state" / "draws.secret").chmod(0o600)
        with pytest.raises(DeployError, match=r"state/draws\.secret is missing, or not the one with which"):
            signing.check(again, accepted)
        shutil.rmtree(again)
    shutil.copytree(packed / "client-0", again)
    (again / "state").symlink_to(client / "state")
    with pytest.raises(DeployError, match="is missing, or not the one"):
        signing.check(again, accepted)
    (again / "state").unlink()
    signing.check(again, accepted)  # a second installation, with a secret of its own
    signing.check(client, accepted)
    (client / "state" / "draws.secret").unlink()
    with pytest.raises(DeployError, match=r"make (\S+) an empty file"):
        signing.check(client, accepted)
    for mark in accepted.iterdir():  # as the message says, and as an older version left it
        mark.write_text("")
    signing.check(client, accepted)
    signing.check(client, accepted)


def test_a_participant_may_say_where_the_server_is(client: Path, tmp_path: Path) -> None:
    folders.write_address(client, Address("10.0.0.1", 8443))
    assert signing.check(client, tmp_path / "accepted").changed == ("network.toml",)


def test_a_client_reads_nothing_of_a_folder_that_was_tampered_with(
    client: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    (client / "experiment.toml").write_text("name = 1")
    with pytest.raises(DeployError, match=r"experiment\.toml was changed since it was packed"):
        operate.take_part(client, print)
    files = json.loads((client / "manifest.json").read_text())["files"]
    assert {"experiment.toml", "ca.crt", "client.toml", "README.md"} <= files.keys()


def test_a_participant_s_policy_names_the_coordinator_it_trusts(
    client: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = tmp_path / "policy.toml"
    monkeypatch.setenv("UNSKEW_POLICY", str(site))
    key = signing.fingerprint_of(client)
    site.write_text(f'coordinator = "{key.upper()}"\n')
    operate.check_signature(client, print)
    site.write_text('coordinator = "0123 4567"\n')
    with pytest.raises(
        DeployError, match=rf'signed with the key {key}, and {site} trusts coordinator = "0123 4567" only'
    ):
        operate.check_signature(client, print)


def test_a_policy_is_the_participant_s_own_and_says_nothing_unknown(
    client: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert read_rules(client).policy == SitePolicy()
    monkeypatch.setenv("UNSKEW_POLICY", str(tmp_path / "policy.toml"))
    with pytest.raises(ConfigError, match=r"there is no policy .*policy\.toml; correct --policy or UNSKEW_POLICY"):
        read_rules(client)
    (tmp_path / "policy.toml").write_text("max_epsilom = 1.0\n")
    with pytest.raises(ConfigError, match=r"max_epsilom; did you mean max_epsilon.*policy\.toml"):
        read_rules(client)
    monkeypatch.setenv("UNSKEW_POLICY", str(client / "policy.toml"))
    with pytest.raises(ConfigError, match="lies in the folder that came from the coordinator"):
        read_rules(client)


def test_a_client_whose_policy_forbids_the_method_opens_no_data(
    client: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNSKEW_POLICY", str(tmp_path / "policy.toml"))
    (tmp_path / "policy.toml").write_text('methods = ["fedprox"]\n')
    with pytest.raises(ConfigError, match=r"method \S+ \(fedavg\) may not run here: .*policy\.toml allows methods"):
        open_client(client, Site("npz:/nowhere.npz"))


def test_a_client_whose_policy_has_a_budget_takes_no_method_without_noise_of_its_own(
    client: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("UNSKEW_POLICY", str(tmp_path / "policy.toml"))
    (tmp_path / "policy.toml").write_text("max_epsilon = 2.0\n")
    with pytest.raises(
        ConfigError, match=r"\(fedavg\) sends what has no noise of this client's own.* max_epsilon = 2;"
    ):
        open_client(client)


@pytest.mark.parametrize(
    "name", ["manifest.json", "manifest.sig", "coordinator.pub", "client.toml", "ca.crt", "README.md"]
)
def test_a_link_in_a_folder_is_not_followed_before_its_signature_is_checked_nor_after(
    client: Path, tmp_path: Path, name: str
) -> None:
    """The attack that worked: a link to /dev/zero was read until memory was full."""
    (client / name).unlink()
    (client / name).symlink_to("/dev/zero")
    with pytest.raises(DeployError, match=rf"{name}(: symbolic links are not followed here; | is missing; )"):
        signing.check(client, tmp_path / "accepted")
    (client / name).unlink()
    with (client / name).open("wb") as f:
        f.truncate(1 << 40)
    with pytest.raises(DeployError, match=rf"cannot read \S+{name}: it has more than 67,108,864 bytes"):
        signing.check(client, tmp_path / "accepted")


def test_a_manifest_without_client_toml_does_not_leave_it_unchecked(client: Path, tmp_path: Path) -> None:
    key = signing.new_key()
    (client / "client.toml").unlink()
    signing.sign(key, client)
    (client / "client.toml").symlink_to("/dev/zero")
    with pytest.raises(DeployError, match=r"manifest\.json is not a list of files"):
        signing.check(client, tmp_path / "accepted")
