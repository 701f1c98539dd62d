"""The searches by which ggml finds the scales of its K types: many scales are tried, and the best of them is kept.

Arrays have the parts of a block along the axis before the last, and the elements of a part along the last. Sums go over
the elements in ascending order, and every operation is rounded to float32. Parts are scaled by a power of two before,
so that no product is too small or too large for float32; the results are those of ggml where its own products are not.

Source: make_qkx2_quants, make_qx_quants and make_q3_quants of ggml-quants.c.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_SMALLEST = 2.0**-50  # of numbers beside a largest number from 1 to 2; smaller ones count as 0
_STEPS_OF_SCALE = tuple(
    float(-(np.float32(32) + np.float32(0.1) * np.float32(step))) for step in (0, *range(-9, 0), *range(1, 10))
)


class Fit(NamedTuple):
    """What a search found for each part: a scale and a minimum, shape (..., 1), and the elements' integers."""

    scale: Any
    minimum: Any
    integers: Any


def scaled(xp: Any, x: Any) -> tuple[Any, Any]:
    """The elements of parts times a power of two, so that the largest is from 1 to 4, and the inverse power."""
    bits = xp.float32_bits(x) & 0x7FFFFFFF
    field = xp.clip(xp.amax(bits, axis=(len(x.shape) - 1,), keepdims=True) >> 23, 1, 253)
    y = x * xp.float32_from((254 - field) << 23)
    return xp.where(abs(y) < _SMALLEST, 0.0, y), xp.float32_from(field << 23)


def fit_line(xp: Any, x: Any, weights: Any, most: int, first: float, tries: int, squares: bool) -> Fit:
    """Integers from 0 to `most`, a scale and a minimum with the least weighted error.

    Args:
        xp: the array namespace.
        x, weights: parts, as `scaled` returns them, and weights of their elements.
        most: the largest integer.
        first: the first try has a range of most + first steps, each further one a tenth of a step more. A range begins
            at the best minimum so far.
        tries: the number of tries after the plain one.
        squares: True for squared errors, False for absolute ones.
    """
    last = (len(x.shape) - 1,)
    top, least = xp.greatest(x, last), -xp.greatest(-x, last)
    least = xp.where(least > 0, 0.0, least)
    flat = top <= least
    top = xp.where(flat, least + 1.0, top)
    columns = _columns(xp, x)
    weighted = list(zip(columns, _columns(xp, weights), strict=True))
    sum_w = weighted[0][1]
    sum_x = xp.rounded(sum_w * columns[0])
    for one, w in weighted[1:]:
        sum_w, sum_x = sum_w + w, sum_x + xp.rounded(w * one)

    def integers_of(inverse: Any, minimum: Any) -> list[Any]:
        return [xp.clip(xp.rint(inverse * (one - minimum)), 0.0, float(most)) for one in columns]

    def error_of(scale: Any, minimum: Any, integers: list[Any]) -> Any:
        scale, minimum = xp.materialize(scale), xp.materialize(minimum)
        total = scale * 0.0
        for (one, w), q in zip(weighted, integers, strict=True):
            distance = (xp.rounded(scale * q) + minimum) - one
            distance = xp.rounded(distance * distance) if squares else abs(distance)
            total = total + xp.rounded(w * distance)
        return total

    def attempt(state: tuple[Any, ...]) -> tuple[Any, ...]:
        count, ranges, error, _, minimum, *_ = state
        tried = xp.materialize(xp.divide(ranges[:1] + top * 0.0, top - minimum))
        integers = integers_of(tried, minimum)
        sum_l = sum_ll = sum_xl = tried * 0.0
        for (one, w), q in zip(weighted, integers, strict=True):
            product = xp.rounded(w * q)
            sum_l, sum_ll = sum_l + product, sum_ll + xp.rounded(product * q)
            sum_xl = sum_xl + xp.rounded(product * one)
        determinant = xp.rounded(sum_w * sum_ll) - xp.rounded(sum_l * sum_l)
        solvable = determinant > 0
        divisor = xp.where(solvable, determinant, 1.0)
        new_scale = xp.divide(xp.rounded(sum_w * sum_xl) - xp.rounded(sum_x * sum_l), divisor)
        new_minimum = xp.divide(xp.rounded(sum_ll * sum_x) - xp.rounded(sum_l * sum_xl), divisor)
        through_zero = xp.divide(sum_xl, xp.where(solvable, sum_ll, 1.0))
        new_scale = xp.where(new_minimum > 0, through_zero, new_scale)
        new_minimum = xp.where(new_minimum > 0, 0.0, new_minimum)
        new_error = error_of(new_scale, new_minimum, integers)
        new = new_error, new_scale, new_minimum, tried, minimum
        better = solvable & (new_error < error)
        chosen = (xp.where(better, *pair) for pair in zip(new, state[2:], strict=True))
        return count + 1, xp.concatenate([ranges[1:], ranges[:1]], 0), *chosen

    inverse = xp.materialize(xp.divide(xp.full_like(top, float(most), "float32"), top - least))
    scale = xp.divide(xp.full_like(top, 1.0, "float32"), inverse)
    error = error_of(scale, least, integers_of(inverse, least))
    steps = [np.float32(first) + np.float32(0.1) * np.float32(step) + np.float32(most) for step in range(tries)]
    state = 0, xp.constant(list(map(float, steps)), "float32", x), error, scale, least, inverse, least
    *_, scale, minimum, inverse, offset = xp.while_loop(lambda state: state[0] < tries, attempt, state)
    q = xp.astype(xp.clip(xp.rint(inverse * (x - offset)), 0.0, float(most)), "int32")
    return Fit(xp.where(flat, 0.0, scale), -xp.where(flat, least, minimum), xp.where(flat, 0, q))


