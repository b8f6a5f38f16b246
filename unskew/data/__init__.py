"""Data: sources, splits over clients, batches, augmentation."""

from unskew.data.assign import assign
from unskew.data.augment import AUGMENTS, augmentation
from unskew.data.batches import Batches, num_steps, plan
from unskew.data.dataset import Dataset, checked
from unskew.data.federated import ClientIndex, FederatedData, federate, from_manifest, pooled, to_manifest
from unskew.data.skew import Skew, summary
from unskew.data.sources import SOURCES, load
from unskew.data.split import (
    IID,
    SPLITS,
    ByGroup,
    Dirichlet,
    Entangled,
    FromManifest,
    HalfNormal,
    Natural,
    Pathological,
    Quantity,
    Shards,
    Split,
)

__all__ = [
    "AUGMENTS",
    "IID",
    "SOURCES",
    "SPLITS",
    "Batches",
    "ByGroup",
    "ClientIndex",
    "Dataset",
    "Dirichlet",
    "Entangled",
    "FederatedData",
    "FromManifest",
    "HalfNormal",
    "Natural",
    "Pathological",
    "Quantity",
    "Shards",
    "Skew",
    "Split",
    "assign",
    "augmentation",
    "checked",
    "federate",
    "from_manifest",
    "load",
    "num_steps",
    "plan",
    "pooled",
    "summary",
    "to_manifest",
]
