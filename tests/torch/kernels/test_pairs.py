"""The kernel of accumulators whose chunks are added in pairs, beside NumPy's operations."""

import numpy as np
import pytest
import torch
from support import assert_same_bits

from qcore import Accumulator
from qcore.linalg import matmul
from qtorch import linalg
from qtorch._kernels import products

ACCUMULATORS = [
    Accumulator("float16", chunk=4, tree=True),
    Accumulator("bfloat16", chunk=7, tree=True),
    Accumulator("float32", chunk=64, tree=True),
    Accumulator("e5m2", chunk=3, rounding="toward_zero", tree=True),
    Accumulator("fixed(16,8)", chunk=5, tree=True),
    Accumulator("float16", chunk=8, inner=Accumulator("float16", chunk=4, tree=True)),
]


@pytest.mark.parametrize("accumulator", ACCUMULATORS, ids=lambda one: one.text)
@pytest.mark.parametrize(("m", "k", "n"), [(5, 23, 7), (33, 64, 40), (1, 1, 1)])
def test_pairs(accumulator, m, k, n):
    """Rows and columns beyond a tile, chunks that are not full, infinities, NaN, zeros, and with an addend."""
    assert products.sequential(accumulator.innermost, False) is not None
    assert accumulator.innermost.in_pairs
    rng = np.random.default_rng(k)
    a, b = (rng.standard_normal(shape) * np.exp2(rng.integers(-8, 8, shape)) for shape in ((m, k), (k, n)))
    a, b = a.astype(np.float32), b.astype(np.float32)
    if m == 5:
        a[0, 3], a[1, 2], a[2] = np.inf, np.nan, 0
    for addend in (None, rng.standard_normal((m, n)).astype(np.float32)):
        expected = matmul(a, b, addend, accumulator=accumulator)
        tensors = [None if one is None else torch.from_numpy(one) for one in (a, b, addend)]
        found = linalg.matmul(*tensors, accumulator=accumulator).numpy()
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        assert_same_bits(np.nan_to_num(found), np.nan_to_num(expected))


def test_stochastic_pairs_run_by_operations():
    assert not Accumulator("float16", chunk=4, rounding="stochastic", tree=True).in_pairs
