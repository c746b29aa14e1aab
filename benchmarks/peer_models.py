"""Bayesian networks of other libraries, used as documented; functions take a model and return an action to time.

Weights are drawn as in Bayes by Backprop, which all of them support. bayesian-torch and fastbnns convert a model by
themselves; torch-uncertainty and blitz have layers that replace linear and convolutional ones; IVON is an
optimiser; laplace-torch works on a trained network. Peers are imported on use: one that is missing or
cannot run a model raises an error, which the caller records.
"""

from __future__ import annotations

import copy
import io
import types
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pocketbayes as pb
from networks import classifier
from steps import EXAMPLES, Action, our_step, peer_model, sgd, step_of, thirty_passes, without_gradients

SAMPLES = 30


# -- bayesian-torch ---------------------------------------------------------------------------------------------------


def bayesian_torch_step(model: nn.Module, x: Tensor, y: Tensor) -> Action:
    """Return a step with KL / batch size as in its README, although its KL is a mean over each layer's weights."""
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    peer = bayesian_torch(model).train()
    return step_of(sgd(peer.parameters()), lambda: F.cross_entropy(peer(x), y) + get_kl_loss(peer) / len(x))


def bayesian_torch_summed_step(model: nn.Module, x: Tensor, y: Tensor) -> Action:
    """Return a step with KL / examples and the KL of the ELBO, the sum over all weights."""
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss

    peer = bayesian_torch(model).train()
    for layer in peer.modules():
        if hasattr(layer, "kl_div"):
            layer.kl_div = types.MethodType(_summed_kl, layer)
    return step_of(sgd(peer.parameters()), lambda: F.cross_entropy(peer(x), y) + get_kl_loss(peer) / EXAMPLES)


def _summed_kl(layer: Any, *moments: Tensor) -> Tensor:
    kl: Tensor = type(layer).kl_div(layer, *moments) * moments[0].numel()
    return kl


def bayesian_torch(model: nn.Module) -> nn.Module:
    peer = peer_model(model)
    if peer is None:
        raise ImportError("not installed")
    return peer


# -- torch-uncertainty and blitz --------------------------------------------------------------------------------------


def replaced(model: nn.Module, linear: Callable[..., nn.Module], convolution: Callable[..., nn.Module]) -> nn.Module:
    """Return a copy of the model with a peer's layers in place of linear and convolutional ones."""
    model = copy.deepcopy(model)
    for name, layer in list(model.named_modules()):
        settings: dict[str, Any] = {"bias": getattr(layer, "bias", None) is not None}
        if isinstance(layer, nn.Linear):
            model.set_submodule(name, linear(layer.in_features, layer.out_features, **settings))
        elif isinstance(layer, nn.Conv2d):
            settings |= {key: getattr(layer, key) for key in ("stride", "padding", "dilation", "groups")}
            model.set_submodule(name, convolution(layer.in_channels, layer.out_channels, layer.kernel_size, **settings))
    return model


def torch_uncertainty(model: nn.Module) -> nn.Module:
    from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear

    return replaced(model, BayesLinear, BayesConv2d)


def torch_uncertainty_step(model: nn.Module, x: Tensor, y: Tensor) -> Action:
    from torch_uncertainty.losses import ELBOLoss

    peer = torch_uncertainty(model).train()
    loss = ELBOLoss(peer, nn.CrossEntropyLoss(), kl_weight=1 / EXAMPLES, num_samples=1)
    return step_of(sgd(peer.parameters()), lambda: loss(x, y))


def blitz(model: nn.Module) -> nn.Module:
    from blitz.modules import BayesianConv2d, BayesianLinear

    return replaced(model, BayesianLinear, BayesianConv2d)


def blitz_step(model: nn.Module, x: Tensor, y: Tensor) -> Action:
    from blitz.losses import kl_divergence_from_nn

    peer = blitz(model).train()
    return step_of(sgd(peer.parameters()), lambda: F.cross_entropy(peer(x), y) + kl_divergence_from_nn(peer) / EXAMPLES)


# -- IVON -------------------------------------------------------------------------------------------------------------


def ivon(model: nn.Module) -> tuple[nn.Module, Any]:
    from ivon import IVON

    model = copy.deepcopy(model)
    return model, IVON(model.parameters(), lr=1e-4, ess=EXAMPLES)


