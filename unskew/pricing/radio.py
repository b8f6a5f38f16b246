"""Prices a recorded run on the air: its ledger under a radio model.

A channel is a pure function of its key, and the ledger records every transfer.  So any run can be priced under a cell
it was never run in: bytes, Hertz-seconds, resource blocks, sub-frames, seconds, joules.

Order      An exchange (a hop of the ledger) takes three turns on the air: down, device to device, up.  Turns and
           exchanges follow each other; seconds are those on the air.
Channel    A plan probes the channel by its own count of diffusion rounds, the ledger counts exchanges.  Here the
           channel's hop is the number of earlier exchanges in the round that moved a model between devices.  Devices
           are placed anew after those, so FedDif's transfers meet the channel they were planned for.  A diffusion round
           without a move leaves no such exchange, but counts where a method reports its hops.
Ledgers    measured          the bytes of our wire, every message
           feddif_table3     P000's Table 3, 3.11 MB M (T + I): megabytes only
           feddif_subframes  P001's Table II: every model is 40e6 bits, a compressed one in proportion, and other
                             messages are free
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from unskew import schema
from unskew.errors import ConfigError, RunError
from unskew.experiment import config
from unskew.info import DiffusionRound, Passes
from unskew.keys import Key
from unskew.ledger import Direction
from unskew.pricing.traffic import CellTraffic, Table, read
from unskew.units import MB, Bytes, bits
from unskew.world.channel import Nodes, Radio
from unskew.world.spectrum import Airtime, Energy, Spectrum

Floats = npt.NDArray[np.float64]
Ledger = Literal["measured", "feddif_table3", "feddif_subframes"]

TURNS: tuple[Direction, Direction, Direction] = ("down", "d2d", "up")
BITS_PER_BYTE = bits(Bytes(1))
TABLE3_MODEL_MB = 3.11  # 815,332 float32 are 3.11 MiB
SUBFRAMES_MODEL_BITS = 40e6


FLOWS = ("bytes", "hz_s", "rbs", "subframes", "seconds", "transmit_j", "receive_j")


# ---------------------------------------------------------------- cells
@dataclass(frozen=True)
class PricingPreset:
    """A cell, its carrier and its devices."""

    channel: Radio
    spectrum: Spectrum = Spectrum(min_efficiency=1.0)
    energy: Energy = Energy()


_SLIP = Spectrum(rbs=1484, free_rbs=1200.0, whole_rbs=True, last_chunk="lost")
"""P001's Table II.  1484 = 106 RBs x 14 symbols is a slip of units: costs come out about 14 times too low."""

_CODE = Radio(d2d_height_offset=23.5)
"""The model behind P001's Table II and P000's tables: no fading, and the base station's height between devices too."""

PAPER = PricingPreset(Radio(fading="rayleigh"))
"""The system model as printed: fading, devices on one level, a sub-frame as 5G has it, and gamma_min = 1."""

PRESETS = {
    "paper": PAPER,
    "p000": PricingPreset(_CODE, _SLIP),
    "p001": PricingPreset(_CODE, replace(_SLIP, min_efficiency=1.0)),
}


def preset(name: str) -> PricingPreset:
    """A preset by name, or from a TOML file.

    The file has up to three tables, [channel], [spectrum] and [energy], and may begin with `preset = "p001"`.  Settings
    that the tables omit come from that preset, or from `paper`.

    Raises:
        ConfigError: If there is no such name or file, or a setting is unknown or not allowed.
    """
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix != ".toml":
        raise ConfigError(f"no channel is called {name!r}; choose {', '.join(PRESETS)}, or a file that ends in .toml")
    table = config.read_toml(path)
    base = table.pop("preset", "paper")
    if not isinstance(base, str) or base not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}, got {schema.show(base)} ({path})")
    parts: dict[str, Any] = {part: getattr(PRESETS[base], part) for part in ("channel", "spectrum", "energy")}
    with schema.in_file(str(path)):
        for key, settings in table.items():
            if key not in parts:
                raise schema.unknown(key, ["preset", *parts], "", "a preset")
            values = schema.checked(type(parts[key]), settings, key)
            with schema.errors_at(key):
                parts[key] = replace(parts[key], **values)
    return PricingPreset(**parts)


# ---------------------------------------------------------------- prices
@dataclass(frozen=True)
class Cost:
    """The cost of one round of a training.

    Attributes:
        numbers: Flows by direction, as in `hz_s.up`: `bytes` (10^6 are the paper's MB in `feddif_table3`), `hz_s`
            (bandwidth times time, bits / gamma), `rbs` (resource blocks).  `subframes` and `seconds` last until each
            turn's last transfer is done.  `transmit_j` is of senders, `receive_j` of receiving devices.  `below_qos`
            counts transfers on links below the minimum quality of service.  `compute_j` is of local training.
    """

    method: str
    seed: int
    round: int
    numbers: Mapping[str, float]

    def whole(self, flow: str) -> float:
        """The sum of a flow over directions; 0 if the ledger does not say."""
        return sum(self.numbers.get(f"{flow}.{d}", 0.0) for d in TURNS)


