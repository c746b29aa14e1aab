"""One pass of a network as a module that torch's exporter can trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from pocketbayes.base.calibration import Calibration
from pocketbayes.data.model_inputs import Inputs, ModelInput
from pocketbayes.likelihoods import Likelihood
from pocketbayes.network import Network
from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.propagation import Ask, find_propagation
from pocketbayes.propagation.readout import Readout, read_out

Mode = Literal["sample", "moments", "mean"]


class OnePass(nn.Module):
    """One pass of every network, with means and variances over the networks."""

    def __init__(
        self,
        networks: Sequence[Network],
        mode: Mode,
        readout: Readout,
        weights: Sequence[float] | None,
        x: ModelInput,
    ) -> None:
        super().__init__()
        self.names = tuple(x.kwargs) if isinstance(x, Inputs) else None
        self.weights = None if weights is None else list(weights)
        self.networks = nn.ModuleList(networks)
        self.mode, self.readout = mode, readout
        self.noise_sizes = [n.posterior.noise_size if find_propagation(mode).draws else 0 for n in networks]
        likelihoods = [network.likelihood for network in networks]
        self.noises = [own for own in likelihoods if isinstance(own, Likelihood) and own.task != "classification"]
        self.varying = 1 if self.noises else 2

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Return probabilities and logits, their variances within the pass, and the expected entropy.

        For regression: the mean, its variance within the pass, and the noise variance. The values are the model's
        inputs, then the noise if weights are drawn.
        """
        parts: Sequence[Tensor | None] = [None] * len(self.networks)
        if sum(self.noise_sizes):
            values, noise = values[:-1], values[-1]
            parts = noise.split(self.noise_sizes)
        x: ModelInput = values[0]
        if self.names is not None:
            unnamed = len(values) - len(self.names)
            x = Inputs(tuple(values[:unnamed]), dict(zip(self.names, values[unnamed:])))
        outputs = []
        for network, part in zip(self.networks, parts):
            assert isinstance(network, Network)
            outputs.append(network.answer(x, Ask(propagation=propagation_of(network, self.mode), noise=part)))
        return self._real(outputs) if self.noises else self._classes(outputs)

    def _classes(self, outputs: list[Tensor]) -> tuple[Tensor, ...]:
        logits, logits_var = _moments(outputs)
        network = self.networks[0]
        assert isinstance(network, Network)
        calibration = network.calibration or Calibration()
        if logits_var is not None:
            logits_var = logits_var * calibration.variance_scale
        elif calibration.temperature != 1:
            logits = logits / calibration.temperature
        if logits_var is None:
            log = torch.log_softmax(logits, 2)
            probs, var, aleatoric = log.exp(), None, -(log.exp() * log).sum(2)
        else:
            reads = [read_out(mean, v, how=self.readout) for mean, v in zip(logits, logits_var)]
            probs, var = torch.stack([r.probs for r in reads]), torch.stack([r.var for r in reads])
            aleatoric = torch.stack([_entropy(r.probs) - r.information for r in reads])
        return (*self._over_networks(probs, var, logits, logits_var), self._mean(aleatoric))

    def _real(self, outputs: list[Tensor]) -> tuple[Tensor, ...]:
        output, var = _moments(outputs)
        means, noises = zip(*(own.moments(each) for own, each in zip(self.noises, output)))
        mean = torch.stack(means)
        var = None if var is None else var[..., : mean.shape[-1]]  # the rest may be predicted noise
        noise_vars = [noise.square().expand_as(each) for noise, each in zip(noises, means)]
        return (*self._over_networks(mean, var), self._mean(torch.stack(noise_vars)))

    def _mean(self, values: Tensor) -> Tensor:
        """Average over the networks, along the first axis."""
        if self.weights is None:
            return values.mean(0)
        return torch.stack([weight * value for weight, value in zip(self.weights, values)]).sum(0)

    def _over_networks(self, *moments: Tensor | None) -> tuple[Tensor, ...]:
        """Combine (mean, var) pairs: the mean of means; the variance of means plus the mean variance."""
        means, variances = [], []
        for values, var in zip(moments[::2], moments[1::2]):
            assert values is not None
            mean = self._mean(values)
            spread = self._mean((values - mean).square())
            means.append(mean)
            variances.append(spread if var is None else spread + self._mean(var))
        return (*means, *variances)


def _moments(outputs: list[Tensor]) -> tuple[Tensor, Tensor | None]:
    """Return the networks' outputs along a new first axis, and their variances if there are any."""
    if isinstance(outputs[0], Gaussian):
        gaussians = [output for output in outputs if isinstance(output, Gaussian)]
        return torch.stack([g.loc for g in gaussians]), torch.stack([g.variance for g in gaussians])
    return torch.stack(outputs), None


def _entropy(probs: Tensor) -> Tensor:
    return -(probs * probs.clamp_min(torch.finfo(probs.dtype).tiny).log()).sum(1)


def propagation_of(network: Network, mode: Mode) -> str:
    """Return the propagation of a mode; networks trained with exact moments of activations keep them."""
    trained, requested = find_propagation(network.propagation), find_propagation(mode)
    return trained.name if isinstance(trained, type(requested)) else requested.name
