"""Blocks whose scale is a float: of a format such as e4m3, with or without a scale of the array, or of float32.

These are the only laws with float arithmetic, which is computed with integers. A positive number is a lane of the
working float. Its exponent field may also lie below 1 or beyond the carrier's range, so no intermediate result is
subnormal or overflows, except where the law says so. Quotients and products are rounded to nearest, ties to even, to
the mantissa of a lane.

**Scales of a format** (`Levels`): `top` is the largest element, and `full` is the largest scale times `top` (for NVFP4
6 and 448 * 6). A is the largest magnitude of the array's finite numbers, and a that of the block. The operations, in
this order:

    rule "te"                                           rule "torchao_0_16"
    g = full / A, at most the largest float             t = A / full, at least 2^-126
    t = 1 / g                                           s = scale((a / top) / t), from the smallest normal scale on
    s = scale(a * (g * (1 / top)))                      S = s * t
    S = s * t                                           y = |x| / S
    r = 1 / S, at most the largest float
    y = |x| * r

Under both rules y is rounded to the element's format under the mode, saturating. The result y * S is rounded to
nearest, ties to even, in the array's dtype. Rule "torchao_0_18" is "torchao_0_16" with y = |x| * r, where
r = (1 / t) / s is at most the largest float. A product with 1 / top below the smallest normal float is 0. With A = 0,
and without a scale of the array, g and t are 1. Rules "te_mae" and "te_mse" are "te" with one of two scales for each
block, see `_four_over_six`. With "te" t, and S in 1 / S, may be subnormal, as in Transformer Engine. This matters: r is
the largest float for all S up to a quarter of the smallest normal number.

**Scales of float32** (`FloatScale`): the operations with which products of `qcore.linalg` scale their operands and
sums:

    s = largest element / largest magnitude of the block     from 2^-126 to 2^126 for float32
    r = 1 / s                                                with the rule "absmax" r is the inverse quotient,
                                                             magnitude / element, in the same range, and s = 1 / r
    y = |x| * s, rounded to the element format under the mode, saturating
    result = y * r, rounded to nearest, ties to even, in the array's dtype

Blocks whose largest magnitude is zero, infinite or NaN have s = 1. r and s are normal numbers of the working float, so
codes and r together are the whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

from qcore.law.carrier import FLOAT32, FLOAT64, Carrier, KeepLanes, with_hidden_bits, without_hidden_bits
from qcore.law.codes import encode
from qcore.law.grid import Grid, round_to_grid
from qcore.law.rounding import Rounding, increment, reads_sign

MAGNITUDES = 0, 1, 2, 3, 4, 6, 8, 12  # of elements by their codes, in halves
SIGN = 8  # of their codes
_NOTHING = 128  # below field 0, a scale is so small that no element times it is a number
_ELEMENTS = {  # those above zero as lanes of the working floats
    work: tuple(work.lane_at_most(count, -1) for count in MAGNITUDES[1:]) for work in (FLOAT32, FLOAT64)
}


class Levels(NamedTuple):
    """The integers of scales that are numbers of a format: ints or 0-d arrays, lanes of the working float.

    Attributes:
        full: the largest scale times the largest element.
        top: the largest element.
        inverse: 1 / top.
        least: the smallest normal scale.
    """

    full: Any
    top: Any
    inverse: Any
    least: Any


class Scaling(NamedTuple):
    """The scales of blocks, as lanes of the working float.

    Attributes:
        factor: the multiplier of elements before they are rounded; None: they are divided by `full`.
        full: the multiplier of rounded elements.
        block: the scales as numbers of their format; float32 scales are equal to `full`.
        array: the array's scale, or None.
        nan: -1 for blocks that become NaN, else 0; None where single elements do.
    """

    factor: Any
    full: Any
    block: Any
    array: Any = None
    nan: Any = None


def working(carrier: Carrier) -> Carrier:
    """The carrier of scales and quotients: float32, for float64 arrays float64."""
    return FLOAT32 if carrier.lane_bits == 32 else FLOAT64


def to_working(xp: Any, bits: Any, carrier: Carrier) -> Any:
    """Magnitudes as lanes of the working float, with unlimited exponents; infinity and NaN are beyond all numbers."""
    offset = (working(carrier).bias - carrier.bias) << carrier.width
    lanes = with_hidden_bits(xp, bits & carrier.magnitude_mask, carrier) + offset
    lanes = xp.clip(lanes, -(carrier.width << carrier.width), None)  # only zero is below this
    xp.named("to_working", lanes=lanes)
    return lanes


def usual_scale(full_scale: Any, carrier: Carrier) -> Any:
    """True for blocks whose scale is so large that a quarter of it is a normal number of the carrier."""
    work = working(carrier)
    return full_scale >= (work.bias - carrier.bias + 3) << work.width


def quotient(xp: Any, a: Any, b: Any, carrier: Carrier) -> Any:
    """a / b. If the backend's division may be inexact, integer remainders correct the quotient.

    Integers may wrap around on the way, since the remainders themselves are small.
    """
    width, hidden, last = carrier.width, carrier.hidden, carrier.last
    x, y = (a & (hidden - 1)) | hidden, (b & (hidden - 1)) | hidden
    nearest = xp.quotient_bits(x, y)  # of the significands, between 1/2 and 2
    xp.named("quotient", x=x, y=y, nearest=nearest)
    if xp.quotient_error:
        less = (x - y) >> last  # -1 where it is below 1: it needs one more bit
        fields = (carrier.lane_bias + less - 1) << width
        # From the least possible quotient up, the remainder decides each step; then it decides the rounding.
        guess = nearest - fields - xp.quotient_error
        rest = (x << (width - less)) - guess * y
        for _ in range(2 * xp.quotient_error):
            fits = (y - 1 - rest) >> last
            guess, rest = guess - fits, rest - (y & fits)
        nearest = guess - ((y - 1 - (rest << 1)) >> last) + fields  # there are no ties
    return (a & -hidden) + (nearest - (b & -hidden))


def times(xp: Any, a: Any, b: Any, carrier: Carrier) -> Any:
    """a * b. The sum of the exponent fields may wrap around before it is complete."""
    width, hidden = carrier.width, carrier.hidden
    x, y = (a & (hidden - 1)) | hidden, (b & (hidden - 1)) | hidden
    rounded = xp.product_bits(x, y) - ((carrier.lane_bias + 2 * width) << width)
    xp.named("times", x=x, y=y, rounded=rounded)
    return (a & -hidden) + ((b & -hidden) - (carrier.bias << width)) + rounded


def times_subnormal(xp: Any, small: Any, b: Any, carrier: Carrier) -> Any:
    """small * b rounded once, also if the result is subnormal and so has fewer bits.

    `small` has at most seven significant bits. Results below a quarter of the smallest normal number stay below that.
    """
    width, hidden = carrier.width, carrier.hidden
    exact = (((small & (hidden - 1)) | hidden) >> (width - 6)) * ((b & (hidden - 1)) | hidden)
    fields = (small & -hidden) + ((b & -hidden) - (carrier.bias << width))
    carry = exact >> (width + 7)
    below = xp.clip(xp.clip(1 - carry - (fields >> width), 0, None), None, 3)
    drop = carry + 6 + below
    xp.named("times_subnormal", exact=exact, fields=fields, carry=carry, below=below, drop=drop)
    step = increment(Rounding.NEAREST, ~(-1 << drop), (exact >> drop) & 1, None, None)
    return fields + (xp.float_bits((exact + step) >> drop << drop) - ((carrier.lane_bias + width + 6) << width))


def from_working(xp: Any, lanes: Any, carrier: Carrier, normal: bool = False) -> Any:
    """Working floats rounded to magnitudes of the carrier: to nearest, ties to even, at most the largest finite one.

    `normal` is True if no float is below the smallest normal number of the carrier.
    """
    width, hidden = carrier.width, carrier.hidden
    lanes = lanes - ((working(carrier).bias - carrier.bias) << width)
    if normal:
        below, magnitude, drop = 0, lanes, carrier.padding
    else:
        below = xp.clip(xp.clip(1 - (lanes >> width), 0, None), None, width + 2)  # from there on all becomes zero
        magnitude = xp.where(lanes < hidden, (lanes & (hidden - 1)) | hidden, lanes)
        drop = xp.clip(below + carrier.padding, None, width + 2)
    step = increment(Rounding.NEAREST, ~(-1 << drop), (magnitude >> drop) & 1, None, None)
    rounded = (magnitude + step) >> drop << (drop - below)
    xp.named("from_working", lanes=lanes, below=below, magnitude=magnitude, drop=drop, step=step, rounded=rounded)
    return xp.clip(rounded, None, carrier.infinity - (1 << carrier.padding))


def run_levels(
    xp: Any,
    bits: Any,
    carrier: Carrier,
    mode: Rounding,
    scaling: Scaling,
    element: Grid,
    encoding: Sequence[Any],
    word: Any,
    materialize: KeepLanes,
    usual: bool,
) -> Any:
    """Rounds lanes to e2m1 elements under scales of a format, or encodes them; arguments as for `Program.run`.

    `element` is the grid of elements on the working float. `encoding` is empty, or holds the grid, the codes and the
    kind with which `encode` encodes the blocks' scales.
    """
    work, magnitude, last = working(carrier), bits & carrier.magnitude_mask, carrier.last
    nan = scaling.nan
    # Seven comparisons of the element itself take a processor less time than its product, and a compiler more.
    if mode is Rounding.NEAREST and not xp.short:
        factor = scaling.factor
        bounds = (
            _rounded_down(xp, scaling.full, carrier, usual)
            if factor is None
            else _rounded_down_by(xp, factor, carrier, usual)
        )
        compared, most = magnitude, materialize(tuple(bounds))
    else:
        y = _scaled(xp, bits, scaling, carrier, materialize)
        negative = (bits >> last) & work.negative if reads_sign(mode) else 0
        y = round_to_grid(xp, y | negative, work, mode, element._replace(keep=work.infinity), word)
        compared, most = y & work.magnitude_mask, (0, *_ELEMENTS[work][:-1])
        xp.named("run_levels", y=y, compared=compared)
    if encoding:
        code = pick(xp, compared, most, range(1, len(MAGNITUDES)), nan & 0) | ((bits >> last) & SIGN)
        xp.named("run_levels", code=code)
        return code & ~nan, *encoded_scales(xp, scaling, encoding, work)
    nans = nan & carrier.quiet_nan
    if xp.short:
        result = xp.clip(_products_of(xp, compared, scaling.full, carrier, usual), nans, None)
    else:
        values = [xp.clip(value, nans, None) for value in _values(xp, scaling.full, carrier, usual)]
        xp.named("run_levels", nans=nans, values=values)
        *values, nans = materialize((*values, nans))
        result = pick(xp, compared, most, values, nans)
        xp.named("run_levels", result=result)
    return xp.where(magnitude > carrier.infinity, magnitude, result) | (bits & carrier.negative)


def encoded_scales(xp: Any, scaling: Scaling, encoding: Sequence[Any], work: Carrier) -> tuple[Any, ...]:
    """The codes of the blocks' scales, and the array's scale if there is one; `encoding` as for `run_levels`."""
    grid, codes, kind = encoding
    block = scaling.block if scaling.nan is None else scaling.block | (scaling.nan & work.quiet_nan)
    xp.named("encoded_scales", block=block)
    block = encode(xp, block, work, Rounding.TOWARD_ZERO, grid, codes, None, kind)
    return (block,) if scaling.array is None else (block, without_hidden_bits(xp, scaling.array, work))


def _scaled(xp: Any, bits: Any, scaling: Scaling, carrier: Carrier, materialize: KeepLanes) -> Any:
    """Magnitudes of scaled elements before they are rounded. Only zero becomes zero."""
    work, magnitude = working(carrier), bits & carrier.magnitude_mask
    lanes, factor = to_working(xp, magnitude, carrier), scaling.factor
    if factor is None:
        y = quotient(xp, lanes, scaling.full, work)
    else:  # the field of a product above all numbers is limited to that of infinity: a larger one may not fit in a lane
        most = work.infinity - xp.clip((factor & -work.hidden) - (work.bias << work.width), 0, None)
        xp.named("_scaled", most=most)
        y = times(xp, xp.clip(lanes, None, most), factor, work)
    xp.named("_scaled", magnitude=magnitude, lanes=lanes, y=y)
    y = xp.clip(y, 1, work.infinity - 1) & (-magnitude >> carrier.last)
    xp.named("_scaled", y=y)
    return y if xp.short else materialize((y,))[0]


def pick(xp: Any, compared: Any, bounds: Sequence[Any], values: Iterable[Any], below: Any) -> Any:
    """For each lane the value of the last bound below it, or `below` if no bound is below it. Bounds increase."""
    for bound, value in zip(bounds, values, strict=True):
        below = xp.where(compared > bound, value, below)
    return below


def _rounded_down(xp: Any, scale: Any, carrier: Carrier, usual: bool) -> Iterator[Any]:
    """For each element above zero, the largest magnitude whose quotient by the scale rounds to a lower element.

    Let m be the middle between the element and the element before. A quotient is rounded down if it is below m, or if
    it is m and the code of the element before is even. The float quotient is m for exact quotients up to half a step
    above m, and less than m from half a step below m. With the scale's significand s, m = count * 2^power, and
    d = floor(log2 count), half a step times the scale is

        s * count               m times the scale
        s >> width + 1 - d      half a step times the scale; bits below the lowest one make no difference
    """
    work, width, hidden = working(carrier), carrier.width, carrier.hidden
    significand, fields = (scale & (hidden - 1)) | hidden, (scale & -hidden) - ((work.bias - carrier.bias) << width)
    for code in range(1, len(MAGNITUDES)):
        middle = MAGNITUDES[code - 1] + MAGNITUDES[code]  # in quarters
        power = (middle & -middle).bit_length() - 1
        count = middle >> power
        digits = count.bit_length() - 1
        half = significand >> (width + 1 - digits)
        most = significand * count + (half if code % 2 else ~half)
        drop = (most >> (width + 1 + digits)) + digits
        lanes = fields + ((drop + (power - 3)) << width) + (most >> drop)
        xp.named("_rounded_down", significand=significand, fields=fields, half=half, most=most, drop=drop, lanes=lanes)
        yield lanes if usual else without_hidden_bits(xp, lanes, carrier)


def _values(xp: Any, scale: Any, carrier: Carrier, usual: bool = False) -> Iterator[Any]:
    """The elements above zero times the scale, as magnitudes of the carrier."""
    work = working(carrier)
    one, half = work.bias << work.width, work.hidden >> 1
    products = {0: scale, half: times(xp, (scale & 0) | (one + half), scale, work)}  # 1 and 3/2 times the scale
    xp.named("_values", products=[*products.values()])
    for element in _ELEMENTS[work]:
        mantissa = element & (work.hidden - 1)
        yield from_working(xp, products[mantissa] + (element - mantissa - one), carrier, usual)


def _rounded_down_by(xp: Any, factor: Any, carrier: Carrier, usual: bool) -> Iterator[Any]:
    """As `_rounded_down`, for products with a factor r, which are first rounded to the working float.

    If the tie at the middle m goes down, the exact product may be up to m plus half a step of the mantissa, since such
    a product rounds to m. Otherwise it must be below m less half a step, since a product from there on rounds to m.
    So the bound is an integer quotient M / r: a float division guesses it, and remainders, which may wrap, correct it.
    With m's significand C

        M = (2 C + 1) * 2^(k - 1)          the tie goes down
        M = (2 C - 1) * 2^(k - 1) - 1      the tie goes up

    where k is the width of a mantissa, or one more if C is less than r's significand. Middles that differ by a power of
    two share the quotient.
    """
    work, width, hidden, last = working(carrier), carrier.width, carrier.hidden, carrier.last
    r, fields = (factor & (hidden - 1)) | hidden, (factor & -hidden) - (work.bias << width)
    multiples = [r * count - 1 for count in range(1, 2 * xp.quotient_error + 3)]
    shared: dict[int, Any] = {}
    xp.named("_rounded_down_by", r=r, fields=fields, multiples=multiples)
    for code in range(1, len(MAGNITUDES)):
        middle = MAGNITUDES[code - 1] + MAGNITUDES[code]  # in quarters
        power = (middle & -middle).bit_length() - 1
        count = middle >> power
        digits = count.bit_length() - 1
        if count not in shared:
            c, down = count << (width - digits), code % 2
            least, most = (((2 * c + 2 * down - 1) << k - 1) - (not down) for k in (width, width + 1))
            wide = (c - r) >> last  # -1 where the quotient is below 1 and so needs one more bit
            guess = xp.quotient_bits((r & 0) | c, r) - (((work.lane_bias - 1) << width) + xp.quotient_error + 2 - down)
            rest = _wrapped(least, carrier) + (wide & _wrapped(most - least, carrier)) - (guess - (wide << width)) * r
            xp.named("_rounded_down_by", wide=wide, guess=guess, rest=rest)
            for multiple in multiples:  # adds 1 for each further r that fits into the remainder
                guess = guess - ((multiple - rest) >> last)
            shared[count] = guess - fields
            xp.named("_rounded_down_by", guess=guess, shared=shared[count])
        lanes = shared[count] + ((power - 3 + digits + carrier.bias) << width)
        xp.named("_rounded_down_by", lanes=lanes)
        yield lanes if usual else without_hidden_bits(xp, lanes, carrier)


def _wrapped(number: int, carrier: Carrier) -> int:
    """A Python int wrapped around as in a lane."""
    modulus = 2 << carrier.last
    return (number + modulus // 2) % modulus - modulus // 2


def _differ(xp: Any, a: Any, b: Any, carrier: Carrier) -> Any:
    """|a - b|, rounded once; the lane `_zero` for equal numbers."""
    high, low = xp.clip(a, b, None), xp.clip(a, None, b)
    upper, lower, rest = _aligned(xp, high, low, carrier)
    units = (upper - lower - rest) | rest
    return xp.where(units < 1, _zero(carrier), _of_units(xp, units, high, carrier))


def _plus(xp: Any, a: Any, b: Any, carrier: Carrier) -> Any:
    """a + b, rounded once."""
    high, low = xp.clip(a, b, None), xp.clip(a, None, b)
    upper, lower, rest = _aligned(xp, high, low, carrier)
    return _of_units(xp, upper + (lower | rest), high, carrier)


_GUARD = 6  # bits below the last one of the larger number's significand: a lane has room for them, and for a carry


def _aligned(xp: Any, high: Any, low: Any, carrier: Carrier) -> tuple[Any, Any, Any]:
    """The significands of a number and of a smaller one in units of the first, and 1 where bits of the second are lost.

    The last bit stands for all that are lost: next to six guard bits it decides a rounding as they would.
    """
    width, hidden = carrier.width, carrier.hidden
    upper, lower = (((one & (hidden - 1)) | hidden) << _GUARD for one in (high, low))
    shift = xp.clip((high >> width) - (low >> width), None, width + _GUARD + 1)
    return upper, lower >> shift, xp.clip(lower & ~(-1 << shift), None, 1)


def _of_units(xp: Any, units: Any, high: Any, carrier: Carrier) -> Any:
    """The lane of a number of units of `_aligned`; the conversion to a float rounds it."""
    return (high & -carrier.hidden) + (
        xp.float_bits(units) - ((carrier.lane_bias + carrier.width + _GUARD) << carrier.width)
    )


def _zero(carrier: Carrier) -> int:
    """A lane so far below all numbers that it counts as 0 in sums and differences."""
    return -(_NOTHING << carrier.width)


def level_scales(
    xp: Any,
    bits: Any,
    carrier: Carrier,
    rule: str,
    levels: Levels,
    scale: Grid,
    kind: str,
    has_array_scale: bool,
    axes: tuple[int, ...],
    materialize: KeepLanes,
    usual: bool,
    members: Sequence[Any] = (),
) -> Scaling:
    """The scales of blocks whose scales are numbers of a format.

    `members` are the lanes of a block's elements, one by one, where a kernel compares errors. `scale` and `kind` are
    the grid of the scales' format on the working float and its kind. `has_array_scale` is True if the array has a
    scale, and `usual` if all blocks are usual (see `usual_scale`).
    """
    work, magnitude = working(carrier), bits & carrier.magnitude_mask
    largest = xp.amax(magnitude, axis=axes, keepdims=True) if axes else magnitude
    nan = (carrier.infinity - 1 - largest) >> carrier.last
    one, most = work.bias << work.width, work.infinity - 1
    lanes, array, inverse = to_working(xp, largest, carrier), None, levels.inverse
    rule, _, comparison = rule.partition("_") if rule in COMPARING else (rule, "", "")
    if has_array_scale:
        encode_scale, array = _array_scales(xp, magnitude, carrier, rule, levels)
        inverse = times(xp, encode_scale, levels.inverse + (encode_scale & 0), work) if rule == "te" else None
        if xp.short and rule == "te":
            array, inverse = materialize((array, inverse))
    xp.named("level_scales", magnitude=magnitude, largest=largest, nan=nan, inverse=inverse)
    if comparison:
        given = levels, scale, kind, axes, largest, encode_scale, array
        block = _four_over_six(xp, magnitude, carrier, comparison, *given, materialize, members)
    elif rule == "te":
        block = times(xp, lanes, inverse + (lanes & 0), work)
        block = block & ~((block - work.hidden) >> work.last)  # a product below the normal numbers counts as 0
    else:
        block = quotient(xp, lanes, levels.top + (lanes & 0), work)
        block = block if array is None else quotient(xp, block, array, work)
        block = xp.clip(block, levels.least, None)
    block = round_to_grid(xp, xp.clip(block, None, scale.limit), work, Rounding.NEAREST, scale, None, kind)
    normal, full = _products(xp, block, array, work)
    xp.named("level_scales", block=block, normal=normal, full=full)
    if rule == "torchao_0_16":
        return Scaling(None, materialize((full,))[0], block, array, nan)
    if rule == "te":
        factor = _reciprocal(xp, block, normal, full, None if usual else array, work)
    else:
        one = one + (full & 0)
        inverse = one if array is None else quotient(xp, one, array, work)
        beyond = inverse - (normal & -work.hidden) >= (work.bias + 2) << work.width  # where fields would not fit
        factor = xp.where(beyond, most, quotient(xp, inverse, normal, work))
    factor = factor if usual else xp.clip(factor, None, most)
    xp.named("level_scales", factor=factor)
    full, factor = materialize((full, factor))
    return Scaling(factor, full, block, array, nan)


def _products(xp: Any, block: Any, array: Any, work: Carrier) -> tuple[Any, Any]:
    """The blocks' scales as working floats, and their products with the array's scale."""
    normal = to_working(xp, block, work)
    full = normal if array is None else times(xp, normal, array, work)
    xp.named("_products", normal=normal, full=full)
    # GCC makes no vectors of `usual` after a choice
    return normal, (full & (-block >> work.last)) | (~(-block >> work.last) & _zero(work))


def _reciprocal(xp: Any, block: Any, normal: Any, full: Any, array: Any, work: Carrier) -> Any:
    """r of the rule "te"; with an array's scale S may be subnormal."""
    real = full
    if array is not None:
        real = times_subnormal(xp, normal, array, work) & (-block >> work.last)
        real = xp.clip(real | (~(-block >> work.last) & _zero(work)), -work.hidden, None)
    xp.named("_reciprocal", real=real)
    return quotient(xp, (work.bias << work.width) + (full & 0), real, work)


