"""The coordinator's folder: who may join, who is taken out, what is run next."""

import json
import stat
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from unskew.deploy import backup, certificates, site
from unskew.deploy.channel import Peer
from unskew.deploy.federation import FederationFolder
from unskew.deploy.offers import Offer, Token
from unskew.deploy.settings import About, Site
from unskew.errors import ConfigError, DeployError
from unskew.experiment.config import Experiment
from unskew.record.logs import rows

from .party import Party

Small = Callable[..., Experiment]


@pytest.fixture
def party(tmp_path: Path) -> Party:
    return Party(tmp_path)


def invited(party: Party, name: str = "basel", **options: object) -> tuple[Token, Path]:
    (token,) = party.federation.invite([name], **options)  # type: ignore[arg-type]
    folder = party.folder / f"{name}-{time.monotonic_ns()}"
    site.join(Token.read(str(token)), folder, Site())
    return token, folder


def test_a_folder_is_its_owners_and_is_not_made_twice(party: Party, tmp_path: Path) -> None:
    folder = party.federation.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "authority" / "ca.key").stat().st_mode) == 0o600
    for taken in (folder, tmp_path):
        with pytest.raises(DeployError, match="exists already"):
            FederationFolder.create(taken, About())
    with pytest.raises(DeployError, match="is no federation"):
        FederationFolder(tmp_path)


# ---------------------------------------------------------------- joining
def test_a_token_comes_back_as_it_was_printed_and_is_refused_if_it_is_cut(party: Party) -> None:
    (token,) = party.federation.invite(["basel"])
    read = Token.read(f"  {token}\n")
    assert (read.site, str(read)) == ("basel", str(token))
    assert read.authority.encode() == certificates.pem(party.federation.authority.certificate)
    for wrong in ("", "nonsense", *(str(token)[:-n] for n in (1, 4, 9)), str(token)[5:], "é"):
        with pytest.raises(DeployError, match="this is no token; copy the whole line"):
            Token.read(wrong)


def test_a_site_gets_its_certificate_by_its_token_and_a_new_one_by_that(party: Party) -> None:
    token, folder = invited(party)
    first = party.certified(token, folder)
    assert certificates.public_key(first) == certificates.public_bytes(
        certificates.load_key(folder / "new.key").public_key()
    )
    assert party.federation.node(certificates.public_key(first)) == party.node("basel")
    request = certificates.request(certificates.load_key(folder / "new.key"))
    assert certificates.public_key(party.federation.certify(first, request)) == certificates.public_key(first)
    other = certificates.request(certificates.new_key())
    with pytest.raises(DeployError, match="renewed for the key that the site has"):
        party.federation.certify(first, other)


def test_wrong_used_expired_and_older_tokens_get_a_sentence_each(party: Party) -> None:
    token, folder = invited(party)
    assert party.certified(token, folder)
    assert party.certified(token, folder), "the same site asks again after its line broke"
    with pytest.raises(DeployError, match="was used already; ask for a new one, and find out who used it"):
        party.federation.certify(token.certificate.encode(), certificates.request(certificates.new_key()))
    with pytest.raises(DeployError, match="basel is a member; remove it first"):
        party.federation.invite(["basel"])
    old, folder = invited(party, "bern")
    invited(party, "bern")
    with pytest.raises(DeployError, match="a newer one has taken its place"):
        party.certified(old, folder)
    late, folder = invited(party, "chur", hours=0.0005)
    time.sleep(2.0)
    with pytest.raises(DeployError, match="the token has expired"):
        party.certified(late, folder)
    stranger, _ = certificates.invitation(certificates.authority("x"), "basel", certificates.LEAF)
    with pytest.raises(DeployError, match="is not known"):
        party.federation.certify(
            certificates.issue_site(certificates.authority("x"), "basel", stranger.public_key()),
            certificates.request(certificates.new_key()),
        )


