"""Kernels of aligned sums and of instructions: the bits of the law in NumPy, where exponents and scales are hard."""

import numpy as np
import pytest
import torch
from designs_support import cases, scales_of
from support import assert_same_bits

import qtorch
from qcore import Accumulator, parse
from qcore.linalg import law, matmul, namespace
from qcore.linalg.designs import DESIGNS, EXACT, FUSED, PAIRS, least_exponent
from qtorch._kernels import products
from qtorch.linalg.namespace import Float64

# One of each template's conditions; the others are all that differ in the C.
USUAL = ("volta.mma.f16.f16", "hopper.wgmma.e4m3", "blackwell.tcgen05.nvf4", "cdna3.mfma.fp8", "cdna2.mfma.f16")


def _source(name):
    accumulator = Accumulator.of(name)
    unaligned = DESIGNS[name].law in (PAIRS, FUSED, EXACT)
    return (products.source_of_unaligned if unaligned else products.source_of_aligned)(accumulator)


NAMES = {_source(name): name for name in [*reversed(DESIGNS), *USUAL]}.values()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in USUAL else pytest.mark.heavy) for name in sorted(NAMES)]
)
def test_kernels_have_the_bits_of_the_law(name, monkeypatch):
    design, accumulator, rng = DESIGNS[name], Accumulator.of(name), np.random.default_rng(8)
    rows, terms, columns = 13, 160, 21
    a, b, c = cases(rng, name, rows, terms, columns)
    shapes = ((rows, terms // design.block), (terms // design.block, columns)) if design.block else ()
    scales = tuple(scales_of(rng, design.scale, shape) for shape in shapes) or None
    least = tuple(least_exponent(parse(text)) for text in design.operands)
    sums = law.Sums(accumulator, False, least=least)
    tensors = tuple(map(torch.from_numpy, scales)) if scales else None
    with np.errstate(all="ignore"):
        expected = [law.multiply(namespace.Float64(), a, b, sums, scales, addend) for addend in (None, c)]
    monkeypatch.setattr(law, "add_step", None)  # no step in Python
    for addend, result in zip((None, torch.from_numpy(c)), expected, strict=True):
        found = law.multiply(Float64(), torch.from_numpy(a), torch.from_numpy(b), sums, tensors, addend).numpy()
        assert_same_bits(*(np.where(np.isnan(x), np.nan, x) for x in (found, result)), f"{addend is None}")


@pytest.mark.parametrize("name", ["cdna1.mfma.f16", "cdna1.mfma.bf16"])
def test_exact_sums(name):
    """Numbers of few bits, whose sums float64 holds and which tie, beside some of many binades, infinities and NaN."""
    rng, shapes = np.random.default_rng(3), ((9, 100), (100, 70), (9, 70))
    a, b, c = (
        np.round(rng.standard_normal(shape) * 2.0**6).astype(np.float32) * np.float32(2.0**-7) for shape in shapes
    )
    a[4] *= np.exp2(rng.integers(-30, 9, 100)).astype(np.float32)
    b[:, 40], a[6, 33], b[70, 41], c[0, 3] = b[:, 40] * np.float32(2.0**-20), np.inf, np.nan, -np.inf
    a[8], b[:, 69], c[8, 69] = 0, 0, 2.0**8
    a[8, :2], b[:2, 69] = 2.0**-8, [2.0**-8, 2.0**-24]  # half of a place of float32, and beyond float64's last bit
    a[8, 1] *= 2.0**-16
    found = qtorch.linalg.matmul(*map(torch.from_numpy, (a, b, c)), accumulator=name)
    assert_same_bits(found, matmul(a, b, c, accumulator=name))
    assert found[8, 69] == 2.0**8 + 2.0**-15
