"""Data: sources, splits over clients, batches, augmentation."""

from unskew.data.dataset import Dataset
from unskew.data.federated import federate, to_manifest
from unskew.data.sources import load
from unskew.data.split import ByGroup, Dirichlet, FromManifest, Natural

__all__ = ["ByGroup", "Dataset", "Dirichlet", "FromManifest", "Natural", "federate", "load", "to_manifest"]
