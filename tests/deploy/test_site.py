"""A site and what it is offered: its own policy decides, before anything that an experiment names is looked at."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from unskew.deploy import certificates, member, settings, site
from unskew.deploy.offers import Offer
from unskew.deploy.settings import Site
from unskew.errors import DeployError
from unskew.experiment import config
from unskew.experiment.config import Experiment
from unskew.runtime.message import REPLIES, Envelope, EvaluationRequest, Hello, RoundContext, read, write

from .party import Party

Small = Callable[..., Experiment]


@pytest.fixture
def party(tmp_path: Path) -> Party:
    party = Party(tmp_path)
    party.join("basel", "bern", policy=str(tmp_path / "policy.toml"))
    return party


@pytest.fixture(autouse=True)
def policy(tmp_path: Path) -> Callable[..., None]:
    """Writes the sites' policy, which allows all at first."""

    def rules(**settings: Any) -> None:
        (tmp_path / "policy.toml").write_text(tomli_w.dumps(settings))

    rules()
    return rules


def offered(party: Party, name: str = "small", site: str = "basel") -> tuple[Offer, tuple[bytes, bytes]]:
    row = party.federation.experiment(name)
    (client,) = [o["client"] for o in party.federation.offers(row) if o["name"] == site]
    parts = party.federation.signed(row)[client]
    return Offer.read(parts[0]), parts


def greet(here: member.Resident, offer: Offer, parts: tuple[bytes, ...]) -> Any:
    head = Hello(offer.run, "x")
    return read(here.answer(write("hello", head, *parts)), REPLIES)


def audited(party: Party, name: str = "basel") -> list[tuple[str, str]]:
    rows = map(json.loads, (party.folder / name / "audit.jsonl").read_text().splitlines())
    return [(row["experiment"], row["answer"]) for row in rows if row["action"] == "offer"]


def test_an_offer_that_the_policy_allows_is_taken_and_audited(party: Party, small: Small) -> None:
    party.queue(small())
    offer, parts = offered(party)
    info = greet(party.opened("basel"), offer, parts)
    assert (info.client, info.num_clients) == (0, 2)
    assert audited(party) == [("small", "accepted")]
    (experiment,) = site.status(party.folder / "basel")["experiments"]
    assert (experiment["name"], experiment["answer"]) == ("small", "accepted")


def test_what_the_authority_has_not_signed_for_this_site_is_refused(party: Party, small: Small) -> None:
    party.queue(small())
    offer, parts = offered(party)
    here = party.opened("basel")
    forged = dataclasses.replace(offer, toml=offer.toml.replace("rounds = 2", "rounds = 9"))
    for wrong, what in (
        ((parts[0], parts[1][::-1]), "not signed by the federation's authority"),
        (forged.signed(certificates.authority("test")), "not signed by the federation's authority"),
        (offered(party, site="bern")[1], "offered to 'bern', and this site is 'basel'"),
        (dataclasses.replace(offer, name="../x").signed(party.federation.authority), "an experiment is called by"),
        (dataclasses.replace(offer, client=2).signed(party.federation.authority), "client number below"),
        ((), "must carry an experiment and its signature"),
    ):
        assert what in greet(here, offer, wrong).reason
    assert (
        "not the one that the server greets for" in greet(here, dataclasses.replace(offer, run="other"), parts).reason
    )
    assert not list((party.folder / "basel").glob("experiments/*/state"))


CODE = """
raise SystemExit("the coordinator's code ran")
"""


def test_a_method_that_may_not_run_is_refused_before_its_code_is_imported(
    party: Party, small: Small, policy: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil_code.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(tmp_path))
    party.queue(small())
    offer, _ = offered(party)
    named = dataclasses.replace(offer, toml=offer.toml.replace('name = "fedavg"', 'name = "evil_code:Mine"'))
    parts = named.signed(party.federation.authority)
    policy(methods=["fedavg"], allow_code=True)
    assert "method evil_code:Mine may not run here" in greet(party.opened("basel"), offer, parts).reason
    policy(allow_code=False)
    assert "names code (evil_code:Mine)" in greet(party.opened("basel"), offer, parts).reason
    assert audited(party) == [("small", "refused"), ("small", "refused")]


def test_a_person_accepts_or_refuses_where_the_policy_asks(
    party: Party, small: Small, policy: Callable[..., None]
) -> None:
    policy(accept="ask")
    party.queue(small())
    offer, parts = offered(party)
    here, folder = party.opened("basel"), party.folder / "basel"
    for _ in range(2):
        assert "unskew site accept small" in greet(here, offer, parts).reason
    with pytest.raises(DeployError, match="none was not offered to this site"):
        site.answer(folder, "none", "accepted")
    site.answer(folder, "small", "accepted")
    assert greet(here, offer, parts).client == 0
    site.answer(folder, "small", "refused")
    assert "a person at this site has refused it" in greet(here, offer, parts).reason
    context = RoundContext(offer.run, greet_config(party), 0, 1)
    request = write("evaluate", EvaluationRequest(context, ("personal",), "", False))
    assert "has refused it" in read(here.answer(request), REPLIES).reason
    assert audited(party) == [("small", "waits"), ("small", "accepted"), ("small", "refused")]


