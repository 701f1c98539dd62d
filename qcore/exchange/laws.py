"""The laws of `qcore.affine` as nodes of a graph: each function runs the one law on the names of ONNX.

Operands are symbols or known arrays of NumPy; what follows from known arrays is a constant of the graph. Runtimes fuse
dequantized operands, products and quantized results into kernels that round otherwise, and QuantizeLinear divides where
the law multiplies by a reciprocal. So the integers of activations are written as the law has them, and products as
MatMulInteger and ConvInteger; known integers alone leave as DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qcore.affine import law
from qcore.affine.arithmetic import recurrent
from qcore.exchange.graph import Graph
from qcore.exchange.symbols import Names, Symbol, is_known, name_of
from qcore.formats.affine import AffineInteger


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


def stored(graph: Graph, q: np.ndarray, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger) -> Symbol:
    """`qcore.affine.dequantize` of known integers, which leave as they are: DequantizeLinear has the law.

    Integers of 4 bits are packed two in a byte.

    Example:
        >>> graph = Graph("weight")
        >>> stored(graph, np.int8([[-8, 7]]), np.float32(0.5), np.int32(0), None, AffineInteger(-8, 7)).dtype
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
    return made._made("Clip")


def fake_quantize(x: Symbol, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger) -> Symbol:
    """`qcore.affine.fake_quantize` without the mask of gradients."""
    q = quantize(x, scale, zero_point, axis, form)
    return dequantize(q, scale, zero_point, axis, x.dtype)


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


def quantize_dynamic(x: Symbol, form: AffineInteger) -> tuple[Symbol, Symbol, Symbol]:
    """The integers of `qcore.affine.arithmetic.recurrent.quantize_dynamic`, their scale and their zero point."""
    q, qparams = recurrent.quantize_dynamic(Names, x, form)
    return Names.astype(q, form.storage), qparams.scale, qparams.zero_point


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
        ValueError: if the sums do not fit into int32.
    """
    if dtype != "int32":
        raise ValueError(
            "ConvInteger has sums of 8-bit integers in int32; allowed are integers of 8 bits and such sums"
        )
    settings: dict[str, Any] = {
        "strides": list(stride),
        "pads": [before for before, _ in padding] + [after for _, after in padding],
        "dilations": list(dilation),
        "group": groups,
    }
    a, (filters, zero) = _unsigned(x, x_zero), _unsigned(w, w_zero)
    first = zero if np.ndim(zero) == 0 else np.uint8(128)
    sums = _node(x.graph, "ConvInteger", "int32", x.ndim, a[0], filters, a[1], first, **settings)
    if np.ndim(zero) == 0 or (is_known(zero) and (zero == first).all()):
        return sums
    # Runtimes have one zero point for all filters: the rest is a multiple of the windows' own sums.
    ones = np.ones(w.shape, np.uint8)
    of_windows = _node(x.graph, "ConvInteger", "int32", x.ndim, a[0], ones, a[1], np.uint8(0), **settings)
    return sums - of_windows * law.along(np.int32(zero) - np.int32(128), 1, x.ndim)


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