COMPARING = ("te_mae", "te_mse", "te_mae_tiles", "te_mse_tiles")
_LEAST = 60  # a field; errors below 2^-187 of the array's largest number count as 0, and their squares fit in a lane


def _four_over_six(
    xp: Any,
    magnitude: Any,
    carrier: Carrier,
    comparison: str,
    levels: Levels,
    scale: Grid,
    kind: str,
    axes: tuple[int, ...],
    largest: Any,
    encode_scale: Any,
    array: Any,
    materialize: KeepLanes,
    members: Sequence[Any],
) -> Any:
    """The scales of blocks whose largest element becomes 6 or 4, which of both has the smaller error.

        b = (a / top) * g;  s6 = scale(b);  s4 = scale(b * 1.5)

    The error of a scale s is that of elements q that are rounded to nearest under s, whatever the mode is:

        e = q * s * A / full - x      "mae": the sum of |e|, "mse": the sum of e * e, over a row's elements in order

    Rows of "tiles" are added in pairs: the first to the ninth, and so on, then the same with 4, 2 and 1. s4 is taken if
    its error is strictly smaller. Small results have unlimited exponents, as other intermediate results have. Those
    beyond the working float's range are infinity, as in Transformer Engine, so that s6 is taken if both errors are.
    """
    work, nan = working(carrier), (carrier.infinity - 1 - largest) >> carrier.last
    base = times(
        xp, quotient(xp, to_working(xp, largest, carrier), levels.top + (largest & 0), work), encode_scale, work
    )
    half = (work.bias << work.width) + (work.hidden >> 1) + (base & 0)  # 1.5
    finite = xp.where(magnitude > carrier.infinity - 1, 0, magnitude)
    array_largest = to_working(xp, xp.amax(finite, axis=tuple(range(len(finite.shape))), keepdims=True), carrier)
    shift = (array_largest & -work.hidden) - (work.bias << work.width)
    squares, scales, errors = comparison.startswith("mse"), [], []
    for wanted in (base, times(xp, base, half, work)):
        wanted = wanted & ~((wanted - work.hidden) >> work.last)
        block = round_to_grid(xp, xp.clip(wanted, None, scale.limit), work, Rounding.NEAREST, scale, None, kind)
        normal, full = _products(xp, block, array, work)
        factor = xp.clip(_reciprocal(xp, block, normal, full, array, work), None, work.infinity - 1)
        bounds = materialize(tuple(_rounded_down_by(xp, materialize((factor,))[0], carrier, False)))
        is_some = -block >> work.last
        compared = _compared_values(xp, normal, array_largest, shift, levels.full + (normal & 0), work)
        values = materialize(tuple([(one & is_some) | (~is_some & _zero(work)) for one in compared]))

        def error(numbers: Any, bounds: Any = bounds, values: Any = values) -> Any:
            numbers = numbers & ~nan
            lanes = xp.where(numbers > 0, to_working(xp, numbers, carrier), _zero(work))
            found = pick(xp, numbers, bounds, values, _zero(work) + (largest & 0))
            found = xp.where(found < work.infinity, _differ(xp, found, lanes, work), work.infinity)
            found = xp.clip(found - shift, -(_LEAST << work.width), None)
            return times(xp, found, found, work) if squares else found

        scales.append(block)
        # Sums only grow, so one limit at the end finds those that were infinite on the way.
        if members:
            found = reduce(partial(_plus, xp, carrier=work), (error(one & carrier.magnitude_mask) for one in members))
        else:
            found = _sum_of_block(xp, materialize((error(magnitude),))[0], axes, comparison.endswith("tiles"), work)
        errors.append(xp.clip(found, None, work.infinity - xp.clip(shift, 0, None) * (2 if squares else 1)))
    return xp.where(errors[1] < errors[0], scales[1], scales[0])


