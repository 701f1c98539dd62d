"""QPyTorch's own kernels on the CPU, to nearest: blocks, floating point and fixed point.

They run where the environment variable QPYTORCH names a folder with them; CONTRIBUTING has the command.
"""

from collections import Counter

import numpy as np
import pytest
from peer_support import compare, same_numbers
from support import bits

import qcore
from benchmarks.support.inputs import hard_inputs
from benchmarks.support.peers_qpytorch import VARIABLE, QPyTorch, version
from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        version() is None,
        reason=f"{VARIABLE} names no folder with QPyTorch: pip install --target FOLDER --no-deps qtorch==0.3.0",
    ),
]


@pytest.fixture(scope="module")
def qpytorch():
    with QPyTorch() as peer:
        yield lambda function, x, **arguments: peer.call(function, x, rounding="nearest", **arguments)()


def minus_zero(ours):
    """Zero has no sign there."""
    return bits(ours) == 0x80000000


# Blocks. There 6 * 2^E, E being the largest exponent of the block, is added to each element before rounding.


def not_finite(blocks):
    """A NaN or an infinity makes the whole block NaN there."""
    return ~np.isfinite(blocks).all(1) & ~np.isnan(blocks).all(1)


def beyond(blocks):
    """6 * 2^126 is infinity in float32."""
    largest = np.abs(blocks).max(1)
    return (largest >= 2.0**126) & (largest < np.inf)


def subnormal(blocks):
    """2^E is taken for 0 where it is subnormal."""
    largest = np.abs(blocks).max(1)
    return (largest > 0) & (largest < 2.0**-126)


def block_twice(blocks, wl):
    """The sum has 23 bits, rounded to even, and is rounded again to wl: what lies just below a tie becomes one."""
    wide = np.where(np.isnan(blocks), 0, blocks).astype(np.float64)
    exponents = np.frexp(np.abs(wide).max(1, keepdims=True))[1] - 1
    most = 2.0 ** (wl - 1) - 1
    steps = np.ldexp(wide, wl - 2 - exponents), np.ldexp(np.rint(np.ldexp(wide, 21 - exponents)), wl - 23)
    once, twice = (np.floor(step + 0.5).clip(-most, most) for step in steps)
    return once != twice


def compared_blocks(x, theirs, number):
    """How many blocks, and of the others how many elements, differ for each reason."""
    ours, name = qcore.quantize(x, number, "nearest_up"), str(number)
    blocks, ours, theirs = (split(y, number.dim) for y in (x, ours, theirs))
    same = same_numbers(ours, theirs)
    whole = {why.__name__: why(blocks) for why in (not_finite, beyond, subnormal)}
    apart = np.any(list(whole.values()), 0)
    counts = compare(np.arange(len(blocks)), same.all(1) | ~apart, whole, f"{name}, blocks")
    blocks, ours, same = (y[~apart] for y in (blocks, ours, same))
    known = {"block_twice": block_twice(blocks, number.wl).ravel(), "minus_zero": minus_zero(ours).ravel()}
    return counts + compare(blocks.ravel(), same.ravel(), known, name)


def split(x, dim):
    """The blocks of an array as rows."""
    return x.reshape(1, -1) if dim == -1 else np.moveaxis(x, dim, 0).reshape(x.shape[dim], -1)


@pytest.mark.parametrize("dim", [-1, 0, 1, 2])
def test_blocks(qpytorch, dim):
    counts = Counter()
    for wl in range(2, 23):
        number = BlockFloatingPoint(wl, dim)
        for x in hard_inputs(number, 30_000):
            counts += compared_blocks(x, qpytorch("block_quantize", x, wl=wl, dim=dim), number)
    assert counts == {"not_finite": 84, "beyond": 21, "subnormal": 42, "block_twice": 20557, "minus_zero": 34671}


def test_blocks_at_the_ends_of_float32(qpytorch):
    counts, rng = Counter(), np.random.default_rng(0)
    for wl in range(2, 23):
        number = BlockFloatingPoint(wl)
        for exponent in (-149, -140, -127, -126, -125, 124, 125, 126, 127):
            x = np.ldexp(rng.uniform(-2, 2, 3000), exponent).astype(np.float32)
            counts += compared_blocks(x, qpytorch("block_quantize", x, wl=wl), number)
    assert counts == {"beyond": 42, "subnormal": 63, "block_twice": 4818, "minus_zero": 3129}


# Floating point. There half a step is added to the bits; to subnormal numbers the smallest normal one is added first.


def float_nan(x, exp, man):
    """Half a step is added to NaN's bits too, and the last ones are dropped: numbers, or with exp = 8 also NaN."""
    half = np.uint32(1 << (22 - man))
    magnitudes = ((bits(x) + half) & ~(half * 2 - 1)) & np.uint32(0x7FFFFFFF)
    return np.isnan(x) & ((exp < 8) | (magnitudes <= 0x7F800000))


