"""Secure aggregation: the server learns the sum of a cohort's uploads and nothing else about any one of them.

K. Bonawitz, V. Ivanov, B. Kreuter, A. Marcedone, H. B. McMahan, S. Patel, D. Ramage, A. Segal, K. Seth, "Practical
Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, figure 4, against a server that is curious and
does not lie.

Notation   U      clients that shared their keys;  t  the threshold;  V  those of U whose masked vector came
           s_kj   key that clients k and j agree on;  b_k  a secret of client k's own
           x_k    what client k adds to the sum, whole numbers modulo 2^64
Exchanges  1  each client makes two pairs of keys and b_k, and sends the public keys
           2  each sends every client of U, itself too, encrypted for it, a Shamir share of b_k and of the secret key
              behind s_k; t shares make a secret
           3  each trains, and sends  y_k = x_k + G(b_k) + sum_{j > k} G(s_kj) - sum_{j < k} G(s_kj),  j in U
           4  for each client of V those of V send their shares of b_k, for the rest of U those of the secret key, and
              sum_V x_k = sum_V y_k - masks
Losses     A client that misses an exchange is gone.  If fewer than t are left, the sum is lost and the round abandoned.
           The server learns nothing: fewer than t clients' shares never make those clients' own secrets, and their next
           sum has other secrets.
Numbers    An update's entry is rounded to a multiple of 2^-24 and multiplied by the client's examples, a whole number.
           Sums are exact, so that a mean is off by at most 2^-25.  An entry beyond `RANGE` counts as divergence.
Built on   cryptography and PyCryptodome: ECDH with HKDF, Shamir shares, authenticated encryption.
           G is SHAKE-256, as in `Key.bits`.
Lies       A client that sends malformed keys, shares or vectors is refused, or the round begins again without it.  Each
           sends SHA-256 of b_k with its public keys, which exposes a secret made from wrong shares.  A sum that no
           vectors within `RANGE` can have is noticed too.  Any vector within it passes: nobody sees it.  Clients
           trust only that the keys are other clients'.  They refuse repeated keys, a threshold below `least` of those
           that share keys, fewer members or summands than that, and any repeat.  In a deployment each binds itself to
           the clients of the first sum that it unmasks in a round.  A repeated round then sums the same clients or
           none: two sums would tell what the others sent.
Departures The number of examples also travels in clear: a deployment holds a client to the one it declared.
           Every pair of clients agrees on a key, where SecAgg+ takes a graph: n^2 shares of some 300 bytes.
"""

import base64
import functools
import hashlib
import itertools
import math
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Generic, Optional, TypeVar, cast

import torch
from annotated_types import Interval
from torch import Tensor

from unskew.errors import ConfigError, DivergedError, ProtocolError, QuorumError, SuspectError, WireError
from unskew.keys import Key
from unskew.protocol import (
    Ask,
    ClientId,
    Federation,
    Layout,
    Me,
    Plan,
    Step,
    hook,
)
from unskew.reduction import EACH, MeanOf, Moved, Reduced, SumOf
from unskew.tree import Params, hints_of
from unskew.wrappers.base import StepTypes, Wrapper, as_step, name_of, running, through, types_of
from unskew.wrappers.uploads import (
    Upload,
    at,
    differences,
    emptied,
    has_table,
    in_one_mean,
    require_uploads,
    sent_model,
    uploads,
    uploads_of,
    with_updates,
)

try:
    from Crypto.Protocol.SecretSharing import Shamir
    from Crypto.Util.Padding import pad, unpad
    from cryptography.fernet import Fernet, InvalidToken
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

