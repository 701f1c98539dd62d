"""Quantized products and numbers as nodes that runtimes fuse: QuantizeLinear and DequantizeLinear around floats.

The nodes are near the laws of `qcore.exchange.laws`, not equal: QuantizeLinear divides by the scale, biases are
integers, and runtimes round the sums of their fused kernels in ways of their own. So some integers differ by one. What
has no such nodes keeps the law's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qcore.affine.integers import AffineInteger
from qcore.exchange import laws, rounding
from qcore.exchange.graph import Graph, number_of, onnx_package
from qcore.exchange.symbols import Names, Symbol, is_known, name_of
from qcore.formats.block import check_element
from qcore.formats.text import parse

_BYTES = "int8", "uint8"
_STORED = *_BYTES, "int16", "uint16"
_INT32 = 2**31


class Numbers(Symbol):
    """Dequantized integers that remember them: quantized again with their parameters, they are these integers."""

    def __init__(self, made: Symbol, integers: Symbol, parameters: tuple[Any, ...]) -> None:
        super().__init__(made.graph, made.name, made.dtype, made.ndim)
        self.integers, self.parameters = integers, parameters


class Sums(Symbol):
    """Exact sums of products that no node computes yet: `requantize` has a fused kernel in their place.

    Whatever else reads them has the law, whose nodes are written when the name is asked for.

    Args:
        law: `laws.products` or `laws.windows`.
        operands: of the law: integers, their zero point, weights, and theirs.
        settings: of the law: the dtype of the sums, and of windows where they lie.
    """

    def __init__(self, law: Callable[..., Symbol], operands: Any, settings: dict[str, Any]) -> None:
        self.graph, self.dtype, self.ndim = operands[0].graph, settings["dtype"], operands[0].ndim
        self.operands, self.settings = operands, settings
        self._law, self._label, self._written = law, "", None

    @property
    def name(self) -> str:
        """The name of the law's result."""
        if self._written is None:
            self._written = self._law(*self.operands, **self.settings)
            if self._label:
                self._written.rename(self._label)
        return self._written.name

    def rename(self, name: str) -> None:
        """Names the law's result, if it is ever written."""
        self._label = name


def quantize(x: Symbol, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger) -> Symbol:
    """`laws.quantize` by QuantizeLinear; integers of fewer bits than their type are clipped."""
    if isinstance(x, Numbers) and _are_same(x.parameters, (scale, zero_point, axis, form)):
        return x.integers
    limits = np.iinfo(form.storage)
    is_narrow = (form.qmin, form.qmax) != (limits.min, limits.max)
    if form.storage not in (_BYTES if is_narrow else _STORED):
        return laws.quantize(x, scale, zero_point, axis, form)
    operands = Names.astype(x, "float32"), scale, Names.astype(zero_point, form.storage)
    q = _node(x, "QuantizeLinear", form.storage, *operands, axis=axis)
    return Names.clip(q, form.qmin, form.qmax) if is_narrow else q


def dequantize(q: Symbol, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger) -> Symbol:
    """`laws.dequantize` by DequantizeLinear."""
    if q.dtype not in _STORED:
        return laws.dequantize(q, scale, zero_point, axis)
    made = _node(q, "DequantizeLinear", "float32", q, scale, Names.astype(zero_point, q.dtype), axis=axis)
    return Numbers(made, q, (scale, zero_point, axis, form))


def fake_quantize(x: Symbol, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger) -> Symbol:
    """`laws.fake_quantize` by both."""
    if form.storage not in _STORED:
        return laws.fake_quantize(x, scale, zero_point, axis, form)
    q = quantize(x, scale, zero_point, axis, form)
    return Names.astype(dequantize(q, scale, zero_point, axis, form), x.dtype)


