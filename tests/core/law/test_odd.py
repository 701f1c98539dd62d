"""Numbers beyond the range, rounded to odd.

RISC-V's vector extension (vfncvt.rod.f.f.w) turns finite ones into the largest number with their sign, and so does
Berkeley SoftFloat. IEEE P3109 v4.0, 4.7.5, has infinity in signed formats with one, whose code is odd there.
"""

import numpy as np
import pytest

import qcore

BEYOND = np.float32([1e30, -1e30, np.inf, -np.inf])
INF, NAN = np.inf, np.nan


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("float16", [65504, -65504, INF, -INF]),  # 65504 is 0x7bff, infinity 0x7c00
        ("e5m2", [57344, -57344, INF, -INF]),
        ("e4m3", [240, -240, INF, -INF]),
        ("e4m3fn", [448, -448, NAN, NAN]),  # 0x7e, NaN 0x7f
        ("e4m3fnuz", [240, -240, NAN, NAN]),
        ("binary(5,2,subnormals=False)", [57344, -57344, INF, -INF]),
        ("binary(4,3,specials=fn,signed=False)", [448, NAN, NAN, NAN]),
        ("e4m3:nan", [240, -240, INF, -INF]),
        ("Binary8p4se", [INF, -INF, INF, -INF]),
        ("Binary8p4sf", [240, -240, 240, -240]),
        ("Binary8p4ue", [53248, NAN, INF, NAN]),
        ("Binary8p4ue:saturate", [53248, 0, 53248, 0]),
    ],
)
def test_beyond_the_range(number, expected):
    rounded = qcore.quantize(BEYOND, number, "odd")
    np.testing.assert_array_equal(rounded, np.float32(expected))
    np.testing.assert_array_equal(qcore.decode(qcore.encode(BEYOND, number, "odd"), number), rounded)


@pytest.mark.parametrize(("number", "largest", "last"), [("float16", 65504, 65536), ("e4m3fn", 448, 480)])
def test_from_the_largest_number_on(number, largest, last):
    """Also where its code is even, so that numbers a little beyond it go up in formats with further numbers."""
    x = np.float32([largest, np.nextafter(np.float32(largest), np.float32(INF)), last, 2 * last])
    assert (qcore.quantize(x, number, "odd") == largest).all()
    assert (qcore.quantize(-x, number, "odd") == -largest).all()