def _compared_values(xp: Any, scale: Any, array_largest: Any, shift: Any, full: Any, work: Carrier) -> Iterator[Any]:
    """For each element q above zero q * s * A / full, as working floats; infinity where q * s * A is.

    `shift` is the exponent of A, which is left out of the products, so that their fields fit.
    """
    half = (work.bias << work.width) + (work.hidden >> 1) + (scale & 0)
    products = [times(xp, each, array_largest - shift, work) for each in (scale, times(xp, scale, half, work))]
    quotients = [quotient(xp, product, full, work) + shift for product in products]
    infinity = work.infinity - xp.clip(shift, 0, None)
    for count in MAGNITUDES[1:]:
        power = count.bit_length() - 2  # of an element, whose significand is 1 or 1.5
        place = int(count & (count - 1) > 0)
        beyond = products[place] + (power << work.width) >= infinity
        yield xp.where(beyond, work.infinity, quotients[place] + (power << work.width))


def _sum_of_block(xp: Any, errors: Any, axes: tuple[int, ...], tiles: bool, work: Carrier) -> Any:
    """The sums of blocks: in order along an axis, of tiles the last one; and as a tree of 16 leaves along the other."""
    last = len(errors.shape) - 1
    for axis in reversed(axes):
        parts = _parts(errors, axis)
        if tiles and axis != last:
            for half in (8, 4, 2, 1):
                parts = [
                    _plus(xp, one, parts[place + half], work) if place + half < len(parts) else one
                    for place, one in enumerate(parts[:half])
                ]
        errors = parts[0]
        for part in parts[1:]:
            errors = _plus(xp, errors, part, work)
    return errors


