"""Kernels of the affine law: the bits of the law by operations, on any memory format and layout of channels."""

import numpy as np
import pytest
import torch
from support import assert_same_bits

from qcore import affine
from qcore.affine import INT8, INT32, UINT8, AffineInteger, QParams
from qtorch._affine import conversion, launch
from qtorch._affine.namespace import Names

FORMS = [UINT8, INT8, AffineInteger(-8, 7), AffineInteger(0, 2**16 - 1), AffineInteger.of_width(16), INT32]
SHAPES = {"whole": None, "outermost": 0, "inner": 1, "innermost": 3}
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 1e-40, 3e38, 0.5, 1.5, 2.5, -0.5]


def numbers(dtype, channels_last=False):
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 6, 7, 9)).astype(np.float32) * 20)
    x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL)
    x.view(-1)[100:400].round_().mul_(0.25)  # ties
    return x.to(dtype).to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def parameters(x, form, axis):
    if axis is None:
        return QParams.of(0.5, 0 if form == INT32 else form.middle), None
    scale = torch.linspace(0.25, 0.75, x.shape[axis])
    zero = torch.full_like(scale, 0 if form == INT32 else form.middle, dtype=torch.int32)
    return QParams(scale, zero, axis), axis


def of_tensors(qparams):
    tensors = (
        one if isinstance(one, torch.Tensor) else torch.from_numpy(one) for one in (qparams.scale, qparams.zero_point)
    )
    return QParams(*tensors, qparams.axis)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("axis", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("channels_last", [False, True])
def test_quantize_and_dequantize(form, axis, channels_last):
    others = (torch.float64, torch.float16, torch.bfloat16) if form == UINT8 else ()  # each has kernels of its own
    for dtype in (torch.float32, *others):
        x = numbers(dtype, channels_last)
        qparams = of_tensors(parameters(x, form, axis)[0])
        values = launch.quantize_on_cpu(x, qparams, form)
        expected = affine.quantize_affine(x, qparams, form, Names)
        assert values.dtype is expected.dtype
        assert torch.equal(values, expected)
        assert values.stride() == x.stride()
        assert torch.equal(conversion.quantize(x, qparams, form), expected)
        assert_same_bits(
            launch.dequantize_on_cpu(values, qparams), affine.dequantize(expected, qparams, form, xp=Names)
        )


@pytest.mark.parametrize("form", FORMS[:4], ids=str)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("channels", [1, 7, 64])
def test_requantize(form, biased, channels):
    """Also where products of scales are subnormal, and so 0."""
    random = np.random.default_rng(channels)
    sums = torch.from_numpy(random.integers(-(2**20), 2**20, (33, channels)).astype(np.int32))
    output = of_tensors(QParams.of(0.3, form.middle))
    for small in (2.0**-9, 2.0**-120):
        for shape in ((), (channels,)):
            weight = torch.as_tensor(random.uniform(0.5, 1, shape) * 2.0**-9, dtype=torch.float32)
            bias = torch.from_numpy(random.standard_normal(channels).astype(np.float32)) if biased else None
            given = sums, torch.tensor(small), weight, bias, output, form
            values = launch.requantize_on_cpu(*given)
            assert torch.equal(values, affine.requantize(*given, xp=Names))
            assert torch.equal(conversion.requantize(*given), values)


def test_what_does_not_fit_is_refused_before_a_kernel_reads_it():
    sums, scale, output = torch.zeros(4, 3, dtype=torch.int32), torch.tensor(0.5), of_tensors(QParams.of(0.5, 3))
    with pytest.raises(ValueError, match="bias"):
        conversion.requantize(sums, scale, scale, torch.zeros(2), output, UINT8)
    with pytest.raises(TypeError, match="weight_scale"):
        conversion.requantize(sums, scale, scale.double(), None, output, UINT8)
    with pytest.raises(ValueError, match="zero_point"):
        conversion.quantize(torch.zeros(3), of_tensors(QParams.of(0.5, 999)), UINT8)


def test_other_paths_have_the_same_integers():
    """Traced, transformed, and without elements."""
    x, qparams = numbers(torch.float32), of_tensors(QParams.of(0.5, 3))
    expected = conversion.quantize(x, qparams, UINT8)
    found = torch.vmap(lambda x: conversion.quantize(x, qparams, UINT8))(x)
    assert torch.equal(found, expected)
    assert conversion.quantize(x[:0], qparams, UINT8).shape == (0, 6, 7, 9)
    assert conversion.dequantize(expected[:0], qparams, UINT8).dtype is torch.float32
