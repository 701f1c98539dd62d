"""Convolutions whose images have their own integers around them: calibrated, or trained with fake quantization."""

import copy

import pytest
import torch
from torch import nn
from workflow_support import outputs, steps_apart, with_qconfig

from qtorch.nn import intrinsic
from qtorch.quantization import (
    QuantWrapper,
    convert,
    get_default_qat_qconfig,
    get_default_qconfig,
    prepare,
    prepare_qat,
    quantize_per_tensor,
)

MODES = "zeros", "reflect", "replicate", "circular"
LAYERS = {
    "conv1d": (lambda mode: nn.Conv1d(4, 6, 4, stride=2, padding=3, padding_mode=mode), (7,)),
    "conv2d": (
        lambda mode: nn.Conv2d(4, 6, (3, 2), padding="same", dilation=(1, 2), groups=2, padding_mode=mode),
        (5, 6),
    ),
    "fused": (
        lambda mode: intrinsic.ConvBnReLU2d(
            nn.Conv2d(4, 6, 3, stride=2, padding=(2, 1), padding_mode=mode, bias=False), nn.BatchNorm2d(6), nn.ReLU()
        ),
        (6, 5),
    ),
    "conv3d": (lambda mode: nn.Conv3d(4, 6, (1, 3, 2), padding=(0, 2, 1), padding_mode=mode), (2, 4, 3)),
}


def images(shape, seed):
    """Numbers that are far from 0, so that 0 around them is not the same as more of them."""
    return torch.randn(8, 4, *shape, generator=torch.Generator().manual_seed(seed)) + 3


def trained_a_little(model, shape):
    model = prepare_qat(with_qconfig(model.train(), get_default_qat_qconfig("fbgemm")))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for seed in range(3):
        optimizer.zero_grad()
        model(images(shape, seed)).square().mean().backward()
        optimizer.step()
    return model.eval()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_converted_layer_computes_what_was_trained(kind, mode):
    """Within one step of the simulation, whose weight and scales it has, for the same integers."""
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    model = trained_a_little(QuantWrapper(make(mode)), shape)
    result = convert(model)
    found = outputs(result, images(shape, 9), ["quant", "module"])
    assert torch.equal(result.module.scale.reshape(1), model.module.activation_post_process.scale)
    assert torch.equal(result.module.weight().dequantize(), model.module.rounded_weight().detach() + 0.0)
    assert steps_apart(model.module(found["quant"].dequantize()), found["module"]) <= 1.001
    assert len(found["module"].values.unique()) > 30
    other = copy.deepcopy(result.module)
    other.padding_mode = "circular" if mode == "zeros" else "zeros"
    assert steps_apart(found["module"].dequantize(), other(found["quant"])) > 2  # the mode decides


@pytest.mark.parametrize("mode", MODES)
def test_a_calibrated_layer_multiplies_integers_around_images(mode):
    """Exact integers: the result is the float convolution's, rounded."""
    generator = torch.Generator().manual_seed(0)
    conv = nn.Conv2d(3, 4, 3, padding=2, padding_mode=mode)
    conv.weight.data = torch.randint(-127, 128, conv.weight.shape, generator=generator).float()
    conv.weight.data[:, 0, 0, 0] = 127.0  # so that weights have a scale of 1
    conv.bias.data = torch.randint(-99, 100, (4,), generator=generator).float()
    x = torch.randint(0, 128, (2, 3, 5, 4), generator=generator).float()
    prepared = prepare(with_qconfig(QuantWrapper(conv).eval(), get_default_qconfig("fbgemm")))
    prepared(x)
    layer = convert(prepared).module
    torch.testing.assert_close(layer.weight().qparams.scale, torch.full((4,), 127 / 127.5), rtol=1e-6, atol=0)
    q = quantize_per_tensor(x, 1.0, 0, torch.quint8)
    rounded = copy.deepcopy(conv)
    rounded.weight.data = layer.weight().dequantize()
    assert steps_apart(rounded(x), layer(q)) <= 0.501
