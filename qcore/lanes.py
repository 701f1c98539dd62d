"""Parts of the law that take lanes apart and put them together; see `qcore.law` for the notation.

`xp.float_bits` makes floats of lanes and returns their bits as lanes: float32 of int32, float64 of int64. Where a lane
has no more significant bits than such a float the conversion is exact, whatever rounds it, and never subnormal.
`xp.integers` are the lanes of which such floats, 1/2 or integers, are the values, toward zero.
`xp.quotient_bits` are those of the quotient of two lanes' floats, or of a float a few steps off.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.carrier import Carrier


class Names:
    """The names that the law uses of an array namespace, for NumPy."""

    where = staticmethod(np.where)
    clip = staticmethod(np.clip)
    amax = staticmethod(np.amax)

    @staticmethod
    def float_bits(lanes: np.ndarray) -> np.ndarray:
        return lanes.astype(f"f{lanes.dtype.itemsize}").view(lanes.dtype)

    @staticmethod
    def integers(bits: np.ndarray) -> np.ndarray:
        return bits.view(f"f{bits.dtype.itemsize}").astype(bits.dtype)

    @staticmethod
    def quotient_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        floats = f"f{a.dtype.itemsize}"
        return (a.astype(floats) / np.asarray(b).astype(floats)).view(a.dtype)


def leading_bit(xp: Any, value: Any, carrier: Carrier) -> Any:
    """floor(log2 value) of lanes above 0 with at most `width` + 1 significant bits; 0 for 0."""
    return xp.clip((xp.float_bits(value) >> carrier.width) - carrier.lane_bias, 0, None)


def split(xp: Any, magnitude: Any, carrier: Carrier) -> tuple[Any, Any]:
    """Exponent fields and significands; a subnormal number's is doubled, as if field 0 were one below field 1."""
    return magnitude >> carrier.width, (magnitude & (carrier.hidden - 1)) + xp.clip(magnitude, None, carrier.hidden)


def from_count(xp: Any, count: Any, exponent: Any, carrier: Carrier) -> Any:
    """The magnitudes count * 2^exponent, for counts >= 0 with at most as many significant bits as the carrier."""
    absolute = xp.float_bits(count) + ((exponent + (carrier.bias - carrier.lane_bias)) << carrier.width)
    return without_hidden_bits(xp, absolute, carrier) & (-count >> carrier.last)


def with_hidden_bits(xp: Any, magnitude: Any, carrier: Carrier) -> Any:
    """Magnitudes where subnormal numbers have the fields 0, -1, ... and a hidden bit, as normal ones have.

    A zero is below all of them.
    """
    subnormal = xp.float_bits(magnitude) + ((1 - carrier.width - carrier.lane_bias) << carrier.width)
    return xp.where(magnitude < carrier.hidden, subnormal, magnitude)


def without_hidden_bits(xp: Any, absolute: Any, carrier: Carrier) -> Any:
    """The inverse of `with_hidden_bits`, for magnitudes that the carrier has."""
    width, hidden = carrier.width, carrier.hidden
    significand = (absolute & (hidden - 1)) | hidden
    subnormal = significand >> xp.clip(1 - (absolute >> width), 0, carrier.last)
    return xp.where(absolute < hidden, subnormal, absolute)


def quiet(bits: Any, carrier: Carrier) -> Any:
    """NaNs as they are, and infinities as NaNs; only for these."""
    finite_or_infinite = ((bits & carrier.magnitude_mask) - (carrier.infinity + 1)) >> carrier.last
    return bits | (finite_or_infinite & (carrier.hidden >> 1))