M = TypeVar("M")
UNIT = 2.0**-24
"""Step of the fixed-point numbers."""
RANGE = 2.0**7
"""Largest size of an update's entry."""
MOST = 2**31
"""Bound on the examples of a cohort together: sums of 2^31 examples times entries of 2^7 / 2^-24 stay below 2^63."""
SHARE_BYTES = 4 + 48
"""Size of a share: its number, and 32 bytes padded to blocks of 16."""
TRIES = 200
"""Tries to put a secret together without the shares of wrong_clients."""
_HASH, _SHARE = re.compile("[0-9a-f]{64}"), re.compile(f"[0-9a-f]{{{2 * SHARE_BYTES}}}")
_ENCRYPTED = re.compile("[A-Za-z0-9_-]{226}==")
KEYS, SHARES, UNMASK = "secure_keys", "secure_shares", "secure_unmask"


@dataclass(frozen=True)
class PublicKeys:
    """A client's public keys for encrypted shares and masks, and SHA-256 of its own secret, all hexadecimal."""

    shares: str
    masks: str
    own: str


@dataclass(frozen=True)
class SecureMemory(Generic[M]):
    """A client's memory: the method's, and the sum in progress.

    Attributes:
        root: The client's secret, hexadecimal; "" is none.
        round: The round it was made for.
        keys: Public keys of the clients it shared its secrets with, by client.
        threshold: Number of shares that make a secret.
        members: Those of them whose vectors are in the sum with its own.
    """

    of: M
    root: str = field(default="", metadata={"secret": True})
    round: int = 0
    keys: dict[int, PublicKeys] = field(default_factory=dict, metadata={"secret": True})
    threshold: int = 0
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Begin:
    """The first exchange: a sum's cohort, and its number in this round."""

    cohort: tuple[int, ...]
    number: int


@dataclass(frozen=True)
class Everybody:
    """The second exchange: the public keys by client that answered, and the threshold."""

    keys: dict[int, PublicKeys]
    threshold: int


@dataclass(frozen=True)
class Shares:
    """A client's encrypted shares, by recipient."""

    to: dict[int, str]


@dataclass(frozen=True)
class SecureMessage(Generic[M]):
    """The method's message, the members of the sum, and each sum: a field of the reply, and its weight ("" is 1)."""

    of: M
    members: tuple[int, ...]
    sums: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class SecureReply(Generic[M]):
    """The method's reply without its uploads, and the masked vector, (numbers,) int64."""

    sealed: ClassVar[bool] = True
    of: M
    masked: Tensor


@dataclass(frozen=True)
class Unmask:
    """The last exchange: the members in the sum, and the shares that each gave this client."""

    present: tuple[int, ...]
    shares: dict[int, str]


@dataclass(frozen=True)
class Revealed:
    """Shares by client, hexadecimal: of own secrets for those in the sum, of mask keys for those that dropped out."""

    own: dict[int, str]
    masks: dict[int, str]


@dataclass(frozen=True)
class SumOfVectors:
    """Sum of masked vectors, modulo 2^64, and of their weights; single ones are dropped as they come.

    Attributes:
        weights: Fields of the method's reply that are weights; "" is 1.
    """

    weights: tuple[str, ...] = ()

    def start(self) -> Any:
        """Return no sum."""
        return None

    def add(self, partial: Any, client: ClientId, reply: SecureReply[Any]) -> Any:
        """Add a vector."""
        own = reply.masked.clone(), [_weight(reply.of, by) for by in self.weights]
        return own if partial is None else self.merge(partial, own)

    def merge(self, partial: Any, later: Any) -> Any:
        """Add the sum of a later chunk."""
        if partial is None or later is None:
            return later if partial is None else partial
        return partial[0].add_(later[0]), [a + b for a, b in zip(partial[1], later[1], strict=True)]

    def finish(self, partial: Any) -> tuple[Any, Any]:
        """Return the sum."""
        return partial, 1.0


