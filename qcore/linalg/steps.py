"""The laws of one step of sums that add products and the accumulator at once, for every array namespace.

They are those of aligned accumulators and of matrix instructions (`qcore.linalg.designs`), and are one law: an
instruction is an accumulator whose parameters are given by its name. A number is s * 2^e with 1 <= |s| < 2; a subnormal
number may have the least exponent of its format. `Accumulator` says what is aligned to what; `qcore.linalg.law` rounds.

| law of a design | the step |
| --- | --- |
| ALIGNED | accumulator and exact products, cut off toward zero `fraction_bits` below the largest exponent, are added |
| GROUPED | the same, with the exact sums of 16 products, whose exponents are those of their scales alone |
| HALVES | two aligned steps of every second pair of terms, from +0 on; the accumulator is added to their sum |
| FLOOR | products are aligned among themselves; their sum and the accumulator are cut off downward; added, to nearest |
| PARITY | as FLOOR, with the products of even and of odd places aligned apart |
| PAIRS | products rounded to float32, added in pairs, then to the accumulator; each sum is rounded to nearest |
| FUSED | a fused multiply-add in float32 |
| EXACT | the exact sum of accumulator and products, rounded once to nearest |

Aligned and grouped sums are cut off toward zero to the accumulator's format, to float16 rounded to nearest; what is too
large is infinite. The last three have IEEE 754's signs of zeros, but an exact sum that is zero is +0. Source: each row
of `qcore.linalg.designs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

from qcore.formats.floating import BinaryFloat
from qcore.formats.text import parse
from qcore.law.rounding import Rounding
from qcore.linalg.accumulator import ALL, NORMALIZED, TWICE, Accumulator
from qcore.linalg.designs import EXACT, FUSED, GROUPED, PAIRS, Design, least_exponent

FLOAT32 = BinaryFloat(8, 23)
_BIAS, _WIDTH, _FIELD = 1023, 52, 0x7FF  # of float64
_NORMAL = -126  # the least exponent of float32
_LEAST = -1022
NONE = 2 * _LEAST  # the exponent of zeros that do not count, below those of all products, also with factors and scales
GROUP = 16  # products of a grouped sum that are added exactly

Pair = tuple[Any, Any]
Thunks = list[Callable[[], Any]]  # terms or exponents of a step, made when they are needed


def start(xp: Any, design: Design, addend: Any) -> Any:
    """The accumulator before the first step, of float64 numbers; it holds numbers of its format."""
    if design.number == "float16":
        addend = xp.rounded(addend, _number(design.number), Rounding.NEAREST, 0, 24)
    return _flushed(xp, design, addend, _NORMAL) if design.flushes else addend


def step(
    xp: Any, accumulator: Accumulator, least: tuple[int, int], total: Any, a: Any, b: Any, scales: Pair | None
) -> Any:
    """The accumulator after a step, before its rounding if terms are aligned.

    Args:
        xp: the array namespace.
        accumulator: one that adds products and its total at once.
        least: the least exponents of the formats of a and of b.
        total: the accumulator, float64.
        a, b: float32 arrays (..., M, step) and (..., step, N).
        scales: the float32 scales of a's and of b's blocks, (..., M, blocks) and (..., blocks, N); or None.
    """
    if accumulator.fraction_bits is None:
        design: Any = accumulator.design
        a, b = xp.materialize(xp.float64(a)), xp.materialize(xp.float64(b))
        xp.named("step", a=a, b=b)
        if design.flushes:
            a, b = _flushed(xp, design, a, least[0]), _flushed(xp, design, b, least[1])
            xp.named("step", a=a, b=b)
        return _ROUNDED[design.law](xp, design, total, a, b)
    grouped = accumulator.design is not None and accumulator.design.law == GROUPED
    terms, exponents = (_groups if grouped else _products)(xp, accumulator, least, a, b, scales)
    aligned = _together if accumulator.align == ALL else _apart
    return aligned(xp, accumulator, total, terms, exponents)


@lru_cache(maxsize=16)
def _number(text: str) -> Any:
    return parse(text)


def _columns(a: Any, b: Any) -> list[Pair]:
    """The columns of a beside the rows of b, which broadcast against each other."""
    return [(a[..., :, k : k + 1], b[..., k : k + 1, :]) for k in range(a.shape[-1])]


def _products(
    xp: Any, accumulator: Accumulator, least: tuple[int, int], a: Any, b: Any, scales: Pair | None
) -> tuple[Thunks, Thunks]:
    """The products of a step, and their exponents."""
    a, b = xp.materialize(xp.float64(a)), xp.materialize(xp.float64(b))
    bottoms = (None, None) if accumulator.subnormals == NORMALIZED else least
    of_a, of_b = (xp.materialize(_exponents(xp, x, one)) for x, one in zip((a, b), bottoms, strict=True))
    if scales is not None:  # powers of two: exact factors, which add to the exponents
        scale_a, scale_b = map(xp.float64, scales)
        xp.named("_products", scale_a=scale_a, scale_b=scale_b)
        bottom = least_exponent(scale_number(accumulator.design))
        of_a, of_b = of_a + _exponents(xp, scale_a, bottom), of_b + _exponents(xp, scale_b, bottom)
        a, b = a * scale_a, b * scale_b
    xp.named("_products", a=a, b=b, of_a=of_a, of_b=of_b)
    number = accumulator.product
    terms: Thunks = [(lambda pair=pair: _product(xp, number, *pair)) for pair in _columns(a, b)]
    exponents: Thunks = [(lambda left=left, right=right: left + right) for left, right in _columns(of_a, of_b)]
    if number is not None:  # which may round a product to zero
        exponents = [
            (lambda term=term, exponent=exponent: xp.where(term() != 0, exponent(), NONE))
            for term, exponent in zip(terms, exponents, strict=True)
        ]
    return terms, exponents


def _product(xp: Any, number: Any, left: Any, right: Any) -> Any:
    return left * right if number is None else xp.rounded(left * right, number, Rounding.NEAREST, 0, 24)


def _groups(
    xp: Any, accumulator: Accumulator, least: tuple[int, int], a: Any, b: Any, scales: Any
) -> tuple[Thunks, Thunks]:
    """The exact sums of groups of products with their scales, and the exponents of these; a group of zeros has none."""
    design: Any = accumulator.design
    scale_a, scale_b = map(xp.float64, scales)
    xp.named("_groups", scale_a=scale_a, scale_b=scale_b)
    bottom = least_exponent(scale_number(design))
    of_a, of_b = _exponents(xp, scale_a, bottom), _exponents(xp, scale_b, bottom)
    some_a, some_b = (xp.float32(xp.where(x == 0, x, 1.0)) for x in map(xp.float64, (a, b)))
    terms, exponents = Thunks(), Thunks()
    for begin in range(0, a.shape[-1], GROUP):
        block, columns = begin // design.block, slice(begin, begin + GROUP)
        one = slice(block, block + 1)
        group = xp.product(a[..., columns], b[..., columns, :]) * (scale_a[..., one] * scale_b[..., one, :])
        counts = xp.product(some_a[..., columns], some_b[..., columns, :]) != 0
        exponent = xp.where(counts, of_a[..., one] + of_b[..., one, :], NONE)
        xp.named("_groups", group=group, counts=counts, exponent=exponent)
        terms.append(lambda group=group: group)
        exponents.append(lambda exponent=exponent: exponent)
    return terms, exponents


def _together(xp: Any, accumulator: Accumulator, total: Any, terms: Thunks, exponents: Thunks) -> Any:
    """The sum of the accumulator and the terms, each cut off below the largest of their exponents."""
    # Two passes: the largest exponent of all must be found before the first term is cut off.
    largest = _floor(xp, accumulator, _exponents(xp, total, _bottom(accumulator)))
    for exponent in exponents:
        largest = xp.maximum(largest, exponent())
    # Powers of two are exact factors, and all sums between are integers far below 2^53, so their order does not matter.
    # Infinities and NaN pass, as their factors are numbers above zero.
    cut, fraction = _cut(xp, accumulator.cut), _bits(accumulator)
    up, down = _power(xp, fraction - largest), _power(xp, largest - fraction)
    xp.named("_together", largest=largest, up=up, down=down)
    found = cut(total * up)
    for term in terms:
        found = found + cut(term() * up)
    xp.named("_together", found=found)
    return found * down


def _apart(xp: Any, accumulator: Accumulator, total: Any, terms: Thunks, exponents: Thunks) -> Any:
    """The sum of the terms, in one set or two, each cut off below its largest exponent; then of the accumulator."""
    cut, fraction, half = _cut(xp, accumulator.cut), _bits(accumulator), len(terms) // accumulator.sets
    sums, tops = list[Any](), list[Any]()
    for first in range(0, len(terms), half):
        top = _floor(xp, accumulator, exponents[first]())
        for exponent in (
            exponents[first + 1 : first + half] or exponents[first : first + 1]
        ):  # a namespace may note them
            top = xp.maximum(top, exponent())
        up, found = _power(xp, fraction - top), 0.0
        for term in terms[first : first + half]:
            found = found + cut(term() * up)
        down = _power(xp, top - fraction)
        xp.named("_apart", top=top, up=up, found=found, down=down)
        if accumulator.align != TWICE:  # one addition of float64, since the accumulator may be far larger
            return (found + cut(total * up)) * down
        sums.append(found * down)
        tops.append(top)
    return _special_or(xp, total, terms, _late(xp, accumulator, total, sums, tops))


def _late(xp: Any, accumulator: Accumulator, total: Any, sums: list[Any], tops: list[Any]) -> Any:
    """The sum of the sets' sums, and of the accumulator, aligned to the largest exponent and cut off again."""
    cut = _cut(xp, accumulator.sum_cut or accumulator.cut)
    fraction, two = _bits(accumulator), len(sums) > 1

    def cut_off(x: Any, exponent: Any) -> Any:
        return cut(x * _power(xp, -exponent)) * _power(xp, exponent)

    top = tops[0]
    if two:
        top = xp.maximum(*tops)
        sums = [cut_off(found, top - fraction) for found in sums]
    of_total = _exponents(xp, total, _bottom(accumulator), zeros_count=True)
    largest = xp.maximum(top, of_total)
    kept = cut_off(total, largest - fraction)
    xp.named("_late", sums=sums, top=top, of_total=of_total, largest=largest, kept=kept)
    if two:
        kept = xp.where(of_total < largest - fraction - 1, 0.0, kept)
    return cut_off(sum(sums[1:], sums[0]), largest - (accumulator.sum_bits or fraction)) + kept


