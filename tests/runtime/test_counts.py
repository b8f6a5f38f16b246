"""A client that lies about how many examples it has is held to the number it said first, and its weight is named."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

import loopback
import torch
from jaxtyping import Int64
from recipe import LOCAL
from torch import Tensor

from unskew import wire
from unskew.algorithms import resolve
from unskew.algorithms.fedavg import FedAvg, ModelMessage, ModelReply
from unskew.algorithms.feddif import Tally
from unskew.algorithms.feddistill import ClassOutputs
from unskew.algorithms.fedproto import Prototypes
from unskew.errors import QuorumError, WireError
from unskew.protocol import Me, Step, step
from unskew.reduction import Each
from unskew.runtime.membership import Membership
from unskew.runtime.message import REPLIES, ClientInfo, Envelope, read, write
from unskew.runtime.validation import check_count, counts_in
from unskew.tree import Params


def deployed(folder: Path, **limits: Any) -> loopback.Deployed:
    return loopback.Deployed("fedavg", "perceptron", folder, clients_per_round=6, terms=limits)


def lies(there: loopback.Deployed, client: int, n: Callable[[int], int], declared: tuple[int, ...] = ()) -> None:
    """Let a client say it has n(round) examples, in its reply and beside it, having declared what it likes."""
    honest, rounds = there.fresh(client), iter(range(1, 99))

    def answer(message: Envelope) -> Envelope:
        reply = (honest_reply := honest(message))
        head = read(reply, REPLIES)
        if isinstance(head, ClientInfo):
            lie = write("hello", dataclasses.replace(head, examples=declared))
        elif reply.action == "ask":
            said = n(next(rounds))
            body = dataclasses.replace(wire.decode(reply.parts[0], ModelReply), n=said)
            lie = write("ask", dataclasses.replace(head, n=said), wire.encode(body))
        else:
            return honest_reply
        return lie

    there.grid.handlers[client] = answer


def greeted(there: loopback.Deployed, **options: Any) -> Membership:
    there.membership = there.meet(config=dataclasses.replace(there.config, **options))
    there.membership.expect(there.membership.expected)
    there.membership.call()
    there.runtime = there.start_server()
    return there.membership


def test_a_client_that_replies_with_more_examples_than_it_declared_is_refused(tmp_path: Path) -> None:
    """The attack that worked: with n = 2^53 one of six decided every mean, with no row and no warning."""
    there = deployed(tmp_path)
    lies(there, 4, lambda t: 1 << 53, declared=(2,))
    greeted(there)
    _, trace = there.runtime.round(there.runtime.start(), 1)
    assert [(f.client, f.reason) for f in trace.failures] == [
        (4, f"refused: it reports {1 << 53} examples but declared 2 earlier; a client's count must not change")
    ]
    assert there.runtime.drain_warnings() == ()


@dataclasses.dataclass(frozen=True)
class CountedOtherwise(FedAvg):
    """Replies with the number of a client's examples of class 0 where its whole number belongs."""

    @step
    def train(self, me: Me, msg: ModelMessage, memory: Params | None) -> Step[tuple[ModelReply, Params | None]]:
        reply, kept = yield from super().train(me, msg, memory)
        return dataclasses.replace(reply, n=max(1, int(me.histogram[0]))), kept


def test_a_client_sends_no_other_count_in_place_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Privacy wrappers leave it without noise, and a server that was told none before would take any number for it."""
    monkeypatch.setattr(loopback, "make", lambda case: CountedOtherwise(local=LOCAL))
    there = loopback.Deployed("miscounted", "perceptron", tmp_path, clients_per_round=6)
    sentence = r"client 0: client error: step 'train' replies with another number of examples than its client's own:"
    with pytest.raises(QuorumError, match=sentence):
        there.runtime.round(there.runtime.start(), 1)


def test_a_client_is_held_to_its_number_of_test_examples_too(tmp_path: Path) -> None:
    """With 2^53 of them its own accuracy was the federation's weighted one, by which a run may be stopped early."""
    there = deployed(tmp_path, max_examples=1000)
    honest, told = there.fresh(4), iter((1001, 3, 4, 3))

    def boast(message: Envelope) -> Envelope:
        reply = (honest_reply := honest(message))
        if reply.action != "evaluate":
            return honest_reply
        head = dataclasses.replace(read(reply, REPLIES), scores=(("personal", (1.0, 0.0), next(told)),))
        return write("evaluate", head)

    there.grid.handlers[4] = boast
    greeted(there)
    state, _ = there.runtime.round(there.runtime.start(), 1)
    believed = [4 in there.runtime.evaluate_on_clients(state, 1, ["personal"])["personal"] for _ in range(4)]
    assert believed == [False, True, False, True]
    assert [f.reason for f in there.runtime.drain_records()[0]] == [
        "refused: it says it has 1001 examples, and max_examples = 1000 allows fewer",
        "refused: it reports 4 examples but declared 3 earlier; a client's count must not change",
    ]


