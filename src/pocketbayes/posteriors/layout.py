"""The weights of a model that a posterior covers, and their positions in one flat vector."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from pocketbayes.base.errors import UserError
from pocketbayes.posteriors.model_call import call_model

Select = Callable[[str, nn.Parameter], bool]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)
_NORM_NAME = re.compile(r"norm", re.IGNORECASE)
_WEIGHT_NAME = re.compile(r"(^|_)weight(_|$)|^original1?$")
_BIAS_NAME = re.compile(r"(^|_)bias(_|$)")
_OLD_HOOKS = {
    "torch.nn.utils.weight_norm": "use torch.nn.utils.parametrizations instead",
    "torch.nn.utils.spectral_norm": "use torch.nn.utils.parametrizations instead",
    "torch.nn.utils.prune": "make the pruning permanent with torch.nn.utils.prune.remove",
}
"""Hooks that leave a computed weight in the module, which would keep an old draw."""
_ORDER = "_pocketbayes_parameter_order"
"""Attribute of a stripped module with the order of its parameters."""


@dataclass(frozen=True)
class Slot:
    """One weight tensor: its position in the flat vector and every site in the model that uses it.

    Attributes:
        name: The first path of the tensor in the model.
        shape: Its shape.
        start: The position of its first entry in the flat vector.
        sites: One path per (module, attribute) that holds it; several if weights are tied.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    sites: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of weights in the slot."""
        return torch.Size(self.shape).numel()

    @property
    def stop(self) -> int:
        """The position after its last entry in the flat vector."""
        return self.start + self.size


@dataclass(frozen=True)
class Layout:
    """A flat view of the selected weights of a model, tied names resolved.

    Attributes:
        slots: The selected weights in the model's order.
        points: The parameters that stay point values, with the reason.
    """

    slots: tuple[Slot, ...]
    points: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        """n, the number of weights."""
        return self.slots[-1].stop if self.slots else 0

    def __len__(self) -> int:
        return len(self.slots)

    @classmethod
    def of(cls, model: nn.Module, *, select: Select | None = None, bayesian_bias: bool = False) -> Layout:
        """Select the weights of every linear, convolution, recurrent and attention layer.

        Args:
            model: Any module.
            select: A predicate on (name, parameter) instead of that rule.
            bayesian_bias: Also select the biases of those layers.

        Raises:
            UserError: If nothing is selected, or the model cannot be reparametrised.
        """
        refuse_unsupported(model)
        slots: list[Slot] = []
        points: list[tuple[str, str]] = []
        kinds: dict[tuple[torch.dtype, torch.device], str] = {}
        start = 0
        for parameter, sites in _parameters_with_sites(model):
            name = sites[0][0]
            reason = _reason_for_point(parameter, sites, select, bayesian_bias)
            if reason is None:
                slots.append(Slot(name, tuple(parameter.shape), start, tuple(path for path, _, _ in sites)))
                start += parameter.numel()
                kinds.setdefault((parameter.dtype, parameter.device), name)
            else:
                points.append((name, reason))
        if not slots:
            raise UserError(_nothing_selected(model, points))
        if len(kinds) > 1:
            each = ", ".join(f"{name!r} is {dtype} on {device}" for (dtype, device), name in kinds.items())
            raise UserError(f"the weights must have one type and one device: {each}; convert the model first")
        return cls(tuple(slots), tuple(points))

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the (n,) vector of the tensors given by slot name."""
        return torch.cat([tensors[slot.name].reshape(-1) for slot in self.slots])

    def read(self, model: nn.Module) -> Tensor:
        """Return the (n,) vector of the model's current weights, detached."""
        return self.flatten({slot.name: _get(model, slot.name).detach() for slot in self.slots})

    def views(self, flat: Tensor) -> list[Tensor]:
        """Split the vector into one view per slot, in the slot's shape."""
        pieces = flat.split([slot.size for slot in self.slots])
        return [piece.view(slot.shape) for piece, slot in zip(pieces, self.slots)]

    def write(self, model: nn.Module, flat: Tensor) -> None:
        """Write the vector into the model as parameters, at every site and in the original order."""
        owners: dict[int, nn.Module] = {}
        for slot, view in zip(self.slots, self.views(flat.detach())):
            parameter = nn.Parameter(view.clone())
            for owner, attribute in self._owners(model, slot):
                owner._parameters[attribute] = parameter
                owners[id(owner)] = owner
        for owner in owners.values():
            for attribute in owner.__dict__.pop(_ORDER, ()):
                owner._parameters[attribute] = owner._parameters.pop(attribute)
            if isinstance(owner, nn.RNNBase):
                owner._init_flat_weights()

    def strip(self, model: nn.Module) -> None:
        """Take the selected weights out of the model, at every site."""
        for slot in self.slots:
            for owner, attribute in self._owners(model, slot):
                if attribute in owner._parameters:
                    owner.__dict__.setdefault(_ORDER, tuple(owner._parameters))
                    del owner._parameters[attribute]
                    _renew_flat_weights(owner)

    def _owners(self, model: nn.Module, slot: Slot) -> list[tuple[nn.Module, str]]:
        return [_owner(model, site) for site in slot.sites]

    def segments(self, device: torch.device | str | None = None) -> Tensor:
        """Return the (n,) vector of slot numbers."""
        parts = [torch.full((slot.size,), number, device=device) for number, slot in enumerate(self.slots)]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long, device=device)  # as a graph can, too

    def span(self, numbers: Sequence[int]) -> tuple[int, int]:
        """Return where these slots start and end in the flat vector; without slots, its start and end."""
        if not numbers:
            return 0, self.size
        return self.slots[numbers[0]].start, self.slots[numbers[-1]].stop

    def run(self, model: nn.Module, weights: Tensor | Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        """Run the stripped model once with weights given as a vector (n,) or one per slot; see `call_model`."""
        views = self.views(weights) if isinstance(weights, Tensor) else weights
        with weights_in_place(model, self.by_site(views)):
            return call_model(model, *args, **kwargs)

    def by_site(self, views: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return the tensor of every site in the model from those of the slots."""
        return {site: view for slot, view in zip(self.slots, views) for site in slot.sites}

    def slots_of(self, positions: Tensor) -> list[int]:
        """Return the numbers of the slots that contain these positions."""
        stops = torch.tensor([slot.stop for slot in self.slots], device=positions.device)
        return torch.searchsorted(stops, positions, right=True).unique().tolist()  # type: ignore[no-any-return]

    def check(self, model: nn.Module) -> None:
        """Raise an error naming the first weight whose shape differs in the model."""
        for slot in self.slots:
            for site in slot.sites:
                try:
                    shape = tuple(_get(model, site).shape)
                except AttributeError:
                    raise UserError(f"the model has no {site!r}, which the layout expects with {slot.shape}") from None
                if shape != slot.shape:
                    raise UserError(f"{site!r} has shape {shape} in the model, {slot.shape} in the layout")

    def fill(self, model: nn.Module, points: Mapping[str, Tensor], source: str) -> None:
        """Take the selected weights out of a model and load all other tensors from a source."""
        self.check(model)
        self.strip(model)
        own = model.state_dict()
        for name in [*own, *points]:
            if name not in points or name not in own:
                where = "the model" if name in own else source
                raise UserError(f"{name!r} is in {where} only: not the same architecture")
            if own[name].shape != points[name].shape:
                raise UserError(
                    f"{name!r} has shape {tuple(own[name].shape)} in the model, {tuple(points[name].shape)} in {source}"
                )
        model.load_state_dict(dict(points))

    def to_json(self) -> dict[str, Any]:
        """Return the layout as plain JSON values."""
        return {
            "slots": [{"name": s.name, "shape": list(s.shape), "sites": list(s.sites)} for s in self.slots],
            "points": [list(p) for p in self.points],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        """Invert `to_json`."""
        slots: list[Slot] = []
        start = 0
        for item in value["slots"]:
            slot = Slot(str(item["name"]), tuple(int(d) for d in item["shape"]), start, tuple(item["sites"]))
            if any(d < 0 for d in slot.shape):
                raise UserError(f"the layout gives {slot.name!r} a negative size: {slot.shape}")
            slots.append(slot)
            start = slot.stop
        return cls(tuple(slots), tuple((str(n), str(r)) for n, r in value.get("points", ())))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put every module into evaluation mode within the block."""
    training = [module for module in model.modules() if module.training]
    if training:
        model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def weights_in_place(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Put weights, by site, into the stripped model within the block; its `parameters()` include them."""
    sites = [(*_owner(model, site), weight) for site, weight in weights.items()]
    for owner, attribute, weight in sites:
        owner._parameters[attribute] = weight  # type: ignore[assignment]
    for owner, _, _ in sites:
        _renew_flat_weights(owner)
    try:
        yield
    finally:
        for owner, attribute, _ in sites:
            del owner._parameters[attribute]
        for owner, _, _ in sites:
            _renew_flat_weights(owner)


def no_checkpointing() -> AbstractContextManager[None]:
    """Make activation checkpointing inside the model an error, since it reruns layers after their weights are gone.

    Around the whole Network it works (the same weights are drawn again), as it does in a compiled graph.
    """
    if torch.compiler.is_compiling() or torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return nullcontext()
    return torch.autograd.graph.disable_saved_tensors_hooks(
        "activation checkpointing inside the model runs layers again in the backward pass, when the drawn weights are "
        "gone: switch it off in the model, or put it around the Network"
    )


def _renew_flat_weights(module: nn.Module) -> None:
    """Update the weight list of a recurrent layer, which would otherwise keep old draws."""
    if isinstance(module, nn.RNNBase):
        module._flat_weights = [module._parameters.get(name) for name in module._flat_weights_names]
        module._flat_weight_refs = [None] * len(module._flat_weights_names)


def _parameters_with_sites(model: nn.Module) -> Iterable[tuple[nn.Parameter, list[tuple[str, nn.Module, str]]]]:
    """Return each parameter once, with every (path, module, attribute) that holds it; a shared module counts once."""
    sites: dict[int, tuple[nn.Parameter, list[tuple[str, nn.Module, str]]]] = {}
    for prefix, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                path = f"{prefix}.{attribute}" if prefix else attribute
                sites.setdefault(id(parameter), (parameter, []))[1].append((path, module, attribute))
    return sites.values()


def _reason_for_point(
    parameter: nn.Parameter, sites: list[tuple[str, nn.Module, str]], select: Select | None, bayesian_bias: bool
) -> str | None:
    """Return why a parameter stays a point; None if any of its sites is selected."""
    if not parameter.is_floating_point():
        return "not a real floating-point parameter"
    if select is not None:
        return None if select(sites[0][0], parameter) else "not chosen by select"
    if not parameter.requires_grad:
        return "frozen (requires_grad=False)"
    reasons = [_reason_at_site(parameter, module, attribute, bayesian_bias) for _, module, attribute in sites]
    return None if None in reasons else reasons[0]


def _reason_at_site(parameter: nn.Parameter, module: nn.Module, attribute: str, bayesian_bias: bool) -> str | None:
    """Return why a parameter at this site stays a point; None if it is selected."""
    is_vector = parameter.numel() == max(parameter.shape, default=1)
    if isinstance(module, _NORMS):
        return "normalisation parameter"
    if is_vector and _NORM_NAME.search(type(module).__name__) and not isinstance(module, ParametrizationList):
        return "normalisation parameter"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding table (Bayesian only where it is tied to a layer)"
    if is_vector and _BIAS_NAME.search(attribute):
        return None if bayesian_bias else "bias (bayesian_bias=True makes it random)"
    if attribute == "original0":
        return "norm of a weight-normalised layer"
    if not _WEIGHT_NAME.search(attribute):
        return "not the weight of a linear, convolution, recurrent or attention layer (select= can name it)"
    if parameter.ndim < 2:
        return "scale vector"
    return None


def _nothing_selected(model: nn.Module, points: list[tuple[str, str]]) -> str:
    reason = (
        f"its {len(points)} parameters stay points (such as {points[0][0]!r}: {points[0][1]})"
        if points
        else "it has no parameters"
    )
    return f"{type(model).__name__} has no weights to make Bayesian: {reason}; choose some with select="


def refuse_unsupported(model: nn.Module) -> None:
    """Reject modules that cannot be reparametrised."""
    for path, module in model.named_modules():
        where = f"{path!r} ({type(module).__name__})" if path else f"the model ({type(module).__name__})"
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise UserError(f"{where} is a parallel wrapper: convert the module inside it, then wrap the Network")
        if isinstance(module, torch.jit.ScriptModule):
            raise UserError(f"{where} is scripted: convert the plain module it was made from")
        if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():  # type: ignore[misc]
            raise UserError(f"{where} has no weights yet: run the model once, then convert it")
        for hook in module._forward_pre_hooks.values():
            if (way_out := _OLD_HOOKS.get(type(hook).__module__)) is not None:
                raise UserError(f"{where} has a {type(hook).__name__} hook, which recomputes its weight: {way_out}")
        if type(module).__name__ == "OptimizedModule":  # torch.compile's wrapper, without importing its compiler
            raise UserError(f"{where} is compiled: convert the module it was made from, then compile the Network")
        if getattr(module, "grad_checkpointing", False) is True or getattr(module, "gradient_checkpointing", 0) is True:
            raise UserError(
                f"{where} has activation checkpointing switched on, which re-runs layers in the backward pass, "
                "when the drawn weights are gone: switch it off"
            )


def _owner(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    prefix, _, attribute = path.rpartition(".")
    return model.get_submodule(prefix), attribute


def _get(model: nn.Module, path: str) -> Tensor:
    owner, attribute = _owner(model, path)
    value = getattr(owner, attribute)
    if not isinstance(value, Tensor):
        raise AttributeError(path)
    return value