def _special_or(xp: Any, total: Any, terms: Thunks, found: Any) -> Any:
    """A sum; infinite or NaN if the plain sum is, or if a product is 2^128 or more."""
    plain, beyond = total, 0.0
    for term in terms:
        value = term()
        plain = plain + value
        beyond = beyond + xp.where(_fields(xp, value) >= 128 + _BIAS, value * _HUGE, 0.0)  # NaN of both signs
    xp.named("_special_or", plain=plain, beyond=beyond, found=found)
    found = xp.where(_is_special(xp, beyond), beyond, found)
    return xp.where(_is_special(xp, plain), plain, found)


_HUGE = 2.0**1000  # times a number from 2^128 on: infinite


def _cut(xp: Any, mode: Rounding) -> Callable[[Any], Any]:
    return xp.floor if mode is Rounding.DOWN else xp.trunc


def _bits(accumulator: Accumulator) -> int:
    assert accumulator.fraction_bits is not None
    return accumulator.fraction_bits


def _bottom(accumulator: Accumulator) -> int | None:
    """The least exponent of accumulators; None if subnormal ones have their own."""
    return None if accumulator.subnormals == NORMALIZED else least_exponent(accumulator.number)


def _floor(xp: Any, accumulator: Accumulator, exponents: Any) -> Any:
    """Exponents, at least that of zeros."""
    return exponents if accumulator.zeros is None else xp.clip(exponents, accumulator.zeros, None)


