"""Counts of what a method asks for: of one round or evaluation, and of a dry run."""

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unskew.ledger import Direction
from unskew.protocol import ClientId, Sgd

JobKind = tuple[str, Any, Any]
"""Equal for two jobs that cost the same on equally many examples.

("sgd", config, terms), or "sgd given" on examples that the step hands over; ("fold" or "run", name, None), or "work"
for local code of the server's; ("prior", request, None) for that many images, latents or embeddings.
"""


@dataclass(frozen=True)
class CodeTiming:
    """Time that local code took where it really ran, without the time of a prior's work."""

    seconds: float = 0.0
    examples: int = 0
    calls: int = 0

    def seconds_for(self, n: int) -> float:
        """Seconds for `n` examples; seconds for a call where no call had examples."""
        return n * self.seconds / self.examples if self.examples else self.seconds / max(self.calls, 1)


@dataclass
class RoundRequests:
    """Requests of one round, or of one evaluation.

    Attributes:
        bytes: Bytes sent, by direction.
        jobs: Number of jobs by kind and by the client's training examples.
        server_jobs: The same for jobs of the server's own.
        prior_calls: Number of calls of priors by kind, by how many were asked for, by what equal images have in common,
            and by whether the server asked.
        eval_sizes: Number of examples for each model to be evaluated.
        gathered_rows: Most examples that are copied for one evaluation.
        server_s: Time of everything but the jobs, seconds.
    """

    bytes: Mapping[Direction, int] = field(default_factory=dict)
    jobs: Counter[tuple[JobKind, int]] = field(default_factory=Counter)
    server_jobs: Counter[tuple[JobKind, int]] = field(default_factory=Counter)
    prior_calls: Counter[tuple[JobKind, int, Hashable, bool]] = field(default_factory=Counter)
    eval_sizes: list[int] = field(default_factory=list)
    gathered_rows: int = 0
    server_s: float = 0.0


@dataclass(eq=False)
class DryRun:
    """Requests of one method under one seed, for as many rounds as were driven.

    Attributes:
        rounds: Requests of each round, from the first.
        evaluation: Requests of an evaluation after the last of them; None if there was none.
        in_flight_bytes: Most bytes of messages, replies and states alive at once.
        client_bytes: Most bytes that one client is sent, remembers and answers in an exchange.
        memory_per_client: Bytes one client remembers, on average over those that remember something.
        clients: Clients that were asked.
        sample_jobs: One optimisation of each kind, to be timed.
        timings: Times of folds and local code, which really ran.
        reused: True if a result of another client's or seed's local code was used for lack of time.
        abandoned: Number of the rounds that have too few replies for a result.
    """

    rounds: list[RoundRequests]
    evaluation: RoundRequests | None
    in_flight_bytes: int
    client_bytes: int
    memory_per_client: float
    clients: frozenset[ClientId]
    sample_jobs: dict[JobKind, Sgd]
    timings: dict[JobKind, CodeTiming]
    reused: bool
    abandoned: int
