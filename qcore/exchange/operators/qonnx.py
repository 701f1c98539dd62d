"""Operators of QONNX, with the bits of the executor in the package qonnx."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np

from qcore.exchange.nodes import Node, known
from qcore.exchange.operators.arithmetic import whole
from qcore.exchange.operators.products import along_channels
from qcore.exchange.values import Value

# Quotients are clipped before they are rounded, so the zero point takes part in ties.


def _away(xp: Any, x: Any) -> Any:
    return xp.where(x < 0, xp.floor(x), -xp.floor(-x))


def _half_up(xp: Any, x: Any) -> Any:
    found = xp.floor(abs(x) + 0.5)
    return xp.where(x < 0, -found, found)


def _half_down(xp: Any, x: Any) -> Any:
    found = -xp.floor(-(abs(x) - 0.5))
    return xp.where(x < 0, -found, found)


ROUNDINGS: dict[str, Callable[..., Any]] = {
    "ROUND": whole,
    "HALF_EVEN": whole,
    "CEIL": lambda xp, x: -xp.floor(-x),
    "FLOOR": lambda xp, x: xp.floor(x),
    "UP": _away,
    "DOWN": lambda xp, x: xp.trunc(x),
    "HALF_UP": _half_up,
    "HALF_DOWN": _half_down,
}


def _rounding(node: Node, default: str) -> Callable[..., Any]:
    name = str(node.get("rounding_mode", default)).upper()
    if name not in ROUNDINGS:
        raise ValueError(f"rounding_mode={name}; allowed are {', '.join(ROUNDINGS)}")
    return ROUNDINGS[name]


def _float32(*values: Value) -> None:
    if any(value.type != "float32" for value in values):
        types = ", ".join(value.type for value in values)
        raise ValueError(f"inputs have types {types}; allowed is float32")


def _number(name: str, value: Value) -> float:
    """The one number of an input."""
    found = known(name, value)
    if found.size != 1:
        raise ValueError(f"{name} has shape {found.shape}; allowed is one number")
    return float(found.reshape(-1)[0])


def _range(node: Node, bits: Any, narrow: int) -> tuple[Any, Any]:
    """The least and the greatest integers, as float32 arrays."""
    low, high = np.zeros_like(bits), 2.0**bits - 1
    if node.get("signed", 1):
        half = 2.0 ** (bits - 1)
        return np.float32(-half + 1 if narrow else -half), np.float32(half - 1)
    return np.float32(low), np.float32(high - 1 if narrow else high)


def _limited(xp: Any, x: Any, low: Any, high: Any) -> Any:
    """x within bounds; NaN stays."""
    low, high = xp.asarray(np.asarray(low)), xp.asarray(np.asarray(high))
    x = xp.where(x > high, high, x)
    return xp.where(x < low, low, x)


def _quotient(xp: Any, x: Value, scale: Value) -> Any:
    _float32(x, scale)
    shape = np.broadcast_shapes(x.shape, scale.shape)
    return xp.divide(xp.broadcast_to(x.array, shape), xp.broadcast_to(scale.array, shape))


def quant(xp: Any, node: Node, x: Value, scale: Value, zero_point: Value, bitwidth: Value) -> Value:
    """Quant and IntQuant: round(clip(x / scale + zero_point)), less the zero point, times the scale."""
    _float32(zero_point, bitwidth)
    bits = known("bitwidth", bitwidth)
    steps = xp.unsigned(_quotient(xp, x, scale) + zero_point.array)  # XLA drops an addition of 0
    if node.get("signed", 1) and bits.size == 1 and float(bits.reshape(-1)[0]) == 1:
        one = xp.full_like(steps, 1, "float32")
        steps = xp.where(steps >= 0, one, -one)
    else:
        steps = _rounding(node, "ROUND")(xp, _limited(xp, steps, *_range(node, bits, node.get("narrow", 1))))
    return Value(xp.rounded((steps - zero_point.array) * scale.array), "float32")


def float_quant(
    xp: Any,
    node: Node,
    x: Value,
    scale: Value,
    exponent_bitwidth: Value,
    mantissa_bitwidth: Value,
    exponent_bias: Value,
    max_val: Value,
) -> Value:
    """FloatQuant: multiples of a power of two, by the exponent of x / scale; the largest exponent has numbers."""
    exponent, mantissa, bias, most = (
        _number(name, value)
        for name, value in (
            ("exponent_bitwidth", exponent_bitwidth),
            ("mantissa_bitwidth", mantissa_bitwidth),
            ("exponent_bias", exponent_bias),
            ("max_val", max_val),
        )
    )
    if not (0 <= exponent <= 8 and 0 <= mantissa <= 23 and exponent == int(exponent) and mantissa == int(mantissa)):
        raise ValueError(f"widths {exponent} and {mantissa}; allowed are whole numbers up to 8 and 23")
    array = _quotient(xp, x, scale)
    # The exponent by its bits, of the sum whose logarithm the executor takes. Next below some powers of two its float32
    # logarithm is the power's. Such numbers become the power in any case, unless they are rounded to 23 bits, or toward
    # zero, up or down.
    place = xp.astype((xp.float32_bits(abs(array) + 2.0**-126) >> 23) - 127, "float32") - mantissa
    place = xp.maximum(place, xp.full_like(place, 1 - bias - mantissa, "float32"))
    step = _power_of_two(xp, place)
    found = xp.rounded(step * _rounding(node, "ROUND")(xp, xp.divide(array, step)))
    largest = float(np.float32(min((2 - 2.0**-mantissa) * 2.0 ** (2.0**exponent - 1 - bias), most)))
    above, below = found > largest, found < -largest
    found = xp.clip(found, -largest, largest)
    if not node.get("saturation", 1):
        if not node.get("has_inf", 0) and not node.get("has_nan", 0):
            raise ValueError("saturation=0 without has_inf and has_nan; allowed is one of them")
        beyond = inf if node.get("has_inf", 0) else nan
        found = xp.where(above, xp.full_like(found, beyond, "float32"), found)
        found = xp.where(below, xp.full_like(found, -beyond, "float32"), found)
    # Infinity less its step is not a number in the executor, whatever the attributes say.
    found = xp.where(abs(array) == inf, xp.full_like(found, nan, "float32"), found)
    return Value(xp.rounded(found * scale.array), "float32")


def _power_of_two(xp: Any, exponent: Any) -> Any:
    """2^exponent as float32, for whole exponents of normal and subnormal numbers; larger ones are infinite."""
    whole = xp.astype(xp.clip(exponent, -149.0, 128.0), "int32")
    shift = xp.clip(whole + 149, 0, 22)
    subnormal = xp.full_like(whole, 1, "int32") << shift
    return xp.float32_from(xp.where(whole < -126, subnormal, (xp.clip(whole, -126, 128) + 127) << 23))


def bipolar_quant(xp: Any, node: Node, x: Value, scale: Value) -> Value:
    """BipolarQuant: the scale, or its negative for numbers below 0 and NaN."""
    _float32(x, scale)
    one = xp.full_like(x.array, 1, "float32")
    return Value(xp.where(x.array >= 0, one, -one) * scale.array, "float32")


def trunc(xp: Any, node: Node, x: Value, scale: Value, zero_point: Value, in_bits: Value, *others: Value) -> Value:
    """Trunc: integers of in_bits, without their lowest bits; version 2 has an output scale and clips."""
    _float32(zero_point)
    steps = xp.rint(_quotient(xp, x, scale) + zero_point.array)
    rounding = _rounding(node, "FLOOR")
    if len(others) == 1:
        (out_bits,) = others
        dropped = np.float32(2.0 ** (known("in_bits", in_bits) - known("out_bits", out_bits)))
        steps = rounding(xp, xp.divide(steps, xp.broadcast_to(xp.asarray(np.asarray(dropped)), tuple(steps.shape))))
        return Value(xp.rounded((steps - zero_point.array) * scale.array), "float32")
    if len(others) != 2:
        raise ValueError(f"{4 + len(others)} inputs; allowed are 5, or 6 with an output scale")
    out_scale, out_bits = others
    ratio = np.float32(2.0 ** np.round(np.log2(known("out_scale", out_scale) / known("scale", scale))))
    by = xp.asarray(np.asarray(ratio))
    steps = xp.divide(steps, xp.broadcast_to(by, tuple(steps.shape)))
    low, high = _range(node, known("out_bits", out_bits), node.get("narrow", 0))
    steps = rounding(xp, _limited(xp, steps, low, high))
    offset = xp.divide(xp.broadcast_to(zero_point.array, np.broadcast_shapes(zero_point.shape, ratio.shape)), by)
    return Value(xp.rounded((steps - offset) * out_scale.array), "float32")


def multi_threshold(xp: Any, node: Node, x: Value, thresholds: Value) -> Value:
    """MultiThreshold: the number of thresholds at or below x, times out_scale, plus out_bias."""
    _float32(x, thresholds)
    layout = node.get("data_layout", "") or {3: "NWC"}.get(x.ndim, "")
    axis = layout.index("C") if "C" in layout else min(1, x.ndim - 1)
    if thresholds.ndim != 2 or thresholds.shape[0] not in (1, x.shape[axis]):
        raise ValueError(f"thresholds have shape {thresholds.shape}; allowed is ({x.shape[axis]}, steps) or (1, steps)")
    count = xp.full_like(x.array, 0, "float32")
    for step in range(thresholds.shape[1]):
        count = count + xp.astype(x.array >= along_channels(thresholds.array[:, step], x.ndim, axis), "float32")
    scale, bias = node.get("out_scale", 1.0), node.get("out_bias", 0.0)
    return Value(xp.rounded(count * scale) + bias, "float32")


OPERATORS: dict[str, Callable[..., Any]] = {
    "BipolarQuant": bipolar_quant,
    "FloatQuant": float_quant,
    "IntQuant": quant,
    "MultiThreshold": multi_threshold,
    "Quant": quant,
    "Trunc": trunc,
}
