"""The laws of `qcore.affine` as nodes of a graph: each function runs the one law on the names of ONNX.

Operands are symbols or known arrays of NumPy; what follows from known arrays is a constant of the graph. Runtimes fuse
dequantized operands, products and quantized results into kernels that round otherwise, and QuantizeLinear divides where
the law multiplies by a reciprocal. So the integers of activations are written as the law has them, and products as
MatMulInteger and ConvInteger; known integers alone leave as DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from qcore.affine import law
from qcore.affine.functional import recurrent
from qcore.affine.integers import AffineInteger
from qcore.exchange.graph import Graph
from qcore.exchange.symbols import Names, Symbol, Weights, is_known, name_of


def quantize(x: Symbol, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger) -> Symbol:
    """`qcore.affine.quantize_affine`: the integers in the dtype `form.storage`.

    Example:
        >>> from qcore.exchange.graph import Graph
        >>> graph = Graph("integers")
        >>> x = Symbol(graph, graph.input("x", "float32", (3,)), "float32", 1)
        >>> q = quantize(x, np.float32(0.1), np.int32(7), None, AffineInteger(0, 255))
        >>> q.dtype, [node.op_type for node in graph.nodes]
        ('uint8', ['Mul', 'Round', 'Add', 'Equal', 'Where', 'Clip', 'Cast', 'Cast'])
    """
    with Names.arithmetic():
        return Names.astype(law.quantize(Names, x, scale, zero_point, axis, form), form.storage)


def dequantize(q: Any, scale: Any, zero_point: Any, axis: int | None, dtype: str = "float32") -> Symbol:
    """`qcore.affine.dequantize` of integers that a graph computes."""
    with Names.arithmetic():
        return law.dequantize(Names, Names.astype(q, "int32"), scale, zero_point, axis, dtype)


def stored(
    graph: Graph,
    q: np.ndarray,
    scale: Any,
    zero_point: Any,
    axis: int | None,
    form: AffineInteger,
    apart: bool = True,
) -> Symbol:
    """`qcore.affine.dequantize` of known integers, which leave as they are: DequantizeLinear has the law.

    Integers of 4 bits are packed two in a byte. Unless they stand apart, runtimes may fuse them with what reads them.

    Example:
        >>> graph = Graph("weight")
        >>> stored(
        ...     graph, np.int8([[-8, 7]]), np.float32(0.5), np.int32(0), None, AffineInteger(-8, 7)
        ... ).dtype
        'float32'
        >>> [array.dtype.name for array in graph.constants.values()]
        ['int4', 'float32', 'int4']
    """
    import ml_dtypes  # a requirement of onnx

    least = -8 if form.signed else 0
    four = ml_dtypes.int4 if form.signed else ml_dtypes.uint4
    dtype = np.dtype(four if least <= form.qmin and form.qmax < least + 16 else form.storage)
    operands = [q.astype(dtype), np.asarray(scale, np.float32)]
    if dtype != np.int32:  # whose zero point is 0
        operands.append(np.asarray(zero_point).astype(dtype))
    made = _node(graph, "DequantizeLinear", "float32", q.ndim, *operands, axis=0 if axis is None else axis)
    # Without bounds it changes nothing. Next to DequantizeLinear onnxruntime would make MatMulNBits of a MatMul, which
    # rounds the activations to 8 bits.
    return made._made("Clip") if apart else Weights(graph, made.name, made.dtype, made.ndim)


def fake_quantize(x: Symbol, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger) -> Symbol:
    """`qcore.affine.fake_quantize` without the mask of gradients."""
    with Names.arithmetic():
        return law.fake_quantize(Names, x, scale, zero_point, axis, form)[0]


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
    """`qcore.affine.requantize` of sums whose channels lie along an axis."""
    with Names.arithmetic():
        q = law.requantize(Names, sums, input_scale, weight_scale, bias, scale, zero_point, axis, form)
        return Names.astype(q, form.storage)


def quantize_dynamic(x: Symbol, form: AffineInteger, rows: bool = False) -> tuple[Symbol, Symbol, Symbol]:
    """The integers of `qcore.affine.functional.recurrent.quantize_dynamic`, their scale and their zero point."""
    q, qparams = recurrent.quantize_dynamic(Names, x, form, rows)
    return Names.astype(q, form.storage), qparams.scale, qparams.zero_point


def dynamic(
    x: Symbol, w: Any, w_scale: Any, w_zero: Any, bias: Any, form: AffineInteger, dtype: str, rows: bool = False
) -> Symbol:
    """A dynamic layer's product: rows of floats, quantized to a form by their own range, with a quantized weight.

    `dtype` is that of the sums, as for `products`; with rows, x is a matrix whose rows have ranges of their own.
    """
    q, scale, zero_point = quantize_dynamic(Names.astype(x, "float32"), form, rows)
    if not rows:
        return recurrent.dynamic_output(Names, products(q, zero_point, w, w_zero, dtype), scale, w_scale, bias)
    if not is_known(w, w_zero):
        raise ValueError("a dynamic layer with a range for each row needs a known weight; allowed are constants")
    zeros = np.asarray(w_zero, np.int64)
    totals = np.asarray(w, np.int64).sum(1) - w.shape[1] * zeros
    sums = products(q, np.int32(0), w, w_zero, dtype)
    sums = recurrent.sums_of_rows(sums, Names.astype(zero_point, dtype), totals.astype(dtype))
    return recurrent.dynamic_output(Names, sums, scale, w_scale, bias)


def cell(law: str, of_input: Any, of_hidden: Any, state: Any) -> tuple[Symbol, ...]:
    """The states after a step of an "lstm", the hidden and the cell state, or of a "gru", from the two products.

    `state` is the cell state of an LSTM, and the hidden state of a GRU.
    """
    if law == "lstm":
        i, f, g, o = _split(of_input + of_hidden, 4)
        return recurrent.lstm_step(Names, i, f, g, o, state)
    return (recurrent.gru_step(Names, _split(of_input, 3), _split(of_hidden, 3), state),)


def _split(x: Symbol, parts: int) -> list[Symbol]:
    """Equal parts along the last axis."""
    names = x.graph.node("Split", x.name, outputs=parts, dtype=x.dtype, axis=-1, num_outputs=parts)
    return [Symbol(x.graph, name, x.dtype, x.ndim) for name in names]


def products(x: Symbol, x_zero: Any, w: Any, w_zero: Any, dtype: str) -> Symbol:
    """The exact sums of (x - its zero point) * (w - its zero point), of shape (..., outputs).

    Args:
        x: integers of shape (..., features), with one zero point.
        w: integers of shape (outputs, features), with one zero point, or one for each output.
        x_zero, w_zero: the zero points.
        dtype: of the sums: int32, or float64 where int32 may not hold them or integers have 16 bits.
    """
    if dtype == "int32":
        a, b = _unsigned(x, x_zero), _unsigned(_transposed(w), w_zero)
        return _node(x.graph, "MatMulInteger", "int32", x.ndim, a[0], b[0], a[1], b[1])
    a, b = (Names.astype(_difference(*one), "float64") for one in ((x, x_zero, None), (w, w_zero, 0)))
    return _node(x.graph, "MatMul", "float64", x.ndim, a, _transposed(b))


def windows(
    x: Symbol,
    x_zero: Any,
    w: Any,
    w_zero: Any,
    dtype: str,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> Symbol:
    """The exact sums of (x - its zero point) * (w - its zero point) over windows, of shape (batch, outputs, *places).

    Args:
        x: integers of shape (batch, channels, *sizes), with one zero point.
        w: integers of shape (outputs, channels / groups, *kernel), with one zero point, or one for each output.
        x_zero, w_zero: the zero points; around the images lies that of x.
        dtype: of the sums.
        stride, dilation, groups: of the convolution.
        padding: the numbers of zero points before and after the images, for each dimension.

    Raises:
        ValueError: if int32 does not hold the sums of 8-bit parts of the integers.
    """
    if prod(w.shape[1:]) * 255 * 255 >= 2**31:
        raise ValueError(
            f"weight has shape {tuple(w.shape)}, whose sums ConvInteger cannot hold in int32; allowed are fewer terms"
        )
    settings = window_attributes({"stride": stride, "padding": padding, "dilation": dilation, "groups": groups})
    if dtype == "int32":
        return _convolved(_unsigned(x, x_zero), _unsigned(w, w_zero), settings)
    total: Any = np.float64(0)
    for first, images in _bytes(x, x_zero):
        for second, filters in _bytes(w, w_zero):
            total = total + Names.astype(_convolved(images, filters, settings), "float64") * np.float64(first * second)
    return total


def window_attributes(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Where the windows of a convolution lie, as attributes of ONNX; see `windows`."""
    padding = settings["padding"]
    return {
        "strides": list(settings["stride"]),
        "pads": [before for before, _ in padding] + [after for _, after in padding],
        "dilations": list(settings["dilation"]),
        "group": settings["groups"],
    }


