"""The law against an oracle on exact integers that shares no code with it, and against other people's casts."""

from itertools import product

import ml_dtypes
import numpy as np
import oracle
import pytest
from covering import some
from support import DTYPES, assert_same_bits, spec, words

import qcore
from benchmarks.support.inputs import FORMATS, MODES, MORE, hard_inputs
from qcore import BinaryFloat, BlockFloatingPoint, FixedPoint, FloatingPoint
from qcore.law.carrier import CARRIERS

RARE = (
    FloatingPoint(11, 3),
    FloatingPoint(8, 3, bias=130),
    FloatingPoint(4, 4, bias=-100),
    BinaryFloat(3, 0, specials="finite"),
    BinaryFloat(4, 3, signed=False),
    BinaryFloat(9, 4, subnormals=False),
    FixedPoint(31, 10, wrap=True),
    FixedPoint(9, -100, wrap=True),
    FixedPoint(12, 20, wrap=True),
    FixedPoint(6, 1, False, signed=False),
    FixedPoint(9, 3, signed=False, wrap=True),
    *(FloatingPoint(exp, man) for exp, man in ((1, 0), (1, 1), (2, 0), (3, 23), (4, 0), (7, 23), (9, 0), (12, 9))),
    *(FixedPoint(wl, fl, clamp, symmetric) for wl, fl, clamp, symmetric in ((1, 0, True, False), (1, 3, True, True))),
    *(FixedPoint(wl, fl) for wl, fl in ((30, 12), (25, -4), (6, 14), (40, 14))),
    *(BlockFloatingPoint(wl, dim) for wl, dim in ((3, 0), (12, 1), (24, 2), (25, -1))),
)


def sample(arrays, number, rng):
    """Few enough elements for the oracle, whose time is microseconds for each; all blocks along a dimension."""
    if getattr(number, "dim", -1) >= 0:
        return [array[tuple(slice(24 if axis == number.dim else 4) for axis in range(3))] for array in arrays]
    if arrays[0].ndim == 3:
        return [array[:, :16, :24] for array in arrays]
    return [rng.choice(array, 60) for array in arrays]


# For blocks with other scales see tests/core/formats.
ALL = [number for number in FORMATS + MORE + RARE if getattr(number, "scale", "e8m0") == "e8m0"]


def cases():
    """An ordinary run takes every fourth mode of a format in one dtype; formats take dtypes and modes by turns."""
    for (i, number), (j, dtype), part in product(enumerate(ALL), enumerate(DTYPES), range(4)):
        chosen = (i + j) % 4 == 0 and (i // 4 + j) % 4 == part
        marks = [] if chosen else [pytest.mark.heavy]
        yield pytest.param(number, dtype, MODES[part::4], id=f"{number}-{dtype}-{part}", marks=marks)


@pytest.mark.parametrize(("number", "dtype", "modes"), list(cases()))
def test_equals_the_oracle(number, dtype, modes):
    rng = np.random.default_rng(7)
    try:
        number.reduce(CARRIERS[dtype])
    except ValueError:
        pytest.skip(f"{number} has no numbers in {dtype}")
    for array in sample(hard_inputs(number, 24 * 300, DTYPES[dtype]), number, rng):
        for mode in modes:
            random_bits = int(rng.integers(1, 25))
            actual = qcore.quantize(array, number, mode, key=11, random_bits=random_bits)
            expected = oracle.quantize(array, spec(number), mode, words(11, array.shape), random_bits)
            assert_same_bits(actual, expected, f"{number} {mode} {random_bits}")


@some(
    (0, 1),
    (2, 0),
    number=[FloatingPoint(5, 2), FloatingPoint(8, 3), FixedPoint(8, 4)],
    dtype=["float16", "bfloat16"],
)
def test_equals_the_oracle_on_all_half_codes(number, dtype):
    codes = np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype])
    for mode in ("nearest", "stochastic"):
        actual = qcore.quantize(codes, number, mode, key=3)
        assert_same_bits(actual, oracle.quantize(codes, spec(number), mode, words(3, codes.shape)), mode)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_eight_bits_of_exponent_and_all_of_mantissa_are_the_identity(dtype):
    x = hard_inputs(FloatingPoint(8, 23), 600_000, DTYPES[dtype])[0]
    for mode in MODES:
        assert_same_bits(qcore.quantize(x, FloatingPoint(8, 23), mode, key=5), x, mode)


