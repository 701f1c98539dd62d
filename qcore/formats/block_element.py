"""Elements of blocks: the formats they may have, and their integers under scales that are powers of two."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

from qcore.arguments import quoted
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number, check_number
from qcore.law.blocks.shared_scale import E8M0_BIAS, Shared
from qcore.law.carrier import FLOAT32, Carrier

_FARTHEST = 2**15  # exponents, which lanes of 32 bits hold with what is added to them

# What a rule adds to the largest magnitude's bits before its exponent is read, so that k is one higher from some
# mantissa on. Arguments: the carrier, the element's bits of precision, and the mantissa of its largest number.
RULES: dict[str, Callable[[Carrier, int, int], int]] = {
    "floor": lambda carrier, precision, mantissa: 0,
    "ceil": lambda carrier, precision, mantissa: carrier.hidden - 1,  # above 1.0
    "even": lambda carrier, precision, mantissa: carrier.hidden >> precision,  # what rounds up to 2 in those bits
    "rceil": lambda carrier, precision, mantissa: carrier.hidden - 1 - mantissa,  # above the largest number's
    "round": lambda carrier, precision, mantissa: (
        _from_root(carrier) - (_from_root(carrier) + mantissa & carrier.hidden)
    ),
}


def _from_root(carrier: Carrier) -> int:
    """What carries mantissas above that of the square root of 2, whose logarithms round up."""
    return 2 * carrier.hidden - 1 - isqrt(2 * carrier.hidden**2)


def check_element(element: Any) -> Number:
    """The format that a block's `element` argument stands for, saturating.

    Raises:
        TypeError, ValueError: if elements cannot have this format, or it has no numbers above zero.
    """
    if isinstance(element, str):
        element = check_number(element, "element")
    if not isinstance(element, FixedPoint | FloatingPoint | BinaryFloat):
        raise TypeError(
            f"element={quoted(element)}; allowed are a FixedPoint, FloatingPoint, BinaryFloat, or the text of one"
        )
    element = element.overflowing("saturate")
    if isinstance(element, FixedPoint) and element.wl == element.signed:
        raise ValueError(f"element={quoted(element)}; allowed is one with numbers above zero")
    _, step, largest = element.span
    if step < -_FARTHEST or largest > _FARTHEST:
        raise ValueError(
            f"element={quoted(element)} has numbers from 2^{step} to 2^{largest}; allowed are exponents from "
            f"{-_FARTHEST} to {_FARTHEST}"
        )
    return element


def largest_number(element: Any) -> tuple[int, int]:
    """The largest number of an element, as an integer times a power of two."""
    if isinstance(element, FixedPoint):
        return (1 << (element.wl - element.signed)) - 1, -element.fl
    return element.magnitudes.largest


def check_float_scaled(element: Any) -> None:
    """Raises a ValueError unless elements may have scales in float32."""
    count, exponent = largest_number(element)
    step = -element.fl if isinstance(element, FixedPoint) else element.magnitudes.smallest[1]
    if count.bit_length() > FLOAT32.mantissa_bits + 1 or count.bit_length() + exponent > 64 or step < -100:
        raise ValueError(
            f"element={quoted(element)} with scale='float32'; allowed are formats with steps of at least 2^-100 and a "
            "largest number of at most 24 bits and below 2^64"
        )


def largest_lane(element: Any, carrier: Carrier) -> int:
    """The carrier's lane of the largest number."""
    return carrier.lane_at_most(*largest_number(element))


def shared_integers(element: Any, carrier: Carrier, rule: str) -> Shared:
    """A saturating element's integers, under E8M0 scales."""
    if isinstance(element, FixedPoint):
        digits = element.wl - element.signed
        (count, exponent), step, man = ((1 << digits) - 1, -element.fl), -element.fl, digits
        precision, signed = digits, element.signed
        lower = count + (element.signed and not element.symmetric)
    else:
        magnitudes, man = element.magnitudes, element.man
        (count, exponent), step, precision = magnitudes.largest, magnitudes.smallest[1], man + 1
        signed, lower = getattr(element, "signed", True), count
    top, mantissa = _mantissa(count, exponent, carrier)
    lower_top, lower_mantissa = _mantissa(lower, exponent, carrier)
    missing = carrier.width - carrier.mantissa_bits
    return Shared(
        carry=RULES[rule](carrier, precision, mantissa),
        least=carrier.bias - E8M0_BIAS,
        most=carrier.bias + E8M0_BIAS,
        top=top,
        ones=mantissa >> missing << missing,
        step=step,
        finest=max(carrier.width - man, 0),
        lower_top=lower_top,
        lower_ones=lower_mantissa >> missing << missing,
        negative=-int(signed),
    )


def generalized(shared: Shared, element: Any, carrier: Carrier) -> Shared:
    """The same integers for floating point elements without subnormals, a sign, or a signed zero."""
    magnitudes = element.magnitudes
    unit = carrier.hidden if element.man == 0 else 0
    shared = shared._replace(low=magnitudes.lowest, unit=unit, slope=0 if magnitudes.subnormals else 6)
    if isinstance(element, FloatingPoint):
        return shared
    return shared._replace(
        unit=0 if element.specials.startswith("p3109") else unit,
        floor=-int(not element.has_zero),
        zero=0 if element.has_zero else carrier.quiet_nan,
        signed_zero=-int(element.has_signed_zero),
        unsigned=-int(not element.signed),
        lower_jump=0 if element.signed or element.has_zero else carrier.quiet_nan,
        coded=-int(element.specials.startswith("p3109") and element.man == 0),
        shift=element.bias % 2,
    )


def _mantissa(count: int, exponent: int, carrier: Carrier) -> tuple[int, int]:
    """The exponent of count * 2^exponent, and its mantissa in a lane, rounded toward zero."""
    above = count.bit_length() - 1
    return exponent + above, (count << carrier.width >> above) - carrier.hidden