def price(
    what: Path | Iterable[CellTraffic],
    preset: PricingPreset = PAPER,
    ledger: Ledger = "measured",
    model_bytes: int | None = None,
) -> tuple[Cost, ...]:
    """Price trainings round by round.

    This is a pure function: neither row order nor anything else priced matters.

    Args:
        what: A run folder, or trainings in memory (`recorded.training`).  Bounds that pool the data are left out.
        preset: The cell, its carrier, and what its devices consume.
        ledger: Rule for which messages count, and for how many bytes.
        model_bytes: Size of a plain model, for `feddif_subframes`: a smaller one counts in proportion, a larger one as
            one.  A run folder has it; otherwise every model counts as one.

    Returns:
        One entry for each method, seed and round with transfers or training: trainings in order, rounds ascending.

    Raises:
        RunError: If the folder is not a run, or one of its files is not a run's.
    """
    if isinstance(what, Path):
        run = read(what)
        what, model_bytes = run.trainings, run.model_bytes
    costs: list[Cost] = []
    for one in what:
        if one.bound == "pooled":
            continue
        if ledger == "feddif_table3":
            costs += _table3(one)
        else:
            costs += _on_air(one, preset, ledger, model_bytes)
    return tuple(costs)


# ---------------------------------------------------------------- the order of the air
def _in_order(sent: Table) -> Table:
    """Transfers by round, hop and turn; then by all else, as a sum of floats must not depend on the order of rows."""
    assert sent.dtype.names is not None
    return sent[np.lexsort([sent[name] for name in reversed(sent.dtype.names)])]


def _of_round(rows: Table, t: int) -> Table:
    return rows[slice(*np.searchsorted(rows["round"], [t, t + 1]))]


def _channel_hops(rows: Table, info: Passes | None) -> dict[int, int]:
    """The channel's hop for each hop of a round's ledger."""
    hops = info.hops if isinstance(info, DiffusionRound) else ()
    models = rows[rows["model"] == 1]
    trainings, ends = models["hop"][models["turn"] == 0], np.unique(models["hop"][models["turn"] == 1])
    if len(trainings) and hops:  # a method that says when models moved, or did not
        ends = int(trainings.min()) + np.array([hop.exchange for hop in hops])
    return {hop: int(np.searchsorted(ends, hop)) for hop in np.unique(rows["hop"]).tolist()}


# ---------------------------------------------------------------- measured, and P001's Table II
def _on_air(one: CellTraffic, preset: PricingPreset, ledger: Ledger, model_bytes: int | None) -> list[Cost]:
    channel, spectrum, energy = preset.channel, preset.spectrum, preset.energy
    rows = _in_order(one.sent)
    load = _bits(one, rows, ledger, model_bytes)
    key = Key(one.seed) / "channel"
    flows: dict[int, dict[str, float]] = {}
    hops: dict[int, dict[int, int]] = {}
    when = rows[["round", "hop", "turn"]]
    cuts = np.flatnonzero(when[1:] != when[:-1]) + 1
    for part, weight in zip(np.split(rows, cuts), np.split(load, cuts), strict=True):
        if not len(part):
            continue
        round, hop, direction = int(part["round"][0]), int(part["hop"][0]), TURNS[part["turn"][0]]
        if round not in hops:
            hops[round] = _channel_hops(_of_round(rows, round), one.info.get(round))
        sums = flows.setdefault(round, _nothing())
        carried = np.flatnonzero(weight)
        if not len(carried):
            continue
        src, dst = part["src"][carried], part["dst"][carried]
        gamma = channel.links(key, round, hops[round][hop], src, dst)
        hz_s = weight[carried] / gamma
        queued = not (channel.station(src) | channel.station(dst)).any()
        taken = _airtime(spectrum, key / "spectrum" / round / hop / direction, queued, src, dst, hz_s)
        received = energy.receive_j(hz_s[~channel.station(dst)], channel.bandwidth_hz)
        for name, value in (
            ("bytes", weight[carried].sum() / BITS_PER_BYTE),
            ("hz_s", hz_s.sum()),
            ("rbs", taken.rbs),
            ("subframes", taken.subframes),
            ("seconds", taken.subframes * spectrum.subframe_s),
            ("transmit_j", energy.transmit_j(channel.power_w(src), hz_s, channel.bandwidth_hz).sum()),
            ("receive_j", received.sum()),
        ):
            sums[f"{name}.{direction}"] += float(value)
        sums["below_qos"] += float((gamma < spectrum.min_efficiency).sum())
    computed = {} if one.work is None else _computed(one.work, energy)
    idle = {} if one.work is None else {"compute_j": 0.0}
    return [
        Cost(one.method, one.seed, t, {**flows.get(t, _nothing()), **computed.get(t, idle)})
        for t in sorted({*flows, *computed})
    ]


def _nothing() -> dict[str, float]:
    return dict.fromkeys((*(f"{name}.{d}" for name in FLOWS for d in TURNS), "below_qos"), 0.0)


