"""A session's tool for a machine with a GPU: checks and times the stacked executor; see docs/benchmarks/gpu.md."""

import importlib.util
import itertools
import os
import statistics
import sys
import time
import types

if os.getcwd() not in sys.path:
    sys.path.insert(0, os.getcwd())
for name in ("torch", "numpy", "scipy", "safetensors", "annotated_types"):
    if importlib.util.find_spec(name) is None:
        print(f"missing: {name}", flush=True)
if importlib.util.find_spec("annotated_types") is None:  # only names in annotations here
    shim = types.ModuleType("annotated_types")
    for name in ("Ge", "Gt", "Le", "Lt", "Interval", "Len", "MinLen", "MultipleOf"):
        setattr(shim, name, type(name, (), {"__init__": lambda self, *a, **k: None}))
    sys.modules["annotated_types"] = shim

import torch
from torch import nn

from unskew.algorithms.fedavg import FedAvg
from unskew.algorithms.fedprox import FedProx
from unskew.algorithms.scaffold import SCAFFOLD
from unskew.keys import Key
from unskew.local.data import DeviceData
from unskew.local.executor import EvalJob
from unskew.local.sequential import Sequential
from unskew.local.stacked import fitter
from unskew.local.stacked.executor import Stacked
from unskew.local.trainer import LocalTrainer
from unskew.models.cnn import cnn_small, cnn_w3, pfl_cnn, torch_cnn
from unskew.models.deep import resnet18
from unskew.models.mlp import fcn, logistic, mlp
from unskew.models.sequences import lstm_rows
from unskew.protocol import SgdConfig
from unskew.runtime.in_process import Population, Simulator
from unskew.tasks.task import make_task
from unskew.tree import leaves

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def say(*what):
    print(*what, flush=True)


def sync():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


# ------------------------------------------------------------------ worlds
def world(build, shape, classes, sizes, dtype=torch.float32, device=DEVICE, test=0, tokens=0):
    g = Key(17).generator()
    n = sum(sizes)
    x = torch.randn(n + test, *shape, generator=g).to(dtype)
    y = torch.randint(classes, (n + test,), generator=g)
    task = make_task(build, classes, examples=x[:4].float())
    rows = [r.to(device) for r in torch.split(torch.arange(n), list(sizes))]
    device_data = DeviceData(
        x[:n].to(device), y[:n].to(device), tuple(rows), tuple(r[:3] for r in rows), None,
        x[n:].to(device) if test else None, y[n:].to(device) if test else None,
    )  # fmt: skip
    histograms = torch.stack([torch.bincount(y[r.cpu()], minlength=classes) for r in rows])

    def initialise(key):
        return {k: t.to(device, dtype) for k, t in task.init(key).items()}

    return Population(histograms, task.layout, initialise(Key(3)), initialise), LocalTrainer(
        task, device_data, device, dtype
    )


# ------------------------------------------------------------------ equality
RAGGED = (37, 16, 9, 52, 16, 24, 5, 48)
NETWORKS = {
    "logistic": (lambda: logistic((1, 8, 8), 4), (1, 8, 8)),
    "mlp": (lambda: mlp((1, 8, 8), 4, hidden=(12, 7)), (1, 8, 8)),
    "cnn": (lambda: cnn_small((1, 8, 8), 4), (1, 8, 8)),
    "cnn, batch norm": (lambda: cnn_small((1, 8, 8), 4, norm="batch"), (1, 8, 8)),
    "cnn, group norm": (lambda: cnn_small((1, 8, 8), 4, norm="group"), (1, 8, 8)),
    "lstm": (lambda: lstm_rows((1, 8, 8), 4), (1, 8, 8)),
}
LOCAL = {
    "sgd": SgdConfig(0.05, batch_size=8, local_epochs=2),
    "momentum": SgdConfig(0.05, batch_size=8, local_epochs=2, momentum=0.9),
    "everything": SgdConfig(
        0.02, batch_size=8, local_epochs=2, momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=1.0
    ),
    "adamw": SgdConfig(0.005, batch_size=8, local_epochs=2, optimizer="adamw", weight_decay=0.1),
    "whole": SgdConfig(0.1, batch_size=None, local_epochs=12),
    "head": SgdConfig(0.1, batch_size=8, local_epochs=2, trainable=("head",)),
}
ALGORITHMS = {
    "fedavg": lambda local: FedAvg(local),
    "fedprox": lambda local: FedProx(0.3, local),
    "scaffold": lambda local: SCAFFOLD(local),
    "own head": lambda local: FedAvg(local, personal=("head",)),
}