def _convolved(images: tuple[Any, Any], filters: tuple[Any, Any], settings: dict[str, Any]) -> Symbol:
    """The sums of windows of uint8 with their zero points."""
    (x, x_zero), (w, zero) = images, filters
    first = zero if np.ndim(zero) == 0 else np.uint8(128)
    sums = _node(x.graph, "ConvInteger", "int32", x.ndim, x, w, x_zero, first, **settings)
    if np.ndim(zero) == 0 or (is_known(zero) and (zero == first).all()):
        return sums
    # Runtimes have one zero point for all filters: the rest is a multiple of the windows' own sums.
    ones = np.ones(w.shape, np.uint8)
    of_windows = _node(x.graph, "ConvInteger", "int32", x.ndim, x, ones, x_zero, np.uint8(0), **settings)
    return sums - of_windows * law.along(np.int32(zero) - np.int32(128), 1, x.ndim)


def _bytes(q: Any, zero: Any) -> list[tuple[int, tuple[Any, Any]]]:
    """Integers of 16 bits as uint8 parts with their zero points, each with its factor; the differences add up."""
    dtype = Names.dtype(q)
    if dtype in ("int8", "uint8"):
        return [(1, _unsigned(q, zero))]
    shift = np.int32(0 if dtype == "uint16" else 1 << 15)
    halves = [_halves(Names.astype(part, "int32") + shift) for part in (q, zero)]
    return [(factor, (part, of_zero)) for factor, part, of_zero in zip((256, 1), *halves, strict=True)]


