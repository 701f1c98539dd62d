"""Operations on NumPy arrays, beside fractions that are rounded once."""

import math
import random
from functools import lru_cache

import numpy as np
import oracle_arithmetic
import pytest
from support import spec, words

import qcore
from qcore import arithmetic
from qcore.arithmetic.operations import OPERATIONS as ALL

MODES = [mode.value for mode in qcore.Rounding]
OPERATIONS = {name: ALL[name] for name in oracle_arithmetic.REAL}
SHORT = ["e3m2", "e4m3fn", "binary5p3se", "binary4p2sf", "e5m2:saturate", "binary8p4se:propagate", "binary6p1ue"]
WIDE = ["float32", "bfloat16", "e4m3fn", "e5m2", "fixed(12,4)", "int8"]
EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0**-149, -(2.0**-126), 2.0**127]


def differing(operation, operands, result, mode, random_bits=24):
    """The operands whose results are not those of the oracle, of a list with tuples of Python floats."""
    arrays = [np.array(column, np.float32) for column in zip(*operands, strict=True)]
    found = getattr(arithmetic, operation)(*arrays, result, mode, key=5, random_bits=random_bits)
    given = words(5, found.shape).tolist() if mode.startswith("stochastic") else [0] * len(operands)
    number = spec(qcore.parse(result))
    wrong = []
    for numbers, one, word in zip(operands, found.astype(np.float64), given, strict=True):
        expected = np.float64(oracle_arithmetic.result(operation, numbers, number, mode, word, random_bits))
        if not (math.isnan(expected) and math.isnan(one)) and expected.tobytes() != one.tobytes():
            wrong.append((numbers, one, expected))
    return wrong


def hard(rng):
    """A float32 number: a special one, one with few or with all significant bits, or a subnormal one."""
    if rng.random() < 0.1:
        return rng.choice(EDGES)
    significand = rng.choice([1, 3, (1 << 24) - 1, (1 << 23) + 1, rng.getrandbits(24) | 1])
    exponent = rng.choice([-149, -126, -54, -48, -25, -24, 0, 100, rng.randint(-60, 30)])
    return rng.choice([-1, 1]) * float(np.float32(math.ldexp(significand, exponent)))


def check(seed, cases, count):
    rng = random.Random(seed)
    for operation, result, mode, draw in cases:
        operands = [tuple(draw(rng) for _ in range(OPERATIONS[operation].operands)) for _ in range(count)]
        few = rng.choice([1, 5, 24])
        assert differing(operation, operands, result, mode, few) == [], (operation, result, mode, few)


def of_codes(text):
    """A draw of numbers of a format."""
    number = qcore.parse(text)
    values = [float(x) for x in qcore.decode(np.arange(1 << number.bits), number)]
    return lambda rng: rng.choice(values)


def cases(formats, draws):
    return [(name, text, mode, draws(text)) for name in OPERATIONS for text in formats for mode in MODES]


def test_short_operands():
    check(0, cases(SHORT, of_codes)[::3], 16)


def test_wide_operands():
    check(1, cases(WIDE, lambda result: hard)[::3], 16)


@pytest.mark.heavy
def test_many_operands():
    check(2, cases(SHORT, of_codes), 2000)
    check(3, cases(WIDE, lambda result: hard), 2000)


def pairs(text):
    """All pairs of a format's codes."""
    codes = np.arange(1 << qcore.parse(text).bits)
    return [part.ravel() for part in np.meshgrid(codes, codes)]


@lru_cache(2)
def exact_of_pairs(operation, text, down):
    """The exact results of all pairs; a mode decides the signs of zeros only."""
    numbers = [qcore.decode(part, text).tolist() for part in pairs(text)]
    return [oracle_arithmetic.exact(operation, pair, "down" if down else "up") for pair in zip(*numbers, strict=True)]


def check_codes(operation, text, result, mode):
    x, y = pairs(text)
    found = getattr(arithmetic, f"{operation}_codes")(x, y, text, result, mode)
    numbers, number = [qcore.decode(part, text) for part in (x, y)], spec(qcore.parse(result))
    by_numbers = getattr(arithmetic, operation)(*numbers, result, mode)
    exact = exact_of_pairs(operation, text, mode == "down")
    expected = np.float32([oracle_arithmetic.rounded(*one, number, mode) for one in exact])
    wrong = (by_numbers.view(np.uint32) != expected.view(np.uint32)) & ~(np.isnan(by_numbers) & np.isnan(expected))
    assert not wrong.any(), [numbers[0][wrong], numbers[1][wrong], by_numbers[wrong], expected[wrong]]
    decoded = qcore.decode(found, result)
    assert np.array_equal(np.isnan(decoded), np.isnan(by_numbers))
    known = ~np.isnan(decoded)
    assert decoded[known].tobytes() == by_numbers[known].tobytes()


def test_all_pairs_of_codes():
    check_codes("divide", "binary4p2sf", "binary5p3se", "nearest")
    check_codes("add", "binary4p2sf", "binary6p3se", "odd")


@pytest.mark.heavy
@pytest.mark.parametrize("operation", ["add", "subtract", "multiply", "divide"])
@pytest.mark.parametrize("text", ["binary8p4se", "binary8p3se", "binary8p1ue", "binary6p3sf", "e4m3fn", "e5m2"])
def test_all_pairs_of_eight_bits(operation, text):
    for mode in MODES[:10]:
        check_codes(operation, text, text, mode)


def test_float32_and_a_second_rounding_are_something_else():
    x, y = np.float32([272.0]), np.float32([2.0**-20])
    assert arithmetic.add(x, y, "e4m3fn") == [288.0]
    assert qcore.quantize(x + y, "e4m3fn") == [256.0]
    x, y, z = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    assert np.count_nonzero(arithmetic.fma(x, y, z) != x * y + z) > 100


def test_sums_of_opposite_numbers():
    x = np.float32([1.0, 0.0, -0.0])
    assert np.signbit(arithmetic.subtract(x, x, rounding="down")).tolist() == [True, True, True]
    assert np.signbit(arithmetic.subtract(x, x)).tolist() == [False, False, False]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: arithmetic.add(x, 1.0), "y is a float; allowed is a NumPy array of float32, float16, bfloat16"),
        (lambda x: arithmetic.add(x, x.astype(np.float64)), "y is an array of float64; allowed is a NumPy array"),
        (lambda x: arithmetic.add(x, np.ones(3, np.float32)), r"x has shape \(2,\), y \(3,\); allowed are shapes that"),
        (lambda x: arithmetic.add(x, x, "mxfp4"), "result=.* is a format of blocks; allowed are formats of single"),
        (lambda x: arithmetic.add(x, x, "binary(11,30)"), "result=.* which arrays of float32 have not"),
        (lambda x: arithmetic.add(x, x, "e5m2", "stochastic"), "key=None; rounding='stochastic' needs a key"),
        (lambda x: arithmetic.add_codes(x, x, "e5m2"), "x is a array of float32; allowed is a NumPy array of integers"),
        (lambda x: arithmetic.sqrt_codes(np.uint8([1]), ("e5m2",) * 2), "operands=.*; allowed is one format, or 1 of"),
        (lambda x: arithmetic.sqrt_codes(np.uint8([1]), "posit32"), "operands: .* has numbers of 28 bits from"),
        (
            lambda x: arithmetic.fma(x, x, x, "table([0,7.888609052210118e-31,1])"),
            "result=.*: 102 bits decide",
        ),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call(np.float32([1.0, 2.0]))
