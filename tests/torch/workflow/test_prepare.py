"""propagate_qconfig_, prepare and add_observer_: who gets which settings and observers, and what is refused."""

import copy

import pytest
import torch
from torch import nn
from workflow_support import with_qconfig

from qtorch.nn import intrinsic
from qtorch.quantization import (
    DeQuantStub,
    MinMaxObserver,
    QConfig,
    QuantStub,
    QuantWrapper,
    add_observer_,
    add_quant_dequant,
    default_dynamic_qconfig,
    default_per_channel_qconfig,
    default_qconfig,
    default_weight_observer,
    get_observer_dict,
    prepare,
    propagate_qconfig_,
)

OTHER = default_per_channel_qconfig


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))


def observed(model):
    found = {}
    get_observer_dict(model, found)
    return list(found)


def test_the_most_specific_settings_win():
    model = network()
    model[0].qconfig = None  # an attribute before all entries
    entries = {"": default_qconfig, "0": OTHER, "1": OTHER, "1.1": None, nn.Linear: default_dynamic_qconfig}
    propagate_qconfig_(model, entries)
    assert model.qconfig is default_qconfig
    assert model[0].qconfig is None
    assert model[1].qconfig is OTHER  # by name
    assert model[1][0].qconfig is default_dynamic_qconfig  # by type, before the parent's
    assert model[1][1].qconfig is None
    assert model[2].qconfig is default_dynamic_qconfig


@pytest.mark.parametrize("name", ["white_list", "allow_list"])
def test_only_listed_types_are_written(name):
    model = with_qconfig(network())
    propagate_qconfig_(model, None, **{name: {nn.Linear}})
    assert model[1][0].qconfig is default_qconfig
    assert not hasattr(model[1], "qconfig")
    with pytest.raises(TypeError, match="two names of one argument"):
        propagate_qconfig_(model, white_list={nn.Linear}, allow_list={nn.Linear})


def test_layers_are_observed_and_the_model_is_a_copy():
    model = with_qconfig(network())
    model[2].qconfig = None
    prepared = prepare(model)
    assert observed(prepared) == ["0.activation_post_process", "1.0.activation_post_process"]
    assert observed(model) == []
    x = torch.randn(5, 4)
    assert torch.equal(prepared(x), model(x))
    assert prepared[0].activation_post_process.max_val == model[0](x).max()
    assert prepare(model, inplace=True) is model
    assert observed(model) == observed(prepared)


def test_fused_layers_are_observed_once_as_a_whole():
    model = with_qconfig(nn.Sequential(intrinsic.LinearReLU(nn.Linear(2, 2), nn.ReLU())))
    prepared = prepare(model)
    assert observed(prepared) == ["0.activation_post_process"]
    prepared(torch.randn(9, 2))
    assert prepared[0].activation_post_process.min_val >= 0


@pytest.mark.parametrize("name", ["allow_list", "white_list"])
def test_lists_say_what_is_observed(name):
    model = with_qconfig(network())
    assert observed(prepare(model, **{name: {nn.ReLU}})) == ["1.1.activation_post_process"]
    found = observed(prepare(model, **{name: {nn.ReLU}}, observer_non_leaf_module_list=[nn.Sequential]))
    assert found == ["activation_post_process"]


def test_a_second_prepare_keeps_everything_and_observes_once():
    model = with_qconfig(nn.Sequential(nn.Linear(2, 2), intrinsic.LinearReLU(nn.Linear(2, 2), nn.ReLU())))
    once = prepare(model)
    once(torch.ones(3, 2))
    twice = prepare(once)
    before = copy.deepcopy(twice.state_dict())
    assert list(before) == list(once.state_dict())
    assert all(torch.equal(before[name], value) for name, value in once.state_dict().items())
    seen = []
    twice[1].activation_post_process.register_forward_hook(lambda *_: seen.append(1))
    twice(torch.ones(3, 2))
    assert seen == [1]


