"""The agreement of SSVI's removal scores: a figure of the paper."""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.methods.sensitivity import largest
from pocketbayes.posteriors.sparse import SCORES, Sparse, removal_score


def removal_overlap(posterior: Sparse, fraction: float = 0.3, scale: float = 1.0) -> Tensor:
    """Compute |A and B| / |A or B| of the weights that two scores would remove, (6, 6) in the order of `SCORES`.

    Args:
        posterior: The present weights.
        fraction: The fraction of every layer to remove.
        scale: l of the exponential scores.
    """
    std = posterior.present_std()
    mean = posterior.mean.detach()
    std = torch.zeros_like(mean) if std is None else std.detach()
    removed = torch.zeros(len(SCORES), len(mean), device=mean.device)
    for row, name in zip(removed, SCORES):
        score = removal_score(name, mean.double(), std.double(), scale, log=True)
        for begin, end in posterior.spans():
            row[begin + largest(-score[begin:end], round(fraction * (end - begin)))] = 1
    both = removed @ removed.T
    sizes = removed.sum(1)
    return both / (sizes[:, None] + sizes - both).clamp(min=1)
