"""Transposed convolutions in integers beside sums that are scattered one by one."""

import itertools

import numpy as np
import pytest
import torch
from support import assert_same_bits
from torch import nn

from qcore.affine import UINT8, AffineInteger, QParams
from qtorch.nn import quantized
from qtorch.quantization import (
    QConfig,
    QTensor,
    QuantWrapper,
    convert,
    default_observer,
    default_per_channel_weight_observer,
    default_weight_observer,
    fuse_modules,
    get_default_qat_qconfig,
    load_converted,
    prepare,
    prepare_qat,
)

KINDS = {1: quantized.ConvTranspose1d, 2: quantized.ConvTranspose2d, 3: quantized.ConvTranspose3d}
FLOATS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
CASES = {
    "line": (1, (2, 4, 7), (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
    "cropped": (1, (2, 4, 7), (4, 6, 3), {"padding": 4, "stride": 3}),
    "image": (2, (2, 4, 5, 3), (4, 6, (2, 3)), {"stride": (2, 1), "dilation": (1, 2)}),
    "groups": (2, (1, 4, 4, 4), (4, 6, 3), {"stride": 3, "groups": 2, "output_padding": 2, "bias": False}),
    "channels alone": (2, (1, 4, 4, 4), (4, 4, 2), {"stride": 2, "groups": 4}),
    "volume": (3, (1, 2, 2, 3, 2), (2, 3, 2), {"stride": 2, "padding": 1}),
}
FORMS = {"int8": AffineInteger.of_width(8), "int4": AffineInteger.of_width(4), "int12": AffineInteger.of_width(12)}


def scattered(q, weight, layer):
    """Each input integer times each of the kernel's, added where it belongs; then fbgemm's formula."""
    w, zero = weight.values.numpy().astype(np.int64), weight.qparams.zero_point.numpy()
    scales = weight.qparams.scale.numpy()
    if scales.ndim:
        zero, scales = zero.reshape(1, -1, *[1] * layer.dimensions), np.tile(scales, layer.groups)
    w, x = w - zero, q.values.numpy().astype(np.int64) - int(q.qparams.zero_point)
    whole = zip(
        x.shape[2:], layer.stride, layer.padding, layer.output_padding, layer.dilation, layer.kernel_size, strict=True
    )
    sizes = [(n - 1) * s - 2 * p + d * (k - 1) + 1 + more for n, s, p, more, d, k in whole]
    sums = np.zeros((len(x), layer.out_channels, *sizes), np.int64)
    outputs, inputs = layer.out_channels // layer.groups, layer.in_channels // layer.groups
    for place in itertools.product(*map(range, x.shape[2:])):
        for tap in itertools.product(*map(range, layer.kernel_size)):
            whole = zip(place, tap, layer.stride, layer.dilation, layer.padding, strict=True)
            target = tuple(n * s + t * d - p for n, t, s, d, p in whole)
            if not all(0 <= one < size for one, size in zip(target, sizes, strict=True)):
                continue
            for channel in range(layer.in_channels):
                group = channel // inputs
                outs = slice(group * outputs, (group + 1) * outputs)
                sums[(slice(None), outs, *target)] += np.outer(
                    x[(slice(None), channel, *place)], w[(channel, slice(None), *tap)]
                )
    along = (1, -1, *[1] * layer.dimensions)
    p = (np.float32(q.q_scale()) * scales.astype(np.float32)) * np.ones(layer.out_channels, np.float32)
    total = sums.astype(np.float32)
    if layer.bias is not None:
        total = total + (layer.bias.numpy() / p).reshape(along)
    steps = np.rint(total * (p / layer.scale.numpy()).reshape(along)) + layer.zero_point.numpy()
    return np.clip(steps, layer.form.qmin, layer.form.qmax)


def made(name, form="int8", per_channel=True):
    dimensions, shape, sizes, settings = CASES[name]
    generator = torch.Generator().manual_seed(5)
    layer = KINDS[dimensions](*sizes, **settings, dtype=FORMS[form])
    values = torch.randint(FORMS[form].qmin, FORMS[form].qmax + 1, layer.weight.shape, generator=generator)
    count = (layer.weight.shape[1],) if per_channel else ()
    scales = torch.rand(count, generator=generator) * 0.01 + 0.01
    zeros = torch.randint(-3, 4, count, generator=generator).to(torch.int32)
    weight = QTensor(
        values.to(getattr(torch, FORMS[form].storage)), QParams(scales, zeros, 1 if per_channel else None), FORMS[form]
    )
    bias = torch.randn(layer.out_channels, generator=generator) if layer.bias is not None else None
    layer.set_weight_bias(weight, bias)
    layer.scale, layer.zero_point = 0.07 * FORMS[form].qmax / 127, 120
    qparams = QParams(torch.tensor(0.05), torch.tensor(100, dtype=torch.int32))
    q = QTensor(torch.randint(0, 256, shape, generator=generator).to(torch.uint8), qparams, UINT8)
    return layer, q


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_sums(name, form):
    for per_channel in (True, False):
        layer, q = made(name, form, per_channel)
        result = layer(q)
        assert_same_bits(result.values.numpy(), scattered(q, layer.weight(), layer).astype(np.uint8))
        assert_same_bits(layer(q[0]).values, result.values[0])


@pytest.mark.parametrize("observer", [default_per_channel_weight_observer, default_weight_observer])
@pytest.mark.parametrize("name", CASES)
def test_converted(name, observer):
    """Near the layer of floats; scales lie along outputs. Files load, and programs have the same bits."""
    dimensions, shape, sizes, settings = CASES[name]
    torch.manual_seed(1)
    model, x = QuantWrapper(FLOATS[dimensions](*sizes, **settings)).eval(), torch.randn(shape)
    model.qconfig = QConfig(default_observer, observer)
    prepared = prepare(model)
    prepared(x)
    own = convert(prepared)
    assert type(own.module) is KINDS[dimensions]
    assert (own(x) - model(x)).abs().max() < 4 * own.module.scale
    count = own.module.weight.shape[1] if observer is default_per_channel_weight_observer else 1
    assert own.module.weight.scale.numel() == count
    loaded = load_converted(QuantWrapper(FLOATS[dimensions](*sizes, **settings)), own.state_dict())
    assert_same_bits(loaded(x), own(x))
    if name == "groups":
        torch.compiler.reset()
        assert_same_bits(torch.compile(own, backend="aot_eager", fullgraph=True)(x), own(x))


@pytest.mark.parametrize("name", ["line", "image", "groups", "volume"])
def test_fused_with_its_batch_norm(name):
    dimensions, shape, sizes, settings = CASES[name]
    norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dimensions](sizes[1])
    model, x = nn.Sequential(FLOATS[dimensions](*sizes, **settings), norm), torch.randn(shape)
    for _ in range(3):
        model(torch.randn(shape) + 1)
    model.eval()
    fused = fuse_modules(model, ["0", "1"])
    assert type(fused[0]) is FLOATS[dimensions]
    torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"in evaluation .* a transposed convolution and its BatchNorm"):
        fuse_modules(model.train(), ["0", "1"])