def requantize(
    sums: Symbol,
    input_scale: Any,
    weight_scale: Any,
    bias: Any,
    scale: Any,
    zero_point: Any,
    axis: int,
    form: AffineInteger,
) -> Symbol:
    """`laws.requantize` as a Conv or a Gemm of dequantized operands whose result is quantized."""
    if isinstance(sums, Sums) and is_known(*sums.operands[1:], input_scale, weight_scale, bias):
        x, _, weight, weight_zero = sums.operands
        units = np.float32(input_scale * weight_scale)
        biases = None if bias is None else _integers_of(bias, units)
        # Runtimes have one zero point for all filters of a kernel.
        fits = weight.dtype.name in _BYTES and x.dtype in _STORED and np.ptp(weight_zero) == 0
        if fits and form.storage in _STORED and (bias is None or biases is not None):
            operands = [dequantize_with(sums, input_scale), _channels(x, weight, weight_scale, weight_zero)]
            operands += [] if biases is None else [_channels(x, biases, units, None)]
            return _product(sums, operands, len(weight), scale, zero_point, form)
    return laws.requantize(sums, input_scale, weight_scale, bias, scale, zero_point, axis, form)


def _product(sums: Sums, operands: list[Any], outputs: int, scale: Any, zero_point: Any, form: AffineInteger) -> Symbol:
    """The quantized product of dequantized operands."""
    x = sums.operands[0]
    if "stride" in sums.settings:
        made = _node(x, "Conv", "float32", *operands, **laws.window_attributes(sums.settings))
        return quantize(made, scale, zero_point, None, form)
    made = _node(x, "Gemm", "float32", *operands, ndim=2, transB=1)
    q = quantize(made, scale, zero_point, None, form)
    if x.ndim == 2:
        return q
    before = _node(x, "Shape", "int64", x, ndim=1, end=-1)
    shape = _node(x, "Concat", "int64", before, np.array([outputs]), ndim=1, axis=0)
    return _node(q, "Reshape", q.dtype, q, shape, ndim=x.ndim)


def dequantize_with(sums: Sums, scale: Any) -> Symbol:
    """The numbers of a product's integers; those of a Gemm have two dimensions."""
    x, zero_point, *_ = sums.operands
    if "stride" not in sums.settings and x.ndim != 2:
        x = x.reshape((-1, sums.operands[2].shape[-1]))
    return _node(x, "DequantizeLinear", "float32", x, scale, Names.astype(zero_point, x.dtype))


def _channels(like: Symbol, integers: np.ndarray, scale: Any, zero_point: Any) -> Symbol:
    """The numbers of known integers, with a scale for the whole or for each along the first axis."""
    scale = np.asarray(scale, np.float32)
    zeros = np.zeros(scale.shape, integers.dtype)
    zeros = zeros if zero_point is None else (zeros + zero_point).astype(integers.dtype)
    axis = 0 if scale.ndim else None
    return _node(like, "DequantizeLinear", "float32", integers, scale, zeros, ndim=integers.ndim, axis=axis)


def _integers_of(bias: np.ndarray, units: Any) -> np.ndarray | None:
    """A bias as int32 multiples of the products' units; None where they do not hold it."""
    with np.errstate(all="ignore"):
        found = np.rint(bias.astype(np.float64) / units)
    return found.astype(np.int32) if (abs(found) < _INT32).all() else None


def dynamic(
    x: Symbol, w: Any, w_scale: Any, w_zero: Any, bias: Any, form: AffineInteger, dtype: str, rows: bool = False
) -> Symbol:
    """`laws.dynamic` by DynamicQuantizeLinear, which has all 256 values, also for a form of fewer, and no rows."""
    known = is_known(w, w_scale, w_zero, bias)
    if rows or (form.storage, dtype) != ("uint8", "int32") or not known or np.ptp(w_zero) != 0:
        return laws.dynamic(x, w, w_scale, w_zero, bias, form, dtype, rows)
    graph, given = x.graph, Names.astype(x, "float32")
    names = graph.node("DynamicQuantizeLinear", given.name, outputs=3)
    q, scale, zero = (
        Symbol(graph, name, dtype, ndim)
        for name, dtype, ndim in zip(names, ("uint8", "float32", "uint8"), (x.ndim, 0, 0), strict=True)
    )
    sums = _node(x, "MatMulInteger", "int32", q, w.T, zero, np.asarray(w_zero).reshape(-1)[0].astype(w.dtype))
    y = Names.astype(sums, "float32") * (scale * w_scale)
    return y if bias is None else y + bias


