"""Posits: codes as the standard draws them, rounding of codes, and what carriers lack."""

from contextlib import suppress

import ml_dtypes
import numpy as np
import oracle
import pytest
from covering import some
from support import DTYPES, assert_same_bits, spec, words

import qcore
from benchmarks.support.inputs import MODES
from qcore import NAMED, Posit
from qcore.law.carrier import CARRIERS
from qcore.law.tapered import Taper


def test_values_of_the_papers():
    """Gustafson and Yonemoto, 2017: figures 6 and 7 (5 bits, es = 1) and table 3 (the largest posits)."""
    values = qcore.decode(np.arange(16), Posit(5, 1))
    expected = [0, 1 / 64, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1, 1.5, 2, 3, 4, 8, 16, 64]
    assert_same_bits(values, np.float32(expected))
    assert_same_bits(qcore.decode(np.arange(31, 16, -1), Posit(5, 1)), -np.float32(expected[1:]))
    assert np.isnan(qcore.decode(np.array([16]), Posit(5, 1)))
    for number, largest in ((Posit(16, 1), 2.0**28), (Posit(32, 3), 2.0**240), (NAMED["posit32"][0], 2.0**120)):
        ends = qcore.decode(np.array([2 ** (number.bits - 1) - 1, 1]), number, np.float64)
        assert ends.tolist() == [largest, 1 / largest]


def test_the_standards_are_named():
    assert [NAMED[f"posit{bits}"][0] for bits in (8, 16, 32)] == [Posit(8, 2), Posit(16, 2), Posit(32)]


@pytest.mark.parametrize("es", range(6))
@pytest.mark.parametrize("bits", range(2, 17))
def test_decode_then_encode_is_the_identity_on_all_codes(bits, es):
    number, codes = Posit(bits, es), np.arange(1 << bits)
    values = qcore.decode(codes, number, np.float64)
    if bits <= 9:
        assert_same_bits(values, oracle.decode(codes, spec(number), np.float64))
    np.testing.assert_array_equal(qcore.encode(values, number), codes)
    assert_same_bits(qcore.decode(codes - (5 << bits), number, np.float64), values)  # what is above a code is ignored
    assert np.isnan(values).sum() == 1
    assert (values == 0).sum() == 1
    for mode in MODES if bits <= 12 else ("nearest",):
        assert_same_bits(qcore.quantize(values, number, mode, key=1), values, mode)


def test_the_longest_codes_that_float32_holds():
    """They have more bits than a float32 significand, where a leading bit is easily found one too high."""
    number = Posit(28, 2)
    codes = np.random.default_rng(0).integers(0, 1 << 28, 10**5)
    codes = np.concatenate([codes, (1 << np.arange(1, 27)) - 1, (1 << 27) - (1 << np.arange(26)), 1 << np.arange(28)])
    values = qcore.decode(codes, number)
    assert_same_bits(values.astype(np.float64), qcore.decode(codes, number, np.float64))
    np.testing.assert_array_equal(qcore.encode(values, number), codes)
    wide = qcore.decode((codes << 4) + (7 << 40), "posit32", np.float64)
    assert_same_bits(wide, values.astype(np.float64))  # what is above a code is ignored


def awkward(dtype, rng):
    """Bit patterns: any, around 1 at every distance, and with few ones at the end; signs, NaN and zeros among them."""
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    every = rng.integers(0, np.iinfo(unsigned).max, 20, unsigned, endpoint=True)
    distance = rng.normal(0, 1, 20) * 2.0 ** rng.uniform(0, 8 * unsigned.itemsize - 3, 20)
    near = np.ones(20, dtype).view(unsigned) + distance.astype(np.int64).astype(unsigned)
    cut = rng.integers(0, 8 * unsigned.itemsize, 20).astype(unsigned)
    found = np.concatenate([every, near])
    few = found >> np.tile(cut, 2) << np.tile(cut, 2)
    return np.concatenate([found, few, few | unsigned.type(1), np.arange(8, dtype=unsigned)]).view(dtype)


SIZES = [0, 1, 2, 3, 5, 7, 8, 10, 11, 20, 63, 64]


@some(*((i, j) for i in range(len(SIZES)) for j in range(i % 4, len(DTYPES), 4)), es=SIZES, dtype=[*DTYPES])
def test_any_posit_equals_the_oracle(es, dtype):
    """An ordinary run takes a size of exponents in one dtype."""
    rng = np.random.default_rng(es)
    for bits in [2, 3, *rng.integers(4, 32, 2), 31, 32]:
        number, x = Posit(int(bits), es), awkward(DTYPES[dtype], rng)
        for mode in MODES[bits % 4 :: 4]:
            random_bits = int(rng.integers(1, 25))
            expected = oracle.quantize(x, spec(number), mode, words(11, x.shape), random_bits)
            options = {"key": 11, "random_bits": random_bits}
            assert_same_bits(qcore.quantize(x, number, mode, **options), expected, f"{number} {mode} {options}")
            codes = oracle.encode(expected, spec(number))
            np.testing.assert_array_equal(qcore.encode(x, number, mode, **options), codes, f"{number} {mode} {options}")