def greet_config(party: Party) -> str:
    folder = party.federation.experiment_folder("small")
    return config.fingerprint(folder / "experiment.toml", portable=True)


def test_a_site_that_starts_again_knows_what_it_takes_part_in(party: Party, small: Small) -> None:
    party.queue(small())
    offer, parts = offered(party)
    context = RoundContext(offer.run, greet_config(party), 0, 0)
    request = write("evaluate", EvaluationRequest(context, ("personal",), "", False))
    assert "takes no part in that run" in read(party.opened("basel").answer(request), REPLIES).reason
    greet(party.opened("basel"), offer, parts)
    assert read(party.opened("basel").answer(request), REPLIES).scores == ()


def test_own_data_that_do_not_go_with_an_experiment_are_not_quoted_to_the_server(
    party: Party, small: Small, tmp_path: Path
) -> None:
    (tmp_path / "own.csv").write_text("age,sick\nsecret,1\n")
    party.join("chur", data=f"csv:{tmp_path / 'own.csv'}")
    name = party.queue(small("task={data='csv:x.csv', model='logistic', data_options={target='ill'}}"))
    offer, parts = offered(party, name, "chur")
    site = party.opened("chur")
    assert greet(site, offer, parts).reason == "its data do not go with the experiment; its own log says why"
    assert "ill" in party.said[-2]


def test_a_site_without_data_is_asked_for_them(party: Party, small: Small) -> None:
    party.federation.queue(small(), {})
    offer, parts = offered(party)
    assert "named no data of its own; name some with --data" in greet(party.opened("basel"), offer, parts).reason


def test_a_site_whose_disk_is_full_still_answers_and_takes_the_offer_when_there_is_room(
    party: Party, small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    party.queue(small())
    offer, parts = offered(party)
    here = party.opened("basel")

    def full(path: Path, *content: object, **row: object) -> None:
        raise OSError(28, "No space left on device", str(path))

    for name in ("write_atomically", "append"):
        with monkeypatch.context() as patch:
            patch.setattr(member, name, full)
            assert "No space left on device; make room" in greet(here, offer, parts).reason
    assert greet(here, offer, parts).client == 0


@pytest.mark.parametrize("envelope", [Envelope("", ""), Envelope("ask", "[]"), Envelope("offer", "{}")])
def test_whatever_comes_there_is_a_reply(envelope: Envelope, party: Party) -> None:
    assert party.opened("basel").answer(envelope).action == "refused"


def test_another_experiment_of_the_same_name_has_a_folder_of_its_own(party: Party, small: Small) -> None:
    party.queue(small())
    offer, parts = offered(party)
    greet(party.opened("basel"), offer, parts)
    other = dataclasses.replace(offer, run="0123456789abcdef")
    greet(party.opened("basel"), other, other.signed(party.federation.authority))
    names = sorted(p.name for p in (party.folder / "basel" / "experiments").iterdir())
    assert names == ["small", "small-01234567"]


def test_a_site_that_joins_again_keeps_its_settings_and_gets_a_new_key(party: Party, tmp_path: Path) -> None:
    (tmp_path / "p.toml").touch()
    (folder,) = party.join("chur", data="npz:/srv/a.npz", policy=str(tmp_path / "p.toml"), decimal=",")
    old = (folder / "site.key").read_bytes()
    party.federation.remove(["chur"])
    (token,) = party.federation.invite(["chur"])
    site.join(token, folder, Site(decimal="."))
    assert (folder / "site.key").read_bytes() == old, "nothing is lost while the server has not taken the token"
    assert certificates.load(folder / "site.crt")
    assert site.admit(folder, functools.partial(party.federation.certify, token.certificate.encode()))
    assert (folder / "site.key").read_bytes() != old
    kept = settings.read_settings(folder / "site.toml", Site)
    assert (kept.data, kept.policy, kept.decimal) == ("npz:/srv/a.npz", str(tmp_path / "p.toml"), ".")
    assert {"new.key", "invitation.crt", "invitation.key"}.isdisjoint(path.name for path in folder.iterdir())


def test_a_folder_of_another_site_is_not_joined_and_the_policy_may_name_the_authority(
    party: Party, policy: Callable[..., None]
) -> None:
    (token,) = party.federation.invite(["chur"])
    with pytest.raises(DeployError, match="is the site basel of a federation; join with another --folder"):
        site.join(token, party.folder / "basel", Site())
    policy(coordinator="0000 1111")
    with pytest.raises(DeployError, match="the policy trusts 0000 1111 only"):
        member.start(party.folder / "basel", print)
