"""The law on NumPy arrays: the reference that the other packages must equal bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.arguments import check_dtype, check_int, check_rounding, check_seed, check_start, missing_key
from qcore.carrier import Carrier
from qcore.formats import Number, check_number
from qcore.law import Program
from qcore.random import Noise, as_lane, leading_bits_mask, rounding_words
from qcore.rounding import Rounding


def quantize(
    x: np.ndarray,
    number: Number,
    rounding: str | Rounding = "stochastic",
    *,
    key: int | tuple[int, int] | None = None,
    random_bits: int = 24,
    start: int = 0,
) -> np.ndarray:
    """Rounds every element to the nearest, or another, neighbour in a number format.

    Args:
        x: array of any shape; float32, float16 or ml_dtypes.bfloat16.
        number: the format.
        rounding: a name or member of `Rounding`.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, or two 32-bit words.
        random_bits: how many random bits an element's rounding uses, 1 to 24.
        start: the 64-bit index of x's first element: a chunk of a larger array gets the larger array's bits.

    Returns:
        A new array of x's shape and dtype.

    Raises:
        TypeError: if an argument has the wrong type; float64 arrays are refused, not rounded on the way.
        ValueError: if an argument is out of range, or stochastic rounding has no key.

    Example:
        >>> from qcore import FloatingPoint
        >>> quantize(np.float32([0.1241, 0.3602, -0.7104]), FloatingPoint(exp=5, man=2), "nearest")
        array([ 0.125,  0.375, -0.75 ], dtype=float32)
    """
    number, mode = check_number(number), check_rounding(rounding)
    random_bits, start_words = check_int("random_bits", random_bits, 1, 24), check_start(start)
    key_words = None if key is None else check_seed(key)
    if mode is Rounding.STOCHASTIC and key_words is None:
        raise missing_key()
    carrier = check_array(x)
    kind, constants = number.reduce(carrier)
    axes = number.axes(x.ndim)
    if x.size == 0:
        return x.copy()
    bits = to_lanes(x, carrier)
    word = None
    if mode is Rounding.STOCHASTIC and key_words is not None:
        words = (*key_words, *start_words, leading_bits_mask(random_bits))
        lanes = [np.full(1, as_lane(word), np.int32) for word in words]  # arrays wrap silently, scalars warn
        word = rounding_words(np, _arange, bits.shape, Noise(lanes[:2], lanes[2:]), x.size >= 2**31)
    result = Program(carrier, mode, kind).run(np, bits, constants, axes, word)
    return from_lanes(result, carrier, x)


def _arange(size: int) -> np.ndarray:
    return np.arange(size, dtype=np.int32)


def check_array(x: Any) -> Carrier:
    """The carrier of a NumPy array."""
    if not isinstance(x, np.ndarray):
        raise TypeError(f"x is a {type(x).__name__}; allowed is a NumPy array of float32, float16 or bfloat16")
    if not x.dtype.isnative:
        raise TypeError(
            f"x has dtype {x.dtype.str}; allowed is this machine's byte order: {x.dtype.newbyteorder().str}"
        )
    return check_dtype(x.dtype.name, "x.astype(np.float32)")


def to_lanes(x: np.ndarray, carrier: Carrier) -> np.ndarray:
    """The lanes of an array, with at least one dimension."""
    stored = np.int32 if carrier.padding == 0 else np.int16
    bits = np.ascontiguousarray(x).view(stored).astype(np.int32)
    return bits.reshape(x.shape or (1,)) << carrier.padding


def from_lanes(bits: np.ndarray, carrier: Carrier, like: np.ndarray) -> np.ndarray:
    stored = np.int32 if carrier.padding == 0 else np.int16
    return (bits >> carrier.padding).astype(stored).view(like.dtype).reshape(like.shape)
