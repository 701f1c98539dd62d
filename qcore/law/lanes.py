"""How the law takes lanes (see `Carrier`) apart and builds them."""

from __future__ import annotations

from typing import Any

from qcore.law.carrier import Carrier


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
