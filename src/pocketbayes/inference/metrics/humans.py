"""Agreement with soft human labels, such as CIFAR-10H."""

from __future__ import annotations

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.inference.metrics.accumulators import SMALLEST, Sums


class HumanAgreement(Sums):
    """The distance of predicted probabilities from the fractions of people who chose each class."""

    def update(self, probs: Tensor, humans: Tensor) -> None:
        """Add a batch.

        Args:
            probs: (n, classes) predicted probabilities.
            humans: (n, classes) fractions of people, or numbers of them.
        """
        if probs.shape != humans.shape or probs.ndim != 2:
            raise UserError(
                f"predictions {tuple(probs.shape)} and human labels {tuple(humans.shape)} must both be (n, classes)"
            )
        p, h = probs.detach().double(), humans.detach().to(probs.device).double()
        votes = h.sum(1, keepdim=True)
        if not bool(((h >= 0).all() & (votes > 0).all() & votes.isfinite().all()).item()):
            raise UserError("human labels must not be negative, nor all 0 for an image")
        h = h / votes
        self._add(
            count=torch.tensor(len(p)),
            cross_entropy=-(h * p.clamp(min=SMALLEST).log()).sum(),
            total_variation=0.5 * (h - p).abs().sum(),
            human_entropy=torch.special.entr(h).sum(),
        )

    def compute(self) -> dict[str, float]:
        """Return means over images.

        `cross_entropy` (`-sum_c h_c log p_c` in nats), `total_variation` (`sum_c |h_c - p_c| / 2`, 0 to 1), and
        `human_entropy`, the cross entropy of the human labels themselves, which is the minimum.
        """
        self._require_examples()
        names = ("cross_entropy", "total_variation", "human_entropy")
        return {"count": float(self.sums["count"]), **{name: self._mean(name) for name in names}}