def ivon_step(model: nn.Module, x: Tensor, y: Tensor) -> Action:
    model, optimizer = ivon(model.train())

    def step() -> None:
        with optimizer.sampled_params(train=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def ivon_passes(model: nn.Module, x: Tensor) -> Action:
    model, optimizer = ivon(model)

    def one_pass(x: Tensor) -> Tensor:
        with optimizer.sampled_params():
            output: Tensor = model(x)
            return output

    return thirty_passes(one_pass, x)


# -- fastbnns ---------------------------------------------------------------------------------------------------------


def fastbnns(model: nn.Module) -> nn.Module:
    from fastbnns.bnn.base import BNN

    peer: nn.Module = BNN(model)
    for parameter in peer.parameters():
        parameter.data = parameter.data.clone()  # some share memory, so an optimiser cannot update them in place
    return peer


def fastbnns_moments_step(model: nn.Module, x: Tensor, y: Tensor) -> Action:
    """Return a step on the cross-entropy at the mean logits; fastbnns has no loss for Gaussian logits."""
    from fastbnns.bnn.losses import KLDivergence
    from fastbnns.bnn.types import MuVar

    peer, kl = fastbnns(model).train(), KLDivergence()

    def loss() -> Tensor:
        output = peer(MuVar(x))
        return F.cross_entropy(output.mu, y) + output.var.mean() + kl(peer) / EXAMPLES

    return step_of(sgd(peer.parameters()), loss)


def fastbnns_moments(model: nn.Module, x: Tensor) -> Action:
    from fastbnns.bnn.types import MuVar

    peer = fastbnns(model).eval()
    return without_gradients(lambda: peer(MuVar(x)))


# -- Laplace's approximation of the last layer ------------------------------------------------------------------------


def laplace_torch(model: nn.Module, x: Tensor, **how: Any) -> Action:
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    peer = Laplace(copy.deepcopy(model).eval(), "classification", "last_layer", "kron")
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        peer.fit(DataLoader(TensorDataset(x, torch.arange(len(x)) % 10), len(x)))
    return lambda: peer(x, **how)


def our_laplace(model: nn.Module, x: Tensor, **how: Any) -> Action:
    start = classifier(model, pb.Deterministic())
    method = pb.Laplace(hessian="kron", prior_precision=1.0)
    net = pb.fit(method, start, (x, torch.arange(len(x)) % 10), batch_size=len(x), progress=False)
    return lambda: pb.predict(net, x, SAMPLES, **how)


# -- ours, mean-field -------------------------------------------------------------------------------------------------


def our_training_step(method: pb.Method) -> Callable[[nn.Module, Tensor, Tensor], Action]:
    def make(model: nn.Module, x: Tensor, y: Tensor) -> Action:
        return our_step(pb.bayesianize(model, method).train(), x, y, pb.Categorical().nll)

    return make


def our_moments_pass(model: nn.Module, x: Tensor) -> Action:
    """Return a pass that computes only the Gaussian logits, as fastbnns does."""
    net = pb.bayesianize(model, pb.MeanFieldVI()).eval()
    net.propagation = "moments"
    return without_gradients(lambda: net(x))


def our_prediction(propagation: str) -> Callable[[nn.Module, Tensor], Action]:
    def make(model: nn.Module, x: Tensor) -> Action:
        net = pb.bayesianize(model, pb.MeanFieldVI()).eval()
        return lambda: pb.predict(net, x, SAMPLES, propagation)

    return make


STEPS: dict[str, Callable[[nn.Module, Tensor, Tensor], Action]] = {
    "pocketbayes": our_training_step(pb.MeanFieldVI(propagation="sample")),
    "bayesian-torch, its README": bayesian_torch_step,
    "bayesian-torch, KL summed": bayesian_torch_summed_step,
    "torch-uncertainty": torch_uncertainty_step,
    "blitz": blitz_step,
    "ivon": ivon_step,
    "pocketbayes, moments": our_training_step(pb.VDP()),
    "fastbnns, moments": fastbnns_moments_step,
}
"""Training steps."""

SAMPLED: dict[str, Callable[[nn.Module, Tensor], Action]] = {
    "pocketbayes": our_prediction("sample"),
    "bayesian-torch": lambda model, x: thirty_passes(bayesian_torch(model).eval(), x),
    "torch-uncertainty": lambda model, x: thirty_passes(torch_uncertainty(model).eval(), x),
    "blitz": lambda model, x: thirty_passes(blitz(model).eval(), x),
    "ivon": ivon_passes,
    "fastbnns": lambda model, x: thirty_passes(fastbnns(model).eval(), x),
    "pocketbayes, last-layer Laplace": our_laplace,
    "laplace-torch, last layer": lambda model, x: laplace_torch(
        model, x, pred_type="nn", link_approx="mc", n_samples=SAMPLES
    ),
}
"""Predictions from 30 draws of the weights."""

UNSAMPLED: dict[str, Callable[[nn.Module, Tensor], Action]] = {
    "pocketbayes, moments": our_prediction("moments"),
    "pocketbayes, linear": our_prediction("linear"),
    "pocketbayes, moments, logits only": our_moments_pass,
    "fastbnns, moments, logits only": fastbnns_moments,
    "pocketbayes, last-layer Laplace, linear": lambda model, x: our_laplace(model, x, propagation="linear"),
    "laplace-torch, last layer, linear": laplace_torch,
}
"""Predictions without draws of the weights."""