def test_trained():
    """Its result is fake-quantized in training; its weight is quantized when it is converted."""
    model = QuantWrapper(nn.ConvTranspose2d(2, 3, 2, stride=2))
    model.qconfig = get_default_qat_qconfig("fbgemm")
    trained, x = prepare_qat(model.train()), torch.randn(2, 2, 4, 4)
    trained(x).sum().backward()
    assert trained.module.weight.grad is not None
    own = convert(trained.eval())
    assert (own(x) - trained(x)).abs().max() < 2.5 * own.module.scale


def test_sizes_that_are_asked_for():
    layer, q = made("line")
    for size in (13, 14):
        assert layer(q, output_size=(size,)).shape == (2, 6, size)
    for wrong, message in (
        (lambda: layer(q, [15]), r"output_size=\(15,\) needs output_padding=\(2,\) with stride=\(2,\)"),
        (lambda: layer(q, [12]), r"output_size=\(12,\); allowed are sizes from \(13,\)"),
        (lambda: layer(q[:, :3]), "ConvTranspose1d: input has shape .* and 4 channels"),
        (lambda: quantized.ConvTranspose1d(2, 2, 3, output_padding=1), r"output_padding=\(1,\) with stride=\(1,\)"),
        (
            lambda: quantized.ConvTranspose1d(2, 2, 3, padding_mode="reflect"),
            "padding_mode='reflect'; allowed are zeros",
        ),
        (lambda: layer.set_weight_bias(layer.weight(), torch.zeros(2)), r"allowed is float32 of \(6,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
    with pytest.raises(TypeError, match="insert a QuantStub"):
        layer(q.dequantize())
