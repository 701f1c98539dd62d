"""The law of products with a defined accumulator, once, for every array namespace.

All sums are float64. The array namespace `xp` (see `qcore.linalg.namespace`) defines rounding, and the order of
additions that round. Products of float32 numbers are exact in float64, so a compiler that contracts a product with a
sum changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from qcore.law.rounding import Rounding
from qcore.linalg.accumulator import Accumulator
from qcore.linalg.designs import Design
from qcore.linalg.scaling import of_both, rescaled
from qcore.linalg.steps import or_infinite, start
from qcore.linalg.steps import step as add_step


@dataclass(frozen=True)
class Sums:
    """The accumulator of a product, and the faster ways of adding that have its bits; fixed when it is compiled.

    Attributes:
        accumulator: the accumulator.
        exact: True if sums of a chunk are exact, so that any product of float64 matrices has their bits; with an inner
            accumulator, sums of its chunks.
        narrow: True if sequential sums in float32, of the inner accumulator if there is one, have the same bits.
        multiples: True if narrow sums are multiples of the accumulator's least step.
        below: True if narrow sums are never beyond the accumulator's largest number.
        least: the least exponents of the numbers of the left and the right matrix, for sums that align them by these.
    """

    accumulator: Accumulator
    exact: bool
    narrow: bool = False
    multiples: bool = False
    below: bool = False
    least: tuple[int, int] = (0, 0)


def multiply(xp: Any, a: Any, b: Any, sums: Sums, scales: tuple[Any, Any] | None = None, addend: Any = None) -> Any:
    """The accumulators after all chunks, in float64. The caller's conversion rounds a single float32 sum.

    Args:
        xp: the array namespace.
        a, b: arrays of numbers of float32, of shapes (..., M, K) and (..., K, N), whose leading dimensions broadcast.
        sums: the accumulator, and how its chunks may be summed.
        scales: the factors of each chunk's sum: float32 arrays (..., M, chunks) and (..., chunks, N). One may be None.
        addend: float32 array of the product's shape, at which accumulators start; None is +0.
    """
    # Rounding to float32 here and converting afterwards would be the same rounding twice.
    if sums.accumulator._converts and scales is None:
        found = _sum(xp, a, b, sums.accumulator, sums, 0)
        return xp.unsigned_zero(found if addend is None else xp.plus(xp.float64(addend), found))
    return _fold(xp, a, b, sums.accumulator, sums, 0, scales, addend)


def _fold(
    xp: Any,
    a: Any,
    b: Any,
    accumulator: Accumulator,
    sums: Sums,
    first: Any,
    scales: tuple[Any, Any] | None = None,
    addend: Any = None,
) -> Any:
    """The addend and the sum of all terms; `first` is the number of earlier roundings of each element."""
    design, count = accumulator.design, 0
    if accumulator.order:
        a, b = _in_order(xp, a, b, accumulator.order)
    if design is not None or accumulator.sets > 1:
        a, b = _filled(xp, a, b, accumulator.length(a.shape[-1]))
    if design is not None and scales is not None:
        scales, count = _whole_steps(xp, design, scales, a.shape[-1]), design.step // design.block
    by_kernel = accumulator.in_pairs if accumulator.tree else accumulator._sequential
    found = xp.sequential(a, b, accumulator, first, addend) if by_kernel and scales is None else None
    if found is not None:
        return found
    terms = a.shape[-1]
    length = accumulator.length(terms)
    each = 1 + accumulator._roundings_in_chunk(length)
    # A single chunk needs no total: +0 changes only a sum of -0, which `_rounded` makes +0 anyway. Sums that add the
    # total and the products at once need one, as its exponent counts.
    if length >= terms > 0 and not accumulator.adds_total and addend is None:
        return _add(xp, None, a, b, accumulator, sums, first, _factor(xp, scales, 0))

    def step(total: Any, index: Any, a: Any, b: Any) -> Any:
        if not accumulator.adds_total:
            return _add(xp, total, a, b, accumulator, sums, first + index * each, _factor(xp, scales, index))
        parts = None
        if scales is not None:
            parts = xp.part(scales[0], index, -1, count), xp.part(scales[1], index, -2, count)
        found = add_step(xp, accumulator, sums.least, total, a, b, parts)
        return found if accumulator.fraction_bits is None else rounded_sum(xp, found, accumulator, first + index)

    # Four roundings share a block of words, counted from the first of all; a fold that begins later may split a block.
    from_first = isinstance(first, int) and first == 0
    total = _first_total(xp, a, b, design, addend)
    if accumulator.innermost.adds_total and (scales is None or count):
        found = xp.by_steps(a, b, accumulator, sums.least, scales, None if addend is None else total)
        if found is not None:
            return found
    return xp.fold(step, total, a, b, length, accumulator._shares_words and from_first)


def _in_order(xp: Any, a: Any, b: Any, order: tuple[int, ...]) -> tuple[Any, Any]:
    """Both matrices with the terms of each run in another order, and zeros for what is missing in the last run."""
    count = len(order)
    a, b = _filled(xp, a, b, count)
    # By slices, which arrays of all kinds have, distributed and batched ones too.
    left = xp.stack([a[..., place::count] for place in order], -1)
    right = xp.stack([b[..., place::count, :] for place in order], -2)
    return left.reshape(a.shape), right.reshape(b.shape)


def _filled(xp: Any, a: Any, b: Any, length: int) -> tuple[Any, Any]:
    """Both matrices with whole runs of terms, the last one filled with zeros, as in a tile."""
    missing = -a.shape[-1] % length
    if not missing:
        return a, b
    before = [(0, 0)] * (len(a.shape) - 2), [(0, 0)] * (len(b.shape) - 2)
    return xp.pad(a, [*before[0], (0, 0), (0, missing)]), xp.pad(b, [*before[1], (0, missing), (0, 0)])


def _first_total(xp: Any, a: Any, b: Any, design: Design | None, addend: Any) -> Any:
    """The accumulator before the first chunk."""
    if addend is None:
        return _zeros(xp, a, b)
    addend = xp.float64(addend)
    xp.named("_first_total", addend=addend)
    return xp.unsigned_zero(addend) if design is None else start(xp, design, addend)


def _whole_steps(xp: Any, design: Design, scales: tuple[Any, Any], terms: int) -> tuple[Any, Any]:
    """The scales of blocks, with the least scale for blocks that only fill the last step."""
    first, second = scales
    missing, value = terms // design.block - first.shape[-1], 2.0**-127 if design.scale == "e8m0" else 0.0
    before = [(0, 0)] * (len(first.shape) - 2), [(0, 0)] * (len(second.shape) - 2)
    first = xp.pad(first, [*before[0], (0, 0), (0, missing)], value) if missing else first
    return first, xp.pad(second, [*before[1], (0, missing), (0, 0)], value) if missing else second


def _factor(xp: Any, scales: tuple[Any, Any] | None, index: Any) -> Any:
    """The factor of the sum of a chunk; None without scales."""
    if scales is None:
        return None
    first, second = scales
    return of_both(
        xp, None if first is None else xp.part(first, index, -1), None if second is None else xp.part(second, index, -2)
    )


def _add(
    xp: Any, total: Any, a: Any, b: Any, accumulator: Accumulator, sums: Sums, first: Any, factor: Any = None
) -> Any:
    """R(total + S) for the sum S of the products of one chunk, a and b; R(S) without a total."""
    found = _sum(xp, a, b, accumulator, sums, first)
    if factor is not None:  # before the sum: chunks of different scales cannot be added
        found = rescaled(xp, found, factor)
    if total is not None:
        found = xp.plus(total, found)
    return rounded_sum(xp, found, accumulator, first + accumulator._roundings_in_chunk(a.shape[-1]))


def _sum(xp: Any, a: Any, b: Any, accumulator: Accumulator, sums: Sums, first: Any) -> Any:
    """S, the sum of the products of a chunk before it is added to the total."""
    if accumulator.inner is not None:
        return _fold(xp, a, b, accumulator.inner, sums, first)
    if accumulator.tree:
        return _tree(xp, a, b, accumulator, first)
    if accumulator.product is None:
        # An exact sum has the same bits in any order, so the library's product may add it; others ascend by index.
        found = xp.product(a, b) if sums.exact else xp.ascending(a, b)
        if found is not None:
            return found

    def step(total: Any, index: Any, a: Any, b: Any) -> Any:
        return total + _term(xp, a, b, accumulator, 0)

    return xp.fold(step, _zeros(xp, a, b), a, b, 1)


def add_terms(xp: Any, terms: Any, accumulator: Accumulator, first: Any, step: int = 0) -> Any:
    """R of a running sum of terms, from a first number on, in float64.

    Args:
        xp: the array namespace.
        terms: float32 array (K, n), whose rows are added in ascending order: terms that are multiplied by 1.
        accumulator: how they are added.
        first: float32 array (n,), at which the accumulator starts.
        step: the number of earlier roundings of each element.

    Returns:
        A float64 array (n,).
    """
    ones = xp.zeros((terms.shape[0], 1), terms) + 1.0
    sums = Sums(accumulator, exact=accumulator.chunk == 1)
    return _fold(xp, terms.T, ones, accumulator, sums, step, None, first[:, None])[:, 0]


def _zeros(xp: Any, a: Any, b: Any) -> Any:
    """The sum of no terms, of the product's shape, framework and device."""
    # A product, and not an array of zeros: it also has the placement of a distributed or traced operand.
    return xp.product(a[..., :0], b[..., :0, :])


