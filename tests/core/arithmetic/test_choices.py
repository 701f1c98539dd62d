"""Operations that compute no new number, beside NumPy's and ml_dtypes' functions and rules on Python's floats."""

import math
from itertools import product

import ml_dtypes
import numpy as np
import pytest

import qcore
from qcore import arithmetic

NUMBERS = [0.0, -0.0, 1.0, -1.0, 1.5, -448.0, 448.0, 2.0**-9, -(2.0**-7), math.inf, -math.inf, math.nan]
PAIRS = [np.float32(column) for column in zip(*product(NUMBERS, repeat=2), strict=True)]


def same(found, expected):
    """True if numbers are the same bits, but for NaN, which is one."""
    nan = np.isnan(expected)
    return (
        np.array_equal(np.isnan(found), nan)
        and np.where(nan, 0, found).tobytes() == np.where(nan, 0, expected).astype(found.dtype).tobytes()
    )


def ranked(x):
    """A number's place, with -0 below +0."""
    return x, math.copysign(1, x)


def by_size(x):
    """A magnitude's place, and among equal ones that of the number."""
    return abs(x), *ranked(x)


def extremum(pick, key, finite_wins, nan_wins, pair):
    numbers = [x for x in pair if not math.isnan(x)]
    finite = [x for x in numbers if math.isfinite(x)]
    if nan_wins and len(numbers) < 2:
        return math.nan
    numbers = finite if finite_wins and finite else numbers
    return pick(numbers, key=key) if numbers else math.nan


@pytest.mark.parametrize("side", ["minimum", "maximum"])
def test_extrema(side):
    pick = min if side == "minimum" else max
    for kind, key, finite_wins, nan_wins in (
        ("", ranked, False, True),
        ("_number", ranked, False, False),
        ("_magnitude", by_size, False, True),
        ("_magnitude_number", by_size, False, False),
        ("_finite", ranked, True, False),
    ):
        found = getattr(arithmetic, side + kind)(*PAIRS)
        expected = [extremum(pick, key, finite_wins, nan_wins, pair) for pair in product(NUMBERS, repeat=2)]
        assert same(found, np.float32(expected)), side + kind
    ours, theirs = (getattr(arithmetic, f"{side}_number"), getattr(np, f"f{side[:3]}"))
    assert np.array_equal(ours(*PAIRS), theirs(*PAIRS), equal_nan=True)


def test_signs_and_bounds():
    x, y = PAIRS
    nan = np.isnan(x) | np.isnan(y)
    assert same(arithmetic.negate(x), -x)
    assert same(arithmetic.abs(x), abs(x))
    assert same(arithmetic.copysign(x, y), np.where(nan, np.float32(np.nan), np.copysign(x, y)))
    given = [np.float32(column) for column in zip(*product(NUMBERS, repeat=3), strict=True)]
    for found, (one, low, high) in zip(arithmetic.clamp(*given), product(NUMBERS, repeat=3), strict=True):
        infinite = low == high and math.isinf(low)
        if math.isnan(one) or not low <= high or ((high == -math.inf or low == math.inf) and not infinite):
            assert np.isnan(found)
        else:
            assert found == (low if one < low else high if one > high else one)


def test_results_are_rounded_once_to_a_format():
    x, y = np.float32([1.0625, -1.1, 500.0]), np.float32([1.1, -1.0, 600.0])
    assert arithmetic.minimum(x, y, "e4m3fn", "up").tolist()[:2] == [1.125, -1.0]
    assert arithmetic.maximum(x, y, "e4m3fn", overflow="saturate").tolist() == [1.125, -1.0, 448.0]
    codes = qcore.encode(x[:2], "e4m3fn"), qcore.encode(y[:2], "e5m2")
    assert qcore.decode(arithmetic.minimum_codes(*codes, ("e4m3fn", "e5m2"), "float16"), "float16").tolist() == [
        1,
        -1.125,
    ]


