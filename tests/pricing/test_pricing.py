"""Prices: the papers' numbers, worked sums, purity, and what a run folder must hold."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unskew.errors import ConfigError, RunError
from unskew.info import DiffusionHop, DiffusionMove, DiffusionRound, Passes
from unskew.keys import Key
from unskew.ledger import Transfer
from unskew.pricing.radio import PRESETS, Cost, PricingPreset, measures, preset, price, summed
from unskew.pricing.summary import cost_summary
from unskew.pricing.traffic import CellTraffic, RecordedRun, training
from unskew.protocol import Federation, Layout, Plan, probe
from unskew.record.logs import rows as rows_of
from unskew.run import loop
from unskew.runtime.in_process import Population, Simulator
from unskew.runtime.round import Effort
from unskew.tasks.measure import ACCURACY
from unskew.units import Bytes
from unskew.world.channel import Radio
from unskew.world.spectrum import Energy, Spectrum

MODEL = 5_000_000  # 40e6 bits, the papers' model
# A spectrum without chance: 100 blocks in every sub-frame, no cellular users, equal shares.
P001 = PRESETS["p001"].channel
STEADY = PricingPreset(P001, Spectrum(rbs=100, free_rbs=1e4, cellular_users=0, share=(1.0, 1.0)))
ALL = ("hz_s", "rbs", "subframes", "seconds", "joules.transmit")


def row(round: int, hop: int, src: int, dst: int, n: int = MODEL, kind: Any = "model") -> Transfer:
    return Transfer(round, hop, src, dst, kind, Bytes(n))


def fedavg(rounds: int, clients: int, n: int = MODEL) -> list[Transfer]:
    return [
        row(t, 0, *link, n) for t in range(1, rounds + 1) for c in range(1, clients + 1) for link in ((0, c), (c, 0))
    ]


def total(costs: tuple[Cost, ...]) -> dict[str, float]:
    (whole,) = summed(costs).values()
    return measures(whole)


# ---------------------------------------------------------------- the papers' ledgers
@pytest.mark.parametrize("ledger", ["measured", "feddif_subframes"])
def test_a_fedavg_round_takes_p001s_sub_frames(ledger: Any) -> None:
    """P001's Table II: 175,554 sub-frames / 80 rounds = 2194; 10 users, 40e6 bits, 300 rounds, within 5 %."""
    one = training("fedavg", 0, fedavg(300, 10))
    found = total(price([one], PRESETS["p001"], ledger=ledger))
    assert found["subframes"] / 300 == pytest.approx(2194, rel=0.05)
    assert found["megabytes"] == pytest.approx(300 * 20 * 5.0)


def test_the_table_3_ledger_prices_fedavg_and_fedswap() -> None:
    """I-43: FedAvg 294 rounds of 15 models 27,430; FedSwap 45 rounds of 10 passes 23,092; our bytes are moot."""
    plain = price([training("fedavg", 0, fedavg(294, 15, n=7))], ledger="feddif_table3")
    assert total(plain)["megabytes"] == pytest.approx(27430, abs=0.51)
    swap = training("fedswap", 0, fedavg(45, 15), info={t: Passes(iterations=10) for t in range(1, 46)})
    found = total(price([swap], ledger="feddif_table3"))
    assert found["megabytes"] == pytest.approx(23092, abs=0.51)
    assert found["megabytes.d2d"] == pytest.approx(3.11 * 15 * 9 * 45)
    assert not found.keys() & {*ALL, "joules.compute"}


def test_a_method_that_returns_compressed_updates_pays_for_them() -> None:
    """STC's messages hold no parameters by name: 4 and 2 bytes of 400 are .05 and .025 MB; a first model is whole."""
    rows = [row(1, 0, 0, 1, 400), row(1, 0, 1, 0, 4, "control"), row(2, 0, 0, 1, 2, "control")]
    found = price([training("stc", 0, rows)], PRESETS["p001"], ledger="feddif_subframes", model_bytes=400)
    assert [measures(c)["megabytes"] for c in found] == pytest.approx([5.05, 0.025])
    with pytest.raises(RunError, match=r"stc, seed 0: no client ever sends a whole model, .* give model_bytes"):
        price([training("stc", 0, rows)], PRESETS["p001"], ledger="feddif_subframes")


# ---------------------------------------------------------------- worked
def at(radio: Radio, round: int, hop: int, src: int, dst: int, seed: int = 0) -> float:
    """The link's efficiency as the channel has it."""
    return float(radio.links(Key(seed) / "channel", round, hop, np.array([src]), np.array([dst]))[0])


