"""Statistics of a rounding in fractions, one element at a time; the ranges of formats from their definitions."""

import math
from fractions import Fraction

import numpy as np

INF = float("inf")


def two(exponent):
    return Fraction(2) ** exponent


# The largest number, the magnitude of the lowest one, and the smallest normal number if there are subnormal ones.
RANGES = {
    "e4m3fn": (448, 448, two(-6)),
    "float(5,2)": (2**16 * (2 - two(-2)), 2**16 * (2 - two(-2)), two(-14)),
    "e5m2": (57344, 57344, two(-14)),
    "float(5,2,subnormals=False)": (2**16 * (2 - two(-2)), 2**16 * (2 - two(-2)), 0),
    "fixed(8,4)": (Fraction(127, 16), 8, 0),
    "fixed(8,4,signed=False)": (Fraction(255, 16), 0, 0),
    "fixed(8,4,wrap=True)": (Fraction(127, 16), 8, 0),
    "fixed(8,4,clamp=False)": (INF, INF, 0),
    "posit(8,1)": (2**12, 2**12, 0),
    "float(8,23)": (INF, INF, two(-126)),
}
LARGEST = {"float32": (2 - two(-23)) * 2**127, "float16": Fraction(65504), "bfloat16": (2 - two(-7)) * 2**127}


def ranges(x, text):
    """The range for each element of a matrix."""
    most = LARGEST[x.dtype.name]
    if text in RANGES:
        largest, lowest, normal = RANGES[text]
        if text.startswith("float(5,2") and most == 65504:
            largest = lowest = Fraction(57344)
        return [[(min(largest, most), min(lowest, most), normal)] * x.shape[1]] * x.shape[0]
    found = [[None] * x.shape[1] for _ in range(x.shape[0])]
    width = {"block(8)": None, "block(5,dim=0)": x.shape[1]}.get(text, 16)
    rows = [range(x.shape[0])] if width is None else [[row] for row in range(x.shape[0])]
    width = width or x.shape[1]
    whole = max([abs(float(one)) for one in x.flat if math.isfinite(one)], default=0.0)
    for these in rows:
        for start in range(0, x.shape[1], width):
            places = [(row, column) for row in these for column in range(start, min(start + width, x.shape[1]))]
            block = [abs(float(x[place])) for place in places]
            for row, column in places:
                found[row][column] = block_range(text, block, whole, most)
    return found


def block_range(text, block, whole, most):
    most_of = max([m for m in block if not math.isnan(m)], default=0)
    if text.startswith("block"):
        wl = 8 if text == "block(8)" else 5
        largest = (2 ** (wl - 1) - 1) * two(log2(min(Fraction(most_of) if most_of < INF else most, most)) - (wl - 2))
        return (largest, largest, 0) if most_of else (0, 0, 0)
    if not all(map(math.isfinite, block)):
        return INF, INF, INF  # all is NaN
    if text == "nvfp4":
        return two_levels(most_of, whole, most)
    top, mantissa, low = {
        "scaled(e4m3fn,{-1:16})": (8, Fraction(7, 4), -6),
        "scaled(e2m1fn,{-1:16})": (2, Fraction(3, 2), 0),
    }[text]
    k = max(log2(Fraction(most_of)) - top, -127) if most_of else -127
    largest = min(mantissa * two(top + k), most)
    return largest, largest, two(low + k)


def two_levels(most_of, whole, most):
    """NVFP4, in float32's operations."""
    one, full = np.float32(1), np.float32(448 * 6)
    with np.errstate(over="ignore"):
        g = min(full / np.float32(whole), np.finfo(np.float32).max) if whole else one
        s = min(e4m3(float(np.float32(most_of) * (g * (one / np.float32(6))))), 448.0)
    scale = np.float32(s) * (one / g)
    largest, normal = (Fraction(float(np.float32(number) * scale)) for number in (6, 1))
    return largest, largest, normal


def e4m3(x):
    step = two(max(log2(Fraction(x)), -6) - 3) if x else 1
    return float(round(Fraction(x) / step) * step)


def log2(x):
    """floor(log2 x), exactly."""
    if not x:
        return -10000
    power = x.numerator.bit_length() - x.denominator.bit_length()
    return power if two(power) <= x else power - 1


def nearest(x, step):
    return round(x / step) * step  # Python's ties go to even


def short(x):
    """To 5 significant bits; numbers below 2^-126 as if they had its exponent."""
    return nearest(x, two(max(log2(abs(x)), -127) - 4)) if x else x


def error_of(x, y):
    """The difference to 24 bits, as float32 has it, and to 5."""
    error = y - x
    for bits in (24, 5):
        error = nearest(error, two(log2(abs(error)) + 1 - bits)) if error else error
    return error


def statistics(x, y, text):
    """What the library says of a matrix x that became y."""
    found = dict.fromkeys(
        ["elements", "zeros", "underflowed", "saturated", "overflowed", "infinite", "nan", "nan_results", "subnormal"],
        0,
    )
    sums = dict.fromkeys(["signal", "error_absolute", "error_squared", "error_signed"], Fraction(0))
    exponents, before, after = {}, [], []
    bounds = ranges(x, text)
    for row in range(x.shape[0]):
        for column in range(x.shape[1]):
            a, b = float(x[row, column]), float(y[row, column])
            largest, lowest, normal = bounds[row][column]
            found["elements"] += 1
            found["nan_results"] += math.isnan(b)
            finite = math.isfinite(b)
            if finite and b:
                after.append(abs(b))
                found["subnormal"] += abs(b) < normal
            if math.isnan(a):
                found["nan"] += 1
                continue
            beyond = finite and abs(a) > (lowest if a < 0 else largest)
            found["saturated"] += beyond
            if math.isinf(a):
                found["infinite"] += 1
                continue
            found["zeros"] += a == 0
            found["overflowed"] += not finite
            if a:
                found["underflowed"] += b == 0 and not beyond
                before.append(abs(a))
                exponent = max(log2(Fraction(abs(a))), -127)
                exponents[exponent] = exponents.get(exponent, 0) + 1
            if finite:
                error = error_of(Fraction(a), Fraction(b))
                sums["signal"] += short(Fraction(a)) ** 2
                sums["error_absolute"] += abs(error)
                sums["error_squared"] += error**2
                sums["error_signed"] += error
    ends = {
        "smallest_before": min(before, default=0.0),
        "largest_before": max(before, default=0.0),
        "smallest_after": min(after, default=0.0),
        "largest_after": max(after, default=0.0),
    }
    return found | sums | ends | {"exponents": exponents}
