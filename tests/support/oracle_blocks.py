"""The oracle's numbers that share scales, one block at a time; see `oracle`, which calls them."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
from oracle_carrier import INF, NAN, Carrier
from oracle_numbers import Binary, Rule, binary_rule, float_codes, float_rule, limited


def block_rule(carrier, wl, magnitudes):
    """Returns the rule of one block of BlockFloatingPoint, given the magnitudes of all its elements."""
    exponents = [carrier.emax if m == INF else carrier.log2(m) for m in magnitudes if m is not NAN and m > 0]
    q = max(exponents, default=0) - (wl - 2)  # in a block of zeros and NaN nothing is ever rounded

    def quantum(e):
        return q

    clip = carrier.largest((2 ** (wl - 1) - 1) * Fraction(2) ** q, quantum)
    return Rule(quantum, limited(clip, clip))


class Scaled:
    """A carrier whose numbers are divided by 2^k: the same units and patterns, other exponents."""

    def __init__(self, carrier, k):
        """Moves the exponents of a carrier."""
        self.__dict__.update(vars(carrier))
        self.unit, self.emax = carrier.unit - k, carrier.emax - k

    log2, units, count, largest = Carrier.log2, Carrier.units, Carrier.count, Carrier.largest


@cache
def element_ends(element):
    """Returns the largest number of an element format, a Fraction, and its bits of precision."""
    kind, *arguments = element
    if kind == "fixed":
        wl, fl, _, _, signed, _ = arguments
        digits = wl - 1 if signed else wl
        return (2**digits - 1) * Fraction(2) ** -fl, digits
    coded = float_codes(*arguments) if kind == "float" else Binary(*arguments)
    n, q = coded.number(coded.largest_code)
    return n * Fraction(2) ** q, coded.man + 1


def floor_log2(a):
    """Returns floor(log2 a) of a Fraction above zero."""
    n, d = a.as_integer_ratio()
    e = n.bit_length() - d.bit_length()
    return e if d << max(e, 0) <= n << max(-e, 0) else e - 1


def to_bits(value, digits):
    """Returns a Fraction above zero rounded to so many significant bits, ties to even."""
    step = Fraction(2) ** (floor_log2(value) + 1 - digits)
    return round(value / step) * step


def scale_exponent(a, largest, precision, rule, digits=24):
    """Returns the k for a block whose largest magnitude is the Fraction a; quotients have so many digits."""
    if a == 0:
        return -127
    emax = floor_log2(largest)
    if rule == "even":
        step = Fraction(2) ** (floor_log2(a) - precision + 1)
        a = round(a / step) * step  # Python's round takes ties to even
    k = floor_log2(a) - emax
    if rule == "ceil" and a != Fraction(2) ** floor_log2(a):
        k += 1
    if rule == "rceil":
        k = next(k for k in (k - 1, k, k + 1) if a <= largest * Fraction(2) ** k)
    if rule == "round":
        k = round_log2(a) - round_log2(largest)
    if rule in ("nearest", "nearest_mantissa", "oas"):
        k = quotient_exponent(to_bits(a / largest, digits), precision, rule, digits)
    return min(max(k, -127), 127)


def quotient_exponent(quotient, precision, rule, digits):
    """Returns the k of rules that first divide the largest magnitude by the element's."""
    if rule == "nearest":
        return round_log2(quotient)
    if rule == "nearest_mantissa":
        middle = floor_log2(quotient)
        return min(range(middle - 2, middle + 3), key=lambda k: (abs(quotient - Fraction(2) ** k), -k))
    full = 2 - Fraction(2) ** (1 - precision)  # the significand that is all ones, and the next one's middle
    constant = to_bits(2 * full / ((full + 2) / 2), digits)
    return floor_log2(to_bits(to_bits(quotient * constant, digits), 8))


def round_log2(a):
    """Returns the integer nearest to log2 of a Fraction above zero: no power of two has a square root between."""
    e = floor_log2(a)
    return e + (a * a > Fraction(2) ** (2 * e + 1))


def element_rule(carrier, element):
    """Returns the rule of a saturating element."""
    kind, *arguments = element
    if kind != "fixed":
        return (float_rule if kind == "float" else binary_rule)(carrier, *arguments)
    _, fl, _, symmetric, signed, _ = arguments

    def quantum(e):
        return -fl

    hi, _ = element_ends(element)
    lowest = 0 if not signed else hi if symmetric else hi + Fraction(2) ** -fl
    return Rule(quantum, limited(carrier.largest(hi, quantum), carrier.largest(lowest, quantum)))


def exponent_of(carrier, element, rule, magnitudes):
    """Returns the k of a block with these magnitudes, None where one is not finite."""
    if NAN in magnitudes or INF in magnitudes:
        return None
    return scale_exponent(
        max(magnitudes) * Fraction(2) ** carrier.unit, *element_ends(element), rule, 53 if carrier.man > 23 else 24
    )


def scaled_rule(carrier, element, k):
    """Returns the rule of one block of scaled elements, given its k, and k (None where the scale is NaN)."""
    if k is None:
        return Rule(lambda e: carrier.unit, lambda negative, source, m, rounding: (negative, NAN)), None
    alone = element_rule(Scaled(carrier, k), element)

    def quantum(e):
        return alone.quantum(e - k) + k

    return Rule(quantum, alone.settle, lambda n, q: alone.parity_of(n, q - k)), k


def tile_numbers(shape, sizes):
    """Returns, in row-major order, which tile each element belongs to; a size of None is the whole axis."""
    places = np.indices(shape).reshape(len(shape), math.prod(shape))
    tiles = [p // (n if size is None else size) for p, n, size in zip(places, shape, sizes, strict=True)]
    return list(zip(*(tile.tolist() for tile in tiles), strict=True)) if shape else [()]


def scaled_rules(carrier, element, sizes, rule, around, shape, magnitudes):
    """Returns {tile: (rule, k)}, and the tile of every element in row-major order.

    `around` is None, or the sizes of the blocks whose parts the tiles are: each has its own k, or the block's k less 1
    if that is greater.
    """
    exponents, numbers = tile_exponents(carrier, element, sizes, rule, shape, magnitudes)
    if around is not None:
        wide, of_blocks = tile_exponents(carrier, element, around, rule, shape, magnitudes)
        for tile, block in set(zip(numbers, of_blocks, strict=True)):
            exponents[tile] = None if wide[block] is None else max(exponents[tile], wide[block] - 1)
    return {tile: scaled_rule(carrier, element, k) for tile, k in exponents.items()}, numbers


def tile_exponents(carrier, element, sizes, rule, shape, magnitudes):
    """Returns {tile: k}, and the tile of every element."""
    numbers, blocks = tile_numbers(shape, sizes), {}
    for number, m in zip(numbers, magnitudes, strict=True):
        blocks.setdefault(number, []).append(m)
    return {tile: exponent_of(carrier, element, rule, block) for tile, block in blocks.items()}, numbers


def block_numbers(shape, dim):
    """Returns, in row-major order, the number of the block that each element belongs to."""
    if not -1 <= dim < len(shape):
        raise ValueError(f"dim must be -1 or one of the {len(shape)} dimensions, got {dim}")
    if dim == -1:
        return [0] * math.prod(shape)
    return np.indices(shape)[dim].ravel().tolist()
