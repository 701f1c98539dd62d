"""NVFP4 of Transformer Engine against a NumPy copy of its reference, and its neighbours among the laws of blocks."""

import re

import numpy as np
import pytest
from oracle_nvfp4 import E2M1, E4M3, four_over_six, split, transformer_engine
from support import assert_same_bits

import qcore
from qcore import NVFP4, BlockScaled

TILES = [(1, 16), (16, 16)]


def matrix(exponent, seed=0):
    """Rows of all sizes below 2^exponent, with zeros, and with ties where the array's scale is a power of two."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((48, 96)) * 2.0 ** -random.integers(0, 20, (48, 1))
    x = np.clip(x / 4, -0.9, 0.9)
    x[16:32, 16:32], x[40, 32:48] = 0, -0.0
    x[0, :16] = np.repeat([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6], 2) / 8
    with np.errstate(over="ignore"):
        x = np.ldexp(x, exponent).astype(np.float32)
    x[8, 5] = np.ldexp(np.float32(0.984375), exponent)  # A / 2688 is a power of two
    return x


# From numbers that are all subnormal, over those for which g is the largest float32 (A below 2^-116) and 1 / g is
# subnormal (below 2^-114), to the end of the range.
EXPONENTS = [-148, -140, -128, -124, -118, -117, -116, -115, -114, -113, -40, 0, 1, 2, 77, 128]


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_equals_transformer_engine(exponent, tile):
    x, number = matrix(exponent, exponent + 200), NVFP4({-2: tile[0], -1: tile[1]})
    codes, (scales, whole) = qcore.encode(x, number)
    expected, expected_scales, expected_whole = transformer_engine(x, tile)
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(scales, expected_scales)
    assert_same_bits(whole, expected_whole)


@pytest.mark.parametrize(("measure", "scale_max"), [("mae", None), ("mae", 448), ("mse", None), ("mse", 448)])
@pytest.mark.parametrize("block", [{-1: 16}, {-2: 16}, {-2: 16, -1: 16}], ids=str)
def test_four_over_six_equals_transformer_engine(block, measure, scale_max):
    """Where errors, or their squares, are normal numbers of float32, or infinite."""
    number = NVFP4(block, four_over_six=measure, scale_max=scale_max)
    exponents = (-80, -40, 0, 1, 90, 117, 120, 128) if measure == "mae" else (-30, 0, 1, 30, 62, 64, 66, 128)
    eighths = np.random.default_rng(7).integers(-8, 9, (48, 96)).astype(np.float32) / 8
    fours = 0
    for x in (*(matrix(one, one + 200) for one in exponents), eighths):
        codes, (scales, whole) = qcore.encode(x, number)
        if block == {-2: 16}:  # the reference has rows
            x, codes, scales = x.T, codes.T, scales.T
        tile = (1 if len(block) == 1 else 16, 16)
        expected, expected_scales, expected_whole = four_over_six(x, tile, measure, scale_max or 256)
        np.testing.assert_array_equal(codes, expected)
        np.testing.assert_array_equal(scales, expected_scales)
        assert_same_bits(whole, expected_whole)
        fours += np.count_nonzero(split(codes & 7, tile).max((1, 3)) == 6)  # the code of 4
    assert fours > (10 if len(block) == 1 else 0)


def test_four_over_six_does_not_depend_on_the_rounding():
    x, number = matrix(0), NVFP4(four_over_six="mae")
    scales = [qcore.encode(x, number, mode, key=1)[1][0] for mode in ("nearest", "up", "stochastic")]
    np.testing.assert_array_equal(scales[1], scales[0])
    np.testing.assert_array_equal(scales[2], scales[0])


def test_four_over_six_of_parts_of_tiles_and_of_numbers_that_are_none():
    """Missing elements count as zeros, and a NaN or an infinity does not reach other blocks."""
    for block in ({-1: 16}, {-2: 16, -1: 16}):
        x, number = matrix(0), NVFP4(block, four_over_six="mse")
        whole = qcore.quantize(x, number)
        for rows, columns in ((16, 20), (5, 16), (40, 1)):
            part = np.zeros_like(x)
            part[:rows, :columns], part[-1, -1] = x[:rows, :columns], np.abs(x).max()
            cut = np.concatenate([part[:rows, :columns], np.zeros_like(part[:rows, :columns])])
            cut[-1, 0] = np.abs(x).max()
            rest = qcore.quantize(part, number)[:rows, :columns]
            if rows % 16 == 0 or len(block) == 1:
                assert_same_bits(qcore.quantize(cut, number)[:rows], rest)
        x[0, 0], x[17, 17] = np.nan, -np.inf
        spoiled = qcore.quantize(x, number)
        assert np.isnan(spoiled).sum() == 2 * 16 * block.get(-2, 1)
        same = ~np.isnan(spoiled)
        assert_same_bits(spoiled[same], whole[same])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"four_over_six": "max"}, "four_over_six='max'; allowed are"),
        ({"four_over_six": "mae", "law": "torchao_0_16"}, "rule='torchao_0_16'"),
        ({"four_over_six": "mae", "block": {-1: 32}}, "blocks of 16 along one axis or {-2: 16, -1: 16}"),
        ({"four_over_six": "mae", "scale_max": 300}, "scale_max=300; allowed are 256 and 448"),
        ({"scale_max": 256}, "scale_max=256 with four_over_six=None"),
    ],
)
def test_wrong_arguments_of_four_over_six(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        NVFP4(**arguments)


def test_values_are_elements_times_both_scales():
    x = matrix(0)
    codes, scales, whole = transformer_engine(x)
    numbers = np.where(codes > 7, -E2M1[codes & 7], E2M1[codes & 7])
    expected = numbers * np.repeat(E4M3[scales] * whole, 16, axis=1)
    assert_same_bits(qcore.quantize(x, "nvfp4"), expected.astype(np.float32))


@pytest.mark.parametrize("exponent", [-140, -116, -114, 0, 128])
@pytest.mark.parametrize("mode", ["nearest", "stochastic", "toward_zero", "up"])
@pytest.mark.parametrize("law", ["te", "torchao_0_16", "torchao_0_18"])
def test_codes_are_those_of_the_numbers(exponent, mode, law):
    x, number = matrix(exponent), NVFP4(law=law)
    codes, scales = qcore.encode(x, number, mode, key=3)
    assert_same_bits(qcore.decode(codes, number, scales=scales), qcore.quantize(x, number, mode, key=3))


def test_zeros_and_numbers_that_are_none():
    """What Transformer Engine does not define: NaN and infinity make their block NaN, and do not count for A."""
    x = matrix(0)
    x[2, 3], x[3, 20] = np.nan, -np.inf
    y, (_, whole) = qcore.quantize(x, "nvfp4"), qcore.encode(x, "nvfp4")[1]
    assert whole == transformer_engine(np.nan_to_num(x, posinf=0, neginf=0))[2]
    nan = np.zeros_like(x, bool)
    nan[2, :16] = nan[3, 16:32] = True
    np.testing.assert_array_equal(np.isnan(y), nan)
    assert qcore.encode(np.zeros((1, 16), np.float32), "nvfp4")[1][1] == 1
    small = np.float32([[2688.0] * 16, [-(2.0**-12)] * 16])  # a scale of 0: the largest elements, times 0
    codes, (scales, _) = qcore.encode(small, "nvfp4")
    assert (codes[1].tolist(), scales[1, 0]) == ([15] * 16, 0)
    assert_same_bits(qcore.quantize(small, "nvfp4")[1], np.float32([-0.0] * 16))


def test_laws_differ():
    """On multiples of 1/8 torchao 0.18 rounds ties in other ways, on rows of mixed size NVIDIA's scales do."""
    ties = np.random.default_rng(0).integers(-64, 65, (256, 256)).astype(np.float32) / 8
    te, torchao, main = (qcore.encode(ties, NVFP4(law=law))[0] for law in ("te", "torchao_0_16", "torchao_0_18"))
    assert ((te == torchao).all(), (main == torchao).all()) == (True, False)
    mixed = matrix(0)
    scales = [qcore.encode(mixed, NVFP4(law=law))[1][0] for law in ("te", "torchao_0_16")]
    assert (scales[0].min(), scales[1].min()) == (0, 8)  # 2^-6 is torchao's least


