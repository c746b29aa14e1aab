"""A model, the posterior over its weights, and how randomness goes through it."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from threading import RLock, get_ident
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from typing_extensions import Self

from pocketbayes.base.allocation import keep_freed_memory
from pocketbayes.base.arguments import checked_shares
from pocketbayes.base.calibrated import Calibration
from pocketbayes.base.conformal import Conformal
from pocketbayes.base.errors import UserError
from pocketbayes.base.randomness import Randomness
from pocketbayes.data import Info
from pocketbayes.data.model_inputs import ModelInput, call_model
from pocketbayes.posteriors import Census, Posterior
from pocketbayes.posteriors.layout import Layout, evaluating, no_checkpointing, weights_in_place
from pocketbayes.posteriors.priors import Normal, Prior
from pocketbayes.propagation import Ask, find_propagation
from pocketbayes.propagation.base import Call, WeightPropagation
from pocketbayes.propagation.linear.delta import Linearised, linearise
from pocketbayes.propagation.moments import NoRuleError
from pocketbayes.propagation.moments.table import module_of
from pocketbayes.propagation.plan import Plan, count_uses

if TYPE_CHECKING:
    from pocketbayes.inference.health import FirstStds, Health

MODEL_LOCK = RLock()
"""Held while weights are in a model, or its modes are changed, for one answer: threads take turns."""
_NETWORKS: WeakValueDictionary[int, Network] = WeakValueDictionary()


def _plan_while_tracing(network: int, propagation: str, *args: Any, **kwargs: Any) -> Plan:
    """Count on the real inputs while torch.compile traces: the plan is a constant of the graph."""
    return _NETWORKS[network]._count(propagation, args, kwargs)


# What torch.compiler.assume_constant_result does, without importing all of torch._dynamo beforehand.
_plan_while_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]


class Network(nn.Module):
    """The model without its selected weights + posterior + propagation: what one calls, compiles and wraps for DDP.

    Each call runs the model once, as it is, with weights that the posterior supplies.

    Attributes:
        model: The caller's model, copied, its selected weights taken out.
        posterior: The storage of q(w).
        prior: What `kl` is measured against.
        likelihood: The output's noise model, if training or prediction set one.
        propagation: How randomness goes through the network.
        input_var: The variance of noise in the inputs; moment propagation takes it along, the others do not know it.
        method: The registry name of the method that made it, if one did.
        info: What the training data say of themselves (shape, classes, normalisation), if they say anything.
        stopping: The rule of adaptive passes, if one was fitted.
        calibration: A temperature and a variance scale that predictions apply, if `calibrate` has fitted them.
        conformal: Scores of held-out data, if `fit_conformal` has measured any.
        first_stds: Some of the stds that training started from, if any did.
        health: How far the stds have learned, as `fit` recorded it.
    """

    def __init__(
        self,
        model: nn.Module,
        posterior: Posterior,
        *,
        prior: Prior | None = None,
        likelihood: nn.Module | None = None,
        propagation: str = "sample",
        input_var: float = 0.0,
    ) -> None:
        """Take over `model`, from which the layout's weights have been or will be stripped."""
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
        """Copy while no thread has weights in the model; the copy's propagation is the one in use here."""
        with MODEL_LOCK:
            ask = self._current_ask()
            twin: Network = type(self).__new__(type(self))
            memo[id(self)] = twin
            state = {**self.__dict__, "_ask": replace(ask, noise=None, randomness=None), "_asks": {}}
            twin.__setstate__(copy.deepcopy(state, memo))
        return twin

    def __repr__(self) -> str:
        """Print the network with stand-ins for the weights, which some modules look at."""
        weights = [torch.empty(slot.shape, device="meta") for slot in self.layout.slots]
        with MODEL_LOCK, weights_in_place(self.model, self.layout.by_site(weights)):
            return super().__repr__()

    @property
    def propagation(self) -> str:
        """How randomness goes through the network in direct calls: that of `using` within its block and thread."""
        name = self._current_ask().propagation
        assert name is not None
        return name

    @propagation.setter
    def propagation(self, name: str) -> None:
        self._ask = replace(self._ask, propagation=find_propagation(name).name)

    def _current_ask(self) -> Ask:
        if not self._asks:
            return self._ask
        if torch.compiler.is_compiling():  # the compiler cannot ask for a thread's number
            return list(self._asks.values())[-1]
        return self._asks.get(get_ident(), self._ask)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, while no other thread runs the model in a mode of its own."""
        with MODEL_LOCK:
            return super().train(mode)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the tensors, while no thread has weights in the model."""
        with MODEL_LOCK:
            return super().state_dict(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model once under the current propagation; moments and linear answer with a Gaussian."""
        return self._run(_packed(args, kwargs), self._current_ask())

    def answer(self, x: Any, ask: Ask) -> Any:
        """Run one pass as asked, as a call `net(x)` with its hooks; threads may ask differently at once.

        Args:
            x: The model's input; a `Call` for several.
            ask: The settings; without a propagation the network's own.
        """
        if ask.propagation is None:
            ask = replace(ask, propagation=self.propagation)
        if torch.compiler.is_compiling():
            return self._run(x, ask)
        with self._asking(ask):
            return self(*x.args, **x.kwargs) if isinstance(x, Call) else self(x)

    def _run(self, x: Any, ask: Ask) -> Any:
        propagation = find_propagation(ask.propagation)
        if torch.compiler.is_compiling():
            return propagation.run(self, x, ask)
        key = (propagation.name, self.training)
        with MODEL_LOCK:
            if ask.randomness is None or self._draws.get(key) is False:
                return propagation.run(self, x, ask)
            # Models that draw numbers themselves (dropout, stochastic depth) do so from the same source.
            with ask.randomness.redirected() as redirection:
                output = propagation.run(self, x, ask)
            self._draws[key] = redirection.drew
            return output

    def run_with(self, weights: Sequence[Tensor], x: Any) -> Any:
        """Run the model with given weights, one per slot of the layout."""
        args, kwargs = Call.unpack(x)
        with no_checkpointing(), weights_in_place(self.model, self.layout.by_site(weights)):
            try:
                return call_model(self.model, *args, **kwargs)
            except NoRuleError as error:
                raise error.at(module_of(error, self.model)) from error

    def linear(self, x: Tensor, classes: str = "predicted", draws: int = 30, seed: int = 0) -> Linearised:
        """Return the delta method at the posterior mean: see `pocketbayes.propagation.linear.delta.linearise`."""
        with MODEL_LOCK:
            return linearise(self.model, self.posterior, x, classes=classes, draws=draws, seed=seed)

    def run_at(self, flat: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return one pass of the model with the weights of a given vector (n,), for gradients with respect to it."""
        lock = nullcontext() if torch.compiler.is_compiling() else MODEL_LOCK
        with lock, weights_in_place(self.model, self.layout.by_site(self.layout.views(flat))):
            return call_model(self.model, *args, **kwargs)

    def weights(self, x: Any) -> dict[str, Tensor]:
        """Return the weights of one pass by site: values, or Gaussians where a rule will take them."""
        ask = self._current_ask()
        propagation = find_propagation(ask.propagation)
        if not isinstance(propagation, WeightPropagation):
            raise UserError(f"propagation={propagation.name!r} has no weights of a single pass")
        return self.layout.by_site(propagation.weights(self, x, ask))

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Return the plan of the current propagation for these inputs."""
        return self.plan_for(self.propagation, _packed(args, kwargs))

    def plan_for(self, propagation: str, x: Any) -> Plan:
        """Return which weights may stay in the form that a propagation prefers, counted once per mode."""
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
        """Forget what earlier passes showed of the model, for one whose flow has changed."""
        self._plans.clear()
        self._draws.clear()

    def draws_nothing(self, propagation: str) -> bool:
        """Return whether earlier passes in this mode have shown that the model draws no random numbers itself."""
        return self._draws.get((propagation, self.training)) is False

    def forget_draws(self) -> None:
        """Look again whether the model draws random numbers itself, as one may that changes as it trains."""
        self._draws.clear()

    @contextmanager
    def using(
        self, propagation: str | None = None, *, noise: Tensor | None = None, randomness: Randomness | None = None
    ) -> Iterator[Network]:
        """Choose how this thread's direct calls `net(x)` run within a block.

        Args:
            propagation: How randomness goes through the network; None leaves it.
            noise: For weight samples, the noise of every draw.
            randomness: What passes draw from; None for torch's global generator.
        """
        name = self.propagation if propagation is None else find_propagation(propagation).name
        with self._asking(replace(self._ask, propagation=name, noise=noise, randomness=randomness)):
            yield self

    @contextmanager
    def _asking(self, ask: Ask) -> Iterator[None]:
        """Set the settings of this thread's direct calls."""
        thread = get_ident()
        before = self._asks.get(thread)
        self._asks[thread] = ask
        try:
            yield
        finally:
            if before is None:
                del self._asks[thread]
            else:
                self._asks[thread] = before

    @contextmanager
    def predicting(self) -> Iterator[None]:
        """Hold the decoded weights, and the model in evaluation mode, for one thread's passes without gradients."""
        with MODEL_LOCK, torch.no_grad(), self.posterior.frozen(), evaluating(self):
            yield

    def place(self, x: ModelInput) -> ModelInput:
        """Return inputs where the network is, and real numbers in its own type: arrays are often float64."""
        if not x.is_floating_point():
            return x.to(self.device)
        point = next(self.model.parameters(), None)
        return x.to(self.device, self.posterior.held_moments()[0].dtype if point is None else point.dtype)

    def kl(self) -> Tensor:
        """Compute KL(q || prior) in nats, a true sum over the random weights."""
        return self.posterior.kl(self.prior)

    def to_module(self, weights: Literal["mean", "sample"] = "mean") -> nn.Module:
        """Return a plain copy of the model with its weights put back: the mean, or one draw."""
        with MODEL_LOCK:
            model = copy.deepcopy(self.model)
        with torch.no_grad():
            flat = self.posterior.moments()[0] if weights == "mean" else self.posterior.sample()
        self.layout.write(model, flat)
        return model

    def census(self) -> Census:
        """Count what is stored, the model's point parameters and buffers included."""
        with MODEL_LOCK:
            outside = list(self.model.state_dict().values())
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
        """Where the posterior lives."""
        return next(itertools.chain(self.posterior.parameters(), self.posterior.buffers())).device

    @property
    def is_random(self) -> bool:
        """Whether two passes differ."""
        return find_propagation(self.propagation).draws and self.posterior.noise_size > 0

    @property
    def has_stds(self) -> bool:
        """Whether any weight is random, however that goes through the network."""
        return bool((self.posterior.moments()[1] > 0).any())


class Mixture(nn.Module):
    """Networks that answer together: `p(y | x) = sum_k weight_k p(y | x, network_k)`.

    Attributes:
        networks: The members.
        weights: The share of each member in the answer, a sum of 1; None for equal shares.
        stopping: The rule of adaptive passes, if one was fitted.
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
        """Return each member's weight times the number of members: exactly 1 where all are equal."""
        return [1.0] * len(self) if self.weights is None else [len(self) * weight for weight in self.weights]

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the outputs of one pass of each network, stacked along a new first axis."""
        return torch.stack([network(*args, **kwargs) for network in self])

    def kl(self) -> Tensor:
        """Return the sum of the networks' KL divergences."""
        return torch.stack([network.kl() for network in self]).sum()

    def census(self) -> Census:
        """Count what all members store together."""
        first, *rest = (network.census() for network in self)
        return sum(rest, start=first)


Net = Network | Mixture


def _packed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the one positional argument itself, or all of them together."""
    return args[0] if len(args) == 1 and not kwargs and not isinstance(args[0], Call) else Call(args, kwargs)


def members(net: Net) -> list[Network]:
    """Return the networks of a mixture, or the one network.

    Raises:
        UserError: If it is neither.
    """
    if not isinstance(net, (Network, Mixture)):
        raise UserError(f"a Network is needed, not a {type(net).__name__}: pb.bayesianize(model, method) makes one")
    return list(net) if isinstance(net, Mixture) else [net]


def shares(net: Net) -> list[float]:
    """Return what each network of `members(net)` counts: 1 on average."""
    return net.shares() if isinstance(net, Mixture) else [1.0]
