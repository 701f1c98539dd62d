"""Elements of blocks: which formats they may have, and their integers under scales that are powers of two."""

from __future__ import annotations

from typing import Any

from qcore.carrier import Carrier
from qcore.fixed import FixedPoint
from qcore.floats import BinaryFloat, FloatingPoint
from qcore.number import Number
from qcore.sharing import E8M0_BIAS, Shared


def check_element(element: Any) -> Number:
    """The element's format, saturating.

    Raises:
        TypeError: if it is none that elements can have, nor the name of one.
        ValueError: if there is no such name, or it has no numbers above zero.
    """
    if isinstance(element, str):
        from qcore.named import check_number  # which has names of blocks, that need this module

        element = check_number(element, "element")
    if not isinstance(element, FixedPoint | FloatingPoint | BinaryFloat):
        raise TypeError(
            f"element={element!r}; allowed are a FixedPoint, FloatingPoint, BinaryFloat, or the name of one"
        )
    element = element.overflowing("saturate")
    if isinstance(element, FixedPoint) and element.wl == element.signed:
        raise ValueError(f"element={element!r}; allowed is one with numbers above zero")
    return element


def shared_integers(element: Any, carrier: Carrier, rule: str) -> Shared:
    """A saturating element's integers, under E8M0 scales."""
    if isinstance(element, FixedPoint):
        digits = element.wl - element.signed
        (count, exponent), step, man = ((1 << digits) - 1, -element.fl), -element.fl, digits
        precision, signed = digits, element.signed
        lower = count + (element.signed and not element.symmetric)
    else:
        scale = element.scale
        (count, exponent), step, man, precision = scale.largest, scale.smallest[1], scale.man, scale.man + 1
        signed, lower = getattr(element, "signed", True), count
    top, mantissa = _mantissa(count, exponent, carrier)
    lower_top, lower_mantissa = _mantissa(lower, exponent, carrier)
    missing = carrier.width - carrier.mantissa_bits
    carry = {
        "floor": 0,
        "ceil": carrier.hidden - 1,
        "even": carrier.hidden >> precision,
        "rceil": carrier.hidden - 1 - mantissa,
    }[rule]
    return Shared(
        carry=carry,
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
    """With what is said of floating point elements that lack subnormals, a sign or a signed zero."""
    scale = element.scale
    unit = carrier.hidden if element.man == 0 else 0
    shared = shared._replace(low=scale.lowest, unit=unit, slope=0 if scale.subnormals else 6)
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
    """The exponent of count * 2^exponent, and the mantissa of a lane, cut off."""
    above = count.bit_length() - 1
    return exponent + above, (count << carrier.width >> above) - carrier.hidden