def _parts(array: Any, axis: int) -> list[Any]:
    """The slices of length 1 along an axis."""
    before = (slice(None),) * axis
    return [array[(*before, slice(place, place + 1))] for place in range(array.shape[axis])]


def _array_scales(xp: Any, magnitude: Any, carrier: Carrier, rule: str, levels: Levels) -> tuple[Any, Any]:
    """g of the rule "te" (None for other rules), and the array's scale t."""
    work = working(carrier)
    width, hidden, one = work.width, work.hidden, work.bias << work.width
    finite = xp.where(magnitude > carrier.infinity - 1, 0, magnitude)
    largest = xp.amax(finite, axis=tuple(range(len(finite.shape))), keepdims=True)
    lanes = to_working(xp, largest, carrier)
    full = levels.full + (lanes & 0)
    xp.named("_array_scales", finite=finite, largest=largest, full=full)
    if rule != "te":
        array = quotient(xp, lanes, full, work)
        return None, xp.where(largest > 0, xp.clip(array, hidden, None), one)
    # A smaller magnitude would lead beyond the working float's range, where fields do not fit.
    found = quotient(xp, full, xp.clip(lanes, full - ((work.bias + 1) << width), None), work)
    found = xp.where(largest > 0, xp.clip(found, None, work.infinity - 1), one)
    inverse = quotient(xp, one + (found & 0), found, work)
    xp.named("_array_scales", found=found, inverse=inverse)
    # A subnormal t has one or two bits less. If the rounded quotient is in the middle of two such numbers, the sign of
    # the remainder says on which side the exact quotient is. The remainder is a power of two less the product of the
    # significands; the power of two wraps around to 0.
    below = xp.clip(1 - (inverse >> width), 0, None)
    rest = -(((inverse & (hidden - 1)) | hidden) * ((found & (hidden - 1)) | hidden))
    middle = (below > 0) & ((inverse & ~(-1 << below)) == (1 << below) >> 1)
    step = increment(Rounding.NEAREST, ~(-1 << below), (inverse >> below) & 1, None, None)
    inverse = inverse + step + xp.where(middle, (rest >> work.last) - (-rest >> work.last), 0)
    return found, inverse >> below << below


