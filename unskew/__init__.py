"""unskew: federated learning when clients' data do not agree.

    import unskew as us

    methods = {"FedAvg": us.FedAvg(), "FedProx": us.fedprox(mu=0.1)}
    history = us.simulate(methods, data="digits", split=us.Dirichlet(alpha=0.1, num_clients=20), rounds=20)
    print(history)

Names are imported when they are first used: `import unskew` alone is quick and loads no PyTorch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from unskew.version import __version__

if TYPE_CHECKING:
    from unskew.algorithms.centralised import Centralised
    from unskew.algorithms.ditto import Ditto
    from unskew.algorithms.fedala import FedALA
    from unskew.algorithms.fedavg import FedAvg
    from unskew.algorithms.fedbabu import FedBABU
    from unskew.algorithms.fedbn import fedbn
    from unskew.algorithms.feddc import FedDC
    from unskew.algorithms.feddistr import FedDistr
    from unskew.algorithms.feddyn import FedDyn
    from unskew.algorithms.fednova import FedNova
    from unskew.algorithms.fedopt import FedAvgM, fedadagrad, fedadam, fedyogi
    from unskew.algorithms.fedper import fedper
    from unskew.algorithms.fedprox import fedprox
    from unskew.algorithms.fedrep import FedRep
    from unskew.algorithms.fedswap import FedSwap
    from unskew.algorithms.independent import Independent
    from unskew.algorithms.oneshot import OneShot
    from unskew.algorithms.perfedavg import PerFedAvg
    from unskew.algorithms.scaffold import Scaffold
    from unskew.algorithms.stc import STC
    from unskew.api import History, simulate
    from unskew.data.federated import federate
    from unskew.data.sources import load
    from unskew.data.split import (
        IID,
        ByGroup,
        Dirichlet,
        Entangled,
        FromManifest,
        HalfNormal,
        Pathological,
        Quantity,
        Shards,
    )
    from unskew.experiment.config import Runtime, Stop, TaskConfig, World
    from unskew.protocol import Cosine, Exponential, Milestones, SgdConfig
    from unskew.world.outage import Outage

_HOME = {
    "unskew.algorithms.centralised": ("Centralised",),
    "unskew.algorithms.ditto": ("Ditto",),
    "unskew.algorithms.fedala": ("FedALA",),
    "unskew.algorithms.fedavg": ("FedAvg",),
    "unskew.algorithms.fedbabu": ("FedBABU",),
    "unskew.algorithms.fedbn": ("fedbn",),
    "unskew.algorithms.feddc": ("FedDC",),
    "unskew.algorithms.feddistr": ("FedDistr",),
    "unskew.algorithms.feddyn": ("FedDyn",),
    "unskew.algorithms.fednova": ("FedNova",),
    "unskew.algorithms.fedopt": ("FedAvgM", "fedadagrad", "fedadam", "fedyogi"),
    "unskew.algorithms.fedper": ("fedper",),
    "unskew.algorithms.fedprox": ("fedprox",),
    "unskew.algorithms.fedrep": ("FedRep",),
    "unskew.algorithms.fedswap": ("FedSwap",),
    "unskew.algorithms.independent": ("Independent",),
    "unskew.algorithms.oneshot": ("OneShot",),
    "unskew.algorithms.perfedavg": ("PerFedAvg",),
    "unskew.algorithms.scaffold": ("Scaffold",),
    "unskew.algorithms.stc": ("STC",),
    "unskew.data.federated": ("federate",),
    "unskew.data.sources": ("load",),
    "unskew.data.split": (
        "IID",
        "ByGroup",
        "Dirichlet",
        "Entangled",
        "FromManifest",
        "HalfNormal",
        "Pathological",
        "Quantity",
        "Shards",
    ),
    "unskew.protocol": ("Cosine", "Exponential", "Milestones", "SgdConfig"),
    "unskew.experiment.config": ("Runtime", "Stop", "TaskConfig", "World"),
    "unskew.api": ("History", "simulate"),
    "unskew.world.outage": ("Outage",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'unskew' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "IID",
    "STC",
    "ByGroup",
    "Centralised",
    "Cosine",
    "Dirichlet",
    "Ditto",
    "Entangled",
    "Exponential",
    "FedALA",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedDC",
    "FedDistr",
    "FedDyn",
    "FedNova",
    "FedRep",
    "FedSwap",
    "FromManifest",
    "HalfNormal",
    "History",
    "Independent",
    "Milestones",
    "OneShot",
    "Outage",
    "Pathological",
    "PerFedAvg",
    "Quantity",
    "Runtime",
    "Scaffold",
    "SgdConfig",
    "Shards",
    "Stop",
    "TaskConfig",
    "World",
    "__version__",
    "fedadagrad",
    "fedadam",
    "fedbn",
    "federate",
    "fedper",
    "fedprox",
    "fedyogi",
    "load",
    "simulate",
]
