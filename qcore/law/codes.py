"""Integer codes, as the formats' standards define their bits: numbers rounded to codes, and the numbers of codes.

Integers only, as in `qcore.law.grid`.

rounded magnitude      eeeeeeee mmm00000000000000000000     less `base`, see `qcore.law.grid`
- fields               .... EEEE mmm00000000000000000000    the fields of subnormal numbers, whose hidden bits stay
>> shift               .... .... .... EEEE mmm              the dropped bits
"""

from __future__ import annotations

from typing import Any, NamedTuple

from qcore.law.carrier import Carrier, field_and_significand, from_count, quiet
from qcore.law.grid import GENERAL, KEEPING, SYMMETRIC, Grid, cleared, finish, limit, round_magnitude
from qcore.law.rounding import Rounding, stays_finite
from qcore.law.table import TableCodes
from qcore.law.table import decode as decode_by_table
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


class PickedCodes(NamedTuple):
    """The codes of e2m1 elements under float scales, whose law has them as numbers."""


Codes = FloatCodes | FixedCodes | PositCodes | TableCodes | PickedCodes
Scale = tuple[Any, Any] | None


def normal_scales(exponent: Any, carrier: Carrier, codes: FloatCodes | FixedCodes) -> Any:
    """True for exponents k where every number of the codes times 2^k is zero or a normal number of the carrier."""
    if isinstance(codes, FloatCodes):
        least, most = codes.lowest - codes.man, codes.lowest + (codes.largest >> codes.man)
    else:
        least, most = codes.exponent + carrier.bias, codes.exponent + carrier.bias + carrier.last
    return (exponent + least > 0) & (exponent + most < carrier.infinity >> carrier.width)


def decode(xp: Any, code: Any, carrier: Carrier, codes: Codes, scale: Scale = None) -> Any:
    """The lanes of the numbers with these codes; floats and fixed point may be scaled (see `from_count`).

    Bits above a code's highest are ignored.
    """
    if isinstance(codes, FloatCodes):
        return _decode_float(xp, code, carrier, codes, scale)
    if isinstance(codes, PositCodes):
        return decode_posit(xp, code, carrier, codes)
    if isinstance(codes, TableCodes):
        return decode_by_table(xp, code, codes)
    assert isinstance(codes, FixedCodes)  # codes of e2m1 under float scales have a law of their own
    return _decode_fixed(xp, code, carrier, codes, scale)


def _decode_float(xp: Any, code: Any, carrier: Carrier, codes: FloatCodes, scale: Scale) -> Any:
    magnitude, negative = code & codes.mask, (code & codes.sign) != 0
    # Codes of subnormal numbers have a smaller field, and the quantum of the first field of normal numbers.
    field = xp.clip(magnitude >> codes.man, codes.first, None)
    count = magnitude - ((field - 1) << codes.man)  # of normal numbers with the hidden bit
    exponent = field + (codes.lowest - codes.first - codes.man - carrier.bias)
    lanes = from_count(xp, count, exponent, carrier, isinstance(codes, NormalCodes), scale)
    beyond = magnitude > codes.largest
    unused = beyond | ((magnitude < codes.least) & (magnitude > 0))
    xp.named("_decode_float", magnitude=magnitude, field=field, count=count, beyond=beyond, unused=unused)
    lanes = xp.where(unused, carrier.quiet_nan, lanes)  # codes that stand for no number
    # Infinity comes after NaN, as it is one of the codes above the largest. The second comparison is for formats
    # without infinity, whose `infinity` is the code of their largest number.
    lanes = xp.where((magnitude == codes.infinity) & beyond, carrier.infinity, lanes)
    xp.named("_decode_float", lanes=lanes)
    lanes = xp.where(negative, lanes | carrier.negative, lanes)
    # The last, as the code of this NaN is that of zero with a sign, which the lines above have made -0.
    return xp.where((code & (codes.mask | codes.sign)) == codes.nan_zero, carrier.quiet_nan, lanes)


def _decode_fixed(xp: Any, code: Any, carrier: Carrier, codes: FixedCodes, scale: Scale) -> Any:
    # Extends the sign bit to the lane; without negative numbers `half` is 0 and nothing changes.
    number = ((code & codes.mask) ^ codes.half) - codes.half
    lanes = fixed_lanes(xp, number, carrier, codes, scale)
    xp.named("_decode_fixed", number=number, lanes=lanes)
    return xp.where(number < codes.unused - codes.half, carrier.quiet_nan, lanes)


