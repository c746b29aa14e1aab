"""Explanations of predictions: gradient saliency and measures of its quality (captum).

The explained quantity is the mean probability over the posterior, by moments in one pass or by weight draws that are
the same in every call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from pocketbayes.base.errors import UserError
from pocketbayes.base.model_lock import MODEL_LOCK
from pocketbayes.base.randomness import Randomness
from pocketbayes.base.seeds import pass_seed
from pocketbayes.inference.prediction import propagation_of
from pocketbayes.likelihoods import task_of
from pocketbayes.network import Net, members
from pocketbayes.posteriors.gaussian import Gaussian
from pocketbayes.posteriors.layout import evaluating
from pocketbayes.propagation import Ask
from pocketbayes.propagation.readout import read_out


def probabilities(
    net: Net, samples: int = 5, propagation: str | None = None, seed: int = 0
) -> Callable[[Tensor], Tensor]:
    """Return the function x -> p(class | x), (n, classes), differentiable in x and the same at every call.

    Args:
        net: A classifier.
        samples: Weight draws, divided among the networks of a mixture; one pass if nothing is drawn.
        propagation: As in `predict`; not "linear", whose variance has no gradient.
        seed: Of the draws.
    """
    networks = members(net)
    if task_of(networks[0].likelihood) != "classification":
        raise UserError("explanations need a classifier, which this network is not")
    ways = [propagation_of(network, propagation) for network in networks]
    for way in ways:
        if not way.differentiable:
            raise UserError(
                f"propagation={way.name!r} has no gradient with respect to the inputs: use 'moments' or 'sample'"
            )

    def answer(x: Tensor) -> Tensor:
        parts = []
        for number, (network, way) in enumerate(zip(networks, ways)):
            random = way.draws and network.posterior.noise_size > 0
            share = math.ceil(samples / len(networks)) if random else 1
            draws = []
            for index in range(share):
                ask = Ask(propagation=way.name, randomness=Randomness(pass_seed(seed, number * share + index)))
                with MODEL_LOCK, evaluating(network):
                    draws.append(_class_probabilities(network.answer(x, ask)))
            parts.append(torch.stack(draws).mean(0))
        return torch.stack(parts).mean(0)

    return answer


def _class_probabilities(output: Tensor) -> Tensor:
    if isinstance(output, Gaussian):
        return read_out(output.loc, output.variance, how="probit").probs
    probs: Tensor = output.softmax(1)
    return probs


def saliency(net: Net, x: Tensor, target: Tensor | None = None, *, absolute: bool = True, **settings: Any) -> Tensor:
    """Compute |d p_target / d x| for every input value, in the shape of x.

    Args:
        net: A network or mixture.
        x: Inputs (n, ...).
        target: The class explained for each input; None for the predicted one.
        absolute: Drop the sign of the gradient.
        **settings: `samples`, `propagation` and `seed` of `probabilities`.
    """
    answer, x = probabilities(net, **settings), x.to(members(net)[0].device)
    with _captum():
        from captum.attr import Saliency
    inputs = x.detach().clone().requires_grad_()
    explained: Tensor = Saliency(answer).attribute(inputs, _target(answer, x, target), abs=absolute)
    return explained.detach()


def infidelity(
    net: Net, x: Tensor, target: Tensor | None = None, *, noise: float = 0.1, draws: int = 10, **settings: Any
) -> Tensor:
    """Compute `E (e . saliency - (p(x) - p(x - e)))^2` for noise e ~ N(0, noise^2), (n,) (Yeh et al. 2019).

    Lower is better.

    Args:
        net: A network or mixture.
        x: Inputs (n, ...).
        target: As in `saliency`.
        noise: The std of the noise, in the units of x.
        draws: Draws of the noise per input.
        **settings: Of `probabilities`.
    """
    answer, x = probabilities(net, **settings), x.to(members(net)[0].device)
    target = _target(answer, x, target)
    gradient = saliency(net, x, target, absolute=False, **settings)

    def perturb(inputs: Tensor) -> tuple[Tensor, Tensor]:
        change = noise * torch.randn_like(inputs)
        return change, inputs - change

    with _captum():
        from captum.metrics import infidelity as measure
    with torch.no_grad(), _seeded(settings):
        each: Tensor = measure(answer, perturb, x, gradient, target=target, n_perturb_samples=draws)
    return each


def sensitivity_max(
    net: Net, x: Tensor, target: Tensor | None = None, *, radius: float = 0.1, draws: int = 10, **settings: Any
) -> Tensor:
    """Compute max |saliency(x + e) - saliency(x)| / |saliency(x)| over draws of e in a ball, (n,) (Yeh et al. 2019).

    Args:
        net: A network or mixture.
        x: Inputs (n, ...).
        target: As in `saliency`; the same class is explained at every point.
        radius: The radius of the ball in the maximum norm, in the units of x.
        draws: Draws of e per input.
        **settings: Of `probabilities`.
    """
    x = x.to(members(net)[0].device)
    target = _target(probabilities(net, **settings), x, target)

    def explain(inputs: Any, target: Tensor) -> tuple[Tensor]:
        (moved,) = inputs if isinstance(inputs, tuple) else (inputs,)
        return (saliency(net, moved, target, absolute=False, **settings),)

    with _captum():
        from captum.metrics import sensitivity_max as measure
    with _seeded(settings):
        each: Tensor = measure(explain, x, perturb_radius=radius, n_perturb_samples=draws, target=target)
    return each


def _target(answer: Callable[[Tensor], Tensor], x: Tensor, target: Tensor | None) -> Tensor:
    if target is not None:
        return target
    with torch.no_grad():
        return answer(x).argmax(1)


@contextmanager
def _seeded(settings: dict[str, Any]) -> Iterator[None]:
    with Randomness(settings.get("seed", 0)).redirected():
        yield


@contextmanager
def _captum() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UserError("explanations need captum: pip install 'pocketbayes[explain]'") from error
