"""Activations, norms, pools and embeddings of quantized tensors: from observed layers, near what these compute."""

import copy

import pytest
import torch
from quantization_support import torch_ao
from support import assert_same_bits

from qcore.affine import UINT8, AffineInteger, QParams
from qtorch.nn import intrinsic, quantized
from qtorch.nn.quantized import functional
from qtorch.quantization import (
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QTensor,
    default_observer,
    default_qconfig,
    quantize_per_tensor,
)

nn = torch.nn
IMAGES, VOLUMES, SEQUENCES = (2, 6, 9, 7), (2, 6, 3, 5, 4), (2, 6, 9)
LAYERS = {
    "ELU": (nn.ELU(0.7), quantized.ELU, IMAGES),
    "LeakyReLU": (nn.LeakyReLU(0.1), quantized.LeakyReLU, IMAGES),
    "PReLU": (nn.PReLU(), quantized.PReLU, IMAGES),
    "PReLU of channels": (nn.PReLU(6), quantized.PReLU, IMAGES),
    "Hardswish": (nn.Hardswish(), quantized.Hardswish, IMAGES),
    "Sigmoid": (nn.Sigmoid(), quantized.Sigmoid, IMAGES),
    "LayerNorm": (nn.LayerNorm([9, 7]), quantized.LayerNorm, IMAGES),
    "LayerNorm without weights": (nn.LayerNorm(7, elementwise_affine=False), quantized.LayerNorm, IMAGES),
    "GroupNorm": (nn.GroupNorm(3, 6), quantized.GroupNorm, IMAGES),
    "InstanceNorm1d": (nn.InstanceNorm1d(6), quantized.InstanceNorm1d, SEQUENCES),
    "InstanceNorm2d": (nn.InstanceNorm2d(6, affine=True), quantized.InstanceNorm2d, IMAGES),
    "InstanceNorm3d": (nn.InstanceNorm3d(6), quantized.InstanceNorm3d, VOLUMES),
    "BatchNorm2d": (nn.BatchNorm2d(6), quantized.BatchNorm2d, IMAGES),
    "BatchNorm3d": (nn.BatchNorm3d(6), quantized.BatchNorm3d, VOLUMES),
    "BNReLU2d": (nn.Sequential(nn.BatchNorm2d(6), nn.ReLU()), intrinsic.quantized.BNReLU2d, IMAGES),
    "BNReLU3d": (nn.Sequential(nn.BatchNorm3d(6), nn.ReLU()), intrinsic.quantized.BNReLU3d, VOLUMES),
}


def quantized_like(x):
    return quantize_per_tensor(x, ((x.max() - x.min()) / 255).item(), 121, torch.quint8)


def observed(name):
    layer, own, shape = LAYERS[name]
    layer, generator = copy.deepcopy(layer), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, value in layer.state_dict().items():
            if value.dtype is torch.float32:
                value.copy_(torch.rand(value.shape, generator=generator) + (0.5 if "var" in key else -0.2))
    layer.eval()
    x = quantized_like(torch.randn(shape, generator=generator) * 2)
    layer.activation_post_process = default_observer()
    layer.qconfig = QConfig(default_observer, MinMaxObserver.with_args(dtype=AffineInteger.of_width(16)))  # of slopes
    expected = layer(x.dequantize()).detach()
    layer.activation_post_process(expected)
    return layer, own, x, expected


@pytest.mark.parametrize("name", LAYERS)
def test_near_the_layer_of_floats(name):
    layer, own, x, expected = observed(name)
    own = own.from_float(layer)
    result = own(x)
    assert (result.dequantize() - expected).abs().max() < 0.51 * result.q_scale()
    assert_same_bits(own.scale.reshape(1), layer.activation_post_process.calculate_qparams()[0])
    with pytest.raises(TypeError, match=r"input is a Tensor; allowed is a QTensor: insert a QuantStub"):
        own(expected)


@pytest.mark.parametrize("name", LAYERS)
def test_state_dicts(name):
    """All that a result depends on is in the buffers, the scale of an ELU included."""
    layer, own, x, _ = observed(name)
    first = own.from_float(layer)
    layer.activation_post_process(torch.tensor([-40.0, 40.0]))
    second = own.from_float(layer)
    assert not second(x).equal(first(x))
    second.load_state_dict(first.state_dict())
    assert second(x).equal(first(x))


def test_results_of_few_bits():
    layer, own, x, _ = observed("ELU")
    layer.activation_post_process = MinMaxObserver(dtype=AffineInteger.of_width(4))
    layer.activation_post_process(layer(x.dequantize()))
    result = own.from_float(layer)(x)
    assert (result.form, result.values.unique().numel()) == (AffineInteger.of_width(4), 16)


