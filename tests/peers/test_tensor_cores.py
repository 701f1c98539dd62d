"""Aligned accumulators against what was published of tensor cores, and exact sums against torch's integer products.

The vectors are those that Fasi et al., "Numerical behavior of NVIDIA tensor cores" (2021), and Khattak and Mikaitis
(arXiv:2512.07004) use to tell the designs apart; results are as they report them. NumPy computes them: other packages
have its bits (`tests/parity/test_products.py`).
"""

import numpy as np
import pytest
import torch
from support import assert_same_bits

import qtorch
from qcore import Accumulator
from qcore.linalg import matmul

VOLTA = Accumulator(chunk=4, fraction_bits=23, output="toward_zero")
AMPERE = Accumulator(chunk=8, fraction_bits=24, output="toward_zero")
HOPPER = Accumulator(chunk=16, fraction_bits=25, output="toward_zero")
HOPPER_FP8 = Accumulator("binary(8,13)", chunk=32, fraction_bits=13, output="toward_zero")
DESIGNS = {"Volta": VOLTA, "Ampere": AMPERE, "Hopper": HOPPER}


def dot(accumulator, a, b=None):
    """One sum of products; b is ones if it is not given."""
    a = np.float32(a)
    b = np.ones_like(a) if b is None else np.float32(b)
    return float(matmul(a[None], b[:, None], accumulator=accumulator)[0, 0])


@pytest.mark.parametrize(("name", "bits"), [("Volta", 23), ("Ampere", 24), ("Hopper", 25)])
def test_extra_bits_of_the_alignment(name, bits):
    """1 + 2^-f + 2^-f - 1: f bits of fraction survive the alignment, one more does not."""
    for f in (23, 24, 25, 26):
        small = 2.0 ** -(f // 2), 2.0 ** -(f - f // 2)  # products of two float16 numbers
        a, b = [1, small[0], small[0], -1], [1, small[1], small[1], 1]
        assert dot(DESIGNS[name], a, b) == (2.0 ** (1 - f) if f <= bits else 0)


@pytest.mark.parametrize("sign", [1, -1])
def test_alignment_and_result_are_cut_off_toward_zero(sign):
    """Fasi et al., section 3: 1 + 2^-24 + 2^-24 + 2^-24 loses what lies below; to nearest it would be 1 + 2^-23."""
    tiny = 2.0**-12
    a, b = [sign, sign * tiny, sign * tiny, sign * tiny], [1, tiny, tiny, tiny]
    assert dot(VOLTA, a, b) == sign  # no extra bit
    assert dot(AMPERE, a, b) == sign * (1 + 2.0**-23)  # one extra bit: the sum 1 + 3 * 2^-24 is cut off
    assert dot(Accumulator(), a, b) == sign * (1 + 2.0**-22)  # to nearest, ties to even


@pytest.mark.parametrize(("name", "terms"), [("Volta", 4), ("Ampere", 8), ("Hopper", 16)])
def test_terms_of_one_step_have_no_order(name, terms):
    """Within a step any permutation has the same bits; the largest exponent counts wherever it stands."""
    rng = np.random.default_rng(0)
    a, b = (np.float16(rng.standard_normal(terms) * 2.0 ** rng.integers(-8, 9, terms)) for _ in range(2))
    orders = [rng.permutation(terms) for _ in range(20)]
    assert len({dot(DESIGNS[name], a[order], b[order]) for order in orders}) == 1


@pytest.mark.parametrize(("name", "terms"), [("Volta", 4), ("Ampere", 8), ("Hopper", 16)])
def test_sums_are_not_monotonic(name, terms):
    """Fasi et al.: numbers too small to count beside 1 count beside 1 - 2^-24, and make more of it."""
    zeros, tiny = [0.0] * (terms - 1), [2.0 ** -(DESIGNS[name].fraction_bits + 1)] * terms
    assert dot(DESIGNS[name], [1, *zeros, *tiny]) == 1
    assert dot(DESIGNS[name], [1 - 2.0**-12, *zeros, *tiny], [1 + 2.0**-12, *zeros, *np.ones(terms)]) == 1 + 2.0**-23


@pytest.mark.parametrize(("name", "terms"), [("Volta", 4), ("Ampere", 8), ("Hopper", 16)])
def test_steps_are_sequential(name, terms):
    """What a later step adds cannot be saved by cancellation before it: 1, then -1 and a small number together."""
    tiny = [2.0**-14] + [0.0] * (terms - 1)
    first, last = [1.0] + [0.0] * (terms - 1), [-1.0] + [0.0] * (terms - 1)
    squares = [*first, *tiny, *last], [*np.sign(first), *tiny, *np.abs(last)]
    assert dot(DESIGNS[name], *squares) == 0  # 1 + 2^-28 is 1 before -1 comes
    together = [1.0, 2.0**-14, -1.0, 0.0], [1.0, 2.0**-8, 1.0, 0.0]
    assert dot(DESIGNS[name], *together) == 2.0**-22


def test_fp8_on_hopper_keeps_13_bits():
    """DeepSeek-V3's reason to promote sums: 13 bits of fraction, in the alignment and in the result."""
    assert dot(HOPPER_FP8, [1, 2.0**-13]) == 1 + 2.0**-13
    assert dot(HOPPER_FP8, [1, 2.0**-7, 2.0**-7], [1, 2.0**-7, 2.0**-7]) == 1
    assert dot(HOPPER, [1, 2.0**-7, 2.0**-7], [1, 2.0**-7, 2.0**-7]) == 1 + 2.0**-13


def test_products_of_float16_are_exact_and_subnormals_count():
    """Fasi et al., sections 3.1 and 3.2."""
    one = float(np.float16(1 + 2.0**-10))
    assert dot(VOLTA, [one], [one]) == one * one
    least = 2.0**-24  # the smallest subnormal float16 number
    assert dot(VOLTA, [least, least], [least, 1]) == least  # their product is below the alignment
    assert dot(VOLTA, [least], [least]) == 2.0**-48


def test_integer_products_are_torchs():
    """Sums of int8 products in torch's integers, of a length beyond what float32 sums hold exactly."""
    rng = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-127, 128, shape, generator=rng, dtype=torch.int8) for shape in ((24, 1088), (1088, 40)))
    expected = torch._int_mm(a, b)
    assert expected.abs().max() < 2**24  # so that float32 holds the results
    found = qtorch.linalg.matmul(a.float(), b.float(), operands=("int8", "int8"))
    assert_same_bits(found, expected.float())