def apply_levels(xp: Any, codes: Any, block: Any, array_scale: Any, carrier: Carrier) -> Any:
    """The lanes of the e2m1 elements with these codes, times the scales of blocks and array (working floats)."""
    full, zero, nan = _applied(xp, block, array_scale, carrier)
    nans = nan & carrier.quiet_nan
    values = [xp.clip(value & zero, nans, None) for value in _values(xp, full, carrier)]
    found = pick(xp, codes & (SIGN - 1), range(SIGN - 1), values, nans)
    return xp.where((codes & SIGN) > 0, found | carrier.negative, found)


def _applied(xp: Any, block: Any, array_scale: Any, carrier: Carrier) -> tuple[Any, Any, Any]:
    """The product of block's and array's scales, and two masks: 0 where either is zero, -1 where either is NaN."""
    work = working(carrier)
    block = block & work.magnitude_mask
    full, zero, nan = to_working(xp, block, work), -block >> work.last, (work.infinity - 1 - block) >> work.last
    xp.named("_applied", block=block, full=full, zero=zero, nan=nan)
    if array_scale is None:
        return full, zero, nan
    scale = array_scale & work.magnitude_mask
    # Without this limit, the exponent fields of two large scales might add up to more than a lane holds.
    most = work.infinity - xp.clip((full & -work.hidden) - (work.bias << work.width), 0, None)
    xp.named("_applied", scale=scale, most=most)
    full = times(xp, full, xp.clip(to_working(xp, scale, work), None, most), work)
    return full, zero & (-scale >> work.last), nan | ((work.infinity - 1 - scale) >> work.last)


