"""APyTypes' matrix products with an accumulator of few bits: sequential, each product rounded before it is added.

It rounds products in the mode of the sums, where ours are rounded to nearest: in other modes, formats are compared that
have all products.
"""

import numpy as np
import pytest
from apytypes import APyFixedAccumulatorContext, APyFixedArray, APyFloatAccumulatorContext, APyFloatArray, OverflowMode
from apytypes_modes import MODES

import qcore
from qcore import Accumulator, BinaryFloat, FixedPoint

LENGTHS = 1, 2, 65


def operands(length):
    """Sums that cancel, overflow few bits, and are subnormal there."""
    rng = np.random.default_rng(length)
    a = rng.standard_normal((16, length)) * np.exp2(rng.integers(-6, 6, (16, 1)))
    b = rng.standard_normal((length, 8)) * np.exp2(rng.integers(-4, 4, (1, 8)))
    a[1::2, length // 2 :] = -a[1::2, : length - length // 2]
    return qcore.quantize(a.astype(np.float32), "e5m2"), qcore.quantize(b.astype(np.float32), "e4m3fn")


def check(a, b, theirs, accumulator):
    ours = qcore.linalg.matmul(a, b, accumulator=accumulator)
    theirs = theirs.to_numpy()
    # A sum that is zero is +0 here, and all NaN are one.
    theirs = np.where(np.isnan(theirs), np.float32(np.nan), theirs).astype(np.float32) + np.float32(0)
    np.testing.assert_array_equal(ours.view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("bits", "mode"),
    [(bits, "nearest") for bits in ((6, 9), (8, 7), (5, 10), (5, 2), (4, 3))]
    + [((6, 9), mode) for mode in ("nearest_away", "toward_zero", "up", "down")],
)
def test_floats(bits, mode, length):
    a, b = operands(length)
    x, y = (APyFloatArray.from_float(one.astype(float), exp_bits=6, man_bits=9) for one in (a, b))
    with APyFloatAccumulatorContext(exp_bits=bits[0], man_bits=bits[1], quantization=MODES[mode]):
        theirs = x @ y
    check(a, b, theirs, Accumulator(BinaryFloat(*bits), 1, mode, product=BinaryFloat(*bits)))


@pytest.mark.parametrize("length", LENGTHS)
def test_fixed_point(length):
    """Products are rounded to a step. No sum overflows: theirs leave the range of their format, though it saturates."""
    rng = np.random.default_rng(length)
    a, b = (rng.integers(-64, 64, shape).astype(np.float32) / 64 for shape in ((16, length), (length, 8)))
    x, y = (APyFixedArray.from_float(one.astype(float), int_bits=1, frac_bits=6) for one in (a, b))
    with APyFixedAccumulatorContext(int_bits=8, frac_bits=3, quantization=MODES["nearest"], overflow=OverflowMode.SAT):
        theirs = x @ y
    check(a, b, theirs, Accumulator(FixedPoint(11, 3), 1, product=FixedPoint(11, 3)))
