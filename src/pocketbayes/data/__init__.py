"""Data sets by name: `load("cifar10", "train", data_dir)`.

Small image data sets are kept in memory as bytes and are normalised and augmented per batch; large ones are decoded
from disk when fetched. Every data set is described by its `.info`.
"""

from __future__ import annotations

from pocketbayes.base.naming import name_arguments_of
from pocketbayes.data.dataset import Dataset, Info, class_frequencies, class_weights, collate
from pocketbayes.data.inputs import read_inputs, scale_inputs
from pocketbayes.data.registry import folder_of, load, names
from pocketbayes.data.validate import validate_batch

__all__ = [
    "Dataset",
    "Info",
    "class_frequencies",
    "class_weights",
    "collate",
    "folder_of",
    "load",
    "names",
    "read_inputs",
    "scale_inputs",
    "validate_batch",
]

name_arguments_of(__name__)
