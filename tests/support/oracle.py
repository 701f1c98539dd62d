"""The independent oracle: laws.md in exact integer arithmetic, one element at a time.

It must never import the library, nor borrow a trick from it: comparing the two means something only because they
share nothing. `oracle_carrier` has the dtypes, `oracle_numbers`, `oracle_blocks` and `oracle_posits` have the formats.
"""

from functools import lru_cache

import numpy as np
import oracle_blocks
import oracle_posits
import oracle_tables
from oracle_carrier import INF, NAN, UP_BY_CHANCE, UP_WHEN, Carrier
from oracle_numbers import (
    Binary,
    FixedCodes,
    binary_rule,
    fixed_rule,
    float_codes,
    float_rule,
)


def posit_rule(carrier, bits, es):
    """Returns the rule of posits, which round codes and not numbers."""
    return oracle_posits.Rule(carrier, UP_WHEN, bits, es)


def rules_of(carrier, spec, shape, magnitudes):
    """Returns the rule of every element, in row-major order (most of them the same object)."""
    kind, *arguments = spec
    elementwise = {"fixed": fixed_rule, "float": float_rule, "binary": binary_rule, "posit": posit_rule}
    if kind in elementwise:
        return [elementwise[kind](carrier, *arguments)] * len(magnitudes)
    if kind == "scaled":
        rules, numbers = oracle_blocks.scaled_rules(carrier, *arguments, shape, magnitudes)
        return [rules[number][0] for number in numbers]
    if kind != "block":
        raise ValueError(f"spec: {spec!r} is neither fixed, float, binary, posit, block nor scaled")
    wl, dim = arguments
    if not 2 <= wl <= 25:
        raise ValueError(f"wl must be in 2..25, got {wl}")
    numbers, blocks = oracle_blocks.block_numbers(shape, dim), {}
    for number, m in zip(numbers, magnitudes, strict=True):
        blocks.setdefault(number, []).append(m)
    rules = {number: oracle_blocks.block_rule(carrier, wl, block) for number, block in blocks.items()}
    return [rules[number] for number in numbers]


def round_magnitude(carrier, rule, rounding, negative, m, word, random_bits):
    """Returns the finite magnitude m > 0 rounded to a multiple of its quantum."""
    q = rule.quantum(carrier.log2(m))
    if q <= carrier.unit:  # every carrier value is a multiple of 2^q: d = 0, nothing moves
        return m
    step = 2 ** (q - carrier.unit)
    n, d = divmod(m, step)
    if rounding in UP_BY_CHANCE:
        up = UP_BY_CHANCE[rounding](word // 2 ** (32 - random_bits), random_bits, d, step)
    else:
        up = UP_WHEN[rounding](rule.parity_of(n, q), d, step // 2, negative)
    return (n + 1 if up else n) * step


def quantize_element(carrier, rule, rounding, negative, m, word, random_bits):
    """Returns (negative, magnitude), what an element that is not NaN becomes."""
    if isinstance(rule, oracle_posits.Rule):
        return rule.quantize(rounding, negative, m, word, random_bits)
    rounded = m if m in (0, INF) else round_magnitude(carrier, rule, rounding, negative, m, word, random_bits)
    negative, result = rule.settle(negative, m, rounded, rounding)
    return negative, INF if result is not NAN and result > carrier.max else result


def read(x):
    """Returns the carrier of x and, in row-major order, the elements' bit patterns and their (negative, magnitude)."""
    carrier, patterns, numbers = _read(x.dtype, np.ascontiguousarray(x).tobytes())
    return carrier, list(patterns), numbers


@lru_cache(8)  # an array is rounded in many modes
def _read(dtype, content):
    carrier = Carrier(dtype)
    patterns = np.frombuffer(content, carrier.pattern_dtype).tolist()
    return carrier, patterns, [carrier.decode(pattern) for pattern in patterns]


def quantize(x, spec, rounding, words=None, random_bits=24):
    """Quantizes every element of x as laws.md says.

    Args:
        x: numpy array of dtype float64, float32, float16 or ml_dtypes.bfloat16, of any shape.
        spec: one of
            ("fixed", wl, fl, clamp, symmetric, signed, wrap), where signed is True and wrap False if not given;
            ("float", exp, man, bias, subnormals), where bias is None (2^(exp-1) - 1) and subnormals True if not given;
            ("binary", exp, man, bias, specials, subnormals, signed, overflow), see `special_codes` for specials, and
                overflow is "saturate", "propagate", "inf" or "nan";
            ("posit", bits, es), see `oracle_posits`;
            ("table", values, thresholds, ties, beyond), see `oracle_tables`;
            ("block", wl, dim);
            ("scaled", the spec of the elements with all its entries, the sizes of a tile along each axis, rule, None or
            the sizes of the block of which the tile is a part).
        rounding: a key of UP_WHEN or UP_BY_CHANCE.
        words: for UP_BY_CHANCE, a uint32 array of x's shape: the elements' random words.
        random_bits: how many of a word's top bits these use, 1 to 32.

    Returns:
        A new array of x's dtype and shape.
    """
    by_chance = rounding in UP_BY_CHANCE
    if rounding not in UP_WHEN and not by_chance:
        raise ValueError(f"rounding: {rounding!r} is none of {[*UP_WHEN, *UP_BY_CHANCE]}")
    if by_chance and (words is None or words.dtype != np.uint32 or words.shape != x.shape):
        raise ValueError("stochastic rounding needs uint32 words of the shape of x")
    if spec[0] == "table":
        words = None if words is None else words.ravel()
        return oracle_tables.quantize(x.ravel(), *spec[1:], rounding, words, random_bits)[0].reshape(x.shape)
    carrier, patterns, numbers = read(x)
    rules = rules_of(carrier, spec, x.shape, [m for _, m in numbers])
    words = words.ravel().tolist() if by_chance else [0] * len(patterns)
    for i, (negative, m) in enumerate(numbers):
        if m is not NAN:  # a NaN keeps its bits
            result = quantize_element(carrier, rules[i], rounding, negative, m, words[i], random_bits)
            patterns[i] = carrier.encode(*result)
    return np.array(patterns, carrier.pattern_dtype).view(x.dtype).reshape(x.shape)


def codes_of(spec):
    """Returns the object that encodes and decodes numbers of a format."""
    kind, *arguments = spec
    makers = {"fixed": FixedCodes, "float": float_codes, "binary": Binary, "posit": oracle_posits.Posits}
    if kind not in makers:
        raise ValueError(f"spec: {spec!r} is neither fixed, float, binary nor posit")
    return makers[kind](*arguments)


def encode(x, spec):
    """Returns the int64 codes of x, whose elements are already numbers of the format (or NaN); see `quantize`."""
    if spec[0] == "table":
        return oracle_tables.quantize(x.ravel(), *spec[1:], "nearest")[1].reshape(x.shape)
    carrier, _, numbers = read(x)
    codes = codes_of(spec)
    return np.array([codes.encode(carrier, *number) for number in numbers], np.int64).reshape(x.shape)


def decode(code, spec, dtype=np.float32):
    """Returns the numbers, exactly and of `dtype`, that an integer array of codes means; see `quantize`."""
    if spec[0] == "table":
        return oracle_tables.decode(code, spec[1]).astype(dtype)
    carrier, codes = Carrier(dtype), codes_of(spec)
    patterns = [carrier.encode(*codes.decode(carrier, c)) for c in code.ravel().tolist()]
    return np.array(patterns, carrier.pattern_dtype).view(dtype).reshape(code.shape)