def gap(one, two):
    worst = 0.0
    for (p, a), (q, b) in zip(leaves(one), leaves(two), strict=True):
        assert p == q
        if isinstance(a, torch.Tensor) and a.numel():
            scale = 1e-5 / 1e-4 + a.abs()
            worst = max(worst, float(((a - b).abs() / scale).max()))
    return worst


def check():
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    failed, begun = 0, time.perf_counter()
    for network, (build, shape) in NETWORKS.items():
        for how, local in LOCAL.items():
            for alg in ALGORITHMS if how == "sgd" else ("fedavg",):
                if (network, alg) == ("logistic", "own head"):
                    continue  # its only layer is the head
                for dtype, limit in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
                    if dtype is torch.float32 and (how, alg) != ("sgd", "fedavg"):
                        continue
                    reference = None
                    for form in (None, "vmap", "streams"):
                        if form and how not in ("sgd", "everything"):
                            continue
                        case = f"{network} | {form or 'rule'} | {how} | {alg} | {dtype}"
                        try:
                            if reference is None:
                                reference = three_rounds(build, shape, ALGORITHMS[alg](local), dtype, None)
                            worst, note = equal_rounds(build, shape, ALGORITHMS[alg](local), dtype, form, reference)
                        except Exception as error:  # one bad case must not hide the others
                            say("ERROR", case, type(error).__name__, str(error)[:300].replace("\n", " "))
                            failed += 1
                            continue
                        ok = worst < (1e-6 if how == "adamw" else limit)
                        failed += not ok
                        if not ok or note:
                            say("ok  " if ok else "FAIL", case, f"{worst:.1e}", note)
        say(f"-- {network} done after {time.perf_counter() - begun:.0f} s")
    failed += check_dropout() + check_grade() + check_fold()
    say("check:", "all equal" if not failed else f"{failed} FAILED")


def three_rounds(build, shape, algorithm, dtype, executor_of):
    population, trainer = world(build, shape, 4, RAGGED, dtype)
    executor = executor_of(trainer) if executor_of else Sequential(trainer)
    sim = Simulator(algorithm, population, executor, seed=5, clients_per_round=6)
    state, found = sim.start(), []
    for t in range(1, 4):
        state, trace = sim.round(state, t)
        found.append((state, trace.losses))
    return found, executor


def equal_rounds(build, shape, algorithm, dtype, form, reference):
    """Three rounds of varying cohorts, in both executors; captured steps are used from the second on."""
    found, executor = three_rounds(build, shape, algorithm, dtype, lambda trainer: Stacked(trainer, form=form))
    worst = 0.0
    for (a, la), (b, lb) in zip(reference[0], found, strict=True):
        worst = max(worst, gap(a, b), max(abs(x - y) / (abs(x) + 0.1) for (_, x), (_, y) in zip(la, lb, strict=True)))
    graphs = sum(len(rows._graphs) for rows in executor._fitter._kept.values())
    notes = "; ".join(executor.notes)
    return worst, notes + ("" if graphs or DEVICE.type == "cpu" else " (no step captured)")


def check_dropout():
    """Its own masks whoever is beside it, and on average the network without dropout."""
    build, shape = lambda: mlp((1, 8, 8), 4, hidden=(64,), dropout=0.5), (1, 8, 8)
    ends = []
    for chunk in (2, 8):
        population, trainer = world(build, shape, 4, (40,) * 8)
        sim = Simulator(
            FedAvg(SgdConfig(0.05, batch_size=8, local_epochs=4)), population, Stacked(trainer, chunk), seed=5
        )
        state = sim.start()
        for t in (1, 2):
            state, _ = sim.round(state, t)
        ends.append(state)
    worst = gap(*ends)
    say("dropout in chunks of 2 and 8:", f"{worst:.1e}", sim.executor.notes)
    return int(worst > 1e-4)


def check_grade():
    population, trainer = world(NETWORKS["cnn"][0], (1, 8, 8), 4, RAGGED, test=1500)
    models = [population.initialise(Key(i)) for i in range(5)]
    jobs = [EvalJob(m, "test") for m in models] + [
        EvalJob(m, "train", trainer.device_data.train[i]) for i, m in enumerate(models)
    ]
    one, two = Sequential(trainer).evaluate(jobs), Stacked(trainer).evaluate(jobs)
    bad = sum(not torch.allclose(p[1], q[1], rtol=1e-4, atol=1e-5) for p, q in zip(one, two, strict=True))
    say("evaluate:", "equal" if not bad else f"{bad} differ")
    return bad


