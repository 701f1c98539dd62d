"""Kernels that take numbers of elements: rows that are not full, and several calls at once."""

import numpy as np
import pytest
import torch
from support import DTYPES, assert_same_bits, to_torch

import qcore
import qtorch
from qcore import FloatingPoint
from qtorch import native
from qtorch.keys import make_noise
from qtorch.launch import round_each
from qtorch.plan import plan_for

F = FloatingPoint(5, 2)
KINDS = [  # whose kernels see an element in a float of its own, or two in an integer; and write such, or codes
    (F, "nearest", "float32", False),
    (F, "stochastic", "float32", False),
    (F, "nearest", "float64", False),
    (F, "nearest", "float16", False),
    (F, "stochastic", "bfloat16", False),
    ("e4m3fn", "nearest", "float16", True),
    ("e4m3fn", "nearest", "float32", True),
    ("float16", "nearest", "float32", True),
]


def inputs(size, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(size).astype(DTYPES[dtype])


@pytest.mark.parametrize(("number", "mode", "dtype", "coded"), KINDS)
def test_sizes_of_any_number_of_elements(number, mode, dtype, coded):
    """Up to some rows; and from where there are threads, of which the last has a rest."""
    key, start = (5, 2**32 - 70) if mode == "stochastic" else (None, 0)
    expected_of, actual_of = (qcore.encode, qtorch.encode) if coded else (qcore.quantize, qtorch.quantize)
    for size in (*range(1, 140), 255, 256, 257, 1000, native.SERIAL_BELOW - 1, native.SERIAL_BELOW + 1, 100_001):
        x = inputs(size, dtype, size)
        actual = actual_of(to_torch(x), number, mode, key=key, start=start)
        assert_same_bits(actual, expected_of(x, number, mode, key=key, start=start), f"{size} elements")


@pytest.mark.parametrize("size", [1, 63, 65, 40_001])
def test_nothing_is_written_beyond_a_rest(size):
    x, room = torch.from_numpy(inputs(size)), torch.full((size + 100,), 7.0)
    kernel, constants = plan_for(F, "nearest", x.dtype, None, False).runner("flat", None)
    kernel(size, x, constants, room)
    assert_same_bits(room[:size], qcore.quantize(x.numpy(), F, "nearest"))
    assert (room[size:] == 7).all()


@pytest.mark.parametrize("sizes", [(1, 64, 65, 200), (100, 30_001, 1, 70_000, 64)], ids=["small", "with threads"])
@pytest.mark.parametrize("mode", ["nearest", "stochastic"])
def test_several_calls_at_once(mode, sizes):
    """Threads share the rows of all of them; each has its own random words."""
    xs = [torch.from_numpy(inputs(size, seed=size)) for size in sizes]
    results = [torch.empty_like(x) for x in xs]
    kernel, constants = plan_for(F, mode, torch.float32, None, False).runner("flat", None)
    noises = [make_noise(i, 24, 2**32 - 100 * i, x) if mode == "stochastic" else () for i, x in enumerate(xs)]
    calls = zip(xs, noises, results, strict=True)
    kernel(*(given for x, noise, result in calls for given in (x.numel(), x, constants, *noise, result)))
    for i, (x, result) in enumerate(zip(xs, results, strict=True)):
        key, start = (i, 2**32 - 100 * i) if mode == "stochastic" else (None, 0)
        assert_same_bits(result, qcore.quantize(x.numpy(), F, mode, key=key, start=start))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_many_tensors_are_rounded_where_they_are(dtype, threads):
    xs = [inputs(size, dtype, size) for size in (16, 432, 16, 0, 2304, 10, 50_001)]
    tensors, before = list(map(to_torch, xs)), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert round_each(tensors, F, qcore.Rounding.NEAREST)
    finally:
        torch.set_num_threads(before)
    for x, tensor in zip(xs, tensors, strict=True):
        assert_same_bits(tensor, qcore.quantize(x, F, "nearest"))


def test_what_cannot_be_rounded_where_it_is():
    assert not round_each([torch.ones(4)], F, qcore.Rounding.STOCHASTIC)
    assert not round_each([torch.ones(4)], qcore.BlockFloatingPoint(8), qcore.Rounding.NEAREST)