class FloatScale(NamedTuple):
    """The integers that decide a block's float32 scale: ints or 0-d arrays.

    Attributes:
        full: the largest element as bits of the working float.
    """

    full: Any


def float_scales(
    xp: Any, bits: Any, carrier: Carrier, rule: str, levels: FloatScale, axes: tuple[int, ...], materialize: KeepLanes
) -> Scaling:
    """s and r of each block. `axes` get length 1."""
    work, magnitude = working(carrier), bits & carrier.magnitude_mask
    largest = xp.amax(magnitude, axis=axes, keepdims=True) if axes else magnitude
    one, full = (work.bias << work.width) + (largest & 0), levels.full + (largest & 0)
    # A smaller magnitude would lead beyond the working float's range, where fields do not fit.
    found = xp.clip(to_working(xp, largest, carrier), levels.full - ((work.bias + 1) << work.width), None)
    found = quotient(xp, found, full, work) if rule == "absmax" else quotient(xp, full, found, work)
    found = xp.clip(found, work.hidden, (2 * work.bias - 1) << work.width)
    xp.named("float_scales", magnitude=magnitude, largest=largest, found=found)
    (found,) = materialize((xp.where((largest > 0) & (largest < carrier.infinity), found, one),))
    xp.named("float_scales", found=found)
    (inverse,) = materialize((quotient(xp, one, found, work),))
    xp.named("float_scales", inverse=inverse)
    return Scaling(inverse, found, found) if rule == "absmax" else Scaling(found, inverse, inverse)


