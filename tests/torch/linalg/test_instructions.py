"""Kernels of aligned sums and of instructions: the bits of the law in NumPy, where exponents and scales are hard."""

import numpy as np
import pytest
import torch
from designs_support import cases, scales_of
from support import assert_same_bits

from qcore import Accumulator, parse
from qcore.linalg import law, namespace
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
