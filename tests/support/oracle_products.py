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
    product, inner, tree, fraction_bits and random_bits it has. Aligned ones have the library's parameters by name, with
    `least`, the least exponent of the accumulator's format, if subnormal numbers do not have their own.
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
        if order := accumulator.get("order"):
            terms = terms + [(0.0, 0.0)] * (-len(terms) % len(order))
            terms = [terms[begin + place] for begin in range(0, len(terms), len(order)) for place in order]
        total, chunk = add(start, 0.0), accumulator.get("chunk") or max(len(terms), 1)
        if accumulator.get("sets") == 2:
            terms = terms + [(0.0, 0.0)] * (-len(terms) % chunk)
        for begin in range(0, len(terms), chunk):
            part = terms[begin : begin + chunk]
            if "fraction_bits" in accumulator:
                found = self.aligned(total, part, accumulator)
            else:
                found = add(total, self.sum(part, accumulator))
            total = self.rounded(found, accumulator)
            if accumulator.get("overflow") and abs(found) >= accumulator["beyond"]:
                total = math.copysign(math.inf, found)
            total = total + 0.0 if accumulator.get("positive_zero") else total
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

    def aligned(self, total, part, accumulator):
        products = [multiply(*pair) for pair in part]
        twice, plain = accumulator.get("align") == "twice", total
        for x in products:
            plain = add(plain, x)
        large = {x > 0 for x in products if abs(x) >= 2.0**128} if twice else ()
        if not math.isfinite(plain) or not all(map(math.isfinite, [total, *products])):
            return plain
        if large:
            return math.nan if len(large) == 2 else math.inf if True in large else -math.inf
        subnormals = accumulator.get("subnormals", "normalized")
        least, of_total = (subnormals, accumulator["least"]) if subnormals != "normalized" else (None, None)
        exponents = [sum(exponent(x, least) for x in pair) if all(pair) else None for pair in part]
        bits, cut, zeros = accumulator["fraction_bits"], accumulator.get("cut"), accumulator.get("zeros")
        if accumulator.get("align", "all") == "all":
            exponents.append(exponent(total, of_total) if total else None)
            largest = largest_of(exponents, zeros)
            return exactly(sum(cut_off(x, largest, bits, cut) for x in (total, *products)))
        sets = accumulator.get("sets", 1)
        half, sums, tops = len(part) // sets, [], []
        for first in range(0, len(part), half):
            top = largest_of(exponents[first : first + half], zeros)
            sums.append(sum(cut_off(x, top, bits, cut) for x in products[first : first + half]))
            tops.append(top)
        if not twice:
            return add(float(sums[0]), float(cut_off(total, tops[0], bits, cut)))
        again, top = accumulator.get("sum_cut") or cut, largest_of(tops, None)
        sums = sums if sets == 1 else [cut_off(x, top, bits, again) for x in sums]
        last = exponent(total, of_total) if total else of_total
        largest = largest_of([top, last], None)
        kept = cut_off(total, largest, bits, again)
        if sets == 2 and (last is None or (largest is not None and last < largest - bits - 1)):
            kept = 0
        return exactly(cut_off(sum(sums), largest, accumulator.get("sum_bits") or bits, again) + kept)


def exponent(x, least):
    """floor(log2 |x|), at least `least` if it is given."""
    found = math.frexp(x)[1] - 1
    return found if least is None else max(found, least)


def largest_of(exponents, zeros):
    """The largest exponent; None stands for a zero, which may count."""
    known = [one for one in (*exponents, zeros) if one is not None]
    return max(known) if known else None


def cut_off(x, largest, bits, mode):
    """A number cut off `bits` below an exponent, toward zero or down; without an exponent all are zero."""
    if largest is None:
        return Fraction(0)
    unit = Fraction(2) ** (largest - bits)
    return unit * (math.floor if mode == "down" else math.trunc)(Fraction(x) / unit)


def exactly(x):
    """A fraction that float64 holds; a sum of zero is +0."""
    assert Fraction(float(x)) == x
    return float(x) if x else 0.0


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