@dataclass(frozen=True)
class SecureSum(Wrapper):
    """Sums of uploads, of which the server learns no single one.

    Masks cancel in the sum (Bonawitz et al., CCS 2017).  Entries are multiples of 2^-24 in eight bytes each.  A round
    has four exchanges, each of which may lose a client.  A reply's fields marked `Each` are sent in clear.

    Attributes:
        threshold: Share of the cohort that must stay to the end, over one half; with fewer, the round leaves the model
            as it was.
    """

    Message: ClassVar[Any] = SecureMessage
    Reply: ClassVar[Any] = SecureReply
    Memory: ClassVar[Any] = SecureMemory

    threshold: Annotated[float, Interval(ge=0.5, le=1.0)] = 2 / 3

    # ------------------------------------------------------------------ what it can stand around
    def check(self, method: Any) -> None:
        """Refuse a method whose uploads cannot be summed unseen.

        Raises:
            ConfigError: If no reply is marked, one holds more than sums and marked fields, or a library is missing.
        """
        if not _INSTALLED:
            raise ConfigError("SecureSum needs cryptography and PyCryptodome: pip install 'unskew[deploy]'")
        require_uploads(method, "SecureSum")

    def applies_to(self, method: Any, name: str, types: StepTypes) -> bool:
        """True if a step sends models or updates."""
        return bool(uploads(types.reply))

    def least(self, cohort: int) -> int:
        """Count the clients of a cohort that must stay to the end, t.

        At least three: of two, each would know the other's part.

        >>> SecureSum().least(5), SecureSum(threshold=0.6).least(3)
        (4, 3)
        """
        return max(3, math.floor(self.threshold * cohort) + (self.threshold < 1.0))

    def permit(self, method: Any, request: Any, fed: Federation) -> None:
        """Refuse a request that a sum does not answer, and a cohort that is too small to hide in."""
        if fed.clients_per_round < 3:
            raise ConfigError(
                f"SecureSum needs 3 clients in a round, got {fed.clients_per_round}: of two, each knows the "
                "other's part"
            )
        fields = in_one_mean(method, request, "SecureSum")
        if not fields:
            return

        def refuse(why: str) -> ConfigError:
            return ConfigError(
                f"SecureSum shows the server sums only, and step {request.step!r} of {name_of(method)} {why}; leave "
                "SecureSum out"
            )

        names = {field.path[0] for field in fields if len(field.path) == 1}
        weights = set()
        for reduction in cast(tuple[Any, ...], request.reduce):
            plain = type(reduction) in (MeanOf, SumOf) and _field_of(reduction) in names
            if not plain or not (reduction.weight is None or isinstance(reduction.weight, str)):
                raise refuse("takes or weights fields by a function of each reply")
            weights |= {reduction.weight} - {None}
        for name, hint in hints_of(types_of(method)[request.step].reply).items():
            each = EACH in getattr(hint, "__metadata__", ())
            if each and has_table(hint):
                raise refuse(f"shows it a table of tensors of each client in the field {name!r}, marked Each")
            if not each and name not in names | weights | {"n"}:
                raise refuse(f"replies with the field {name!r}, which is in no sum")
        if len({id(sent_model(message)) for message in request.to.values()}) > 1:
            raise refuse("sends several models")

    def validate_reply(self, method: Any, step: str, reply: Any, model: Params, layout: Layout) -> None:
        """Refuse malformed keys, shares and vectors; a vector's contents cannot be checked.

        Raises:
            WireError: If one is malformed.
        """
        if isinstance(reply, SecureReply) and (reply.masked.dtype != torch.int64 or reply.masked.dim() != 1):
            raise WireError(f"a masked vector must be int64 (numbers), got {reply.masked.dtype}")
        if isinstance(reply, PublicKeys):
            if not _HASH.fullmatch(reply.own) or not all(map(is_public_key, (reply.shares, reply.masks))):
                raise WireError("malformed public keys or hash of a client's secret")
        elif isinstance(reply, Shares) and not all(map(_ENCRYPTED.fullmatch, reply.to.values())):
            raise WireError("malformed encrypted shares")
        elif isinstance(reply, Revealed) and not all(
            map(_SHARE.fullmatch, (*reply.own.values(), *reply.masks.values()))
        ):
            raise WireError("malformed revealed shares")

    # ------------------------------------------------------------------ on the server
    def round(self, method: Any, state: Any, fed: Federation) -> Plan[Any]:
        """Run the method's round with sums that are taken unseen."""
        numbers = itertools.count()

        def change_request(request: Any) -> Any:
            self.permit(method, request, fed)
            summed = isinstance(request, Ask) and uploads_of(method, request.step)
            return self.secure(method, request, next(numbers), fed) if summed else request

        return (yield from through(method.round(state, fed), change_request, lambda _, got: got))

    def secure(self, method: Any, request: Ask, number: int, fed: Federation) -> Plan[Reduced[Any]]:
        """Meet a request by the four exchanges.

        Raises:
            QuorumError: If too few clients stay, or their messages make no sum.
            SuspectError: If those of some clients make none.
        """
        cohort = tuple(request.to)
        least = max(self.least(len(cohort)), request.at_least)
        keys = yield Ask(KEYS, dict.fromkeys(cohort, Begin(cohort, number)), least, request.timeout_s)
        if copied := _copied(keys):
            raise SuspectError(f"round {fed.round} has no secure sum", dict.fromkeys(copied, "it has another's keys"))
        shares = yield Ask(SHARES, dict.fromkeys(keys, Everybody(keys, least)), least, request.timeout_s)
        wrong = {c: "it must share its secrets with each of them" for c in shares if shares[c].to.keys() != keys.keys()}
        if wrong:
            raise SuspectError(f"round {fed.round} has no secure sum", wrong)
        members = {c: keys[c] for c in shares}
        sums = tuple(dict.fromkeys(map(_sum_of, request.reduce)))
        to = {c: SecureMessage(request.to[c], (*members,), sums) for c in members}
        summed = SumOfVectors(tuple(by for _, by in sums))
        masked = yield Ask(request.step, to, least, request.timeout_s, (summed,))
        present = tuple(masked.replies)
        gone = tuple(c for c in members if c not in masked.replies)
        unmask = {c: Unmask(present, {p: shares[p].to[c] for p in members}) for c in present}
        revealed = yield Ask(UNMASK, unmask, least, request.timeout_s)
        vectors, weights_reported = masked.value
        try:
            total = vectors.cpu() - self.masks(members, present, gone, revealed, len(vectors), least)
            values, weights = self.results(method, request, total, weights_reported, len(present))
        except SuspectError as error:
            # Clients have bound themselves to this sum: they would not unmask one of the others alone.
            raise SuspectError(f"round {fed.round} has no secure sum", error.suspects, again=False) from None
        except QuorumError as error:
            raise QuorumError(f"round {fed.round} has no secure sum of clients {list(present)}: {error}") from None
        return Reduced(values, weights, {c: reply.of for c, reply in masked.replies.items()})

    def masks(
        self,
        members: Mapping[ClientId, PublicKeys],
        present: tuple[ClientId, ...],
        gone: tuple[ClientId, ...],
        revealed: Mapping[ClientId, Revealed],
        length: int,
        least: int,
    ) -> Tensor:
        """Compute the masks left in a sum from the shares; `least` of them make a secret.

        Raises:
            SuspectError: If one client's shares do not make its secret, whichever revealer is left out.
            QuorumError: If several clients' do not, or no revealer can be left out: a revealer may have lied.
        """
        total = torch.zeros(length, dtype=torch.int64)
        wrong_clients: set[ClientId] = set()
        lost: dict[ClientId, int] = {}  # and how many revealed their shares of its secret
        for c in (*present, *gone):
            by_client = {
                r: one.own if c in present else one.masks for r, one in revealed.items() if r not in wrong_clients
            }
            shares = {r: bytes.fromhex(of[c]) for r, of in by_client.items() if c in of}
            secret, wrong = _together(shares, least, functools.partial(_is_secret, members[c], own=c in present))
            wrong_clients |= wrong
            if secret is None:
                lost[c] = len(by_client)
            elif c in present:
                total += _stream(secret, length)
            else:
                for p in present:
                    total += _sign(p, c) * _stream(agreed_key(private_key(secret), members[p].masks), length)
        if len(lost) == 1 and min(lost.values()) > least:
            raise SuspectError("", dict.fromkeys(lost, "the shares that it gave do not make its secret"))
        if lost:
            raise QuorumError(
                f"the revealed shares of clients {[*lost]} do not make their secrets: they, or a client that revealed "
                "them, sent wrong ones"
            )
        return total

    def results(
        self, method: Any, request: Ask, total: Tensor, reported: list[int], clients: int
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Turn the sum of vectors into the results of the method's reductions, and their weights.

        Raises:
            QuorumError: If no vectors of so many clients with the reported weights have this sum.
        """
        model = sent_model(next(iter(request.to.values()))) or {}
        kinds = {field.path[0]: field.kind for field in uploads_of(method, request.step)}
        sums: dict[tuple[str, str], tuple[int, Params]] = {}
        start = 0
        for which, weight in zip(dict.fromkeys(map(_sum_of, request.reduce)), reported, strict=True):
            flags = total[start + 1 : start + 1 + len(model)].tolist()
            if len(flags) < len(model) or int(total[start]) != weight or not {*flags} <= {0, clients}:
                raise QuorumError("one of them sent numbers that are no vector of its examples")
            names = [n for n, flag in zip(model, flags, strict=True) if flag]
            end = start + 1 + len(model) + sum(model[n].numel() for n in names)
            entries = total[start + 1 + len(model) : end]
            if end > len(total):
                raise QuorumError("one of them sent fewer numbers than belong to the sum")
            largest = weight * int(RANGE / UNIT)
            if bool(((entries > largest) | (entries < -largest)).any()):
                raise QuorumError(f"one of them sent numbers beyond {RANGE:g}")
            parts = torch.split(entries, [model[n].numel() for n in names])
            start = end
            sums[which] = (
                weight,
                {n: part.double().reshape(model[n].shape) * UNIT for n, part in zip(names, parts, strict=True)},
            )
        if start != len(total):
            raise QuorumError("one of them sent more numbers than belong to the sum")
        values, weights = [], []
        for reduction in cast(tuple[MeanOf, ...], request.reduce):
            weight, moved = sums[_sum_of(reduction)]
            only = reduction.of.names if isinstance(reduction.of, Moved) else tuple(moved)
            from_model = not isinstance(reduction.of, Moved) and kinds[_field_of(reduction)] == "model"
            table: Params = {}
            if isinstance(reduction, MeanOf) and weight < 1:
                raise QuorumError("a mean needs one client with examples")
            for name in only:
                like, part = model[name], moved[name]
                base = like.double().cpu() if from_model else 0.0
                whole = part / weight + base if isinstance(reduction, MeanOf) else part + weight * base
                table[name] = whole.to(like)
            values.append(table)
            weights.append(float(weight))
        return tuple(values), tuple(weights)

    # ------------------------------------------------------------------ on a client
    def work(
        self, method: Any, name: str, begin: Callable[..., Any], me: Me, msg: Any, memory: Any
    ) -> Step[tuple[Any, Any]]:
        """Run the method's step, and send its sums under masks.

        Raises:
            ProtocolError: If keys were not shared with all members, members are too few, or a vector was already sent.
        """
        root = bytes.fromhex(self._root(me, memory))
        members = {*msg.members}
        if (
            memory.members
            or me.id not in members
            or not members <= memory.keys.keys()
            or len(members) < memory.threshold
        ):
            raise ProtocolError(f"client {me.id} was asked for an upload to a sum that does not match its keys")
        reply, kept = yield from running(begin(me, msg.of, memory.of))
        vector = self.vector(uploads_of(method, name), reply, msg)
        length = len(vector)
        secret = private_key(_part(root, "masks"))
        vector = vector + _stream(_part(root, "own"), length)
        for peer in members - {me.id}:
            vector += _sign(me.id, peer) * _stream(agreed_key(secret, memory.keys[peer].masks), length)
        fields, model, amend = uploads_of(method, name), sent_model(msg.of) or {}, hook(method, "amend")
        if amend is not None:
            updates = {n: (_steps(t) * UNIT).to(t) for n, t in differences(fields, reply, model).items()}
            kept = amend(name, me, msg.of, reply, with_updates(fields, reply, model, updates), kept)
        return SecureReply(emptied(fields, reply), vector), replace(memory, of=kept, members=msg.members)

    def vector(self, fields: tuple[Upload, ...], reply: Any, msg: SecureMessage[Any]) -> Tensor:
        """Encode this client's part of each sum as whole numbers: its weight, its tensors, and weight times entries.

        Raises:
            ProtocolError: If its weight is too large for sums below 2^63.
            DivergedError: If an entry is NaN or beyond `RANGE`.
        """
        model = sent_model(msg.of) or {}
        kinds = {field.path[0]: field.kind for field in fields}
        parts: list[Tensor] = []
        for name, by in msg.sums:
            table, weight = at(reply, (name,)), _weight(reply, by)
            if weight * len(msg.members) > MOST:
                raise ProtocolError(
                    f"{weight} examples of one of {len(msg.members)} clients are more than a secure sum has room for "
                    f"({MOST} together)"
                )
            parts += [torch.tensor([weight]), torch.tensor([int(n in table) for n in model])]
            for n in (n for n in model if n in table):
                moved = table[n] - model[n] if kinds[name] == "model" else table[n]
                if not bool((moved.abs() <= RANGE).all()):
                    raise DivergedError(
                        f"an update became NaN or moves {n} by more than {RANGE:g}, the most that a secure sum has "
                        "room for; lower lr or server_lr, or scale the inputs"
                    )
                parts.append(weight * _steps(moved).flatten())
        return torch.cat(parts)

    def steps(self, method: Any) -> dict[str, Callable[..., Any]]:
        """The exchanges around the method's own steps."""
        kept = next(kind.kept for name, kind in types_of(method).items() if self.applies_to(method, name, kind))
        memory = SecureMemory[Optional[kept]] | None  # type: ignore[valid-type]  # noqa: UP045

        def exchange(name: str, work: Callable[..., Any], message: Any, reply: Any) -> Callable[..., Any]:
            types = StepTypes(message, memory, reply, memory, works=False)
            return as_step(lambda me, msg, memory: work(me, msg, memory), name, types)

        return {
            KEYS: exchange(KEYS, self._keys, Begin, PublicKeys),
            SHARES: exchange(SHARES, self._shares, Everybody, Shares),
            UNMASK: exchange(UNMASK, self._unmask, Unmask, Revealed),
        }

    def _keys(self, me: Me, msg: Begin, memory: Any) -> tuple[PublicKeys, Any]:
        """Make a secret for this sum, and the two public keys that follow from it."""
        root = secrets.token_bytes(32)  # masks cancel: no result depends on it, and a round done again needs others
        return _public_keys(root), SecureMemory(None if memory is None else memory.of, root.hex(), me.round)

    def _shares(self, me: Me, msg: Everybody, memory: Any) -> tuple[Shares, Any]:
        """Share both secrets among all; this client holds a share of its own, so that no t - 1 others make them.

        Raises:
            ProtocolError: If keys occur twice or this client's are missing, the threshold is too low, or it has shared.
        """
        root = bytes.fromhex(self._root(me, memory))
        if memory.keys or msg.keys.get(me.id) != _public_keys(root) or _copied(msg.keys):
            raise ProtocolError(f"client {me.id} was asked to share its secrets twice, or among repeated keys")
        if not self.least(len(msg.keys)) <= msg.threshold <= len(msg.keys):
            raise ProtocolError(
                f"client {me.id} was asked to share its secrets among {len(msg.keys)} clients at threshold "
                f"{msg.threshold}; the least is {self.least(len(msg.keys))}"
            )
        mine = private_key(_part(root, "shares"))
        parts = [split_secret(_part(root, what), msg.threshold, len(msg.keys)) for what in ("own", "masks")]
        return Shares(
            {
                c: Fernet(agreed_key(mine, msg.keys[c].shares)).encrypt(b"".join(s[i] for s in parts)).decode()
                for i, c in enumerate(msg.keys)
            }
        ), replace(memory, keys=msg.keys, threshold=msg.threshold)

    def _unmask(self, me: Me, msg: Unmask, memory: Any) -> tuple[Revealed, Any]:
        """Reveal one share for every client: of its own secret or of its mask key, never of both.

        Raises:
            ProtocolError: If too few of the members are in the sum, or this sum was unmasked already.
        """
        root = bytes.fromhex(self._root(me, memory))
        present = {*msg.present} & {*memory.members}
        if me.id not in present or len(present) < max(memory.threshold, len(msg.present)):
            raise ProtocolError(f"client {me.id} was asked to unmask a sum of fewer than {memory.threshold} clients")
        mine = private_key(_part(root, "shares"))
        own: dict[int, str] = {}
        masks: dict[int, str] = {}
        for c in memory.members:
            both = opened(agreed_key(mine, memory.keys[c].shares), msg.shares.get(c, "").encode())
            if both is None:  # its sender is malicious, and must not make this client look so
                continue
            half = len(both) // 2
            (own if c in present else masks)[c] = (both[:half] if c in present else both[half:]).hex()
        return Revealed(own, masks), SecureMemory(memory.of)

    def binding(self, method: Any, step: str, msg: Any) -> str | None:
        """Return the clients whose sum a client unmasks: in one round, however often repeated, only these."""
        return f"the sum of clients {sorted(msg.present)}" if step == UNMASK else None

    def _root(self, me: Me, memory: Any) -> str:
        # A server that has gone back to an earlier round must not have its masks used for a second vector.
        if memory is None or not memory.root or memory.round != me.round:
            raise ProtocolError(f"client {me.id} has no sum in progress: each has new keys, and is unmasked once")
        return str(memory.root)

    # ------------------------------------------------------------------ in words
    def expected_losses(self, method: Any, lost: float, cohort: int) -> str:
        """Say how often replies lost with this probability cost a client, and a round, its sum."""
        stays = (1.0 - lost) ** 4
        fewer = range(self.least(cohort))
        rounds = sum(math.comb(cohort, k) * stays**k * (1.0 - stays) ** (cohort - k) for k in fewer)
        return (
            f"the four exchanges of a secure sum lose a client in {100 * (1 - stays):.2g} % of its rounds. "
            f"About {100 * rounds:.2g} % of rounds keep fewer than {self.least(cohort)} of {cohort} and do not change "
            "the model; lower the threshold to make that rarer"
        )


# ---------------------------------------------------------------- primitives, all of them others'
def split_secret(secret: bytes, threshold: int, number: int) -> list[bytes]:
    """Split a secret into shares: a number in 4 bytes, then a share of each 16 bytes."""
    whole = pad(secret, 16)
    blocks = [Shamir.split(threshold, number, whole[i : i + 16], ssss=False) for i in range(0, len(whole), 16)]
    return [i.to_bytes(4, "little") + b"".join(b[k][1] for b in blocks) for k, (i, _) in enumerate(blocks[0])]


def combined(shares: Sequence[bytes]) -> bytes:
    """Put a secret together.

    Raises:
        ValueError: If these are not shares of one secret.
    """
    numbered = [(int.from_bytes(share[:4], "little"), share[4:]) for share in shares]
    places = range(0, len(numbered[0][1]), 16)
    blocks = [[(i, share[at : at + 16]) for i, share in numbered] for at in places]
    whole: bytes = unpad(b"".join(Shamir.combine(block, ssss=False) for block in blocks), 16)
    return whole


def private_key(secret: bytes) -> Any:
    """Derive a private key from 32 secret bytes."""
    number = 1 + int.from_bytes(hashlib.shake_256(secret).digest(47), "big")
    return ec.derive_private_key(number, ec.SECP384R1())


def public_key(private: Any) -> str:
    """Write a public key, hexadecimal."""
    form = serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint
    text: bytes = private.public_key().public_bytes(*form)
    return text.hex()


def _read_key(text: str) -> Any:
    return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP384R1(), bytes.fromhex(text))


