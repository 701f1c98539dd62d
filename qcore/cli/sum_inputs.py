"""The inputs of vectors for sums: hard rows of several kinds, and random ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.arrays import decode, encode
from qcore.cli.properties import has_places, properties
from qcore.cli.sums import Operands, Unit
from qcore.formats.fixed import FixedPoint

KINDS = "random", "near", "cancellation", "subnormal", "large", "special", "tie", "zero"
_FINITE = float(np.finfo(np.float32).max)
_INSIDE = "random", "near", "cancellation"  # of these, every second row stays inside the accumulator's range
# Addends of special rows: zeros, infinities, NaN with one bit and with all bits, nearly 2^128, the smallest number, 1.
_SPECIAL = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x7F61B1E6, 1, 0x3F800000], np.uint32)


def draw(unit: Unit, count: int, seed: int) -> tuple[np.ndarray, Operands]:
    """The kinds of the rows, and their inputs: `count` rows, the kinds in turn."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(count) % len(KINDS)
    shape = count, unit.terms
    scales = None
    if unit.product.block:
        scales = _scales(unit, kinds, rng), _scales(unit, kinds, rng)
    with np.errstate(all="ignore"):
        a, b = (_codes(number, kinds, shape, rng) for number in unit.numbers)
        left, right = (decode(x, number).astype(np.float64) for x, number in zip((a, b), unit.numbers, strict=True))
        exponents = rng.integers(-20, 21, count)
        c = np.where(rng.integers(0, 2, count) > 0, np.ldexp(left[:, 0] * right[:, 0], exponents), 0)
        c = np.clip(c, -_FINITE, _FINITE).astype(np.float32)
        half = unit.terms // 2
        rows = kinds == KINDS.index("cancellation")
        a[rows, half : 2 * half] = a[rows, :half]
        negative = encode(-decode(b, unit.numbers[1]), unit.numbers[1], "nearest")
        b[rows, half : 2 * half] = negative[rows, :half]
        if scales is None:
            rows = every_second(kinds)
            x, y = (decode(x[rows], number).astype(np.float64) for x, number in zip((a, b), unit.numbers, strict=True))
            c[rows] *= shrink(a, unit.numbers[0], rows, np.abs(x * y).sum(1) + np.abs(c[rows]), unit.largest)
        c[kinds == KINDS.index("large")] *= np.float32(2.0**100)
        # In half of these rows all products have one sign, so that sums grow; in a quarter they are the largest ones,
        # and the addend does not cut them off.
        rows = np.flatnonzero(kinds == KINDS.index("large"))[::2]
        for x, number in zip((a, b), unit.numbers, strict=True):
            x[rows] = encode(np.abs(decode(x[rows], number)), number, "nearest")
            x[rows[::2]] = encode(np.full(1, float(properties(number).largest), np.float32), number, "nearest")
        c[rows[::2]] = 0
        rows = kinds == KINDS.index("subnormal")
        c[rows] = rng.integers(1, 1 << 23, rows.sum(), np.uint32).view(np.float32)
        # Half of them have only products of zeros, as any other would be far above a subnormal addend.
        a[np.flatnonzero(rows)[::2]] = encode(np.zeros(1, np.float32), unit.numbers[0], "nearest")
        rows = kinds == KINDS.index("special")
        c.view(np.uint32)[rows] = rng.choice(_SPECIAL, rows.sum())
        rows = kinds == KINDS.index("zero")  # products of zeros, whose exponents count, beside a tiny addend
        a[rows] = encode(np.zeros(shape, np.float32), unit.numbers[0], "nearest")[rows]
        c[rows] = np.ldexp(rng.uniform(-2, 2, rows.sum()), rng.integers(-135, -115, rows.sum()))
        rows = kinds == KINDS.index("tie")
        a[rows], b[rows], c[rows] = _ties(unit, int(rows.sum()), rng)
    return kinds, Operands(a, b, scales, c)


