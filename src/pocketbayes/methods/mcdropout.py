"""Monte Carlo dropout: dropout that stays on at prediction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import Method, Start
from pocketbayes.network import Network
from pocketbayes.posteriors.dropped import Dropped, input_units


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    """Dropout that stays on when the network answers (Gal & Ghahramani 2016).

    min NLL under dropout of every layer's inputs but the first's: Dropped x local.

    The prior is the run's `weight_decay`: the KL is 0. Training drops the inputs of each example apart. Prediction
    draws one mask a pass for all examples, which gives each the same distribution; `propagation="local"` draws apart
    there too. The model's own dropout layers are no part of this: they are on in training and off at prediction.

    Attributes:
        rate: p, the probability that an input unit is dropped.
    """

    name = "mc-dropout"
    rate: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.rate < 1:
            raise UserError(f"rate must lie between 0 and 1, not {self.rate}")
        if self.antithetic:
            raise UserError("antithetic noise needs weight samples in training: dropout draws masks per example")

    def init(self, model: nn.Module) -> Network:
        """Return the model's own weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        posterior = Dropped(start.layout, start.mean, self.rate, input_units(start.model, start.layout))
        if not posterior.noise_size:
            raise UserError(
                f"{type(start.model).__name__} has only one layer: dropout needs a second one, because the inputs "
                "of the first are the data"
            )
        return Network(start.model, posterior, likelihood=start.likelihood, propagation="local")