@pytest.mark.parametrize("text", ["float16", "bfloat16", "e4m3fn", "e5m2", "e4m3fnuz"])
def test_neighbours_are_those_of_ml_dtypes(text):
    names = {"float16": "float16", "bfloat16": "bfloat16", "e4m3fn": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    dtype = np.dtype(names.get(text, f"float8_{text}"))
    number = qcore.parse(text)
    codes = np.arange(1 << number.bits).astype(f"uint{number.bits}")
    values = codes.view(dtype).astype(np.float32)
    inner = np.isfinite(values) & (abs(values) < np.abs(values[np.isfinite(values)]).max())
    for name, end in (("next_up", np.inf), ("next_down", -np.inf)):
        largest = np.array(np.sign(end) * np.abs(values[np.isfinite(values)]).max(), dtype)
        with np.errstate(invalid="ignore"):
            expected = np.nextafter(codes.view(dtype), largest)
        found = getattr(arithmetic, f"{name}_codes")(codes, text)
        equal = found.view(dtype).astype(np.float32) == expected.astype(np.float32)
        assert equal[inner].all(), name
        assert np.array_equal(getattr(arithmetic, name)(values, text)[inner], expected.astype(np.float32)[inner])


def test_ends_of_formats():
    x = np.float32([np.inf, -np.inf, 57344, -57344, np.nan, 1.01])
    assert same(arithmetic.next_up(x, "e5m2"), np.float32([np.inf, -57344, np.inf, -49152, np.nan, 1.25]))
    assert same(arithmetic.next_down(x, "e5m2"), np.float32([57344, -np.inf, 49152, -np.inf, np.nan, 1.0]))
    assert arithmetic.next_up(x[2:3], "e5m2", overflow="saturate") == 57344
    floats = np.float32([0.0, -0.0, -1e-45, 3.4028235e38, 1.0])
    with np.errstate(over="ignore"):
        assert same(arithmetic.next_up(floats), np.nextafter(floats, np.float32(np.inf)))


def test_questions():
    x, y = PAIRS
    for name in ("less", "less_equal", "equal", "greater", "greater_equal"):
        assert np.array_equal(getattr(arithmetic, name)(x, y), getattr(np, name)(x, y))
    order = arithmetic.total_order(x, y)
    assert np.array_equal(order, np.isnan(x) | (x <= y))
    for text, normal in (("e4m3fn", 2.0**-6), ("binary8p3se", 2.0**-15), ("fixed(8,4)", 0.0), ("bfloat16", 2.0**-126)):
        codes = np.arange(1 << qcore.parse(text).bits)
        values = qcore.decode(codes, text).astype(np.float64)
        size, finite = abs(values), np.isfinite(values)
        expected = {
            "is_zero": values == 0,
            "is_one": values == 1,
            "is_nan": np.isnan(values),
            "is_infinite": np.isinf(values),
            "is_finite": finite,
            "is_sign_minus": values < 0,
            "is_normal": finite & (size >= normal) & (values != 0),
            "is_subnormal": (size < normal) & (values != 0),
        }
        for name, right in expected.items():
            assert np.array_equal(getattr(arithmetic, f"{name}_codes")(codes, text), right), (name, text)
        names = [arithmetic.CLASSES[i] for i in arithmetic.classify_codes(codes, text)]
        for one, name in zip(values, names, strict=True):
            size = "Infinity" if abs(one) == np.inf else "Normal" if abs(one) >= normal else "Subnormal"
            kind = "NaN" if one != one else "Zero" if one == 0 else f"{'Negative' if one < 0 else 'Positive'}{size}"
            assert name == f"Cls{kind}"
    assert arithmetic.is_normal(np.float32([1e-3]), "e4m3fn").tolist() == [False]
    assert arithmetic.classify(np.array([1.0, -0.0], ml_dtypes.bfloat16)).tolist() == [6, 4]
