"""Quantized convolutions: the law on exact sums in one to three dimensions, all widths, groups, fused ReLU."""

import numpy as np
import pytest
import torch
from support import assert_same_bits

from qcore import affine as reference
from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qtorch.nn import intrinsic, quantized
from qtorch.quantization import MinMaxObserver, PerChannelMinMaxObserver, QConfig, quantize_per_tensor

LAYERS = {
    "1d": (torch.nn.Conv1d, quantized.Conv1d, (8, 6, 3), {"stride": 2, "padding": 1}, (9,)),
    "2d": (torch.nn.Conv2d, quantized.Conv2d, (8, 6, (3, 2)), {"padding": (1, 2), "dilation": (2, 1)}, (9, 7)),
    "2d groups": (torch.nn.Conv2d, quantized.Conv2d, (8, 6, 3), {"groups": 2, "bias": False}, (5, 6)),
    "2d same": (torch.nn.Conv2d, quantized.Conv2d, (8, 6, (5, 3)), {"padding": "same"}, (5, 6)),
    "2d each channel": (torch.nn.Conv2d, quantized.Conv2d, (8, 8, 3), {"groups": 8, "padding": 1}, (5, 6)),
    "1d replicate": (
        torch.nn.Conv1d,
        quantized.Conv1d,
        (8, 6, 3),
        {"stride": 2, "padding": 7, "padding_mode": "replicate"},
        (5,),
    ),
    "2d reflect": (
        torch.nn.Conv2d,
        quantized.Conv2d,
        (8, 6, (3, 2)),
        {"padding": (2, 3), "groups": 2, "padding_mode": "reflect"},
        (3, 5),
    ),
    "2d circular same": (
        torch.nn.Conv2d,
        quantized.Conv2d,
        (8, 6, (5, 3)),
        {"padding": "same", "dilation": (1, 2), "padding_mode": "circular"},
        (2, 6),
    ),
    "3d": (torch.nn.Conv3d, quantized.Conv3d, (8, 5, (1, 3, 2)), {"stride": (1, 2, 1), "padding": 1}, (3, 6, 5)),
    "3d reflect": (
        torch.nn.Conv3d,
        quantized.Conv3d,
        (4, 3, 2),
        {"padding": (0, 1, 2), "padding_mode": "reflect"},
        (3, 2, 3),
    ),
}
FORMS = [UINT8, INT8, AffineInteger.of_width(4), AffineInteger.of_width(16, signed=False)]


def layers(name, form, weight_form):
    kind, own, arguments, settings, sizes = LAYERS[name]
    generator = torch.Generator().manual_seed(len(name))
    layer = kind(*arguments, **settings)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    affine = torch.per_channel_affine if weight_form.qmin == 0 else torch.per_channel_symmetric
    layer.qconfig = QConfig(
        MinMaxObserver.with_args(dtype=form), PerChannelMinMaxObserver.with_args(dtype=weight_form, qscheme=affine)
    )
    layer.activation_post_process = layer.qconfig.activation()
    x = torch.randn(2, arguments[0], *sizes, generator=generator)
    layer.activation_post_process(layer(x).detach())
    scale = ((x.max() - x.min()) / (form.qmax - form.qmin)).item()
    return layer, own.from_float(layer), quantize_per_tensor(x, scale, (form.qmin + form.qmax) // 2 + 1, form)


def by_the_law(layer, own, x):
    """Exact sums from convolutions of float64, requantized by NumPy."""
    weight = own.weight()
    zeros = weight.qparams.zero_point.double().reshape(-1, *(1,) * (x.ndim - 1))
    filters = weight.values.double() - zeros
    sums = layer._conv_forward(x.values.double() - x.q_zero_point(), filters, None).movedim(1, -1)
    scales = x.qparams.scale.numpy(), weight.qparams.scale.numpy()
    bias = None if own.bias is None else own.bias.numpy()
    output = QParams(own.scale.numpy(), own.zero_point.numpy())
    return np.moveaxis(reference.requantize(sums.numpy(), *scales, bias, output, own.form), -1, 1)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_bits(name, form):
    for weight_form in (INT8, AffineInteger.of_width(4), UINT8, AffineInteger.of_width(12)):
        layer, own, x = layers(name, form, weight_form)
        result = own(x)
        assert_same_bits(result.values.contiguous(), by_the_law(layer, own, x))
        assert len(result.values.unique()) > 4
        one = own(x[0])
        assert torch.equal(one.values, result.values[0])


@pytest.mark.parametrize("name", ["1d", "2d", "3d"])
def test_with_a_relu(name):
    layer, own, x = layers(name, UINT8, INT8)
    fused = torch.nn.Sequential(layer, torch.nn.ReLU())
    fused.qconfig, fused.activation_post_process = layer.qconfig, layer.activation_post_process
    with_relu = getattr(intrinsic.quantized, f"ConvReLU{name}").from_float(fused)
    assert with_relu(x).equal(own(x).relu())
    assert not with_relu(x).equal(own(x))


@pytest.mark.heavy
def test_compiled():
    _, own, x = layers("1d", UINT8, INT8)
    assert_same_bits(torch.compile(own, fullgraph=True, backend="aot_eager")(x).values, own(x).values)


def test_traced_in_floats():
    """A convolution with groups, and 4 bits to unpack."""
    _, own, x = layers("2d groups", UINT8, AffineInteger.of_width(4))
    assert_same_bits(torch.compile(own, fullgraph=True, backend="aot_eager")(x).values, own(x).values)


@pytest.mark.parametrize("name", ["1d", "2d groups"])
def test_autocast_changes_nothing(name):
    """Sums in floats stay in float32."""
    _, own, x = layers(name, UINT8, INT8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = own(x)
    assert result.equal(own(x))


def test_channels_last_is_taken_and_given():
    _, own, x = layers("2d", UINT8, INT8)
    result = own(x)
    moved = x.values.contiguous(memory_format=torch.channels_last)
    assert own(x._with(moved)).equal(result)
    assert result.values.is_contiguous(memory_format=torch.channels_last)


WRONG = {
    "Conv2d: input is a Tensor; allowed is a QTensor": lambda: quantized.Conv2d(1, 1, 1)(torch.ones(1, 1, 2, 2)),
    r"allowed are \(batch, channels, height\W": lambda: quantized.Conv2d(2, 1, 1)(
        quantize_per_tensor(torch.ones(1, 1, 2, 2), 1.0, 0, torch.quint8)
    ),
    "groups=2; allowed are divisors": lambda: quantized.Conv1d(3, 2, 1, groups=2),
    "padding='same' with kernel_size=.2.": lambda: quantized.Conv1d(1, 1, 2, padding="same"),
    "padding_mode='mirror'; allowed are zeros, reflect": lambda: quantized.Conv1d(1, 1, 2, padding_mode="mirror"),
    r"stride=\(1, 1\); allowed are one number or one": lambda: quantized.Conv1d(1, 1, 2, (1, 1)),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        WRONG[message]()
