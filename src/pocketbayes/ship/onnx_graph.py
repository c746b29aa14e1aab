"""The ONNX graph of an export: a loop over passes with separate noise, and small integers for indices.

Import it only for export, since it needs the extra `onnx`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript import optimizer

Array = npt.NDArray[Any]

BATCH = "batch"
MIN_INTEGER_ENTRIES = 64
"""Smallest number of entries of an integer tensor to shrink; smaller ones are shapes and axes."""


class Nodes:
    """A builder of nodes and their constants."""

    def __init__(self, graph: ir.Graph) -> None:
        """Take the graph to which constants are added as initializers."""
        self.graph = graph
        self.made: list[ir.Node] = []

    def __call__(self, op: str, *inputs: ir.Value | Array | np.generic, **attributes: Any) -> ir.Value:
        """Return the first output of a new node."""
        values = [self.constant(value) if not isinstance(value, ir.Value) else value for value in inputs]
        node = ir.Node("", op, values, ir.convenience.convert_attributes(attributes))
        self.made.append(node)
        return node.outputs[0]

    def constant(self, value: Array | np.generic) -> ir.Value:
        """Return an initializer with this value."""
        name = f"constant_{len(self.graph.initializers)}"
        while name in self.graph.initializers:
            name += "_"
        made = ir.val(name, const_value=ir.tensor(np.asarray(value), name=name))
        self.graph.register_initializer(made)
        return made


@dataclass(frozen=True)
class Statistics:
    """Statistics over passes, per quantity.

    Attributes:
        means: The means over passes of the quantities that vary.
        squares: Their mean squared deviations over passes; None after a single pass.
        averages: The means over passes of everything else.
    """

    means: list[ir.Value]
    squares: list[ir.Value] | None
    averages: list[ir.Value]


def loop(graph: ir.Graph, quantities: int, shapes: Sequence[Sequence[int]], noise_size: int, share: int) -> Statistics:
    """Turn a graph of one pass (x, noise) into a loop over passes whose inputs are x, `samples` and `seed`.

    Nodes that no noise reaches stay outside the loop and run once. The two new inputs have no default yet.

    Args:
        graph: One pass; its first outputs vary between passes, the others are only averaged.
        quantities: The number of outputs that vary.
        shapes: The shape of every output, without the batch.
        noise_size: The number of standard normal numbers per pass.
        share: The number of samples per pass, one from each network of a mixture.
    """
    *inputs, noise = graph.inputs
    outputs = list(graph.outputs)
    samples, seed = (ir.val(name, dtype=ir.DataType.INT64, shape=[]) for name in ("samples", "seed"))
    before, inside, after = Nodes(graph), Nodes(graph), Nodes(graph)

    trips = before("Div", before("Add", before("Max", samples, np.int64(1)), np.int64(share - 1)), np.int64(share))
    batch = before("Shape", inputs[0], start=0, end=1)
    zeros = [before("ConstantOfShape", before("Concat", batch, np.array(s, np.int64), axis=0)) for s in shapes]
    counters = _counters(before, noise_size)
    stream = _mix(before, before("Cast", seed, to=ir.DataType.UINT64))

    number = ir.val("pass", dtype=ir.DataType.INT64, shape=[])
    going = ir.val("going", dtype=ir.DataType.BOOL, shape=[])
    drawn = _normal(inside, stream, number, counters, noise_size)
    rest = _dependents(graph, noise)
    graph.remove(rest)
    ir.convenience.replace_all_uses_with(noise, drawn)
    inside.made += rest

    count = inside("Cast", inside("Add", number, np.int64(1)), to=ir.DataType.FLOAT)
    carried, results, initial = [], [], []
    for place, (output, zero) in enumerate(zip(outputs, zeros)):
        mean = ir.val(f"mean_{place}", dtype=ir.DataType.FLOAT)
        change = inside("Sub", output, mean)
        new = inside("Add", mean, inside("Div", change, count))
        carried.append(mean)
        results.append(new)
        initial.append(zero)
        if place < quantities:  # Welford's sum of squares, which does not cancel for small variances
            squares = ir.val(f"squares_{place}", dtype=ir.DataType.FLOAT)
            carried.append(squares)
            results.append(inside("Add", squares, inside("Mul", change, inside("Sub", output, new))))
            initial.append(zero)
    on = inside("Identity", going)
    body = ir.Graph([number, going, *carried], [on, *results], nodes=inside.made, name="pass")
    node = ir.Node("", "Loop", [trips, None, *initial], [ir.AttrGraph("body", body)], num_outputs=len(carried))

    graph.inputs[len(inputs) :] = [samples, seed]
    _prepend(graph, before.made)
    graph.append(node)
    final = list(node.outputs)
    total = after("Cast", trips, to=ir.DataType.FLOAT)
    varied, averages = final[: 2 * quantities], final[2 * quantities :]
    spreads = [after("Div", value, total) for value in varied[1::2]]
    graph.extend(after.made)
    return Statistics(varied[::2], spreads, averages)


def once(graph: ir.Graph, quantities: int) -> Statistics:
    """Return the statistics of a graph without draws, from its single pass."""
    outputs = list(graph.outputs)
    return Statistics(outputs[:quantities], None, outputs[quantities:])


def summarise_classes(graph: ir.Graph, passes: Statistics, shape: Sequence[int]) -> None:
    """Return mean probabilities (batch, *shape); entropy = aleatoric + epistemic.

    The varying quantities are probabilities and logits; their variances within passes and the expected entropy are
    averaged.
    """
    op = Nodes(graph)
    probs, logits = passes.means
    within, logits_within, aleatoric = passes.averages
    log = op("Log", op("Max", probs, np.float32(np.finfo(np.float32).tiny)))
    entropy = op("Neg", op("ReduceSum", op("Mul", probs, log), np.array([1], np.int64), keepdims=0))
    outputs = {
        "probs": probs,
        "var": _total(op, passes, 0, within),
        "entropy": entropy,
        "epistemic": op("Max", op("Sub", entropy, aleatoric), np.float32(0)),
        "aleatoric": aleatoric,
        "logits": logits,
        "logits_var": _total(op, passes, 1, logits_within),
    }
    per_class = ("probs", "var", "logits", "logits_var")
    _answer(graph, op, outputs, {name: shape if name in per_class else shape[1:] for name in outputs})


def summarise_real(graph: ir.Graph, passes: Statistics, shape: Sequence[int]) -> None:
    """Return mean (batch, *shape); variance = that of the mean over passes + the mean noise variance.

    The varying quantity is the mean; its variance within passes and the noise variance are averaged.
    """
    op = Nodes(graph)
    (mean,) = passes.means
    within, noise = passes.averages
    spread = _total(op, passes, 0, within)
    var = op("Add", spread, noise)
    outputs = {
        "mean": mean,
        "var": var,
        "entropy": op("Mul", op("Log", op("Mul", var, np.float32(2 * math.pi * math.e))), np.float32(0.5)),
        "epistemic": op("Sqrt", spread),
        "aleatoric": op("Sqrt", noise),
    }
    _answer(graph, op, outputs, dict.fromkeys(outputs, shape))


def set_default(graph: ir.Graph, name: str, value: int) -> None:
    """Make an input optional."""
    made = next(each for each in graph.inputs if each.name == name)
    made.const_value = ir.tensor(np.asarray(value, np.int64), name=name)
    graph.register_initializer(made)


def fold_constants(model: ir.Model, limit: int) -> None:
    """Inline functions and compute tensors of at most `limit` entries that depend on constants alone.

    onnxscript's own optimiser also matches patterns, in time that grows with the square of the nodes; runtimes match
    patterns when they load a graph.
    """
    common.InlinePass()(model)
    optimizer.fold_constants(model, onnx_shape_inference=True, input_size_limit=limit, output_size_limit=limit)
    common.RemoveUnusedNodesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def shrink_integers(graph: ir.Graph) -> None:
    """Store indices as small integers, widened by nodes that a runtime folds when it loads the graph."""
    op = Nodes(graph)
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or tensor.dtype not in (ir.DataType.INT64, ir.DataType.INT32):
            continue
        array = tensor.numpy()
        if array.size >= MIN_INTEGER_ENTRIES:
            wide = _widened(op, array.reshape(-1).astype(np.int64))
            wide = wide if tensor.dtype == ir.DataType.INT64 else op("Cast", wide, to=tensor.dtype)
            ir.convenience.replace_all_uses_with(value, op("Reshape", wide, np.array(array.shape, np.int64)))
            del graph.initializers[name]
    _prepend(graph, op.made)


def tidy(model: ir.Model) -> None:
    """Remove unused and duplicate nodes and the tracer's annotations."""
    for step in (
        common.RemoveUnusedNodesPass(),
        common.CommonSubexpressionEliminationPass(),
        common.DeduplicateInitializersPass(size_limit=1 << 20),
        common.ClearMetadataAndDocStringPass(),
        common.NameFixPass(),
    ):
        step(model)
    kept = {*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()}
    numbers = itertools.count()
    for graph in model.graphs():
        for node in graph:
            node.name = None
            for value in node.outputs:
                if value not in kept:  # a runtime infers shape and type; names must differ in a loop's body too
                    value.shape = value.type = None
                    value.name = f"value_{next(numbers)}"


