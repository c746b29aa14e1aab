"""The interface of methods: hyperparameters, initial networks and stages of training."""

from __future__ import annotations

import copy
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from pocketbayes.base.arguments import check_choice
from pocketbayes.base.errors import UnknownNameError, UserError
from pocketbayes.base.model_lock import copy_model
from pocketbayes.base.naming import check_fields
from pocketbayes.base.process_group import ProcessGroup
from pocketbayes.base.registry import Registry
from pocketbayes.likelihoods import Likelihood
from pocketbayes.models.registry import recognise
from pocketbayes.network import Mixture, Net, Network
from pocketbayes.posteriors import Posterior
from pocketbayes.posteriors.layout import Layout, refuse_unsupported
from pocketbayes.posteriors.priors import Empirical, Normal, Prior, ScaleMixture

EMPIRICAL_BETA = 0.02
"""The default weight of the KL to the empirical prior."""


Annealing = Literal["constant", "linear-up", "linear-down", "warm-up"]


class TrainingContext(Protocol):
    """The parts of a run that a stage may use."""

    seed: int
    examples: int
    team: ProcessGroup

    def batches(self, shuffle: bool = False, turn: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Return one pass over the training data, on the network's device.

        Args:
            shuffle: Shuffle by the seed instead of keeping the data's order.
            turn: The number of the shuffle.
        """

    def note(self, **figures: Any) -> None:
        """Record figures with the metrics and show them as a line."""


@dataclass(frozen=True)
class Stage:
    """A part of training with its own network, settings and epochs.

    Attributes:
        name: The name in progress and logs.
        epochs: The number of epochs; None for the run's.
        settings: Default training settings of the stage, which the caller may override.
        fixed: Training settings that the caller cannot override.
        method: The method whose objective and steps the stage uses, if not the run's.
        begin: Makes the network of the stage from the result of the previous one.
        network: Returns the network to train if it is a member of a mixture.
        end: Makes the result of the stage.
        step: Replaces an optimiser step (see `Method.replace_step`).
        after_step: Called with the network, the optimiser, the number of finished steps, and the stage's total.
        after_epoch: Called with the network and the epoch's number; returns figures for the epoch's record.

    The last three are the method's own where a stage has none.
    """

    name: str
    epochs: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    method: Method | None = None
    begin: Callable[[Net, TrainingContext], Net] | None = None
    network: Callable[[Net], Network] | None = None
    end: Callable[[Net, TrainingContext], Net] | None = None
    step: Callable[..., float | None] | None = None
    after_step: Callable[[Network, torch.optim.Optimizer, int, int], None] | None = None
    after_epoch: Callable[[Network, int], Mapping[str, Any] | None] | None = None

    def trained_network(self, net: Net) -> Network:
        """Return the network to train."""
        network = net if self.network is None else self.network(net)
        assert isinstance(network, Network), "a mixture's stages name the member they train"
        return network


MAX_TRAIN_SAMPLES = 1000
METHODS: Registry[Any] = Registry("method")
"""Constructors of methods by registry name; a user's method is added when it is defined with a `name`."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A combination of posterior and propagation with a training schedule.

    Attributes:
        bayesian_bias: Also make biases random.
        select: A regular expression for the names of the posterior's parameters; None for the weights of linear,
            convolution, recurrent and attention layers.
        train_samples: Passes per training step.
        antithetic: Draw the passes of a step in pairs of opposite noise (weight samples only); with one pass per step
            each half of a batch is a pass, unless the network has batch norm. None for the method's choice.
    """

    name: ClassVar[str]
    learns: ClassVar[str] = "weights"
    """What training learns, as `pocketbayes list methods` shows it."""
    bayesian_bias: bool = False
    select: str | None = None
    train_samples: int = 1
    antithetic: bool | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = isinstance(vars(cls).get("name"), str) and not cls.__module__.startswith("pocketbayes.")
        if own:  # the package's own are listed, in order and with their presets, in `methods/__init__.py`
            METHODS.join(cls.name, cls)

    def __post_init__(self) -> None:
        check_fields(self)
        try:
            re.compile(self.select or "")
        except re.error as error:
            raise UserError(f"select={self.select!r} is not a regular expression: {error}") from None
        if not 1 <= self.train_samples <= MAX_TRAIN_SAMPLES:
            raise UserError(f"train_samples must lie between 1 and {MAX_TRAIN_SAMPLES}, not {self.train_samples}")
        if self.antithetic and self.train_samples > 1 and self.train_samples % 2:
            raise UserError(f"antithetic noise needs pairs: train_samples must be 1 or even, not {self.train_samples}")

    @abstractmethod
    def init(self, model: nn.Module) -> Net:
        """Return the untrained network. The model, or a trained Network that the method builds on, is copied."""

    def start(self, model: nn.Module) -> Net:
        """Return the network that training starts from; `init`, unless the first stage trains another kind."""
        return self.init(model)

    def stages(self, model: nn.Module) -> Sequence[Stage]:
        """Return the stages of training, in order.

        Args:
            model: The model given to `fit`; if it is a Network, it is trained already, and a method may skip its first
                stage.
        """
        return (Stage("train"),)

    def kl_weight(self, progress: float) -> float:
        """Return beta, the weight of KL / N, at a fraction of the epochs."""
        return 0.0

    def make_optimizer(self, network: Network, lr: float, steps: int, examples: int) -> torch.optim.Optimizer | None:
        """Build the method's own optimiser; None for that of the settings.

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
        """Replace an optimiser step, for example by a change of the posterior's structure.

        It must act equally on every rank; gradients are local until they are reduced. Resumed runs repeat it exactly if
        it depends only on the network's tensors, the random generators and its arguments.

        Args:
            net: The network in training, with cleared gradients.
            run: The run.
            batch: The step's batch, split into parts that fit memory.
            optimizer: The optimiser, whose state may be changed.
            step: The number of finished steps of the stage.
            steps: The stage's total.
            weight: The weight of this process's part of the batch: 1 if all have the same size, 0 if it has no example
                of its own and runs one extra so that collective calls match.

        Returns:
            The batch's NLL if the step is replaced; None for a normal step.
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
        prior: "empirical", normal with variance `mean(mean^2 + std^2)` per layer, recomputed at every step; "normal";
            "scale-mixture"; or "pretrained", normal and centred on the initial weights. None for "normal" if
            `prior_std` is given, else "empirical".
        prior_std: The std of the normal prior, and of the mixture's wide component; None for 1.
        beta: The weight of the KL. None for 1, the evidence lower bound, with a given prior, and
            `empirical_beta` with the empirical one, chosen on validation data (docs/learning.md).
        annealing: The schedule of beta; None for "warm-up" with the default beta, else "constant".
        beta_start: The initial value of linear schedules.
    """

    learns: ClassVar[str] = "means and stds, by gradients"
    empirical_beta: ClassVar[float] = EMPIRICAL_BETA
    prior: str | None = None
    prior_std: float | None = None
    beta: float | None = None
    annealing: Annealing | None = None
    beta_start: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        prior = self.prior or ("empirical" if self.prior_std is None else "normal")
        warm = self.beta is None and prior == "empirical"
        beta = self.beta if self.beta is not None else self.empirical_beta if warm else 1.0
        resolved: dict[str, Any] = {
            "prior": prior,
            "prior_std": 1.0 if self.prior_std is None else self.prior_std,
            "beta": beta,
            "annealing": self.annealing or ("warm-up" if warm else "constant"),
        }
        for name, value in resolved.items():
            object.__setattr__(self, name, value)
        self.kl_weight(0.0)
        check_choice("prior", self.prior, ("empirical", "normal", "pretrained", "scale-mixture"))
        if not (0 <= beta < math.inf and 0 < resolved["prior_std"] < math.inf):
            raise UserError(
                "beta must be finite and not negative, and prior_std finite and positive, "
                f"not {self.beta} and {self.prior_std}"
            )

    def kl_weight(self, progress: float) -> float:
        """Return beta under the method's annealing."""
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

    def network(self, start: Start, posterior: Posterior, **settings: Any) -> Network:
        """Return the network of a posterior with the method's prior; further settings are those of `Network`."""
        prior = self.make_prior(start.mean, start.layout)
        return Network(start.model, posterior, prior=prior, likelihood=start.likelihood, **settings)


@dataclass(frozen=True, kw_only=True)
class DerivedMethod(Method):
    """A method that builds on the result of another.

    Attributes:
        method: The other method, or its registry name.
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
    """The start of a method: a copy of the model, its weights as a flat vector, and stds if any."""

    model: nn.Module
    layout: Layout
    mean: Tensor
    std: Tensor | None
    likelihood: Likelihood | None

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
                        f"select={select!r} leaves out {slot.name!r}, which the Network's posterior covers: its "
                        "selection of weights is kept; start from net.to_module() to select again"
                    )
            return cls(copy_model(model.model), model.layout, mean, known, copy.deepcopy(model.likelihood))
        refuse_unsupported(model)  # some of these cannot be copied either
        model = copy_model(model)
        recognise(model)
        chosen = None
        if select is not None:
            names = [name for name, _ in model.named_parameters()]
            if not any(re.search(select, name) for name in names):
                some = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
                raise UserError(f"select={select!r} matches no parameter: the names are {some}")
            chosen = lambda name, _: re.search(select, name) is not None  # noqa: E731
        layout = Layout.of(model, select=chosen, bayesian_bias=bayesian_bias)
        return cls(model, layout, layout.read(model), None, None)

    def network(self, posterior: Posterior, **settings: Any) -> Network:
        """Return the network of a posterior; the settings are those of `Network`."""
        return Network(self.model, posterior, likelihood=self.likelihood, **settings)
