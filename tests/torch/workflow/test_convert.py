"""convert and swap_module: layers in integers with the observed scales, and what is refused instead of left undone."""

import copy

import pytest
import torch
from torch import nn
from workflow_support import with_qconfig

from qtorch._classes import plain_class
from qtorch.nn import quantized
from qtorch.quantization import (
    QTensor,
    QuantWrapper,
    convert,
    default_qat_qconfig,
    default_qconfig,
    prepare,
    prepare_qat,
    quantize_per_tensor,
    swap_module,
)


def calibrated(model, *shape):
    torch.manual_seed(0)
    prepared = prepare(with_qconfig(model).eval())
    prepared(torch.randn(*shape))
    return prepared


def test_the_root_is_converted():
    layer = convert(calibrated(nn.Linear(4, 3), 16, 4))
    assert type(layer) is quantized.Linear
    result = layer(quantize_per_tensor(torch.randn(5, 4), 0.02, 128, torch.quint8))
    assert isinstance(result, QTensor)
    with pytest.raises(ValueError, match="inplace=True cannot put another layer in the place of the model itself"):
        convert(calibrated(nn.Linear(4, 3), 16, 4), inplace=True)


def test_scales_are_those_that_were_observed():
    prepared = calibrated(nn.Sequential(nn.Linear(4, 3)), 16, 4)
    scale, zero_point = prepared[0].activation_post_process.calculate_qparams()
    layer = convert(prepared)[0]
    assert torch.equal(layer.scale, scale[0])
    assert torch.equal(layer.zero_point, zero_point[0])
    weight = prepared[0].qconfig.weight()
    weight(prepared[0].weight)
    assert torch.equal(layer.weight().q_scale() * torch.ones(1), weight.calculate_qparams()[0])


def test_the_copy_is_clean_and_the_model_untouched():
    prepared = calibrated(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), 16, 4)
    before = copy.deepcopy(prepared.state_dict())
    converted = convert(prepared)
    assert list(prepared.state_dict()) == list(before)
    for module in converted.modules():
        assert not hasattr(module, "qconfig")
        assert not hasattr(module, "activation_post_process")
        assert not module._forward_pre_hooks
        assert not module._forward_hooks
        assert not module.training
    kept = convert(prepared, remove_qconfig=False)
    assert kept.qconfig == default_qconfig
    assert convert(prepared, inplace=True) is prepared
    assert type(prepared[0]) is quantized.Linear


@pytest.mark.parametrize("step", [prepare, prepare_qat])
def test_a_trained_state_dict_goes_into_models_that_saw_nothing(step):
    torch.manual_seed(0)
    make = lambda: QuantWrapper(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)))  # noqa: E731
    trained, x = prepare_qat(with_qconfig(make(), default_qat_qconfig)), torch.randn(16, 4)
    trained(x)
    converted = convert(trained)
    other = convert(step(with_qconfig(make(), default_qat_qconfig)), allow_uncalibrated=True)
    assert list(other.state_dict()) == list(converted.state_dict())
    other.load_state_dict(converted.state_dict())
    assert torch.equal(other(x), converted(x))


def test_hooks_mode_and_own_classes_go_over():
    calls = []

    class Mine(nn.Module):
        @classmethod
        def from_float(cls, module):
            return cls()

        def forward(self, x):
            return x

    layer = with_qconfig(nn.Linear(1, 1))
    layer.register_forward_pre_hook(lambda module, inputs, settings: calls.append("before"), with_kwargs=True)
    layer.register_forward_hook(lambda module, inputs, output: calls.append("after"))
    layer.eval()
    made = swap_module(layer, {nn.Linear: Mine})
    made(torch.ones(1))
    assert calls == ["before", "after"]
    assert not made.training
    assert swap_module(layer, {nn.Conv2d: Mine}) is layer
    layer.qconfig = None
    assert swap_module(layer, {nn.Linear: Mine}) is layer


def test_custom_classes():
    class Quantized(nn.Module):
        @classmethod
        def from_observed(cls, module):
            return cls()

    model = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    prepared = calibrated(model, 3, 1)
    custom = {"observed_to_quantized_custom_module_class": {nn.Tanh: Quantized}}
    assert type(convert(prepared, convert_custom_config_dict=custom)[1]) is Quantized


def test_errors_of_a_layer_name_it():
    class Refuses(nn.Module):
        @classmethod
        def from_float(cls, module):
            raise ValueError("no")

    prepared = calibrated(nn.Sequential(nn.Linear(1, 1)), 3, 1)
    with pytest.raises(ValueError, match="layer '0': no"):
        convert(prepared, {nn.Linear: Refuses})
    assert plain_class(prepared[0]) is nn.Linear
