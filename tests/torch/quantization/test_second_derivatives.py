"""Derivatives of the gradients of fake quantization and of quantizers: torch's own, and straight-through ones."""

import pytest
import torch
import torch.ao.quantization as theirs
from support import assert_same_bits

import qtorch
import qtorch.quantization as ours

X = torch.linspace(-20, 20, 24).reshape(4, 6)
V = torch.linspace(1, 2, 24).reshape(4, 6)  # positive: torch multiplies with the mask, so that its zeros have signs
SCALE, ZERO = torch.full((6,), 0.1), torch.zeros(6, dtype=torch.int32)


def per_tensor(package):
    package = torch if package is theirs else package
    return lambda x: package.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)


def per_channel(package):
    package = torch if package is theirs else package
    return lambda x: package.fake_quantize_per_channel_affine(x, SCALE, ZERO, 1, -128, 127)


def module(package):
    return package.FakeQuantize(observer=package.MovingAverageMinMaxObserver, quant_min=0, quant_max=255)


def three_orders(f):
    x, value, found = X.clone().requires_grad_(), None, []
    value = f(x).pow(4).sum()
    for _ in range(3):
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        found.append(gradient)
        value = (gradient * V).sum()
    return [one.detach() for one in found]


@pytest.mark.parametrize("make", [per_tensor, per_channel, module])
def test_fake_quantization_has_torchs(make):
    for found, expected in zip(three_orders(make(ours)), three_orders(make(theirs)), strict=True):
        assert torch.equal(found, expected)
        assert found.any()


def test_models_of_prepare_qat():
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.ReLU())
    model.qconfig = ours.get_default_qat_qconfig()
    model = ours.prepare_qat(model.train())
    x = X.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
    gradient.square().sum().backward()
    assert model[0].weight.grad.any()


def test_quantizers_pass_straight_through():
    """The gradient 3 y^2 is rounded, and so is that of its derivative, 6 y v."""
    f = qtorch.quantizer("e4m3fn", "e5m2", "nearest", "nearest")
    x = X.clone().requires_grad_()
    y = f(x)
    (gradient,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    assert_same_bits(gradient.detach(), qtorch.quantize(3 * y.detach() ** 2, "e5m2"))
    (second,) = torch.autograd.grad((gradient * V).sum(), x)
    assert_same_bits(second, qtorch.quantize(V * 3 * (2 * y.detach()), "e5m2"))