CASTS = {
    # format: (dtype, largest magnitude up to which the format has the same numbers)
    FloatingPoint(2, 1): (ml_dtypes.float4_e2m1fn, np.inf),
    FloatingPoint(2, 3): (ml_dtypes.float6_e2m3fn, np.inf),
    FloatingPoint(3, 2): (ml_dtypes.float6_e3m2fn, np.inf),
    FloatingPoint(3, 4): (ml_dtypes.float8_e3m4, 15.5),
    FloatingPoint(4, 3): (ml_dtypes.float8_e4m3fn, 448),
    FloatingPoint(5, 2): (ml_dtypes.float8_e5m2, 57344),
    FloatingPoint(5, 10): (np.float16, 65504),
    FloatingPoint(8, 7): (ml_dtypes.bfloat16, np.inf),
}


@pytest.mark.parametrize("number", CASTS, ids=str)
def test_nearest_equals_casts(number):
    dtype, largest = CASTS[number]
    x = hard_inputs(number, 600_000)[0]
    x = x[np.abs(x) <= largest]  # no NaN
    with np.errstate(over="ignore"):
        expected = x.astype(dtype).astype(np.float32)
    assert_same_bits(qcore.quantize(x, number, "nearest"), expected)


@pytest.mark.parametrize(
    ("number", "x", "expected"),
    [
        # seeds/000, chapter 1: the printed numbers of its deterministic cells
        (FloatingPoint(5, 2), [0.1241, 0.3602, 0.7104, 0.8344, 0.0211], [0.125, 0.375, 0.75, 0.875, 0.01953125]),
        (FloatingPoint(5, 2), [0.1051, 0.2755, 0.0375, 0.1643, 0.1883], [0.109375, 0.25, 0.0390625, 0.15625, 0.1875]),
        (FloatingPoint(5, 2), [0.2817, -0.1309, -0.4253, -0.2603], [0.3125, -0.125, -0.4375, -0.25]),
        # QPyTorch's ranges: the top exponent holds numbers, and infinities saturate
        (FloatingPoint(4, 3), [1e9, -np.inf], [480, -480]),
        (FloatingPoint(3, 2), [1e9, -np.inf], [28, -28]),
        (FloatingPoint(4, 7), [1e9, -np.inf], [510, -510]),
        (FixedPoint(4, 2), [np.inf, -np.inf, -0.1], [1.75, -2.0, -0.0]),
        (FixedPoint(4, 2, symmetric=True), [-9], [-1.75]),
        (FixedPoint(4, 2, clamp=False), [np.inf, 1000.13], [np.inf, 1000.25]),
        # QPyTorch's users' issue 48: here man=23 does not flip the sign
        (FloatingPoint(8, 23), [3.0], [3.0]),
    ],
)
def test_known_numbers(number, x, expected):
    assert_same_bits(qcore.quantize(np.float32(x), number, "nearest"), np.float32(expected))


def test_16_bit_carriers_saturate_at_the_largest_number_of_format_and_carrier():
    x = np.float16([np.inf, -65504])
    assert_same_bits(qcore.quantize(x, FloatingPoint(5, 2), "nearest"), np.float16([57344, -57344]))
    # 65504 is no multiple of 256; 2^30 - 1 has more bits than the carrier
    assert_same_bits(qcore.quantize(x, FixedPoint(16, -8), "nearest"), np.float16([65280, -65280]))
    assert_same_bits(qcore.quantize(np.float32([np.inf]), FixedPoint(31, 0), "nearest"), np.float32([2**30 - 64]))


def test_ties():
    x = np.float32([0.5, 1.5, -0.5, -1.5])
    expected = {
        "nearest": [0, 2, -0.0, -2],
        "nearest_away": [1, 2, -1, -2],
        "nearest_up": [1, 2, -0.0, -1],
        "nearest_down": [0, 1, -1, -2],
        "nearest_zero": [0, 1, -0.0, -1],
        "toward_zero": [0, 1, -0.0, -1],
        "away": [1, 2, -1, -2],
        "up": [1, 2, -0.0, -1],
        "down": [0, 1, -1, -2],
        "odd": [1, 1, -1, -1],
    }
    for mode, values in expected.items():
        assert_same_bits(qcore.quantize(x, FixedPoint(8, 0), mode), np.float32(values), mode)


def test_a_nan_keeps_its_bits_and_does_not_enter_its_block():
    x = np.uint32([0x7FC00001, 0xFF800123, 0x3F800000, 0x3F9EF9DB]).view(np.float32)
    y = qcore.quantize(x, BlockFloatingPoint(4), "nearest")
    assert_same_bits(y, np.uint32([0x7FC00001, 0xFF800123, 0x3F800000, 0x3FA00000]).view(np.float32))
