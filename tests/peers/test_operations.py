"""Operations on codes beside APyTypes' arithmetic of floats, and functions beside pychop's.

gfloat has no arithmetic. pychop rounds results of float64, so it differs in directed modes where float64 has rounded
to a number of the format, as tanh(20) to 1. It has infinity, or 0, for results a little beyond the largest number.
"""

import numpy as np
import pytest
from apytypes import APyFloatArray, APyFloatQuantizationContext
from apytypes_modes import MODES
from covering import usually

import qcore
from qcore import BinaryFloat, arithmetic

OPERATIONS = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y,
}


@pytest.mark.parametrize("fields", usually([(3, 2)], [(3, 2), (4, 3), (5, 2), (2, 4)]))
def test_all_pairs_in_all_modes_of_apytypes(fields):
    exp, man = fields
    number = BinaryFloat(exp, man)
    x, y = (part.ravel() for part in np.meshgrid(*[np.arange(1 << number.bits)] * 2))
    theirs = [APyFloatArray.from_bits(codes.tolist(), exp, man) for codes in (x, y)]
    for mode, rounding in MODES.items():
        for name, operation in OPERATIONS.items():
            with APyFloatQuantizationContext(rounding):
                codes = operation(*theirs).to_bits(numpy=True).astype(np.int64)
            found = getattr(arithmetic, f"{name}_codes")(x, y, number, number, mode)
            ours, other = (qcore.decode(one, number) for one in (found, codes))
            nan = np.isnan(ours)
            assert np.array_equal(nan, np.isnan(other))
            assert np.array_equal(found[~nan], codes[~nan]), (mode, name)


FUNCTIONS = "exp expm1 log log2 log1p sin cos tan sinh cosh tanh arcsin arccos arctan arcsinh arccosh arctanh".split()


def test_functions_of_pychop():
    pychop = pytest.importorskip("pychop")
    rounded = pychop.Chop(exp_bits=5, sig_bits=2, rmode=1, subnormal=True)
    x = qcore.decode(np.arange(256), "e5m2")
    for name in FUNCTIONS:
        with np.errstate(all="ignore"):
            exact = getattr(np, name)(x.astype(np.float64))
        inside = np.isfinite(x) & (abs(exact) < 57344)
        theirs = getattr(pychop, name, None) or getattr(pychop.math_func, name)
        found = getattr(arithmetic, name)(x[inside], "e5m2", operands="e5m2")
        assert np.array_equal(found, theirs(x[inside].astype(np.float64), rounded)), name
    beyond = np.float32([11.0])  # whose exponential, 59874, is nearest to the largest number
    assert pychop.exp(beyond.astype(np.float64), rounded) == np.inf
    assert arithmetic.exp(beyond, "e5m2", operands="float16") == 57344