def test_names_of_torchao_without_a_version():
    """The law "torchao" was said to be 0.18's and was 0.16's; "torchao_main" is that of 0.18."""
    assert qcore.parse("nvfp4(law=torchao_main)") == NVFP4(law="torchao_main") == NVFP4(law="torchao_0_18")
    old = "scaled(int8,{-1:16},rule=torchao,scale=bfloat16)"
    for call in (lambda: NVFP4(law="torchao"), lambda: qcore.parse("nvfp4(law=torchao)"), lambda: qcore.parse(old)):
        with pytest.raises(ValueError, match="says no version of torchao; allowed are torchao_0_16, whose bits"):
            call()


def test_scales_that_are_powers_of_two():
    """Transformer Engine's `pow_2_scales`: 2^ceil(log2(a / 6)), without a scale of the array."""
    x = matrix(0)
    codes, scales = qcore.encode(x, BlockScaled("e2m1fn", {-1: 16}, "rceil"))
    largest = np.abs(x.reshape(48, 6, 16)).max(2, keepdims=True)
    exponent = np.where(largest > 0, np.ceil(np.log2(np.maximum(largest, 1e-30) / np.float32(6))), -127)
    np.testing.assert_array_equal(scales, exponent[..., 0] + 127)
    y = np.minimum(np.abs(x.reshape(48, 6, 16)) / np.float32(2) ** exponent, 6)
    nearest = np.abs(y[..., None] - E2M1).argmin(-1)  # the first of two at a tie
    tie = np.isin(y, (E2M1[1:] + E2M1[:-1]) / 2)
    assert ((codes.reshape(y.shape) & 7) == nearest + (tie & (nearest % 2 == 1))).all()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: NVFP4(law="amd"), ValueError, "law='amd'; allowed are te, torchao_0_16, torchao_0_18"),
        (lambda: NVFP4({-1: 0}), ValueError, r"block\[-1\]=0; allowed is an int from 1 to"),
        (lambda: qcore.parse("nvfp4(law=amd)"), ValueError, "allowed here is te or torchao_0_16 or torchao_0_18"),
        (
            lambda: BlockScaled("e2m1fn", {-1: 16}, "te"),
            ValueError,
            "rule='te' with scale='e8m0'; allowed are floor, c",
        ),
        (
            lambda: BlockScaled("e2m1fn", {-1: 16}, "ceil", scale="e4m3fn"),
            ValueError,
            "rule='ceil' with scale='e4m3fn'; allowed are te, torchao_0_16, torchao_0_18",
        ),
        (lambda: BlockScaled("e2m1fn", {-1: 16}, scale="int8"), TypeError, "scale=FixedPoint.*; allowed are 'e8m0'"),
        (lambda: BlockScaled("e2m1fn", {-1: 16}, scale=8), TypeError, "scale=8; allowed are 'e8m0', 'float32', a Flo"),
        (lambda: BlockScaled("e2m1fn", {-1: 16}, scale="tf32"), ValueError, "scale=BinaryFloat.*at most 16 bits"),
        (
            lambda: BlockScaled("e2m1fn", {-1: 16}, scale="bfloat16", tensor_scale="float32"),
            ValueError,
            "tensor_scale='float32' with scale='bfloat16'; allowed are scales of a format with at most 7 significant",
        ),
        (
            lambda: BlockScaled("e2m1fn", {-1: 16}, tensor_scale="float32"),
            ValueError,
            "tensor_scale='float32' with scale='e8m0'; allowed",
        ),
        (
            lambda: BlockScaled("e2m1fn", {-1: 16}, scale="e4m3fn", tensor_scale="float64"),
            ValueError,
            "tensor_scale='float64'; allowed are float32",
        ),
        (
            lambda: BlockScaled("float16", {-1: 16}, scale="e4m3fn", history=4),
            ValueError,
            "history=4 with scale=.*; allowed is a history with scale='float32'",
        ),
        (lambda: BlockScaled("posit8", {-1: 16}, scale="e4m3fn"), TypeError, "element=Posit"),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()