def test_a_round_by_hand() -> None:
    """Down to 1 (two messages on one link), 1 to 2, up from 2; all shares are the whole of 100 blocks."""
    rows = [row(1, 0, 0, 1, 900), row(1, 0, 0, 1, 100, "control"), row(1, 0, 1, 2, 1000), row(1, 0, 2, 0, 1000)]
    (cost,) = price([training("a", 0, rows)], STEADY)
    for direction, src, dst, dbm in (("down", 0, 1, 43), ("d2d", 1, 2, 23), ("up", 2, 0, 23)):
        need = 8000 / at(P001, 1, 0, src, dst)
        assert cost.numbers[f"bytes.{direction}"] == 1000
        assert cost.numbers[f"hz_s.{direction}"] == pytest.approx(need)
        assert cost.numbers[f"rbs.{direction}"] == math.ceil(need / 180)
        assert cost.numbers[f"subframes.{direction}"] == math.ceil(need / 180 / 100)
        assert cost.numbers[f"seconds.{direction}"] == pytest.approx(1e-3 * cost.numbers[f"subframes.{direction}"])
        watt = 10 ** (dbm / 10) / 1000
        assert cost.numbers[f"transmit_j.{direction}"] == pytest.approx(watt * need / 20e6)


def test_where_a_device_stands_in_for_the_server_all_links_are_between_devices() -> None:
    """Messages up and down queue, with no cellular user beside them, and receiving what goes up takes energy too."""
    rows, cell = fedavg(1, 2), replace(STEADY, energy=Energy(receive_w=0.5))
    (cost,) = price([training("a", 0, rows)], replace(cell, channel=replace(STEADY.channel, server="device")))
    for way in ("down", "up"):
        assert cost.numbers[f"receive_j.{way}"] == pytest.approx(0.5 * cost.numbers[f"hz_s.{way}"] / 20e6)
        assert cost.numbers[f"subframes.{way}"] == math.ceil(cost.numbers[f"rbs.{way}"] / STEADY.spectrum.rbs)


def test_only_devices_are_charged_for_receiving() -> None:
    rows = [row(1, 0, 0, 1), row(1, 0, 1, 2), row(1, 0, 2, 0)]
    (cost,) = price([training("a", 0, rows)], replace(STEADY, energy=Energy(receive_w=0.5)))
    assert cost.numbers["receive_j.up"] == 0
    assert cost.numbers["receive_j.down"] == pytest.approx(0.5 * cost.numbers["hz_s.down"] / 20e6)
    assert cost.numbers["receive_j.d2d"] == pytest.approx(0.5 * cost.numbers["hz_s.d2d"] / 20e6)


def test_computing_is_summed_over_clients() -> None:
    """Hop 0: 100 and 300 + 50 examples; hop 1: 200.  650 in all.  Round 2 sends nothing."""
    work = [Effort(1, 0, 0, 100), Effort(1, 0, 1, 300), Effort(1, 0, 1, 50), Effort(1, 1, 0, 200), Effort(2, 0, 0, 10)]
    one, two = price([training("a", 0, fedavg(1, 2), work)], STEADY)
    assert one.numbers["compute_j"] == pytest.approx(650 * 2e-6)
    assert (two.round, two.numbers["compute_j"], measures(two)["megabytes"]) == (2, pytest.approx(10 * 2e-6), 0)


# ---------------------------------------------------------------- when
DIFFUSION = [
    row(1, 0, 0, 1), row(1, 1, 1, 2, 8, "control"), row(1, 2, 1, 2), row(1, 3, 2, 3, 8, "control"), row(1, 4, 2, 3),
    row(1, 5, 3, 0),
]  # fmt: skip


def test_devices_move_after_each_exchange_of_models_between_them() -> None:
    """The first diffusion has the down link's places, the words of a diffusion those of its models."""
    models = [r for r in DIFFUSION if r.kind == "model"]
    (cost,) = price([training("a", 0, DIFFUSION)], STEADY)
    expected = [8 * r.bytes / at(P001, 1, k, r.src, r.dst) for r, k in zip(models, (0, 0, 1, 2), strict=True)]
    words = 64 / at(P001, 1, 0, 1, 2) + 64 / at(P001, 1, 1, 2, 3)
    assert cost.numbers["hz_s.down"] == pytest.approx(expected[0])
    assert cost.numbers["hz_s.d2d"] == pytest.approx(expected[1] + expected[2] + words)
    assert cost.numbers["hz_s.up"] == pytest.approx(expected[3])


def test_a_diffusion_round_without_a_move_is_counted_where_the_facts_tell() -> None:
    """Moves in diffusion rounds 1 and 3 of 0 to 3: the models go under places 1 and 3, and up under 4."""
    moves = [(), (DiffusionMove(0, 0, 1, 0.1),), (), (DiffusionMove(0, 1, 2, 0.1),)]
    (cost,) = price([training("a", 0, DIFFUSION, info={1: diffusion(moves, (0, 2, 2, 4))})], STEADY)
    d2d = [r for r in DIFFUSION if r.src and r.dst]
    expected = sum(8 * r.bytes / at(P001, 1, k, r.src, r.dst) for r, k in zip(d2d, (1, 1, 3, 3), strict=True))
    assert cost.numbers["hz_s.d2d"] == pytest.approx(expected)
    assert cost.numbers["hz_s.up"] == pytest.approx(8 * MODEL / at(P001, 1, 4, 3, 0))


