"""Entropy-constrained codebooks of means and stds."""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.plane.codes import entropy_bits, fit_codebook, fit_plane_codebook, importance_of


def pairs(n: int = 4000) -> tuple[Tensor, Tensor]:
    """Return means, and stds that are small where means are large."""
    torch.manual_seed(0)
    means = 0.1 * torch.randn(n)
    return means, 0.02 + 0.05 * torch.exp(-30 * means.abs()) * torch.rand(n)


def test_pairs_minimise_distance_and_code_length() -> None:
    means, stds = pairs(300)
    importance = importance_of(stds)
    codebook = fit_plane_codebook(means, stds, importance, 0.05)
    distance = (means[:, None] - codebook.centres).square() + 2 * (stds[:, None] - codebook.stds).square()
    every = importance[:, None] * distance + codebook.lam * codebook.bits
    taken = every.gather(1, codebook.assign(means, stds, importance)[:, None])[:, 0]
    torch.testing.assert_close(taken, every.min(1).values, rtol=1e-3, atol=1e-6)


def test_pairs_of_constant_stds_lie_on_a_line() -> None:
    means, _ = pairs()
    stds = torch.full_like(means, 0.03)
    plane = fit_plane_codebook(means, stds, importance_of(stds), 0.05)
    line = fit_codebook(means, 0.05)
    codes = plane.assign(means, stds, torch.ones_like(means)), line.assign(means)
    bits = [entropy_bits(torch.bincount(each)) for each in codes]
    errors = [float((means - book.centres[own]).square().mean()) for book, own in zip((plane, line), codes)]
    assert abs(bits[0] - bits[1]) < 0.1
    assert errors[0] < 1.1 * errors[1]
    torch.testing.assert_close(plane.stds, torch.full_like(plane.stds, 0.03))


def test_pairs_follow_stds_as_bits_become_cheap() -> None:
    means, stds = pairs()
    importance = importance_of(stds)
    errors = []
    for lam in (0.3, 0.003):
        codebook = fit_plane_codebook(means, stds, importance, lam)
        codes = codebook.assign(means, stds, importance)
        errors.append(float((stds - codebook.stds[codes]).square().mean() / stds.var()))
    assert errors[1] < 0.5 * errors[0]


def test_pairs_keep_no_stds_without_stds() -> None:
    """Most stds of a sparse or partial posterior are 0."""
    means, stds = pairs()
    stds = torch.where(torch.arange(len(means)) % 10 == 0, stds, 0)
    codebook = fit_plane_codebook(means, stds, importance_of(stds), 0.003)
    spread = codebook.stds[codebook.assign(means, stds, importance_of(stds))]
    assert float(spread[stds == 0].square().mean()) < 0.05 * float(stds[stds > 0].square().mean())
