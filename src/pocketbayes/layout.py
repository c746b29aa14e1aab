"""Which weights of a model a posterior covers, and where each lies in one flat vector."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pocketbayes.errors import UserError

Select = Callable[[str, nn.Parameter], bool]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.LocalResponseNorm)
_NORM_NAME = re.compile(r"norm", re.IGNORECASE)
_WEIGHT_NAME = re.compile(r"(^|_)weight(_|$)|^original1?$")
_BIAS_NAME = re.compile(r"(^|_)bias(_|$)")


@dataclass(frozen=True)
class Slot:
    """One weight tensor: its place in the flat vector and every place in the model that uses it.

    Attributes:
        name: The first path of the tensor in the model.
        shape: Its shape.
        start: The position of its first entry in the flat vector.
        sites: One path per (module, attribute) that holds it; more than one where weights are tied.
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
        slots: The selected weights in the model's own order.
        points: What stays a point value, with the reason.
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
        """Selects the weights of every linear, convolution, recurrent and attention layer.

        Args:
            model: Any module.
            select: A test on (name, parameter) in place of that rule.
            bayesian_bias: Selects the biases of those layers too.

        Raises:
            UserError: If nothing in the model is selected, or the model cannot be re-parametrised.
        """
        _refuse_unsupported(model)
        slots: list[Slot] = []
        points: list[tuple[str, str]] = []
        start = 0
        for parameter, sites in _parameters_with_sites(model):
            reasons = [_reason_for_point(*site, bayesian_bias) for site in sites]
            name = sites[0][0]
            chosen = select(name, parameter) if select else None in reasons
            if chosen and not parameter.is_floating_point():
                chosen, reasons = False, ["not a real floating-point parameter"]
            if chosen:
                slots.append(Slot(name, tuple(parameter.shape), start, tuple(path for path, _, _ in sites)))
                start += parameter.numel()
            else:
                points.append((name, "not chosen by select" if select else str(reasons[0])))
        if not slots:
            raise UserError(
                f"{type(model).__name__} has no weights to make Bayesian: none of its {len(points)} parameters is the "
                "weight of a linear, convolution, recurrent or attention layer; choose some with select="
            )
        return cls(tuple(slots), tuple(points))

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The (n,) vector of the tensors given by slot name."""
        return torch.cat([tensors[slot.name].reshape(-1) for slot in self.slots])

    def read(self, model: nn.Module) -> Tensor:
        """The (n,) vector of the model's present weights, detached."""
        return self.flatten({slot.name: _get(model, slot.name).detach() for slot in self.slots})

    def views(self, flat: Tensor) -> list[Tensor]:
        """The vector cut into one view per slot, each in its own shape."""
        pieces = flat.split([slot.size for slot in self.slots])
        return [piece.view(slot.shape) for piece, slot in zip(pieces, self.slots)]

    def write(self, model: nn.Module, flat: Tensor) -> None:
        """Puts the vector back into the model as parameters, at every site."""
        for slot, view in zip(self.slots, self.views(flat.detach())):
            parameter = nn.Parameter(view.clone())
            for site in slot.sites:
                owner, attribute = _owner(model, site)
                owner.__dict__.pop(attribute, None)
                setattr(owner, attribute, parameter)
        order_parameters(model)

    def strip(self, model: nn.Module) -> None:
        """Takes the selected weights out of the model, at every site."""
        for slot in self.slots:
            for site in slot.sites:
                owner, attribute = _owner(model, site)
                if attribute in owner._parameters:
                    del owner._parameters[attribute]
        clear_flat_weights(model)

    def segments(self, device: torch.device | str | None = None) -> Tensor:
        """The (n,) vector of slot numbers."""
        sizes = torch.tensor([slot.size for slot in self.slots], device=device)
        return torch.repeat_interleave(torch.arange(len(self.slots), device=device), sizes)

    def check(self, model: nn.Module) -> None:
        """Raises an error naming the first weight whose shape differs in the model."""
        for slot in self.slots:
            for site in slot.sites:
                try:
                    found = tuple(_get(model, site).shape)
                except AttributeError:
                    raise UserError(f"the model has no {site!r}, which the layout expects with {slot.shape}") from None
                if found != slot.shape:
                    raise UserError(f"{site!r} has shape {found} in the model, {slot.shape} in the layout")

    def to_json(self) -> dict[str, Any]:
        """The layout as plain JSON values."""
        return {
            "slots": [{"name": s.name, "shape": list(s.shape), "sites": list(s.sites)} for s in self.slots],
            "points": [list(p) for p in self.points],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        """The inverse of `to_json`."""
        slots: list[Slot] = []
        start = 0
        for item in value["slots"]:
            slot = Slot(str(item["name"]), tuple(int(d) for d in item["shape"]), start, tuple(item["sites"]))
            if any(d < 0 for d in slot.shape):
                raise UserError(f"the layout gives {slot.name!r} a negative size: {slot.shape}")
            slots.append(slot)
            start = slot.stop
        return cls(tuple(slots), tuple((str(n), str(r)) for n, r in value.get("points", ())))


def order_parameters(model: nn.Module) -> None:
    """Restores the order in which a module's class registers weight before bias."""
    for module in model.modules():
        if "weight" in module._parameters and next(iter(module._parameters)) == "bias":
            module._parameters["bias"] = module._parameters.pop("bias")


def clear_flat_weights(model: nn.Module) -> None:
    """Lets recurrent layers forget the weights they were last run with: they would keep old draws alive."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module._flat_weights = [module._parameters.get(name) for name in module._flat_weights_names]
            module._flat_weight_refs = [None] * len(module._flat_weights_names)


def _parameters_with_sites(model: nn.Module) -> Iterable[tuple[nn.Parameter, list[tuple[str, nn.Module, str]]]]:
    """Each parameter once, with every (path, module, attribute) that holds it; a shared module counts once."""
    found: dict[int, tuple[nn.Parameter, list[tuple[str, nn.Module, str]]]] = {}
    for prefix, module in model.named_modules():
        for attribute, parameter in module._parameters.items():
            if parameter is not None:
                path = f"{prefix}.{attribute}" if prefix else attribute
                found.setdefault(id(parameter), (parameter, []))[1].append((path, module, attribute))
    return found.values()


def _reason_for_point(path: str, module: nn.Module, attribute: str, bayesian_bias: bool) -> str | None:
    """Why a parameter at this site stays a point; None if it is selected."""
    parameter = module._parameters[attribute]
    assert parameter is not None
    if isinstance(module, _NORMS) or (_NORM_NAME.search(type(module).__name__) and not _is_parametrisation(module)):
        return "normalisation parameter"
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return "embedding table (Bayesian only where it is tied to a layer)"
    if _BIAS_NAME.search(attribute):
        return None if bayesian_bias else "bias (bayesian_bias=True makes it random)"
    if attribute == "original0":
        return "norm of a weight-normalised layer"
    if not _WEIGHT_NAME.search(attribute):
        return "not the weight of a linear, convolution, recurrent or attention layer"
    if parameter.ndim < 2:
        return "scale vector"
    return None


def _is_parametrisation(module: nn.Module) -> bool:
    return isinstance(module, parametrize.ParametrizationList)


def _refuse_unsupported(model: nn.Module) -> None:
    """Raises by name for what cannot be re-parametrised."""
    for path, module in model.named_modules():
        where = f"{path!r} ({type(module).__name__})" if path else f"the model ({type(module).__name__})"
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise UserError(f"{where} is a parallel wrapper: convert the module inside it, then wrap the Network")
        if isinstance(module, torch.jit.ScriptModule):
            raise UserError(f"{where} is scripted: convert the plain module it was made from")
        if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():  # type: ignore[misc]
            raise UserError(f"{where} has no weights yet: run the model once, then convert it")
        for hook in module._forward_pre_hooks.values():
            if type(hook).__module__ in ("torch.nn.utils.weight_norm", "torch.nn.utils.spectral_norm"):
                raise UserError(
                    f"{where} uses the old {type(hook).__name__} hook: use torch.nn.utils.parametrizations instead"
                )
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