def test_a_number_beyond_the_terms_is_refused_when_it_joins_and_when_it_replies(tmp_path: Path) -> None:
    there = deployed(tmp_path, max_examples=100)
    lies(there, 4, lambda t: 101)
    greeted(there)
    _, trace = there.runtime.round(there.runtime.start(), 1)
    assert [f.reason for f in trace.failures] == [
        "refused: it says it has 101 examples, and max_examples = 100 allows fewer"
    ]
    for declared in ((101,), (5, 101), (-1,)):
        lies(there, 4, lambda t: 2, declared)
        membership = greeted(there, max_examples=100)
        assert membership.present == (0, 1, 2, 3, 5)
        assert "and max_examples = 100 allows fewer" in membership.refused()[0][1]


def test_counts_by_class_add_up_to_the_number_that_was_declared(tmp_path: Path) -> None:
    there = loopback.Deployed("fedproto", "perceptron", tmp_path, clients_per_round=6)
    honest = there.fresh(4)

    def liar(message: Envelope) -> Envelope:
        reply = (answer := honest(message))
        if reply.action != "ask":
            return answer
        body = wire.decode(reply.parts[0], Prototypes)
        return write("ask", read(reply, REPLIES), wire.encode(dataclasses.replace(body, counts=1000 * body.counts)))

    there.grid.handlers[4] = liar
    _, trace = there.runtime.round(there.runtime.start(), 1)
    assert [(f.client, f.reason) for f in trace.failures] == [
        (4, "refused: a reply gives one number of examples, got [2, 2000]")
    ]


@dataclasses.dataclass(frozen=True)
class Maybe:
    counts: Int64[Tensor, "classes"] | None
    others: tuple[ModelReply | None, ...]


@dataclasses.dataclass(frozen=True)
class Kept:
    counts: Each[Int64[Tensor, "classes"]]


def test_numbers_of_examples_are_found_by_their_type_also_inside_a_wrapper() -> None:
    reply = ModelReply({}, 7)
    assert list(counts_in(reply)) == [7]
    wrapped = next(iter(wire.signatures(resolve("fedavg+dw")()).values())).reply
    assert list(counts_in(wrapped(reply, None, True))) == [7]
    by_class = ClassOutputs(torch.zeros(3, 3), torch.tensor([1, 0, 1 << 62]))
    assert list(counts_in(by_class)) == [(1 << 62) + 1]
    assert list(counts_in(Prototypes(torch.zeros(2, 4), torch.tensor([4, 0, 3])))) == [7]
    assert list(counts_in(Tally(torch.tensor([4, 0, 3]), None))) == []  # masked: a sum over clients
    assert list(counts_in(Maybe(torch.tensor([4, 0, 3]), (reply, None)))) == [7, 7]
    assert list(counts_in(Maybe(None, ()))) == []
    assert list(counts_in(Kept(torch.tensor([4, 0, 3])))) == [7]
    with pytest.raises(WireError, match="a class has at least 0 examples, got -1"):
        list(counts_in(Kept(torch.tensor([8, -1, 0]))))
    assert check_count([7, 7], None, 7) == 7
    assert check_count([], 7, 7) is None
    with pytest.raises(WireError, match=r"one number of examples, got \[7, 8\]"):
        check_count([7, 8], None, 10)
