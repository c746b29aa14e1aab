"""Export to ONNX graphs that predict with uncertainty, for runtimes without PyTorch."""

from __future__ import annotations

import copy
import gc
import json
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from pocketbayes import models
from pocketbayes.base.arguments import check_choice, check_path
from pocketbayes.base.atomic import write_atomically
from pocketbayes.base.errors import UnknownNameError, UserError, first_line
from pocketbayes.data.model_inputs import Inputs, ModelInput, as_input, made_up, tensors_of
from pocketbayes.network import Mixture, Net, Network, members
from pocketbayes.posteriors.model_call import accepted
from pocketbayes.propagation import PROPAGATIONS, find_propagation
from pocketbayes.propagation.readout import Readout
from pocketbayes.ship.onnx_pass import Mode, OnePass

if TYPE_CHECKING:
    import onnx_ir

METADATA = "pocketbayes"
MAX_FOLDED_ENTRIES = 64
"""Largest number of entries of a tensor computed at export; larger ones, such as decoded weights, stay nodes."""


def export_onnx(
    net: Net,
    path: str | Path,
    mode: Mode = "sample",
    samples: int = 30,
    *,
    seed: int = 0,
    example: Any = None,
    readout: Readout = "probit",
) -> int:
    """Write an ONNX graph that predicts with uncertainty, and return the file's size in bytes.

    The graph takes a batch of any size. For classes its outputs are `probs`, `var` (of each probability over the
    posterior), `entropy` = `epistemic` + `aleatoric`, `logits` and `logits_var`; for regression `mean`, `var`,
    `entropy`, `epistemic` and `aleatoric` (stds, epistemic^2 + aleatoric^2 = var), in the unit of the training targets.

    Args:
        net: A network or mixture, of any storage. The graph stores what the storage stores: codebooks with small
            integer indices, and only the present weights of a sparse network.
        path: The file, replaced atomically.
        mode: "sample": weights are drawn inside the graph, which has two further optional inputs, `samples` and `seed`;
            a seed gives the same prediction on any runtime. "moments": mean and variance in one pass without draws.
            "mean": one pass at the posterior mean, without epistemic uncertainty.
        samples: The default of the input `samples`.
        seed: The default of the input `seed`.
        example: Inputs (n, ...), needed only if the network has no data description or takes tokens. For several inputs
            a mapping of names to tensors, which also names the graph's inputs.
        readout: For "moments": how Gaussian logits become probabilities, "probit" or "taylor".

    Raises:
        UserError: If the model has an operation that cannot be exported.
    """
    return _export(net, check_path(path, "path="), mode, samples, seed, example, readout, {})


def export_members(
    net: Mixture,
    path: str | Path,
    mode: Mode = "sample",
    samples: int = 30,
    *,
    seed: int = 0,
    example: Any = None,
    readout: Readout = "probit",
) -> list[Path]:
    """Write one graph per member, `NAME-01.onnx`, `NAME-02.onnx`, ..., for running them one after another.

    The first graph's description has the members' weights and the rule of `fit_stopping`, if any.
    """
    if not isinstance(net, Mixture):
        raise UserError("only a mixture has members to export: use export_onnx for a single network")
    found = []
    for number, network in enumerate(members(net), 1):
        beside = {"shares": net.shares(), "stopping": net.stopping} if number == 1 else {}
        own = Path(path).with_name(f"{Path(path).stem}-{number:02d}.onnx")
        _export(network, own, mode, samples, seed, example, readout, beside)
        found.append(own)
    return found


