"""Operators of QONNX, with the bits of the executor in the package qonnx."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np

from qcore.arguments import quoted
from qcore.exchange.limits import check_shape
from qcore.exchange.operators.windows import along_channels

Array = np.ndarray

# Quotients are clipped before they are rounded, so the zero point takes part in ties.


def _half_up(x: Array) -> Array:
    found = np.floor(abs(x) + np.float32(0.5))
    return np.where(x < 0, -found, found)


def _half_down(x: Array) -> Array:
    found = -np.floor(-(abs(x) - np.float32(0.5)))
    return np.where(x < 0, -found, found)


ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "ROUND": np.rint,
    "HALF_EVEN": np.rint,
    "CEIL": np.ceil,
    "FLOOR": np.floor,
    "UP": lambda x: np.where(x < 0, np.floor(x), np.ceil(x)),
    "DOWN": np.trunc,
    "HALF_UP": _half_up,
    "HALF_DOWN": _half_down,
}


def _rounding(name: str) -> Callable[[Array], Array]:
    if name.upper() not in ROUNDINGS:
        raise ValueError(f"rounding_mode={quoted(name)}; allowed are {', '.join(ROUNDINGS)}")
    return ROUNDINGS[name.upper()]


def _float32(*values: Array) -> None:
    if any(value.dtype != np.float32 for value in values):
        types = ", ".join(value.dtype.name for value in values)
        raise ValueError(f"inputs have types {types}; allowed is float32")
    check_shape(np.broadcast_shapes(*(value.shape for value in values)))


def _number(name: str, value: Array) -> float:
    """The one number of an input."""
    if value.size != 1:
        raise ValueError(f"{name} has shape {value.shape}; allowed is one number")
    return float(value.reshape(-1)[0])


def _width(name: str, value: Array, low: int, high: int) -> Array:
    """Widths in bits, which are whole numbers."""
    wrong = ~((value >= low) & (value <= high) & (np.trunc(value) == value))
    if wrong.any():
        raise ValueError(f"{name} has {value[wrong].reshape(-1)[0]}; allowed are whole numbers from {low} to {high}")
    return value


def _range(bits: Array, signed: int, narrow: int) -> tuple[Any, Any]:
    """The least and the greatest integers, as float32 arrays."""
    if signed:
        half = 2.0 ** (bits - 1)
        return np.float32(-half + 1 if narrow else -half), np.float32(half - 1)
    high = 2.0**bits - 1
    return np.float32(np.zeros_like(bits)), np.float32(high - 1 if narrow else high)


def _limited(x: Array, low: Any, high: Any) -> Array:
    """x within bounds; NaN stays."""
    x = np.where(x > high, high, x)
    return np.where(x < low, low, x)


def quant(
    x: Array,
    scale: Array,
    zero_point: Array,
    bitwidth: Array,
    *,
    signed: int = 1,
    narrow: int = 1,
    rounding_mode: str = "ROUND",
) -> Array:
    """Quant and IntQuant: round(clip(x / scale + zero_point)), less the zero point, times the scale."""
    _float32(x, scale, zero_point, bitwidth)
    bits = _width("bitwidth", bitwidth, 1, 127)  # 2^127 is a float32 number
    steps = x / scale + zero_point
    if signed and bits.size == 1 and float(bits.reshape(-1)[0]) == 1:
        steps = np.where(steps >= 0, np.float32(1), np.float32(-1))
    else:
        steps = _rounding(rounding_mode)(_limited(steps, *_range(bits, signed, narrow)))
    return (steps - zero_point) * scale


def float_quant(
    x: Array,
    scale: Array,
    exponent_bitwidth: Array,
    mantissa_bitwidth: Array,
    exponent_bias: Array,
    max_val: Array,
    *,
    has_inf: int = 0,
    has_nan: int = 0,
    saturation: int = 1,
    rounding_mode: str = "ROUND",
) -> Array:
    """FloatQuant: multiples of a power of two, by the exponent of x / scale; the largest exponent has numbers."""
    _float32(x, scale)
    exponent = _number("exponent_bitwidth", _width("exponent_bitwidth", exponent_bitwidth, 0, 8))
    mantissa = _number("mantissa_bitwidth", _width("mantissa_bitwidth", mantissa_bitwidth, 0, 23))
    bias, most = _number("exponent_bias", exponent_bias), _number("max_val", max_val)
    array = x / scale
    # The exponent by its bits, of the sum whose logarithm the executor takes. Next below some powers of two its float32
    # logarithm is the power's. Such numbers become the power in any case, unless they are rounded to 23 bits, or toward
    # zero, up or down.
    sums = np.asarray(abs(array) + np.float32(2.0**-126))
    place = ((sums.view(np.int32) >> 23) - 127).astype(np.float32) - np.float32(mantissa)
    place = np.maximum(place, np.float32(1 - bias - mantissa))
    step = _power_of_two(place)
    found = step * _rounding(rounding_mode)(array / step)
    largest = np.float32(min((2 - 2.0**-mantissa) * 2.0 ** (2.0**exponent - 1 - bias), most))
    above, below = found > largest, found < -largest
    found = np.clip(found, -largest, largest)
    if not saturation:
        if not has_inf and not has_nan:
            raise ValueError("saturation=0 without has_inf and has_nan; allowed is one of them")
        beyond = np.float32(inf if has_inf else nan)
        found = np.where(above, beyond, np.where(below, -beyond, found))
    # Infinity less its step is not a number in the executor, whatever the attributes say.
    found = np.where(abs(array) == inf, np.float32(nan), found)
    return found * scale


def _power_of_two(exponent: Array) -> Array:
    """2^exponent as float32, for whole exponents of normal and subnormal numbers; larger ones are infinite."""
    return np.ldexp(np.float32(1), np.clip(exponent, -149, 128).astype(np.int32))


def bipolar_quant(x: Array, scale: Array) -> Array:
    """BipolarQuant: the scale, or its negative for numbers below 0 and NaN."""
    _float32(x, scale)
    return np.where(x >= 0, np.float32(1), np.float32(-1)) * scale


def trunc(
    x: Array,
    scale: Array,
    zero_point: Array,
    in_bits: Array,
    *others: Array,
    signed: int = 1,
    narrow: int = 0,
    rounding_mode: str = "FLOOR",
) -> Array:
    """Trunc: integers of in_bits, without their lowest bits; version 2 has an output scale and clips."""
    _float32(x, scale, zero_point, in_bits, *others)
    if len(others) not in (1, 2):
        raise ValueError(f"{4 + len(others)} inputs; allowed are 5, or 6 with an output scale")
    rounding, out_bits = _rounding(rounding_mode), _width("out_bits", others[-1], 1, 127)
    steps = np.rint(x / scale + zero_point)
    if len(others) == 1:
        steps = rounding(steps / np.float32(2.0 ** (_width("in_bits", in_bits, 1, 127) - out_bits)))
        return (steps - zero_point) * scale
    ratio = np.float32(2.0 ** np.round(np.log2(others[0] / scale)))
    steps = rounding(_limited(steps / ratio, *_range(out_bits, signed, narrow)))
    return (steps - zero_point / ratio) * others[0]


def multi_threshold(
    x: Array, thresholds: Array, *, out_scale: float = 1.0, out_bias: float = 0.0, data_layout: str = ""
) -> Array:
    """MultiThreshold: the number of thresholds at or below x, times out_scale, plus out_bias."""
    if x.dtype != np.float32 or thresholds.dtype != np.float32:
        raise ValueError(f"inputs have types {x.dtype.name}, {thresholds.dtype.name}; allowed is float32")
    layout = data_layout or {3: "NWC"}.get(x.ndim, "")
    axis = layout.index("C") if "C" in layout else min(1, x.ndim - 1)
    if not x.ndim or thresholds.ndim != 2 or thresholds.shape[0] not in (1, x.shape[axis : axis + 1][0]):
        raise ValueError(f"thresholds have shape {thresholds.shape}; allowed is (channels, steps) or (1, steps)")
    count = np.zeros(x.shape, np.float32)
    for step in range(thresholds.shape[1]):
        count += x >= along_channels(thresholds[:, step], x.ndim, axis)
    return count * np.float32(out_scale) + np.float32(out_bias)


OPERATORS: dict[str, Callable[..., Any]] = {
    "BipolarQuant": bipolar_quant,
    "FloatQuant": float_quant,
    "IntQuant": quant,
    "MultiThreshold": multi_threshold,
    "Quant": quant,
    "Trunc": trunc,
}