FLOATS = nn.functional
POOLS = {
    "max_pool2d": lambda room, x: room.max_pool2d(x, 3, 2, 1),
    "max_pool1d": lambda room, x: room.max_pool1d(x[0], 3, 2, 1, 1, True),
    "avg_pool2d": lambda room, x: room.avg_pool2d(x, (3, 2), 2, 1, True, False),
    "adaptive_avg_pool2d": lambda room, x: room.adaptive_avg_pool2d(x, (4, 3)),
    "nearest": lambda room, x: room.interpolate(x, scale_factor=1.5),
    "bilinear": lambda room, x: room.interpolate(x, (11, 5), mode="bilinear"),
    "corners": lambda room, x: room.interpolate(x, (11, 5), mode="bilinear", align_corners=True),
    "leaky_relu": lambda room, x: room.leaky_relu(x, 0.2),
    "hardtanh": lambda room, x: room.hardtanh(x, -0.5, 2.0),
    "relu6": lambda room, x: room.relu6(x),
    "threshold": lambda room, x: room.threshold(x, 0.3, -0.7),
    "relu": lambda room, x: room.relu(x),
}
VOLUME_POOLS = {
    "avg_pool3d": lambda room, x: room.avg_pool3d(x, 2, 1),
    "adaptive_avg_pool3d": lambda room, x: room.adaptive_avg_pool3d(x, 2),
}
NEW_SCALES = {
    "elu": lambda room, x, *output: room.elu(x, *output, 0.5) if output else room.elu(x, 0.5),
    "celu": lambda room, x, *output: room.celu(x, *output, 0.5) if output else room.celu(x, 0.5),
    "hardswish": lambda room, x, *output: room.hardswish(x, *output),
}


@pytest.mark.parametrize("name", [*POOLS, *VOLUME_POOLS])
def test_functional(name):
    shape = VOLUMES if name in VOLUME_POOLS else IMAGES
    x = quantized_like(torch.randn(shape, generator=torch.Generator().manual_seed(2)) * 4)
    call = (POOLS | VOLUME_POOLS)[name]
    expected, result = call(FLOATS, x.dequantize()), call(functional, x)
    assert result.shape == expected.shape
    assert (result.dequantize() - expected).abs().max() < 0.5001 * x.q_scale()


@pytest.mark.parametrize(("limit", "value"), [(0.31, -0.7), (0.0, 0.0), (1.25, 99.0), (-1e-40, 0.26)])
def test_threshold_has_the_integers_of_torch(limit, value):
    """But where x is the limit: torch computes (q - zero_point) * scale as fma(q, scale, -(zero_point * scale))."""
    peer = getattr(torch.ops.quantized, "threshold", None)
    if peer is None:
        pytest.skip("this torch has no quantized threshold")
    values = torch.arange(256, dtype=torch.uint8)
    own = QTensor(values, QParams(torch.tensor(0.1), torch.tensor(100, dtype=torch.int32)), UINT8)
    with torch_ao():  # which warns of its tensors
        expected = peer(torch._make_per_tensor_quantized_tensor(values, own.q_scale(), 100), limit, value)
    for result in (functional.threshold(own, limit, value), nn.Threshold(limit, value)(own)):
        assert torch.equal(result.int_repr(), expected.int_repr())
        assert_same_bits(result.qparams.scale, own.qparams.scale)


@pytest.mark.parametrize("name", NEW_SCALES)
def test_functional_with_a_scale(name):
    x = quantized_like(torch.randn(IMAGES, generator=torch.Generator().manual_seed(2)))
    expected, result = NEW_SCALES[name](FLOATS, x.dequantize()), NEW_SCALES[name](functional, x, 0.05, 40)
    assert (result.q_scale(), result.q_zero_point()) == (pytest.approx(0.05), 40)
    assert (result.dequantize() - expected).abs().max() < 0.5001 * 0.05


def test_functional_of_numbers_from_0_to_1():
    x = quantized_like(torch.randn(IMAGES, generator=torch.Generator().manual_seed(2)) * 3)
    result = functional.hardsigmoid(x)
    assert (result.q_scale(), result.q_zero_point()) == (1 / 256, 0)
    expected = FLOATS.hardsigmoid(x.dequantize()).clamp(0, 255 / 256)
    assert (result.dequantize() - expected).abs().max() <= 0.5001 / 256


