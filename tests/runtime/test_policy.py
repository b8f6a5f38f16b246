"""A server that asks for more than it may: the client keeps its own account, its own rules and its own log."""

import dataclasses
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("grpc")
pytest.importorskip("dp_accounting")

import loopback

from unskew import wire
from unskew.algorithms import resolve
from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.feddistr import EmbeddingNoise, FedDistr
from unskew.algorithms.feddw import FedDW, LabelNoise
from unskew.errors import ConfigError, RunError, WireError
from unskew.protocol import Held, SgdConfig, Spending, hook
from unskew.runtime.accounts import NoisedUpload, charge
from unskew.runtime.client import ClientRuntime
from unskew.runtime.message import (
    REPLIES,
    REQUESTS,
    ClientInfo,
    Envelope,
    EvaluationRequest,
    FetchRequest,
    Hello,
    Refusal,
    StepReply,
    StepRequest,
    read,
    write,
)
from unskew.runtime.policy import Rules, SitePolicy
from unskew.server import privacy
from unskew.wrappers.base import Wrapper, wrap
from unskew.wrappers.central_dp import CentralDP
from unskew.wrappers.compression import Quantise, TopK
from unskew.wrappers.dp_sgd import DPSGD
from unskew.wrappers.local_dp import LocalDP
from unskew.wrappers.secure_sum import SecureSum

SMALL = SgdConfig(0.05, batch_size=8)
ONE = FedDW(local=SMALL, dp=LabelNoise(epsilon=1.0, uploads=1))


class Site:
    """A client whose server orders what it likes, from one honest order on."""

    def __init__(self, method: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        loopback.built.cache_clear()
        monkeypatch.setattr(loopback, "make", lambda case: method)
        there = loopback.Deployed("it", "perceptron", folder / "honest", seed=11, method=method)
        there.runtime.round(there.runtime.start(), 1)
        asks = (m for _, m in there.grid.pushed)
        self.order = next(e for e in asks if e.action == "ask")
        self.client: ClientRuntime = dataclasses.replace(there.client_runtime(0), state=folder / "state", **options)
        self.method = method

    def ask(self, round: int = 1, run: str = "hostile", **other: Any) -> Envelope:
        head = read(self.order, REQUESTS)
        assert isinstance(head, StepRequest)
        context = dataclasses.replace(head.context, round=round, run=run)
        head = dataclasses.replace(head, **{"context": context, **other})
        return self.client.answer(write("ask", head, *self.order.parts))

    def soft(self, reply: Envelope) -> Any:
        """The soft labels of a reply; None if it is a refusal."""
        if reply.action == "refused":
            return None
        step = wire.signatures(self.method)[read(self.order, REQUESTS).step]
        return wire.decode(reply.parts[0], step.reply).soft


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Site]:
    yield lambda method=ONE, **options: Site(method, tmp_path, monkeypatch, **options)  # type: ignore[misc]
    loopback.built.cache_clear()


def reason(reply: Envelope) -> str:
    head = read(reply, REPLIES)
    assert isinstance(head, Refusal)
    return head.reason


# ---------------------------------------------------------------- the account
def spent(folder: Path, columns: str = "purpose, z, n, q") -> list[Any]:
    """Rows of the record in a folder."""
    with closing(sqlite3.connect(folder / "privacy.sqlite")) as db:
        return db.execute(f"SELECT {columns} FROM uploads").fetchall()


def test_a_server_that_orders_300_uploads_of_a_budget_for_one_gets_one(site: Callable[..., Site]) -> None:
    """The attack that worked: with epsilon 1 and one upload a client answered 300 orders, epsilon 29.9."""
    there = site()
    first = there.ask(1)
    assert there.soft(first) is not None
    further = [there.ask(t) for t in range(2, 12)] + [there.ask(1, run=f"run{i}") for i in range(5)]
    assert [there.soft(r) for r in further] == [None] * 15
    assert reason(further[0]) == (
        "the privacy budget of this experiment is spent: 1 of 1 noised releases about this client's data were made "
        "(soft labels), and another one was asked for"
    )


def test_the_same_order_again_draws_the_same_noise_and_costs_nothing(site: Callable[..., Site]) -> None:
    there = site()
    first, again = there.ask(1), there.ask(1)
    assert first.parts == again.parts
    assert spent(there.client.state) == [("soft labels", ONE.by.dp.multiplier, 1, 1.0)]  # type: ignore[union-attr]


