"""Keys and certificates, tried with the TLS that will read them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from unskew.deploy import certificates
from unskew.errors import DeployError

from .conftest import issued


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    who = certificates.authority("test")
    certificates.issue_server(who, ["fed.example.org", "10.1.2.3"], tmp_path)
    return issued(who, tmp_path)


def test_a_key_that_others_may_read_is_refused_with_the_remedy(pack: Path) -> None:
    (pack / "server.key").chmod(0o640)
    with pytest.raises(DeployError, match=r"may be read by others \(mode 0640\); chmod 600"):
        certificates.check(pack, "server")
    (pack / "site.key").chmod(0o604)
    with pytest.raises(DeployError, match="mode 0604"):
        certificates.check(pack, "site")


def test_an_expired_certificate_and_one_of_the_future_are_refused(pack: Path) -> None:
    now = datetime.now(UTC)
    certificates.check(pack, "server", now + certificates.LEAF - timedelta(days=1))
    with pytest.raises(DeployError, match=r"server\.crt expired on "):
        certificates.check(pack, "server", now + certificates.LEAF + timedelta(days=1))
    with pytest.raises(DeployError, match=r"not valid before .* set the clock"):
        certificates.check(pack, "server", now - timedelta(hours=2))


def test_a_certificate_of_another_authority_and_a_key_of_another_certificate_are_refused(pack: Path) -> None:
    other = pack / "other"
    other.mkdir()
    theirs = certificates.authority("test")
    certificates.issue_server(theirs, [], other)
    certificates.save_authority(theirs, other)
    foreign = (other / "ca.crt").read_bytes()
    ours = (pack / "ca.crt").read_bytes()
    (pack / "ca.crt").write_bytes(foreign)
    with pytest.raises(DeployError, match=r"was not signed by .*ca\.crt"):
        certificates.check(pack, "server")
    (pack / "ca.crt").write_bytes(ours)
    (pack / "server.crt").write_bytes((other / "server.crt").read_bytes())
    with pytest.raises(DeployError, match=r"is not the key of .*server\.crt"):
        certificates.check(pack, "server")


def test_a_certificate_is_due_60_days_before_its_end_and_a_short_one_in_its_last_third(tmp_path: Path) -> None:
    who, now = certificates.authority("test"), datetime.now(UTC)
    for valid, before, after in (
        (certificates.LEAF, timedelta(days=336), timedelta(days=338)),
        (timedelta(seconds=130), timedelta(seconds=80), timedelta(seconds=95)),
    ):
        certificates.issue_server(who, [], tmp_path, valid)
        assert not certificates.is_due(tmp_path / "server.crt", now + before)
        assert certificates.is_due(tmp_path / "server.crt", now + after)


def test_a_request_proves_that_its_sender_has_the_key() -> None:
    key = certificates.new_key()
    request = certificates.request(key)
    assert certificates.requested(request) == key.public_key()
    body = request.splitlines()
    body[3] = body[3][::-1]
    for wrong in (b"", b"none", b"\n".join(body)):
        with pytest.raises(DeployError, match="request"):
            certificates.requested(wrong)


def test_what_the_authority_signs_as_an_experiment_is_nothing_else() -> None:
    who = certificates.authority("test")
    certificates.check_signed([who.certificate], b"x", who.sign(b"x"))
    for data, signature in ((b"y", who.sign(b"x")), (b"x", certificates.authority("test").sign(b"x")), (b"x", b"")):
        with pytest.raises(DeployError, match="not signed by the federation's authority"):
            certificates.check_signed([who.certificate], data, signature)
