"""The audit: it finds each way in which noise can be less than it claims, and lets honest noise pass."""

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

import unskew as us
from unskew.errors import ConfigError
from unskew.experiment import config
from unskew.experiment.config import Experiment, NamedMethod
from unskew.keys import Key
from unskew.protocol import Me
from unskew.run.audit import Audit, audit
from unskew.server import privacy
from unskew.tree import Params
from unskew.wrappers.central_dp import NoisedSum


def experiment(seed: int = 0) -> Experiment:
    return config.parse(
        {
            "rounds": 3,
            "seeds": [seed],
            "task": {"data": "digits", "model": "logistic"},
            "split": {"name": "iid", "num_clients": 5},
            "methods": [{"name": "fedavg", "local": {"local_steps": 1}}],
        }
    )


def audited(by: Any, method: Any = None, seed: int = 0) -> Audit:
    method = method or us.FedAvg(local=us.SgdConfig(local_steps=1))
    return audit(experiment(seed), NamedMethod("private", "fedavg", {}, us.wrap(method, by)))


# ---------------------------------------------------------------- faults of clients' noise
Noise = Callable[[us.LocalDP, Me, Params], Params]


@dataclass(frozen=True)
class Broken(us.LocalDP):
    """Noise that is not as claimed: `other` makes it in place of LocalDP."""

    other: Any = None

    def encode(self, me: Me, updates: Params, residual: Params | None) -> tuple[Params, Params]:
        honest = us.LocalDP(self.clip, self.noise_multiplier, self.delta)
        return self.other(honest, me, updates), {}


def noised(by: us.LocalDP, me: Me, updates: Params) -> Params:
    return by.encode(me, updates, None)[0]


def half(by: us.LocalDP, me: Me, updates: Params) -> Params:
    return noised(dataclasses.replace(by, noise_multiplier=by.noise_multiplier / 2), me, updates)


def three_times_the_clip(by: us.LocalDP, me: Me, updates: Params) -> Params:
    return noised(dataclasses.replace(by, clip=3 * by.clip, noise_multiplier=by.noise_multiplier / 3), me, updates)


def bias_in_clear(by: us.LocalDP, me: Me, updates: Params) -> Params:
    clear = noised(dataclasses.replace(by, noise_multiplier=1e-9), me, updates)
    return {n: clear[n] if "bias" in n else t for n, t in noised(by, me, updates).items()}


def same_for_clients(by: us.LocalDP, me: Me, updates: Params) -> Params:
    return noised(by, dataclasses.replace(me, private=Key(5) / me.round), updates)


def same_for_rounds(by: us.LocalDP, me: Me, updates: Params) -> Params:
    return noised(by, dataclasses.replace(me, private=me.private_fixed), updates)


def none_in_round_two(by: us.LocalDP, me: Me, updates: Params) -> Params:
    return noised(dataclasses.replace(by, noise_multiplier=1e-9) if me.round == 2 else by, me, updates)


LOCAL = [half, three_times_the_clip, bias_in_clear, same_for_clients, same_for_rounds, none_in_round_two]


@pytest.mark.parametrize("z", [1.0, 3.0])
@pytest.mark.parametrize("fault", LOCAL)
def test_each_fault_of_clients_noise_is_found(fault: Noise, z: float) -> None:
    if fault is three_times_the_clip:
        z = 1.0  # more noise takes more uploads
    result = audited(Broken(noise_multiplier=z, other=fault))
    assert not result.holds, result
    assert result.claimed == pytest.approx(privacy.epsilon(z / 2, 3, 1e-5), abs=1e-6)


# ---------------------------------------------------------------- faults of the server's noise
ADD, FINISH = NoisedSum.add, NoisedSum.finish


def without_bias(self: NoisedSum, partial: Any) -> Any:
    clear = FINISH(dataclasses.replace(self, noise=0.0), copy.deepcopy(partial))[0][0]
    (values, within), m = FINISH(self, partial)
    kept = [{n: c[n] if "bias" in n else t for n, t in v.items()} for v, c in zip(values, clear, strict=True)]
    return (tuple(kept), within), m


def one_number(self: NoisedSum, partial: Any) -> Any:
    (values, within), m = FINISH(dataclasses.replace(self, noise=0.0), partial)
    noise = {n: float((self.key / n).normal(1)) * self.noise / self.cohort for v in values for n in v}
    return (tuple({n: t + noise[n] for n, t in v.items()} for v in values), within), m


CENTRAL = {
    "half": ("finish", lambda self, p: FINISH(dataclasses.replace(self, noise=self.noise / 2), p)),
    "three times the clip": ("add", lambda self, p, c, r: ADD(dataclasses.replace(self, clip=3 * self.clip), p, c, r)),
    "same for rounds": ("finish", lambda self, p: FINISH(dataclasses.replace(self, key=Key(3)), p)),
    "bias in clear": ("finish", without_bias),
    "one number for a tensor": ("finish", one_number),
}


@pytest.mark.parametrize("fault", CENTRAL)
def test_each_fault_of_the_servers_noise_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, broken = CENTRAL[fault]
    monkeypatch.setattr(NoisedSum, name, broken)
    result = audited(us.CentralDP(noise_multiplier=2.0))
    assert not result.holds, result


@pytest.mark.parametrize("by", [us.LocalDP(), us.CentralDP()])
def test_honest_noise_passes_and_is_measured(by: Any) -> None:
    """A true claim is called false once in a hundred seeds."""
    result = audit(experiment(), NamedMethod("private", "fedavg", {}, us.wrap(us.FedAvg(), by)), runs=6)
    assert result.holds, result
    assert 0.0 < result.lower < result.claimed
    assert result.clip == pytest.approx(1.0, abs=0.7)
    assert result.noise == pytest.approx(1.0, abs=0.05)


def test_a_method_that_asks_for_two_sums_is_measured_over_both() -> None:
    assert audited(us.CentralDP(noise_multiplier=2.0), us.SCAFFOLD(local=us.SgdConfig(local_steps=1))).holds


def test_without_noise_nothing_is_claimed_and_clipping_is_exact() -> None:
    result = audited(us.CentralDP(noise_multiplier=0.0))
    assert result.holds
    assert result.lower == result.claimed == float("inf")
    assert result.clip == pytest.approx(1.0, abs=1e-5)


def test_a_method_without_privacy_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no noise to audit"):
        audit(experiment(), experiment().methods[0])
