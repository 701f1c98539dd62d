"""Blocks whose scales are numbers of a format, with and without a scale of the array, against exact fractions."""

import numpy as np
import pytest
from oracle_float_scale import levels
from support import assert_same_bits

import qcore
from qcore import BlockScaled

FORMATS = {"int8": "fixed(8,0)", "uint4": "fixed(4,0,signed=False)"}
CASES = [  # element, scale, rule, whether the array has a scale
    ("e2m1fn", "e4m3fn", "te", True),
    ("e2m1fn", "e5m2", "te", True),
    ("e2m1fn", "e5m2", "torchao_0_16", True),
    ("e2m1fn", "e4m3fn", "torchao_0_18", True),
    ("e4m3fn", "e4m3fn", "te", True),
    ("int8", "e5m2", "torchao_0_18", True),
    ("e4m3fnuz", "e5m2", "torchao_0_16", True),
    ("e2m1fn", "e4m3fn", "te", False),
    ("e2m1fn", "bfloat16", "te", False),
    ("e5m2", "bfloat16", "torchao_0_16", False),
    ("uint4", "e4m3fn", "torchao_0_18", False),
]


def number_of(element, scale, rule, whole, width=8):
    tensor_scale = "float32" if whole else None
    return BlockScaled(FORMATS.get(element, element), {-1: width}, rule, scale, tensor_scale=tensor_scale)


def rows(exponent):
    """Rows of all sizes below 2^exponent, with zeros, NaN and infinity; the last block of a row is short."""
    random = np.random.default_rng(exponent + 200)
    x = random.standard_normal((12, 20)) * 2.0 ** -random.integers(0, 24, (12, 1))
    with np.errstate(over="ignore"):
        x = np.ldexp(np.clip(x, -3.9, 3.9), exponent - 2).astype(np.float32)
    x[2], x[3, :8], x[4, 5], x[5, 10] = 0, -0.0, np.nan, np.inf
    x[6, :8] = np.ldexp(np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6]), exponent - 3)
    return x


@pytest.mark.parametrize("mode", ["nearest", "up", "toward_zero"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_equals_fractions(case, mode):
    element, scale, rule, whole = case
    number = number_of(*case)
    for exponent in (-146, -118, -115, 0, 128):
        x = rows(exponent)
        expected, scales = levels(x, 8, element, scale, rule, whole, mode)
        actual = qcore.quantize(x, number, mode)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected), f"{exponent}")
        if element in ("int8", "uint4", "e4m3fnuz"):  # which have no -0
            expected[expected == 0] = actual[expected == 0] = 0
        there = ~np.isnan(expected)
        assert_same_bits(actual[there], expected[there], f"{exponent}")
        codes, found = qcore.encode(x, number, mode)
        decoded = qcore.decode(codes, number, scales=found)
        np.testing.assert_array_equal(decoded[there], actual[there], f"{exponent}")
        found = qcore.decode(found[0] if whole else found, scale).ravel()
        assert [None if np.isnan(one) else one for one in found.tolist()] == scales


def test_widths_of_scales():
    x = np.ones((2, 16), np.float32)
    for scale, dtype in (("e4m3fn", np.uint8), ("bfloat16", np.uint16), ("float16", np.uint16), ("e3m4", np.uint8)):
        number = BlockScaled("e2m1fn", {-1: 8}, scale=scale)
        codes, scales = qcore.encode(x, number)
        assert (scales.dtype, scales.shape) == (dtype, (2, 2))
        assert qcore.encode(x[:0], number)[1].dtype == dtype
        assert_same_bits(qcore.decode(codes, number, scales=scales), qcore.quantize(x, number))


def test_unsigned_scales():
    """UE4M3 has the codes of e4m3fn without a sign."""
    x = rows(0)
    signed, unsigned = (
        BlockScaled("e2m1fn", {-1: 8}, scale=scale, tensor_scale="float32")
        for scale in ("e4m3fn", "binary(4,3,specials=fn,signed=False)")
    )
    assert_same_bits(qcore.quantize(x, unsigned), qcore.quantize(x, signed))
    np.testing.assert_array_equal(qcore.encode(x, unsigned)[1][0], qcore.encode(x, signed)[1][0])


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("scaled(e2m1fn,{-1:32},scale=e5m2)", BlockScaled("e2m1fn", {-1: 32}, scale="e5m2")),
        (
            "scaled(int8,{-1:16},rule=torchao_0_16,scale=bfloat16)",
            BlockScaled("int8", {-1: 16}, "torchao_0_16", "bfloat16"),
        ),
        (
            "scaled(e4m3fn,{-1:16},scale=e4m3fn,tensor_scale=float32)",
            BlockScaled("e4m3fn", {-1: 16}, scale="e4m3fn", tensor_scale="float32"),
        ),
        ("nvfp4", BlockScaled("e2m1fn", {-1: 16}, scale="e4m3fn", tensor_scale="float32")),
        ("mxfp4", BlockScaled("e2m1fn", {-1: 32}, scale="e8m0fnu")),
    ],
)
def test_texts(text, number):
    assert (number.text, qcore.parse(text)) == (text, number)
