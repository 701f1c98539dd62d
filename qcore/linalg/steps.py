"""The laws of one step of a matrix instruction, once, for every array namespace (`qcore.linalg.namespace`).

A number is s * 2^e with 1 <= |s| < 2; a subnormal number has the least exponent of its format, and zero the exponent
-126 in every format, as its field of exponent bits says. So 0 * 2^127 counts as a term of exponent 1, which cuts small
ones off.

| law | the step |
| --- | --- |
| ALIGNED | accumulator and exact products, cut off toward zero `fraction_bits` below the largest exponent, are added |
| GROUPED | the same, with the exact sums of 16 products, whose exponents are those of their scales alone |
| PAIRS | products rounded to float32, added in pairs, then to the accumulator; each sum is rounded to nearest |
| FUSED | a fused multiply-add in float32 |
| FLOOR | products are aligned among themselves; their sum and the accumulator are cut off downward; added, to nearest |
| PARITY | as FLOOR, with the products of even and of odd places aligned apart |

Aligned and grouped sums are cut off toward zero to the accumulator's format, to float16 rounded to nearest; what is too
large is infinite; zero is +0. Other sums keep IEEE 754's signs of zeros. Source: each row of `qcore.linalg.designs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from qcore.formats.floating import BinaryFloat
from qcore.formats.text import parse
from qcore.law.rounding import Rounding
from qcore.linalg.designs import ALIGNED, FLOOR, FUSED, GROUPED, PAIRS, PARITY, Design, least_exponent

FLOAT32 = BinaryFloat(8, 23)
_BIAS, _WIDTH, _FIELD = 1023, 52, 0x7FF  # of float64
_ZERO = -126  # the exponent of zero
_LEAST = -1022
GROUP = 16  # products of a grouped sum that are added exactly

Pair = tuple[Any, Any]


def start(xp: Any, design: Design, addend: Any) -> Any:
    """The accumulator before the first step, of float64 numbers; it holds numbers of its format."""
    if design.number == "float16":
        addend = xp.rounded(addend, _number(design.number), Rounding.NEAREST, 0, 24)
    return _flushed(xp, addend, _ZERO) if design.flushes else addend


def step(xp: Any, design: Design, least: tuple[int, int], total: Any, a: Any, b: Any, scales: Pair | None) -> Any:
    """The accumulator after a step.

    Args:
        xp: the array namespace.
        design: the instruction.
        least: the least exponents of the formats of a and of b.
        total: the accumulator, float64.
        a, b: float32 arrays (..., M, step) and (..., step, N).
        scales: the float32 scales of a's and of b's blocks, (..., M, blocks) and (..., blocks, N); or None.
    """
    a, b = xp.materialize(xp.wide(a)), xp.materialize(xp.wide(b))
    if design.flushes:
        a, b = _flushed(xp, a, least[0]), _flushed(xp, b, least[1])
    return _LAWS[design.law](xp, design, least, total, a, b, scales)


@lru_cache(maxsize=16)
def _number(text: str) -> Any:
    return parse(text)


def _columns(a: Any, b: Any) -> list[Pair]:
    """The columns of a beside the rows of b, which broadcast against each other."""
    return [(a[..., :, k : k + 1], b[..., k : k + 1, :]) for k in range(a.shape[-1])]


def _aligned(xp: Any, design: Design, least: Any, total: Any, a: Any, b: Any, scales: Any) -> Any:
    of_a, of_b = (xp.materialize(_exponents(xp, x, one)) for x, one in zip((a, b), least, strict=True))
    if scales is not None:  # powers of two: exact factors, which add to the exponents
        scale_a, scale_b = map(xp.wide, scales)
        bottom = least_exponent(scale_number(design))
        of_a, of_b = of_a + _exponents(xp, scale_a, bottom), of_b + _exponents(xp, scale_b, bottom)
        a, b = a * scale_a, b * scale_b
    terms = [(lambda left=left, right=right: left * right) for left, right in _columns(a, b)]
    exponents = [(lambda left=left, right=right: left + right) for left, right in _columns(of_a, of_b)]
    return _cut(xp, design, total, terms, exponents)


def _grouped(xp: Any, design: Design, least: Any, total: Any, a: Any, b: Any, scales: Any) -> Any:
    scale_a, scale_b = map(xp.wide, scales)
    bottom = least_exponent(scale_number(design))
    of_a, of_b = _exponents(xp, scale_a, bottom), _exponents(xp, scale_b, bottom)
    terms, exponents = list[Callable[[], Any]](), list[Callable[[], Any]]()
    for begin in range(0, a.shape[-1], GROUP):
        left, right, block = a[..., begin : begin + GROUP], b[..., begin : begin + GROUP, :], begin // design.block
        one = slice(block, block + 1)
        group = _exact_sum(left, right) * (scale_a[..., one] * scale_b[..., one, :])
        exponent = of_a[..., one] + of_b[..., one, :]
        terms.append(lambda group=group: group)
        exponents.append(lambda exponent=exponent: exponent)
    return _cut(xp, design, total, terms, exponents)


def _exact_sum(a: Any, b: Any) -> Any:
    """The sum of products of e2m1 numbers, exact in any order."""
    found = 0.0
    for left, right in _columns(a, b):
        found = found + left * right
    return found


def _cut(xp: Any, design: Design, total: Any, terms: Sequence[Any], exponents: Sequence[Any]) -> Any:
    """The sum of the accumulator and the terms, cut off below the largest exponent, in the accumulator's format."""
    number, fraction = _number(design.number), design.fraction_bits
    largest = _exponents(xp, total, least_exponent(number))
    # Two passes: the largest exponent of all must be found before the first term is cut off.
    for exponent in exponents:
        largest = xp.maximum(largest, exponent())
    # Powers of two are exact factors, and all sums between are integers far below 2^53. Infinities and NaN pass, as
    # their factors are numbers above zero.
    up, down = _power(xp, fraction - largest), _power(xp, largest - fraction)
    found = xp.trunc(total * up)
    for term in terms:
        found = found + xp.trunc(term() * up)
    return xp.where(_is_special(xp, found), found, _in_format(xp, number, found * down))


