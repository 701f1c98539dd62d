"""What kernels do with tensors of any size and shape, on one thread and on several."""

import sys
import threading

import numpy as np
import pytest
import torch
from covering import some
from support import DTYPES, assert_same_bits, to_torch

import qcore
import qtorch
from qcore import BlockFloatingPoint, BlockScaled, FloatingPoint
from qtorch._rounding.keys import make_noise
from qtorch._rounding.plan import make_plan, plan_for

F = FloatingPoint(5, 2)
KINDS = [
    (F, "nearest", "float32", False),
    (F, "stochastic", "float32", False),
    (F, "nearest", "float64", False),
    (F, "nearest", "float16", False),
    (F, "stochastic", "bfloat16", False),
    ("e4m3fn", "nearest", "float16", True),
    ("e4m3fn", "nearest", "float32", True),
    ("float16", "nearest", "float32", True),
]
LARGE = 1 << 15  # elements, from which threads share a tensor


def inputs(size, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(size).astype(DTYPES[dtype])


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(("number", "mode", "dtype", "coded"), KINDS)
def test_sizes_of_any_number_of_elements(number, mode, dtype, coded):
    """Up to some vectors; and from where there are threads."""
    key, start = (5, 2**32 - 70) if mode == "stochastic" else (None, 0)
    expected_of, actual_of = (qcore.encode, qtorch.encode) if coded else (qcore.quantize, qtorch.quantize)
    for size in (*range(1, 140), 255, 256, 257, 1000, 4095, 4097, LARGE - 1, LARGE + 1, 100_001):
        x = inputs(size, dtype, size)
        actual = actual_of(to_torch(x), number, mode, key=key, start=start)
        assert_same_bits(actual, expected_of(x, number, mode, key=key, start=start), f"{size} elements")


@pytest.mark.parametrize("size", [1, 63, 65, 40_001])
def test_nothing_is_written_beyond_the_end(size):
    x, room = torch.from_numpy(inputs(size)), torch.full((size + 100,), 7.0)
    kernel, constants = plan_for(F, "nearest", x.dtype, None, False).kernels["flat"]
    kernel(size, x.data_ptr(), constants, room.data_ptr())
    assert_same_bits(room[:size], qcore.quantize(x.numpy(), F, "nearest"))
    assert (room[size:] == 7).all()


@pytest.mark.parametrize("sizes", [(1, 64, 65, 200), (100, 30_001, 1, 70_000, 64)], ids=["small", "with threads"])
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_several_calls_at_once(mode, sizes, threads):
    """Threads share the elements of all of them; each has its own random words."""
    xs = [torch.from_numpy(inputs(size, seed=size)) for size in sizes]
    results = [torch.empty_like(x) for x in xs]
    kernel, constants = plan_for(F, mode, torch.float32, None, False).kernels["flat"]
    noises = [make_noise(i, 24, 2**32 - 100 * i, x) if mode == "stochastic" else () for i, x in enumerate(xs)]
    given = []
    for x, noise, result in zip(xs, noises, results, strict=True):
        given += [x.numel(), x.data_ptr(), constants, *(one.data_ptr() for one in noise), result.data_ptr()]
    kernel(*given)
    for i, (x, result) in enumerate(zip(xs, results, strict=True)):
        key, start = (i, 2**32 - 100 * i) if mode == "stochastic" else (None, 0)
        assert_same_bits(result, qcore.quantize(x.numpy(), F, mode, key=key, start=start))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("number", "shape"),
    [
        *((BlockFloatingPoint(8, dim), (70, 30, 40)) for dim in (-1, 0, 1, 2)),
        *((name, (300, 320)) for name in ("mxfp8_e4m3", "nvfp4")),
        *((BlockScaled("e4m3fn", block), (320, 320)) for block in ({0: 32}, {-1: 32, -2: 32}, {...: None})),
    ],
    ids=str,
)
def test_large_blocks(number, shape):
    """Kernels with threads are other code than those without."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[-1, -1] = np.nan
    x[3, 5], x[7], x[0, 0] = np.inf, 0, 1e-40
    for mode, key in (("nearest", None), ("stochastic", 3)):
        expected = qcore.quantize(x, number, mode, key=key)
        assert_same_bits(qtorch.quantize(torch.from_numpy(x), number, mode, key=key), expected)


@some((0, 0), (1, 1), (2, 0), dtype=["float64", "float16", "bfloat16"], mode=["nearest", "stochastic"])
def test_blocks_along_rows_of_other_dtypes(dtype, mode):
    """Whose maxima have other lanes; kernels with threads and without."""
    key = 3 if mode == "stochastic" else None
    for shape in ((3, 41), (300, 320)):
        x = np.random.default_rng(0).standard_normal(shape).astype(DTYPES[dtype])
        x[1], x[0, 5], x[2, 7] = 0, np.inf, np.nan
        expected = qcore.quantize(x, BlockFloatingPoint(8, 0), mode, key=key)
        assert_same_bits(qtorch.quantize(to_torch(x), BlockFloatingPoint(8, 0), mode, key=key), expected)


SHAPES = [(300, 301), (3, 40_001), (40_001, 3), (7, 5, 4000), (1, 100_000)]
BLOCKS = [BlockFloatingPoint(8, -1), BlockFloatingPoint(8, 0), BlockFloatingPoint(8, 1), "mxfp4", "nvfp4"]
BLOCKS += [BlockScaled("e5m2", {0: 7, -1: 9}), BlockScaled("e4m3fn", {0: None})]


@pytest.mark.parametrize("number", BLOCKS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_threads_share_blocks_and_their_elements(number, shape, threads):
    """Many small blocks, few large ones, and such that do not divide the tensor."""
    x = inputs(shape)
    for mode, key in (("nearest", None), ("stochastic", 3)):
        expected = qcore.quantize(x, number, mode, key=key)
        assert_same_bits(qtorch.quantize(to_torch(x), number, mode, key=key), expected)


@pytest.mark.parametrize("number", ["mxfp8_e4m3", "nvfp4", BlockScaled("e5m2", {...: None})], ids=str)
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (1, 1), (1,)], ids=str)
def test_empty_and_single_blocks(number, shape):
    x = inputs(shape)
    for one, other in zip(leaves(qtorch.encode(to_torch(x), number)), leaves(qcore.encode(x, number)), strict=True):
        assert_same_bits(one, other)


def leaves(tree):
    return [leaf for one in tree for leaf in leaves(one)] if isinstance(tree, tuple) else [tree]


def test_large_kernels_leave_other_threads_alone():
    """They release Python's lock while they run; between switches there is an hour here."""
    x = torch.randn(1 << 24)
    result, plan, noise = torch.empty_like(x), make_plan(F, "stochastic", x.dtype, None, False), make_noise(1, 24, 0, x)
    kernel, constants = plan.kernels["flat"]
    addresses = [x.data_ptr(), constants, *(one.data_ptr() for one in noise), result.data_ptr()]
    began, order, interval = threading.Event(), [], sys.getswitchinterval()

    def run():
        began.set()
        kernel(x.numel(), *addresses)
        order.append("kernel")

    sys.setswitchinterval(3600)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        began.wait()
        order.append("other")
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert order == ["other", "kernel"]