def fixed_lanes(xp: Any, number: Any, carrier: Carrier, codes: FixedCodes, scale: Scale = None) -> Any:
    """The lanes of these numbers of steps."""
    sign = number >> carrier.last
    count, normal = (number ^ sign) - sign, isinstance(codes, SmallCodes)  # xor and difference: the absolute value
    xp.named("fixed_lanes", sign=sign, count=count)
    return from_count(xp, count, codes.exponent, carrier, normal, scale) | (sign & carrier.negative)


class FloatEncoding(NamedTuple):
    """The integers with which `encode` makes a float's codes on a carrier: ints or 0-d arrays.

    Attributes:
        cap: the most bits that a rounded magnitude is shifted: those dropped from the smallest number, or without
            subnormal numbers the fewest. Each bit less is one field of subnormal numbers.
        sign, nan, nan_sign: as in `FloatCodes`.

        For "wide" formats only:
        fields: the most fields of subnormal numbers that are normal numbers of the carrier.
        below: the smallest normal number's exponent field minus 1.
        highest: the same for a number beyond the largest.
        man, infinity: as in `FloatCodes`.
        offset: added to codes, if the smallest normal number has not the field 1 and the mantissa 0.
        most: the upper bound of codes, beyond that of the largest number, so that they fit lanes.
    """

    cap: Any
    sign: Any
    nan: Any
    nan_sign: Any
    fields: Any
    below: Any
    highest: Any
    man: Any
    infinity: Any
    offset: Any
    most: Any


class PowerEncoding(FloatEncoding):
    """The same for `PowerCodes`; `offset` is less `below`."""


Encoding = FloatEncoding | FixedCodes


def encoding(carrier: Carrier, grid: Grid, codes: FloatCodes | FixedCodes) -> tuple[Grid, Encoding]:
    """The arguments of `encode`: a grid whose limits are codes (fixed point: magnitudes less `base`), and the codes."""
    limit, lower = min(grid.limit, carrier.infinity - 1), grid.limit + grid.lower
    if isinstance(codes, FixedCodes):
        # Where the range goes beyond the carrier's, infinity has no number to saturate at. It gets the code 0, as NaN.
        keep = grid.keep - (grid.limit == carrier.infinity)
        return grid._replace(limit=limit - grid.base, keep=keep), codes
    largest, least = _code_of(limit, carrier, codes), _code_of(lower, carrier, codes)
    jump = _code_of(grid.limit + grid.jump, carrier, codes) - largest
    lower_jump = _code_of(lower + grid.jump + grid.lower_jump, carrier, codes) - least - jump
    zero = _code_of(grid.zero, carrier, codes)
    grid = grid._replace(limit=largest, lower=least - largest, jump=jump, lower_jump=lower_jump, zero=zero)
    cap, fields = grid.finest if grid.slope else min(grid.coarsest, carrier.width), carrier.width
    if codes.lowest < 1:  # all subnormal numbers of the format are subnormal numbers of the carrier, too
        cap, fields = carrier.width, 0
    below, offset = codes.lowest - 1, (codes.first - 1) << codes.man
    highest = codes.lowest + (codes.largest >> codes.man)
    most = min(codes.largest + 1, (1 << carrier.last) - 1 + offset)
    specials = codes.sign, codes.nan, codes.nan_sign
    kind: type[FloatEncoding] = FloatEncoding
    if isinstance(codes, PowerCodes):
        kind, offset = PowerEncoding, offset - below
    return grid, kind(cap, *specials, fields, below, highest, codes.man, codes.infinity, offset, most)


def _code_of(lane: int, carrier: Carrier, codes: FloatCodes) -> int:
    """The code of a magnitude, of infinity, or of NaN; -1 for zero in formats without zero."""
    if lane >= carrier.infinity:
        return codes.infinity if lane == carrier.infinity else codes.nan
    if lane == 0:
        return codes.first - 1
    # A subnormal number of the carrier is normalized here: its field is that of its leading bit, 0 or less.
    field = lane >> carrier.width or lane.bit_length() - carrier.width
    significand = lane << 1 - field if lane < carrier.hidden else lane % carrier.hidden + carrier.hidden
    above = field - codes.lowest
    count = significand >> carrier.width - codes.man - min(above, 0)
    return count + (max(above, 0) + codes.first - 1 << codes.man)


