"""Blocks with float32 scales in exact fractions; of the library nothing is used."""

from bisect import bisect_left
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np

ZERO = Fraction(0)


def nearest_float(value, bits=24):
    """Rounds a Fraction to so many significant bits, ties to even; exponents are unlimited."""
    if value == 0:
        return value
    a = abs(value)
    e = a.numerator.bit_length() - a.denominator.bit_length()
    e -= Fraction(2) ** e > a
    step = Fraction(2) ** (e - bits + 1)
    return round(value / step) * step  # Python's round takes ties to even


@cache
def numbers_of(element):
    """Returns the finite numbers of an element format in ascending order, each with a code that is even or odd."""
    if element == "int8":
        return [(Fraction(n), n) for n in range(-128, 128)]
    if element == "uint4":
        return [(Fraction(n), n) for n in range(16)]
    dtype = {"e4m3fn": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m1fn": ml_dtypes.float4_e2m1fn}
    dtype |= {"e4m3fnuz": ml_dtypes.float8_e4m3fnuz, "float16": np.float16}
    kind = np.dtype(dtype[element])
    count = 16 if element == "e2m1fn" else 2 ** (8 * kind.itemsize)
    codes = np.arange(count, dtype=np.uint16 if kind.itemsize == 2 else np.uint8)
    values = codes.view(kind).astype(np.float64)
    found = {Fraction(v): int(c) for v, c in zip(values, codes, strict=True) if np.isfinite(v)}
    return sorted(found.items())


def rounded(value, numbers, mode):
    """The neighbour of a Fraction in a list of `numbers_of`; beyond the ends the end."""
    place = bisect_left(numbers, (value, -(10**9)))
    above = numbers[min(place, len(numbers) - 1)]
    below = above if above[0] <= value else numbers[max(place - 1, 0)]
    if mode in ("down", "up"):
        return (below if mode == "down" else above)[0]
    if mode == "toward_zero":
        return (below if value > 0 else above)[0]
    distances = value - below[0], above[0] - value
    if distances[0] == distances[1]:
        return (below if below[1] % 2 == 0 else above)[0]
    return (below if distances[0] < distances[1] else above)[0]


def float_scaled(block, element, mode):
    """Returns the results of a block, a list of float32 numbers, as float32's nearest numbers."""
    numbers, finite = numbers_of(element), [Fraction(float(v)) for v in block if np.isfinite(v)]
    largest = max(map(abs, finite), default=ZERO)
    scale = Fraction(1)
    if largest and len(finite) == len(block):
        scale = min(max(nearest_float(numbers[-1][0] / largest), Fraction(2) ** -126), Fraction(2) ** 126)
    inverse, results = nearest_float(1 / scale), []
    for v in block:
        if np.isnan(v):
            results.append(v)
            continue
        x = Fraction(float(np.clip(v, -3.4e38, 3.4e38))) if np.isinf(v) else Fraction(float(v))
        y = nearest_float(rounded(nearest_float(x * scale), numbers, mode) * inverse)
        results.append(np.copysign(subnormal(y), v))
    return np.array(results, np.float32)


def subnormal(value):
    """The float32 number nearest to a Fraction of 24 bits, at most the largest."""
    unit = Fraction(2) ** -149
    if abs(value) < Fraction(2) ** -126:
        value = round(value / unit) * unit
    return min(float(abs(value)), float(np.finfo(np.float32).max))


LARGEST = Fraction(float(np.finfo(np.float32).max))
SCALES = {"e4m3fn": (4, 3, 7, 448), "e5m2": (5, 2, 15, 57344), "bfloat16": (8, 7, 127, 2**128 - 2**120)}


def float_number(value):
    """The float32 number nearest to a Fraction above zero, subnormal numbers included, without an upper end."""
    return nearest_float(value) if value >= Fraction(2) ** -126 else round(value * 2**149) * Fraction(2) ** -149


def nearest_scale(value, scale):
    """The number of a scale's format that is nearest to a Fraction, ties to even."""
    _, man, bias, largest = SCALES[scale]
    if value <= 0:
        return ZERO
    e = value.numerator.bit_length() - value.denominator.bit_length()
    e -= Fraction(2) ** e > value
    step = Fraction(2) ** (max(e, 1 - bias) - man)
    return min(round(value / step) * step, Fraction(largest))


def levels(x, width, element, scale, rule, whole, mode):
    """Returns the results of a matrix in tiles of its rows under scales of a format, and the scales."""
    numbers = numbers_of(element)
    top, full = numbers[-1][0], numbers[-1][0] * SCALES[scale][3]
    largest = max((abs(Fraction(float(v))) for v in x.ravel() if np.isfinite(v)), default=ZERO)
    g = t = Fraction(1)
    if whole and largest and rule == "te":
        g = min(nearest_float(full / largest), LARGEST)
        t = float_number(1 / g)
    elif whole and largest:
        t = max(nearest_float(largest / full), Fraction(2) ** -126)
    results, scales = np.empty(x.shape, np.float32), []
    for row, start in np.ndindex(x.shape[0], -(-x.shape[1] // width)):
        place = row, slice(start * width, (start + 1) * width)
        if not np.isfinite(x[place]).all():
            results[place] = np.nan
            scales.append(None)
            continue
        block = [Fraction(float(v)) for v in x[place]]
        a, inverse = max(map(abs, block)), nearest_float(1 / top)
        if rule == "te":
            s = nearest_float(a * (nearest_float(g * inverse) if whole else inverse))
            s = nearest_scale(s if s >= Fraction(2) ** -126 else ZERO, scale)
        else:
            s = nearest_float(a / top)
            s = nearest_float(s / t) if whole else s
            s = nearest_scale(max(s, Fraction(2) ** (1 - SCALES[scale][2])), scale)
        product = nearest_float(s * t)
        real = float_number(product if not whole else s * t) if product else ZERO
        factor = min(nearest_float(1 / real), LARGEST) if real else LARGEST
        if rule == "torchao_0_18":
            factor = min(nearest_float(nearest_float(1 / t) / s), LARGEST)
        scaled = [nearest_float(v / product if rule == "torchao_0_16" else v * factor) for v in block]
        values = [subnormal(nearest_float(rounded(v, numbers, mode) * product)) for v in scaled]
        results[place] = np.copysign(np.array(values, np.float32), x[place])
        scales.append(s)
    return results, scales
