"""Torch's kernels of products against the law in NumPy, on hard inputs of many shapes."""

import numpy as np
import pytest
import torch
from calls import calls_of
from covering import usually
from products_support import ACCUMULATORS, KINDS, inputs
from support import assert_same_bits

from qcore import Accumulator, Product
from qcore.linalg.arrays import multiply_arrays
from qcore.linalg.convolution import ConvolutionGeometry
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry
from qtorch import linalg
from qtorch._rounding.keys import key_tensor
from qtorch.linalg.native import ProductSpec
from qtorch.linalg.operator import multiply_tensors

KEY = 5 << 32 | 7
PLAIN = {  # what one kernel does, which has blocks, and tiles within
    "exact": Accumulator(),
    "one rounding": Accumulator("float(6,9)"),
    "chunks": Accumulator("float(6,9)", chunk=24),
    "stochastic": Accumulator("float(6,9)", chunk=50, rounding="stochastic"),
    "few random bits": Accumulator("e5m2", chunk=33, rounding="stochastic", random_bits=5),
}


def check(geometry, which, accumulator, operands, first, second, other, name=""):
    product = Product(*operands, accumulator)
    expected = multiply_arrays(geometry, which, product, first, second, other, KEY)
    tensors = torch.from_numpy(first), torch.from_numpy(second)
    key = key_tensor(KEY) if product.stochastic else None
    found = multiply_tensors(
        *tensors, key, None, ProductSpec(other, expected.shape, geometry.text, which, product.text)
    )
    assert_same_bits(found, expected, name)


# Chunks of other formats, and one direction of two; `test_blocks_and_tiles` takes stochastic chunks and few bits.
HEAVY = "bfloat16 chunks", "float32 chunks", "stochastic chunks", "up", "few random bits"


@pytest.mark.parametrize("name", usually({*ACCUMULATORS} - {*HEAVY}, ACCUMULATORS))
def test_all_accumulators(name):
    """Inputs of all kinds side by side, with operands of formats and of float32."""
    pairs = [inputs(kind, 3, 19, 3) for kind in KINDS]
    a, b = np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs], axis=1)
    for operands in ((None, None), ("e4m3fn", "e4m3fn")):
        check(MatrixGeometry(), FORWARD, ACCUMULATORS[name], operands, a, b, b.shape, str(operands))


@pytest.mark.parametrize("name", PLAIN)
def test_blocks_and_tiles(name):
    """Sizes below, at and beyond those of tiles and of blocks, of rows, of columns and of terms."""
    rng = np.random.default_rng(0)
    for m, k, n in ((1, 1, 1), (8, 256, 144), (97, 257, 25), (5, 700, 300), (200, 30, 9)):
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
        check(MatrixGeometry(), FORWARD, PLAIN[name], (None, "e4m3fn"), a, b, b.shape, f"{m}, {k}, {n}")


def test_matrices_of_all_strides():
    rng = np.random.default_rng(1)
    x, y = (torch.from_numpy(rng.standard_normal((2, 3, 20, 20)).astype(np.float32)) for _ in range(2))
    for a, b in ((x, y), (x.mT, y), (x, y.mT), (x.transpose(0, 1), y.transpose(0, 1)), (x[..., ::2], y[..., ::2, 3:4])):
        product, shape = Product(None, None, PLAIN["chunks"]), (*a.shape[:-1], b.shape[-1])
        found = multiply_tensors(a, b, None, None, ProductSpec(b.shape, shape, "matmul", FORWARD, product.text))
        expected = multiply_arrays(MatrixGeometry(), FORWARD, product, a.numpy(), b.numpy(), tuple(b.shape), None)
        assert_same_bits(found, expected.reshape(found.shape))


def test_random_words_of_what_no_kernel_does():
    """Scales along what is summed over; with 16 random bits four roundings share words, with 17 none."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 12), (12, 3)))
    operand = "operand(e4m3fn,scale=scale(terms=4))"
    for bits in (16, 17):
        accumulator = Accumulator("float(6,9)", chunk=4, rounding="stochastic", random_bits=bits)
        check(MatrixGeometry(), FORWARD, accumulator, (operand, operand), a, b, b.shape, str(bits))


GEOMETRIES = {  # stride, padding, dilation, groups; shapes
    "plain": (ConvolutionGeometry((1, 1), (1, 1), (1, 1)), (2, 4, 9, 8), (6, 4, 3, 3)),
    "groups": (ConvolutionGeometry((2, 1), (1, 0), (1, 1), 2), (2, 4, 7, 6), (6, 2, 3, 2)),
    "dilated": (ConvolutionGeometry((3, 3), (0, 4), (2, 1)), (1, 2, 9, 8), (2, 2, 3, 3)),
    "one tap": (ConvolutionGeometry((2,), (0,), (1,)), (3, 20, 15), (5, 20, 1)),
    "three dimensions": (ConvolutionGeometry((1, 2, 2), (0, 0, 1), (1, 1, 1)), (1, 2, 4, 3, 5), (2, 2, 2, 1, 3)),
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_convolutions(name):
    """Forward and of both gradients."""
    geometry, shape, weight = GEOMETRIES[name]
    rng = np.random.default_rng(2)
    x, w, gradient = (
        rng.standard_normal(one).astype(np.float32) for one in (shape, weight, geometry.result(shape, weight))
    )
    x[0, 0, ..., 0], w[0, 0, ..., -1] = np.inf, np.nan
    for accumulator in (PLAIN["exact"], PLAIN["few random bits"], ACCUMULATORS["sequential"]):
        check(geometry, FORWARD, accumulator, ("e5m2", "e4m3fn"), x, w, weight)
        check(geometry, GRAD_A, accumulator, (None, None), gradient, w, shape)
        check(geometry, GRAD_B, accumulator, (None, "e5m2"), gradient, x, weight)


@pytest.mark.parametrize(("chunk", "operands"), [(4, ("e4m3fn", "e4m3fn")), (1, None)])
def test_a_product_and_its_gradients_enter_few_functions(chunk, operands):
    """Of Python's, torch's own among them; a third of these are `backward`'s."""
    a, b = (torch.ones(8, 8, requires_grad=True) for _ in range(2))
    accumulator = Accumulator("float(6,9)", chunk=chunk)

    def step():
        y = linalg.matmul(a, b, operands=operands, accumulator=accumulator)
        y.backward(torch.ones_like(y))

    for _ in range(3):  # compiles and remembers
        step()
    entered = calls_of(step)
    assert len(entered) <= 120, entered