def batch_shape(a: Any, b: Any) -> tuple[int, ...]:
    """The leading dimensions of the product of two arrays."""
    pairs = zip_longest(a.shape[-3::-1], b.shape[-3::-1], fillvalue=1)
    return tuple(left if right == 1 else right for left, right in pairs)[::-1]


def _term(xp: Any, a: Any, b: Any, accumulator: Accumulator, k: int) -> Any:
    """The products with index k, rounded to `product`."""
    term = xp.float64(a[..., :, k : k + 1]) * xp.float64(b[..., k : k + 1, :])
    number = accumulator.product
    return term if number is None else xp.rounded(term, number, Rounding.NEAREST, 0, 24)


def rounded_sum(xp: Any, found: Any, accumulator: Accumulator, step: Any) -> Any:
    """R of a sum; a sum of zero is +0, whatever the signs of its terms."""
    found = xp.unsigned_zero(found)
    xp.named("rounded_sum", found=found)
    if not accumulator._rounds:
        return found
    rounded = xp.rounded(found, accumulator.number, accumulator.rounding, step, accumulator.random_bits)
    if accumulator.overflow is not None:
        xp.named("rounded_sum", rounded=rounded)
        rounded = or_infinite(xp, found, rounded, accumulator.number)
    return xp.unsigned_zero(rounded) if accumulator.positive_zero else rounded


def _tree(xp: Any, a: Any, b: Any, accumulator: Accumulator, first: Any) -> Any:
    """The sum of the terms in pairs, level by level: the left part is the largest power of two of them."""
    count = a.shape[-1]
    if count == 1:
        return _term(xp, a, b, accumulator, 0)
    half = 1 << ((count - 1).bit_length() - 1)
    left = _tree(xp, a[..., :half], b[..., :half, :], accumulator, first)
    right = _tree(xp, a[..., half:], b[..., half:, :], accumulator, first + (half - 1))
    return rounded_sum(xp, left + right, accumulator, first + (count - 2))


def tree_sum(xp: Any, x: Any, axis: int = -1) -> Any:
    """The sum of float64 numbers along an axis, which stays with length 1: halves by index, an odd rest appended."""
    before = (slice(None),) * (axis % x.ndim)
    axis = len(before)
    while (length := x.shape[axis]) > 1:
        half = length // 2
        pairs = x[(*before, slice(half))] + x[(*before, slice(half, 2 * half))]
        x = xp.concatenate([pairs, x[(*before, slice(2 * half, None))]], axis) if length % 2 else pairs
    return x
