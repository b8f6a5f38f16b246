"""Replies that are too large, as Flower's own Grid pulls them piece by piece: refused before they are whole."""

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

# Private to Flower: its Grid, and how its network takes messages apart.
from flwr.app.message import array, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, ObjectTree, PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse, PushAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import http_grid

from unskew.runtime.flower import TOO_LARGE, UNREADABLE, FlowerTransport, pack
from unskew.runtime.message import Delivery, Envelope

PIECE, MOST = 1 << 10, 100 << 10


class Store:
    """The network: nodes that reply with these payloads, in pieces; it counts the bytes that are pulled."""

    def __init__(self, payloads: dict[int, bytes]) -> None:
        self.payloads, self.pulled = payloads, 0
        self.replies: dict[str, tuple[int, Message]] = {}
        self.pieces: dict[str, bytes] = {}
        self.confirmed: list[str] = []

    def PushMessages(self, request: Any) -> PushAppMessagesResponse:
        ids = [m.metadata.message_id for m in request.messages_list]
        for i, m in zip(ids, request.messages_list, strict=True):
            node = m.metadata.dst_node_id
            asked = Message(pack(Envelope("step", "{}", ())), dst_node_id=node, message_type="query.step", ttl=9.0)
            asked.metadata.__dict__["_message_id"] = i
            reply = Message(pack(Envelope("ask", "{}", (self.payloads[node],))), reply_to=asked)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self.replies[i] = (node, reply)
            self.pieces |= {o: of.deflate() for o, of in get_all_nested_objects(reply).items()}
        return PushAppMessagesResponse(message_ids=ids)

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        """The replies that have come, each once, as Flower's SuperLink hands them out."""
        came = [self.replies.pop(i) for i in request.message_ids if i in self.replies]
        protos = [message_to_proto(remove_content_from_message(reply)) for _, reply in came]
        trees = [self.tree(node, reply) for node, reply in came]
        for proto, tree in zip(protos, trees, strict=True):
            proto.metadata.message_id = tree.object_id
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=trees)

    def tree(self, node: int, reply: Message) -> Any:
        return get_object_tree(reply)

    def PullObject(self, request: Any) -> PullObjectResponse:
        content = self.pieces[request.object_id]
        self.pulled += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def PushObject(self, request: Any) -> None:
        raise AssertionError("no piece of a request is missing")

    def ConfirmMessageReceived(self, request: Any) -> ConfirmMessageReceivedResponse:
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def exchange(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[dict[int, Delivery], Store]]:
    """Ask nodes that reply with these payloads, by Flower's Grid."""
    monkeypatch.setattr(array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", PIECE)
    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)

    def run(payloads: dict[int, bytes], network: Callable[..., Store] = Store) -> tuple[dict[int, Delivery], Store]:
        store = network(payloads)
        monkeypatch.setattr(http_grid.HttpGrid, "_runtime_client", store)
        grid = http_grid.HttpGrid(token="t")
        grid.set_run(Run.create_empty(1))
        request = Envelope("step", "{}", ())
        return dict(FlowerTransport(grid, 0.0).exchange(dict.fromkeys(payloads, request), 5.0, MOST)), store

    return run


def test_a_reply_within_the_bound_comes_whole(exchange: Callable[..., Any]) -> None:
    payloads = {1: os.urandom(MOST - 20 * PIECE), 2: bytes(MOST - 20 * PIECE)}
    came, _ = exchange(payloads)
    assert {n: d.reply.parts for n, d in came.items()} == {n: (p,) for n, p in payloads.items()}


@pytest.mark.parametrize(
    ("payload", "pulled"),
    [(os.urandom(10 * MOST), 3 * MOST), (bytes(10 * MOST), MOST)],
    ids=["many pieces", "one piece many times"],
)
def test_a_reply_that_is_too_large_is_refused_before_it_is_whole(
    payload: bytes, pulled: int, exchange: Callable[..., Any]
) -> None:
    """Some pieces are on their way when the bound is met; the others' replies come."""
    came, store = exchange({1: payload, 2: b"well"})
    assert came[1].reply is None
    assert came[1].lost == f"refused: {TOO_LARGE}"
    assert came[2].reply.parts == (b"well",)
    assert store.pulled < pulled
    assert len({*store.confirmed}) == len(store.confirmed) == 2, "the network would keep what was refused"


class Forger(Store):
    """A network in which node 1 answers with objects of its own making, as Flower's SuperLink lets it."""

    def __init__(self, payloads: dict[int, bytes], arrays: list[list[int]]) -> None:
        super().__init__(payloads)
        self.arrays = arrays

    def forge(self, kind: str, of: list[Any], body: bytes) -> Any:
        content = f"{kind} {','.join(tree.object_id for tree in of)} {len(body)}".encode() + b"\x00" + body
        name = get_object_id(content)
        self.pieces[name] = content
        return ObjectTree(object_id=name, children=of)

    def array(self, of: Any, places: list[int]) -> Any:
        about = {"dtype": "uint8", "shape": [1], "stype": "bytes", "arraychunk_ids": places}
        return self.forge("Array", [of], json.dumps(about).encode())

    def tree(self, node: int, reply: Message) -> Any:
        """Of node 1, arrays of which each is made of the one before it."""
        if node != 1:
            return super().tree(node, reply)
        made = self.forge("ArrayChunk", [], b"x" * 500)
        for places in self.arrays:
            made = self.array(made, places)
        body = self.forge("ArrayRecord", [made], json.dumps({"payload": made.object_id}).encode())
        head = get_object_tree(reply.content["head"])
        names = {"body": body.object_id, "head": head.object_id}
        content = self.forge("RecordDict", [body, head], json.dumps(names).encode())
        whole = reply.deflate()
        return self.forge("Message", [content], whole[whole.index(b"\x00") + 1 :])


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ([[0] * 100, [0] * 60, [0] * 60], "ValueError"),
        ([[7]], "IndexError"),
        ([["x"]], "TypeError"),
        ([None], "TypeError"),
    ],
    ids=["nested", "nowhere", "text", "none"],
)
def test_a_forged_reply_is_its_clients_alone(arrays: Any, error: str, exchange: Callable[..., Any]) -> None:
    """Arrays of arrays would multiply 500 bytes to 180 MB; others make Flower's own code fail in the midst of all."""
    came, store = exchange({1: b"x", 2: b"y", 3: b"z"}, lambda payloads: Forger(payloads, arrays))
    assert came[1].lost == f"refused: {UNREADABLE} ({error})"
    assert [came[n].reply.parts for n in (2, 3)] == [(b"y",), (b"z",)]
    assert store.pulled < 10_000
    assert len({*store.confirmed}) == 3


def test_flowers_own_functions_are_put_back(exchange: Callable[..., Any]) -> None:
    before = http_grid.pull_objects, http_grid.inflate_object_from_contents
    exchange({1: bytes(10 * MOST)})
    assert (http_grid.pull_objects, http_grid.inflate_object_from_contents) == before
