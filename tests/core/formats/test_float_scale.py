"""Blocks with scales in float32, against exact fractions; they are what products do to their operands."""

import numpy as np
import pytest
from oracle_float_scale import float_scaled
from support import assert_same_bits

import qcore
from qcore import BlockScaled, Operand
from qcore.linalg.namespace import Float64
from qcore.linalg.scaling import prepared

ELEMENTS = ["e4m3fn", "e5m2", "e2m1fn", "e4m3fnuz", "int8", "uint4", "float16"]
FORMATS = {"int8": "fixed(8,0)", "uint4": "fixed(4,0,signed=False)"}


def number_of(element, block):
    return BlockScaled(FORMATS.get(element, element), block, scale="float32")


def rows(seed):
    """Rows of all magnitudes, with zeros, ties, NaN and infinity."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((24, 12)) * 2.0 ** -random.integers(0, 12, (24, 12))
    with np.errstate(over="ignore"):
        x = np.ldexp(x, random.integers(-149, 126, (24, 1))).astype(np.float32)
    x[0], x[1], x[2, 3], x[3, 5], x[4, :6] = 0, -0.0, np.nan, -np.inf, 0
    x[5, :] = np.arange(12) / 2  # ties, where the scale is a power of two
    x[5, 0] = 448
    x[6, 0], x[7, 0], x[8] = np.finfo(np.float32).max, 2.0**-149, 2.0**-149
    return x


@pytest.mark.parametrize("mode", ["nearest", "toward_zero", "up", "down"])
@pytest.mark.parametrize("element", ELEMENTS)
def test_equals_fractions(element, mode):
    x = rows(ELEMENTS.index(element))
    expected = np.stack([float_scaled(row, element, mode) for row in x])
    actual = qcore.quantize(x, number_of(element, {-1: None}), mode)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    if element in ("int8", "uint4", "e4m3fnuz"):  # which have no -0
        expected[expected == 0] = actual[expected == 0] = 0
    there = ~np.isnan(expected)
    assert_same_bits(actual[there], expected[there])


def test_blocks_are_those_of_other_scales():
    x = rows(1)[8:24]
    for block in ({...: None}, {-1: 5}, {0: 8, 1: 4}, {0: None}):
        tiles = BlockScaled("e4m3fn", block).block_sizes(2)
        tall, wide = (x.shape[axis] if size is None else size for axis, size in enumerate(tiles))
        actual = qcore.quantize(x, number_of("e4m3fn", block))
        for row in range(0, x.shape[0], tall):
            for column in range(0, x.shape[1], wide):
                part = slice(row, row + tall), slice(column, column + wide)
                expected = float_scaled(x[part].ravel(), "e4m3fn", "nearest")
                assert_same_bits(actual[part].ravel(), expected)


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_16_bits_are_float32s_rounded_once_more_and_scales_of_float64_are_float64(dtype, mode):
    x = np.random.default_rng(0).standard_normal((6, 40)).astype(dtype)
    number = number_of("e4m3fn", {-1: None})
    actual = qcore.quantize(x, number, mode, key=7)
    if dtype is np.float16:
        assert_same_bits(actual, qcore.quantize(x.astype(np.float32), number, mode, key=7).astype(np.float16))
        return
    scale = 448 / np.abs(x).max(-1, keepdims=True)
    assert_same_bits(actual, qcore.quantize(x * scale, "e4m3fn", mode, key=7, overflow="saturate") * (1 / scale))


@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_scales_of_operands_are_the_same(mode):
    """Where nothing is subnormal: a product multiplies the same numbers, and its sums with the same r."""
    x = np.random.default_rng(0).standard_normal((12, 40)).astype(np.float32)
    for scale, block in (
        ("scale()", {...: None}),
        ("scale(outer=1)", {-1: None}),
        ("scale(outer=4,terms=8)", {0: 4, 1: 8}),
    ):
        scaled, inverse = prepared(Float64, x, Operand("e4m3fn", scale=scale))
        q = qcore.quantize(scaled, "e4m3fn", mode, key=7)
        inverse = np.broadcast_to(inverse, (1, 1)) if inverse.ndim == 0 else inverse
        spread = np.repeat(np.repeat(inverse, 12 // inverse.shape[0], 0), 40 // inverse.shape[1], 1)
        assert_same_bits(qcore.quantize(x, number_of("e4m3fn", block), mode, key=7), q * spread)


def test_text_and_what_is_refused():
    number = qcore.parse("scaled(e4m3fn,{-1:128},scale=float32)")
    assert number == BlockScaled("e4m3fn", {-1: 128}, scale="float32")
    assert (number.text, number.scale) == ("scaled(e4m3fn,{-1:128},scale=float32)", "float32")
    assert "scale='float32'" in repr(number)
    assert repr(BlockScaled("e4m3fn", {-1: 128})).endswith("rule='floor')")
    for wrong, words in (
        (
            lambda: BlockScaled("e4m3fn", {-1: 4}, scale="float64"),
            "scale=BinaryFloat.*; allowed are 'e8m0', 'float32'",
        ),
        (lambda: BlockScaled("e4m3fn", {-1: 4}, "ceil", "float32"), "rule='ceil' with scale='float32'"),
        (lambda: BlockScaled("bfloat16", {-1: 4}, scale="float32"), "steps of at least 2\\^-100"),
        (lambda: BlockScaled("fixed(30,0)", {-1: 4}, scale="float32"), "at most 24 bits"),
    ):
        with pytest.raises(ValueError, match=words):
            wrong()
