"""Data: sources, splits over clients, batches, augmentation."""

from unskew.data.arrays import checked
from unskew.data.dataset import Dataset
from unskew.data.federated import federate, to_manifest
from unskew.data.sources import load
from unskew.data.split import ByGroup, Dirichlet, FromManifest, Natural

__all__ = ["ByGroup", "Dataset", "Dirichlet", "FromManifest", "Natural", "checked", "federate", "load", "to_manifest"]
