"""Numbers rounded to integer codes: integers only, as in `qcore.law`.

rounded magnitude      eeeeeeee mmm00000000000000000000     less `base`, see `qcore.law`
>> shift               .... eeeeeeee mmm                    the bits that were dropped
- fields below         .... EEEE mmm                        what hidden bits and subnormal fields are too much
"""

from __future__ import annotations

from typing import Any, NamedTuple

from qcore.carrier import Carrier
from qcore.codes import FixedCodes, FloatCodes, fixed_lanes
from qcore.lanes import quiet, split
from qcore.law import Grid, finish, limit, round_magnitude
from qcore.rounding import Rounding


class FloatEncoding(NamedTuple):
    """What `encode` needs of a float's codes on a carrier: ints or 0-d arrays.

    Attributes:
        cap: the most bits that a rounded magnitude is shifted: what the grid's fields leave, or where there are no
            subnormal numbers the fewest bits dropped.
        below: how many of the grid's fields above 1 hold subnormal numbers.
        offset: what is added to codes where the smallest normal number's field is not 1.
        highest: an exponent field beyond all the format's numbers, whose code is still a lane.
        man, lowest, sign, infinity, nan, nan_sign: as in `FloatCodes`.
    """

    cap: Any
    below: Any
    offset: Any
    man: Any
    lowest: Any
    highest: Any
    sign: Any
    infinity: Any
    nan: Any
    nan_sign: Any


Encoding = FloatEncoding | FixedCodes


def encoding(carrier: Carrier, kind: str, grid: Grid, codes: FloatCodes | FixedCodes) -> tuple[Grid, Encoding]:
    """What `encode` takes: a grid whose limits are codes (of fixed point: magnitudes less `base`), and the codes."""
    limit, lower = min(grid.limit, carrier.infinity - 1), grid.limit + grid.lower
    if isinstance(codes, FixedCodes):
        keep = grid.keep - (grid.limit == carrier.infinity)
        return grid._replace(limit=limit - grid.base, keep=keep), codes
    largest, lowest = _code_of(limit, carrier, codes), _code_of(lower, carrier, codes)
    jump = _code_of(grid.limit + grid.jump, carrier, codes) - largest
    lower_jump = _code_of(lower + grid.jump + grid.lower_jump, carrier, codes) - lowest - jump
    zero = _code_of(grid.zero, carrier, codes)
    grid = grid._replace(limit=largest, lower=lowest - largest, jump=jump, lower_jump=lower_jump, zero=zero)
    cap, below = carrier.width, codes.lowest - (grid.base >> carrier.width) - 1
    if kind == "wide":
        below = carrier.infinity >> carrier.width
    elif grid.slope:
        cap, below = grid.finest, 0
    offset, highest = (codes.first - 1) << codes.man, codes.lowest + (codes.largest >> codes.man) + 1
    specials = codes.infinity, codes.nan, codes.nan_sign
    return grid, FloatEncoding(cap, below, offset, codes.man, codes.lowest, highest, codes.sign, *specials)


def _code_of(lane: int, carrier: Carrier, codes: FloatCodes) -> int:
    """The code of a number's magnitude, of an infinity, or of a NaN; -1 for a zero that does not exist."""
    if lane >= carrier.infinity:
        return codes.infinity if lane == carrier.infinity else codes.nan
    if lane == 0:
        return codes.first - 1
    field = lane >> carrier.width or lane.bit_length() - carrier.width
    significand = lane << 1 - field if lane < carrier.hidden else lane % carrier.hidden + carrier.hidden
    above = field - codes.lowest
    count = significand >> carrier.width - codes.man - min(above, 0)
    return count + (max(above, 0) + codes.first - 1 << codes.man)


def encode(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, codes: Encoding, word: Any, kind: str
) -> Any:
    """The codes of lanes' roundings; arguments as for `round_to_grid`, with a grid and codes of `encoding`.

    NaN becomes 0 where the format has none.
    """
    rounded, drop, field, own = round_magnitude(xp, bits, carrier, mode, grid, word, kind)
    sign, magnitude = bits >> carrier.last, bits & carrier.magnitude_mask
    if isinstance(codes, FixedCodes):
        value = xp.clip(xp.clip(rounded, None, grid.limit + (sign & grid.lower)), 0, None)
        return xp.where(magnitude > grid.keep, 0, _fixed_code(xp, value, sign, carrier, grid.top, codes))
    shift = xp.clip(drop, None, codes.cap)
    fields = xp.clip(xp.clip(field - 1, 0, None), None, codes.below)
    value, largest = (rounded >> shift) - (fields << (carrier.width - shift)), grid.limit
    if kind == "wide":
        field = xp.clip(xp.clip(own, codes.lowest, None), None, codes.highest)
        missing = xp.clip(shift + 1 - grid.finest - field, 0, None)  # bits that the carrier does not have
        value = (value << missing) + ((field - codes.lowest) << codes.man)
    if kind != "grid":
        value, largest = value + codes.offset, largest + (sign & grid.lower)
    value = limit(xp, xp.clip(value, 0, None), largest, bits, carrier, mode, grid, kind)
    infinity, nan = codes.infinity | (sign & codes.sign), codes.nan | (sign & codes.nan_sign)
    kept = xp.where(magnitude > carrier.infinity, nan, infinity)
    return finish(xp, value, bits, sign & codes.sign, kept, carrier, grid, kind)


def wrap(
    xp: Any, bits: Any, carrier: Carrier, mode: Rounding, grid: Grid, codes: FixedCodes, word: Any, kind: str
) -> Any:
    """Rounded lanes modulo the number of codes; arguments as for `round_to_grid`, infinity becomes a NaN."""
    rounded, *_ = round_magnitude(xp, bits, carrier, mode, grid, word, kind)
    sign, magnitude = bits >> carrier.last, bits & carrier.magnitude_mask
    code = _fixed_code(xp, xp.clip(rounded, 0, None), sign, carrier, grid.top, codes)
    zero = (rounded - 1) >> carrier.last  # keeps its sign
    lanes = fixed_lanes(xp, (code ^ codes.half) - codes.half, carrier, codes) | (bits & carrier.negative & zero)
    return xp.where(magnitude > carrier.infinity - 1, quiet(bits, carrier), lanes)


def _fixed_code(xp: Any, value: Any, sign: Any, carrier: Carrier, top: Any, codes: FixedCodes) -> Any:
    """The codes of magnitudes less a base, with signs; `top` is that of the grid."""
    field, significand = split(xp, value, carrier)
    shift = field - top
    count = (significand << xp.clip(shift, 0, carrier.last)) >> xp.clip(-shift, 0, carrier.last)
    return ((count ^ sign) - sign) & codes.mask
