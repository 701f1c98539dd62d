"""Operators that onnxruntime's quantizer writes (domain com.microsoft), by their documentation's formulas in float32.

onnxruntime's kernels fuse products and sums of QLinearAdd and QLinearMul, so a result next to a tie may be one off.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from qcore.exchange.limits import check_shape
from qcore.exchange.operators import quantization
from qcore.exchange.operators.quantization import centred, checked_axis, ratio_of, requantized, saturated, sums_of
from qcore.exchange.operators.windows import means_of

Array = np.ndarray


def _floats(x: Array, scale: Array, zero_point: Array | None) -> Array:
    """The numbers of one scale."""
    for name, one in (("scale", scale), ("zero point", zero_point)):
        if one is not None and one.size != 1:
            raise ValueError(f"a {name} has shape {one.shape}; allowed is one number")
    zero = None if zero_point is None else zero_point.reshape(())
    return centred(x, zero).astype(np.float32) * scale.reshape(()).astype(np.float32)


def _integers(y: Array, scale: Array, zero_point: Array | None, like: Array) -> Array:
    """Floats as integers of one scale, in the type of the zero point, or of an input."""
    type = (like if zero_point is None else zero_point).dtype.name
    zero = 0 if zero_point is None else zero_point.reshape(())
    return saturated(np.rint(y / scale.reshape(()).astype(np.float32)), zero, type)


def _of_two(combine: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """An operator of two arrays that broadcast."""

    def run(
        a: Array,
        a_scale: Array,
        a_zero: Array | None,
        b: Array,
        b_scale: Array,
        b_zero: Array | None,
        scale: Array,
        zero: Array | None = None,
    ) -> Array:
        check_shape(np.broadcast_shapes(a.shape, b.shape))
        return _integers(combine(_floats(a, a_scale, a_zero), _floats(b, b_scale, b_zero)), scale, zero, a)

    return run


def leaky_relu(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    scale: Array,
    zero: Array | None = None,
    *,
    alpha: float = 0.01,
) -> Array:
    """QLinearLeakyRelu."""
    found = _floats(x, x_scale, x_zero)
    return _integers(np.where(found >= 0, found, found * np.float32(alpha)), scale, zero, x)


def sigmoid(x: Array, x_scale: Array, x_zero: Array | None, scale: Array, zero: Array | None = None) -> Array:
    """QLinearSigmoid, with the sigmoid in float64."""
    found = 1 / (1 + np.exp(-_floats(x, x_scale, x_zero).astype(np.float64)))
    return _integers(found.astype(np.float32), scale, zero, x)


def concat(scale: Array, zero: Array, *inputs: Array, axis: int = 0) -> Array:
    """QLinearConcat: each input has its scale and its zero point behind it."""
    if not inputs or len(inputs) % 3:
        raise ValueError(f"{2 + len(inputs)} inputs; allowed are 2, and 3 for each array")
    arrays = inputs[::3]
    axis = checked_axis(axis, arrays[0].ndim)
    check_shape((sum(one.size for one in arrays),))
    parts = zip(arrays, inputs[1::3], inputs[2::3], strict=True)
    return np.concatenate([_integers(_floats(*one), scale, zero, one[0]) for one in parts], axis)


def average_pool(
    x: Array,
    x_scale: Array,
    x_zero: Array | None,
    scale: Array,
    zero: Array | None = None,
    *,
    channels_last: int = 0,
    **settings: Any,
) -> Array:
    """QLinearAveragePool: the mean of dequantized numbers in float32."""
    images = np.moveaxis(x, -1, 1) if channels_last else x
    found = _integers(means_of(_floats(images, x_scale, x_zero), **settings), scale, zero, x)
    return np.moveaxis(found, 1, -1) if channels_last else found


def global_average_pool(
    x: Array, x_scale: Array, x_zero: Array, scale: Array, zero: Array, *, channels_last: int = 0
) -> Array:
    """QLinearGlobalAveragePool: the exact sum times x_scale / (y_scale * count)."""
    axes = tuple(range(1, x.ndim - 1) if channels_last else range(2, x.ndim))
    count = np.float32(prod(x.shape[axis] for axis in axes))
    sums = centred(x, x_zero.reshape(())).sum(axes, keepdims=True).astype(np.float32)
    ratio = np.float32(x_scale.reshape(()) / (scale.reshape(()) * count))
    return saturated(np.rint(sums * ratio), zero.reshape(()), zero.dtype.name)


def gemm(
    a: Array,
    a_scale: Array,
    a_zero: Array,
    b: Array,
    b_scale: Array,
    b_zero: Array,
    bias: Array | None = None,
    scale: Array | None = None,
    zero: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,  # noqa: N803
    transB: int = 0,  # noqa: N803
) -> Array:
    """QGemm: exact sums and the int32 bias; floats without the scale of the result."""
    left = centred(a, a_zero.reshape(()))
    right = centred(b, b_zero, (-1, 1) if transB else (1, -1))
    left, right = left.T if transA else left, right.T if transB else right
    check_shape((*left.shape[:1], *right.shape[1:]))
    sums = sums_of(left @ right)
    if bias is not None:
        sums = sums + bias  # modulo 2^32
    if scale is None or zero is None:
        return sums.astype(np.float32) * (a_scale.reshape(()) * b_scale * np.float32(alpha))
    return requantized(sums, ratio_of(a_scale.reshape(()) * np.float32(alpha), b_scale, scale), zero)


OPERATORS: dict[str, Callable[..., Any]] = {
    "DequantizeLinear": quantization.dequantize_linear,
    "QGemm": gemm,
    "QLinearAdd": _of_two(lambda a, b: a + b),
    "QLinearAveragePool": average_pool,
    "QLinearConcat": concat,
    "QLinearGlobalAveragePool": global_average_pool,
    "QLinearLeakyRelu": leaky_relu,
    "QLinearMul": _of_two(lambda a, b: a * b),
    "QLinearSigmoid": sigmoid,
    "QuantizeLinear": quantization.quantize_linear,
}