def _pairs(xp: Any, design: Design, total: Any, a: Any, b: Any) -> Any:
    sums = [_nearest(xp, design, xp.unsigned_zero(left * right)) for left, right in _columns(a, b)]
    while len(sums) > 1:
        sums = [_nearest(xp, design, left + right) for left, right in zip(sums[::2], sums[1::2], strict=True)]
    return _nearest(xp, design, total + sums[0])


def _nearest(xp: Any, design: Design, x: Any) -> Any:
    """float32, to nearest; with flushing, a zero of its sign where the result is subnormal."""
    found = xp.rounded(x, FLOAT32, Rounding.NEAREST, 0, 24)
    xp.named("_nearest", found=found)
    found = xp.where(_fields(xp, found) < _BIAS + _NORMAL, found * 0.0, found) if design.flushes else found
    xp.named("_nearest", found=found)
    return found


def _flushed(xp: Any, design: Design, x: Any, least: int) -> Any:
    """x with zeros for numbers below 2^least."""
    zero = x * 0.0 if design.signed_flushes else xp.unsigned_zero(x * 0.0)
    return xp.where(_fields(xp, x) < _BIAS + least, zero, x)


def _fused(xp: Any, design: Design, total: Any, a: Any, b: Any) -> Any:
    """The accumulator plus a product, rounded to odd in float64, so that float32's rounding is the only one."""
    found, rest = _two_sum(total, a * b)
    return _nearest(xp, design, _odd(xp, found, rest))


