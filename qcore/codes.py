"""Numbers as integer codes, in the bits of the formats' standards, and back: integers only, as in `qcore.law`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qcore.carrier import Carrier
from qcore.lanes import Names, from_count, normalize, split
from qcore.law import Grid, finish, limit
from qcore.rounding import Rounding


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


def coded_grid(carrier: Carrier, grid: Grid, codes: Codes) -> tuple[Grid, Codes]:
    """A grid and codes for `encode`: limits less `base`, and codes instead of lanes where results come from there."""
    limits = min(grid.limit, carrier.infinity - 1), grid.limit + grid.lower
    largest, lowest = (max(limit - grid.base, 0) for limit in limits)
    based = grid._replace(limit=largest, lower=lowest - largest)
    if isinstance(codes, FixedCodes):
        return based._replace(keep=grid.keep - (grid.limit == carrier.infinity)), codes
    codes = codes._replace(lowest=codes.lowest - (grid.base >> carrier.width))

    def code(lane: int) -> int:
        return codes.infinity if lane == carrier.infinity else codes.nan if lane > carrier.infinity else 0

    lanes = np.array([largest, lowest], f"i{carrier.lane_bits // 8}")
    largest, lowest = (int(value) for value in _float_code(Names, lanes, carrier, codes, wide=True))
    jump = code(grid.limit + grid.jump) - largest if grid.limit + grid.jump >= carrier.infinity else 0
    lower = grid.limit + grid.lower + grid.jump + grid.lower_jump
    lower_jump = (code(lower) - lowest if lower >= carrier.infinity else 0) - jump if grid.unsigned else 0
    return based._replace(jump=jump, lower_jump=lower_jump, zero=code(grid.zero)), codes


def encode(
    xp: Any, rounded: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, codes: Codes, kind: str
) -> Any:
    """The codes of the magnitudes that `round_magnitude` makes of lanes; the grid is one of `coded_grid`.

    NaN becomes 0 where the format has none.
    """
    value, jump = limit(xp, xp.clip(rounded, 0, None), bits, carrier, mode, grid, kind)
    sign = bits >> carrier.last
    magnitude = bits & carrier.magnitude_mask
    if isinstance(codes, FixedCodes):
        return xp.where(magnitude > grid.keep, 0, _fixed_code(xp, value, sign, carrier, grid.top, codes))
    value = _float_code(xp, value, carrier, codes, wide=kind == "wide") + jump
    kept = xp.where(
        magnitude > carrier.infinity, codes.nan | (sign & codes.nan_sign), codes.infinity | (sign & codes.sign)
    )
    return finish(xp, value, bits, sign & codes.sign, kept, carrier, grid, kind)


def wrap(xp: Any, rounded: Any, bits: Any, carrier: Carrier, grid: Grid, codes: FixedCodes) -> Any:
    """The lanes of the magnitudes that `round_magnitude` makes, modulo the number of codes; infinity becomes a NaN."""
    magnitude, sign = bits & carrier.magnitude_mask, bits >> carrier.last
    code = _fixed_code(xp, xp.clip(rounded, 0, None), sign, carrier, grid.top, codes)
    zero = (rounded - 1) >> carrier.last  # keeps its sign
    lanes = _fixed_lanes(xp, (code ^ codes.half) - codes.half, carrier, codes) | (bits & carrier.negative & zero)
    nan = bits | (((magnitude - 1 - carrier.infinity) >> carrier.last) & (carrier.hidden >> 1))
    return xp.where(magnitude > carrier.infinity - 1, nan, lanes)


def decode(xp: Any, code: Any, carrier: Carrier, codes: Codes) -> Any:
    """The lanes of the numbers with these codes; bits above a code's highest are ignored."""
    if isinstance(codes, FloatCodes):
        return _decode_float(xp, code, carrier, codes)
    return _decode_fixed(xp, code, carrier, codes)


def _float_code(xp: Any, value: Any, carrier: Carrier, codes: FloatCodes, wide: bool) -> Any:
    """The codes of magnitudes less a base; `wide` is whether the carrier's subnormal numbers may be normal ones."""
    field, significand = (normalize if wide else split)(xp, value, carrier)
    above = field - codes.lowest
    count = significand >> xp.clip(carrier.width - codes.man - xp.clip(above, None, 0), None, carrier.last)
    return count + ((xp.clip(above, 0, None) + (codes.first - 1)) << codes.man)  # the hidden bit is worth one field


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


def _fixed_code(xp: Any, value: Any, sign: Any, carrier: Carrier, top: Any, codes: FixedCodes) -> Any:
    """The codes of magnitudes less a base, with signs; `top` is that of the grid."""
    field, significand = split(xp, value, carrier)
    shift = field - top
    count = (significand << xp.clip(shift, 0, carrier.last)) >> xp.clip(-shift, 0, carrier.last)
    return ((count ^ sign) - sign) & codes.mask


def _decode_fixed(xp: Any, code: Any, carrier: Carrier, codes: FixedCodes) -> Any:
    number = ((code & codes.mask) ^ codes.half) - codes.half
    return xp.where(number < codes.unused - codes.half, carrier.quiet_nan, _fixed_lanes(xp, number, carrier, codes))


def _fixed_lanes(xp: Any, number: Any, carrier: Carrier, codes: FixedCodes) -> Any:
    sign = number >> carrier.last
    return from_count(xp, (number ^ sign) - sign, codes.exponent, carrier) | (sign & carrier.negative)
