"""Codes: the bits of the standards, exact both ways."""

import ml_dtypes
import numpy as np
import oracle
import pytest
from covering import some
from support import assert_same_bits, bits, spec

import qcore
from benchmarks.support.inputs import FORMATS, MORE, hard_inputs
from qcore import NAMED, BinaryFloat, BlockFloatingPoint, FixedPoint, FloatingPoint, Table
from qcore.formats.block import BlockNumber


def coded(numbers):
    """Those formats that have codes of up to 32 bits."""
    for number in numbers:
        if not isinstance(number, BlockNumber) and getattr(number, "clamp", True) and number.bits <= 32:
            yield number


BEYOND = BinaryFloat(8, 21, bias=130)  # its smallest normal numbers are float32's subnormal ones, with fewer bits
BEYOND_LANES = BinaryFloat(8, 23, bias=130)  # and codes beyond these have no room in 32 bits
SUBNORMAL = tuple(  # all of their numbers are float32's subnormal ones, or most
    BinaryFloat(exp, man, 130, specials, signed=signed)
    for exp, man in ((1, 6), (2, 5))
    for specials in ("ieee", "fn", "finite", "p3109")
    for signed in (True, False)
)
LONG = FixedPoint(32, 0), FixedPoint(32, 4, signed=False), FixedPoint(31, -4), BinaryFloat(7, 23, signed=False)
CODED = tuple(coded((*FORMATS, *MORE, *LONG, BEYOND, *SUBNORMAL)))
BY_TURNS = [(place, place % 3) for place in range(len(CODED))]  # of three modes, or dtypes


def carrier_of(number):
    """float32 where that has all the format's numbers, else float64."""
    for dtype in (np.float32, np.float64):
        try:
            qcore.decode(np.zeros(0, np.uint8), number, dtype)
        except ValueError:
            continue
        return dtype
    pytest.skip(f"{number} has numbers that float64 has not")


def codes_of(number, most):
    """All codes, or of more than 2^most some thousands: around each power of two, at the ends, and at random."""
    count = 1 << number.bits
    if number.bits <= most:
        return np.arange(count, dtype=np.uint32)
    near = [(1 << bit) + step for bit in range(number.bits + 1) for step in range(-64, 64)]
    ends = [code for code in near if 0 <= code < count]
    return np.concatenate([ends, np.random.default_rng(0).integers(0, count, 1 << 12)]).astype(np.uint32)


def test_formats_without_codes():
    with pytest.raises(ValueError, match="at most 31, as NaN is the sign bit alone"):
        qcore.encode(np.float64([1]), BinaryFloat(8, 23, specials="p3109"))


