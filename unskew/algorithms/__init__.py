"""One file per paper.  TABLE names what exists; nothing is imported until it is asked for."""

from typing import NamedTuple


class Entry(NamedTuple):
    """Where an algorithm is, and one line about it."""

    target: str
    about: str


TABLE: dict[str, Entry] = {
    "fedavg": Entry("unskew.algorithms.fedavg:FedAvg", "average locally trained models (McMahan et al. 2017)"),
    "fedprox": Entry("unskew.algorithms.fedprox:fedprox", "FedAvg with a pull to the received model (Li et al. 2020)"),
}
