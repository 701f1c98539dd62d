"""The oracle of tables: exact fractions, one element at a time, in the words of `qcore.Table`'s docstring.

It shares no code with the library, like `oracle`.
"""

from bisect import bisect_right
from fractions import Fraction

import ml_dtypes
import numpy as np
from oracle_carrier import UP_BY_CHANCE

CARRIERS = {  # mantissa bits, exponents of the smallest step and above the largest number; bits of n and f, of x
    "float32": (23, -149, 128, 29, 53),
    "float16": (10, -24, 16, 29, 53),
    "bfloat16": (7, -133, 128, 29, 53),
    "float64": (52, -1074, 1024, 59, 83),
}
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float64": np.float64}


def exponent_of(x):
    """Returns floor(log2 |x|) of a fraction that is not zero."""
    found = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    return found if abs(x) >= Fraction(2) ** found else found - 1


def on_carrier(value, name):
    """Returns a number rounded to a dtype, to nearest, ties to even; None beyond its range."""
    mantissa, least, above, *_ = CARRIERS[name]
    if value == 0:
        return Fraction(0)
    step = Fraction(2) ** max(exponent_of(value) - mantissa, least)
    largest = (2 - Fraction(2) ** -mantissa) * Fraction(2) ** (above - 1)
    return None if abs(value) > largest else round(value / step) * step


def cut(x, unit):
    return int(x / unit) * unit  # toward zero


def is_upper(x, low, high, odd, threshold, mode, name, word, random_bits, ties="even"):
    """Returns whether x, which is between two neighbours, becomes the upper one; `odd` is the lower one's index % 2."""
    mode = "nearest_away" if mode == "nearest" and ties == "away" else mode
    near, far = (low, high) if abs(low) <= abs(high) else (high, low)
    if mode in UP_BY_CHANCE:
        *_, digits, x_digits = CARRIERS[name]
        power = Fraction(2) ** exponent_of(far)
        unit = power / 2**digits
        start, end = cut(near, unit), cut(far, unit)
        d = (cut(x, power / 2**x_digits) - start) / (end - start)
        up = UP_BY_CHANCE[mode](word >> (32 - random_bits), random_bits, d.numerator, d.denominator)
        is_far = up and d > 0
        return is_far == (far == high)
    middle, equal = ((low + high) / 2 if threshold is None else threshold), abs(low) == abs(high)
    if mode in ("up", "down"):
        return mode == "up"
    if mode == "odd":
        return not odd
    if mode in ("toward_zero", "away") and not equal:
        return (far if mode == "away" else near) == high
    if x != middle:
        return x > middle
    if mode in ("nearest_up", "nearest_down"):
        return mode == "nearest_up"
    if mode in ("nearest_away", "nearest_zero") and not equal:
        return (far if mode == "nearest_away" else near) == high
    return bool(odd) and threshold is None


def quantize(x, values, thresholds, ties, beyond, mode, words=None, random_bits=24):
    """Returns what an array becomes: its numbers, and their codes.

    Args:
        x: NumPy array of float32, float64, float16 or bfloat16, of one dimension.
        values, thresholds, ties, beyond: of the table.
        mode: the rounding mode's name.
        words: uint32 random words of stochastic rounding.
        random_bits: how many of their leading bits count.
    """
    name = x.dtype.name
    firsts = {}
    special = {"nan": 0}
    for index, value in enumerate(values):
        if value != value:
            special["nan"] = index
        else:
            firsts.setdefault(Fraction(beyond if value > 0 else -beyond) if np.isinf(value) else Fraction(value), index)
    between = [None] * (len(firsts) - 1) if thresholds is None else [Fraction(one) for one in thresholds]
    every = list(zip(sorted(firsts), [*between, None], strict=True))
    infinite = {} if beyond is None else {Fraction(beyond): np.inf, Fraction(-beyond): -np.inf}
    known = [(value, infinite.get(value, on_carrier(value, name)), threshold) for value, threshold in every]
    known = [one for one in known if one[1] is not None]
    ordered = [value for value, *_ in known]
    with np.errstate(invalid="ignore"):  # signaling NaN
        numbers, codes = x.astype(np.float64), np.zeros(x.shape, np.int64)
    for place, given in enumerate(numbers.tolist()):
        if given != given:
            codes[place] = special["nan"]
            continue
        if given in (np.inf, -np.inf):
            chosen = known[-1 if given > 0 else 0]
        else:
            exact = Fraction(given)
            below = bisect_right(ordered, exact) - 1
            chosen = known[max(below, 0)]
            if 0 <= below < len(known) - 1 and chosen[0] != exact:
                low, _, threshold = chosen
                word = 0 if words is None else int(words[place])
                arguments = low, known[below + 1][0], firsts[low] % 2, threshold
                if is_upper(exact, *arguments, mode, name, word, random_bits, ties):
                    chosen = known[below + 1]
            chosen = kept(exact, chosen, known, firsts, mode, infinite)
        codes[place] = firsts[chosen[0]]
        result = float(chosen[1])
        numbers[place] = result if result else 0.0 if np.isnan(values).any() else np.copysign(0.0, given)
    with np.errstate(invalid="ignore"):
        found = numbers.astype(x.dtype)
    found[np.isnan(numbers)] = x[np.isnan(numbers)]
    return found, codes


def kept(x, chosen, known, firsts, mode, infinite):
    """Returns the number before an infinity in modes that lead no finite x beyond it, else what was chosen."""
    ends = {key: place for place, key in ((0, known[0][0]), (-1, known[-1][0])) if key in infinite}
    if chosen[0] not in ends:
        return chosen
    place = ends[chosen[0]]
    neighbour = known[1 if place == 0 else -2]
    stays = {"toward_zero": True, "down": place == -1, "up": place == 0, "odd": firsts[neighbour[0]] % 2 == 1}
    return neighbour if stays.get(mode, False) else chosen


def decode(code, values):
    """Returns the float64 numbers of codes: NaN where there is none."""
    size = 1 << (len(values) - 1).bit_length()
    numbers = np.array([*values, *[np.nan] * (size - len(values))], np.float64)
    return numbers[code % size]