def test_in_place():
    x = quantized_like(torch.randn(IMAGES, generator=torch.Generator().manual_seed(2)) * 3)
    values, expected = x.values, functional.relu6(x)
    assert not expected.equal(x)
    assert quantized.ReLU6(inplace=True)(x).values.data_ptr() == values.data_ptr()
    assert x.equal(expected)
    assert quantized.ReLU.from_float(nn.ReLU(True)).inplace


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [False, True])
def test_embedding(rows, bits):
    layer = nn.Embedding(20, 7)
    scheme = torch.per_channel_affine if rows else torch.per_tensor_affine
    make = (PerChannelMinMaxObserver if rows else MinMaxObserver).with_args(
        dtype=AffineInteger.of_width(bits, False), qscheme=scheme
    )
    layer.qconfig = QConfig(nn.Identity, make)
    own = quantized.Embedding.from_float(layer)
    assert own.weight.state_dict()["packed" if bits == 4 else "int_repr"].shape == (20, 4 if bits == 4 else 7)
    indices = torch.tensor([[3, 19], [0, 3]])
    assert_same_bits(own(indices), own.weight().dequantize()[indices])
    step = own.weight.scale.max()
    assert (own(indices) - layer(indices)).abs().max() < 0.51 * step


WRONG = {
    "return_indices=True; allowed is False": lambda x: functional.max_pool2d(x, 2, return_indices=True),
    "input has shape .* allowed are paddings of at most": lambda x: functional.avg_pool2d(x, 2, padding=2),
    "input is a Tensor; allowed is a QTensor": lambda x: functional.hardswish(x.dequantize(), 1.0, 0),
    "inplace=True with scale=1.0": lambda x: functional.leaky_relu(x, 0.1, True, 1.0, 0),
    "threshold=nan; allowed are finite numbers": lambda x: functional.threshold(x, float("nan"), 0.0),
    "value='1' is a str; allowed is an int or a float": lambda x: functional.threshold(x, 0.0, "1"),
    "min_val=2.0 and max_val=1; allowed is min_val <= max_val": lambda x: functional.hardtanh(x, 2.0, 1),
    "max_val=nan; allowed is a number": lambda x: functional.hardtanh(x, 0.0, float("nan")),
    "input has integers of 32 bits; allowed are up to 16": lambda x: functional.hardsigmoid(
        quantize_per_tensor(x.dequantize(), 0.5, 0, torch.qint32)
    ),
    "inplace=True; allowed is False": lambda x: functional.hardsigmoid(x, True),
    "size=None and scale_factor=None": lambda x: functional.interpolate(x),
    "mode='bicubic'; allowed are nearest, bilinear": lambda x: functional.interpolate(x, 3, mode="bicubic"),
    "scale_factor=0; allowed": lambda x: functional.interpolate(x, scale_factor=0),
    "output_size=.*1, 1, 1.*; allowed are one number or 2": lambda x: functional.adaptive_avg_pool2d(x, (1, 1, 1)),
    "track_running_stats=True": lambda x: quantized.InstanceNorm2d(6, None, None, 1.0, 0, track_running_stats=True),
    r"input has shape .*; allowed is \(..., 5\)": lambda x: quantized.LayerNorm(5, None, None, 1.0, 0)(x),
    r"weight has shape \(5,\); allowed is \(6,\)": lambda x: quantized.GroupNorm(3, 6, torch.ones(5), None, 1.0, 0)(x),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    x = quantized_like(torch.randn(IMAGES, generator=torch.Generator().manual_seed(2)))
    with pytest.raises((TypeError, ValueError), match=message):
        WRONG[message](x)


SETTINGS = {
    "Linear": lambda: nn.Linear(3, 4),
    "Conv2d": lambda: nn.Conv2d(2, 4, (2, 3), (1, 2), 1, 2, 2, padding_mode="reflect"),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(2, 4, (2, 3), (3, 2), 1, (2, 1), 2, dilation=2),
    "LayerNorm": lambda: nn.LayerNorm((3, 4), 1e-3),
    "GroupNorm": lambda: nn.GroupNorm(2, 4, 1e-3),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(4, 1e-3, 0.3, True),
    "BatchNorm3d": lambda: nn.BatchNorm3d(4, 1e-3, 0.3),
    "ELU": lambda: nn.ELU(0.3),
    "LeakyReLU": lambda: nn.LeakyReLU(0.3),
    "PReLU": lambda: nn.PReLU(4),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_stay(name):
    """All attributes that a float layer and its quantized one have, but for those of every module."""
    layer = SETTINGS[name]()
    layer.qconfig = default_qconfig
    layer.activation_post_process = MinMaxObserver()
    layer.activation_post_process(torch.tensor([-1.0, 1.0]))
    made = getattr(quantized, name).from_float(layer)
    shared = vars(layer).keys() & vars(made).keys() - vars(nn.Identity()).keys()
    assert shared
    assert {one: getattr(made, one) for one in shared} == {one: getattr(layer, one) for one in shared}
