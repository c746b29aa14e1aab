"""The interface of a posterior's storage, with defaults derived from its moments."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from pocketbayes.base.errors import UserError
from pocketbayes.base.randomness import Randomness
from pocketbayes.base.registry import Registry
from pocketbayes.posteriors.coding import KINDS, UNDECLARED, Coding, Described, check_tensors
from pocketbayes.posteriors.gaussian import Gaussian, RuleTable
from pocketbayes.posteriors.layout import Layout
from pocketbayes.posteriors.priors import Prior
from pocketbayes.posteriors.shared_plane import SharedPlane


@dataclass(frozen=True)
class Census:
    """Counts of stored values.

    Attributes:
        weights: Weights of the model that the posterior covers.
        stored: Stored values by kind (means, stds, ...).
        random: Weights with a std above 0.
        trainable: Values that training changes, including point parameters if a whole network is counted.
        points: Values outside the posterior: biases, normalisation, running statistics.
        memory_bytes: Bytes of the tensors in memory.
        notes: Remarks on the numbers.
    """

    weights: int
    stored: Mapping[str, int]
    random: int
    trainable: int
    points: int = 0
    memory_bytes: int = 0
    notes: tuple[str, ...] = field(default=())

    @property
    def values(self) -> int:
        """All values stored: the posterior's and the points."""
        return sum(self.stored.values()) + self.points

    def __add__(self, other: Census) -> Census:
        kinds = {**dict.fromkeys(self.stored, 0), **dict.fromkeys(other.stored, 0)}
        return Census(
            weights=self.weights + other.weights,
            stored={k: self.stored.get(k, 0) + other.stored.get(k, 0) for k in kinds},
            random=self.random + other.random,
            trainable=self.trainable + other.trainable,
            points=self.points + other.points,
            memory_bytes=self.memory_bytes + other.memory_bytes,
            notes=tuple(dict.fromkeys(self.notes + other.notes)),
        )


POSTERIORS: Registry[type[Posterior]] = Registry("storage")
"""Every storage by name; subclasses of `Posterior` are registered when they are defined."""


FIXED = "not trained"
"""Key in a config for the floating-point buffers, which must not be restored as parameters."""