def test_the_same_order_from_another_memory_draws_other_noise_and_is_paid_for(site: Callable[..., Site]) -> None:
    """The attack that worked: with equal noise the difference of two uploads was that of the updates, to the bit.

    The server says which answers count, and so whether a round is trained from the personal layers of the one before.
    """
    by = LocalDP(clip=1.0, noise_multiplier=50.0)
    there = site(wrap(resolve("fedper")(), by))

    def ask(round: int, attempt: str, since: str) -> dict[str, Any]:
        head = read(there.order, REQUESTS)
        context = dataclasses.replace(head.context, round=round, run="hostile", attempt=attempt)
        head = dataclasses.replace(head, context=context, since=since)
        reply = there.client.answer(write("ask", head, *there.order.parts))
        assert reply.action == "ask", reason(reply)
        sent = wire.decode(reply.parts[0], wire.signatures(there.method)[head.step].reply)
        return dict(sent.params)

    ask(1, "a", "")
    after_one, anew = ask(2, "b", "000001-a-0000"), ask(2, "c", "")
    # Two draws of noise with standard deviation 50 on every number are 70 apart on each.
    apart = torch.cat([(after_one[n] - anew[n]).flatten() for n in anew])
    assert float(apart.std()) == pytest.approx(50.0 * 2**0.5, rel=0.3)
    assert len(spent(there.client.state)) == 3


