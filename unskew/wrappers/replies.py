"""Wrappers on the server: they change a round's uploads together, before the method's reductions.

A robust mean compares replies, so they are held until the last has come: a round takes the memory of its cohort.  The
rest of a reply, and the reductions themselves, stay the method's own.
"""

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unskew.errors import ConfigError, QuorumError
from unskew.protocol import Ask, ClientId, Federation, Plan, steps_of
from unskew.reduction import Folding, Reduced, Reduction
from unskew.tree import Params
from unskew.wrappers.base import StepTypes, Wrapped, Wrapper, first_request, through
from unskew.wrappers.uploads import (
    Upload,
    UploadWrapper,
    differences,
    in_one_mean,
    require_uploads,
    sent_model,
    uploads_of,
    with_updates,
)


@dataclass(frozen=True)
class Together:
    """A request's reductions, computed from replies that are changed together once all have come.

    Attributes:
        reductions: The reductions.
        change: Function of the replies by client, in the order asked; yields those to reduce, one by one.
    """

    reductions: tuple[Reduction, ...]
    change: Callable[[dict[ClientId, Any]], Iterable[tuple[ClientId, Any]]]

    def start(self) -> dict[ClientId, Any]:
        """Return no replies."""
        return {}

    def add(self, partial: dict[ClientId, Any], client: ClientId, reply: Any) -> dict[ClientId, Any]:
        """Keep a reply."""
        partial[client] = reply
        return partial

    def merge(self, partial: dict[ClientId, Any], later: dict[ClientId, Any]) -> dict[ClientId, Any]:
        """Keep the replies of a later chunk."""
        partial.update(later)
        return partial

    def finish(self, partial: dict[ClientId, Any]) -> tuple[Any, Any]:
        """Return the reductions' results and their weights.

        Raises:
            QuorumError: If the replies do not suffice.
        """
        folding = Folding(self.reductions)
        for place, (client, reply) in enumerate(self.change(partial)):
            folding.add(place, client, reply)
        reduced = folding.finish()
        return reduced.values, reduced.weights


class ReplyWrapper(Wrapper):
    """Base class of wrappers that change all clients' uploads together, on the server."""

    adds_nothing = True
    on_server = True

    @abstractmethod
    def change(
        self, updates: Mapping[ClientId, Params], parameter_names: frozenset[str], fed: Federation
    ) -> Mapping[ClientId, Params]:
        """Change one upload field of all clients.

        Args:
            updates: Differences from the model sent, by client in the order asked; all have the same tensors and are
                finite.
            parameter_names: Names of the parameters; the other tensors are statistics of normalisation layers.
            fed: The federation in this round.

        Returns:
            Changed differences, for the same clients.

        Raises:
            QuorumError: If there are too few of them.
        """

    def applies_to(self, method: Any, name: str, types: StepTypes) -> bool:
        """False: clients do what the method says."""
        return False

    def check(self, method: Any) -> None:
        """Refuse a method whose uploads cannot be compared.

        Raises:
            ConfigError: If its clients send neither models nor updates, or compress them.
        """
        who = type(self).__name__
        require_uploads(method, who)
        inner = method
        while isinstance(inner, Wrapped):
            if isinstance(inner.by, UploadWrapper) and inner.by.Reply is not None:
                other = type(inner.by).__name__
                raise ConfigError(
                    f"{who} compares updates, and {other} before it sends another form of them; put {who} before "
                    f"{other}"
                )
            inner = inner.of

    def init(self, method: Any, params: Params, fed: Federation) -> Any:
        """Return the method's state before round 1.

        Raises:
            ConfigError: If the first round makes a request that has no robust form.
        """
        state = method.init(params, self.server(method, fed))
        request = first_request(method, state, fed)
        self.permit(method, request)
        return state

    def permit(self, method: Any, request: Any) -> None:
        """Refuse a request that uses uploads except by one mean or sum of all."""
        in_one_mean(method, request, type(self).__name__)

    def round(self, method: Any, state: Any, fed: Federation) -> Plan[Any]:
        """Run the method's round on replies that are changed together."""

        def change_request(request: Any) -> Any:
            self.permit(method, request)
            if not isinstance(request, Ask) or not request.reduce or not (fields := uploads_of(method, request.step)):
                return request
            return replace(request, reduce=(Together(request.reduce, change(request, fields)),))

        def change(request: Ask, fields: tuple[Upload, ...]) -> Callable[..., Iterator[tuple[ClientId, Any]]]:
            models = {c: sent_model(message) or {} for c, message in request.to.items()}
            return functools.partial(self.changed, fields, models, fed)

        def change_answer(request: Any, got: Any) -> Any:
            if not isinstance(request, Ask) or not (fields := uploads_of(method, request.step)):
                return got
            if isinstance(got, Reduced):
                return Reduced(got.values[0], got.weights[0], got.replies)
            return dict(change(request, fields)(got))

        return (yield from through(method.round(state, self.server(method, fed)), change_request, change_answer))

    def changed(
        self,
        fields: tuple[Upload, ...],
        models: Mapping[ClientId, Params],
        fed: Federation,
        replies: Mapping[ClientId, Any],
    ) -> Iterator[tuple[ClientId, Any]]:
        """Yield the replies with changed uploads; leave out those that are not finite, unless all are so."""
        every = {c: differences(fields, reply, models[c]) for c, reply in replies.items()}
        sane = {c: u for c, u in every.items() if all(bool(t.isfinite().all()) for t in u.values())}
        if not sane:
            yield from replies.items()
            return
        new: dict[ClientId, Params] = {c: {} for c in sane}
        for i in range(len(fields)):
            part = {c: {k: t for k, t in u.items() if k.startswith(f"{i}/")} for c, u in sane.items()}
            part = {c: u for c, u in part.items() if u}
            if part:
                parameter_names = frozenset(f"{i}/{name}" for name in fed.layout.trainable)
                for c, u in self.change(part, parameter_names, fed).items():
                    new[c] |= u
        for c, update in new.items():
            same = all(t is every[c][name] for name, t in update.items())
            # What is not changed stays the same bits: a model minus another plus that one is not always itself.
            yield c, replies[c] if same else with_updates(fields, replies[c], models[c], update)


