"""NumPy's casts to the types of ml_dtypes: every fp8, fp6, fp4, e8m0 and bfloat16."""

import ml_dtypes
import numpy as np
import pytest
from peer_support import compare, inside, patterns, points, same_numbers
from support import bits

import qcore

TYPES = {
    "e3m4": ml_dtypes.float8_e3m4,
    "e4m3": ml_dtypes.float8_e4m3,
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "e5m2": ml_dtypes.float8_e5m2,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "bfloat16": ml_dtypes.bfloat16,
}
WITHOUT_NAN = ("e2m3fn", "e3m2fn", "e2m1fn")


def expected(subnormals, nans):
    """Known differences by format: how many of numbers, and of codes."""
    e8m0 = {"e8m0fnu": ({"subnormal": subnormals}, {"subnormal": subnormals})}
    return e8m0 | {name: ({"nan": 2 * nans}, {"nan": nans}) for name in WITHOUT_NAN}


def subnormal(name, x):
    """e8m0: ml_dtypes rounds subnormals of float32 above 2^-127 up to 2^-126, though up to 1.5 * 2^-127 2^-127 is
    nearer."""
    return (x > 2.0**-127) & (x < 1.5 * 2.0**-127) if name == "e8m0fnu" else np.zeros(x.shape, bool)


def nan(name, x):
    """fp6 and fp4 have no NaN. `quantize` keeps it, as it keeps the dtype; ml_dtypes makes it a zero."""
    return np.isnan(x) if name in WITHOUT_NAN else np.zeros(x.shape, bool)


def nan_code(name, x):
    """fp6 and fp4: `encode` makes every NaN the code 0; ml_dtypes a zero with the other sign than the NaN's."""
    return nan(name, x) & ~np.signbit(x)


def known_numbers(name, x):
    return {"subnormal": subnormal(name, x), "nan": nan(name, x)}


def known_codes(name, x):
    return {"subnormal": subnormal(name, x), "nan": nan_code(name, x)}


def cast(x, dtype):
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def all_numbers(name):
    """Every number of a type, in float32."""
    return cast(all_codes(name), np.float32)


def all_codes(name):
    codes = np.arange(2 ** qcore.NAMED[name][0].bits).astype(f"u{np.dtype(TYPES[name]).itemsize}")
    return codes.view(TYPES[name])


def compared(x, name):
    """How often numbers, and codes, differ for each reason."""
    theirs, wide = cast(x, TYPES[name]), cast(x, np.float32)
    same = same_numbers(qcore.quantize(x, name, "nearest"), cast(theirs, x.dtype))
    same_codes = qcore.encode(x, name) == bits(theirs)
    return (
        compare(x, same, known_numbers(name, wide), name),
        compare(x, same_codes, known_codes(name, wide), f"{name}, codes"),
    )


@pytest.mark.parametrize("name", TYPES)
def test_points(name):
    assert compared(points(all_numbers(name)), name) == expected(subnormals=2, nans=5).get(name, ({}, {}))


@pytest.mark.parametrize("name", TYPES)
def test_random(name):
    compared(patterns(), name)
    compared(inside(all_numbers(name)), name)


@pytest.mark.parametrize("name", TYPES)
def test_all_codes_decoded(name):
    theirs = all_codes(name)
    assert same_numbers(qcore.decode(bits(theirs), name), all_numbers(name)).all()


@pytest.mark.heavy
def test_all_subnormals_of_float32_in_e8m0():
    x = np.arange(2**23, dtype=np.uint32).view(np.float32)[1:]
    assert compared(x, "e8m0fnu") == ({"subnormal": 2**21 - 1},) * 2


@pytest.mark.parametrize("name", [name for name in TYPES if name != "bfloat16"])
def test_all_bfloat16_inputs(name):
    x = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    assert compared(x, name) == expected(subnormals=31, nans=127).get(name, ({}, {}))


@pytest.mark.parametrize("name", [name for name in TYPES if name not in ("e8m0fnu", "bfloat16")])
def test_all_float16_inputs(name):
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    assert compared(x, name) == expected(subnormals=0, nans=1023).get(name, ({}, {}))


@pytest.mark.parametrize(("name", "count"), [("e8m0fnu", 512), ("bfloat16", 8)])
def test_float16_inputs_of_formats_that_reach_further(name, count):
    """What rounds up to 2^16 overflows here, as float16 ends before it; ml_dtypes does not come back to float16."""
    x = np.arange(2**16, dtype=np.uint16).view(np.float16)
    x = x[~np.isnan(x)]
    theirs = cast(x, TYPES[name])
    beyond = np.isfinite(x) & (np.abs(cast(theirs, np.float32)) == 2**16)
    assert compare(x, qcore.encode(x, name) == bits(theirs), {"beyond": beyond}, name) == {"beyond": count}


TWICE = {"e3m4": 226, "e4m3": 242, "e4m3fn": 256, "e4m3fnuz": 258, "e4m3b11fnuz": 258, "e5m2": 250, "e5m2fnuz": 258}
TWICE |= {"e8m0fnu": 400, "e2m3fn": 64, "e3m2fn": 64, "e2m1fn": 16, "bfloat16": 65282}


@pytest.mark.parametrize("name", TYPES)
def test_float64_is_rounded_twice(name):
    """ml_dtypes rounds float64 to float32 first; what that moves onto a midpoint then goes to even."""
    x = points(all_numbers(name), np.float64)
    theirs, once = cast(cast(x, TYPES[name]), np.float64), cast(x, np.float32)
    ours = qcore.quantize(x, name, "nearest")
    twice = ~same_numbers(ours, cast(qcore.quantize(once, name, "nearest"), np.float64))
    known = {"twice": twice, "subnormal": subnormal(name, once) & ~twice, "nan": nan(name, once)}
    assert compare(x, same_numbers(ours, theirs), known, name)["twice"] == TWICE[name]
