"""Parts of the law that take lanes apart and put them together; see `qcore.law` for the notation."""

from __future__ import annotations

from typing import Any

from qcore.carrier import Carrier


def leading_bit(value: Any, carrier: Carrier) -> Any:
    """floor(log2 value) of lanes above 0; 0 for 0."""
    position = value & 0
    for step in (32, 16, 8, 4, 2, 1)[carrier.lane_bits == 32 :]:
        upper = value >> step
        jump = (-upper >> carrier.last) & step  # `step` where any upper bit is set, else 0
        position, value = position + jump, value >> jump
    return position


def normalize(xp: Any, magnitude: Any, carrier: Carrier) -> tuple[Any, Any]:
    """Magnitudes in which subnormal numbers have their own exponent fields, 0 and below, and their significands.

    A significand has its hidden bit; that of zero is 0, and its field is below all others.
    """
    width, hidden, last = carrier.width, carrier.hidden, carrier.last
    shift = width - leading_bit(magnitude, carrier)
    fraction = (magnitude << xp.clip(shift, 0, width)) & (hidden - 1)
    absolute = xp.where(magnitude < hidden, ((1 - shift) << width) + fraction, magnitude)
    nonzero = -magnitude >> last
    return xp.where(magnitude > 0, absolute, -(1 << (last - 1))), ((absolute & (hidden - 1)) | hidden) & nonzero


def denormalize(xp: Any, absolute: Any, carrier: Carrier) -> Any:
    """The inverse of `normalize` for numbers above zero."""
    width, hidden = carrier.width, carrier.hidden
    significand = (absolute & (hidden - 1)) | hidden
    subnormal = significand >> xp.clip(1 - (absolute >> width), 0, carrier.last)
    return xp.where(absolute < hidden, subnormal, absolute)


def from_count(xp: Any, count: Any, exponent: Any, carrier: Carrier) -> Any:
    """The magnitudes count * 2^exponent, for counts >= 0 with at most as many significant bits as the carrier."""
    width = carrier.width
    position = leading_bit(count, carrier)
    fraction = (count << xp.clip(width - position, 0, width)) >> xp.clip(position - width, 0, carrier.last)
    absolute = ((position + exponent + carrier.bias) << width) + (fraction & (carrier.hidden - 1))
    return denormalize(xp, absolute, carrier) & (-count >> carrier.last)