def test_a_site_that_is_to_be_approved_waits_until_it_is(party: Party) -> None:
    token, folder = invited(party, ask=True)
    assert party.certified(token, folder) == b""
    assert [s["state"] for s in party.federation.status()["sites"]] == ["waiting"]
    party.federation.approve(["basel"])
    assert party.certified(token, folder)
    with pytest.raises(DeployError, match="basel is member; there is nothing to approve"):
        party.federation.approve(["basel"])
    with pytest.raises(DeployError, match="there is no site 'basle'; did you mean basel"):
        party.federation.approve(["basle"])


def test_an_authority_is_changed_while_sites_move_over_at_their_renewal(party: Party, small: Small) -> None:
    """Before, an authority that ended took the federation with it."""
    folders = dict(zip(("basel", "bern"), party.join("basel", "bern"), strict=True))
    federation, first = party.federation, party.federation.fingerprint()

    def renew(name: str) -> None:
        folder = folders[name]
        request = certificates.request(certificates.load_key(folder / "site.key"))
        certificates.accept(folder, federation.certify((folder / "site.crt").read_bytes(), request))
        certificates.check(folder, "site")

    def trusted(name: str) -> list[str]:
        return list(map(certificates.fingerprint, certificates.load_all(folders[name] / "ca.crt")))

    with pytest.raises(DeployError, match="there is no second authority"):
        federation.drop_authority()
    assert federation.change_authority() == ["basel", "bern"]
    renew("basel")
    assert federation.change_authority() == ["bern"]
    with pytest.raises(DeployError, match="bern would be locked out"):
        federation.drop_authority()
    party.join("chur")  # by a token of the first authority
    party.queue(small("split.num_clients=3"))
    renew("bern")
    federation.drop_authority()
    second = federation.fingerprint()
    assert trusted("bern") == [first, second]
    certificates.check(federation.folder / "authority", "server")
    assert party.run() == ["done"], "offers are signed anew"
    renew("bern")
    assert trusted("bern") == [second]
    thief = certificates.authority("thief")
    answer = certificates.answer(
        (folders["bern"] / "site.crt").read_bytes(), certificates.pem(thief.certificate), thief
    )
    with pytest.raises(DeployError, match="authorities is not signed by"):
        certificates.accept(folders["bern"], answer)
    assert trusted("bern") == [second]


