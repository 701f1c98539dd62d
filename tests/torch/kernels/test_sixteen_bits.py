"""Tensors of 16 bits: the CPU's kernels compute them in lanes of 16 bits, NumPy in lanes of 32."""

import numpy as np
import pytest
import torch
from covering import some, usually
from support import DTYPES, assert_same_bits, to_torch

import qcore
import qtorch
from qcore import BinaryFloat, BlockFloatingPoint, BlockScaled, FixedPoint, FloatingPoint, Posit, Rounding
from qtorch._kernels.laws import rounding_kernel
from qtorch._rounding.plan import plan_for

# A format of each kind on each dtype, and others that share their kernels: with more bits of mantissa than the dtype,
# with numbers below and beyond its own, without subnormals, zero or a sign.
FORMATS = [
    FloatingPoint(5, 2),
    FloatingPoint(8, 7),
    FloatingPoint(9, 2),
    FloatingPoint(3, 12),
    FloatingPoint(5, 10),
    FloatingPoint(4, 3, subnormals=False),
    FixedPoint(8, 4),
    FixedPoint(16, 20),
    FixedPoint(6, -9, signed=False),
    "e4m3fn",
    "e5m2fnuz",
    "e8m0fnu",
    "dlfloat16",
    BinaryFloat(6, 0, specials="finite", subnormals=False),
    "p3109(8,1)",
    "posit8",
    "posit16",
    Posit(5, 0),
    Posit(32, 3),
]
BLOCKS = [
    BlockFloatingPoint(8, 0),
    BlockFloatingPoint(3, 1),
    BlockScaled("e4m3fn", {1: 32}),
    BlockScaled("e5m2", {0: 3}, rule="ceil"),
    BlockScaled("e2m1fn", {0: 16, 1: 16}, rule="even"),
    BlockScaled(FixedPoint(4, 2, symmetric=True), {1: None}, rule="rceil"),
    BlockScaled("e8m0fnu", {1: 7}),
    BlockScaled(BinaryFloat(3, 1, subnormals=False), {1: 16}, rule="round"),
]
MODES = [mode.value for mode in Rounding if mode is not Rounding.STOCHASTIC]
DTYPES_OF_16_BITS = ["bfloat16", "float16"]


def all_numbers(dtype):
    """In a random order: neighbours, which a kernel computes in pairs, are of different sizes."""
    return np.random.default_rng(1).permutation(2**16).astype(np.uint16).view(DTYPES[dtype])


def hard_blocks(dtype, rows=48, columns=75):
    """Blocks with one exponent and some below it, down to subnormal numbers; with zeros, infinities and NaNs."""
    rng = np.random.default_rng(0)
    width = 7 if dtype == "bfloat16" else 10
    most = (1 << 15 - width) - 1
    fields = np.clip(rng.integers(0, most + 1, (rows, 1)) - rng.integers(0, 12, (rows, columns)), 0, most)
    mantissas = rng.choice([0, 1, (1 << width) - 1, *rng.integers(0, 1 << width, 5)], (rows, columns))
    mantissas[(fields == most) & (rng.random((rows, columns)) < 0.9)] = 0
    fields[:8], mantissas[:2] = 0, 0
    signs = rng.integers(0, 2, (rows, columns))
    return (signs << 15 | fields << width | mantissas).astype(np.uint16).view(DTYPES[dtype])


def compare(number, mode, x):
    assert_same_bits(qtorch.quantize(to_torch(x), number, mode), qcore.quantize(x, number, mode), f"{number}, {mode}")


@pytest.mark.parametrize("dtype", DTYPES_OF_16_BITS)
def test_all_numbers_to_nearest(dtype):
    for number in FORMATS:
        compare(number, "nearest", all_numbers(dtype))


@pytest.mark.parametrize("dtype", usually(DTYPES_OF_16_BITS[:1], DTYPES_OF_16_BITS))
def test_blocks_to_nearest(dtype):
    for number in BLOCKS[DTYPES_OF_16_BITS.index(dtype) * 2 :: 4]:
        compare(number, "nearest", hard_blocks(dtype))


@pytest.mark.heavy
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES_OF_16_BITS)
def test_all_modes(dtype, mode):
    for number in FORMATS:
        compare(number, mode, all_numbers(dtype))
    for number in BLOCKS:
        compare(number, mode, hard_blocks(dtype))


@pytest.mark.parametrize("dtype", DTYPES_OF_16_BITS)
def test_strides_and_odd_lengths(dtype):
    numbers = to_torch(all_numbers(dtype))
    views = numbers[1:], numbers[3:-5:7], numbers.view(256, 256).T, numbers.view(16, 256, 16)[:, 1:, ::2]
    for x in views:
        for number in (FORMATS[0], BLOCKS[0]):
            x_as_array = all_numbers(dtype)[torch.arange(2**16).as_strided(x.shape, x.stride(), x.storage_offset())]
            assert_same_bits(qtorch.quantize(x, number), qcore.quantize(x_as_array, number))


def test_lanes_are_as_narrow_as_the_numbers():
    """Random words, codes, and what has more bits than the dtype are computed in 32 bits."""

    def lane_bits(number, mode, dtype, coded=False):
        return plan_for(number, mode, dtype, None, coded).kernels.compiled[0].carrier.lane_bits

    for dtype in (torch.bfloat16, torch.float16):
        assert lane_bits(FORMATS[0], "nearest", dtype) == lane_bits(BLOCKS[0], "up", dtype) == 16
        assert lane_bits(FORMATS[0], "stochastic", dtype) == lane_bits("e4m3fn", "nearest", dtype, True) == 32
        assert lane_bits("nvfp4", "nearest", dtype) == lane_bits(FixedPoint(8, 4, wrap=True), "nearest", dtype) == 32
    assert lane_bits(FORMATS[0], "nearest", torch.float32) == 32
    assert lane_bits(FORMATS[0], "nearest", torch.float64) == 64


@some((1, 1), text=["nvfp4({1:16})", "nvfp4({0:16})", "nvfp4({1:5})"], dtype=DTYPES_OF_16_BITS)
def test_nvfp4_compares_elements_in_their_own_bits(text, dtype):
    """All numbers, in an order that puts small ones beside large ones; and the kernel has maxima of 16 bits."""
    numbers = all_numbers(dtype).reshape(256, 256)
    x = numbers[:, (np.arange(256) * 37) % 256]
    assert_same_bits(qtorch.quantize(to_torch(x), text), qcore.quantize(x, text))
    program = plan_for(text, "nearest", to_torch(x).dtype, None, False).kernels.compiled[0]
    assert rounding_kernel(program, "tiles").lane == "int16"
