"""The oracle of products: docs/products.md element by element, in Python's fractions. It never imports the library."""

import math
from fractions import Fraction

import numpy as np
import oracle
from jax.extend.random import threefry_2x32


def multiply(x, y):
    """The product of two float32 numbers, exact in float64."""
    if math.isfinite(x) and math.isfinite(y):
        result = float(Fraction(x) * Fraction(y))
        assert Fraction(result) == Fraction(x) * Fraction(y)
        return result
    if math.isnan(x) or math.isnan(y) or x == 0 or y == 0:
        return math.nan
    return math.copysign(math.inf, math.copysign(1, x) * math.copysign(1, y))


def add(x, y):
    """The float64 sum, to nearest; zero is +0."""
    if math.isfinite(x) and math.isfinite(y):
        return float(Fraction(x) + Fraction(y)) if Fraction(x) + Fraction(y) else 0.0
    if math.isnan(x) or math.isnan(y) or (math.isinf(x) and math.isinf(y) and x != y):
        return math.nan
    return x if math.isinf(x) else y


class Fold:
    """The accumulators of one element.

    An accumulator is a dictionary: number (an oracle's spec, or None for float64), chunk, rounding, and whichever of
    product, inner, tree, fraction_bits and random_bits it has.
    """

    def __init__(self, key, size, index):
        self.key, self.size, self.index = key, size, index
        self.count = 0

    def word(self, random_bits):
        """The random word of the next rounding, in whose leading bits the random ones are."""
        step, self.count = self.count, self.count + 1
        block = step // 4 if random_bits <= 16 else step
        index = block * self.size + self.index
        counter = np.array([index >> 32, index & 0xFFFFFFFF], np.uint32)
        y0, y1 = np.asarray(threefry_2x32(np.array(self.key, np.uint32), counter)).tolist()
        if random_bits > 16:
            return y0 ^ y1
        return [y0 >> 16, y0 & 0xFFFF, y1 >> 16, y1 & 0xFFFF][step % 4] << 16

    def rounded(self, x, accumulator, number="number"):
        spec, mode = accumulator[number], accumulator["rounding"] if number == "number" else "nearest"
        if spec is None:
            return x
        words, bits = None, accumulator.get("random_bits", 24)
        if mode.startswith("stochastic"):
            words = np.array([self.word(bits)], np.uint32)
        elif number == "number":
            self.count += 1
        return float(oracle.quantize(np.float64([x]), spec, mode, words, bits)[0])

    def fold(self, terms, accumulator, start=0.0):
        """The accumulator after all terms, pairs of numbers."""
        total, chunk = add(start, 0.0), accumulator.get("chunk") or max(len(terms), 1)
        for begin in range(0, len(terms), chunk):
            part = terms[begin : begin + chunk]
            if "fraction_bits" in accumulator:
                found = self.aligned(total, part, accumulator["fraction_bits"])
            else:
                found = add(total, self.sum(part, accumulator))
            total = self.rounded(found, accumulator)
        return total

    def sum(self, part, accumulator):
        if "inner" in accumulator:
            return self.fold(part, accumulator["inner"])
        products = [multiply(*pair) for pair in part]
        if "product" in accumulator:
            products = [self.rounded(x, accumulator, "product") for x in products]
        if accumulator.get("tree"):
            return self.tree(products, accumulator)
        total = 0.0
        for x in products:
            total = add(total, x)
        return total

    def tree(self, values, accumulator):
        """Level by level; words are counted from left to right, those of both parts before that of their sum."""

        def node(first, last):
            if last - first == 1:
                return values[first]
            half = 1
            while 2 * half < last - first:
                half *= 2
            left, right = node(first, first + half), node(first + half, last)
            return self.rounded(add(left, right), accumulator)

        return node(0, len(values))

    def aligned(self, total, part, fraction_bits):
        products = [multiply(*pair) for pair in part]
        if not all(map(math.isfinite, [total, *products])):
            for x in products:
                total = add(total, x)
            return total
        exponents = [sum(math.frexp(x)[1] - 1 for x in pair) for pair, y in zip(part, products, strict=True) if y]
        exponents += [math.frexp(total)[1] - 1] if total else []
        if not exponents:
            return 0.0
        unit = Fraction(2) ** (max(exponents) - fraction_bits)
        found = unit * sum(math.trunc(Fraction(x) / unit) for x in (total, *products))
        assert Fraction(float(found)) == found
        return float(found) if found else 0.0


def matmul(a, b, accumulator, key=(0, 0), c=None):
    """The product of float32 matrices, or of batches of them, and c, in float32."""
    shape = (*a.shape[:-1], b.shape[-1])
    result = np.empty(math.prod(shape), np.float32)
    count = math.prod(shape[:-2])
    left, right = (x.reshape(count, *x.shape[-2:]).tolist() for x in (a, b))
    for index in range(result.size):
        batch, place = divmod(index, shape[-2] * shape[-1])
        row, column = divmod(place, shape[-1])
        terms = list(zip(left[batch][row], [one[column] for one in right[batch]], strict=True))
        start = 0.0 if c is None else float(c.ravel()[index])
        found = Fold(key, result.size, index).fold(terms, accumulator, start)
        result[index] = np.nan if math.isnan(found) else to_float32(found)
    return result.reshape(shape)


def to_float32(x):
    with np.errstate(over="ignore"):
        return np.float32(x)  # one correctly rounded conversion
