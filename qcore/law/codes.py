"""Integer codes, as the formats' standards define their bits, and the numbers they stand for: integers only."""

from __future__ import annotations

from typing import Any, NamedTuple

from qcore.law.carrier import Carrier
from qcore.law.lanes import from_count
from qcore.law.tapered import PositCodes
from qcore.law.tapered import decode as decode_posit


class FloatCodes(NamedTuple):
    """Codes sign | exponent field | mantissa: ints or 0-d arrays.

    Attributes:
        man: mantissa bits.
        mask: the bits of the exponent field and of the mantissa.
        sign: the sign bit, or 0 for formats without one.
        first: the exponent field of the smallest normal number: 1, or 0 for formats without zero.
        lowest: the carrier's exponent field of that number.
        least, largest: the codes of the smallest and the largest magnitude; other codes above 0 are not numbers.
        infinity: the code of infinity; that of the largest magnitude for formats without infinity.
        nan: the code of NaN; 0 for formats without NaN.
        nan_sign: the sign bit if NaNs have a sign, else 0.
        nan_zero: the sign bit if it alone is a NaN, else -1.
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


class PowerCodes(FloatCodes):
    """The codes of powers of two: without mantissa bits."""


class NormalCodes(FloatCodes):
    """Floats whose numbers above zero are all normal numbers of the carrier."""


class FixedCodes(NamedTuple):
    """Codes in two's complement: ints or 0-d arrays.

    Attributes:
        exponent: of the step.
        half: 2^(wl-1) for formats with negative numbers, else 0.
        mask: 2^wl - 1.
        unused: 1 if the lowest number, -half, does not exist, else 0.
    """

    exponent: Any
    half: Any
    mask: Any
    unused: Any


class SmallCodes(FixedCodes):
    """Fixed point whose count of steps fits a lane, and whose step is a normal number of the carrier."""


Codes = FloatCodes | FixedCodes | PositCodes
Scale = tuple[Any, Any] | None


def normal_scales(exponent: Any, carrier: Carrier, codes: FloatCodes | FixedCodes) -> Any:
    """True for exponents by which all numbers with codes can be scaled to normal numbers of the carrier, or zero."""
    if isinstance(codes, FloatCodes):
        least, most = codes.lowest - codes.man, codes.lowest + (codes.largest >> codes.man)
    else:
        least, most = codes.exponent + carrier.bias, codes.exponent + carrier.bias + carrier.last
    return (exponent + least > 0) & (exponent + most < carrier.infinity >> carrier.width)


def decode(xp: Any, code: Any, carrier: Carrier, codes: Codes, scale: Scale = None) -> Any:
    """The lanes of the numbers with these codes, of floats and fixed point times a scale (see `from_count`).

    Bits above a code's highest are ignored.
    """
    if isinstance(codes, FloatCodes):
        return _decode_float(xp, code, carrier, codes, scale)
    if isinstance(codes, PositCodes):
        return decode_posit(xp, code, carrier, codes)
    return _decode_fixed(xp, code, carrier, codes, scale)


def _decode_float(xp: Any, code: Any, carrier: Carrier, codes: FloatCodes, scale: Scale) -> Any:
    magnitude, negative = code & codes.mask, (code & codes.sign) != 0
    field = xp.clip(magnitude >> codes.man, codes.first, None)
    count = magnitude - ((field - 1) << codes.man)  # of normal numbers with the hidden bit
    exponent = field + (codes.lowest - codes.first - codes.man - carrier.bias)
    lanes = from_count(xp, count, exponent, carrier, isinstance(codes, NormalCodes), scale)
    unused = (magnitude > codes.largest) | ((magnitude < codes.least) & (magnitude > 0))
    lanes = xp.where(unused, carrier.quiet_nan, lanes)
    lanes = xp.where((magnitude == codes.infinity) & (magnitude > codes.largest), carrier.infinity, lanes)
    lanes = xp.where(negative, lanes | carrier.negative, lanes)
    return xp.where((code & (codes.mask | codes.sign)) == codes.nan_zero, carrier.quiet_nan, lanes)


def _decode_fixed(xp: Any, code: Any, carrier: Carrier, codes: FixedCodes, scale: Scale) -> Any:
    number = ((code & codes.mask) ^ codes.half) - codes.half
    lanes = fixed_lanes(xp, number, carrier, codes, scale)
    return xp.where(number < codes.unused - codes.half, carrier.quiet_nan, lanes)


def fixed_lanes(xp: Any, number: Any, carrier: Carrier, codes: FixedCodes, scale: Scale = None) -> Any:
    sign = number >> carrier.last
    count, normal = (number ^ sign) - sign, isinstance(codes, SmallCodes)
    return from_count(xp, count, codes.exponent, carrier, normal, scale) | (sign & carrier.negative)
