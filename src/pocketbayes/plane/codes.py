"""Entropy-constrained codes: codebook entries are chosen by distance and by the length of their code.

On a line, a value z takes the code k that minimises `(z - c_k)^2 + lam b_k`, with b_k the code length in bits. Centres
and lengths follow from the assignments and unused codes are dropped, so K is a result, not a setting. Searches are by
sorting.

In the plane of means and stds each code is a Gaussian. A weight N(m, s^2) takes the code (c_k, t_k) that minimises
`w ((m - c_k)^2 + 2 (s - t_k)^2) + lam b_k`. With w proportional to 1 / s^2 the distance is, to second order, the KL
divergence between the shared Gaussian and the weight's own; with constant stds these are the codes on a line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

DENSE_RADIUS = 8.0
"""Radius in standard deviations within which the first centres are equally spaced; spacing grows beyond."""
TAIL_GROWTH = 1.1
ROUNDS = 15
MAX_FITTED = 1 << 22
"""Largest number of values that a codebook is fitted to; more would only cost time."""
STD_LEVELS = 4
"""Stds per initial centre."""
PLANE_ROUNDS = 12
MAX_FITTED_IN_PLANE = 1 << 17
"""Largest number of weights that a codebook is fitted to."""
ASSIGNED_AT_ONCE = 1 << 16
MAX_IMPORTANCE = 16.0


def entropy_bits(counts: Tensor) -> float:
    """Compute ``-sum_k p_k log2 p_k`` with ``p = counts / sum counts``, the bits per index of an ideal code."""
    shares = counts[counts > 0].to(torch.float64)
    shares = shares / shares.sum()
    return max(0.0, float(-(shares * shares.log2()).sum()))


@dataclass(frozen=True)
class Codebook:
    """Codes on a line.

    Attributes:
        centres: (K,) ascending.
        bits: (K,) lengths of the codes.
        lam: The squared distance that a bit is worth.
    """

    centres: Tensor
    bits: Tensor
    lam: float

    def __len__(self) -> int:
        return len(self.centres)

    @cached_property
    def _envelope(self) -> tuple[Tensor, Tensor]:
        return lower_envelope(self.centres, self.centres.square() + self.lam * self.bits)

    def boundaries(self) -> tuple[Tensor, Tensor]:
        """Return the codes in use, ascending, and the values that separate them."""
        return self._envelope

    def assign(self, values: Tensor) -> Tensor:
        """Return the code of every value."""
        used, edges = self.boundaries()
        return used[torch.bucketize(values.contiguous(), edges.to(values.dtype))]


def lower_envelope(centres: Tensor, heights: Tensor) -> tuple[Tensor, Tensor]:
    """Find the code that minimises `heights_k - 2 z c_k` for every z.

    Args:
        centres: (K,) ascending.
        heights: (K,).

    Returns:
        The codes (m,) on the envelope, ascending, and the m - 1 values between them.
    """
    c, h = centres.double().tolist(), heights.double().tolist()
    used: list[int] = []
    edges: list[float] = []
    for k in range(len(c)):
        while used:
            last = used[-1]
            if c[k] == c[last]:
                edge = -math.inf if h[k] < h[last] else math.inf
            else:
                edge = (h[k] - h[last]) / (2 * (c[k] - c[last]))
            if edges and edge <= edges[-1]:
                used.pop()
                edges.pop()
                continue
            if not edges and edge == -math.inf:
                used.pop()
                continue
            break
        if used:
            if edge == math.inf:
                continue
            edges.append(edge)
        used.append(k)
    place = centres.device
    return torch.tensor(used, device=place), torch.tensor(edges, dtype=torch.float64, device=place)


def fit_codebook(values: Tensor, lam: float, *, rounds: int = ROUNDS) -> Codebook:
    """Fit centres and code lengths to values by alternating assignments and updates.

    Args:
        values: (n,), any scale.
        lam: The squared distance, in units of the values' variance, that a bit is worth. The returned `lam` is in the
            units of the values.
        rounds: Updates of the codebook.
    """
    line = Line(sample_values(values.detach().flatten(), MAX_FITTED))
    spread = max(line.std, 1e-30)
    lam = lam * spread**2
    centres = first_centres(line, spread, math.sqrt(6 * lam / math.log(2)))
    codebook = Codebook(centres, torch.full_like(centres, math.log2(max(len(centres), 2))), lam)
    for _ in range(rounds):
        codebook = line.renew(codebook)
    return Codebook(codebook.centres.to(values), codebook.bits.to(values), lam)


class Line:
    """Sorted values with prefix sums, so that counts and sums between boundaries take two searches."""

    def __init__(self, values: Tensor) -> None:
        self.sorted = values.double().sort().values
        self.size = len(self.sorted)
        self.sums = torch.cat([self.sorted.new_zeros(1), self.sorted.cumsum(0)])
        self.std = float(self.sorted.square().mean().sqrt()) if self.size else 0.0

    def renew(self, codebook: Codebook) -> Codebook:
        """Return the centres and code lengths that follow from a codebook's assignment."""
        counts, sums = self.between(codebook.boundaries()[1])
        taken = counts > 0
        return Codebook(sums[taken] / counts[taken], -torch.log2(counts[taken] / self.size), codebook.lam)

    def between(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Return the counts and sums of the values between edges."""
        inner = torch.searchsorted(self.sorted, edges)
        places = torch.cat([inner.new_zeros(1), inner, inner.new_full((1,), self.size)])
        return places.diff().double(), self.sums[places].diff()


def sample_values(values: Tensor, most: int) -> Tensor:
    """Return the values, or a sample of about `most` that includes the smallest and the largest."""
    if len(values) <= most:
        return values
    return torch.cat([values[:: -(-len(values) // most)], *(end[None] for end in values.aminmax())])


def first_centres(line: Line, spread: float, step: float) -> Tensor:
    """Place centres at equal distances, optimal for a smooth density, and wider apart in the tails."""
    reach = float(line.sorted.abs().max()) if line.size else 0.0
    inside = torch.arange(1, math.ceil(min(reach, DENSE_RADIUS * spread) / step) + 1, dtype=torch.float64) * step
    far = float(inside[-1]) if len(inside) else 0.0
    tail = []
    while far < reach:
        far = max(far * TAIL_GROWTH, far + step)
        tail.append(far)
    positive = torch.cat([inside, torch.tensor(tail, dtype=torch.float64)])
    return torch.cat([-positive.flip(0), torch.zeros(1, dtype=torch.float64), positive])


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
        codes = [torch.addmm(penalty, part, columns).argmin(1) for part in rows.split(ASSIGNED_AT_ONCE)]
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
    stride = -(-len(means) // MAX_FITTED_IN_PLANE) or 1
    means, stds, importance = means[::stride], stds[::stride], importance[::stride]
    line = fit_codebook(means, lam)
    quantiles = torch.linspace(0, 1, 2 * STD_LEVELS + 1, device=stds.device)[1::2].to(stds)
    levels = torch.cat([stds.new_zeros(1), torch.quantile(stds.double(), quantiles.double()).to(stds)]).unique()
    centres, spreads = (each.flatten() for each in torch.meshgrid(line.centres, levels, indexing="ij"))
    bits = line.bits.repeat_interleave(len(levels)) + torch.log2(torch.tensor(float(len(levels))))
    codebook = PlaneCodebook(centres, spreads, bits.to(means), line.lam)
    for _ in range(PLANE_ROUNDS):
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