def test_midpoints_are_those_of_codes():
    """Between 2^20 and 2^24, the last posit8s but one and two, lie 2^21, 2^22 and 2^23 at quarters of the way."""
    x = np.float32([2**21, 2**22 - 1, 2**22, 2**22 + 1, 3 * 2**20, 2**23, 2**20 + 1])
    expected = {
        "nearest": [20, 20, 20, 24, 20, 24, 20],  # the code of 2^20 is 126, that of 2^24 127
        "nearest_away": [20, 20, 24, 24, 20, 24, 20],
        "odd": [24] * 7,
        "toward_zero": [20] * 7,
    }
    for mode, exponents in expected.items():
        assert_same_bits(qcore.quantize(x, "posit8", mode), np.float32(2.0 ** np.array(exponents)), mode)
    assert qcore.encode(x, "posit8").tolist() == [126, 126, 126, 127, 126, 127, 126]
    # on the other side, and with the other parity: the codes of 2^-20 and 2^-24 are 2 and 1
    assert qcore.encode(np.float32([2.0**-22, -(2.0**-22), 2.0**-23]), "posit8").tolist() == [2, 254, 1]
    # in a posit of odd width: between 64 (code 15 of 5 bits) and 16 (code 14), between 2^-20 (1 of 7) and 2^-16 (2)
    assert qcore.encode(np.float32([32, 31.9, 2.0**-18, 2.0**-18 * 0.99]), Posit(5, 1)).tolist() == [14, 14, 1, 1]
    assert qcore.encode(np.float32([2.0**-18, 2.0**-18 * 0.99, 2.0**18]), Posit(7)).tolist() == [2, 1, 62]


def test_stochastic_probabilities_are_those_of_codes():
    x = np.full(40_000, 2.0**21, np.float32)
    up = qcore.quantize(x, "posit8", "stochastic", key=3) == 2**24
    assert abs(up.mean() - 0.25) < 4 * (0.25 * 0.75 / x.size) ** 0.5


@pytest.mark.parametrize("mode", MODES)
def test_never_zero_nor_beyond_the_largest(mode):
    x = np.float32([1e-45, -1e-45, 2.0**-25, 1e30, -3e38, 2.0**24 + 2])
    expected = np.float32([2.0**-24, -(2.0**-24), 2.0**-24, 2.0**24, -(2.0**24), 2.0**24])
    assert_same_bits(qcore.quantize(x, "posit8", mode, key=1), expected)


def test_one_zero_and_nar():
    x = np.uint32([0x80000000, 0, 0x7F800000, 0xFF800000, 0xFFC01234, 0x7F800001]).view(np.float32)
    expected = np.uint32([0, 0, 0x7FC00000, 0xFFC00000, 0xFFC01234, 0x7F800001]).view(np.float32)
    for number in ("posit8", Posit(32, 3)):
        assert_same_bits(qcore.quantize(x, number, "nearest"), expected)
    assert qcore.encode(x, "posit8").tolist() == [0, 0, 128, 128, 128, 128]
    assert_same_bits(qcore.decode(np.uint8([128]), "posit8"), np.uint32([0x7FC00000]).view(np.float32))


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=list(CARRIERS))
def test_constants_are_lanes_and_no_shift_is_as_wide_as_one(carrier):
    """NumPy allows wider shifts, C++ does not."""
    lanes, shifts = range(-(1 << carrier.last), 1 << carrier.last), range(carrier.lane_bits)
    for bits in range(2, 33):
        for es in (*range(25), 60, 64):
            number = Posit(bits, es)
            taper, codes = Taper(*number.reduce(carrier)[1]), number.codes(carrier)
            assert all(constant in lanes for constant in (*taper, *codes))
            assert taper.below in shifts
            assert taper.most + 1 in shifts
            with suppress(ValueError):  # where there is no decoding
                number.check_exact(carrier)
                assert codes.drop in shifts
                assert codes.free + codes.drop + 1 in shifts


def test_bounds_are_the_last_posits_of_the_carrier():
    top = np.float16([65504, -65504])
    assert_same_bits(qcore.quantize(top, "posit16", "nearest"), np.float16([65408, -65408]))
    assert_same_bits(qcore.quantize(np.float16([2.0**-24]), "posit8", "down"), np.float16([2.0**-24]))
    assert_same_bits(qcore.quantize(np.float16([2.0**-24]), Posit(17, 0), "nearest"), np.float16([2.0**-15]))
    x = np.float32([1e-45, -1e-45, 3e38])  # between 2^-152 and 2^-144, and beyond 2^124
    for mode in MODES:
        expected = np.float32([2.0**-144, -(2.0**-144), 2.0**124])
        assert_same_bits(qcore.quantize(x, Posit(8, 6), mode, key=1), expected, mode)
        for far in (Posit(3, 8), Posit(9, 64)):
            assert_same_bits(qcore.quantize(x, far, mode, key=1), np.float32([1, -1, 1]), mode)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_finer_posits_than_the_carrier_are_the_identity(dtype):
    x = np.random.default_rng(0).standard_normal(1000).astype(dtype)
    for mode in MODES:
        assert_same_bits(qcore.quantize(x, "posit32", mode, key=1), x, mode)


def test_decoding_needs_a_dtype_that_has_all_posits():
    for number, dtype in (
        ("posit32", np.float32),
        (Posit(29), np.float32),
        ("posit16", np.float16),
        (Posit(32, 6), np.float64),
    ):
        with pytest.raises(ValueError, match=r"dtype=float.*allowed is a dtype that has them all"):
            qcore.decode(np.zeros(1, np.uint8), number, dtype)
