"""Monte Carlo dropout: dropout that stays active in prediction."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from pocketbayes.base.errors import UserError
from pocketbayes.methods.base import Method, Start
from pocketbayes.network import Network
from pocketbayes.posteriors.dropped import Dropped, input_units


@dataclass(frozen=True, kw_only=True)
class MCDropout(Method):
    """Dropout that stays active in prediction (Gal & Ghahramani 2016).

    It minimises the NLL under dropout of the inputs of every layer but the first.

    The prior is the run's `weight_decay`, and the KL is 0. Training drops inputs per example. Prediction draws one mask
    per pass for all examples, with the same distribution for each; `propagation="local"` draws masks per example there,
    too. The model's own dropout layers are separate: active in training and off in prediction.

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
        """Return a network with the model's weights."""
        start = Start.of(model, self.bayesian_bias, self.select)
        posterior = Dropped(start.layout, start.mean, self.rate, input_units(start.model, start.layout))
        if not posterior.noise_size:
            raise UserError(
                f"{type(start.model).__name__} has only one layer: dropout needs a second one, because the inputs "
                "of the first are the data"
            )
        return start.network(posterior, propagation="local")
