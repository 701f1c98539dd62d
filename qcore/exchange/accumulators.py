"""Widths of accumulators in a model of QONNX: exact sums of fixed point numbers, as annotations for hardware tools."""

from __future__ import annotations

from collections import Counter
from math import frexp
from typing import Any, NamedTuple

import numpy as np

from qcore.exchange.graph import onnx_package
from qcore.exchange.operators.qonnx import quant
from qcore.exchange.qonnx import DOMAIN, ends

_KEPT = ("Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_EXACT = 25  # bits of sums that float32 holds, with their sign
_KEY = "finn_datatype"  # of annotations that qonnx, FINN and hls4ml read


class _Span(NamedTuple):
    """Multiples of 2^step from low * 2^step to high * 2^step; `numbers` are the counts of known ones."""

    step: int
    low: int
    high: int
    numbers: Any = None

    def at(self, step: int) -> _Span:
        """The same numbers as multiples of a smaller step."""
        shift = self.step - step
        numbers = None if self.numbers is None else self.numbers * 2**shift
        return _Span(step, self.low << shift, self.high << shift, numbers)

    @property
    def bits(self) -> int:
        """The bits of two's complement for all numbers."""
        return max(self.high.bit_length(), (-self.low - 1).bit_length() if self.low < 0 else 0) + 1

    @property
    def datatype(self) -> str | None:
        """The name of the type in two's complement that has all numbers; None if there is none."""
        bits = self.bits
        return f"FIXED<{bits},{bits + self.step}>" if self.step < 0 else f"INT{bits}" if self.step == 0 else None


def finished(model: Any) -> Any:
    """A model as tools for hardware want it.

    Outputs have no Identity in front of them, the greater of a number and 0 is a Relu, and what is added to the
    channels of a convolution is its bias, if sums are exact. Each sum has an annotation: the narrowest fixed point type
    with every value that it can take. Sums are products of numbers that Quant nodes rounded with weights that Quant
    nodes round or that are constants, and their biases.

    Args:
        model: an `onnx.ModelProto`, which is changed.

    Returns:
        The model.
    """
    onnx = onnx_package()
    _drop_identities(model.graph)
    arrays = {one.name: onnx.numpy_helper.to_array(one) for one in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Max" and len(node.input) == 2 and _is_zero(arrays.get(node.input[1])):
            node.op_type = "Relu"
            del node.input[1]
    _move_biases(model.graph, arrays, _spans(model.graph, arrays, onnx))
    spans = _spans(model.graph, arrays, onnx)
    for node in model.graph.node:
        span = spans.get(node.output[0])
        if node.op_type in (*_PRODUCTS, "Add") and span is not None and span.datatype:
            entry = onnx.StringStringEntryProto(key=_KEY, value=span.datatype)
            model.graph.quantization_annotation.add(tensor_name=node.output[0], quant_parameter_tensor_names=[entry])
    return model


def _spans(graph: Any, arrays: dict[str, Any], onnx: Any) -> dict[str, _Span]:
    """What the results of a graph's nodes can be, by name, where it is known."""
    spans: dict[str, _Span] = {}
    for node in graph.node:
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        span = _after(node, attributes, spans, arrays, onnx)
        if span is not None:
            spans[node.output[0]] = span
    return spans


def _move_biases(graph: Any, arrays: dict[str, Any], spans: dict[str, _Span]) -> None:
    """Makes a bias of what is added to the transposed result of a convolution, as JAX has channels last."""
    makers = {node.output[0]: node for node in graph.node}
    uses = Counter(name for node in graph.node for name in node.input) + Counter(one.name for one in graph.output)
    for add in [node for node in graph.node if node.op_type == "Add"]:
        turned, bias = makers.get(add.input[0]), arrays.get(add.input[1])
        conv = None if turned is None or turned.op_type != "Transpose" else makers.get(turned.input[0])
        if conv is None or bias is None or bias.ndim != 1 or conv.op_type != "Conv" or len(conv.input) != 2:
            continue
        span, places = spans.get(add.output[0]), list(turned.attribute[0].ints)  # type: ignore[union-attr]
        if span is None or span.bits > _EXACT or places[-1] != 1 or uses[conv.output[0]] + uses[add.input[0]] != 2:
            continue
        conv.input.append(add.input[1])
        turned.output[0] = add.output[0]  # type: ignore[union-attr]
        graph.node.remove(add)


def _is_zero(array: Any) -> bool:
    return array is not None and array.shape == () and array == 0


def _drop_identities(graph: Any) -> None:
    """Gives the results of nodes the names of the outputs that Identity makes of them; hls4ml reads no such node."""
    outputs = {one.name for one in graph.output}
    made = {name for node in graph.node for name in node.output}
    last = {
        node.input[0]: node.output[0]
        for node in graph.node
        if node.op_type == "Identity" and node.output[0] in outputs and node.input[0] in made - outputs
    }
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [last.get(name, name) for name in names]
    for node in [node for node in graph.node if node.op_type == "Identity" and node.input[0] == node.output[0]]:
        graph.node.remove(node)


def _after(node: Any, attributes: Any, spans: dict[str, _Span], arrays: dict[str, Any], onnx: Any) -> _Span | None:
    """What a node's result can be; None if it is not known."""
    given = [_of_array(arrays[name]) if name in arrays else spans.get(name) for name in node.input]
    if node.domain == DOMAIN and node.op_type == "Quant":
        return _of_quant(node, attributes, arrays, onnx)
    if node.op_type in _PRODUCTS and given[0] and given[1] and given[1].numbers is not None:
        sums = _sums(node.op_type, given[0], given[1], attributes)
        if sums is None or len(given) == 2:
            return sums
        return None if given[2] is None else _sum(sums, given[2])
    if node.op_type == "Add" and given[0] and given[1]:
        return _sum(given[0], given[1])
    if node.op_type == "Relu" and given[0]:
        return _Span(given[0].step, max(given[0].low, 0), max(given[0].high, 0))
    if node.op_type == "Transpose" and given[0] and given[0].numbers is not None:
        return given[0]._replace(numbers=given[0].numbers.transpose(attributes.get("perm")))
    return given[0]._replace(numbers=None) if node.op_type in _KEPT and given and given[0] else None


def _of_quant(node: Any, attributes: Any, arrays: dict[str, Any], onnx: Any) -> _Span | None:
    scale, zero, bits = (arrays.get(name) for name in node.input[1:])
    if scale is None or zero is None or bits is None or scale.size != 1 or zero.any():
        return None
    mantissa, exponent = frexp(scale.item())
    if mantissa != 0.5:
        return None
    low, high = ends(int(bits.item()), attributes["signed"], attributes["narrow"])
    x = arrays.get(node.input[0])
    if x is None:
        return _Span(exponent - 1, low, high)
    texts: dict[str, Any] = {name: one.decode() if isinstance(one, bytes) else one for name, one in attributes.items()}
    return _of_array(np.asarray(quant(x, scale, zero, bits, **texts)), exponent - 1)


def _of_array(array: Any, step: int | None = None) -> _Span | None:
    """Known float32 numbers as multiples of a step, by default that of their last bits; None if there are too many."""
    if array.dtype != np.float32 or not array.size or not np.isfinite(array).all():
        return None
    if step is None:
        mantissas, exponents = np.frexp(array.astype(np.float64))
        digits = (mantissas * 2.0**24).astype(np.int64)  # all bits of a float32 number
        bits = digits & -digits
        places = exponents - 24 + np.log2(np.maximum(bits, 1)).astype(np.int64)
        step = int(places[digits != 0].min()) if digits.any() else 0
    counts = array.astype(np.float64) / 2.0**step
    if abs(counts).max() >= 2**40:
        return None
    return _Span(step, int(counts.min()), int(counts.max()), counts.astype(np.int64))


def _sums(op: str, x: _Span, weight: _Span, attributes: Any) -> _Span | None:
    """The sums of products: each output has the bounds of its own weights."""
    if op == "Gemm" and (attributes.get("alpha", 1.0), attributes.get("beta", 1.0), attributes.get("transA", 0)) != (
        1,
        1,
        0,
    ):
        return None
    outputs = 0 if op == "Conv" or attributes.get("transB", 0) else weight.numbers.ndim - 1
    along = tuple(axis for axis in range(weight.numbers.ndim) if axis != outputs)
    # A term may be missing: around images are zeros.
    low, high = min(x.low, 0), max(x.high, 0)
    bounds = weight.numbers * low, weight.numbers * high
    least, most = np.minimum(*bounds).sum(along), np.maximum(*bounds).sum(along)
    return _Span(x.step + weight.step, int(least.min()), int(most.max()))


def _sum(a: _Span, b: _Span) -> _Span:
    step = min(a.step, b.step)
    a, b = a.at(step), b.at(step)
    return _Span(step, a.low + b.low, a.high + b.high)