def _scales(unit: Unit, kinds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Codes of scales: near 1, and of random rows any."""
    shape = len(kinds), unit.terms // unit.product.block
    near = scale_codes(unit.scale, shape, rng)
    anything = rng.integers(0, 1 << unit.scale.bits, shape).astype(near.dtype)
    return np.where((kinds == KINDS.index("random"))[:, None], anything, near)


def scale_codes(scale: Any, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Codes of scales near 1."""
    return encode(np.ldexp(np.float32(1), rng.integers(-4, 5, shape)).astype(np.float32), scale, "nearest")


def row_codes(number: Any, kinds: np.ndarray, terms: int, rng: np.random.Generator, sign: int) -> np.ndarray:
    """Codes of a layer's rows by kind: random ones are finite, and those of cancellation have halves x and sign * x."""
    codes = _codes(number, kinds, (len(kinds), terms), rng, finite=True)
    half, rows = terms // 2, kinds == KINDS.index("cancellation")
    other = encode(sign * decode(codes, number), number, "nearest")
    codes[rows, half : 2 * half] = other[rows, :half]
    codes[kinds == KINDS.index("zero")] = encode(np.zeros(1, np.float32), number, "nearest")
    return codes


def _codes(
    number: Any, kinds: np.ndarray, shape: tuple[int, int], rng: np.random.Generator, finite: bool = False
) -> np.ndarray:
    """Codes of an operand for each row's kind; with `finite`, random rows have numbers only."""
    known = properties(number)
    largest, smallest = float(known.largest), float(known.smallest or known.largest)
    sign = 1.0 - 2.0 * rng.integers(0, 2, shape) if float(known.lowest) < 0 else 1.0
    middle = float(np.clip(1.0, smallest, largest))
    near = np.clip(np.ldexp(middle * rng.uniform(1, 2, shape), rng.integers(-6, 7, shape)), smallest, largest)
    small = np.minimum(smallest * rng.integers(0, 9, shape), largest)
    large = largest * rng.uniform(0.5, 1, shape)
    few = min(0.002, 0.25 / shape[1])  # of many terms one would nearly always be NaN
    odd = rng.choice(
        [0.0, -0.0, np.inf, np.nan, smallest, largest, middle], shape, p=[0.2, 0.1, few, few, 0.2, 0.2, 0.3 - 2 * few]
    )
    chosen = np.choose(kinds[:, None], [near, near, near, small, large, odd, near, near])
    codes = encode((sign * chosen).astype(np.float32), number, "nearest")
    anything = rng.integers(0, 1 << number.bits, shape).astype(codes.dtype)
    rows = np.flatnonzero(kinds == KINDS.index("random"))
    # For the same reason every second random row has numbers only.
    numbers = rows if finite else rows[::2]
    anything[numbers] = np.where(np.isfinite(decode(anything[numbers], number)), anything[numbers], codes[numbers])
    codes[rows] = anything[rows]
    return codes


def every_second(kinds: np.ndarray) -> np.ndarray:
    """The rows, every second one of a kind, whose sums stay inside the accumulator's range."""
    return np.concatenate([np.flatnonzero(kinds == KINDS.index(kind))[::2] for kind in _INSIDE])


def shrink(codes: np.ndarray, number: Any, rows: np.ndarray, bounds: np.ndarray, largest: float) -> np.ndarray:
    """Makes numbers of rows smaller, so that `bounds` of their sums become at most half of the largest number.

    Returns:
        The factors of the rows.
    """
    factors = np.minimum(1.0, largest / 2 / np.maximum(bounds, 1e-300))
    x = decode(codes[rows], number).astype(np.float64) * factors[:, None]
    codes[rows] = encode(x.astype(np.float32), number, "toward_zero")
    return factors


def _ties(unit: Unit, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One product that is a power of two, beside an addend whose last place is twice as much."""
    accumulator = unit.product.accumulator.number
    bits = min(accumulator.span[0] if has_places(accumulator) else 24, 24)
    step, highest = accumulator.span[1], min(properties(accumulator).largest.log2, 127)
    ends = [_powers(number) for number in unit.numbers]
    (low, high), (low_b, high_b) = ends
    # The exponents of products: of half a step of the accumulator, or more for floats, as far as the addend is inside.
    bottom, top = step - 1, step - 1 if isinstance(accumulator, FixedPoint) else highest - bits - 1
    bottom, top = (min(max(end, low + low_b), high + high_b) for end in (bottom, max(bottom, top)))
    exponents = rng.integers(max(bottom, top - 40), top + 1, count)
    of_a = rng.integers(np.maximum(low, exponents - high_b), np.minimum(high, exponents - low_b) + 1)
    factors = []
    for number, powers in zip(unit.numbers, (of_a, exponents - of_a), strict=True):
        x = np.zeros((count, unit.terms), np.float32)
        x[:, 0] = np.ldexp(1.0, powers)
        factors.append(encode(x, number, "nearest"))
    a, b = (decode(x[:, 0], number).astype(np.float64) for x, number in zip(factors, unit.numbers, strict=True))
    # A power of two has smaller steps below it, where the product is no tie.
    significand = rng.integers((1 << (bits - 1)) + (bits > 1), 1 << bits, count)
    c = significand * a * b * 2 * (1 - 2 * rng.integers(0, 2, count))
    c = np.clip(c, -unit.largest, unit.largest).astype(np.float32)  # beyond it if no product is so small
    return factors[0], factors[1], c


def _powers(number: Any) -> tuple[int, int]:
    """The exponents of a format's smallest and largest number."""
    known = properties(number)
    highest = known.largest.log2
    return min(highest, known.smallest.log2 if known.smallest else highest), highest
