"""The affine law needs nothing of an array namespace but its names, and gives the same bits on tensors."""

import types
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from affine_support import activations, ties
from support import assert_same_bits

from qcore.affine import (
    INT8,
    UINT8,
    Histogram,
    MinMax,
    MovingAverageMinMax,
    MovingAveragePerChannelMinMax,
    Names,
    PerChannelMinMax,
    QParams,
    choose_qparams,
    choose_qparams_dynamic,
    dequantize,
    fake_quantize,
    quantize_affine,
    requantize,
)


def _extremes(x, axes):
    return (torch.amin(x, axes), torch.amax(x, axes)) if axes else (x, x)


def _full_like(x, value, dtype):
    return torch.full_like(x, value, dtype=getattr(torch, dtype))


# The names that the affine law may use, for tensors.
TENSORS = {
    "where": torch.where,
    "clip": torch.clip,
    "rint": torch.round,
    "floor": torch.floor,
    "divide": torch.divide,
    "einsum": torch.einsum,
    "exp": torch.exp,
    "tanh": torch.tanh,
    "sqrt": torch.sqrt,
    "constant": lambda numbers, dtype, like: torch.tensor(numbers, dtype=getattr(torch, dtype)),
    "total": lambda x, axes: torch.sum(x, axes, keepdim=True, dtype=torch.int64),
    "pad": lambda x, widths, value: torch.nn.functional.pad(x, [n for w in widths[::-1] for n in w], value=value),
    "minimum": torch.minimum,
    "maximum": torch.maximum,
    "extremes": _extremes,
    "unsigned": lambda x: x + 0.0,
    "full": lambda shape, value, dtype: torch.full(shape, value, dtype=getattr(torch, dtype)),
    "full_like": _full_like,
    "repeat": torch.repeat_interleave,
    "cumsum": lambda x: torch.cumsum(x, 0),
    "concatenate": torch.concatenate,
    "copy": torch.clone,
    "asarray": torch.from_numpy,
    "concrete": torch.Tensor.numpy,
    "arithmetic": nullcontext,
    "rounded": lambda product: product,
    "dtype": lambda x: str(x.dtype).removeprefix("torch."),
    "astype": lambda x, dtype: x.to(getattr(torch, dtype)),
    "arange": lambda size, like: torch.arange(size, dtype=torch.int32),
    "bincount": lambda index, weight, size: torch.bincount(index, weight, size),
    "searchsorted": lambda edges, x, right: torch.searchsorted(edges, x, right=right).to(torch.int32),
    "cond": Names.cond,
    "while_loop": Names.while_loop,
}


@pytest.fixture(params=["numpy", "torch"])
def backend(request):
    """A namespace that has these names only, and what makes its arrays."""
    names = TENSORS if request.param == "torch" else {name: getattr(Names, name) for name in TENSORS}
    return types.SimpleNamespace(**names), torch.from_numpy if request.param == "torch" else np.asarray


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_law(backend, axis):
    xp, make = backend
    rng = np.random.default_rng(1)
    x = ties(rng, np.float32(0.02), 11, INT8, 6 * 50 - 10).reshape(6, 50)
    scale, zero_point = (
        (0.02, 11) if axis is None else (rng.uniform(0.01, 0.1, x.shape[axis]), np.arange(x.shape[axis]))
    )
    reference, qparams = QParams.of(scale, zero_point, axis), QParams.of(scale, zero_point, axis, xp)
    for expected, actual in zip(
        (*fake_quantize(x, reference, INT8), quantize_affine(x, reference, INT8)),
        (*fake_quantize(make(x), qparams, INT8, xp), quantize_affine(make(x), qparams, INT8, xp)),
        strict=True,
    ):
        assert_same_bits(np.asarray(actual).astype(expected.dtype), expected)
        assert np.asarray(actual).dtype == expected.dtype
    q = quantize_affine(x, reference, INT8)
    assert_same_bits(dequantize(make(q), qparams, INT8, xp=xp), dequantize(q, reference, INT8))


def test_requantize(backend):
    xp, make = backend
    rng = np.random.default_rng(2)
    accumulator = rng.integers(-(2**20), 2**20, (30, 8)).astype(np.int32)
    scales = (
        np.array(0.01, np.float32),
        rng.uniform(0.001, 0.01, 8).astype(np.float32),
        rng.normal(size=8).astype(np.float32),
    )
    expected = requantize(accumulator, *scales, QParams.of(0.1, 3), UINT8)
    actual = requantize(make(accumulator), *map(make, scales), QParams.of(0.1, 3, xp=xp), UINT8, xp=xp)
    assert_same_bits(actual, expected)


def test_parameters(backend):
    xp, make = backend
    rng = np.random.default_rng(3)
    ends = np.sort(rng.normal(size=(2, 500)) * 2.0 ** rng.integers(-30, 30, 500), axis=0).astype(np.float32)
    for scheme in ("affine", "symmetric"):
        expected = choose_qparams(*ends, UINT8, scheme)
        actual = choose_qparams(*map(make, ends), UINT8, scheme, xp=xp)
        assert_same_bits(actual.scale, expected.scale)
        assert_same_bits(actual.zero_point, expected.zero_point)
    actual, expected = choose_qparams_dynamic(*map(make, ends), INT8, xp=xp), choose_qparams_dynamic(*ends, INT8)
    assert_same_bits(actual.scale, expected.scale)
    assert_same_bits(actual.zero_point, expected.zero_point)


@pytest.mark.parametrize(
    "observer",
    [
        MinMax(),
        MovingAverageMinMax(INT8, "symmetric"),
        PerChannelMinMax(axis=1),
        MovingAveragePerChannelMinMax(axis=2),
        Histogram(),
    ],
    ids=lambda observer: type(observer).__name__,
)
def test_observers(backend, observer):
    xp, make = backend
    rng = np.random.default_rng(4)
    expected, actual = observer.init((16, 6, 9)), observer.init((16, 6, 9), xp)
    for step in range(12):
        x = activations(rng, step * 20)[step % 6]
        expected, actual = observer.update(expected, x), observer.update(actual, make(x), xp)
        for own, reference in zip(actual, expected, strict=True):
            assert_same_bits(own, reference)
        own, reference = observer.qparams(actual, xp), observer.qparams(expected)
        assert_same_bits(own.scale, reference.scale)
        assert_same_bits(own.zero_point, reference.zero_point)
