"""What tests of products share: inputs, accumulators, and the oracle's form of these."""

import numpy as np
from support import spec

from qcore import Accumulator
from qcore.linalg.accumulator import FLOAT64_NUMBER

FLOAT16 = "float(6,9)"
ACCUMULATORS = {
    "exact": Accumulator(),
    "float64": Accumulator(FLOAT64_NUMBER, chunk=1),
    "float32 chunks": Accumulator(chunk=4),
    "chunks": Accumulator(FLOAT16, chunk=8),
    "bfloat16 chunks": Accumulator("bfloat16", chunk=3),
    "sequential": Accumulator(FLOAT16, chunk=1),
    "toward zero": Accumulator("float16", chunk=1, rounding="toward_zero"),
    "up": Accumulator("e5m2", chunk=2, rounding="up"),
    "fixed, wrapping": Accumulator("fixed(16,8,wrap=True)", chunk=1),
    "posit": Accumulator("posit16", chunk=5),
    "stochastic": Accumulator(FLOAT16, chunk=1, rounding="stochastic"),
    "stochastic chunks": Accumulator("bfloat16", chunk=8, rounding="stochastic", random_bits=20),
    "few random bits": Accumulator(FLOAT16, chunk=1, rounding="stochastic", random_bits=16),  # the most of half a word
    "rounded products": Accumulator(FLOAT16, chunk=2, product="e5m2"),
    "two levels": Accumulator(FLOAT16, chunk=8, inner=Accumulator(FLOAT16, chunk=1)),
    "two stochastic levels": Accumulator(
        FLOAT16, 8, "stochastic", inner=Accumulator("float16", 2, "stochastic", random_bits=9)
    ),
    "tree": Accumulator(FLOAT16, chunk=6, tree=True),
    "stochastic tree": Accumulator("float16", chunk=7, rounding="stochastic", tree=True),
    "aligned": Accumulator(chunk=4, fraction_bits=23, output="toward_zero"),
    "aligned, few bits": Accumulator("float16", chunk=8, fraction_bits=13),
    "aligned as chips": Accumulator(
        chunk=8,
        fraction_bits=12,
        output="toward_zero",
        subnormals=-126,
        zeros=-20,
        overflow="inf",
        positive_zero=True,
    ),
    "aligned downward": Accumulator("float16", 4, fraction_bits=11, cut="down", subnormals=-3, overflow="inf"),
    "products alone": Accumulator(chunk=4, fraction_bits=9, align="products", zeros=-30, order=(1, 0)),
    "aligned twice": Accumulator(chunk=4, fraction_bits=10, align="twice", sum_bits=14, sum_cut="down"),
    "aligned in sets": Accumulator(
        chunk=4, fraction_bits=9, subnormals=-126, align="twice", sum_cut="down", sets=2, order=(0, 2, 1, 3)
    ),
    "addend late": Accumulator(
        "float16",
        chunk=8,
        order=(0, 1, 4, 5, 2, 3, 6, 7),
        inner=Accumulator(
            "float16", 4, fraction_bits=12, subnormals=-14, zeros=-21, overflow="inf", positive_zero=True
        ),
    ),
}
_LEAST = {"binary(8,23)": -126, "float16": -14}  # exponents of the least normal numbers
_OF_ALIGNED = "subnormals", "zeros", "align", "sum_bits", "sets", "overflow", "positive_zero"


def oracle_form(accumulator):
    """The oracle's description of an accumulator."""
    form = {
        "number": None if accumulator.number == FLOAT64_NUMBER else spec(accumulator.number),
        "chunk": accumulator.chunk,
        "rounding": accumulator.rounding.value,
        "random_bits": accumulator.random_bits,
    }
    if accumulator.product is not None:
        form["product"] = spec(accumulator.product)
    if accumulator.inner is not None:
        form["inner"] = oracle_form(accumulator.inner)
    if accumulator.tree:
        form["tree"] = True
    if accumulator.order:
        form["order"] = accumulator.order
    if accumulator.fraction_bits is not None:
        form |= {name: getattr(accumulator, name) for name in _OF_ALIGNED} | {
            "fraction_bits": accumulator.fraction_bits,
            "cut": accumulator.cut.value,
            "sum_cut": accumulator.sum_cut and accumulator.sum_cut.value,
            "least": _LEAST.get(accumulator.number.text),
            "beyond": 2.0 ** {"binary(8,23)": 128, "float16": 16}.get(accumulator.number.text, 0),
        }
    return form


def _mixed(rng, shape):
    """Numbers of all magnitudes, and special ones."""
    x = rng.standard_normal(shape).astype(np.float32) * np.exp2(rng.integers(-30, 30, shape)).astype(np.float32)
    hard = np.float32([0, -0.0, 1e-45, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan])
    return np.where(rng.random(shape) < 0.03, rng.choice(hard, shape), x)


def inputs(kind, m, k, n, batch=()):
    """Two operands, hard in a way that `kind` says."""
    rng = np.random.default_rng(len(kind) + 1000 * k)
    shapes = (*batch, m, k), (*batch, k, n)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    if kind == "cancelling":
        half = k // 2
        a[..., half : 2 * half] = -a[..., :half]
        b[..., half : 2 * half, :] = b[..., :half, :]
    if kind == "subnormal":
        a, b = a * np.float32(2.0**-70), b * np.float32(2.0**-75)
        a[..., ::2] *= np.float32(2.0**-70)
    if kind == "overflowing":
        a, b = a * np.float32(2.0**64), b * np.float32(2.0**63)
    if kind == "special":
        a, b = (_mixed(rng, shape) for shape in shapes)
    if kind == "of formats":
        a = np.float32(rng.integers(-31, 32, shapes[0]) * np.exp2(rng.integers(-8, 4, shapes[0])))
        b = np.float32(rng.integers(-31, 32, shapes[1]) * np.exp2(rng.integers(-8, 4, shapes[1])))
    if kind == "zeros":
        a, b = (np.where(rng.random(x.shape) < 0.5, np.float32(-0.0), x) for x in (np.float32(a > 0) * a, b))
        b = b * np.float32(rng.random(b.shape) < 0.3)
    return a, b


KINDS = ("normal", "of formats", "cancelling", "subnormal", "overflowing", "special", "zeros")
