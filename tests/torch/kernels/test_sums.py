"""The kernel of sums by halves beside the law on NumPy arrays."""

import numpy as np
import pytest
import torch
from support import assert_same_bits

from qcore.reproducible import Names
from qcore.reproducible.operations import tree_sums
from qtorch._kernels import products
from qtorch.reproducible import Names as TensorNames

CASES = [
    ((8, 4, 8, 8), (0, 2, 3)),  # batch norm
    ((64, 32), (1,)),  # layer norm
    ((64, 128), (0,)),  # a bias
    ((5, 7, 3), (0, 2)),  # odd rests
    ((9, 3, 1201), (0,)),  # more columns than a thread has side by side, and enough numbers for several threads
    ((70001,), (0,)),
    ((1, 3), (0, 1)),
    ((2, 0, 3), (1,)),
    ((2, 3), ()),
]


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def numbers(shape):
    """Of forty decades: another order of additions has other bits."""
    rng = np.random.default_rng(len(shape))
    return (rng.standard_normal(shape) * 10.0 ** rng.integers(-20, 20, shape)).astype(np.float32)


@pytest.mark.parametrize("with_products", [False, True])
@pytest.mark.parametrize(("shape", "axes"), CASES)
def test_sums(threads, shape, axes, with_products):
    a, b = numbers(shape), numbers(shape[::-1]).reshape(shape) if with_products else None
    of_torch = torch.from_numpy(a), torch.from_numpy(b) if with_products else None
    expected = tree_sums(Names, a, b, axes)
    assert_same_bits(TensorNames.sums(*of_torch, axes), expected)
    assert_same_bits(tree_sums(TensorNames, *of_torch, axes), expected)


def test_sums_of_other_layouts():
    """Transposed, repeated without copies, and under vmap."""
    a = numbers((6, 5, 4))
    x, row = torch.from_numpy(a), torch.from_numpy(a[:1])
    assert_same_bits(
        TensorNames.sums(x.transpose(0, 2), None, (0,)), tree_sums(Names, a.transpose(2, 1, 0), None, (0,))
    )
    repeated = np.broadcast_to(a[:1], a.shape)
    assert_same_bits(TensorNames.sums(x, row.expand(a.shape), (0, 1)), tree_sums(Names, a, repeated, (0, 1)))
    one = torch.func.vmap(lambda v, w: TensorNames.sums(v, w, (0,)), (1, None))(x, x[:, 0])
    assert_same_bits(one, tree_sums(Names, a.transpose(1, 0, 2), np.stack([a[:, 0]] * 5), (1,)))


def test_the_kernel_is_used():
    assert products.tree_sums() is not None
