"""How the law takes lanes (see `Carrier`) apart and builds them, and the names it uses of an array namespace.

Besides `where`, `clip` and `amax` these are three conversions between lanes and floats of the same width:

`float_bits(lanes)` converts integers to floats and returns the floats' bits. The conversion is to nearest, ties to
even, so it is exact where an integer has no more significant bits than the float. Its result is never subnormal.
`integers(bits)` converts floats with these bits to integers, toward zero; the floats are integers or 1/2.
`quotient_bits(a, b)` divides two integers as floats and returns the quotient's bits. It may be `quotient_error` steps
off: 0 where division is that of IEEE 754, 3 where a compiler may multiply by a reciprocal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qcore.law.carrier import Carrier


class Names:
    """The names that the law uses of an array namespace: NumPy's."""

    where: Callable[..., Any] = staticmethod(np.where)
    clip: Callable[..., Any] = staticmethod(np.clip)
    amax: Callable[..., Any] = staticmethod(np.amax)
    asarray: Callable[..., Any] = staticmethod(np.asarray)
    quotient_error = 0

    @staticmethod
    def float_bits(lanes: Any) -> Any:
        return lanes.astype(f"f{lanes.dtype.itemsize}").view(lanes.dtype)

    @staticmethod
    def integers(bits: Any) -> Any:
        return bits.view(f"f{bits.dtype.itemsize}").astype(bits.dtype)

    @classmethod
    def quotient_bits(cls, a: Any, b: Any) -> Any:
        floats = f"f{a.dtype.itemsize}"
        return (a.astype(floats) / cls.asarray(b, a.dtype).astype(floats)).view(a.dtype)


class Ints:
    """The names that the law uses of an array namespace where lanes are Python's ints."""

    @staticmethod
    def clip(value: int, low: int | None, high: int | None) -> int:
        value = value if low is None else max(value, low)
        return value if high is None else min(value, high)


def leading_bit(xp: Any, value: Any, carrier: Carrier) -> Any:
    """floor(log2 value) of lanes above 0 with at most `width` + 1 significant bits; 0 for 0."""
    return xp.clip((xp.float_bits(value) >> carrier.width) - carrier.lane_bias, 0, None)


def field_and_significand(xp: Any, magnitude: Any, carrier: Carrier) -> tuple[Any, Any]:
    """Exponent fields and significands. A subnormal number's significand is doubled, as its field 0 stands for 1."""
    return magnitude >> carrier.width, (magnitude & (carrier.hidden - 1)) + xp.clip(magnitude, None, carrier.hidden)


def from_count(
    xp: Any, count: Any, exponent: Any, carrier: Carrier, normal: bool = False, scale: tuple[Any, Any] | None = None
) -> Any:
    """The magnitudes count * 2^exponent, for counts >= 0 with at most as many significant bits as the carrier.

    Args:
        xp: the array namespace.
        count, exponent: of magnitudes that the carrier represents.
        carrier: their layout.
        normal: for magnitudes that are all zero or normal numbers of the carrier.
        scale: what `power` makes of exponents by which magnitudes are scaled: those beyond the carrier's range become
            infinity, and those below its smallest step are rounded toward zero. Without the first of the two, for
            magnitudes that are all zero or normal numbers.
    """
    absolute = xp.float_bits(count) + ((exponent + (carrier.bias - carrier.lane_bias)) << carrier.width)
    if scale is not None:
        most, shift = scale
        absolute, normal = (absolute if most is None else xp.clip(absolute, None, most)) + shift, most is None
    return (absolute if normal else without_hidden_bits(xp, absolute, carrier)) & (-count >> carrier.last)


def power(xp: Any, exponent: Any, carrier: Carrier) -> tuple[Any, Any]:
    """The largest magnitude, of those whose fields may lie below 1, that 2^exponent times gives infinity; and what
    the multiplication adds to the others."""
    return carrier.infinity - (xp.clip(exponent, 0, None) << carrier.width), exponent << carrier.width


def with_hidden_bits(xp: Any, magnitude: Any, carrier: Carrier) -> Any:
    """Magnitudes with subnormal numbers normalized: they get the fields 0, -1, ... Zero is below all of them."""
    subnormal = xp.float_bits(magnitude) + ((1 - carrier.width - carrier.lane_bias) << carrier.width)
    return xp.where(magnitude < carrier.hidden, subnormal, magnitude)


def without_hidden_bits(xp: Any, absolute: Any, carrier: Carrier) -> Any:
    """The inverse of `with_hidden_bits`, for magnitudes that the carrier can represent."""
    width, hidden = carrier.width, carrier.hidden
    significand = (absolute & (hidden - 1)) | hidden
    subnormal = significand >> xp.clip(1 - (absolute >> width), 0, carrier.last)
    return xp.where(absolute < hidden, subnormal, absolute)


def quiet(bits: Any, carrier: Carrier) -> Any:
    """Infinities as NaNs, and NaNs as they are; `bits` are nothing else."""
    infinite = ((bits & carrier.magnitude_mask) - (carrier.infinity + 1)) >> carrier.last
    return bits | (infinite & (carrier.hidden >> 1))