def is_public_key(text: str) -> bool:
    """True if this is a public key as `public_key` writes it."""
    try:
        _read_key(text)
    except ValueError:
        return False
    return len(text) == 2 * (1 + 48)


def agreed_key(private: Any, public: str) -> bytes:
    """Agree on 32 bytes with the owner of a public key, in base 64."""
    shared = private.exchange(ec.ECDH(), _read_key(public))
    return base64.urlsafe_b64encode(HKDF(hashes.SHA256(), 32, None, None).derive(shared))


def opened(key: bytes, text: bytes) -> bytes | None:
    """Decrypt two shares; None if they were not encrypted with this key."""
    try:
        both: bytes = Fernet(key).decrypt(text)
    except InvalidToken:
        return None
    return both if len(both) == 2 * SHARE_BYTES else None


def _part(root: bytes, what: str) -> bytes:
    """Derive 32 bytes of a client's secret for one purpose."""
    return hashlib.shake_256(root + what.encode()).digest(32)


def _public_keys(root: bytes) -> PublicKeys:
    """Derive what a client with this secret sends."""
    shares, masks = (public_key(private_key(_part(root, what))) for what in ("shares", "masks"))
    return PublicKeys(shares, masks, hashlib.sha256(_part(root, "own")).hexdigest())


def _copied(keys: Mapping[ClientId, PublicKeys]) -> list[ClientId]:
    """Clients with a key that another one has, too."""
    owners = Counter(key for one in keys.values() for key in {one.shares, one.masks, one.own})
    return [c for c, one in keys.items() if max(owners[one.shares], owners[one.masks], owners[one.own]) > 1]


