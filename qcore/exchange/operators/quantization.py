"""Operators of ONNX on quantized numbers, with the integers of onnxruntime.

Where ONNX leaves a result open: NaN becomes the least integer, and DynamicQuantizeLinear of zeros has the scale 1.
"""

from __future__ import annotations

import numpy as np

from qcore.arguments import quoted
from qcore.exchange.limits import check_shape
from qcore.exchange.types import CODED, FLOATS, TYPES, bits_of, cast, dtype_of, encode, is_integer, range_of, type_of

QUANTIZED = tuple(type for type in TYPES.values() if type in CODED or (is_integer(type) and bits_of(type) <= 16))
_E8M0 = "float8_e8m0fnu"


def checked_axis(axis: int, ndim: int) -> int:
    """An axis, counted from the first."""
    if not -ndim <= axis < max(ndim, 1):
        raise ValueError(f"axis={axis} of {ndim} dimensions; allowed is an int from {-ndim} to {ndim - 1}")
    return axis % max(ndim, 1)


def _along(parameter: np.ndarray, shape: tuple[int, ...], name: str, axis: int, block: int) -> np.ndarray:
    """A scale or zero point for x's shape: one number, one for each place along an axis, or one for each block."""
    if block < 0:
        raise ValueError(f"block_size={block}; allowed is an int from 0 on")
    ndim = len(shape)
    if parameter.ndim == 0 or (parameter.shape == (1,) and not block):
        return parameter.reshape(())
    axis = checked_axis(axis, ndim)
    if parameter.ndim == 1 and not block:
        if parameter.shape[0] != shape[axis]:
            raise ValueError(f"{name} has shape {parameter.shape}; allowed is ({shape[axis]},) along axis {axis}")
        return parameter.reshape(tuple(-1 if place == axis else 1 for place in range(ndim)))
    counts = tuple(-(-size // max(block, 1)) if place == axis else size for place, size in enumerate(shape))
    if block < 1 or parameter.shape != counts:
        raise ValueError(f"{name} has shape {parameter.shape} with block_size={block}; allowed are {counts} for blocks")
    return parameter.take(np.arange(shape[axis]) // block, axis)  # a block may be longer than what there is of it


def _scales(scale: np.ndarray) -> np.ndarray:
    """Scales as float32."""
    if scale.dtype.name not in (*FLOATS, _E8M0):
        raise ValueError(f"the scale has type {scale.dtype.name}; allowed are {', '.join(FLOATS)}, {_E8M0}")
    return scale.astype(np.float32)


def saturated(steps: np.ndarray, zero_point: np.ndarray | int, type: str) -> np.ndarray:
    """Rounded float32 numbers plus a zero point, within the range of a type; NaN becomes the least integer."""
    low, high = range_of(type)
    zero_point = np.asarray(zero_point).astype(np.int32)
    offset = zero_point.astype(np.float32)
    # Clipped before the zero point is added, as floats: the sum of a large number and the zero point would round.
    steps = np.clip(np.where(steps == steps, steps, low - offset), low - offset, high - offset)
    return (steps.astype(np.int32) + zero_point).astype(dtype_of(type))


def quantize_linear(
    x: np.ndarray,
    scale: np.ndarray,
    zero_point: np.ndarray | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> np.ndarray:
    """QuantizeLinear: saturate(rint(x / scale) + zero_point), with a division in float32, or in `precision`."""
    type = type_of(output_dtype, "output_dtype") if output_dtype else "uint8"
    if zero_point is not None:
        if output_dtype and type != zero_point.dtype.name:
            raise ValueError(f"output_dtype is {type}, the zero point {zero_point.dtype.name}; allowed is one type")
        type = zero_point.dtype.name
    if type not in QUANTIZED:
        raise ValueError(f"the result has type {type}; allowed are {', '.join(QUANTIZED)}")
    of_division = dtype_of(type_of(precision, "precision") if precision else "float32")
    by = _along(_scales(scale), x.shape, "y_scale", axis, block_size)
    quotient = np.divide(x.astype(of_division), by.astype(of_division)).astype(np.float32)
    if type in CODED:
        return encode(quotient, type, bool(saturate))
    zero = 0 if zero_point is None else _along(zero_point, x.shape, "y_zero_point", axis, block_size)
    return saturated(np.rint(quotient), zero, type)


def dequantize_linear(
    x: np.ndarray,
    scale: np.ndarray,
    zero_point: np.ndarray | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> np.ndarray:
    """DequantizeLinear: (x - zero_point) * scale in float32, then in the type of the scale."""
    given, of_scale = x.dtype.name, scale.dtype.name
    if given not in (*QUANTIZED, "int32"):
        raise ValueError(f"x has type {given}; allowed are {', '.join(QUANTIZED)}, int32")
    if zero_point is not None and zero_point.dtype != x.dtype:
        raise ValueError(f"x has type {given}, the zero point {zero_point.dtype.name}; allowed is one type")
    type = type_of(output_dtype, "output_dtype") if output_dtype else "float32" if of_scale == _E8M0 else of_scale
    by = _along(_scales(scale), x.shape, "x_scale", axis, block_size)
    if given not in CODED and zero_point is not None:
        zero = _along(zero_point, x.shape, "x_zero_point", axis, block_size)
        x = x.astype(np.int32) - zero.astype(np.int32)
    return (x.astype(np.float32) * by).astype(dtype_of(type))


def dynamic_quantize_linear(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """DynamicQuantizeLinear: the integers, their scale and zero point, for the range of all numbers and 0."""
    zero = np.float32(0)
    low, high = np.minimum(x.min(initial=zero), zero), np.maximum(x.max(initial=zero), zero)
    scale = np.float32(1) if low == high else np.float32((high - low) / np.float32(255))
    zero_point = np.rint(np.clip(-low / scale, 0, 255)).astype(np.uint8)
    return quantize_linear(x, np.asarray(scale), np.asarray(zero_point)), np.asarray(scale), np.asarray(zero_point)


# Products. Sums of integers are exact in float64, and kept modulo 2^32.


def centred(x: np.ndarray, zero_point: np.ndarray | None, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """Integers less their zero point, as float64; shape is what several zero points broadcast as."""
    if not is_integer(x.dtype.name) or x.dtype.name not in QUANTIZED:
        raise ValueError(f"an input has type {x.dtype.name}; allowed are integers of up to 16 bits")
    found = x.astype(np.float64)
    if zero_point is None:
        return found
    if zero_point.dtype != x.dtype:
        raise ValueError(f"an input has type {x.dtype.name}, its zero point {zero_point.dtype.name}; allowed is one")
    zeros = zero_point.astype(np.float64)
    return found - (zeros.reshape(shape) if zeros.ndim and shape else zeros)


def sums_of(exact: np.ndarray) -> np.ndarray:
    """Exact sums in float64 as int32, modulo 2^32."""
    return np.asarray(exact).astype(np.int64).astype(np.int32)


def requantized(sums: np.ndarray, ratio: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    """int32 sums times the ratio of scales in float32, rounded, plus the zero point."""
    steps = np.rint(sums.astype(np.float32) * ratio)
    return saturated(steps, zero_point.reshape(()), zero_point.dtype.name)


def ratio_of(a_scale: np.ndarray, b_scale: np.ndarray, y_scale: np.ndarray) -> np.ndarray:
    """(a_scale * b_scale) / y_scale in float32."""
    return (_scales(a_scale) * _scales(b_scale)) / _scales(y_scale).reshape(())


def _products(
    a: np.ndarray, a_zero_point: np.ndarray | None, b: np.ndarray, b_zero_point: np.ndarray | None
) -> np.ndarray:
    if a.ndim and b.ndim:
        rows, columns = a.shape[:-1], b.shape[-1:] if b.ndim > 1 else ()
        check_shape((*np.broadcast_shapes(rows[:-1], b.shape[:-2]), *rows[-1:], *columns))
    return sums_of(centred(a, a_zero_point, (-1, 1)) @ centred(b, b_zero_point, (1, -1)))


def matmul_integer(
    a: np.ndarray, b: np.ndarray, a_zero_point: np.ndarray | None = None, b_zero_point: np.ndarray | None = None
) -> np.ndarray:
    """MatMulInteger: exact sums, modulo 2^32."""
    return _products(a, a_zero_point, b, b_zero_point)


def qlinear_matmul(
    a: np.ndarray,
    a_scale: np.ndarray,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: np.ndarray,
    b_zero_point: np.ndarray,
    y_scale: np.ndarray,
    y_zero_point: np.ndarray,
) -> np.ndarray:
    """QLinearMatMul: exact sums times (a_scale * b_scale) / y_scale, in float32."""
    left = a_scale.reshape((-1, 1)) if a_scale.size > 1 else a_scale.reshape(())
    right = b_scale if b_scale.size > 1 else b_scale.reshape(())
    sums = _products(a, a_zero_point, b, b_zero_point)
    return requantized(sums, ratio_of(left, right, y_scale), y_zero_point)


def cast_operator(x: np.ndarray, *, to: int = 0, saturate: int = 1, round_mode: str = "up") -> np.ndarray:
    """Cast."""
    return cast(x, "str" if to == 8 else type_of(to, "to"), bool(saturate), _checked_mode(round_mode))


def cast_like(x: np.ndarray, target: np.ndarray, *, saturate: int = 1, round_mode: str = "up") -> np.ndarray:
    """CastLike: Cast to the type of the second input."""
    return cast(x, target.dtype.name, bool(saturate), _checked_mode(round_mode))


def _checked_mode(round_mode: str) -> str:
    if round_mode not in ("up", "down", "nearest"):
        raise ValueError(f"round_mode={quoted(round_mode)}; allowed are 'up', 'down', 'nearest'")
    return round_mode


OPERATORS = {
    "Cast": cast_operator,
    "CastLike": cast_like,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "MatMulInteger": matmul_integer,
    "QLinearMatMul": qlinear_matmul,
    "QuantizeLinear": quantize_linear,
}
