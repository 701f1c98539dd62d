"""The NumPy reference of products against an oracle in Python's fractions."""

import re
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import oracle_products
import pytest
from products_support import ACCUMULATORS, KINDS, inputs, oracle_form
from support import assert_same_bits

import qcore
from qcore import Accumulator
from qcore.linalg import matmul, sums_are_exact

PAGE = Path(__file__).parents[3] / "docs" / "products.md"
KEY = 0x123456789ABCDEF
WORDS = KEY >> 32, KEY & 0xFFFFFFFF


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ACCUMULATORS)
def test_the_reference_equals_the_oracle(name, kind):
    a, b = inputs(kind, 2, 19, 3)
    accumulator = ACCUMULATORS[name]
    expected = oracle_products.matmul(a, b, oracle_form(accumulator), WORDS)
    assert_same_bits(matmul(a, b, accumulator=accumulator, key=KEY), expected)


@pytest.mark.parametrize("terms", [0, 1, 2, 7])
@pytest.mark.parametrize("name", ACCUMULATORS)
def test_short_sums(name, terms):
    a, b = inputs("special", 2, terms, 2)
    accumulator = ACCUMULATORS[name]
    expected = oracle_products.matmul(a, b, oracle_form(accumulator), WORDS)
    assert_same_bits(matmul(a, b, accumulator=accumulator, key=KEY), expected)


@pytest.mark.parametrize("name", ["exact", "chunks", "stochastic", "few random bits", "two levels"])
def test_batches(name):
    a, b = inputs("of formats", 2, 9, 3, (2, 2))
    accumulator = ACCUMULATORS[name]
    expected = oracle_products.matmul(a, b, oracle_form(accumulator), WORDS)
    assert_same_bits(matmul(a, b, accumulator=accumulator, key=KEY), expected)


@pytest.mark.parametrize("mode", ["stochastic_b", "stochastic_c"])
def test_stochastic_roundings_that_round_the_distance(mode):
    a, b = inputs("of formats", 2, 9, 3, (2, 2))
    for random_bits in (2, 20):
        accumulator = Accumulator("float(5,4)", 2, mode, random_bits=random_bits)
        expected = oracle_products.matmul(a, b, oracle_form(accumulator), WORDS)
        assert_same_bits(matmul(a, b, accumulator=accumulator, key=KEY), expected)


@pytest.mark.parametrize("formats", [("e4m3fn", "e4m3fn"), ("e5m2", "e4m3fn"), ("int8", "uint4"), ("e2m1fn", None)])
def test_operands_are_rounded_first(formats):
    a, b = inputs("normal", 3, 10, 2)
    rounded = [x if number is None else qcore.quantize(x, number) for x, number in zip((a, b), formats, strict=True)]
    assert_same_bits(matmul(a, b, operands=formats), matmul(*rounded))


def largest(number):
    """The largest and the smallest number of a format, from its codes."""
    numbers = np.abs(qcore.decode(np.arange(256, dtype=np.uint8), number, np.float32))
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    return Fraction(float(numbers.max())), Fraction(float(numbers.min()))


@pytest.mark.parametrize(
    "pair", [("e4m3fn", "e4m3fn"), ("e2m3fn", "e3m2fn"), ("e4m3fn", "e5m2"), ("int8", "int8"), ("e2m1fn", "uint8")]
)
def test_sums_are_exact_as_long_as_float64_holds_them(pair):
    (most_a, least_a), (most_b, least_b) = map(largest, pair)
    terms = int(Fraction(2**53) / (most_a / least_a * most_b / least_b))
    assert sums_are_exact(*pair, max(terms, 1))
    assert not sums_are_exact(*pair, max(terms, 1) + 1)


@pytest.mark.parametrize(
    "number", ["fixed(8,4,clamp=False)", "nvfp4", "scaled(int8,{-1:32},scale=float32)", "posit32", "bfloat16", None]
)
def test_other_formats_promise_nothing(number):
    assert not sums_are_exact(number, "e2m1fn", 2)
    assert sums_are_exact(number, "e2m1fn", 1)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("e5m2", "e5m2", -1), ValueError, "terms=-1; allowed is an int >= 0"),
        (("e5m2", "e5m2", 1.0), TypeError, "terms=1.0 is a float; allowed is an int >= 0"),
        ((5, "e5m2", 1), TypeError, "a=5 is a int; allowed is a Number"),
        (("e5m2", "x", 0), ValueError, "b='x': allowed"),
    ],
)
def test_wrong_arguments_of_sums_are_exact(arguments, error, message):
    with pytest.raises(error, match=message):
        sums_are_exact(*arguments)


@pytest.mark.parametrize("a", ["mxfp8_e4m3", "block(8,dim=0)", "e5m2"])
def test_exact_sums_do_not_depend_on_their_order(a):
    """What formats promise, with data at their limits: any order of the terms has the same bits."""
    rng = np.random.default_rng(3)
    x = np.exp2(rng.integers(-14, 15, (8, 64))).astype(np.float32) * rng.choice(np.float32([1, -1.75]), (8, 64))
    y = rng.choice(np.float32([448, -0.001953125, 240, 1]), (64, 8))
    accumulator = Accumulator(chunk=32 if a.startswith("mx") else 8 if a == "e5m2" else None)
    length, order = accumulator.length(64), np.arange(64)
    for begin in range(0, 64, length):
        rng.shuffle(order[begin : begin + length])
    x, y = qcore.quantize(x, a), qcore.quantize(y, "e4m3fn")
    assert_same_bits(matmul(x[:, order], y[order], accumulator=accumulator), matmul(x, y, accumulator=accumulator))


@pytest.mark.parametrize("name", ["chunks", "sequential", "toward zero", "posit", "rounded products", "float64"])
def test_the_page_has_the_reference(name):
    """docs/products.md's own lines give the bits of the library."""
    names = {}
    exec(re.search("```python\n(import numpy as np\n\n\ndef reference.*?)```", PAGE.read_text(), re.DOTALL)[1], names)
    accumulator, (a, b) = ACCUMULATORS[name], inputs("of formats", 3, 19, 2)
    to_accumulator = partial(qcore.quantize, number=accumulator.number, rounding=accumulator.rounding)
    to_product = {} if accumulator.product is None else {"P": partial(qcore.quantize, number=accumulator.product)}
    found = names["reference"](a, b, accumulator.chunk, to_accumulator, **to_product)
    assert_same_bits(found, matmul(a, b, accumulator=accumulator))