def check_fold():
    population, trainer = world(NETWORKS["cnn"][0], (1, 8, 8), 4, RAGGED)
    stacked = Stacked(trainer)

    def add(carry, batch):
        return carry + (batch.features.sum(0) * batch.mask.sum())

    found = []
    for executor in (Sequential(trainer), stacked):
        from unskew.local.executor import StepJob
        from unskew.protocol import fold

        def step(me, m, memory):
            return (yield from fold(add, m, 0.0))

        work = {
            c: StepJob("s", step, population.me(c, 1, Key(1) / c),
                    population.initialise(Key(c)), None)
            for c in range(len(RAGGED))
        }  # fmt: skip
        found.append(dict(executor.complete(work)))
    bad = sum(not torch.allclose(found[0][c].value, found[1][c].value, rtol=1e-4, atol=1e-4) for c in found[0])
    say("fold:", "equal" if not bad else f"{bad} differ", stacked.notes)
    return bad


# ------------------------------------------------------------------ timing
CASES = {
    # name: network, shape, clients, examples of each, batch, epochs, momentum
    "W1/b50/c100": (lambda: logistic((1, 28, 28), 10), (1, 28, 28), 100, 500, 50, 1, 0.9),
    "W1/b50/c1000": (lambda: logistic((1, 28, 28), 10), (1, 28, 28), 1000, 500, 50, 1, 0.9),
    "W2/b50/c100": (lambda: fcn((1, 28, 28), 10), (1, 28, 28), 100, 500, 50, 1, 0.9),
    "W2/b50/c1000": (lambda: fcn((1, 28, 28), 10), (1, 28, 28), 1000, 500, 50, 1, 0.9),
    "W2/b16/c100": (lambda: fcn((1, 28, 28), 10), (1, 28, 28), 100, 400, 16, 1, 0.9),
    "W2/b50/c100/e5": (lambda: fcn((1, 28, 28), 10), (1, 28, 28), 100, 500, 50, 5, 0.9),
    "W3/b50/c10": (lambda: cnn_w3((3, 32, 32), 10), (3, 32, 32), 10, 500, 50, 1, 0.9),
    "W3/b50/c100": (lambda: cnn_w3((3, 32, 32), 10), (3, 32, 32), 100, 500, 50, 1, 0.9),
    "A": (lambda: pfl_cnn((3, 32, 32), 10), (3, 32, 32), 50, 50, 10, 1, 0.0),
    "E": (lambda: torch_cnn((3, 32, 32), 10), (3, 32, 32), 100, 500, 50, 5, 0.0),
    "W5/b50/c10": (lambda: resnet18((3, 32, 32), 10, norm="group"), (3, 32, 32), 10, 250, 50, 1, 0.9),
}


def plain(trainer, population, config):
    """The loop anybody would write: one module, a torch optimiser, clients one after the other, a mean."""
    module = trainer.task.build().to(DEVICE).train()
    x, y = trainer.device_data.x, trainer.device_data.y

    def one_round():
        total = None
        for rows in trainer.device_data.train:
            with torch.no_grad():
                for n, p in module.named_parameters():
                    p.copy_(population.initial[n])
            optimiser = torch.optim.SGD(module.parameters(), config.lr, config.momentum)
            for _ in range(config.epochs):
                order = rows[torch.randperm(len(rows)).to(DEVICE)]
                for pick in torch.split(order, config.batch_size):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(module(x[pick]), y[pick]).backward()
                    optimiser.step()
            with torch.no_grad():
                end = [p.clone() for p in module.parameters()]
                total = end if total is None else torch._foreach_add(total, end)
        sync()

    return one_round


def measure(fn, repeats, limit):
    fn()
    fn()
    times, begun = [], time.perf_counter()
    while len(times) < repeats and (len(times) < 2 or time.perf_counter() - begun < limit):
        sync()
        t = time.perf_counter()
        fn()
        sync()
        times.append(time.perf_counter() - t)
    return times


