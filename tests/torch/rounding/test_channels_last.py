"""Stochastic rounding of tensors whose channels lie side by side: random words are those of the logical order."""

import numpy as np
import pytest
import torch
from support import DTYPES, assert_same_bits, to_torch
from torch._inductor.utils import fresh_cache

import qcore
import qtorch
from qcore import FloatingPoint
from qtorch._rounding.paths import kernels

F = FloatingPoint(5, 2)
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


@pytest.fixture
def seen(monkeypatch):
    """What the kernel was called for, and what came of it."""
    found, round_places = [], kernels._round_places

    def watched(x, plan, noise):
        result = round_places(x, plan, noise)
        found.append((x, None) if result is None else (x.clone(), result.clone()))  # which programs write over
        return result

    monkeypatch.setattr(kernels, "_round_places", watched)
    return found


def inputs(shape, dtype="float32"):
    x = np.random.default_rng(0).standard_normal(shape).astype(DTYPES[dtype])
    return x, to_torch(x).contiguous(memory_format=FORMATS[len(shape)])


@pytest.mark.parametrize("start", [0, 2**32 - 50, 2**64 - 7])
@pytest.mark.parametrize(
    "shape",
    [
        (2, 16, 4, 5),
        (1, 32, 2, 1),
        (3, 70, 9, 11),
        (2, 24, 3, 4, 6),
        (2, 3, 40, 50),
        (2, 100, 41, 41),
        (2, 3, 43, 43),
        (2, 2048, 2, 3),
        (8, 16, 32, 32),
        (1, 16, 50, 50),
        (2, 3, 2, 2),
        (1, 5, 1, 1009),
        (1, 4100, 2, 2),
    ],
    ids=str,
)
def test_bits_of_the_logical_order(shape, start, seen):
    x, y = inputs(shape)
    actual = qtorch.quantize(y, F, "stochastic", key=7, start=start, random_bits=20)
    assert seen[0][1] is not None
    assert actual.stride() == y.stride()
    assert_same_bits(actual, qcore.quantize(x, F, "stochastic", key=7, start=start, random_bits=20))


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_dtypes(dtype):
    x, y = inputs((3, 16, 7, 9), dtype)
    actual = qtorch.quantize(y, F, "stochastic", key=7)
    assert actual.stride() == y.stride()
    assert_same_bits(actual, qcore.quantize(x, F, "stochastic", key=7))


def test_codes(seen):
    x, y = inputs((2, 16, 4, 5))
    actual = qtorch.encode(y, "e4m3fn", "stochastic", key=7)
    assert seen[0][1] is not None
    assert actual.stride() == y.stride()
    assert_same_bits(actual, qcore.encode(x, "e4m3fn", "stochastic", key=7))


def test_parts_that_are_not_contiguous_in_this_order():
    x, y = inputs((3, 6, 8, 8))
    for view, part in ((y[:, :4], x[:, :4]), (y[:, :, ::2], x[:, :, ::2]), (y.transpose(2, 3), x.swapaxes(2, 3))):
        assert_same_bits(qtorch.quantize(view, F, "stochastic", key=7), qcore.quantize(part, F, "stochastic", key=7))


@pytest.mark.heavy
def test_compiled_programs_do_not_copy_what_convolutions_want(seen):
    """There the operator takes tensors as they are; otherwise each is copied before and after."""
    first, second = (torch.nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))

    def program(x, key):
        return second(qtorch.quantize(first(x), F, "stochastic", key=key))

    torch._dynamo.reset()
    with fresh_cache(), torch.no_grad():
        torch.compile(program, fullgraph=True)(torch.randn(4, 16, 20, 20), torch.tensor([0, 7]))
    ((x, result),) = seen
    assert x.stride() == result.stride() == (6400, 1, 320, 16)
    assert_same_bits(result, qcore.quantize(x.contiguous().numpy(), F, "stochastic", key=7))