class Posterior(Described, ABC):
    """A distribution q(w) over the weights of a layout, and how it is stored.

    A subclass must define `moments`. Its parameters and buffers, with `config`, rebuild it.

    Attributes:
        name: The name in files; by default the name of the class.
        tensors: The role, shape and range of each tensor. Files store undeclared ones with the precision of means.
        layout: The weights.
    """

    name: ClassVar[str]
    tensors: ClassVar[Mapping[str, Coding]] = {}
    drops_units: ClassVar[bool] = False
    """Whether a draw drops whole input units, so that noise per example is dropout of the inputs."""
    layout: Layout

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in vars(cls):
            cls.name = cls.__name__
        POSTERIORS.join(cls.name, cls)

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self._held: list[Tensor] | None = None

    def derive(self) -> None:
        """Compute what follows from layout, tensors and settings; `restore` calls this, as `__init__` may."""

    @abstractmethod
    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and std of every weight, each (n,)."""

    @classmethod
    def check_file(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
        """Reject tensors from a file that do not match the class's declaration.

        Raises:
            UserError: If a tensor is missing or has a wrong type, shape or range.
        """
        try:
            check_tensors(tensors, cls.tensors, cls.dimensions(layout, tensors, config))
        except UserError as error:
            raise UserError(f"a {cls.name} posterior with {error}") from error

    @classmethod
    def dimensions(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, int]:
        """Return the sizes known in advance, by the dimension names of the class's `tensors`."""
        return {"weights": layout.size}

    def check(self) -> None:
        """Reject tensors and moments that do not match the layout.

        Raises:
            UserError: If one does not; the message names it.
        """
        tensors = self.state_dict()
        self.check_file(self.layout, tensors, self.config())
        for moment in () if tensors.keys() <= self.tensors.keys() else self.moments():
            if moment.shape != (self.layout.size,):
                raise UserError(f"moments of shape {tuple(moment.shape)} for a layout of {self.layout.size} weights")

    @property
    def noise_size(self) -> int:
        """The number of standard normal numbers per draw."""
        return self.layout.size

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Compute the moments once, not for every draw, within a block that trains nothing.

        Nested blocks use the moments of the outermost one.
        """
        if self._held is not None:
            yield
            return
        self._held = []
        try:
            yield
        finally:
            self._held = None

    def held_moments(self) -> tuple[Tensor, Tensor]:
        """Return the moments; within `frozen`, those of the first call."""
        if self._held is None:
            return self.moments()
        self._held = self._held or [*self.moments()]
        mean, std = self._held
        return mean, std

    def weight_means(self) -> Tensor:
        """Return the mean of every weight, (n,), without the stds; within `frozen`, that of the first call."""
        return self.held_moments()[0]

    def random_slots(self) -> list[int]:
        """Return the slots of the layout that have a std above 0."""
        stds = self.layout.views(self.held_moments()[1].detach())
        random = torch.stack([(std > 0).any() for std in stds]).tolist() if stds else []
        return [number for number, is_random in enumerate(random) if is_random]

    def sample(self, noise: Tensor | None = None) -> Tensor:
        """Return one draw (n,) of all weights, a smooth function of `noise_size` standard normal numbers."""
        return self._displaced(noise)

    def _displaced(self, noise: Tensor | None) -> Tensor:
        """Compute `mean + std noise`."""
        mean, std = self.held_moments()
        return torch.addcmul(mean, std, self._noise(noise, mean))

    def draws(self, noise: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        """Return one draw per row of noise (s, noise_size), of the weights from `start` to `stop`, (s, m).

        Both positions are edges of slots.
        """
        return torch.stack([self.sample(row)[start:stop] for row in noise])

    @property
    def independent(self) -> bool:
        """Whether the weights are independent of one another, as in the `sample` of this class."""
        return type(self).sample is Posterior.sample

    def project(self, gradient: Tensor, start: int = 0) -> Tensor:
        """Convert gradients with respect to the weights, at the mean, to gradients with respect to the noise.

        To first order their squared norm is the quantity's variance over draws, and inner products are covariances;
        where weights share noise, their gradients add up.

        Args:
            gradient: (b, n), or (b, m) for the m weights from `start` on, if no others are random.
            start: The position of the first weight.
        """
        rest = self.layout.size - start - gradient.shape[1]
        return self._project(F.pad(gradient, (start, rest)) if start or rest else gradient)

    def _project(self, gradient: Tensor) -> Tensor:
        """Project the gradients (b, n) of all weights."""
        if self.independent:
            return gradient * self.moments()[1]
        if (ties := self.ties()) is not None:
            index, size = ties
            sums = gradient.new_zeros(len(gradient), size)
            return self.project_table(sums.scatter_add_(1, index.expand_as(gradient), gradient))
        return self._pull_back(self.sample, gradient)

    def _pull_back(self, draw: Callable[[Tensor], Tensor], gradient: Tensor) -> Tensor:
        """Convert gradients (b, m) of what `draw` returns to gradients with respect to its noise, at the mean."""
        origin = torch.zeros(self.noise_size, dtype=gradient.dtype, device=gradient.device)
        pull = torch.func.vjp(draw, origin)[1]
        projected: Tensor = torch.func.vmap(lambda row: pull(row)[0])(gradient)
        return projected

    def ties(self) -> tuple[Tensor, int] | None:
        """Return the table entry that each weight copies in a draw, and the table's size; None without a table."""
        return None

    def project_table(self, sums: Tensor) -> Tensor:
        """Convert gradients (b, size) with respect to the table of `ties` to gradients with respect to the noise."""
        raise NotImplementedError(f"{type(self).__name__} defines ties but not project_table")

    def kl(self, prior: Prior) -> Tensor:
        """Compute KL(q || prior) in nats, summed over the weights with std > 0, since a point value has no KL."""
        mean, std = self.moments()
        random = std > 0
        if bool(random.all()):
            return prior.total_kl(mean, std)
        index = random.nonzero().flatten()
        return prior.take(index).total_kl(mean.index_select(0, index), std.index_select(0, index))

    def std_parameters(self) -> Iterable[nn.Parameter]:
        """Return the parameters of the stds, which have their own learning rate and no weight decay."""
        declared = {name for name, coding in self.tensors.items() if coding.role == "std"}
        return [p for name, p in self.named_parameters() if name in declared and p.requires_grad]

    def densities(self) -> dict[str, float]:
        """Return the fraction of present weights by slot; empty for dense storages."""
        return {}

    def code_bits(self) -> dict[str, float]:
        """Return the bits per weight of each slot's codes by their entropy; empty for storages without codes."""
        return {}

    def matrix_slots(self) -> list[int]:
        """Return the slots that can be returned as sparse matrices, which only F.linear accepts."""
        return []

    def mean_slots(self, matrices: Collection[int] = ()) -> list[Tensor]:
        """Return the mean of every slot's weight; those of `matrices`, some of `matrix_slots`, as sparse matrices."""
        return self.layout.views(self.moments()[0])

    def sample_slots(self, noise: Tensor | None = None, matrices: Collection[int] = ()) -> list[Tensor]:
        """Return one draw of every slot's weight; those of `matrices` as sparse matrices."""
        return self.layout.views(self.sample(noise))

    def gaussian_slots(self, rules: RuleTable, matrices: Collection[int] = ()) -> list[Gaussian]:
        """Return every slot's weight as Gaussians that carry `rules`; those of `matrices` hold sparse matrices."""
        mean, std = self.moments()
        views = zip(self.layout.views(mean), self.layout.views(std))
        return [Gaussian(m, std=s, rules=rules) for m, s in views]

    def plane(self) -> SharedPlane | None:
        """Return the Gaussians that weights share in the plane of means and stds; None if they share none."""
        return None

    def pack_for_graph(self) -> None:
        """Hold the tensors as an exported graph should keep them, in place; afterwards the posterior is only traced."""

    def stored(self) -> dict[str, int]:
        """Return the number of stored values by kind."""
        counts: dict[str, int] = {}
        for name, tensor in self.state_dict().items():
            coding = self.tensors.get(name, UNDECLARED)
            if kind := coding.counted or KINDS.get(coding.role):
                counts[kind] = counts.get(kind, 0) + tensor.numel()
        return counts

    def config(self) -> dict[str, Any]:
        """Return the public attributes that, with layout and tensors, rebuild the posterior."""
        plain = {name: value for name, value in vars(self).items() if not _is_reserved(name) and _is_plain(value)}
        floats = [name for name, tensor in self.named_buffers() if tensor.is_floating_point()]
        fixed = [name for name in floats if self.tensors.get(name, UNDECLARED).trained]
        return plain | ({FIXED: fixed} if fixed and self._restored_by_default() else {})

    @classmethod
    def restore(cls, layout: Layout, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Self:
        """Rebuild the posterior from its `state_dict()` and `config()`.

        The tensors are not copied, and `__init__` is not called: `derive` computes all else that a storage keeps.
        """
        self = cls.__new__(cls)
        Posterior.__init__(self, layout)
        for name, value in config.items():
            if _is_reserved(name) or callable(used := getattr(cls, name, None)) or isinstance(used, property):
                raise UserError(f"a {cls.name} posterior with a setting {name!r}, which it cannot have")
            if name != FIXED:
                setattr(self, name, value)
        for name in dict.fromkeys([*tensors, *cls.tensors]):
            tensor = tensors.get(name)
            trained = cls.tensors.get(name, UNDECLARED).trained and name not in config.get(FIXED, ())
            if trained and tensor is not None and tensor.is_floating_point():
                self.register_parameter(name, nn.Parameter(tensor))
            else:
                self.register_buffer(name, tensor)
        self.derive()
        return self

    @classmethod
    def _restored_by_default(cls) -> bool:
        return cls.restore.__func__ is Posterior.restore.__func__  # type: ignore[attr-defined]

    @classmethod
    def runs(cls, tensors: Mapping[str, Tensor]) -> list[tuple[int, int]]:
        """Return ranges (first value, length) at the top of `index` whose values weights use once each, in order.

        A file stores one symbol for a whole range.
        """
        return []

    def census(self) -> Census:
        """Count what is stored."""
        with torch.no_grad():
            random = int((self.moments()[1] > 0).sum())
        return Census(
            weights=self.layout.size,
            stored=self.stored(),
            random=random,
            trainable=sum(p.numel() for p in self.parameters() if p.requires_grad),
            memory_bytes=sum(t.numel() * t.element_size() for t in self.state_dict().values()),
        )

    @overload
    def new_noise(self, randomness: Randomness) -> Tensor: ...

    @overload
    def new_noise(self, randomness: Randomness | None) -> Tensor | None: ...

    def new_noise(self, randomness: Randomness | None) -> Tensor | None:
        """Draw the standard normal numbers of one draw; None leaves that to `sample` and torch's global generator."""
        if randomness is None:
            return None
        tensors = itertools.chain(self.parameters(), self.buffers())
        like = next(tensor for tensor in tensors if tensor.is_floating_point())
        generator = randomness.on(like.device)
        return torch.randn(self.noise_size, dtype=like.dtype, device=like.device, generator=generator)

    def _noise(self, noise: Tensor | None, like: Tensor) -> Tensor:
        return torch.randn(self.noise_size, dtype=like.dtype, device=like.device) if noise is None else noise


def _is_reserved(name: str) -> bool:
    """Return whether an attribute is private or common to all posteriors."""
    return name.startswith("_") or name in ("training", "layout", "name", "tensors", "call_super_init", "dump_patches")


def _is_plain(value: object) -> bool:
    """Return whether JSON can represent a value."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str))


def softplus_inverse(std: Tensor) -> Tensor:
    """Solve softplus(rho) = std for rho, exactly even where exp would overflow or lose digits."""
    return std + torch.log(-torch.expm1(-std))
