"""A model with a posterior over its weights and a propagation of their uncertainty."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from threading import get_ident
from typing import Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from typing_extensions import Self

from pocketbayes.base.allocation import keep_freed_memory, keep_freed_vectors
from pocketbayes.base.arguments import checked_shares
from pocketbayes.base.calibration import Calibration, Conformal
from pocketbayes.base.errors import UserError
from pocketbayes.base.model_lock import MODEL_LOCK, copy_model
from pocketbayes.base.randomness import Randomness
from pocketbayes.data import Info
from pocketbayes.data.model_inputs import ModelInput
from pocketbayes.likelihoods import Likelihood
from pocketbayes.posteriors import Census, Posterior
from pocketbayes.posteriors.health import FirstStds, Health
from pocketbayes.posteriors.layout import Layout, evaluating, no_checkpointing, weights_in_place
from pocketbayes.posteriors.model_call import Call, naming_misfits
from pocketbayes.posteriors.priors import Normal, Prior
from pocketbayes.propagation import Ask, find_propagation
from pocketbayes.propagation.base import WeightPropagation
from pocketbayes.propagation.linear.delta import Linearised, linearise
from pocketbayes.propagation.moments.table import NoRuleError, module_of
from pocketbayes.propagation.plan import Plan, count_uses

_NETWORKS: WeakValueDictionary[int, Network] = WeakValueDictionary()


def _plan_while_tracing(network: int, propagation: str, *args: Any, **kwargs: Any) -> Plan:
    """Make the plan from the real inputs while torch.compile traces: it is a constant of the graph."""
    return _NETWORKS[network]._count(propagation, args, kwargs)


# Equivalent to torch.compiler.assume_constant_result, without importing all of torch._dynamo.
_plan_while_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Network(nn.Module):
    """A model whose selected weights come from a posterior; call, compile or wrap it like any module.

    Each call runs the unchanged model once with weights that the posterior supplies.

    Attributes:
        model: A copy of the caller's model without its selected weights.
        posterior: The storage of q(w).
        prior: The prior of `kl`.
        likelihood: The noise model of the outputs, if training or prediction set one.
        propagation: How uncertainty passes through the network.
        input_var: The variance of input noise; only moment propagation uses it.
        method: The registry name of the method that made the network, if any.
        info: The description of the training data (shape, classes, normalisation), if known.
        stopping: The rule of adaptive passes, if `fit_stopping` fitted one.
        calibration: The temperature and variance scale that predictions apply, if `calibrate` fitted them.
        conformal: Scores of held-out data, if `fit_conformal` measured them.
        first_stds: A sample of the stds at the start of training, if it was recorded.
        health: How much the stds changed in training, as `fit` recorded it.
    """

    def __init__(
        self,
        model: nn.Module,
        posterior: Posterior,
        *,
        prior: Prior | None = None,
        likelihood: Likelihood | None = None,
        propagation: str = "sample",
        input_var: float = 0.0,
    ) -> None:
        """Take ownership of `model` and strip the layout's weights from it."""
        super().__init__()
        keep_freed_memory()
        self.layout: Layout = posterior.layout
        self.layout.strip(model)
        self.model = model
        self.posterior = posterior
        self.prior = prior or Normal(1.0)
        self.likelihood = likelihood
        self._ask = Ask(propagation=find_propagation(propagation).name, classes="all")
        self._asks: dict[int, Ask] = {}
        self.input_var = float(input_var)
        self.method: str | None = None
        self.info: Info | None = None
        self.stopping: dict[str, Any] | None = None
        self.calibration: Calibration | None = None
        self.conformal: Conformal | None = None
        self.first_stds: FirstStds | None = None
        self.health: Health | None = None
        self._plans: dict[tuple[str, bool], Plan] = {}
        self._draws: dict[tuple[str, bool], bool] = {}
        _NETWORKS[id(self)] = self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _NETWORKS[id(self)] = self

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        """Copy while no thread has weights in the model; the copy has the propagation in use here."""
        with MODEL_LOCK:
            ask = self._current_ask()
            twin: Network = type(self).__new__(type(self))
            memo[id(self)] = twin
            state = {**self.__dict__, "_ask": replace(ask, noise=None, randomness=None), "_asks": {}}
            twin.__setstate__(copy.deepcopy(state, memo))
        return twin

    def __repr__(self) -> str:
        """Describe the network with placeholders for the weights, which some modules read in their own description."""
        weights = [torch.empty(slot.shape, device="meta") for slot in self.layout.slots]
        with MODEL_LOCK, weights_in_place(self.model, self.layout.by_site(weights)):
            return super().__repr__()

    @property
    def propagation(self) -> str:
        """The propagation of direct calls; within a block of `using`, the one chosen there for this thread."""
        name = self._current_ask().propagation
        assert name is not None
        return name

    @propagation.setter
    def propagation(self, name: str) -> None:
        self._ask = replace(self._ask, propagation=find_propagation(name).name)

    def _current_ask(self) -> Ask:
        if not self._asks:
            return self._ask
        if torch.compiler.is_compiling():  # the compiler cannot trace a thread's number
            return list(self._asks.values())[-1]
        return self._asks.get(get_ident(), self._ask)

    def train(self, mode: bool = True) -> Self:
        """Set the mode while no other thread runs the model."""
        if mode:
            self._draws.clear()  # in training the model may begin to draw random numbers itself
            keep_freed_vectors(self.layout.size * torch.float32.itemsize)
        with MODEL_LOCK:
            return super().train(mode)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the tensors while no thread has weights in the model."""
        with MODEL_LOCK:
            return super().state_dict(*args, **kwargs)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Return the parameters while no thread has weights in the model."""
        with MODEL_LOCK:
            return iter(list(super().named_parameters(*args, **kwargs)))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model once under the current propagation; moments and linear return a Gaussian."""
        x = args[0] if len(args) == 1 and not kwargs else Call(args, kwargs)
        return self._run(x, self._current_ask())

    def answer(self, x: Any, ask: Ask) -> Any:
        """Run one pass with the given settings, hooks included; threads may use different settings concurrently.

        Args:
            x: The model's input, or a `Call` for several inputs.
            ask: The settings; a propagation of None means the network's own.
        """
        if ask.propagation is None:
            ask = replace(ask, propagation=self.propagation)
        if torch.compiler.is_compiling():
            return self._run(x, ask)
        with self._asking(ask):
            return self(*x.args, **x.kwargs) if isinstance(x, Call) else self(x)

    def _run(self, x: Any, ask: Ask) -> Any:
        propagation = find_propagation(ask.propagation or self.propagation)
        if torch.compiler.is_compiling():
            return propagation.run(self, x, ask)
        key = (propagation.name, self.training)
        with MODEL_LOCK, self.naming_misfits(x):
            if ask.randomness is None or self._draws.get(key) is False:
                return propagation.run(self, x, ask)
            # Models that draw random numbers themselves (dropout, stochastic depth) use the same generator.
            with ask.randomness.redirected() as redirection:
                output = propagation.run(self, x, ask)
            self._draws[key] = redirection.drew
            return output

    def naming_misfits(self, x: Any) -> AbstractContextManager[None]:
        """Return a block whose errors become one line if the plain model at the posterior mean fails as well."""
        run = lambda: self.run_with(self.layout.views(self.posterior.moments()[0]), x)  # noqa: E731
        return naming_misfits(x, run, evaluating(self), self.info)

    def run_with(self, weights: Sequence[Tensor], x: Any) -> Any:
        """Run the model with given weights, one per slot of the layout."""
        args, kwargs = Call.unpack(x)
        with no_checkpointing():
            try:
                return self.layout.run(self.model, weights, *args, **kwargs)
            except NoRuleError as error:
                raise error.at(module_of(error, self.model)) from error

    def linear(self, x: Tensor, classes: str = "predicted", draws: int = 30, seed: int = 0) -> Linearised:
        """Return the delta method at the posterior mean: see `pocketbayes.propagation.linear.delta.linearise`."""
        with MODEL_LOCK:
            return linearise(self.model, self.posterior, x, classes=classes, draws=draws, seed=seed)

    def run_at(self, flat: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the model once with the weights of a vector (n,), for gradients with respect to that vector."""
        with nullcontext() if torch.compiler.is_compiling() else MODEL_LOCK:
            return self.layout.run(self.model, flat, *args, **kwargs)

    def weights(self, x: Any) -> list[Tensor]:
        """Return the weights of one pass, one per slot: values, or Gaussians where a rule accepts them."""
        propagation = find_propagation(self.propagation)
        if not isinstance(propagation, WeightPropagation):
            raise UserError(f"propagation={propagation.name!r} has no weights of a single pass")
        return propagation.weights(self, x, self._current_ask())

    def plan_for(self, propagation: str, x: Any) -> Plan:
        """Return which weights may keep the form that a propagation prefers; counted once per mode."""
        key = (propagation, self.training)
        if key not in self._plans:
            args, kwargs = Call.unpack(x)
            if torch.compiler.is_compiling():
                return _plan_while_tracing(id(self), propagation, *args, **kwargs)
            self._plans[key] = self._count(propagation, args, kwargs)
        return self._plans[key]

    def _count(self, propagation: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Plan:
        known = find_propagation(propagation)
        assert isinstance(known, WeightPropagation)
        with torch.no_grad():
            mean = self.posterior.moments()[0]
        return count_uses(self.model, self.layout, mean, known.rules(self.posterior), args, kwargs)

    def forget_plan(self) -> None:
        """Discard what earlier passes recorded about the model, after its control flow has changed."""
        self._plans.clear()
        self._draws.clear()

    def draws_nothing(self, propagation: str) -> bool:
        """Return whether earlier passes in this mode showed that the model itself draws no random numbers."""
        return self._draws.get((propagation, self.training)) is False

    @contextmanager
    def using(
        self, propagation: str | None = None, *, noise: Tensor | None = None, randomness: Randomness | None = None
    ) -> Iterator[Network]:
        """Choose how this thread's direct calls `net(x)` run within a block.

        Args:
            propagation: How uncertainty passes through the network; None for no change.
            noise: The noise of weight samples, the same for every draw.
            randomness: The generators of the passes; None for torch's global generator.
        """
        name = self.propagation if propagation is None else find_propagation(propagation).name
        with self._asking(replace(self._ask, propagation=name, noise=noise, randomness=randomness)):
            yield self

    @contextmanager
    def _asking(self, ask: Ask) -> Iterator[None]:
        """Set the settings of this thread's direct calls."""
        before = self._asks.get(thread := get_ident())
        self._asks[thread] = ask
        try:
            yield
        finally:
            if before is None:
                del self._asks[thread]
            else:
                self._asks[thread] = before

    @contextmanager
    def predicting(self, x: Any) -> Iterator[None]:
        """Hold the decoded weights and evaluation mode for a thread's passes over x without gradients."""
        with MODEL_LOCK, self.naming_misfits(x), torch.no_grad(), self.posterior.frozen(), evaluating(self):
            yield

    def place(self, x: ModelInput) -> ModelInput:
        """Move inputs to the network's device and floats to its dtype, since arrays are often float64."""
        if not x.is_floating_point():
            return x.to(self.device)
        point = next(self.model.parameters(), None)
        return x.to(self.device, self.posterior.held_moments()[0].dtype if point is None else point.dtype)

    def with_posterior(self, posterior: Posterior, **settings: Any) -> Network:
        """Return a network with another posterior, which takes the model over, and changed settings of `Network`."""
        settings = {"prior": self.prior, "likelihood": self.likelihood, "propagation": self.propagation} | settings
        net = Network(self.model, posterior, **settings)
        net.info, net.method = self.info, self.method
        return net

    def kl(self) -> Tensor:
        """Compute KL(q || prior) in nats, a true sum over the random weights."""
        return self.posterior.kl(self.prior)

    def to_module(self, weights: Literal["mean", "sample"] = "mean") -> nn.Module:
        """Return a plain copy of the model whose weights are the posterior mean or one draw."""
        model = copy_model(self.model)
        with torch.no_grad():
            flat = self.posterior.moments()[0] if weights == "mean" else self.posterior.sample()
        self.layout.write(model, flat)
        return model

    def points(self) -> dict[str, Tensor]:
        """Return the model's parameters and buffers outside the posterior, while no thread has weights in it."""
        with MODEL_LOCK:
            return dict(self.model.state_dict())

    def census(self) -> Census:
        """Count the stored values, including the model's point parameters and buffers."""
        outside = list(self.points().values())
        points = Census(
            weights=0,
            stored={},
            random=0,
            trainable=sum(p.numel() for p in self.parameters() if p.requires_grad)
            - sum(p.numel() for p in self.posterior.parameters() if p.requires_grad),
            points=sum(t.numel() for t in outside),
            memory_bytes=sum(t.numel() * t.element_size() for t in outside),
        )
        return self.posterior.census() + points

    @property
    def device(self) -> torch.device:
        """The device of the posterior."""
        return next(itertools.chain(self.posterior.parameters(), self.posterior.buffers())).device

    @property
    def is_random(self) -> bool:
        """Whether two passes differ."""
        return find_propagation(self.propagation).draws and self.posterior.noise_size > 0

    @property
    def has_stds(self) -> bool:
        """Whether any weight is random, whatever the propagation."""
        return bool((self.posterior.moments()[1] > 0).any())


class Mixture(nn.Module):
    """A mixture of networks: `p(y | x) = sum_k weight_k p(y | x, network_k)`.

    Attributes:
        networks: The members.
        weights: The weight of each member, summing to 1; None for equal weights.
        stopping: The rule of adaptive passes, if `fit_stopping` fitted one.
    """

    def __init__(self, networks: Sequence[Network], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        if not networks:
            raise UserError("a mixture needs at least one network")
        self.networks = nn.ModuleList(networks)
        self.weights = None if weights is None else checked_shares(weights, len(networks))
        self.stopping: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Network]:
        return iter(self.networks)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.networks)

    def shares(self) -> list[float]:
        """Return each member's weight times the number of members, exactly 1 where all are equal."""
        return [1.0] * len(self) if self.weights is None else [len(self) * weight for weight in self.weights]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the outputs of one pass of each network, stacked along a new first axis."""
        return torch.stack([network(*args, **kwargs) for network in self])

    def kl(self) -> Tensor:
        """Return the sum of the networks' KL divergences."""
        return torch.stack([network.kl() for network in self]).sum()

    def census(self) -> Census:
        """Count the stored values of all members together."""
        first, *rest = (network.census() for network in self)
        return sum(rest, start=first)


Net = Network | Mixture


def members(net: Net) -> list[Network]:
    """Return the networks of a mixture, or the one network.

    Raises:
        UserError: If it is neither.
    """
    if not isinstance(net, (Network, Mixture)):
        raise UserError(f"expected a Network, not a {type(net).__name__}: make one with pb.bayesianize(model, method)")
    return list(net) if isinstance(net, Mixture) else [net]
