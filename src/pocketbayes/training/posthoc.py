"""Stds without training, from curvature and a prior precision chosen by NLL."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from pocketbayes.base.errors import UserError
from pocketbayes.base.progress import Display, Show, display
from pocketbayes.data.batches import Data, Source, as_source, batches, size_of
from pocketbayes.data.model_inputs import Inputs
from pocketbayes.inference.evaluation import evaluate, loss_of
from pocketbayes.likelihoods import default_likelihood
from pocketbayes.methods import PBN, MeanFieldVI, Method, Start, WeightSharing
from pocketbayes.methods.curvature import curvature_stds, diagonal_curvature, set_stds
from pocketbayes.network import Network

Judges: TypeAlias = DataLoader | tuple[Tensor, Tensor]
MAX_EXAMPLES, MIN_EXAMPLES = 1024, 128
"""Numbers of examples for curvature: fewer for large networks, whose passes are expensive."""
WEIGHTS_FOR_MAX_EXAMPLES = 250_000
JUDGES_PER_EXAMPLE = 0.5
"""Number of these examples whose NLL chooses the prior precision."""
DRAWS, DRAWS_LARGE = 4, 2
"""Weight samples per example for choosing the prior precision: fewer for large networks. All candidates see the same
noise, so that few show which is better."""
PRIOR_SCALES = (0.003, 0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
"""Candidate prior stds, in units of the weights' root mean square, tried until the NLL has clearly risen."""
PAST_LEAST = 1.05
"""Rise of the NLL above its minimum at which wider priors are no longer tried."""


def with_curvature_stds(
    method: Method,
    model: nn.Module,
    data: Data,
    *,
    val: Data | None = None,
    examples: float | None = None,
    delta: float | None = None,
    seed: int = 0,
    progress: Show = None,
) -> Network:
    """Build the network of a method with `std = 1 / sqrt(N h + delta)`, h the diagonal Fisher information.

    The arguments are those of `bayesianize`; the method's storage is mean-field, row-wise, partial, sparse or shared.
    """
    source = as_source(data)
    count = float(size_of(source)) if examples is None else float(examples)
    if delta is not None and not delta > 0:
        raise UserError(f"delta, the prior precision, must be positive, not {delta}")
    start = Start.of(model, method.bayesian_bias, method.select)
    most = min(MAX_EXAMPLES, max(MIN_EXAMPLES, MAX_EXAMPLES * WEIGHTS_FOR_MAX_EXAMPLES // start.layout.size))
    used = min(size_of(source), most)
    if not count >= used:
        raise UserError(f"examples={examples} must be at least {used}, the number of examples used for curvature")
    field = MeanFieldVI(bayesian_bias=method.bayesian_bias, select=method.select).init(model).eval()
    if field.likelihood is None:
        field.likelihood = default_likelihood(source)
    scale = float(start.mean.square().mean().sqrt()) or 1.0
    deltas = [(factor * scale) ** -2 for factor in PRIOR_SCALES] if delta is None else [delta]
    with display(progress) as bar:
        bar.begin("curvature", used)
        curvature, _ = diagonal_curvature(field, _some(source, most, field.device), seed=seed, on_chunk=bar.advance)
        networks = (
            _network(method, model, field, curvature, curvature_stds(curvature, count, tried)) for tried in deltas
        )
        if delta is not None:
            return next(networks)
        judges = _head(source if val is None else as_source(val), round(JUDGES_PER_EXAMPLE * most))
        bar.begin("prior precision", len(deltas))
        return _choose(networks, judges, DRAWS if most == MAX_EXAMPLES else DRAWS_LARGE, seed, bar)


def _choose(networks: Iterator[Network], judges: Judges, draws: int, seed: int, bar: Display) -> Network:
    """Return the network with the lowest NLL; stop once it has clearly risen."""
    best: tuple[float, Network] | None = None
    for network in networks:
        nll = loss_of(evaluate(network, judges, samples=draws, seed=seed))
        bar.advance()
        if best is None or nll < best[0]:
            best = nll, network
        elif not nll <= best[0] + (PAST_LEAST - 1) * abs(best[0]):
            break
    assert best is not None
    return best[1]


def _network(method: Method, model: nn.Module, field: Network, curvature: Tensor, std: Tensor) -> Network:
    """Build the network of a method with given stds."""
    set_stds(field.posterior, std)
    if isinstance(method, WeightSharing):
        network = method.init(field)
    elif isinstance(method, PBN):
        network = method.at_most_sensitive(field, curvature)
        set_stds(network.posterior, std)
    else:
        made = method.init(model)
        if not isinstance(made, Network):
            raise UserError(f"{method.name!r} makes a mixture: estimate the stds of its members one by one")
        set_stds(made.posterior, std)
        network = made
    network.likelihood = field.likelihood
    return network.eval()


def _some(source: Source, most: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    seen = 0
    for x, y in batches(source, 64, shuffle_seed=0):
        if seen >= most:
            return
        yield x[: most - seen].to(device), y[: most - seen].to(device)
        seen += len(x)


def _head(source: Source, most: int) -> Judges:
    parts = list(itertools.islice(batches(source, 64, shuffle_seed=1), max(most // 64, 1)))
    if isinstance(parts[0][0], Inputs):  # batches of sequences may differ in length
        return DataLoader(parts, batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
