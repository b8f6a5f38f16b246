"""Rounds without training: what a method decides and sends when that does not depend on what models have learnt.

FedDif's auctions see class counts, sizes and channels only, so three hundred of its rounds take seconds.  The method's
own plan runs over the simulator's own messages; a client's training ends where it began.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from unskew.errors import ProtocolError
from unskew.local.executor import EvalJob, StepJob, StepResult, untrained
from unskew.protocol import ClientId, Fitted, Layout, Sgd, drive
from unskew.runtime.in_process import Population, Simulator, Trace
from unskew.tree import Params
from unskew.world.channel import Channel


class Untrained:
    """Clients whose training ends where it began; everything else they do is real."""

    name = "untrained"

    def complete(self, work: Mapping[ClientId, StepJob]) -> Iterator[tuple[ClientId, StepResult]]:
        """Drive every step to its end."""
        for c, w in work.items():
            yield c, StepResult(drive(w.begin(w.me, w.message, w.memory), partial(_answer, round=w.me.round)))

    def evaluate(self, papers: Sequence[EvalJob]) -> list[tuple[Tensor, Tensor]]:
        """Refused: nothing was trained."""
        raise NotImplementedError(f"{len(papers)} papers cannot be graded: nothing was trained")


def _answer(request: Any, round: int) -> Fitted:
    if not isinstance(request, Sgd):
        raise ProtocolError(
            f"without data a client can train and nothing else, its step asked for {type(request).__name__}; "
            "run the method on data"
        )
    return untrained(request, round)


def rounds(
    algorithm: Any,
    histograms: Tensor,
    count: int,
    *,
    seed: int = 0,
    clients_per_round: int | None = None,
    channel: Channel | None = None,
    parameters: int = 1,
) -> Iterator[tuple[dict[str, Any], Trace]]:
    """What `count` rounds of a method come to: its facts, and what it sent.

    Args:
        algorithm: What to run; its clients may ask for local training and nothing else.
        histograms: Examples of each class by client, (clients, classes) int64.
        count: Communication rounds.
        seed, clients_per_round, channel: As of a run.
        parameters: Size of the model, one vector.

    Raises:
        ProtocolError: If a client's step asks for more than local training.
    """
    params: Params = {"w": torch.zeros(parameters)}
    population = Population(histograms, Layout(("w",)), params, lambda _: params)
    sim: Simulator[Any] = Simulator(
        algorithm, population, Untrained(), seed=seed, clients_per_round=clients_per_round, channel=channel
    )
    state = sim.start()
    shown = getattr(algorithm, "info", None)
    for t in range(1, count + 1):
        state, trace = sim.round(state, t)
        yield ({} if shown is None else shown(state)), trace