def _in_format(xp: Any, number: Any, found: Any) -> Any:
    """A finite sum in the accumulator's format; beyond its range it is infinite, and zero is +0."""
    mode = Rounding.NEAREST if number.exp < 8 else Rounding.TOWARD_ZERO
    rounded = xp.rounded(found, number, mode, 0, 24)
    if mode is Rounding.TOWARD_ZERO:  # such a rounding of IEEE 754 would stay finite
        lanes = xp.lanes(found)
        infinite = xp.floats((lanes & -(1 << 63)) | (_FIELD << _WIDTH))
        rounded = xp.where(_fields(xp, found) >= 128 + _BIAS, infinite, rounded)
    return xp.unsigned_zero(rounded)


def _pairs(xp: Any, design: Design, least: Any, total: Any, a: Any, b: Any, scales: Any) -> Any:
    sums = [_nearest(xp, design, xp.unsigned_zero(left * right)) for left, right in _columns(a, b)]
    while len(sums) > 1:
        sums = [_nearest(xp, design, left + right) for left, right in zip(sums[::2], sums[1::2], strict=True)]
    return _nearest(xp, design, total + sums[0])


def _nearest(xp: Any, design: Design, x: Any) -> Any:
    """float32, to nearest; with flushing, a zero of its sign where the result is subnormal."""
    found = xp.rounded(x, FLOAT32, Rounding.NEAREST, 0, 24)
    return xp.where(_fields(xp, found) < _BIAS + _ZERO, found * 0.0, found) if design.flushes else found


def _flushed(xp: Any, x: Any, least: int) -> Any:
    """x with +0 for numbers below 2^least."""
    return xp.where(_fields(xp, x) < _BIAS + least, xp.unsigned_zero(x * 0.0), x)


def _fused(xp: Any, design: Design, least: Any, total: Any, a: Any, b: Any, scales: Any) -> Any:
    """The accumulator plus a product, rounded to odd in float64, so that float32's rounding is the only one."""
    term = a * b
    found = total + term
    part = found - total
    rest = (total - (found - part)) + (term - part)  # the error of the sum (Knuth, volume 2, section 4.2.2, theorem B)
    lanes = xp.lanes(found)
    inward = xp.where((rest < 0) == (found < 0), lanes + 1, lanes - 1)
    odd = xp.floats(xp.where((rest != 0) & ((lanes & 1) == 0), inward, lanes))
    return xp.rounded(xp.where(rest == rest, odd, found), FLOAT32, Rounding.NEAREST, 0, 24)


