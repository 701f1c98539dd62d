"""The oracle of operands' scales and transforms: docs/products.md number by number. It never imports the library."""

import math
from fractions import Fraction

import numpy as np

LARGEST = float(np.finfo(np.float32).max)


def to_float32(x):
    """A Fraction or a float as the nearest float32 number, of ties the even one; beyond them infinity."""
    with np.errstate(over="ignore"):
        return float(np.float32(float(x)))  # float64 has more than twice the bits, so both roundings are one


def scale(magnitudes, largest, margin=0, previous=1.0):
    """s of a tile whose numbers have these magnitudes."""
    most = max(magnitudes, key=lambda x: (math.isnan(x), x))
    if not (0 < most < math.inf):
        return previous
    return min(to_float32(Fraction(largest) / Fraction(most) / Fraction(2) ** margin), LARGEST)


def times(x, s):
    """float32(x * s)."""
    return to_float32(Fraction(x) * Fraction(s)) if math.isfinite(x) and x and math.isfinite(s) else x * s


def inverse(s):
    return to_float32(1 / Fraction(s))


def tiles(x, outer, terms):
    """The corners of a matrix's tiles, and the tile's slices."""
    rows, columns = x.shape
    for top in range(0, rows, outer or rows):
        for left in range(0, columns, terms or columns):
            yield slice(top, top + (outer or rows)), slice(left, left + (terms or columns))


def scaled(x, outer, terms, largest):
    """A matrix (rows, terms) times the scales of its tiles, and r for each of its numbers."""
    found, r = np.empty_like(x), np.empty_like(x)
    for place in tiles(x, outer, terms):
        s = scale(np.abs(x[place]).ravel().tolist(), largest)
        found[place] = np.reshape([times(one, s) for one in x[place].ravel().tolist()], x[place].shape)
        r[place] = inverse(s)
    return found, r


def hadamard(x, signs):
    """16 numbers times signs, times the Hadamard matrix by stages of float32 numbers."""
    values = [one * sign for one, sign in zip(x, signs, strict=True)]
    for distance in (1, 2, 4, 8):
        for i in range(16):
            if not i & distance:
                a, b = values[i], values[i + distance]
                values[i], values[i + distance] = (to_float32(Fraction(a) + Fraction(sign * b)) for sign in (1, -1))
    return [to_float32(Fraction(one) / 4) for one in values]