def test_users_hooks_see_what_observers_return():
    class Marks(MinMaxObserver):
        def forward(self, x):
            return super().forward(x) + 1

    model = with_qconfig(nn.Sequential(nn.Linear(1, 1)), QConfig(Marks, default_weight_observer))
    outputs = []
    model[0].register_forward_hook(lambda module, inputs, output: outputs.append(output))
    x = torch.ones(1, 1)
    prepare(model)(x)
    assert torch.equal(outputs[0], model[0](x) + 1)


def test_custom_modules():
    class Float(nn.Module):
        def forward(self, x):
            return x

    class Observed(nn.Module):
        @classmethod
        def from_float(cls, module):
            return cls()

        def forward(self, x):
            return x

    model = with_qconfig(nn.Sequential(nn.Linear(1, 1), Float()))
    custom = {"float_to_observed_custom_module_class": {Float: Observed}}
    prepared = prepare(model, prepare_custom_config_dict=custom)
    assert isinstance(prepared[1], Observed)
    assert prepared[1].qconfig is not None


def test_what_prepare_refuses():
    model = network()
    with pytest.raises(ValueError, match="model has no layer to observe"):
        prepare(model)
    with pytest.raises(ValueError, match="there are ReLU"):
        prepare(with_qconfig(nn.ReLU()))
    with pytest.raises(TypeError, match="layer '0' has a QConfigDynamic"):
        prepare(with_qconfig(network(), default_dynamic_qconfig))
    with pytest.raises(TypeError, match="made a int; allowed are modules"):
        prepare(with_qconfig(network(), QConfig(lambda: 3, default_weight_observer)))
    with pytest.raises(TypeError, match="the model itself has a qconfig that is a builtins"):
        prepare(with_qconfig(network(), "int8"))
    assert "qconfig" not in model.__dict__


def test_a_tensor_with_a_graph_is_named():
    model = with_qconfig(network())
    model[1].kept = model[0].weight * 2
    with pytest.raises(ValueError, match=r"1\.kept is a tensor that depends on others by gradients"):
        prepare(model)
    assert prepare(model, inplace=True) is model


def test_layers_that_return_no_tensor_are_named():
    class Pair(nn.Linear):
        def forward(self, input):
            return super().forward(input), 0

    prepared = prepare(with_qconfig(nn.Sequential(Pair(2, 2))), allow_list={Pair})
    with pytest.raises(TypeError, match="layer '0' returns a tuple"):
        prepared(torch.ones(1, 2))


def test_stubs_and_wrappers():
    layer = with_qconfig(nn.Linear(2, 2)).eval()
    wrapper = QuantWrapper(layer)
    assert wrapper.qconfig is wrapper.quant.qconfig is wrapper.dequant.qconfig is default_qconfig
    assert not wrapper.quant.training
    x = torch.randn(3, 2)
    assert torch.equal(wrapper(x), layer(x))
    assert not hasattr(QuantStub(), "qconfig")
    assert DeQuantStub(OTHER).qconfig is OTHER


def test_add_quant_dequant_wraps_layers_with_settings_once():
    model = with_qconfig(network())
    model[2] = model[0]
    model[1].qconfig = None
    propagate_qconfig_(model)
    wrapped = add_quant_dequant(add_quant_dequant(model))
    assert wrapped is model
    assert isinstance(model[0], QuantWrapper)
    assert model[2] is model[0]
    assert isinstance(model[0].module, nn.Linear)
    assert isinstance(model[1][0], nn.Linear)


def test_add_observer_observes_layers_with_settings():
    model = with_qconfig(network())
    propagate_qconfig_(model)
    add_observer_(model)
    assert len(observed(model)) == 4  # the ReLU, too
    add_observer_(model)
    model(torch.ones(1, 4))
    assert len(observed(model)) == 4
    other = with_qconfig(network())
    propagate_qconfig_(other)
    add_observer_(other, [nn.Sequential])
    assert observed(other) == ["activation_post_process"]