@pytest.mark.parametrize("most", [12, pytest.param(16, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("number", CODED, ids=str)
def test_decode_equals_the_oracle_and_encode_is_its_inverse(number, most):
    """The oracle is Python: heavy runs give it all codes of 16 bits."""
    dtype, codes = carrier_of(number), codes_of(number, most)
    values = qcore.decode(codes, number, dtype)
    expected = oracle.decode(codes.astype(np.int64), spec(number), dtype)
    if isinstance(number, FixedPoint) and number.symmetric:
        expected[expected == expected.min()] = np.nan
    if isinstance(number, FloatingPoint):  # whose only NaN are unused codes, of either sign
        np.testing.assert_array_equal(np.isnan(values), np.isnan(expected))
        expected = np.where(np.isnan(expected), values, expected)
    assert_same_bits(values, expected)
    numbers = ~np.isnan(values)
    if getattr(number, "overflow", None) == "saturate":  # which takes infinities as well
        numbers &= np.isfinite(values)
    back = qcore.encode(values[numbers], number, overflow=None)
    assert back.dtype == np.dtype(f"u{1 if number.bits <= 8 else 2 if number.bits <= 16 else 4}")
    if isinstance(number, Table):  # of equal numbers the first gives the code
        codes[numbers] = np.vectorize(number.values.index)(values[numbers])
    np.testing.assert_array_equal(back, codes[numbers])


@some(*BY_TURNS, number=CODED, dtype=[np.float32, np.float16, ml_dtypes.bfloat16])
def test_codes_are_the_same_on_all_carriers(number, dtype):
    try:
        (x,) = hard_inputs(number, 5_000, dtype)
        values = qcore.quantize(x, number, "nearest")
        qcore.encode(x[:1], number)
    except ValueError as error:
        pytest.skip(str(error))
    with np.errstate(invalid="ignore"):
        wide, values = x.astype(np.float64), values.astype(np.float64)
    same = quantized_alike(values, qcore.quantize(wide, number, "nearest"))
    assert same.any()
    np.testing.assert_array_equal(qcore.encode(x, number)[same], qcore.encode(wide, number)[same])


def quantized_alike(values, wide):
    return (values == wide) & (np.signbit(values) == np.signbit(wide))


def without_code(values, number):
    """Which quantized values have no code: the documented ones."""
    if isinstance(number, Table) and np.isnan(number.values).any():
        return np.zeros(values.shape, bool)
    if isinstance(number, FixedPoint | Table):
        return np.isnan(values) | ((values == 0) & np.signbit(values))
    finite = isinstance(number, FloatingPoint) or not getattr(number, "has_nan", True)
    return finite & ~np.isfinite(values)


@some(*BY_TURNS, number=CODED, mode=["nearest", "up", "stochastic"])
def test_decoding_gives_what_quantize_gives(number, mode):
    dtype = carrier_of(number)
    (x,) = hard_inputs(number, 20_000, dtype)
    key = 3 if mode == "stochastic" else None
    values, codes = qcore.quantize(x, number, mode, key=key), qcore.encode(x, number, mode, key=key)
    decoded = qcore.decode(codes, number, dtype)
    there = ~without_code(values, number) & ~np.isnan(values)
    assert_same_bits(decoded[there], values[there])
    nans = np.isnan(values) & ~without_code(values, number)
    assert np.isnan(decoded[nans]).all()
    rest = without_code(values, number)
    expected = np.where(np.isinf(values[rest]), values[rest], 0)
    if isinstance(number, BinaryFloat | FloatingPoint):  # infinity becomes the largest number
        largest = qcore.decode(np.uint32([number.magnitudes.largest_code]), number, dtype)
        expected = np.where(np.isinf(values[rest]), np.copysign(largest, values[rest]), 0)
    if isinstance(number, Table):  # NaN becomes the first number
        expected = np.where(np.isnan(values[rest]), dtype(number.values[0]), expected)
    np.testing.assert_array_equal(decoded[rest], expected)
    sample = np.random.default_rng(1).choice(x.size, 500)
    known = sample[there[sample] | nans[sample]]
    np.testing.assert_array_equal(codes[known], oracle.encode(values[known], spec(number)))


STORED = {
    "e4m3": ml_dtypes.float8_e4m3,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e5m2": ml_dtypes.float8_e5m2,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e3m4": ml_dtypes.float8_e3m4,
    "e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


@pytest.mark.parametrize("name", STORED)
def test_codes_are_other_peoples_bits_without_a_copy(name):
    x = np.random.default_rng(2).standard_normal(1000).astype(np.float32)
    codes = qcore.encode(abs(x) if name == "e8m0fnu" else x, name)
    theirs = codes.view(STORED[name])
    assert np.shares_memory(codes, theirs)
    assert_same_bits(theirs.astype(np.float32), qcore.decode(codes, name))
    np.testing.assert_array_equal(qcore.decode(theirs.view(codes.dtype), name), qcore.decode(codes, name))


def bytes_of(codes, width):
    """The bytes of codes, by strings of bits, the lowest bit first."""
    bits = "".join(f"{int(code) % (1 << width):0{width}b}"[::-1] for code in codes)
    return [int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8)]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int64"])
@pytest.mark.parametrize("width", range(1, 33))
def test_packing(width, dtype):
    info, generator = np.iinfo(dtype), np.random.default_rng(width)
    for size in (0, 1, 3, 8, 31):
        codes = generator.integers(info.min, info.max, (2, 3, size), dtype, endpoint=True)
        packed = qcore.pack(codes, width)
        assert packed.dtype == np.uint8
        assert packed.reshape(6, packed.shape[-1]).tolist() == [bytes_of(row, width) for row in codes.reshape(6, size)]
        found = qcore.unpack(packed, width, size)
        np.testing.assert_array_equal(found, codes.astype(np.uint64) & ((1 << width) - 1))
        assert not np.shares_memory(found, packed)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: qcore.encode(np.ones(2, np.float32), BlockFloatingPoint(8)), ValueError, ["number", "no codes"]),
        (
            lambda: qcore.encode(np.ones(2, np.float32), FixedPoint(8, 4, False)),
            ValueError,
            ["clamp=True and wrap"],
        ),
        (lambda: qcore.encode(np.ones(2, np.float32), FixedPoint(40, 4)), ValueError, ["40 bits", "at most 32"]),
        (lambda: qcore.encode(np.ones(2, np.float32), FloatingPoint(12, 20)), ValueError, ["33 bits", "at most 32"]),
        (lambda: qcore.encode(np.ones(2, np.float32), BEYOND_LANES), ValueError, ["32 bits", "only on float64"]),
        (lambda: qcore.encode([1.0], "e5m2"), TypeError, ["x", "list", "NumPy array"]),
        (lambda: qcore.decode(np.ones(2), "e5m2"), TypeError, ["codes", "float64", "integers"]),
        (lambda: qcore.decode([1], "e5m2"), TypeError, ["codes", "list", "integers"]),
        (lambda: qcore.decode(np.uint8([1]), "e5m2", np.int32), TypeError, ["dtype", "int32", "float32, float16"]),
        (lambda: qcore.decode(np.uint8([1]), FixedPoint(30, 2)), ValueError, ["dtype=float32", "29 bits", "24 bits"]),
        (lambda: qcore.decode(np.uint8([1]), FloatingPoint(9, 2)), ValueError, ["dtype=float32", "2^256"]),
        (lambda: qcore.pack(np.uint8(1), 4), TypeError, ["codes", "integers"]),
        (lambda: qcore.pack(np.array(1), 4), ValueError, ["codes", "()", "one dimension"]),
        (lambda: qcore.pack(np.uint8([1]), 33), ValueError, ["bits", "33", "1 to 32"]),
        (lambda: qcore.unpack(np.uint8([1]), 4, 3), ValueError, ["packed", "(1,)", "(..., 2)"]),
        (lambda: qcore.unpack(np.uint8([1]), 4, -1), ValueError, ["size", "-1", ">= 0"]),
    ],
)
def test_bad_input(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_names_stand_for_formats():
    x = np.float32([3.3, -70000, 1e-3])
    for name, (number, _) in NAMED.items():
        key = 1
        assert_same_bits(
            qcore.quantize(x, name, "stochastic", key=key), qcore.quantize(x, number, "stochastic", key=key)
        )
        if isinstance(number, BinaryFloat):
            assert bits(qcore.encode(x, name)).dtype == bits(qcore.encode(x, number)).dtype
