"""Scale rules of other libraries, with the operations that these have, on NumPy's floats."""

import ml_dtypes
import numpy as np
import pytest

import qcore
from qcore import BlockScaled

F = np.float32
TOP = {"e4m3fn": 448, "e2m1fn": 6, "e2m3fn": 7.5, "e3m2fn": 28}


def magnitudes(top):
    """Many significands of one binade, all next to where an exponent may change, and both in other binades."""
    some = np.random.default_rng(0).integers(0, 2**23, 60_000) + 0x3F80_0000
    edges = F([top * 2**0.5, top / 2**0.5, top * 1.5, top * 0.75, top, top * 7 / 12, top * 31 / 60])
    near = [(np.arange(-300, 300) + int(edge.view(np.int32))) for edge in (*edges, *(edges * F(1 - 2.0**-9)))]
    found = np.concatenate([some, *near]).astype(np.int32).view(F)
    return np.concatenate([found, found * F(2.0**-40), found * F(2.0**90)])


def exponents(a, element, rule):
    """The k of blocks of one number."""
    return qcore.encode(a, BlockScaled(element, {-1: 1}, rule))[1].astype(int) - 127


@pytest.mark.parametrize("element", TOP)
def test_nearest(element):
    """MLX up to 0.31: scale = max / 448, then round(log2(scale)); correct logarithms are float64's here."""
    a = magnitudes(TOP[element])
    expected = np.round(np.log2((a / F(TOP[element])).astype(np.float64)))
    np.testing.assert_array_equal(exponents(a, element, "nearest"), expected)


@pytest.mark.parametrize("element", TOP)
def test_nearest_mantissa(element):
    """FlyDSL's `f32_to_e8m0(max / 7.5)`: the exponent's field, one more if the first bit of the mantissa is set."""
    a = magnitudes(TOP[element])
    bits = (a / F(TOP[element])).view(np.int32)
    expected = (bits >> 23) + ((bits & 0x400000) > 0) - 127
    np.testing.assert_array_equal(exponents(a, element, "nearest_mantissa"), expected)


@pytest.mark.parametrize(("element", "c"), [("e2m1fn", 12 / 7), ("e4m3fn", 60 / 31)])
def test_oas(element, c):
    """qwix: bfloat16(max / qmax * c) with its mantissa cut off. qwix leaves scales below 2^-63 as 1."""
    a = magnitudes(TOP[element])
    scale = (a / F(TOP[element]) * F(c)).astype(ml_dtypes.bfloat16).view(np.int16)
    np.testing.assert_array_equal(exponents(a, element, "oas"), ((scale & 0x7F80) >> 7) - 127)


@pytest.mark.parametrize("rule", ["nearest", "nearest_mantissa", "oas"])
def test_other_dtypes(rule):
    """Arrays of 16 bits have float32's rule, those of float64 the same with float64's quotient."""
    a = magnitudes(448)[:60_000]
    for dtype in (ml_dtypes.bfloat16, np.float16):
        narrow = a.astype(dtype)
        np.testing.assert_array_equal(
            exponents(narrow, "e4m3fn", rule), exponents(narrow.astype(F), "e4m3fn", rule), dtype
        )
    wide = np.nextafter(448 * 2**0.5 * np.exp2([-1.0, 0, 1]), [0, np.inf, 0])
    if rule == "nearest":
        np.testing.assert_array_equal(exponents(wide, "e4m3fn", rule), [-1, 1, 1])


def test_blocks_of_zeros_and_ends():
    for rule in ("nearest", "nearest_mantissa", "oas"):
        codes, scales = qcore.encode(
            F([[0, 0], [1e-45, 0], [3e38, 1], [np.nan, 1]]), BlockScaled("e4m3fn", {-1: 2}, rule)
        )
        assert scales.ravel().tolist()[:2] == [0, 0]
        assert scales[3] == 255
        assert (codes[0] == 0).all()
