"""Kernels of blocks whose scales need more than a maximum: micro-exponents, and four over six in a row."""

import numpy as np
import pytest
import torch
from covering import usually
from support import assert_same_bits

import qcore
import qtorch
from qcore import Rounding, parse
from qtorch._rounding.plan import make_plan

TEXTS = [
    "mx4",
    "scaled(e2m1fn,{-1:32},sub_block={-1:8},rule=rceil)",
    "scaled(e4m3fn,{-2:4,-1:16},sub_block={-1:4})",
    "nvfp4(four_over_six=mae)",
]


def inputs(shape, exponent=0):
    """Numbers of all sizes, zeros of both signs, and in the last row a NaN and an infinity."""
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.standard_normal(shape) * np.exp2(rng.integers(-20, 1, shape)), exponent).astype(np.float32)
    x[..., ::7] = 0
    x[0, :5] *= -0.0
    return x


def has_kernel(text, shape):
    plan = make_plan(parse(text), Rounding.NEAREST, torch.float32, None, False)
    matrix, layout = plan.matrices[torch.Size(shape)]
    return matrix is not None and plan.kernels[layout] is not None


def with_specials(shape):
    x = inputs(shape)
    x[-1, 3], x[-1, 40] = np.nan, np.inf
    return x


@pytest.mark.parametrize("text", usually((TEXTS[2],), TEXTS))
def test_kernels_have_the_bits_of_numpy(text):
    """In both usual modes but four over six, whose kernels take GCC seconds each."""
    x = with_specials((12, 64))
    assert has_kernel(text, x.shape)
    for mode in ("nearest", "stochastic")[: 1 if "four_over_six" in text else 2]:
        y = qtorch.quantize(torch.from_numpy(x), text, mode, key=5)
        assert_same_bits(y, qcore.quantize(x, text, mode, key=5))


@pytest.mark.parametrize("text", usually(TEXTS[:1], TEXTS))
def test_kernels_have_the_codes_of_numpy(text):
    x = with_specials((12, 64))
    codes, scales = qtorch.encode(torch.from_numpy(x), text)
    expected, expected_scales = qcore.encode(x, text)
    assert_same_bits(codes, expected)
    pairs = zip(scales, expected_scales, strict=True) if isinstance(scales, tuple) else [(scales, expected_scales)]
    for one, other in pairs:
        assert_same_bits(one, np.asarray(other))


@pytest.mark.parametrize(
    ("text", "shape", "expected"),
    [
        ("mx4", (3, 30), True),  # the last block has seven sub-blocks
        ("mx4", (3, 5, 15), False),  # the last sub-block is half of one
        ("mx4", (2, 70_000), True),
        pytest.param("nvfp4(four_over_six=mae)", (3, 5, 16), True, marks=pytest.mark.heavy),
        ("nvfp4(four_over_six=mae)", (5, 20), False),
        ("nvfp4({-2:16,-1:16},four_over_six=mae)", (32, 32), False),
    ],
)
def test_shapes(text, shape, expected):
    assert has_kernel(text, shape) == expected
    x = inputs(shape)
    assert_same_bits(qtorch.quantize(torch.from_numpy(x), text), qcore.quantize(x, text))


@pytest.mark.heavy
@pytest.mark.parametrize("text", [*TEXTS, "mx9", "mx6", "nvfp4(four_over_six=mse,scale_max=448)"])
@pytest.mark.parametrize("exponent", [-140, -80, 66, 118, 127])
def test_all_modes_at_the_ends(text, exponent):
    x = inputs((16, 64), exponent)
    for mode in qcore.law.rounding.MODES:
        y = qtorch.quantize(torch.from_numpy(x), text, mode, key=5)
        assert_same_bits(y, qcore.quantize(x, text, mode, key=5), mode)