def run_scaled(
    xp: Any,
    bits: Any,
    carrier: Carrier,
    scaling: Scaling,
    rounded: Callable[[Any], Any],
    coded: bool,
    materialize: KeepLanes,
) -> Any:
    """Rounds lanes under float scales, or encodes them; arguments as for `Program.run`.

    `rounded` rounds, or encodes, the lanes of elements on the working float.
    """
    work, magnitude, last = working(carrier), bits & carrier.magnitude_mask, carrier.last
    y, nan = _scaled(xp, bits, scaling, carrier, materialize), scaling.nan
    negative = (bits >> last) & work.negative
    if coded:
        y = xp.where(magnitude > carrier.infinity, work.quiet_nan, y) if nan is None else y | (nan & work.quiet_nan)
        return rounded(y | negative)
    y = rounded(y | negative)
    xp.named("run_scaled", y=y)
    result = _unscaled(xp, y & work.magnitude_mask, scaling.full, carrier)
    if nan is not None:
        result = result | (nan & carrier.quiet_nan)
    xp.named("run_scaled", magnitude=magnitude, result=result)
    return xp.where(magnitude > carrier.infinity, magnitude, result) | ((y >> last) & carrier.negative)


def _unscaled(xp: Any, y: Any, scale: Any, carrier: Carrier) -> Any:
    """The carrier's magnitudes y * scale; NaN for elements that are NaN or infinite."""
    return xp.where(y > working(carrier).infinity - 1, carrier.quiet_nan, _products_of(xp, y, scale, carrier, False))


def _products_of(xp: Any, y: Any, scale: Any, carrier: Carrier, usual: bool) -> Any:
    """The carrier's magnitudes y * scale of finite numbers."""
    return from_working(xp, times(xp, y, scale, working(carrier)), carrier, usual) & (-y >> carrier.last)


def apply_scales(xp: Any, elements: Any, block: Any, array_scale: Any, carrier: Carrier) -> Any:
    """The lanes of elements times the scales of blocks and array, lanes of working floats; scales may be any number."""
    work, last = working(carrier), carrier.last
    y, (full, zero, nan) = elements & work.magnitude_mask, _applied(xp, block, array_scale, carrier)
    # The field of a product above all numbers is limited to that of infinity, since a larger one may not fit in a lane.
    most = work.infinity - xp.clip((y & -work.hidden) - (work.bias << work.width), 0, None)
    xp.named("apply_scales", y=y, full=full, zero=zero, nan=nan, most=most)
    result = _unscaled(xp, y, xp.clip(full, None, most), carrier)
    xp.named("apply_scales", result=result)
    result = xp.where((zero > -1) & (y < work.infinity), 0, xp.where(nan < 0, carrier.quiet_nan, result))
    return result | (((elements ^ block) >> last) & carrier.negative)