def _columns(xp: Any, x: Any) -> list[Any]:
    """The elements of all parts by their place, shape (..., 1), each together in memory."""
    return [xp.copy(x[..., place : place + 1]) for place in range(x.shape[-1])]


def fit_scale(xp: Any, x: Any, largest: Any) -> tuple[Any, Any]:
    """The scale with the least squared error, each weighted by its element's square, and integers from -32 to 31.

    `largest` are the elements of the largest magnitude, not zero.
    """
    inverse = xp.materialize(xp.divide(xp.constant(list(_STEPS_OF_SCALE), "float32", x) + largest * 0.0, largest))
    sum_xl = sum_ll = inverse * 0.0
    for one in _columns(xp, x):
        q, w = xp.clip(xp.rint(inverse * one), -32.0, 31.0), xp.rounded(one * one)
        sum_xl = sum_xl + xp.rounded(xp.rounded(w * one) * q)
        sum_ll = sum_ll + xp.rounded(xp.rounded(w * q) * q)
    scales = xp.divide(sum_xl, xp.where(sum_ll > 0, sum_ll, 1.0))
    found, scale = inverse[..., :1], scales[..., :1]
    best = scale * sum_xl[..., :1]
    for place in range(1, len(_STEPS_OF_SCALE)):
        xl, ll, tried = (part[..., place : place + 1] for part in (sum_xl, sum_ll, scales))
        better = (ll > 0) & (xl * xl > best * ll)
        best, scale = xp.where(better, tried * xl, best), xp.where(better, tried, scale)
        found = xp.where(better, inverse[..., place : place + 1], found)
    return scale, xp.astype(xp.clip(xp.rint(found * x), -32.0, 31.0), "int32")


def descend(xp: Any, x: Any, largest: Any) -> tuple[Any, Any]:
    """A scale and integers from -4 to 3, of which each is changed in turn, five times, where that lowers the error.

    Arguments as for `fit_scale`.
    """
    inverse = xp.materialize(xp.divide(xp.full_like(largest, -4.0, "float32"), largest))
    columns = _columns(xp, x)
    integers = [xp.clip(xp.rint(inverse * one), -4.0, 3.0) for one in columns]
    squares = [xp.rounded(one * one) for one in columns]
    cubes = [xp.rounded(w * one) for w, one in zip(squares, columns, strict=True)]
    sum_xl = sum_ll = inverse * 0.0
    for w, cube, q in zip(squares, cubes, integers, strict=True):
        sum_xl = sum_xl + xp.rounded(cube * q)
        sum_ll = sum_ll + xp.rounded(xp.rounded(w * q) * q)

    def descent(state: tuple[Any, ...]) -> tuple[Any, ...]:
        count, sum_xl, sum_ll, *integers = state
        for place, (one, w, cube) in enumerate(zip(columns, squares, cubes, strict=True)):
            q = integers[place]
            xl = sum_xl - xp.rounded(cube * q)
            ll = sum_ll - xp.rounded(xp.rounded(w * q) * q)
            positive = xl > 0
            new = xp.clip(xp.rint(xp.divide(xp.rounded(one * ll), xp.where(positive, xl, 1.0))), -4.0, 3.0)
            xl, ll = xl + xp.rounded(cube * new), ll + xp.rounded(xp.rounded(w * new) * new)
            lower = xp.rounded(xp.rounded(xl * xl) * sum_ll) > xp.rounded(xp.rounded(sum_xl * sum_xl) * ll)
            change = positive & (new != q) & (ll > 0) & lower
            # Kept in memory, or XLA would compute the steps before again in each step.
            chosen = (xp.where(change, *pair) for pair in ((new, q), (xl, sum_xl), (ll, sum_ll)))
            integers[place], sum_xl, sum_ll = map(xp.materialize, chosen)
        return count + 1, sum_xl, sum_ll, *integers

    state = 0, sum_xl, sum_ll, *integers
    _, sum_xl, sum_ll, *integers = xp.while_loop(lambda state: state[0] < 5, descent, state)
    scale = xp.where(sum_ll > 0, xp.divide(sum_xl, xp.where(sum_ll > 0, sum_ll, 1.0)), 0.0)
    return scale, xp.astype(xp.concatenate(integers, -1), "int32")
