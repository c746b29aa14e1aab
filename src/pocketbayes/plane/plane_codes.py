"""Entropy-constrained codes in the plane of means and stds: each code is a Gaussian.

A weight N(m, s^2) takes the code (c_k, t_k) that minimises `w ((m - c_k)^2 + 2 (s - t_k)^2) + lam b_k`. With w
proportional to 1 / s^2 the distance is, to second order, the KL divergence between the shared Gaussian and the weight's
own; with constant stds these are the codes on a line.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pocketbayes.plane.codes import fit_codebook

STD_LEVELS = 4
"""Stds per initial centre."""
ROUNDS = 12
FITTED = 1 << 17
"""Largest number of weights that a codebook is fitted to."""
CHUNK = 1 << 16
MAX_IMPORTANCE = 16.0


@dataclass(frozen=True)
class PlaneCodebook:
    """Codes in the plane.

    Attributes:
        centres: (K,) ascending.
        stds: (K,).
        bits: (K,) lengths of the codes.
        lam: The squared distance that a bit is worth.
    """

    centres: Tensor
    stds: Tensor
    bits: Tensor
    lam: float

    def __len__(self) -> int:
        return len(self.centres)

    def assign(self, means: Tensor, stds: Tensor, importance: Tensor) -> Tensor:
        """Return the code of every Gaussian; the three arguments have one shape."""
        columns = torch.stack([self.centres, self.stds, self.centres.square() + 2 * self.stds.square()])
        rows = torch.stack([-2 * importance * means, -4 * importance * stds, importance], -1).view(-1, 3)
        penalty = self.lam * self.bits
        codes = [torch.addmm(penalty, part, columns).argmin(1) for part in rows.split(CHUNK)]
        return torch.cat(codes).view(means.shape)


def importance_of(stds: Tensor) -> Tensor:
    """Return weights proportional to 1 / std^2, bounded, with median 1; all 1 if most stds are 0."""
    positive = stds[stds > 0]
    if not len(positive) or len(positive) < 0.5 * len(stds):
        return torch.ones_like(stds)
    ratio = (positive.median() / stds.clamp(min=1e-30)).square()
    return ratio.clamp(1 / MAX_IMPORTANCE, MAX_IMPORTANCE)


def fit_plane_codebook(means: Tensor, stds: Tensor, importance: Tensor, lam: float) -> PlaneCodebook:
    """Fit centres, stds and code lengths, and drop unused codes.

    Args:
        means: (n,).
        stds: (n,).
        importance: (n,) factors of the distance.
        lam: The squared distance, in units of the means' variance, that a bit is worth.
    """
    stride = -(-len(means) // FITTED) or 1
    means, stds, importance = means[::stride], stds[::stride], importance[::stride]
    line = fit_codebook(means, lam)
    quantiles = torch.linspace(0, 1, 2 * STD_LEVELS + 1, device=stds.device)[1::2].to(stds)
    levels = torch.cat([stds.new_zeros(1), torch.quantile(stds.double(), quantiles.double()).to(stds)]).unique()
    centres, spreads = (each.flatten() for each in torch.meshgrid(line.centres, levels, indexing="ij"))
    bits = line.bits.repeat_interleave(len(levels)) + torch.log2(torch.tensor(float(len(levels))))
    codebook = PlaneCodebook(centres, spreads, bits.to(means), line.lam)
    for _ in range(ROUNDS):
        codes = codebook.assign(means, stds, importance)
        counts = torch.bincount(codes, minlength=len(codebook))
        mass = torch.bincount(codes, importance, minlength=len(codebook))
        sums = [torch.bincount(codes, importance * each, minlength=len(codebook)) for each in (means, stds)]
        taken = counts > 0
        centres, spreads = ((total[taken] / mass[taken]).to(means) for total in sums)
        bits = -torch.log2(counts[taken] / len(means)).to(means)
        order = centres.argsort()
        codebook = PlaneCodebook(centres[order], spreads[order], bits[order], line.lam)
    return codebook