def _halves(q: Any) -> tuple[Any, Any]:
    """The upper and the lower byte of integers from 0 to 65,535."""
    high = q // np.int32(256)
    return Names.astype(high, "uint8"), Names.astype(q - high * np.int32(256), "uint8")


def _unsigned(q: Any, zero: Any) -> tuple[Any, Any]:
    """uint8 values and a zero point with the same differences.

    Kernels for processors without instructions for sums of four products add two products of uint8 and int8 in 16
    bits, which saturates; those of uint8 and uint8 are exact on all processors.
    """
    if Names.dtype(q) == "uint8":
        return q, Names.astype(zero, "uint8")
    shifted = Names.astype(Names.astype(q, "int32") + np.int32(128), "uint8")
    return shifted, Names.astype(Names.astype(zero, "int32") + np.int32(128), "uint8")


def _difference(q: Any, zero: Any, axis: int | None) -> Any:
    """The integers minus their zero points, in int32."""
    return Names.astype(q, "int32") - law.along(Names.astype(zero, "int32"), axis, q.ndim)


def _transposed(matrix: Any) -> Any:
    return matrix.T if is_known(matrix) else matrix.transpose((1, 0))


def _node(graph: Any, op: str, dtype: str, ndim: int, *operands: Any, **attributes: Any) -> Symbol:
    """The result of a node whose operands have dtypes of their own."""
    names = [name_of(graph, one, "") for one in operands]
    return Symbol(graph, graph.node(op, *names, dtype=dtype, **attributes), dtype, ndim)
