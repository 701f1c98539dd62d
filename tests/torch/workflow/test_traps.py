"""Where torch did nothing and said nothing: what happens here, and what is said."""

import copy
import pickle

import pytest
import torch
from torch import nn
from workflow_support import ROWS, Residual, digits, mlp, with_qconfig

from qtorch.nn import quantized
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    DeQuantStub,
    QuantStub,
    QuantWrapper,
    convert,
    default_qconfig,
    fuse_modules,
    get_default_qconfig,
    prepare,
    prepare_qat,
)


def converted(model, x):
    prepared = prepare(with_qconfig(model.eval(), default_qconfig))
    prepared(x)
    return convert(prepared)


def test_a_missing_quant_stub_is_named():
    model = converted(nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU()), torch.randn(4, 2))
    with pytest.raises(TypeError, match=r"0\.0: input is a Tensor; allowed is a QTensor: insert a QuantStub"):
        model(torch.randn(4, 2))


def test_a_layer_in_floats_that_gets_integers_is_named():
    model = nn.Sequential(QuantStub(), nn.Linear(2, 2), nn.Linear(2, 2), nn.LSTM(2, 2))
    model[2].qconfig = None
    prepared = prepare(with_qconfig(model.eval(), default_qconfig))
    prepared(torch.randn(4, 2))
    result = convert(prepared)
    with pytest.raises(TypeError, match="layer '2' gets a QTensor and is in floats, since its qconfig is None; insert"):
        result(torch.randn(4, 2))
    with pytest.raises(TypeError, match="layer '3' gets a QTensor and is in floats, since there is no quantized LSTM"):
        result[3](result[1](result[0](torch.randn(4, 2))))


def test_all_names_of_a_layer_mean_one_layer():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.quant, self.first = QuantStub(), nn.Linear(2, 2)
            self.second, self.inner = self.first, nn.Sequential(self.first, nn.ReLU())
            self.dequant = DeQuantStub()

        def forward(self, x):
            return self.dequant(self.inner(self.quant(x)))

    result = converted(Tied(), torch.randn(8, 2))
    assert type(result.first) is quantized.Linear
    assert result.first is result.second is result.inner[0]
    trained = prepare_qat(with_qconfig(Tied().train(), get_default_qconfig()))
    assert trained.first is trained.second is trained.inner[0]


def test_a_functional_that_is_used_twice_is_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.quant, self.add, self.dequant = QuantStub(), FloatFunctional(), DeQuantStub()

        def forward(self, x):
            x = self.quant(x)
            return self.dequant(self.add.add(self.add.add(x, x), x))

    with pytest.warns(UserWarning, match="layer 'add' ran 2 times while the model ran 1 times"):
        converted(Two(), torch.randn(4, 2))


def test_attention_stays_in_floats_and_works():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    prepared = prepare_qat(with_qconfig(copy.deepcopy(layer).train(), get_default_qconfig()))
    assert type(prepared.self_attn) is nn.MultiheadAttention
    prepared(x).sum().backward()
    observed = prepare(with_qconfig(layer, default_qconfig))
    assert type(observed.self_attn) is nn.MultiheadAttention
    assert observed(x).shape == x.shape


def test_models_can_be_moved_copied_and_pickled():
    model = with_qconfig(fuse_modules(Residual().eval(), ROWS), get_default_qconfig())
    images = digits()[0][:32]
    prepared = pickle.loads(pickle.dumps(copy.deepcopy(prepare(model))))
    prepared(images)
    result = convert(prepared.to("cpu"))
    expected = result(images)
    again = pickle.loads(pickle.dumps(copy.deepcopy(result))).to("cpu")
    assert torch.equal(again(images), expected)


def test_a_failed_call_leaves_the_model_alone():
    model = with_qconfig(mlp().eval(), default_qconfig)
    before = str(model), set(vars(model))
    with pytest.raises(TypeError):
        prepare(with_qconfig(copy.deepcopy(model), 3))
    with pytest.raises(ValueError, match="no layer to convert; call prepare"):
        convert(model)
    assert (str(model), set(vars(model))) == before


def test_state_dicts_of_converted_models_are_plain_tensors_and_load():
    images = digits()[0][:32]
    make = lambda: prepare(with_qconfig(fuse_modules(Residual().eval(), ROWS), get_default_qconfig("fbgemm")))  # noqa: E731
    prepared = make()
    prepared(images)
    result = convert(prepared)
    state = result.state_dict()
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    other = convert(make(), allow_uncalibrated=True)
    other.load_state_dict(state)
    assert torch.equal(other(images), result(images))


def test_a_wrapped_layer_computes_as_the_layer():
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 4), torch.randn(64, 8)
    result = converted(QuantWrapper(layer), x)(x)
    torch.testing.assert_close(result, layer(x), rtol=0, atol=0.1)


@pytest.mark.parametrize("layer", [nn.Linear(1, 4), nn.Conv2d(1, 4, 1), nn.Conv1d(1, 4, 1, bias=False)])
def test_layers_of_one_input(layer):
    """torch._int_mm of 2.13 is wrong where one number is multiplied with each weight."""
    x = torch.linspace(-2, 2, 96).reshape(96, 1, *[1] * (layer.weight.dim() - 2))
    result = converted(QuantWrapper(layer), x)(x)
    torch.testing.assert_close(result, layer(x), rtol=0, atol=0.05)