def _bits(one: CellTraffic, rows: Table, ledger: Ledger, model_bytes: int | None) -> Floats:
    """Bits that each transfer counts for."""
    if ledger == "measured":
        return np.asarray(rows["bytes"] * BITS_PER_BYTE)
    # A compressed update holds no parameters by name; a method that returns nothing else pays for all it sends.
    compressed = len(rows) > 0 and not rows["model"][rows["turn"] > 0].any()
    if model_bytes is None:
        if compressed:
            raise RunError(
                f"{one.method}, seed {one.seed}: no client ever sends a whole model, so the sub-frame ledger needs the "
                "size of one; give model_bytes"
            )
        return np.asarray(SUBFRAMES_MODEL_BITS * rows["model"])
    share = np.minimum(rows["bytes"] / model_bytes, 1.0)
    return np.asarray(SUBFRAMES_MODEL_BITS * (share if compressed else share * rows["model"]))


def _airtime(spectrum: Spectrum, key: Key, queued: bool, src: Nodes, dst: Nodes, hz_s: Floats) -> Airtime:
    """Duration of a turn; messages on one link are one transfer."""
    links, which = np.unique(src * (dst.max() + 1) + dst, return_inverse=True)
    needed = np.bincount(which, hz_s, len(links)) / spectrum.rb_hz_s
    return spectrum.queued(key, needed) if queued else spectrum.shared(key, needed)


def _computed(work: Table, energy: Energy) -> dict[int, dict[str, float]]:
    """Joules of local training by round."""
    rounds, which = np.unique(work["round"], return_inverse=True)
    examples = np.bincount(which, work["examples"], len(rounds)).tolist()
    return {t: {"compute_j": energy.compute_j(n)} for t, n in zip(rounds.tolist(), examples, strict=True)}


# ---------------------------------------------------------------- P000's Table 3
def table3_mb(rounds: int, iterations: int, models: int = 15) -> float:
    """P000's cost of a training, `3.11 M (T + I)`, in the paper's MB: M models, T rounds, I iterations.

    Each model goes down once a round, and somewhere after each local-training pass: one a round, and one more for
    each diffusion or swap.

    >>> round(table3_mb(294, 294), 1)
    27430.2
    """
    return TABLE3_MODEL_MB * models * (rounds + iterations)


def _table3(one: CellTraffic) -> list[Cost]:
    rows = _in_order(one.sent)
    costs = []
    for t in np.unique(rows["round"]).tolist():
        info = one.info.get(t, Passes())
        models = _models(_of_round(rows, t)) if info.models is None else info.models
        # Clients that train at the same time count once.
        hops = () if one.work is None else np.unique(one.work["hop"][one.work["round"] == t])
        passes = max(len(hops), 1) if info.iterations is None else info.iterations
        one_way = table3_mb(1, 0, models) * MB
        # M go down and M up; the rest of M (1 + I) goes from device to device, along the links the run really used.
        sent = {"bytes.down": one_way, "bytes.d2d": (passes - 1) * one_way, "bytes.up": one_way}
        costs.append(Cost(one.method, one.seed, t, sent))
    return costs


def _models(rows: Table) -> int:
    """M: clients that receive a model in the first exchange that sends any down, else those that send one up."""
    for turn, end in ((0, "dst"), (2, "src"), (1, "src")):
        chosen = rows[(rows["turn"] == turn) & (rows["model"] == 1)]
        if len(chosen):
            return len(np.unique(chosen[end][chosen["hop"] == chosen["hop"].min()]))
    return 0


# ---------------------------------------------------------------- sums
def summed(costs: Iterable[Cost]) -> dict[tuple[str, int], Cost]:
    """The sum over rounds for each method and seed; `round` is the last one."""
    totals: dict[tuple[str, int], Cost] = {}
    for cost in costs:
        so_far = totals.get((cost.method, cost.seed), replace(cost, numbers={}))
        numbers = {name: so_far.numbers.get(name, 0.0) + value for name, value in cost.numbers.items()}
        totals[cost.method, cost.seed] = replace(cost, round=max(so_far.round, cost.round), numbers=numbers)
    return totals


NAMES = {
    "bytes": "megabytes",
    "transmit_j": "joules.transmit",
    "receive_j": "joules.receive",
    "compute_j": "joules.compute",
}


def measures(cost: Cost) -> dict[str, float]:
    """A cost's known numbers by name: megabytes, hz_s, rbs, ...; each flow as a whole and by direction, `hz_s.up`."""
    numbers: dict[str, float] = {}
    for flow in FLOWS:
        if f"{flow}.up" in cost.numbers:
            name, unit = NAMES.get(flow, flow), MB if flow == "bytes" else 1
            numbers[name] = cost.whole(flow) / unit
            numbers |= {f"{name}.{d}": cost.numbers[f"{flow}.{d}"] / unit for d in TURNS}
    scalars = ("compute_j", "below_qos")
    return numbers | {NAMES.get(name, name): cost.numbers[name] for name in scalars if name in cost.numbers}