def diffusion(moves: Sequence[tuple[DiffusionMove, ...]], exchanges: Sequence[int]) -> DiffusionRound:
    """A round of one model that begins at client 0."""
    every = enumerate(zip(moves, exchanges, strict=True), start=1)
    hops = tuple(DiffusionHop(k, 0.1, *of) for k, of in every)
    return DiffusionRound(starts=(0,), hops=hops, sizes=(1,))


@dataclass(frozen=True)
class Prober:
    """Probes twice and sends nothing; its state is what it saw."""

    def init(self, params: Any, fed: Federation) -> dict[str, torch.Tensor]:
        return {}

    def round(self, state: dict[str, torch.Tensor], fed: Federation) -> Plan[dict[str, torch.Tensor]]:
        first = yield from probe(0)
        second = yield from probe(1)
        return {"first": first, "second": second}

    def serve(self, state: Any, client: Any) -> None:
        return None


def test_transfers_meet_the_channel_that_a_plan_has_probed() -> None:
    """No fading: the second diffusion of DIFFUSION, 2 to 3, costs 8 bytes / gamma of what was probed for hop 1."""
    population = Population(torch.ones(3, 2, dtype=torch.int64), Layout(("w",)), {"w": torch.zeros(1)}, lambda key: {})
    sim: Simulator[Any] = Simulator(Prober(), population, None, seed=7, channel=P001)  # type: ignore[arg-type]
    state, _ = sim.round(sim.start(), 1)
    only = [r for r in DIFFUSION if r.hop <= 4]
    whole, before = (total(price([training("a", 7, rows)], STEADY))["hz_s.d2d"] for rows in (only, only[:-1]))
    assert 8 * MODEL / (whole - before) == pytest.approx(state["second"][1, 2].item(), rel=1e-4)
    assert not torch.equal(state["first"], state["second"])


# ---------------------------------------------------------------- purity
LINKS = st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 5), st.integers(0, 5)).filter(
    lambda x: x[2] != x[3]
)
ROWS = st.lists(
    st.tuples(LINKS, st.integers(1, 20_000), st.sampled_from(["model", "control"])).map(
        lambda x: row(*x[0], n=x[1], kind=x[2])
    ),
    min_size=1,
    max_size=25,
)
SOME_PRESETS = st.sampled_from(sorted(PRESETS))


@given(rows=ROWS, seed=st.integers(0, 20), preset=SOME_PRESETS, data=st.data())
@settings(max_examples=40)
def test_a_price_depends_neither_on_the_order_of_rows_nor_on_who_is_priced_beside(
    rows: list[Transfer], seed: int, preset: str, data: st.DataObject
) -> None:
    t = PRESETS[preset]
    one, other = training("a", seed, rows), training("b", seed + 1, fedavg(1, 2, 100))
    shuffled = training("a", seed, data.draw(st.permutations(rows)))
    first = price([one], t)
    assert price([shuffled], t) == first
    assert price([other, one], t)[-len(first) :] == first


@given(
    rows=ROWS,
    seed=st.integers(0, 20),
    preset=SOME_PRESETS,
    better=st.sampled_from([{"beta0_db": -20.0}, {"kappa": 3.2}, {"noise_dbm_hz": -180.0}, {"bs_height_m": 5.0}]),
)
@settings(max_examples=40)
def test_under_a_better_channel_nothing_costs_more(
    rows: list[Transfer], seed: int, preset: str, better: dict[str, float]
) -> None:
    one, plain = training("a", seed, rows), PRESETS[preset]
    plain = replace(plain, spectrum=replace(plain.spectrum, last_chunk="counted"))
    now = total(price([one], plain))
    then = total(price([one], replace(plain, channel=replace(plain.channel, **better))))  # type: ignore[arg-type]
    assert then["megabytes"] == now["megabytes"]
    assert all(then[m] <= now[m] for m in ("hz_s", "subframes", "seconds", "joules.transmit", "below_qos"))


# ---------------------------------------------------------------- a run folder
METHODS = "".join(f'[[methods]]\nname = "{m}"\n' for m in ("fedavg", "scaffold", "independent", "centralised"))