def with_weights(graph: Graph, node: Any, inputs: list[str]) -> bool:
    """Writes a Transpose or a Gemm of dequantized weights as runtimes fuse it; False for other nodes.

    A product with integers of 4 or 8 bits is a kernel where DequantizeLinear of a matrix (terms, outputs) stands before
    MatMul.
    """
    settings = {one.name: onnx_package().helper.get_attribute_value(one) for one in node.attribute}
    if node.op_type == "Transpose" and settings.get("perm") == [1, 0]:
        return transposed(graph, inputs[0], node.output[0]) is not None
    whole = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **settings}
    if node.op_type != "Gemm" or whole != {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 1}:
        return False
    weight = transposed(graph, inputs[1])
    if weight is None:
        return False
    biases = [name for name in inputs[2:] if name]
    made = graph.node("MatMul", inputs[0], weight, dtype="float32", name=None if biases else node.output[0])
    if biases:
        graph.node("Add", made, *biases, dtype="float32", name=node.output[0])
    return True


def transposed(graph: Graph, name: str, result: str | None = None) -> str | None:
    """The numbers of known integers of a matrix, transposed; None for other values."""
    source = next((node for node in reversed(graph.nodes) if name in node.output), None)
    if source is None or source.op_type != "DequantizeLinear":
        return None
    arrays = [graph.constants.get(one) for one in source.input]
    if any(one is None for one in arrays) or arrays[0].ndim != 2:  # type: ignore[union-attr]
        return None
    settings = {one.name: onnx_package().helper.get_attribute_value(one) for one in source.attribute}
    if "axis" in settings:
        settings["axis"] = 1 - settings["axis"] % 2
    operands = (graph.constant(np.ascontiguousarray(one.T)) for one in arrays)  # type: ignore[union-attr]
    return graph.node(source.op_type, *operands, dtype="float32", name=result, **settings)


def scaled(x: Symbol, scale: np.ndarray, number: str, axis: int) -> Symbol:
    """`rounding.scaled` by QuantizeLinear to a float of 8 bits, where ONNX has the format."""
    text, _, policy = check_element(parse(number)).text.partition(":")
    dtype = rounding.CASTS.get(text, "")
    if not dtype.startswith("float8"):
        return rounding.scaled(x, scale, number, axis)
    scale = np.asarray(scale, np.float32).reshape(() if scale.size == 1 else -1)
    place, saturates = axis if scale.ndim else None, None if policy == "saturate" else 0
    # The type is an attribute: before a zero point that is 0, as of uint8, onnxruntime 1.32 leaves out a ReLU.
    kind = number_of(dtype)
    given = Names.astype(x, "float32")
    q = _node(x, "QuantizeLinear", dtype, given, scale, axis=place, saturate=saturates, output_dtype=kind)
    return Names.astype(_node(q, "DequantizeLinear", "float32", q, scale, axis=place), x.dtype)


def _are_same(ours: tuple[Any, ...], others: tuple[Any, ...]) -> bool:
    """True if parameters are known to be equal, or are the same values of the graph."""
    pairs = list(zip(ours, others, strict=True))
    return all(a is b or (is_known(a, b) and np.array_equal(a, b)) for a, b in pairs[:2]) and ours[2:] == others[2:]


def _node(like: Symbol, op: str, dtype: str, *operands: Any, ndim: int | None = None, **attributes: Any) -> Symbol:
    """The result of a node in a value's graph, by default with its dimensions."""
    graph = like.graph
    names = [name_of(graph, one, "") for one in operands]
    made = graph.node(op, *names, dtype=dtype, **attributes)
    return Symbol(graph, made, dtype, like.ndim if ndim is None else ndim)
