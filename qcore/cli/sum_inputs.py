"""The inputs of vectors for sums: hard rows of several kinds, and random ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.arrays import decode, encode
from qcore.cli.properties import has_places, properties
from qcore.cli.sums import Operands, Unit

KINDS = "random", "near", "cancellation", "subnormal", "large", "special", "tie", "zero"
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
        c = (left[:, 0] * right[:, 0]).astype(np.float32)
        exponents = rng.integers(-20, 21, count)
        c = np.where(rng.integers(0, 2, count) > 0, np.ldexp(c, exponents), 0).astype(np.float32)
        half = unit.terms // 2
        rows = kinds == KINDS.index("cancellation")
        a[rows, half : 2 * half] = a[rows, :half]
        negative = encode(-decode(b, unit.numbers[1]), unit.numbers[1], "nearest")
        b[rows, half : 2 * half] = negative[rows, :half]
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


def _ties(unit: Unit, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One product that is a power of two, beside an addend whose last place is twice as much."""
    factors = []
    for number in unit.numbers:
        known = properties(number)
        highest = known.largest.log2
        lowest = min(highest, max(known.smallest.log2 if known.smallest else highest, highest - 8))
        x = np.zeros((count, unit.terms), np.float32)
        x[:, 0] = np.ldexp(1.0, rng.integers(lowest, highest + 1, count))
        factors.append(encode(x, number, "nearest"))
    product = np.prod([decode(x[:, :1], n).astype(np.float64) for x, n in zip(factors, unit.numbers, strict=True)], 0)[
        :, 0
    ]
    number = unit.product.accumulator.number
    bits = min(number.span[0] if has_places(number) else 24, 24)
    significand = rng.integers(1 << (bits - 1), 1 << bits, count)
    c = (significand * product * 2 * (1 - 2 * rng.integers(0, 2, count))).astype(np.float32)
    return factors[0], factors[1], c