# -- noise ------------------------------------------------------------------------------------------------------------

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _counters(op: Nodes, size: int) -> ir.Value:
    """Return (j + 1) times the golden ratio's bits, one 64-bit number for every two numbers of noise."""
    steps = op("Range", np.int64(1), np.int64(math.ceil(size / 2) + 1), np.int64(1))
    return op("Mul", op("Cast", steps, to=ir.DataType.UINT64), _GOLDEN)


def _mix(op: Nodes, z: ir.Value) -> ir.Value:
    """Return SplitMix64's scrambling of 64 bits (Steele, Lea & Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = op("Mul", op("BitwiseXor", z, op("BitShift", z, np.uint64(shift), direction="RIGHT")), np.uint64(factor))
    return op("BitwiseXor", z, op("BitShift", z, np.uint64(31), direction="RIGHT"))


def _normal(op: Nodes, stream: ir.Value, number: ir.Value, counters: ir.Value, size: int) -> ir.Value:
    """Compute standard normal numbers (size,) of a pass: SplitMix64 by position, then Box and Muller.

    ONNX's RandomNormal continues from its last call and differs between runtimes, so a seed does not reproduce a
    prediction. These numbers are a function of seed, pass and position.
    """
    own = _mix(op, op("Add", stream, op("Mul", op("Cast", number, to=ir.DataType.UINT64), _GOLDEN)))
    bits = _mix(op, op("Add", own, counters))
    upper = op("Cast", op("BitShift", bits, np.uint64(32), direction="RIGHT"), to=ir.DataType.FLOAT)
    lower = op("Cast", op("BitwiseAnd", bits, np.uint64(0xFFFFFFFF)), to=ir.DataType.FLOAT)
    uniform = op("Add", op("Mul", upper, np.float32(2.0**-32)), np.float32(2.0**-33))  # never 0
    radius = op("Sqrt", op("Mul", op("Log", uniform), np.float32(-2)))
    angle = op("Mul", lower, np.float32(2 * math.pi * 2.0**-32))
    both = op("Concat", op("Mul", radius, op("Cos", angle)), op("Mul", radius, op("Sin", angle)), axis=0)
    return op("Slice", both, np.array([0], np.int64), np.array([size], np.int64))


# -- small integers ---------------------------------------------------------------------------------------------------


def _widened(op: Nodes, values: Array, ascending: bool = True) -> ir.Value:
    """Return nodes that give non-negative integers (n,) as int64, from the smallest constants.

    These are bytes, or larger integers if most values need them; bytes with a list of exceptions if few do; gaps if the
    values ascend.
    """
    gaps = np.diff(values, prepend=0)
    if ascending and len(values) > 1 and gaps.min() >= 0 and gaps.max() < values.max():
        return op("CumSum", _widened(op, gaps, ascending=False), np.int64(0))
    dtype = np.min_scalar_type(values.max(initial=0)) if values.min(initial=0) >= 0 else np.dtype(np.int64)
    (large,) = np.nonzero(values > 255)
    if dtype.itemsize > 1 and values.min() >= 0 and len(large) * 6 < len(values) * (dtype.itemsize - 1):
        small = op("Cast", np.where(values > 255, 0, values).astype(np.uint8), to=ir.DataType.INT64)
        exceptions = op("Cast", values[large].astype(dtype), to=ir.DataType.INT64)
        return op("ScatterElements", small, _widened(op, large), exceptions, axis=0)
    return op("Cast", values.astype(dtype), to=ir.DataType.INT64)


# -- parts ------------------------------------------------------------------------------------------------------------


def _dependents(graph: ir.Graph, value: ir.Value) -> list[ir.Node]:
    """Return the nodes that a value reaches, in their order."""
    reached = {value}
    nodes = []
    for node in graph:
        if any(each in reached for each in node.inputs if each is not None):
            reached.update(node.outputs)
            nodes.append(node)
    return nodes


def _prepend(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    if len(graph):
        graph.insert_before(graph[0], nodes)
    else:
        graph.extend(nodes)


def _total(op: Nodes, passes: Statistics, place: int, within: ir.Value) -> ir.Value:
    """Return the variance over passes and within them."""
    return within if passes.squares is None else op("Add", passes.squares[place], within)


def _answer(graph: ir.Graph, op: Nodes, outputs: dict[str, ir.Value], shapes: dict[str, Sequence[int]]) -> None:
    graph.extend(op.made)
    final = Nodes(graph)
    named = []
    for name, value in outputs.items():
        made = final("Identity", value)  # a value may be requested twice, and then has a name already
        made.name, made.dtype, made.shape = name, ir.DataType.FLOAT, ir.Shape([BATCH, *shapes[name]])
        named.append(made)
    graph.extend(final.made)
    graph.outputs[:] = named
    for value in graph.inputs:
        if value.shape:  # not `samples` and `seed`, which are numbers
            value.shape = ir.Shape([BATCH, *value.shape[1:]])