def _exact(xp: Any, design: Design, total: Any, a: Any, b: Any) -> Any:
    """The accumulator plus products, exact, rounded once."""
    parts, plain = list[Any](), 0.0
    for summand in (*(left * right for left, right in _columns(a, b)), total):
        plain = plain + summand
        parts = [*_grown(parts, summand)]
    # From the largest part down: its sum with the next is rounded, what is left of it is a part for the second pass.
    # Afterwards the first part is within one place of the whole, and the sum of the others has the sign of the rest.
    top, lower = parts[-1], list[Any]()
    for part in reversed(parts[:-1]):
        top, left = _two_sum(top, part)
        lower.append(left)
    xp.named("_exact", plain=plain, parts=parts, top=top, lower=lower)
    rest = lower.pop()
    while lower:
        rest = rest + lower.pop()
    found = _nearest(xp, design, xp.unsigned_zero(_odd(xp, top, rest)))
    return xp.where(_is_special(xp, plain), plain, found)


def _grown(parts: Sequence[Any], x: Any) -> Iterator[Any]:
    """An expansion, the smallest part first, with one more summand (Shewchuk 1997, figure 6)."""
    for part in parts:
        x, rest = _two_sum(x, part)
        yield rest
    yield x


def _two_sum(x: Any, y: Any) -> Pair:
    """The sum and its error (Knuth, volume 2, section 4.2.2, theorem B)."""
    found = x + y
    part = found - x
    return found, (x - (found - part)) + (y - part)


def _odd(xp: Any, found: Any, rest: Any) -> Any:
    """A sum with an error, rounded to odd: float32 has so many fewer bits that its rounding is then the only one."""
    lanes = xp.lanes(found)
    inward = xp.where((rest < 0) == (found < 0), lanes + 1, lanes - 1)
    xp.named("_odd", lanes=lanes, inward=inward)
    odd = xp.floats(xp.where((rest != 0) & ((lanes & 1) == 0), inward, lanes))
    return xp.where(rest == rest, odd, found)


_ROUNDED: dict[str, Callable[..., Any]] = {PAIRS: _pairs, FUSED: _fused, EXACT: _exact}


@lru_cache(maxsize=8)
def _scale_of(text: str) -> Any:
    return BinaryFloat(8, 0, bias=127, specials="fn", subnormals=False, signed=False) if text == "e8m0" else parse(text)


def scale_number(design: Any) -> Any:
    """The format of the scales of a design that has any."""
    assert design.scale is not None
    return _scale_of(design.scale)


def _exponents(xp: Any, x: Any, least: int | None, zeros_count: bool = False) -> Any:
    """The exponents of float64 numbers, int16: vectors hold four times as many, and each product has one.

    They are at least `least` if it is given; zeros have none, or the least exponent if `zeros_count`.
    """
    exponent = _fields(xp, x) - _BIAS
    xp.named("_exponents", exponent=exponent)
    exponent = exponent if least is None else xp.clip(exponent, least, None)
    return xp.astype(exponent if zeros_count and least is not None else xp.where(x == 0, NONE, exponent), "int16")


def _fields(xp: Any, x: Any) -> Any:
    """The biased exponents of float64 numbers."""
    return (xp.lanes(x) >> _WIDTH) & _FIELD


def _is_special(xp: Any, x: Any) -> Any:
    """True for infinities and NaN."""
    return _fields(xp, x) == _FIELD


def _power(xp: Any, exponent: Any) -> Any:
    """2^exponent; exponents outside of the normal float64 numbers become the nearest that is inside."""
    return xp.floats(xp.astype(xp.clip(exponent, _LEAST, _BIAS) + _BIAS, "int64") << _WIDTH)


def or_infinite(xp: Any, found: Any, rounded: Any, number: Any) -> Any:
    """A sum that was rounded; infinite from the power of two above the largest number on, in every rounding mode."""
    lanes, beyond = xp.lanes(found), number.span[2] + 1 + _BIAS
    infinite = xp.floats((lanes & -(1 << 63)) | (_FIELD << _WIDTH))
    xp.named("or_infinite", lanes=lanes, infinite=infinite)
    return xp.where((_fields(xp, found) >= beyond) & (found == found), infinite, rounded)
