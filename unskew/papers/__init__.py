"""Experiments as data: what is run, the published numbers, and whether the claims hold.

TABLE names every reproduction; `unskew reproduce NAME` runs one.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from unskew.errors import ConfigError, meant
from unskew.papers.result import Request, Result, keep
from unskew.run.callbacks import Callback


class Entry(NamedTuple):
    """Where a reproduction is, and one line about it."""

    target: str
    about: str


TABLE: dict[str, Entry] = {
    "noniid/digits": Entry(
        "unskew.papers.noniid:digits", "the core's methods at Dirichlet alpha 0.1 on scikit-learn's digits"
    ),
    "noniid/fashion_mnist": Entry(
        "unskew.papers.noniid:fashion_mnist", "the core's methods at Dirichlet alpha 0.1 on Fashion-MNIST"
    ),
    "feddif/iterations": Entry(
        "unskew.papers.feddif:iterations", "FedDif's local-training iterations per round, against P000's Table 3"
    ),
    "feddif/table3-formula": Entry(
        "unskew.papers.feddif:table3_formula", "P000's cost formula against all entries of its Table 3"
    ),
    "feddif/subframes": Entry(
        "unskew.papers.feddif:subframes", "sub-frames of a round of FedAvg, against P001's Table II"
    ),
    "feddif/iid-distance": Entry(
        "unskew.papers.feddif:iid_distances", "IID distance by diffusion round beside Lemma 2's closed form"
    ),
    "feddif/accuracy": Entry(
        "unskew.papers.feddif:accuracy", "accuracy and cost to FedAvg's peak, against P000's Tables 2 and 3"
    ),
    "hcct/table2": Entry(
        "unskew.papers.hcct:table2", "three clients on CIFAR-10 in five patterns of collaboration, against Table II"
    ),
    "hcct/table4": Entry(
        "unskew.papers.hcct:table4", "HCCT and what it is compared with on three tasks, against Tables IV and V"
    ),
    "hcct/groups": Entry(
        "unskew.papers.hcct:groups", "error and utility against a forced number of groups (HCCT's Fig. 5)"
    ),
    "hcct/newcomers": Entry(
        "unskew.papers.hcct:newcomers", "clients that come later, placed by benefit, alone, or all together (Fig. 3)"
    ),
    "hcct/alpha": Entry("unskew.papers.hcct:alpha", "HCCT's error against alpha, for clients of four sizes (Fig. 4)"),
    "feddw/table1": Entry(
        "unskew.papers.feddw:table1",
        "FedDW and eleven methods, practical and pathological, against its paper's Table I",
    ),
    "feddw/compatibility": Entry(
        "unskew.papers.feddw:compatibility", "five methods with and without FedDW's term, against its paper's Table IV"
    ),
    "feddw/mu": Entry("unskew.papers.feddw:mu", "accuracy against the strength of FedDW's term (its paper's Fig. 6)"),
    "feddw/consistency": Entry(
        "unskew.papers.feddw:consistency",
        "distance between soft labels and class relations by round (its paper's Fig. 8, 5 and 4)",
    ),
    "feddw/scale": Entry(
        "unskew.papers.feddw:scale", "more clients, and rounds against local epochs, against its paper's Table II"
    ),
    "feddw/overhead": Entry(
        "unskew.papers.feddw:overhead", "what FedDW's term costs a local epoch, against its paper's Table III"
    ),
    "feddistr/tradeoff": Entry(
        "unskew.papers.feddistr:tradeoff",
        "FedDistr's one round against many of four methods, at four levels of overlap",
    ),
    "feddistr/communication": Entry(
        "unskew.papers.feddistr:communication",
        "what FedAvg sends until it is as good as FedDistr, against its paper's Table 2",
    ),
    "feddistr/privacy": Entry(
        "unskew.papers.feddistr:privacy", "accuracy and nearest copies against noise on embeddings (Fig. 5)"
    ),
}

SCALES = ("small", "paper")


def reproduce(name: str, scale: str, folder: Path, data_dir: Path | None, callback: Callback) -> Result:
    """Run a reproduction; its runs lie in `folder`.

    Raises:
        ConfigError: If there is no such reproduction or scale.
        DataError: If its data are not there.
    """
    if name not in TABLE:
        raise ConfigError(f"no reproduction is called {name!r}{meant(name, TABLE)} (there are: {', '.join(TABLE)})")
    if scale not in SCALES:
        raise ConfigError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
    module, _, attribute = TABLE[name].target.partition(":")
    make: Callable[[Request], Result] = getattr(import_module(module), attribute)
    return make(Request(name, scale, folder, data_dir, callback))


__all__ = ["TABLE", "Entry", "Request", "Result", "keep", "reproduce"]
