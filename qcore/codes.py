"""Numbers as integer codes, in the bits of the formats' standards, and back: integers only, as in `qcore.law`."""

from __future__ import annotations

from typing import Any, NamedTuple

from qcore.carrier import Carrier
from qcore.lanes import from_count, normalize, split


class FloatCodes(NamedTuple):
    """Codes sign | exponent field | mantissa: ints or 0-d arrays.

    Attributes:
        man: mantissa bits.
        mask: the bits of the exponent field and of the mantissa.
        sign: the sign bit, or 0 where there is none.
        first: the exponent field of the smallest normal number: 1, or 0 where there is no zero.
        lowest: the carrier's exponent field of that number.
        least, largest: the codes of the smallest and the largest magnitude; other codes above 0 are not numbers.
        infinity: the code of infinity; the largest magnitude's where there is none.
        nan: the code of NaN; 0 where there is none.
        nan_sign: the sign bit where a NaN has a sign, else 0.
        nan_zero: the sign bit where that alone is a NaN, else -1.
    """

    man: Any
    mask: Any
    sign: Any
    first: Any
    lowest: Any
    least: Any
    largest: Any
    infinity: Any
    nan: Any
    nan_sign: Any
    nan_zero: Any


class FixedCodes(NamedTuple):
    """Codes in two's complement: ints or 0-d arrays.

    Attributes:
        exponent: of the step.
        half: 2^(wl-1) where there are negative numbers, else 0.
        mask: 2^wl - 1.
        unused: 1 where the lowest number, -half, does not exist, else 0.
    """

    exponent: Any
    half: Any
    mask: Any
    unused: Any


Codes = FloatCodes | FixedCodes


def encode(xp: Any, bits: Any, carrier: Carrier, codes: Codes, wide: bool = True) -> Any:
    """The codes of lanes of numbers that the format has; NaN becomes 0 where the format has none.

    `wide` is whether the carrier's subnormal numbers may be normal ones of the format.
    """
    if isinstance(codes, FloatCodes):
        return _encode_float(xp, bits, carrier, codes, wide)
    return _encode_fixed(xp, bits, carrier, codes)


def decode(xp: Any, code: Any, carrier: Carrier, codes: Codes) -> Any:
    """The lanes of the numbers with these codes; bits above a code's highest are ignored."""
    if isinstance(codes, FloatCodes):
        return _decode_float(xp, code, carrier, codes)
    return _decode_fixed(xp, code, carrier, codes)


def _encode_float(xp: Any, bits: Any, carrier: Carrier, codes: FloatCodes, wide: bool) -> Any:
    sign, magnitude = bits >> carrier.last, bits & carrier.magnitude_mask
    field, significand = (normalize if wide else split)(xp, magnitude, carrier)
    above = field - codes.lowest
    count = significand >> xp.clip(carrier.width - codes.man - xp.clip(above, None, 0), None, carrier.last)
    code = count + ((xp.clip(above, 0, None) + (codes.first - 1)) << codes.man)  # the hidden bit is worth one field
    code = xp.where(magnitude > carrier.infinity - 1, codes.infinity, code) | (sign & codes.sign)
    return xp.where(magnitude > carrier.infinity, codes.nan | (sign & codes.nan_sign), code)


def _decode_float(xp: Any, code: Any, carrier: Carrier, codes: FloatCodes) -> Any:
    magnitude, negative = code & codes.mask, (code & codes.sign) != 0
    field = magnitude >> codes.man
    hidden = xp.clip(field + (1 - codes.first), 0, 1) << codes.man
    exponent = xp.clip(field, codes.first, None) + (codes.lowest - codes.first - codes.man - carrier.bias)
    lanes = from_count(xp, (magnitude & ((1 << codes.man) - 1)) + hidden, exponent, carrier)
    unused = (magnitude > codes.largest) | ((magnitude < codes.least) & (magnitude > 0))
    lanes = xp.where(unused, carrier.quiet_nan, lanes)
    lanes = xp.where((magnitude == codes.infinity) & (magnitude > codes.largest), carrier.infinity, lanes)
    lanes = xp.where(negative, lanes | carrier.negative, lanes)
    return xp.where((code & (codes.mask | codes.sign)) == codes.nan_zero, carrier.quiet_nan, lanes)


def wrap(xp: Any, rounded: Any, bits: Any, carrier: Carrier, codes: FixedCodes) -> Any:
    """Numbers rounded from `bits`, modulo the number of codes; infinity becomes a NaN."""
    magnitude = carrier.magnitude_mask
    lanes = xp.where(
        (rounded & magnitude) == 0, rounded, decode(xp, encode(xp, rounded, carrier, codes), carrier, codes)
    )
    lanes = xp.where((bits & magnitude) == carrier.infinity, bits | carrier.quiet_nan, lanes)
    return xp.where((bits & magnitude) > carrier.infinity, bits, lanes)


def _encode_fixed(xp: Any, bits: Any, carrier: Carrier, codes: FixedCodes) -> Any:
    sign, magnitude = bits >> carrier.last, bits & carrier.magnitude_mask
    field, significand = split(xp, magnitude, carrier)
    shift = field - (carrier.bias + carrier.width) - codes.exponent
    count = (significand << xp.clip(shift, 0, carrier.last)) >> xp.clip(-shift, 0, carrier.last)
    count = count & ((shift - carrier.lane_bits) >> carrier.last)  # all bits have left to the left
    count = xp.where(magnitude > carrier.infinity, 0, count)
    return ((count ^ sign) - sign) & codes.mask


def _decode_fixed(xp: Any, code: Any, carrier: Carrier, codes: FixedCodes) -> Any:
    number = ((code & codes.mask) ^ codes.half) - codes.half
    sign = number >> carrier.last
    lanes = from_count(xp, (number ^ sign) - sign, codes.exponent, carrier) | (sign & carrier.negative)
    return xp.where(number < codes.unused - codes.half, carrier.quiet_nan, lanes)
