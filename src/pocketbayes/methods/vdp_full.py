"""VDP with full covariance, the predecessor of VDP++, for small networks."""

from __future__ import annotations

from dataclasses import dataclass

from pocketbayes.methods.vdp import DensityPropagation
from pocketbayes.propagation import MOMENTS_FULL


@dataclass(frozen=True, kw_only=True)
class FullCovarianceVDP(DensityPropagation):
    """VDP: mean and full covariance are propagated through the network, d^2 numbers for d activations.

    For chains of linear layers, convolutions, activations, batch norm and pooling; the rest is refused by name, and so
    are covariances beyond a gigabyte. Ten times the time and memory of `VDP` on LeNet-5; there to compare with.
    """

    name = "vdp-full"

    @property
    def propagation(self) -> str:
        """The full-covariance propagation."""
        return MOMENTS_FULL.name