def _floor(xp: Any, design: Design, least: Any, total: Any, a: Any, b: Any, scales: Any) -> Any:
    return _downward(xp, design, least, total, a, b, 1)


def _parity(xp: Any, design: Design, least: Any, total: Any, a: Any, b: Any, scales: Any) -> Any:
    return _downward(xp, design, least, total, a, b, 2)


def _downward(xp: Any, design: Design, least: Any, total: Any, a: Any, b: Any, sets: int) -> Any:
    """Products are cut off toward zero in one or two sets; the sets, and the accumulator, are cut off downward."""
    fraction = design.fraction_bits
    products, exponents = _columns(a, b), _columns(_exponents(xp, a, least[0]), _exponents(xp, b, least[1]))
    plain, beyond = total, 0.0
    for left, right in products:
        term = left * right
        plain = plain + term
        beyond = beyond + xp.where(
            _fields(xp, term) >= 128 + _BIAS, term * _HUGE, 0.0
        )  # infinite, or NaN of both signs
    sums, tops = list[Any](), list[Any]()
    for first in range(sets):
        of_set = [left + right for left, right in exponents[first::sets]]
        top = of_set[0]
        for exponent in of_set[1:]:
            top = xp.maximum(top, exponent)
        up, found = _power(xp, fraction - top), 0.0
        for left, right in products[first::sets]:
            found = found + xp.trunc(left * right * up)
        sums.append(found * _power(xp, top - fraction))
        tops.append(top)
    top = tops[0]
    if sets > 1:
        top = xp.maximum(*tops)
        sums = [_floored(xp, found, top - fraction) for found in sums]
    of_total = _exponents(xp, total, _ZERO)
    all_ = xp.maximum(top, of_total)
    kept = _floored(xp, total, all_ - fraction)
    if sets > 1:
        kept = xp.where(of_total < all_ - fraction - 1, 0.0, kept)
    found = _floored(xp, sum(sums[1:], sums[0]), all_ - 31) + kept
    found = xp.where(
        _is_special(xp, beyond), beyond, xp.rounded(xp.unsigned_zero(found), FLOAT32, Rounding.NEAREST, 0, 24)
    )
    return xp.where(_is_special(xp, plain), plain, found)


_HUGE = 2.0**1000  # times a number from 2^128 on: infinite


def _floored(xp: Any, x: Any, exponent: Any) -> Any:
    """x, cut off downward to a multiple of 2^exponent."""
    return xp.floor(x * _power(xp, -exponent)) * _power(xp, exponent)


_LAWS: dict[str, Callable[..., Any]] = {
    ALIGNED: _aligned,
    GROUPED: _grouped,
    PAIRS: _pairs,
    FUSED: _fused,
    FLOOR: _floor,
    PARITY: _parity,
}


@lru_cache(maxsize=8)
def _scale_of(text: str) -> Any:
    return BinaryFloat(8, 0, bias=127, specials="fn", subnormals=False, signed=False) if text == "e8m0" else parse(text)


def scale_number(design: Design) -> Any:
    """The format of the scales of a design that has any."""
    assert design.scale is not None
    return _scale_of(design.scale)


def _exponents(xp: Any, x: Any, least: int) -> Any:
    """The exponents, int16, of float64 numbers that are numbers of a format with this least exponent."""
    return xp.astype(xp.where(x == 0, _ZERO, xp.clip(_fields(xp, x) - _BIAS, least, None)), "int16")


def _fields(xp: Any, x: Any) -> Any:
    """The biased exponents of float64 numbers."""
    return (xp.lanes(x) >> _WIDTH) & _FIELD


def _is_special(xp: Any, x: Any) -> Any:
    """True for infinities and NaN."""
    return _fields(xp, x) == _FIELD


def _power(xp: Any, exponent: Any) -> Any:
    """2^exponent, a normal float64 number."""
    return xp.floats(xp.astype(xp.clip(exponent, _LEAST, _BIAS) + _BIAS, "int64") << _WIDTH)
