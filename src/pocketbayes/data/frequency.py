"""Class frequencies and class weights."""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.data.dataset import Dataset

_AT_ONCE = 16
"""Rows per read, since images of segmentation are large."""


def class_frequencies(dataset: Dataset) -> Tensor:
    """Return the fraction of labels or pixels of each class, (classes,), without the ignored label."""
    info = getattr(dataset, "info", None)
    if info is None:
        raise UserError(f"class frequencies need a data set of pb.data.load, not a {type(dataset).__name__}")
    if info.classes is None:
        raise UserError(f"data set {info.name!r} is a {info.task}: it has no classes to count")
    counts = torch.zeros(info.classes, dtype=torch.int64)
    for start in range(0, len(dataset), _AT_ONCE):
        labels = dataset.__getitems__(range(start, min(start + _AT_ONCE, len(dataset))))[1].flatten()
        counted = labels if info.ignore_index is None else labels[labels != info.ignore_index]
        counts += torch.bincount(counted, minlength=info.classes)
    return counts / counts.sum().clamp(min=1)


def class_weights(dataset: Dataset) -> Tensor:
    """Compute `w_c = 1 / ln(1.02 + p_c)`, p_c the frequency of class c (Paszke et al. 2016), at most 50."""
    return 1 / (1.02 + class_frequencies(dataset)).log()
