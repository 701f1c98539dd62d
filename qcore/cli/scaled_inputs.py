"""The inputs of vectors for sums with scales of blocks: rows in which the exponents of scales decide what is cut off.

Where nothing but the fault of a law would cut off a bit, all other terms cancel each other, so that the bit is the
result's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.arrays import decode, encode
from qcore.cli.properties import exponent_range
from qcore.cli.sums import Unit
from qcore.linalg.designs import GROUPED

Rows = tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray], np.ndarray]  # codes of a, b, scales; addends


class _Numbers:
    """The numbers of rows, before they become codes.

    Attributes:
        a, b: (rows, terms), zeros.
        c: (rows,), zeros.
        least_scale, largest_scale: the exponents of the ends of the scales' range.
    """

    def __init__(self, unit: Unit, count: int) -> None:
        self._unit = unit
        self.a, self.b, self.c = np.zeros((count, unit.terms)), np.zeros((count, unit.terms)), np.zeros(count)
        self._scales = np.zeros((2, count, unit.terms // unit.product.block), int)
        self.least_scale, self.largest_scale = exponent_range(unit.scale)

    @property
    def blocks(self) -> int:
        return self._scales.shape[2]

    def scale(self, row: int, block: int, exponent: int) -> int:
        """Gives a block two scales whose product is 2^exponent, as far as there are such; returns the exponent."""
        first = min(max(exponent // 2, self.least_scale), self.largest_scale)
        second = min(max(exponent - first, self.least_scale), self.largest_scale)
        self._scales[:, row, block] = first, second
        return first + second

    def codes(self) -> Rows:
        sides = zip((self.a, self.b), self._unit.numbers, strict=True)
        a, b = (encode(x.astype(np.float32), number) for x, number in sides)
        first, second = (encode(np.ldexp(np.float32(1), x), self._unit.scale) for x in self._scales)
        return a, b, (first, second), self.c.astype(np.float32)


def least_sums(unit: Unit, count: int, rng: np.random.Generator) -> Rows:
    """The accumulator's least number, less a product that is cut off by some exponents of zeros, and kept by others.

    In a quarter of the rows the product is alone: a negative sum that becomes zero.
    """
    made, accumulator = _Numbers(unit, count), unit.product.accumulator
    low_a, low_b = (exponent_range(number)[0] for number in unit.numbers)
    step, products = accumulator.number.span[1], _products(unit.numbers)
    # In groups, whose exponents are those of their scales, the product is under another scale than the least number.
    beside = 1 if is_grouped(unit) else 0
    for row in range(count):
        last = (accumulator.zeros or 0) - (accumulator.fraction_bits or 0) + int(rng.integers(-3, 3))
        alone = row % 4 == 0
        block = made.blocks - 1 if alone else beside  # after the last step nothing makes +0 of -0
        place = block * unit.product.block
        found = made.scale(row, block, last - low_a - low_b)
        made.a[row, place], made.b[row, place] = np.ldexp(-1.0, low_a), np.ldexp(1.0, low_b)
        if alone:
            continue
        place = 0 if beside else 1
        found = made.scale(row, 0, step - 2 - low_a - low_b) if beside else found
        rest = 1 << step - found - low_a - low_b
        while rest and place < unit.product.block:
            size = max(one for one in products if one <= rest)
            made.a[row, place], made.b[row, place] = products[size]
            rest, place = rest - size, place + 1
    return made.codes()


def _products(numbers: Any) -> dict[int, tuple[float, float]]:
    """For each multiple of the smallest product of elements that is a product, up to 2^15, two factors."""
    sides = []
    for number in numbers:
        values, smallest = decode(np.arange(1 << number.bits), number), 2.0 ** exponent_range(number)[0]
        multiples = np.unique(np.abs(values[np.isfinite(values)])) / smallest
        sides.append([(int(one), one * smallest) for one in multiples[(multiples > 0) & (multiples <= 1 << 15)]])
    pairs = ((first * second, (x, y)) for first, x in sides[0] for second, y in sides[1])
    return {size: factors for size, factors in pairs if size <= 1 << 15}


def is_grouped(unit: Unit) -> bool:
    """True if the exponents of groups of products are those of their scales alone."""
    design = unit.product.accumulator.design
    return design is not None and design.law == GROUPED


def beside_groups(unit: Unit, count: int, rng: np.random.Generator) -> Rows:
    """A large sum of a block that the addend cancels, beside a small one whose bits are cut off by some alignments.

    In every second row two products under the least scale cancel each other beside an addend of the same kind.
    """
    made, block, kept = _Numbers(unit, count), unit.product.block, unit.fraction_bits or 0
    (low_a, top_a), (low_b, top_b) = map(exponent_range, unit.numbers)
    for row in range(count):
        made.a[row, :2], made.b[row, :2] = np.ldexp(1.0, top_a), np.ldexp(1.0, top_b)
        if row % 2:
            found = made.scale(row, 0, 2 * made.least_scale + int(rng.integers(0, 5)))
            made.a[row, 1] *= -1
            made.c[row] = np.ldexp(rng.uniform(-2, 2), found - kept + int(rng.integers(0, 14)))
            continue
        found = made.scale(row, 0, min(2 * made.largest_scale, int(rng.integers(20, 60))))
        top = found + top_a + top_b + 1
        made.c[row] = -np.ldexp(1.0, top)
        made.scale(row, 1, top - kept - low_a - low_b + int(rng.integers(-3, 2)))
        small = slice(block, block + int(rng.integers(1, 8)))
        made.a[row, small], made.b[row, small] = np.ldexp(1.0, low_a), np.ldexp(1.0, low_b)
    return made.codes()
