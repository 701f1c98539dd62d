"""Operators of ONNX on quantized numbers, with the integers of onnxruntime.

Where ONNX leaves a result open: NaN becomes the least integer, and DynamicQuantizeLinear of zeros has the scale 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from qcore.exchange.nodes import Node, checked_axis
from qcore.exchange.operators.products import along_channels, convolved
from qcore.exchange.values import (
    CODED,
    FLOATS,
    TYPES,
    Value,
    cast,
    decode,
    encode,
    is_integer,
    range_of,
    type_of,
    wrapped,
)

_QUANTIZED = tuple(type for type in TYPES.values() if (is_integer(type) or type in CODED) and type != "int64")
_E8M0 = "float8_e8m0fnu"


def along(xp: Any, node: Node, parameter: Value, shape: tuple[int, ...], name: str) -> Any:
    """A scale or zero point for x's shape: one number, one for each place along an axis, or one for each block."""
    array, ndim = parameter.array, len(shape)
    if parameter.ndim == 0 or (parameter.shape == (1,) and not node.get("block_size", 0)):
        return array.reshape(())
    axis, block = checked_axis(node.get("axis", 1), ndim), node.get("block_size", 0)
    if parameter.ndim == 1 and not block:
        if parameter.shape[0] != shape[axis]:
            raise ValueError(f"{name} has shape {parameter.shape}; allowed is ({shape[axis]},) along axis {axis}")
        return array.reshape(tuple(-1 if place == axis else 1 for place in range(ndim)))
    counts = tuple(-(-size // max(block, 1)) if place == axis else size for place, size in enumerate(shape))
    if block < 1 or parameter.shape != counts:
        raise ValueError(f"{name} has shape {parameter.shape} with block_size={block}; allowed are {counts} for blocks")
    spread = xp.repeat(array, block, axis)
    return spread[(*(slice(None),) * axis, slice(0, shape[axis]))]


def scales(xp: Any, scale: Value) -> Any:
    """Scales as float32."""
    if scale.type == _E8M0:
        return decode(xp, scale.array, _E8M0)
    if scale.type not in FLOATS:
        raise ValueError(f"the scale has type {scale.type}; allowed are {', '.join(FLOATS)}, {_E8M0}")
    return xp.astype(scale.array, "float32")


def saturated(xp: Any, steps: Any, zero_point: Any, type: str) -> Any:
    """Rounded floats plus an int32 zero point, within the range of a type; NaN becomes the least integer."""
    low, high = range_of(type)
    offset = xp.astype(zero_point, "float32")
    # Clipped before the zero point is added, as floats: the sum of a large number and the zero point would round.
    steps = xp.where(steps == steps, steps, xp.broadcast_to(low - offset, tuple(steps.shape)))
    steps = xp.minimum(xp.maximum(steps, xp.broadcast_to(low - offset, tuple(steps.shape))), high - offset)
    return xp.astype(steps, "int32") + zero_point


def zero_of(xp: Any, zero_point: Value | None, like: Any) -> Any:
    """The int32 zero point; 0 without one."""
    return xp.zeros((), xp.astype(like, "int32")) if zero_point is None else zero_point.array


def quantize_linear(xp: Any, node: Node, x: Value, scale: Value, zero_point: Value | None = None) -> Value:
    """QuantizeLinear: saturate(rint(x / scale) + zero_point), with a division in float32."""
    number = node.get("output_dtype", 0)
    type = type_of(number, "output_dtype") if number else "uint8"
    if zero_point is not None:
        if number and type != zero_point.type:
            raise ValueError(f"output_dtype is {type}, the zero point {zero_point.type}; allowed is one type")
        type = zero_point.type
    if type not in _QUANTIZED:
        raise ValueError(f"the result has type {type}; allowed are {', '.join(_QUANTIZED)}")
    array = xp.astype(x.array, "float32")
    by = xp.broadcast_to(along(xp, node, scale._replace(array=scales(xp, scale)), x.shape, "y_scale"), x.shape)
    quotient = xp.divide(array, by)
    if type in CODED:
        return Value(encode(xp, quotient, type, bool(node.get("saturate", 1))), type)
    offset = zero_of(xp, zero_point, quotient)
    if zero_point is not None:
        offset = along(xp, node, zero_point, x.shape, "y_zero_point")
    return Value(saturated(xp, xp.rint(quotient), offset, type), type)


def dequantize_linear(xp: Any, node: Node, x: Value, scale: Value, zero_point: Value | None = None) -> Value:
    """DequantizeLinear: (x - zero_point) * scale in float32, then in the type of the scale."""
    if x.type not in _QUANTIZED:
        raise ValueError(f"x has type {x.type}; allowed are {', '.join(_QUANTIZED)}")
    if zero_point is not None and zero_point.type != x.type:
        raise ValueError(f"x has type {x.type}, the zero point {zero_point.type}; allowed is one type")
    number = node.get("output_dtype", 0)
    type = type_of(number, "output_dtype") if number else "float32" if scale.type == _E8M0 else scale.type
    by = along(xp, node, scale._replace(array=scales(xp, scale)), x.shape, "x_scale")
    if x.type in CODED:
        steps = decode(xp, x.array, x.type)
    elif zero_point is not None:
        steps = xp.astype(x.array - along(xp, node, zero_point, x.shape, "x_zero_point"), "float32")
    else:
        steps = xp.astype(x.array, "float32")
    return Value(xp.astype(xp.rounded(steps * by), type), type)


def dynamic_quantize_linear(xp: Any, node: Node, x: Value) -> tuple[Value, Value, Value]:
    """DynamicQuantizeLinear: the integers, their scale and zero point, for the range of all numbers and 0."""
    if x.type != "float32":
        raise ValueError(f"x has type {x.type}; allowed is float32")
    zero = xp.zeros((), x.array)
    low, high = xp.extremes(x.array, tuple(range(x.ndim)))
    low, high = xp.minimum(low, zero), xp.maximum(high, zero)
    scale = xp.where(low == high, zero + 1.0, xp.divide(high - low, zero + 255.0))
    first = xp.clip(xp.divide(-low, scale), 0.0, 255.0)
    zero_point = Value(xp.astype(xp.rint(first), "int32"), "uint8")
    by = Value(scale, "float32")
    return quantize_linear(xp, node, x, by, zero_point), by, zero_point


def _centred(xp: Any, x: Value, zero_point: Value | None, shape: tuple[int, ...] | None = None) -> Any:
    """Integers less their zero point, as float64; shape is what several zero points broadcast as."""
    if x.type not in ("int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2"):
        raise ValueError(f"an input has type {x.type}; allowed are integers of up to 16 bits")
    if zero_point is None:
        return xp.astype(x.array, "float64")
    if zero_point.type != x.type:
        raise ValueError(f"an input has type {x.type}, its zero point {zero_point.type}; allowed is one type")
    zeros = zero_point.array
    return xp.astype(x.array - (zeros.reshape(shape) if zeros.ndim and shape else zeros), "float64")


def _sums(xp: Any, exact: Any) -> Any:
    """Exact sums in float64 as int32, modulo 2^32."""
    return xp.astype(xp.astype(exact, "int64"), "int32")


def _requantized(xp: Any, sums: Any, ratio: Any, zero_point: Value) -> Value:
    """int32 sums times the ratio of scales, rounded, plus the zero point."""
    steps = xp.rint(xp.rounded(xp.astype(sums, "float32") * ratio))
    return Value(saturated(xp, steps, zero_point.array.reshape(()), zero_point.type), zero_point.type)


def matmul_integer(
    xp: Any, node: Node, a: Value, b: Value, a_zero_point: Value | None = None, b_zero_point: Value | None = None
) -> Value:
    left, right = _centred(xp, a, a_zero_point, (-1, 1)), _centred(xp, b, b_zero_point, (1, -1))
    return Value(_sums(xp, left @ right), "int32")


def conv_integer(
    xp: Any, node: Node, x: Value, w: Value, x_zero_point: Value | None = None, w_zero_point: Value | None = None
) -> Value:
    channels = (-1, *(1,) * (w.ndim - 1))
    found = convolved(xp, node, _centred(xp, x, x_zero_point), _centred(xp, w, w_zero_point, channels))
    return Value(_sums(xp, found), "int32")


def qlinear_matmul(
    xp: Any,
    node: Node,
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
) -> Value:
    """QLinearMatMul: exact sums times (a_scale * b_scale) / y_scale, in float32."""
    sums = _sums(xp, _centred(xp, a, a_zero_point, (-1, 1)) @ _centred(xp, b, b_zero_point, (1, -1)))
    left = scales(xp, a_scale)
    left = left.reshape((-1, 1)) if left.ndim and left.shape != (1,) else left.reshape(())
    right = scales(xp, b_scale)
    right = right if right.ndim and right.shape != (1,) else right.reshape(())
    return _requantized(xp, sums, _ratio(xp, left, right, y_scale), y_zero_point)


def qlinear_conv(
    xp: Any,
    node: Node,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    bias: Value | None = None,
) -> Value:
    """QLinearConv: exact sums and the int32 bias, times (x_scale * w_scale) / y_scale, in float32."""
    channels = (-1, *(1,) * (w.ndim - 1))
    sums = _sums(xp, convolved(xp, node, _centred(xp, x, x_zero_point), _centred(xp, w, w_zero_point, channels)))
    if bias is not None:
        sums = wrapped(xp, sums + along_channels(bias.array, x.ndim), "int32")
    ratio = along_channels(_ratio(xp, scales(xp, x_scale).reshape(()), scales(xp, w_scale), y_scale), x.ndim)
    return _requantized(xp, sums, ratio, y_zero_point)


def _ratio(xp: Any, a: Any, b: Any, y_scale: Value) -> Any:
    both = a * b
    return xp.divide(both, xp.broadcast_to(scales(xp, y_scale).reshape(()), tuple(both.shape)))


def cast_operator(xp: Any, node: Node, x: Value) -> Value:
    """Cast; floats beyond the range of an integer type are open in ONNX, and taken modulo 2^bits here."""
    mode = node.text("round_mode", "up", ("up", "down", "nearest"))
    return cast(xp, x, type_of(node.get("to", 0), "to"), bool(node.get("saturate", 1)), mode)


def cast_like(xp: Any, node: Node, x: Value, target: Value) -> Value:
    mode = node.text("round_mode", "up", ("up", "down", "nearest"))
    return cast(xp, x, target.type, bool(node.get("saturate", 1)), mode)


OPERATORS: dict[str, Callable[..., Any]] = {
    "Cast": cast_operator,
    "CastLike": cast_like,
    "ConvInteger": conv_integer,
    "DequantizeLinear": dequantize_linear,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
    "MatMulInteger": matmul_integer,
    "QLinearConv": qlinear_conv,
    "QLinearMatMul": qlinear_matmul,
    "QuantizeLinear": quantize_linear,
}