@pytest.fixture(scope="module")
def folder(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("runs") / "tiny"
    loop.start(tiny("seeds=[0, 1]", methods=METHODS), where)
    return where


def test_a_run_folder_is_priced_by_method_seed_and_round(folder: Path) -> None:
    costs = price(folder)
    assert [(c.method, c.seed, c.round) for c in costs] == [
        (m, s, t) for s in (0, 1) for m in ("fedavg", "scaffold", "independent") for t in (1, 2, 3)
    ]
    sent = list(rows_of(folder, "transfers"))
    for method in ("fedavg", "scaffold"):
        recorded = sum(r["bytes"] for r in sent if r["method"] == method)
        assert sum(c.whole("bytes") for c in costs if c.method == method) == recorded
    alone = [c for c in costs if c.method == "independent"]
    assert all(measures(c)["joules.transmit"] == 0 and c.numbers["compute_j"] > 0 for c in alone)


# ---------------------------------------------------------------- the summary of costs
def recorded(curves: dict[tuple[str, int], dict[int, float]], folder: Path) -> RecordedRun:
    trainings = tuple(CellTraffic(m, s, training(m, s, fedavg(4, 2)).sent) for m, s in curves)
    return RecordedRun(folder, "made up", trainings, ACCURACY, curves, "iid", MODEL, None)


def test_the_cost_to_a_target_ends_with_the_round_that_reached_it(folder: Path) -> None:
    """Of four equal rounds' 20 MB a takes 2 under seed 0 and 3 under seed 1, b reaches it once, c never."""
    curves = {
        ("a", 0): {1: 0.5, 2: 0.7, 3: 0.6, 4: 0.8}, ("b", 0): {2: 0.1, 4: 0.7}, ("c", 0): {4: 0.2},
        ("a", 1): {1: 0.1, 3: 0.71}, ("b", 1): {2: 0.1, 4: 0.69}, ("c", 1): {4: 0.3},
    }  # fmt: skip
    run = recorded(curves, folder)
    found = cost_summary(run, price(run.trainings), target="0.7")
    rows = {(r["method"], r["metric"]): r for r in found.rows}
    assert rows["a", "accuracy"]["seeds"] == [0.8, 0.71]
    assert rows["a", "megabytes"]["seeds"] == [80.0, 80.0]
    assert rows["a", "to_target.rounds"]["seeds"] == [2.0, 3.0]
    assert rows["a", "to_target.megabytes"]["seeds"] == [40.0, 60.0]
    assert rows["a", "to_target.megabytes"]["std"] == pytest.approx(math.sqrt(200.0))
    assert (rows["b", "to_target.megabytes"]["seeds"], rows["b", "to_target.megabytes"]["std"]) == ([80.0], None)
    assert ("c", "to_target.rounds") not in rows
    assert "b: the target was reached under 1 of 2 seeds, which alone count" in found.notes
    assert "c: the target was not reached under any seed" in found.notes


def test_a_seed_that_begins_at_the_target_has_cost_nothing_and_counts(folder: Path) -> None:
    """As in the report; without it the cost would be a mean over other seeds than the rounds."""
    run = recorded({("a", 0): {0: 0.7, 4: 0.8}, ("a", 1): {0: 0.1, 1: 0.1, 3: 0.71}}, folder)
    rows = {(r["method"], r["metric"]): r["seeds"] for r in cost_summary(run, price(run.trainings), target="0.7").rows}
    assert rows["a", "to_target.rounds"] == [0.0, 3.0]
    assert rows["a", "to_target.megabytes"] == [0.0, 60.0]
    assert {len(v) for (m, name), v in rows.items() if m == "a" and name.startswith("to_target.")} == {2}


# ---------------------------------------------------------------- presets
def test_a_file_begins_with_a_preset_and_changes_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('preset = "p001"\n[spectrum]\nrbs = 106\nfree_rbs = 86.0\n[energy]\nreceive_w = 0.1\n')
    found = preset(str(path))
    assert found.channel == P001
    assert found.spectrum == replace(PRESETS["p001"].spectrum, rbs=106, free_rbs=86.0)
    assert found.energy == Energy(receive_w=0.1)
    path.write_text("[channel]\nkappa = 3\n", "utf-8-sig")  # a byte-order mark, as editors on Windows write it
    assert preset(str(path)).channel == replace(PRESETS["paper"].channel, kappa=3.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("preset = 'p002'", r'preset must be one of paper, p000, p001, got "p002"'),
        ("[chanel]\nkappa = 3.0", r"unknown key chanel; did you mean channel\?"),
        ("[channel]\nkapa = 3.0", r"unknown key channel.kapa; did you mean kappa\?"),
        ("[channel]\nkappa = -1.0", "channel.kappa must be > 0, got -1"),
        ("[spectrum]\nshare = [1.2, 0.2]", "spectrum: share must be .lowest, highest., got 1.2, 0.2"),
        ("[energy]\nclock_hz = 'fast'", "energy.clock_hz must be a number"),
        ("channel = ", "is not TOML"),
    ],
)
def test_a_file_that_makes_no_preset_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        preset(str(path))
    assert "mine.toml" in str(caught.value)