def encode(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, codes: Encoding, word: Any, kind: str
) -> Any:
    """Rounds lanes and returns the codes of the results.

    Arguments as for `round_to_grid`; the grid and the codes are the results of `encoding`.

    NaN becomes 0 where the format has none.
    """
    rounded, drop, below = round_magnitude(xp, bits, carrier, mode, grid, word, kind)
    sign, magnitude = bits >> carrier.last, bits & carrier.magnitude_mask
    if kind in GENERAL or isinstance(codes, FixedCodes):  # otherwise `shift` drops them
        rounded = cleared(rounded, drop, carrier)
    if isinstance(codes, FixedCodes):
        # Clipped as magnitudes, before they are counted: a count beyond the range need not fit a lane.
        value = xp.clip(xp.clip(rounded, None, grid.limit + (sign & grid.lower)), 0, None)
        xp.named("encode", value=value)
        small = isinstance(codes, SmallCodes)
        code = _small_count(xp, value, sign, carrier) if small else _fixed_count(xp, value, sign, carrier, grid.top)
        return xp.where(magnitude > grid.keep, 0, code & codes.mask)
    shift, largest = xp.clip(drop, None, codes.cap), grid.limit
    if kind == "wide":
        value = _wide_count(xp, rounded, shift, xp.clip(below, codes.below, None), carrier, grid, codes)
        largest = largest + (sign & grid.lower)
    else:  # a bit less to shift is a field less to keep: subnormal numbers have the field 0 in codes
        value = (rounded - ((codes.cap - shift) << carrier.width)) >> shift
    xp.named("encode", shift=shift, largest=largest, value=value)
    value = xp.clip(value, 0, None)  # numbers that were rounded to less than one quantum are negative here
    # A carry may have led beyond the largest code, where other codes have other meanings.
    if kind in SYMMETRIC and stays_finite(mode, sign) is None:  # infinity, or NaN, has the next code
        value = xp.clip(value, None, largest + grid.jump)
    else:
        value = limit(xp, value, largest, bits, carrier, mode, grid, kind)
    kept = codes.nan | (sign & codes.nan_sign)
    if kind in KEEPING:
        kept = xp.where(magnitude > carrier.infinity, kept, codes.infinity | (sign & codes.sign))
    xp.named("encode", kept=kept)
    return finish(xp, value, bits, sign & codes.sign, kept, carrier, grid, kind)


def wrap(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, codes: FixedCodes, word: Any, kind: str
) -> Any:
    """Rounded lanes modulo the number of codes; arguments as for `round_to_grid`, infinity becomes a NaN."""
    rounded, drop, _ = round_magnitude(xp, bits, carrier, mode, grid, word, kind)
    rounded = cleared(rounded, drop, carrier)
    sign, magnitude = bits >> carrier.last, bits & carrier.magnitude_mask
    code = _fixed_count(xp, xp.clip(rounded, 0, None), sign, carrier, grid.top) & codes.mask
    # Only a number that is rounded to zero keeps its sign; one that wraps around to zero becomes +0.
    zero = (rounded - 1) >> carrier.last
    lanes = fixed_lanes(xp, (code ^ codes.half) - codes.half, carrier, codes) | (bits & carrier.negative & zero)
    xp.named("wrap", code=code, zero=zero, lanes=lanes)
    return xp.where(magnitude > carrier.infinity - 1, quiet(bits, carrier), lanes)


def _wide_count(
    xp: Any, rounded: Any, shift: Any, below: Any, carrier: Carrier, grid: Grid, codes: FloatEncoding
) -> Any:
    """The codes of rounded magnitudes; subnormal numbers of the carrier may be normal ones of the format."""
    if isinstance(codes, PowerEncoding):
        return (rounded >> shift) + (below + codes.offset)
    fields = xp.clip(codes.cap - shift, None, codes.fields)
    value = (rounded - (fields << carrier.width)) >> shift
    value = value << xp.clip(shift - grid.finest - below, 0, None)  # the bits below the carrier's last
    above = ((xp.clip(below, None, codes.highest) - codes.below) << codes.man) + codes.offset
    xp.named("_wide_count", fields=fields, value=value, above=above)
    return xp.clip(value, None, codes.most - above) + above


def _small_count(xp: Any, value: Any, sign: Any, carrier: Carrier) -> Any:
    """Magnitudes less `base`, counted in steps, with signs.

    They are converted as floats: a quantum with field 1 becomes 1.0. Zero becomes 1/2, which is converted to 0.
    """
    absolute = value + ((carrier.lane_bias - 1) << carrier.width)
    return xp.integers(absolute | (sign << carrier.last))


def _fixed_count(xp: Any, value: Any, sign: Any, carrier: Carrier, top: Any) -> Any:
    """Magnitudes less `base`, counted in steps, with signs, as far as they fit lanes; `top` is that of the grid."""
    field, significand = field_and_significand(xp, value, carrier)
    # One of the two shifts is 0. Bits that leave the lane to the left count multiples of 2^last, which no code has.
    shift = field - top
    count = (significand << xp.clip(shift, 0, carrier.last)) >> xp.clip(-shift, 0, carrier.last)
    xp.named("_fixed_count", field=field, significand=significand, shift=shift, count=count)
    return (count ^ sign) - sign