def _export(
    net: Net,
    path: Path,
    mode: Mode,
    samples: int,
    seed: int,
    example: Any,
    readout: Readout,
    beside: dict[str, Any],
) -> int:
    _check(mode, samples, readout)
    networks = [_ready(network) for network in members(net)]
    x = _example(networks[0], example)
    passes = OnePass(networks, mode, readout, net.weights if isinstance(net, Mixture) else None, x)
    noise_size = sum(passes.noise_sizes)
    noise = (torch.randn(noise_size, generator=_generator()),) if noise_size else ()
    args = (*tensors_of(x), *noise)
    with torch.no_grad(), _quiet(), _step_by_step(), _uncollected():
        try:
            outputs = passes(*args)  # makes the plan; an operation without a rule raises an error that names it
        except RuntimeError as error:
            if example is not None:
                raise
            raise UserError(
                f"the model does not take real numbers {tuple(x.shape)}, generated for tracing: pass some of its "
                f"inputs as example= ({first_line(error)})"
            ) from error
        model = _translate(passes, args, outputs)
    _assemble(model, passes, [output.shape[1:] for output in outputs], noise_size, samples, seed)
    model.metadata_props[METADATA] = json.dumps(_description(networks, mode, samples, seed) | beside)
    data = _serialise(model)
    write_atomically(path, data)
    return len(data)


# -- before ---------------------------------------------------------------------------------------------------------


def _check(mode: str, samples: int, readout: str) -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(f"ONNX export needs {error.name}: pip install 'pocketbayes[onnx]'") from error
    if mode in PROPAGATIONS and not PROPAGATIONS[mode].exports:
        raise UserError(
            f"mode={mode!r} cannot be exported: torch's exporter does not support per-example gradients; use "
            "'moments', or 'sample' where correlations between positions matter"
        )
    check_choice("mode", mode, get_args(Mode))
    if not isinstance(samples, int) or samples < 1:
        raise UserError(f"samples must be a whole number of at least 1, not {samples!r}")
    if readout not in ("probit", "taylor"):
        raise UnknownNameError("readout of a graph", readout, ("probit", "taylor"))


def _ready(network: Network) -> Network:
    """Return a copy in single precision on the CPU, in evaluation mode."""
    ready = copy.deepcopy(network).cpu().float().eval()
    ready.posterior.pack_for_graph()
    return ready


def _example(network: Network, example: Any) -> ModelInput:
    """Return two inputs, since a batch of one would be traced as a constant."""
    if example is None:
        if network.info is None:
            raise UserError("the network has no data description: pass some inputs (n, ...) as example=")
        if network.info.inputs:
            return accepted(network.model, made_up(network.info.inputs))
        return torch.rand(2, *network.info.input_shape, generator=_generator())
    if not isinstance(example, (Tensor, Mapping, tuple, Inputs)):
        raise UserError("example must be a tensor of inputs (n, ...), or a mapping of names to such tensors")
    x = as_input(example)
    if x.ndim < 2 or not len(x):
        raise UserError("example must be a tensor of inputs (n, ...)")
    return accepted(network.model, x.map(_twice)) if isinstance(x, Inputs) else _twice(x)


def _twice(values: Tensor) -> Tensor:
    one = values.detach().cpu()[:1]
    return torch.cat([one, one]).to(torch.float32 if one.is_floating_point() else one.dtype)


def _generator() -> torch.Generator:
    """Return a generator of numbers for tracing, so that torch's global generator is not used."""
    return torch.Generator().manual_seed(0)


# -- the graph --------------------------------------------------------------------------------------------------------