def ways(case, samples):
    build = CASES[case][0]
    module = build()
    linear = not any(isinstance(m, nn.Conv2d) for m in module.modules())
    if linear:
        found = [("rule", None, None, None)] + [
            (f"bmm, chunk {c}", "bmm", c, None) for c in (32, 64, 128, 256, 512) if c <= CASES[case][2]
        ]
    else:
        found = [("rule", None, None, None)] + [
            (f"vmap, chunk {c}", "vmap", c, None) for c in (10, 25, 50, 100) if c <= CASES[case][2]
        ]
        found += [(f"{s} streams", "streams", None, s) for s in (1, 2, 4, 8)]
        if case.startswith("W5"):
            found = [f for f in found if f[1] != "vmap"]
    return found


def timing(names):
    say(torch.__version__, torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu", "| TF32: matmul",
        torch.backends.cuda.matmul.allow_tf32, "cudnn", torch.backends.cudnn.allow_tf32)  # fmt: skip
    for case, (build, shape, clients, n, batch, epochs, momentum) in CASES.items():
        if names and not any(case.startswith(name) for name in names):
            continue
        config = SgdConfig(0.01, batch_size=batch, local_epochs=epochs, momentum=momentum)
        samples = clients * n * epochs
        population, trainer = world(build, shape, 10, (n,) * clients)
        base = statistics.median(measure(plain(trainer, population, config), 3, 6.0))
        say(f"{case:16s} {'plain loop':18s} {base:9.4f} s/round {samples / base:12,.0f} samples/s   1.00x")
        sim = Simulator(FedAvg(config), population, Sequential(trainer), seed=1)
        state = sim.start()
        turn = itertools.count(1)
        took = min(measure(lambda: sim.round(state, next(turn)), 2, 4.0))
        say(f"{case:16s} {'sequential':18s} {took:9.4f} s/round {samples / took:12,.0f} samples/s {base / took:6.2f}x")
        for label, form, chunk, streams in ways(case, samples):
            fitter._STREAMS = streams or 4
            try:
                if DEVICE.type == "cuda":
                    torch.cuda.empty_cache()
                    torch.cuda.reset_peak_memory_stats()
                executor = Stacked(trainer, chunk, form)
                sim = Simulator(FedAvg(config), population, executor, seed=1)
                begun, turn = time.perf_counter(), itertools.count(2)
                sim.round(state, 1)
                sync()
                first = time.perf_counter() - begun
                inside = []
                complete = executor.complete

                def timed(work, complete=complete, inside=inside):
                    t = time.perf_counter()
                    done = list(complete(work))  # a generator: nothing is done before it is asked
                    sync()
                    inside.append(time.perf_counter() - t)
                    return iter(done)

                executor.complete = timed
                times = measure(lambda sim=sim, turn=turn: sim.round(state, next(turn)), 7, 6.0)
                took, only = statistics.median(times), statistics.median(inside[2:])
                graphs = sum(len(rows._graphs) for rows in executor._fitter._kept.values())
                peak = torch.cuda.max_memory_allocated() / 2**30 if DEVICE.type == "cuda" else 0.0
                say(f"{case:16s} {label:18s} {took:9.4f} s/round {samples / took:12,.0f} samples/s {base / took:6.2f}x"
                    f"  min {min(times):.4f}  executor {only:.4f} ({base / only:.2f}x)  first {first:.2f} s"
                    f"  {graphs} graphs  {peak:.2f} GiB  {'; '.join(executor.notes)}")  # fmt: skip
                del executor, sim
            except Exception as error:
                say(f"{case:16s} {label:18s} ERROR {type(error).__name__}: {str(error)[:300]}".replace("\n", " "))


def profile(names):
    import cProfile
    import pstats

    case = (names or ["W2/b50/c100"])[0]
    build, shape, clients, n, batch, epochs, momentum = CASES[case]
    config = SgdConfig(0.01, batch_size=batch, local_epochs=epochs, momentum=momentum)
    population, trainer = world(build, shape, 10, (n,) * clients)
    sim = Simulator(FedAvg(config), population, Stacked(trainer), seed=1)
    state = sim.start()
    turn = itertools.count(1)
    for _ in range(3):
        sim.round(state, next(turn))
    sync()
    with cProfile.Profile() as p:
        for _ in range(5):
            sim.round(state, next(turn))
        sync()
    pstats.Stats(p).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    what, names = (sys.argv[1:2] or ["check"])[0], sys.argv[2:]
    {"check": lambda n: check(), "time": timing, "profile": profile}[what](names)