class Centre(ReplyWrapper):
    """Base class of robust means: every client counts as if it had sent the centre of all.

    The method's own mean is then that centre, whatever its weights; its own sum is that many times the centre.
    """

    @property
    def fewest(self) -> int:
        """Replies below which it stops no attack."""
        return 1

    def init(self, method: Any, params: Params, fed: Federation) -> Any:
        """Return the method's state before round 1.

        Raises:
            ConfigError: If the cohort is too small, or as in `ReplyWrapper`.
        """
        if fed.clients_per_round < self.fewest:
            raise ConfigError(f"{self} needs {self.fewest} clients_per_round, got {fed.clients_per_round}; ask more")
        return super().init(method, params, fed)

    def weighting(self, method: Any) -> str:
        """Return "uniform": a mean of equal values is that value, whatever the weights."""
        return "uniform"

    @abstractmethod
    def centre(self, stacks: Params, parameter_names: frozenset[str]) -> Params:
        """Compute the centre of updates, (clients, ...) each; clients are compared by parameters alone."""

    def change(
        self, updates: Mapping[ClientId, Params], parameter_names: frozenset[str], fed: Federation
    ) -> Mapping[ClientId, Params]:
        """Give every client the centre of all."""
        if len(updates) < self.fewest:
            raise QuorumError(f"{self} needs {self.fewest} replies, got {len(updates)}")
        names = list(next(iter(updates.values())))
        centre = self.centre({n: torch.stack([u[n] for u in updates.values()]) for n in names}, parameter_names)
        return dict.fromkeys(updates, centre)


def compared(stacks: Params, parameter_names: frozenset[str]) -> list[Tensor]:
    """Return the tensors that clients are compared by, (clients, numbers) each; all tensors if none is a parameter."""
    chosen = [t for name, t in stacks.items() if name in parameter_names] or list(stacks.values())
    return [t.flatten(1).double() for t in chosen]


COPIES = 3
"""Copies of every upload that are alive at once: as it came, as a difference, and beside all others of its tensor."""


def held_uploads(method: Any) -> int:
    """Number of uploads held for each client of a cohort because a wrapper compares them; 0 without one."""
    if not isinstance(method, Wrapped):
        return 0
    own = 0
    if isinstance(method.by, ReplyWrapper):
        own = COPIES * max(len(uploads_of(method.of, name)) for name in steps_of(method.of))
    return max(own, held_uploads(method.of))