def _translate(passes: OnePass, args: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> onnx_ir.Model:
    """Return one pass as nodes by torch's exporter, and check that it gives the network's outputs."""
    from pocketbayes.ship import onnx_graph

    batch = torch.export.Dim("batch")
    several = passes.names is not None  # with several inputs, the second axis is often the number of tokens
    auto = torch.export.Dim.AUTO
    inputs = args[: len(args) - bool(sum(passes.noise_sizes))]
    shapes = {
        "values": (
            *({0: batch, 1: auto} if several and value.ndim == 2 else {0: batch} for value in inputs),
            *([None] if len(inputs) < len(args) else []),
        )
    }
    try:
        traced = torch.export.export(passes, args, dynamic_shapes=shapes, strict=False)
        _compare(traced.module(check_guards=False)(*args), outputs)
        program = torch.onnx.export(traced, dynamo=True, optimize=False, verbose=False)
    except UserError:
        raise
    except Exception as error:
        raise UserError(_reason(error)) from error
    assert program is not None
    model: onnx_ir.Model = program.model
    for number, value in enumerate(model.graph.inputs[: len(inputs)]):
        value.name = _input_name(number, len(inputs), passes.names or ())
    onnx_graph.fold_constants(model, MAX_FOLDED_ENTRIES)
    return model


def _input_name(number: int, inputs: int, names: Sequence[str]) -> str:
    """Return the name of a graph's input: the model's own, else x, or x0, x1, ... for several."""
    unnamed = inputs - len(names)
    if number >= unnamed:
        return names[number - unnamed]
    return "x" if unnamed == 1 else f"x{number}"


def _compare(traced: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    """Raise an error if the traced outputs differ from the network's, for example if tracing lost variances."""
    for found, expected in zip(traced, outputs):
        scale = float(expected.abs().max())
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * scale + 1e-12, equal_nan=True):
            raise UserError(
                "the traced graph does not agree with the network: torch's tracer skips the rule of an "
                "operation; use mode='sample'"
            )


def _reason(error: BaseException) -> str:
    """Summarise the exporter's long error in one line."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None:
        chain.append(link)
        link = link.__cause__
    text = "\n".join(str(each) for each in chain)
    if missing := re.search(r"op='([\w.]+)'", text):
        return (
            f"the model's {missing[1]} cannot be exported to ONNX: replace the operation in the model, or try another "
            "mode"
        )
    if "Constraints violated" in text or "ConstraintViolation" in type(error).__name__:
        return "the model fixes its batch size: use x.shape[0] instead of a number"
    first = next((line.strip() for line in str(chain[-1]).splitlines() if line.strip()), type(error).__name__)
    return f"the model cannot be traced for ONNX: {first}"


def _assemble(
    model: onnx_ir.Model, passes: OnePass, shapes: list[torch.Size], noise_size: int, samples: int, seed: int
) -> None:
    """Assemble the graph: a loop over passes if they draw, and the summary of their outputs."""
    from pocketbayes.ship import onnx_graph

    graph = model.graph
    if noise_size:
        share = len(passes.networks)
        statistics = onnx_graph.loop(graph, passes.varying, shapes, noise_size, share)
    else:
        statistics = onnx_graph.once(graph, passes.varying)
    summarise = onnx_graph.summarise_real if passes.noises else onnx_graph.summarise_classes
    summarise(graph, statistics, shapes[0])
    onnx_graph.shrink_integers(graph)
    onnx_graph.tidy(model)
    if noise_size:
        onnx_graph.set_default(graph, "samples", samples)
        onnx_graph.set_default(graph, "seed", seed)


def _serialise(model: onnx_ir.Model) -> bytes:
    import onnx_ir

    model.producer_name, model.producer_version = "pocketbayes", version("pocketbayes")
    try:
        proto = onnx_ir.to_proto(model)
        del proto.graph.value_info[:]  # runtimes infer these shapes, which take a fifth of a small file
        data: bytes = proto.SerializeToString(deterministic=True)
    except ValueError as error:
        raise UserError(f"the graph is too large for one ONNX file (2 GB): {error}") from error
    return data


def _description(networks: list[Network], mode: Mode, samples: int, seed: int) -> dict[str, Any]:
    """Return the description for programs that run the graph: preprocessing, class names and settings."""
    first = networks[0]
    spec = models.spec_of(first.model)
    draws = find_propagation(mode).draws and any(network.posterior.noise_size for network in networks)
    return {
        "mode": mode,
        **({"samples": samples, "seed": seed} if draws else {}),
        "networks": len(networks),
        "model": type(first.model).__name__ if spec is None else spec.name,
        "storage": first.posterior.name,
        "weights": first.layout.size,
        "data": None if first.info is None else first.info.to_json(),
    }


@contextmanager
def _step_by_step() -> Iterator[None]:
    """Run transformer layers operation by operation, since ONNX lacks torch's fused one."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause garbage collection, which would take a third of the exporter's time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the exporter's internal messages."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            # A pass puts weights into the model and takes them out again.
            warnings.filterwarnings("ignore", "While compiling, we found certain side effects", UserWarning)
            warnings.filterwarnings("ignore", "The tensor attributes? .* assigned during export", UserWarning)
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch's own call
            yield
    finally:
        for logger, level in zip(loggers, levels):
            logger.setLevel(level)