def float_twice(x, number):
    """Their sum with the smallest normal number is rounded already, to even."""
    lowest = number.magnitudes.lowest
    wide = np.abs(np.where(np.isfinite(x), x, 0)).astype(np.float64)
    rounded = np.ldexp(np.rint(np.ldexp(wide, 23 - lowest)), lowest - 23)
    once, twice = (np.floor(np.ldexp(y, number.man - lowest) + 0.5) for y in (wide, rounded))
    return (wide < 2.0**lowest) & (once != twice)


FLOATS = {  # exp: counts, of 23 times 30,000 numbers
    1: {"nan": 6349, "twice": 15098, "minus_zero": 86425},
    2: {"nan": 6342, "twice": 9735, "minus_zero": 81662},
    3: {"nan": 6082, "twice": 5943, "minus_zero": 74886},
    4: {"nan": 6009, "twice": 3374, "minus_zero": 64941},
    5: {"nan": 5830, "twice": 1988, "minus_zero": 53024},
    6: {"nan": 5497, "twice": 1108, "minus_zero": 43416},
    7: {"nan": 5454, "twice": 700, "minus_zero": 26720},
    8: {"nan": 689, "minus_zero": 533},
}


@pytest.mark.parametrize("exp", FLOATS)
def test_floats(qpytorch, exp):
    counts = Counter()
    for man in range(23):
        number = FloatingPoint(exp, man)
        (x,) = hard_inputs(number, 30_000)
        ours, theirs = qcore.quantize(x, number, "nearest_away"), qpytorch("float_quantize", x, exp=exp, man=man)
        known = {"nan": float_nan(x, exp, man), "twice": float_twice(x, number), "minus_zero": minus_zero(ours)}
        counts += compare(x, same_numbers(ours, theirs), known, str(number))
    assert counts == FLOATS[exp]


# Fixed point. There 0.5 is added to the count of steps, in float32, and subtracted in float64.


def fixed_steps(x, number):
    """The counts of steps, which without clamping may be beyond float32."""
    with np.errstate(over="ignore"):
        return np.ldexp(np.where(np.isnan(x), 0, x), number.fl)


def fixed_twice(x, number):
    """The sum is rounded already, to even."""
    steps = fixed_steps(x, number)
    sums = (steps + np.float32(0.5)).astype(np.float64)
    largest = np.inf if not number.clamp else 2.0 ** (number.wl - 1) - 1
    once, twice = (np.rint(y).clip(-largest - (not number.symmetric), largest) for y in (steps, sums - 0.5))
    return once != twice


def fixed_minus_zero(x, number, ours):
    """Of what rounds to zero only that keeps its sign which makes the sum less than 0.5."""
    return minus_zero(ours) & (fixed_steps(x, number) + np.float32(0.5) == 0.5)


def fixed_unclamped(x, number):
    """What has more steps than float32 has numbers for becomes infinity, unless it is clamped."""
    return (not number.clamp) & np.isinf(fixed_steps(x, number)) & np.isfinite(x)


FIXED = {  # counts, of 300,000 numbers
    FixedPoint(1, 0): {"minus_zero": 45795},
    FixedPoint(2, 1): {"twice": 2, "minus_zero": 45342},
    FixedPoint(4, 2): {"twice": 2, "minus_zero": 44854},
    FixedPoint(8, 4): {"twice": 2, "minus_zero": 43686},
    FixedPoint(8, 0): {"twice": 2, "minus_zero": 45527},
    FixedPoint(16, 10): {"twice": 2, "minus_zero": 16657},
    FixedPoint(24, 20): {"twice": 2, "minus_zero": 14934},
    FixedPoint(24, 0): {"twice": 2, "minus_zero": 18545},
    FixedPoint(8, -3): {"twice": 2, "minus_zero": 46882},
    FixedPoint(8, 12): {"twice": 2, "minus_zero": 40140},
    FixedPoint(8, 4, symmetric=True): {"twice": 2, "minus_zero": 43686},
    FixedPoint(8, 7, clamp=False): {"twice": 319, "minus_zero": 42364, "unclamped": 6393},
    FixedPoint(8, 0, clamp=False): {"twice": 324, "minus_zero": 45527},
}


@pytest.mark.parametrize("number", FIXED, ids=repr)
def test_fixed(qpytorch, number):
    (x,) = hard_inputs(number, 300_000)
    ours = qcore.quantize(x, number, "nearest")
    options = {"wl": number.wl, "fl": number.fl, "clamp": number.clamp, "symmetric": number.symmetric}
    known = {
        "twice": fixed_twice(x, number),
        "minus_zero": fixed_minus_zero(x, number, ours),
        "unclamped": fixed_unclamped(x, number),
    }
    same = same_numbers(ours, qpytorch("fixed_point_quantize", x, **options))
    assert compare(x, same, known, str(number)) == FIXED[number]
