"""What a method is: hyperparameters, how a network starts, and the stages of its training."""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.base.process_group import Team
from pocketbayes.base.registry import Registry
from pocketbayes.network import Mixture, Net, Network
from pocketbayes.posteriors.layout import Layout, refuse_unsupported
from pocketbayes.posteriors.priors import Empirical, Normal, Prior, ScaleMixture

EMPIRICAL_BETA = 0.02
"""The weight of the KL from the empirical prior."""


Annealing = Literal["constant", "linear-up", "linear-down", "warm-up"]


class TrainingContext(Protocol):
    """The parts of a run that a stage may use."""

    seed: int
    examples: int
    team: Team

    def batches(self, shuffle: bool = False, turn: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Return one pass over the training data, on the network's device.

        Args:
            shuffle: Takes an order that the seed decides instead of their own.
            turn: Another order for every turn.
        """

    def note(self, **figures: Any) -> None:
        """Record figures with the metrics and show them as a line."""


@dataclass(frozen=True)
class Stage:
    """A part of training with a network, settings and epochs of its own.

    Attributes:
        name: What progress and logs call it.
        epochs: Its epochs; None for the run's.
        settings: Training settings that differ from the run's, unless the caller chose them.
        fixed: Training settings that hold whatever the caller chose.
        method: Whose objective and steps the stage follows, if not those of the run's method.
        begin: Makes the network that the stage trains, from what came before.
        network: The part that is trained: the whole, or a member of a mixture.
        end: Makes the result of the stage.
        step: Something in place of an optimiser step, see `Method.replace_step`.
        after_step: Called with the network, the optimiser, the number of steps that are over, and the stage's total.
        after_epoch: Called with the network and the epoch's number; returns figures for the epoch's record.

    The last three are the method's own where a stage has none.
    """

    name: str
    epochs: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    method: Method | None = None
    begin: Callable[[Net, TrainingContext], Net] | None = None
    network: Callable[[Net], Network] = lambda net: _the_network(net)
    end: Callable[[Net, TrainingContext], Net] | None = None
    step: Callable[..., float | None] | None = None
    after_step: Callable[[Network, torch.optim.Optimizer, int, int], None] | None = None
    after_epoch: Callable[[Network, int], Mapping[str, Any] | None] | None = None


METHODS: Registry[Any] = Registry("method")
"""What makes a method, by registry name; a user's method joins by being defined with a `name`."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A point on the grid of storage and propagation, plus a schedule.

    Attributes:
        bayesian_bias: Makes biases random too.
        select: A regular expression: the parameters whose names it is found in are covered by the posterior, and no
            others. None for the weights of linear, convolution, recurrent and attention layers.
        train_samples: Passes per training step.
        antithetic: Draws the passes of a step in pairs of opposite noise (weight samples only).
    """

    name: ClassVar[str]
    learns: ClassVar[str] = "weights"
    """What training sets, as `pocketbayes list methods` shows it."""
    bayesian_bias: bool = False
    select: str | None = None
    train_samples: int = 1
    antithetic: bool = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = isinstance(vars(cls).get("name"), str) and not cls.__module__.startswith("pocketbayes.")
        if own:  # the package's own are listed, in order and with their presets, in `methods/__init__.py`
            METHODS.join(cls.name, cls)

    def __post_init__(self) -> None:
        try:
            re.compile(self.select or "")
        except re.error as error:
            raise UserError(f"select={self.select!r} is not a regular expression: {error}") from None
        if self.train_samples < 1:
            raise UserError(f"train_samples must be at least 1, not {self.train_samples}")
        if self.antithetic and self.train_samples % 2:
            raise UserError(f"antithetic noise comes in pairs: train_samples must be even, not {self.train_samples}")

    @abstractmethod
    def init(self, model: nn.Module) -> Net:
        """Return the untrained network. The model, or a trained Network that the method builds on, is copied."""

    def start(self, model: nn.Module) -> Net:
        """Return what training starts from: `init`, unless the first stage trains another kind of network."""
        return self.init(model)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return the parts of training, in order.

        Args:
            model: What the caller gave to `fit`: a Network has been trained, so that a method may leave out its own
                first training.
        """
        return (Stage("train"),)

    def kl_weight(self, progress: float) -> float:
        """Return beta, the weight of KL / N, at a fraction of the epochs."""
        return 0.0

    def make_optimizer(self, network: Network, lr: float, steps: int, examples: int) -> torch.optim.Optimizer | None:
        """Build an optimiser of the method's own; None for that of the settings.

        Args:
            network: The network of the stage.
            lr: The rate in the settings; each parameter group keeps it as `base_lr`, which schedules scale.
            steps: The steps of the stage.
            examples: The number of training examples.
        """
        return None

    def replace_step(
        self,
        net: Network,
        run: TrainingContext,
        batch: Sequence[tuple[Tensor, Tensor]],
        optimizer: torch.optim.Optimizer,
        step: int,
        steps: int,
        weight: float = 1.0,
    ) -> float | None:
        """Something in place of an optimiser step, such as a change of the posterior's structure.

        Whatever it does must be the same on every rank: gradients are this rank's until they are reduced. Resumed runs
        repeat it exactly if it depends on the network's tensors, the random generators and its arguments only.

        Args:
            net: The network in training, its gradients cleared.
            run: The run.
            batch: The step's batch, in the parts that are held in memory at once.
            optimizer: Its state may be changed along.
            step: The number of steps of the stage that are over.
            steps: The stage's total.
            weight: What this process's part of the batch counts beside those of the others: 1 where all are equally
                large, 0 where no example was left for it, which then has one for company.

        Returns:
            The batch's NLL if the step is replaced; None for a step as usual.
        """
        return None

    def after_step(  # noqa: B027 (most methods do nothing here)
        self, net: Network, optimizer: torch.optim.Optimizer, step: int, steps: int
    ) -> None:
        """Act on the network after every optimiser step; `steps` is the stage's total."""

    def after_epoch(self, net: Network, stage: str, epoch: int) -> Mapping[str, Any] | None:
        """Act on the network after every epoch of a stage; return figures for the epoch's record."""
        return None


def kl_weight(progress: float, beta: float, annealing: Annealing = "constant", start: float | None = None) -> float:
    """Return the weight of the KL at a point of training.

    constant: `beta`. linear-up, linear-down: from `start` (0, or 0.2 as in PBN) to `beta`. warm-up: `beta min(2
    progress, 1)`, as in SSVI.

    Args:
        progress: The fraction of the epochs that are over, in [0, 1].
        beta: The final weight.
        annealing: The schedule.
        start: The initial weight of the linear schedules.
    """
    if annealing == "constant":
        return beta
    if annealing == "warm-up":
        return beta * min(2 * progress, 1.0)
    if annealing in ("linear-up", "linear-down"):
        first = start if start is not None else (0.0 if annealing == "linear-up" else 0.2)
        return first + (beta - first) * progress
    raise UnknownNameError("annealing", annealing, ("constant", "linear-up", "linear-down", "warm-up"))


@dataclass(frozen=True, kw_only=True)
class VariationalMethod(Method):
    """A method that minimises NLL + beta KL / N.

    Attributes:
        prior: "empirical": normal, with the variance `mean(mean^2 + std^2)` for each layer, recomputed at every step;
            "normal"; "scale-mixture"; or "pretrained": normal, centred on the weights the network starts from.
            None: "normal" where `prior_std` is given, else "empirical".
        prior_std: The std of the normal prior, and of the mixture's wide part; None for 1.
        beta: The weight of the KL. None: 1, the evidence lower bound, for a prior that is given, and 0.02 for the
            empirical one, which was chosen on validation data (docs/learning.md).
        annealing: How beta is reached. None: "warm-up" where beta is left to the default, else "constant".
        beta_start: Where the linear annealings start.
    """

    learns: ClassVar[str] = "means and stds, by gradients"
    prior: str | None = None
    prior_std: float | None = None
    beta: float | None = None
    annealing: Annealing | None = None
    beta_start: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        prior = self.prior or ("empirical" if self.prior_std is None else "normal")
        warm = self.beta is None and prior == "empirical"
        beta = self.beta if self.beta is not None else EMPIRICAL_BETA if warm else 1.0
        resolved: dict[str, Any] = {
            "prior": prior,
            "prior_std": 1.0 if self.prior_std is None else self.prior_std,
            "beta": beta,
            "annealing": self.annealing or ("warm-up" if warm else "constant"),
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        self.kl_weight(0.0)
        if self.prior not in (known := ("empirical", "normal", "pretrained", "scale-mixture")):
            raise UnknownNameError("prior", self.prior, known)
        if not (beta >= 0 and resolved["prior_std"] > 0):
            raise UserError(
                f"beta must not be negative and prior_std must be positive, not {self.beta} and {self.prior_std}"
            )

    def kl_weight(self, progress: float) -> float:
        """Beta under the method's annealing."""
        assert self.beta is not None
        assert self.annealing is not None
        return kl_weight(progress, self.beta, self.annealing, self.beta_start)

    def make_prior(self, mean: Tensor, layout: Layout) -> Prior:
        """Build the prior of a network whose weights start at `mean`."""
        if self.prior == "empirical":
            return Empirical([slot.size for slot in layout.slots])
        assert self.prior_std is not None
        if self.prior == "scale-mixture":
            return ScaleMixture(std1=self.prior_std)
        return Normal(self.prior_std, centre=mean if self.prior == "pretrained" else None)


@dataclass(frozen=True, kw_only=True)
class DerivedMethod(Method):
    """A method that makes something of what another trains.

    Attributes:
        method: The other: a method, or its registry name.
    """

    method: Method | str = "map"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bayesian_bias or self.select or self.antithetic or self.train_samples != 1:
            names = "bayesian_bias, select, train_samples and antithetic"
            raise UserError(f"{self.name}: {names} are settings of its method=")

    @property
    def base(self) -> Method:
        """The other method."""
        from pocketbayes.methods import make

        return make(self.method) if isinstance(self.method, str) else self.method


@dataclass(frozen=True)
class Start:
    """What a method begins with: a model of its own, its weights as a flat vector, and stds if there are any."""

    model: nn.Module
    layout: Layout
    mean: Tensor
    std: Tensor | None
    likelihood: nn.Module | None

    @classmethod
    def of(cls, model: nn.Module, bayesian_bias: bool = False, select: str | None = None) -> Start:
        """Build from a plain model, or from a Network trained by another method."""
        if isinstance(model, Mixture):
            raise UserError("a method starts from one network, not from a mixture: give one of its members")
        if isinstance(model, Network):
            with torch.no_grad():
                mean, std = (moment.clone() for moment in model.posterior.moments())
            known = std if bool((std > 0).any()) else None
            for slot in model.layout.slots:
                if select is not None and re.search(select, slot.name) is None:
                    raise UserError(
                        f"select={select!r} leaves out {slot.name!r}, which the given Network's posterior covers: its "
                        "choice of weights is kept; start from net.to_module() to choose anew"
                    )
            return cls(copy.deepcopy(model.model), model.layout, mean, known, copy.deepcopy(model.likelihood))
        refuse_unsupported(model)  # some of it cannot be copied either
        model = copy.deepcopy(model)
        chosen = None
        if select is not None:
            names = [name for name, _ in model.named_parameters()]
            if not any(re.search(select, name) for name in names):
                some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
                raise UserError(f"select={select!r} matches no parameter: the names are {some}")
            chosen = lambda name, _: re.search(select, name) is not None  # noqa: E731
        layout = Layout.of(model, select=chosen, bayesian_bias=bayesian_bias)
        return cls(model, layout, layout.read(model), None, None)


def _the_network(net: Net) -> Network:
    assert isinstance(net, Network), "a mixture's stages name the member they train"
    return net