def test_two_clients_of_a_machine_never_write_the_record_at_once(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = site()
    monkeypatch.setattr("unskew.runtime.accounts.LOCKED_WITHIN_S", 0.05)
    there.client.state.mkdir()
    with closing(sqlite3.connect(there.client.state / "privacy.sqlite")) as other:
        other.execute("BEGIN IMMEDIATE")
        assert "privacy.sqlite cannot be used (database is locked)" in reason(there.ask(1))
    assert there.soft(there.ask(1)) is not None


def test_an_upload_is_on_the_record_before_it_leaves(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = site()

    def crash(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr("unskew.runtime.client._Cell.save", crash)
        with pytest.raises(KeyboardInterrupt):
            there.ask(1)
    assert there.soft(there.ask(2)) is None
    assert there.soft(there.ask(1)) is not None  # the very order that was paid for


def test_nothing_without_noise_is_reported_by_a_method_that_has_some(site: Callable[..., Site]) -> None:
    there = site()
    head = read(there.ask(1), REPLIES)
    assert isinstance(head, StepReply)
    assert (head.n, head.examples, head.losses) == (0, 0, ())
    order = read(there.order, REQUESTS)
    context = dataclasses.replace(order.context, run="hostile")
    evaluation = EvaluationRequest(context, ("personal", "val"), "", False)
    assert read(there.client.answer(write("evaluate", evaluation)), REPLIES).scores == ()


def test_who_knows_what_the_data_may_be_cannot_try_it_out(site: Callable[..., Site], tmp_path: Path) -> None:
    """The attack that worked: the first message had SHA-256 of the rows, and 14 guesses told one patient's status."""

    def told(client: ClientRuntime) -> str:
        head = read(client.answer(write("hello", Hello("run", "small world"))), REPLIES)
        assert isinstance(head, ClientInfo)
        return head.data

    here = site().client
    same_rows, other_rows = (
        dataclasses.replace(here, state=tmp_path / "guess" / "state"),
        dataclasses.replace(here, info=dataclasses.replace(here.info, data="other rows")),
    )
    assert told(here) == told(here)
    assert len({here.info.data, told(here), told(same_rows), told(other_rows)}) == 4


UPLOAD = NoisedUpload("data", "experiment", 0, "first")
COST = (Spending("labels", 2.0, 1, None),)


def test_all_uploads_about_a_data_set_count_whatever_run_or_experiment(tmp_path: Path) -> None:
    path, rules = tmp_path / "own" / "privacy.sqlite", Rules(SitePolicy(max_epsilon=4.0), "/home/a/policy.toml")
    charge(path, UPLOAD, COST, rules)
    charge(path, UPLOAD._replace(experiment="another", request="second"), COST, rules)
    third = UPLOAD._replace(cell=3, request="third")
    # Two uploads of multiplier 2 are epsilon 2.9 at delta 1e-5, three are 3.6, four are 4.3.
    charge(path, third, COST, rules)
    with pytest.raises(
        WireError, match=r"epsilon would be 4\.\d+ about .* \(/home/a/policy\.toml: max_epsilon = 4\.0\)"
    ):
        charge(path, UPLOAD._replace(experiment="new", request="fourth"), COST, rules)
    charge(path, third, COST, rules)
    charge(path, UPLOAD._replace(data="other", request="fourth"), COST, rules)
    assert len(spent(path.parent)) == 4
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_budget_of_an_experiment_is_that_of_each_seed_and_method(tmp_path: Path) -> None:
    """Two releases are allowed, for either purpose by itself; what other cells and experiments spend does not count."""
    path, rules = tmp_path / "privacy.sqlite", Rules()
    costs = tuple(Spending(purpose, 2.0, 1, 2) for purpose in ("labels", "models"))
    for i, cell in enumerate((0, 1, 0, 1)):
        charge(path, UPLOAD._replace(cell=cell, request=f"{i}"), costs, rules)
    charge(path, UPLOAD._replace(experiment="another", request="other"), costs, rules)
    for cell in (0, 1):
        with pytest.raises(WireError, match=r"the privacy budget of this experiment is spent: 2 of 2 .* \(labels\)"):
            charge(path, UPLOAD._replace(cell=cell, request=f"third of {cell}"), costs, rules)
    assert len(spent(tmp_path)) == 5 * 2


def test_a_deployed_client_trains_under_dp_sgd_until_its_own_account_is_spent(site: Callable[..., Site]) -> None:
    """Each order is four steps at q = .5; the participant allows three orders, the experiment any number."""
    private = wrap(FedAvg(local=SgdConfig(0.05, batch_size=8, local_epochs=2)), DPSGD(noise_multiplier=4.0, share=0.5))
    most = privacy.composed_epsilon((((4.0, 0.5), 12),), 1e-5)
    there = site(private, rules=rules(max_epsilon=most * 1.001))
    answers = [there.ask(t) for t in (1, 2, 2, 3, 4)]
    assert [a.action for a in answers] == ["ask"] * 4 + ["refused"]
    assert answers[1].parts == answers[2].parts != answers[3].parts
    assert reason(answers[-1]).endswith(f"(policy.toml: max_epsilon = {most * 1.001})")
    assert [read(a, REPLIES).losses for a in answers[:4]] == [()] * 4  # type: ignore[union-attr]
    assert spent(there.client.state) == [("gradients", 4.0, 4, 0.5)] * 3


def test_the_same_order_of_another_folder_or_experiment_draws_other_noise_and_is_paid_for(
    site: Callable[..., Site], tmp_path: Path
) -> None:
    """The attack that worked: a second folder has a secret of its own, and its upload was taken for the first one."""
    account, private = tmp_path / "privacy.sqlite", wrap(FedAvg(local=SMALL), LocalDP(noise_multiplier=50.0))
    there = site(private, privacy=account, account="files")
    first = there.ask(1)
    there.client = dataclasses.replace(there.client, state=tmp_path / "second")
    second = there.ask(1)
    shutil.copytree(tmp_path / "second", tmp_path / "third", ignore=lambda _, names: {*names} - {"draws.secret"})
    info = dataclasses.replace(there.client.info, config="another")
    there.client = dataclasses.replace(there.client, state=tmp_path / "third", info=info)
    context = dataclasses.replace(read(there.order, REQUESTS).context, config="another", round=1, run="hostile")
    third = there.ask(1, context=context)
    assert [a.action for a in (first, second, third)] == ["ask"] * 3
    assert len({a.parts for a in (first, second, third)}) == 3
    assert spent(account.parent, "data") == [("files",)] * 3


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "privacy.sqlite"
    charge(path, UPLOAD, COST, Rules())
    whole = path.read_bytes()
    for damaged in (b"{}" + whole, whole[:5000]):
        path.write_bytes(damaged)
        with pytest.raises(RunError, match=r"privacy\.sqlite cannot be used .* restore it from a copy"):
            charge(path, UPLOAD._replace(request="third"), COST, Rules())


# ---------------------------------------------------------------- the rules
def rules(**policy: Any) -> Rules:
    return Rules(SitePolicy(**policy), "policy.toml")


def test_what_a_participant_forbids_is_refused_by_file_and_key(site: Callable[..., Site]) -> None:
    there = site(FedAvg(local=SMALL))
    size = len(there.ask(1).parts[0])
    for policy, says in (
        (
            rules(max_bytes=size - 1),
            f"{size} bytes would leave this client in one round (policy.toml: max_bytes = {size - 1})",
        ),
    ):
        there.client = dataclasses.replace(there.client, rules=policy)
        assert reason(there.ask(2)) == says
    there.client = dataclasses.replace(there.client, rules=rules(max_bytes=size, relay=False))
    assert there.ask(2).action == "ask"
    assert reason(there.ask(2, hop=1)).startswith(f"{2 * size} bytes would leave")  # of one round together
    fetch = FetchRequest(read(there.order, REQUESTS).context, ())
    assert reason(there.client.answer(write("fetch", fetch))) == (
        "this client hands over no value for other clients (policy.toml: relay = false)"
    )


def test_methods_that_may_not_run_are_refused_before_data_are_read() -> None:
    for name in ("fedavg", "fedavg+secure_sum", "fedavg+local_dp+quantise"):
        rules(methods=("fedavg",)).check_method(name, covered=False)
    for methods, name in ((("fedavg",), "fedavg+dw"), (("fedavg+secure_sum",), "fedavg"), (("fedavg",), "fedavg+a:b")):
        with pytest.raises(ConfigError, match="may not run here"):
            rules(methods=methods).check_method(name, covered=False)
    with pytest.raises(ConfigError, match=r"fedprox may not run here: policy\.toml allows methods = \['fedavg'"):
        rules(methods=("fedavg",)).check_method("fedprox", covered=False)
    with pytest.raises(ConfigError, match=r"fedprox sends what has no noise .* policy\.toml has max_epsilon = 1;"):
        rules(max_epsilon=1.0).check_method("fedprox", covered=False)


@pytest.mark.parametrize(
    ("by", "adds"),
    [
        (LocalDP(noise_multiplier=9.0), True),
        (DPSGD(), True),
        (DPSGD(noise_multiplier=0.0), False),
        (CentralDP(), False),  # the server's, which gets the updates as they are
        (TopK(), False),
    ],
)
def test_only_clients_own_noise_on_all_that_they_reply_counts(by: Wrapper, adds: bool) -> None:
    assert hook(wrap(FedAvg(), by), "covers_replies") == adds
    assert hook(wrap(FedAvg(), by, Quantise()), "covers_replies") == adds


def test_noise_on_a_part_of_the_replies_does_not_count() -> None:
    """FedDW's covers its counts and FedDistr's its embeddings: the model, or the labels, leave as they are."""
    for method in (ONE, resolve("scaffold+dw")(), FedDistr(dp=EmbeddingNoise(sigma=1.0)), wrap(FedAvg(), SecureSum())):
        assert not hook(method, "covers_replies")


def test_code_of_a_coordinator_is_imported_as_the_participant_says() -> None:
    assert not rules().code_allowed(False)
    assert rules().code_allowed(True)
    assert rules(allow_code=True).code_allowed(False)
    assert not rules(allow_code=False).code_allowed(True)


# ---------------------------------------------------------------- the log
def test_every_answer_and_refusal_is_a_row_that_is_on_the_disk_before_it_leaves(
    site: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("unskew.files.os.fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    there = site(FedAvg(local=SMALL), audit=tmp_path / "audit.jsonl", rules=rules(relay=False))
    reply = there.ask(3)
    there.client.answer(write("fetch", FetchRequest(read(there.order, REQUESTS).context, ())))
    there.client.answer(Envelope("nonsense", "{", ()))
    rows = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert len(rows) == synced.count((tmp_path / "audit.jsonl").stat().st_ino) == 3
    assert {k: rows[0][k] for k in ("action", "run", "round", "hop", "step", "released")} == {
        "action": "ask",
        "run": "hostile",
        "round": 3,
        "hop": 0,
        "step": "train",
        "released": ["the step's reply", "counts of examples", "training losses"],
    }
    assert rows[0]["bytes_out"] == len(reply.head) + reply.payload
    assert rows[0]["bytes_in"] > there.order.payload
    assert [set(r) & {"released", "refused"} for r in rows[1:]] == [{"refused"}] * 2
    assert len({r[k] for r in rows for k in ("request", "reply")}) == 6
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o777 == 0o600


def test_nothing_leaves_that_could_not_be_logged(site: Callable[..., Site], tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    there = site(FedAvg(local=SMALL), audit=tmp_path / "audit.jsonl")
    assert reason(there.ask(1)).startswith("cannot write the audit log audit.jsonl: Is a directory")


def test_no_head_of_a_hostile_server_ends_a_client_or_fills_its_log(site: Callable[..., Site], tmp_path: Path) -> None:
    """Heads that a server may not send were logged whole, and one as deep as the parser takes was parsed."""
    there = site(FedAvg(local=SMALL), audit=tmp_path / "audit.jsonl")
    heads = [
        f'{{"context":{{"run":{"[" * depth}{"]" * depth}}},"step":"{"x" * 99_999}"}}' for depth in range(700, 1000, 3)
    ]
    for head in (
        *heads,
        '{"context": {"run": 1e999, "cell": true, "round": null}, "hop": {"a": 1}, "step": "s\\u001b"}',
    ):
        assert there.client.answer(Envelope("ask", head)).action == "refused"
    rows = (tmp_path / "audit.jsonl").read_bytes().splitlines()
    assert len(rows) == len(heads) + 1
    assert max(map(len, rows)) < 2000
    assert json.loads(rows[-1])["step"] == "s\x1b"


def test_a_held_value_is_handed_over_once_in_a_reply(site: Callable[..., Site]) -> None:
    """Its name takes ten bytes, the value may be a model: a request of a megabyte asked for terabytes."""
    there = site(FedAvg(local=SMALL))
    there.ask(1)
    context = dataclasses.replace(read(there.order, REQUESTS).context, run="hostile")
    held = Held(0, "0/params")
    assert reason(there.client.answer(write("fetch", FetchRequest(context, (held, held))))) == (
        "a value was asked for twice in one request"
    )