def test_no_certificate_outlives_its_authority_and_its_end_is_told_60_days_before(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = party.federation.folder / "authority"
    certificates.save_authority(certificates.authority("test", timedelta(days=59)), place)
    party.federation.issue_server(party.federation.authority)
    server, authority = (certificates.load(place / f"{name}.crt").not_valid_after_utc for name in ("server", "ca"))
    assert server == authority
    party.run()
    warned = [event for event in party.federation.events() if event["level"] == "warning"]
    assert len(warned) == 1
    assert "change it with unskew fed authority" in warned[0]["text"]
    assert party.federation.status()["authority_days"] == 58


def test_a_site_that_is_removed_is_nobody_and_may_be_invited_again(party: Party) -> None:
    token, folder = invited(party)
    key = certificates.public_key(party.certified(token, folder))
    number = party.federation.node(key)
    party.federation.remove(["basel"])
    assert party.federation.node(key) is None
    with pytest.raises(DeployError, match="is not known"):
        party.certified(token, folder)
    token, folder = invited(party)
    assert party.federation.node(certificates.public_key(party.certified(token, folder))) == number
    assert [e["text"] for e in party.federation.events(site="basel")][-3:-1] == ["basel is invited", "basel has joined"]


# ---------------------------------------------------------------- experiments
def test_sites_are_numbered_as_the_table_has_them_and_offers_are_signed(party: Party, small: Small) -> None:
    party.join("basel", "bern")
    party.federation.invite(["chur"])
    party.federation.remove(["basel"])
    name = party.queue(small())
    row = party.federation.experiment(name)
    offers = party.federation.signed(row)
    ca = [party.federation.authority.certificate]
    read = [Offer.read(data) for data, _ in offers]
    assert [(o.site, o.client, o.clients, o.name) for o in read] == [("bern", 0, 2, "small"), ("chur", 1, 2, "small")]
    assert {o.run for o in read} == {row["run"]}
    with pytest.raises(DeployError, match="not signed by the federation's authority"):
        certificates.check_signed(ca, offers[0][0].replace(b"bern", b"chur"), offers[0][1])
    with pytest.raises(DeployError, match="basel was removed"):
        party.queue(small(), "basel")
    with pytest.raises(ConfigError, match="min_clients"):
        party.queue(small(), min_clients=0)


def test_an_experiment_goes_on_unless_it_is_done_or_another(party: Party, small: Small) -> None:
    with pytest.raises(DeployError, match="the federation has no sites"):
        party.queue(small())
    party.join("basel", "bern")
    federation = party.federation
    assert party.queue(small()) == "small"
    assert party.queue(small()) == "small", "it is queued once"
    federation.put("experiments", federation.experiment("small")["id"], state="failed", reason="x")
    assert party.queue(small()) == "small"
    assert party.queue(small("rounds=3")) == "small-2"
    assert party.queue(small(), "bern") == "small-3"
    party.join("chur")
    federation.remove(["basel"])
    assert party.queue(small()) == "small", "without the site that was removed, and the one that came later"
    federation.put("experiments", federation.experiment("small")["id"], state="done")
    federation.invite(["basel"])
    assert party.queue(small()) == "small-4"
    assert [job["state"] for job in federation.jobs()] == ["done", "queued", "queued", "queued"]
    federation.put("experiments", federation.experiment("small-3")["id"], state="running")
    assert federation.next() == federation.experiment("small-3"), "what was interrupted comes first"
    assert federation.stop("small-2") == "small-2"
    assert federation.stop() == "small-3", "nothing serves: it is stopped at once"
    with pytest.raises(DeployError, match="small-3 is running or waiting"):
        federation.stop("small-3")
    with pytest.raises(DeployError, match="there is no experiment 'smal'; did you mean small"):
        federation.experiment("smal")


def test_status_is_json_and_keeps_of_what_sites_say_numbers_and_short_texts(party: Party, small: Small) -> None:
    party.join("basel")
    node, now = party.node("basel"), time.time()
    own = {"library": "9\x1b[31m" * 99, "disk": 10**9, "error": "no", "protocol": "1", "else": 1}
    party.federation.saw({node: Peer(since=now, heard=now, status=own)})
    status = json.loads(json.dumps(party.federation.status()))
    (basel,) = status["sites"]
    assert (basel["free_bytes"], basel["error"]) == (10**9, None)
    assert "\x1b" not in basel["version"]
    assert len(basel["version"]) <= 200
    assert basel["certificate_days"] in (396, 397)
    assert (status["serving"], basel["since"]) == (False, None)


def test_a_backup_has_all_and_makes_the_federation_anew(party: Party, small: Small, tmp_path: Path) -> None:
    party.join("basel", "bern")
    party.queue(small())
    assert party.run() == ["done"]
    backup.backup(party.federation, tmp_path / "b.tgz")
    assert stat.S_IMODE((tmp_path / "b.tgz").stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        backup.backup(party.federation, tmp_path / "b.tgz")
    backup.restore(tmp_path / "b.tgz", tmp_path / "again")
    again = FederationFolder(tmp_path / "again")
    assert stat.S_IMODE(again.folder.stat().st_mode) == 0o700
    assert again.fingerprint() == party.federation.fingerprint()
    assert again.status()["sites"] == party.federation.status()["sites"]
    record = again.experiment_folder("small") / "run"
    assert list(rows(record, "metrics")) == list(rows(party.record("small"), "metrics"))
    (tmp_path / "x").write_text("x")
    for source, target, why in (
        (tmp_path / "b.tgz", again.folder, "exists already"),
        (tmp_path / "x", tmp_path / "n", "cannot"),
    ):
        with pytest.raises(DeployError, match=why):
            backup.restore(source, target)