def _steps(moved: Tensor) -> Tensor:
    """Count an update's entries in fixed-point steps."""
    return (moved.detach().cpu().double() / UNIT).round().long()


def _weight(reply: Any, by: str) -> int:
    return int(getattr(reply, by)) if by else 1


def _is_secret(keys: PublicKeys, secret: bytes, own: bool) -> bool:
    """True if this is the secret of a client with these keys: its own, or that behind its masks."""
    if own:
        return hashlib.sha256(secret).hexdigest() == keys.own
    return public_key(private_key(secret)) == keys.masks


def _together(
    shares: Mapping[ClientId, bytes], least: int, right: Callable[[bytes], bool]
) -> tuple[bytes | None, set[ClientId]]:
    """Put a secret together without the shares of as few clients as possible; None if none of `TRIES` is right.

    Returns:
        The secret, and whose shares were left out.
    """
    some = range(len(shares) - least + 1)
    tries = itertools.chain.from_iterable(itertools.combinations(shares, without) for without in some)
    for left_out in itertools.islice(tries, TRIES):
        with suppress(ValueError, ZeroDivisionError):
            secret = combined([share for c, share in shares.items() if c not in left_out])
            if right(secret):
                return secret, set(left_out)
    return None, set()


def _stream(secret: bytes, length: int) -> Tensor:
    """Generate the mask of a secret, (length,) int64."""
    return (Key(int.from_bytes(secret, "big")) / "mask").bits(length)


def _sign(client: ClientId, peer: ClientId) -> int:
    return 1 if peer > client else -1


def _field_of(reduction: Any) -> Any:
    return reduction.of.field if isinstance(reduction.of, Moved) else reduction.of


def _sum_of(reduction: Any) -> tuple[str, str]:
    return str(_field_of(reduction)), str(reduction.weight or "")
