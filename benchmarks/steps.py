"""The timed actions: training steps and predictions of a plain network, of ours and of bayesian-torch's."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from contextlib import redirect_stdout

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb

Action = Callable[[], object]
EXAMPLES = 50_000
"""The number of examples that the KL is divided by."""


def sgd(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)  # type: ignore[arg-type]


def step_of(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Action:
    """Return an optimiser step on a loss."""

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def deterministic_step(model: nn.Module, x: Tensor, y: Tensor) -> Action:
    return step_of(sgd(model.parameters()), lambda: F.cross_entropy(model(x), y))


def our_step(
    net: pb.Network, x: Tensor, y: Tensor, nll: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
) -> Action:
    """Return a step on NLL + KL / N."""
    optimizer = pb.Training(optimizer="sgd", lr=1e-4).make_optimizer(net)
    return step_of(optimizer, lambda: nll(net(x), y) + net.kl() / EXAMPLES)


def peer_model(model: nn.Module) -> nn.Module | None:
    """Return the model converted by bayesian-torch, if it is installed."""
    try:
        from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn
    except ImportError:
        return None
    model = copy.deepcopy(model)
    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -5.0}
    with redirect_stdout(io.StringIO()):
        dnn_to_bnn(model, {**settings, "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
    return model


def without_gradients(action: Action) -> Action:
    def run() -> object:
        with torch.no_grad():
            return action()

    return run


def thirty_passes(model: Callable[[Tensor], Tensor], x: Tensor) -> Action:
    return without_gradients(lambda: torch.stack([model(x).softmax(1) for _ in range(30)]).mean(0))
