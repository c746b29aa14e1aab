"""The Laplace approximation by laplace-torch: a Gaussian with the curvature of the loss at its minimum."""

from __future__ import annotations

import importlib.util
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UserError, warn
from pocketbayes.base.process_group import ALONE, ProcessGroup
from pocketbayes.likelihoods import Categorical, GaussianNoise, match_target
from pocketbayes.methods.base import Stage, TrainingContext
from pocketbayes.methods.deterministic import Deterministic
from pocketbayes.methods.head_curvature import softmax_curvature
from pocketbayes.methods.sensitivity import largest
from pocketbayes.network import Net, Network
from pocketbayes.posteriors.kronecker import Kronecker
from pocketbayes.posteriors.layout import Layout, evaluating
from pocketbayes.posteriors.lowrank import LowRank
from pocketbayes.posteriors.priors import Normal

MAX_DENSE = 2**14
"""Largest number of weights with a dense covariance (1 GiB)."""
TOLERATED_NLL = 0.1
"""Rise of the NLL by drawing, in units of log(classes), above which a larger prior precision is tried."""
MAX_PRECISION = 1e8
MAX_JACOBIAN = 2**26
"""Largest number of entries of a Jacobian in memory (256 MiB)."""


@dataclass(frozen=True, kw_only=True)
class Laplace(Deterministic):
    """A Laplace approximation, a Gaussian around trained weights (Daxberger et al. 2021).

    `w ~ N(w_MAP, (H + a I)^-1)` with H the generalised Gauss-Newton matrix of the NLL.

    A deterministic network is trained first, unless `fit` is given a trained Network. The posterior covers only the
    layout's weights; with `bayesian_bias=False` the last layer's bias stays a point, and H is that of its weight given
    the bias. Prediction draws weights and runs the network; laplace-torch linearises it by default, which is equal for
    a last layer but not for a subnetwork. Several processes divide the examples and add their matrices.

    Attributes:
        subset: "last-layer", or "subnetwork": the weights with the largest variance under a diagonal Laplace
            approximation (Daxberger et al. 2021b), except weights that no output depends on.
        hessian: "full", "kron" (last layer only) or "diag".
        subnetwork_size: The number of weights in the subnetwork.
        prior_precision: a, or "marglik" for the value with the largest marginal likelihood.
    """

    name = "laplace"
    learns = "weights; then a covariance from curvature"
    subset: Literal["last-layer", "subnetwork"] = "last-layer"
    hessian: Literal["full", "kron", "diag"] = "full"
    subnetwork_size: int = 1000
    prior_precision: float | Literal["marglik"] = "marglik"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("subset", self.subset, ("last-layer", "subnetwork"))
        check_choice("hessian", self.hessian, ("full", "kron", "diag"))
        if (self.subset, self.hessian) == ("subnetwork", "kron"):
            raise UserError("a subnetwork has no Kronecker factors: set hessian='full' or 'diag'")
        if self.subnetwork_size < 1:
            raise UserError(f"subnetwork_size must be at least 1, not {self.subnetwork_size}")
        precision = self.prior_precision
        if precision != "marglik" and not (isinstance(precision, (int, float)) and precision > 0):
            raise UserError(f"prior_precision must be positive or 'marglik', not {precision!r}")

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return training, if still needed, followed by the approximation."""
        if importlib.util.find_spec("laplace") is None:
            raise UserError("Laplace needs laplace-torch: pip install 'pocketbayes[laplace]'")
        if isinstance(model, Network):
            return (Stage("laplace", epochs=0, end=self._end),)
        return (Stage("train", end=self._end),)

    def _end(self, net: Net, run: TrainingContext) -> Network:
        assert isinstance(net, Network)
        problem = _Problem.of(net, run)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # laplace-torch and its imports raise unrelated warnings
            if self.subset == "last-layer":
                fitted, index = self._fit_last_layer(problem)
            else:
                fitted, index = self._fit_subnetwork(problem)
            if self.prior_precision == "marglik":
                fitted.optimize_prior_precision(method="marglik")
            chosen = float(fitted.prior_precision)
            network = self._network(net, fitted, index)
            if self.prior_precision == "marglik" and problem.kind == "classification":
                limit = _drawn_nll(net, run) + TOLERATED_NLL * math.log(problem.outputs)
                while _drawn_nll(network, run) > limit and float(fitted.prior_precision) < MAX_PRECISION:
                    fitted.prior_precision = 10 * float(fitted.prior_precision)
                    network = self._network(net, fitted, index)
        precision = float(fitted.prior_precision)
        if precision > chosen:
            warn(
                f"the marginal likelihood of these {run.examples} examples chose prior precision {chosen:.3g}, with "
                f"which draws predict far worse than the weights themselves: {precision:.3g} is used; the network may "
                "have been trained on more data, so set prior_precision by validation"
            )
        run.note(random_weights=len(index), prior_precision=precision)
        return network

    def _network(self, net: Network, fitted: Any, index: Tensor) -> Network:
        kind = _kronecker if self.hessian == "kron" else _dense
        posterior = kind(net.layout, net.posterior.moments()[0], fitted, index)
        prior = Normal(float(fitted.prior_precision) ** -0.5)
        return net.with_posterior(posterior, prior=prior, propagation="sample").eval()

    def _fit_last_layer(self, problem: _Problem) -> tuple[Any, Tensor]:
        """Return the approximation of a linear head on its input features, on the CPU."""
        layer, head, index = problem.last_layer()
        self._check_dense(len(index))
        closed = problem.kind == "classification" and self.hessian != "full"
        backend = {"backend": softmax_curvature()} if closed else {}
        fitted = _laplace_torch(head, problem.kind, "all", self.hessian, **self._settings(problem), **backend)
        problem.fit(fitted, lambda: problem.features(layer))
        return fitted, index

    def _fit_subnetwork(self, problem: _Problem) -> tuple[Any, Tensor]:
        """Return the approximation for the chosen weights of the whole network."""
        positions = problem.train_layout_only()
        size = min(self.subnetwork_size, len(positions))
        self._check_dense(size)
        diagonal = _laplace_torch(problem.module, problem.kind, "all", "diag", **self._settings(problem))
        problem.fit(diagonal, lambda: problem.batches(len(positions)))
        variance = torch.where(diagonal.H > 0, diagonal.posterior_variance, -1)
        chosen = largest(variance, size)
        fitted = _laplace_torch(
            problem.module,
            problem.kind,
            "subnetwork",
            self.hessian,
            subnetwork_indices=chosen.cpu(),
            **self._settings(problem),
        )
        problem.fit(fitted, lambda: problem.batches(len(positions)))
        return fitted, positions[chosen.cpu()]

    def _settings(self, problem: _Problem) -> dict[str, Any]:
        prior = 1.0 if self.prior_precision == "marglik" else float(self.prior_precision)
        return {"prior_precision": prior, "sigma_noise": problem.noise}

    def _check_dense(self, size: int) -> None:
        if self.hessian == "full" and size > MAX_DENSE:
            raise UserError(
                f"hessian='full' over {size} weights needs a covariance of {size}^2 values: set hessian='kron' (last "
                f"layer) or 'diag', or subset='subnetwork' with a subnetwork_size of at most {MAX_DENSE}"
            )


@torch.no_grad()
def _drawn_nll(network: Network, run: TrainingContext, batches: int = 4, samples: int = 8) -> float:
    """Return the NLL of the mean probabilities over weight draws on some training batches."""
    total, count = 0.0, 0
    with evaluating(network):
        for x, y in itertools.islice(run.batches(), batches):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                probs = torch.stack([network(x).softmax(1) for _ in range(samples)]).mean(0)
            chosen = probs.gather(1, y[:, None]).clamp(min=torch.finfo(probs.dtype).tiny)
            total, count = total - float(chosen.log().sum()), count + len(y)
    return total / count


def _laplace_torch(*args: Any, **settings: Any) -> Any:
    from laplace import Laplace as LaplaceTorch

    return LaplaceTorch(*args, **settings)


def _dense(layout: Layout, mean: Tensor, fitted: Any, index: Tensor) -> LowRank:
    """Return the approximation with a std for each weight, or with a dense covariance F F^T."""
    scale = fitted.posterior_scale
    if scale.ndim == 1:
        std, factor = scale, scale.new_zeros(len(index), 0)
    else:
        std, factor = scale.new_zeros(len(index)), scale
    return LowRank(layout, mean, std.to(mean), factor.to(mean), index.to(mean.device))


def _kronecker(layout: Layout, mean: Tensor, fitted: Any, index: Tensor) -> Kronecker:
    """Return the approximation whose precision has, per slot, eigenvectors R x C and eigenvalues r_i c_j + a."""
    precision = fitted.posterior_precision
    stds, rows, columns = [], [], []
    for values, vectors, prior in zip(precision.eigenvalues, precision.eigenvectors, precision.deltas):
        of_columns = values[1] if len(values) == 2 else values[0].new_ones(1)
        stds.append((values[0][:, None] * of_columns + prior).rsqrt())
        rows.append(vectors[0])
        columns.append(vectors[1] if len(vectors) == 2 else values[0].new_ones(1, 1))
    std, row, column = (torch.cat([part.flatten() for part in parts]).to(mean) for parts in (stds, rows, columns))
    return Kronecker(layout, mean, layout.slots_of(index), std, row, column)


@dataclass(frozen=True)
class _Problem:
    """A trained network and its data, in laplace-torch's terms."""

    module: nn.Module
    network: Network
    run: TrainingContext
    kind: str
    noise: float
    outputs: int = 1

    @classmethod
    def of(cls, network: Network, run: TrainingContext) -> _Problem:
        module, likelihood = network.to_module().eval(), network.likelihood
        with torch.no_grad():
            output = module(next(run.batches())[0])
            if output.ndim != 2:
                raise UserError(f"Laplace needs one row of outputs per example, not shape {tuple(output.shape)}")
            if isinstance(likelihood, Categorical) and likelihood.class_weights is None:
                return cls(module, network, run, "classification", 1.0, output.shape[1])
            if isinstance(likelihood, GaussianNoise) and likelihood.noise != "predicted":
                return cls(module, network, run, "regression", float(likelihood.moments(output)[1].flatten()[0]))
        raise UserError("Laplace needs classes without class weights, or Gaussian noise that is learned or given")

    @property
    def team(self) -> ProcessGroup:
        """The processes that divide the examples, if there are enough for all."""
        return self.run.team if self.run.examples >= self.run.team.size else ALONE

    def fit(self, fitted: Any, make: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        """Fit to the examples of all processes; `make` returns those of this one."""
        fitted.fit(_Loader(make, self.run.examples))
        if self.team.size == 1:
            return

        def total(value: Tensor) -> Tensor:
            return self.team.sum(value.to(self.network.device)).to(value.device)

        fitted.loss = total(torch.as_tensor(fitted.loss))
        if isinstance(fitted.H, Tensor):
            fitted.H = total(fitted.H)
        else:
            fitted.H_facs.kfacs = [[total(factor) for factor in factors] for factors in fitted.H_facs.kfacs]
            fitted.H = fitted.H_facs.decompose(damping=fitted.damping)

    def examples(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return this process's examples of every batch."""
        seen = 0
        for x, y in self.run.batches():
            first = (self.team.rank - seen) % self.team.size
            seen += len(x)
            if first < len(x):
                yield x[first :: self.team.size], y[first :: self.team.size]

    def targets(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the targets in the outputs' shape."""
        return match_target(output, y) if self.kind == "regression" else y

    def last_layer(self) -> tuple[nn.Linear, nn.Module, Tensor]:
        """Return the output layer, a head with its weights, and their positions in the layout."""
        names = {slot.name for slot in self.network.layout.slots}
        called: list[tuple[str, nn.Module, Tensor]] = []
        hooks = [
            module.register_forward_hook(lambda m, _, output, path=path: called.append((path, m, output)))
            for path, module in self.module.named_modules()
            if isinstance(module, nn.Linear) and _join(path, "weight") in names
        ]
        with torch.no_grad():
            output = self.module(next(self.run.batches())[0])
        for hook in hooks:
            hook.remove()
        path, layer, made = called[-1] if called else ("", None, None)
        if not isinstance(layer, nn.Linear) or made is None or not torch.equal(made, output):
            raise UserError(
                f"the output of {type(self.module).__name__} is not that of a linear layer: use subset='subnetwork'"
            )
        own = (_join(path, "weight"), _join(path, "bias"))
        slots = [slot for slot in self.network.layout.slots if slot.name in own]
        head = _Head(layer, random_bias=len(slots) > 1).cpu()
        return layer, head, torch.cat([torch.arange(slot.start, slot.stop) for slot in slots])

    def features(self, layer: nn.Linear) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the layer's inputs and the targets of every batch, on the CPU."""
        seen: list[Tensor] = []
        hook = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        try:
            for x, y in self.examples():
                with torch.no_grad():
                    output = self.module(x)
                yield seen.pop().cpu(), self.targets(output, y).cpu()
        finally:
            hook.remove()

    def train_layout_only(self) -> Tensor:
        """Freeze all but the layout's weights, and return their positions in the module's order."""
        slots = {id(self.module.get_parameter(slot.name)): slot for slot in self.network.layout.slots}
        positions = []
        for parameter in self.module.parameters():
            slot = slots.get(id(parameter))
            parameter.requires_grad_(slot is not None)
            if slot is not None:
                positions.append(torch.arange(slot.start, slot.stop))
        return torch.cat(positions)

    def batches(self, weights: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the data in batches whose Jacobian fits memory."""
        for x, y in self.examples():
            with torch.no_grad():
                output = self.module(x[:1])
            # laplace-torch runs a backward pass per output over the whole batch, so small batches cost less.
            size = min(8, max(1, MAX_JACOBIAN // (weights * output.shape[1])))
            for part, target in zip(x.split(size), y.split(size)):
                yield part, self.targets(output.expand(len(part), -1), target)


class _Head(nn.Module):
    """The last layer alone; its bias is a parameter only if it is random."""

    def __init__(self, layer: nn.Linear, random_bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(layer.in_features, layer.out_features, bias=random_bias)
        self.linear.weight.data = layer.weight.detach().clone()
        offset = torch.zeros_like(layer.weight[:, 0]) if layer.bias is None else layer.bias.detach().clone()
        if random_bias:
            self.linear.bias.data, offset = offset, torch.zeros_like(offset)
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x) + self.offset
        return output


class _Loader:
    """The parts of a DataLoader that laplace-torch uses."""

    def __init__(self, make: Callable[[], Iterator[tuple[Tensor, Tensor]]], examples: int) -> None:
        self.make, self.dataset = make, range(examples)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return self.make()


def _join(path: str, attribute: str) -> str:
    return f"{path}.{attribute}" if path else attribute
