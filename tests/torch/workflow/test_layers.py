"""Every type of layer that convert knows, and the layers of torch that integers go through."""

import pytest
import torch
from torch import nn

from qtorch.nn import intrinsic
from qtorch.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    get_default_qconfig,
    get_default_static_quant_module_mappings,
    prepare,
)

IMAGE, VOLUME, ROW = (4, 4, 6, 6), (4, 4, 4, 4, 4), (4, 4, 9)
LAYERS = [
    (nn.Linear(6, 5), IMAGE),
    (nn.Conv1d(4, 3, 3, padding=1), ROW),
    (nn.Conv2d(4, 4, 3, stride=2, groups=2), IMAGE),
    (nn.Conv3d(4, 3, 2), VOLUME),
    (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), IMAGE),
    (
        intrinsic.ConvBnReLU2d(nn.Conv2d(4, 3, 3, padding=2, padding_mode="reflect"), nn.BatchNorm2d(3), nn.ReLU()),
        IMAGE,
    ),
    (intrinsic.LinearReLU(nn.Linear(6, 5), nn.ReLU()), IMAGE),
    (intrinsic.ConvReLU1d(nn.Conv1d(4, 3, 3), nn.ReLU()), ROW),
    (intrinsic.ConvReLU2d(nn.Conv2d(4, 3, 3), nn.ReLU()), IMAGE),
    (intrinsic.ConvReLU3d(nn.Conv3d(4, 3, 3), nn.ReLU()), VOLUME),
    (intrinsic.ConvBn2d(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3)), IMAGE),
    (intrinsic.ConvBnReLU1d(nn.Conv1d(4, 3, 3), nn.BatchNorm1d(3), nn.ReLU()), ROW),
    (intrinsic.BNReLU2d(nn.BatchNorm2d(4), nn.ReLU()), IMAGE),
    (intrinsic.BNReLU3d(nn.BatchNorm3d(4), nn.ReLU()), VOLUME),
    (nn.BatchNorm2d(4), IMAGE),
    (nn.BatchNorm3d(4), VOLUME),
    (nn.LayerNorm(6), IMAGE),
    (nn.GroupNorm(2, 4), IMAGE),
    (nn.InstanceNorm1d(4, affine=True), ROW),
    (nn.InstanceNorm2d(4, affine=True), IMAGE),
    (nn.InstanceNorm3d(4, affine=True), VOLUME),
    (nn.ELU(), IMAGE),
    (nn.Hardswish(), IMAGE),
    (nn.LeakyReLU(0.1), IMAGE),
    (nn.Sigmoid(), IMAGE),
]
THROUGH = [
    (nn.ReLU(), IMAGE),
    (nn.ReLU(inplace=True), IMAGE),
    (nn.ReLU6(), IMAGE),
    (nn.Hardtanh(), IMAGE),
    (nn.Identity(), IMAGE),
    (nn.Flatten(), IMAGE),
    (nn.Dropout(), IMAGE),
    (nn.MaxPool1d(2), ROW),
    (nn.MaxPool2d(3, 2, 1), IMAGE),
    (nn.AvgPool2d(2), IMAGE),
    (nn.AvgPool3d(2), VOLUME),
    (nn.AdaptiveAvgPool2d(1), IMAGE),
    (nn.AdaptiveAvgPool3d(2), VOLUME),
    (nn.Upsample(scale_factor=2), IMAGE),
]


def name(case):
    return type(case).__name__ if isinstance(case, nn.Module) else ""


@pytest.mark.parametrize(("layer", "shape"), [*LAYERS, *THROUGH], ids=name)
def test_a_layer_between_stubs(layer, shape):
    torch.manual_seed(0)
    model = nn.Sequential(QuantStub(), layer, DeQuantStub()).eval()
    model.qconfig = get_default_qconfig("qnnpack")
    prepared, x = prepare(model), torch.randn(shape)
    expected = prepared(x)
    converted = convert(prepared)
    result = converted(x)
    assert result.shape == expected.shape
    error = (result - expected).abs().max().item()
    assert error < 0.02 * (1 + expected.abs().max().item())
    swapped = type(converted[1]) is get_default_static_quant_module_mappings().get(type(layer))
    assert swapped == any(layer is one for one, _ in LAYERS)
