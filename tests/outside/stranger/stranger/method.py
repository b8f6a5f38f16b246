"""The coordinate-wise median (Yin et al., ICML 2018), which reports how far it moved and probes the channel."""

from dataclasses import dataclass

import torch

from unskew.info import Info
from unskew.protocol import ClientId, Federation, Me, Plan, SgdConfig, Step, ask, probe, sgd, step
from unskew.tree import Params


@dataclass(frozen=True)
class Moved(Info):
    """How far the model moved, and the efficiency of the links."""

    distance: float
    gamma: float


@dataclass(frozen=True)
class State:
    params: Params
    distance: float = 0.0
    gamma: float = 0.0


@dataclass(frozen=True)
class Median:
    """The coordinate-wise median of the clients' models."""

    local: SgdConfig = SgdConfig()

    def init(self, params: Params, fed: Federation) -> State:
        return State(params)

    def round(self, state: State, fed: Federation) -> Plan[State]:
        gamma = yield from probe()
        replies = yield from ask(self.train, {c: state.params for c in fed.sample()})
        params = {n: torch.stack([r[n] for r in replies.values()]).median(0).values for n in state.params}
        moved = sum(float((params[n] - state.params[n]).square().sum()) for n in params)
        return State(params, moved**0.5, float(gamma[0, 1]))

    @step
    def train(self, me: Me, msg: Params, memory: None) -> Step[tuple[Params, None]]:
        return (yield from sgd(msg, self.local)), None

    def serve(self, state: State, client: ClientId | None) -> Params:
        return state.params

    def info(self, state: State) -> Moved:
        return Moved(distance=state.distance, gamma=state.gamma)
