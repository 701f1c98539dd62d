"""Where torch did nothing and said nothing: what happens here, and what is said."""

import copy
import pickle

import pytest
import torch
from torch import nn
from workflow_support import ROWS, Residual, digits, with_qconfig

from qtorch.nn import quantized
from qtorch.quantization import (
    QuantStub,
    QuantWrapper,
    convert,
    default_qconfig,
    fuse_modules,
    get_default_qconfig,
    prepare,
    prepare_qat,
    quantize_dynamic,
    quantize_per_channel,
    quantize_per_tensor,
)


def converted(model, x):
    prepared = prepare(with_qconfig(model.eval(), default_qconfig))
    prepared(x)
    return convert(prepared)


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


class Block(nn.Module):
    """Layers of all kinds that check what they get."""

    def __init__(self):
        super().__init__()
        self.quant, self.fc, self.conv, self.norm = QuantStub(), nn.Linear(4, 4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.group, self.layer, self.elu = nn.GroupNorm(2, 4), nn.LayerNorm(4), nn.ELU()

    def forward(self, x):
        q = self.quant(x)
        return self.elu(self.layer(self.fc(q))), self.group(
            self.norm(self.conv(q[:, :, None, None].expand(-1, 4, 3, 3)))
        )


def test_layers_that_get_what_does_not_fit_are_named():
    model = nn.Sequential(Block())
    prepared = prepare(with_qconfig(model.eval(), default_qconfig))
    prepared(torch.randn(4, 4))
    block = convert(prepared)[0]
    q = block.quant(torch.randn(4, 5))
    for name in ("fc", "conv", "norm", "group", "layer"):
        with pytest.raises(ValueError, match=rf"^0\.{name}: (input|weight) has shape \(4, ?5?\).*; allowed"):
            block.get_submodule(name)(q)
    wide = quantize_per_tensor(torch.ones(2, 4), 0.5, 0, torch.qint32)
    channels = quantize_per_channel(torch.ones(2, 4), torch.ones(2), torch.zeros(2).int(), 0, torch.quint8)
    for name in ("fc", "conv", "norm", "group", "layer", "elu"):
        with pytest.raises(TypeError, match=rf"^0\.{name}: input has integers of int32; allowed are up to 16 bits"):
            block.get_submodule(name)(wide)
        with pytest.raises(ValueError, match=rf"^0\.{name}: input has axis=0; allowed is a QTensor with one scale"):
            block.get_submodule(name)(channels)


def test_dynamic_layers_that_get_what_does_not_fit_are_named():
    layers = nn.ModuleDict(
        {"fc": nn.Linear(4, 4), "gru": nn.GRU(4, 4), "cell": nn.LSTMCell(4, 4), "plain": nn.RNNCell(4, 4)}
    )
    model, q = quantize_dynamic(layers), quantize_per_tensor(torch.ones(2, 4), 0.5, 0, torch.quint8)
    for name, layer in model.items():
        with pytest.raises(ValueError, match=rf"^{name}: input (has shape|is) \(2, 5\); allowed"):
            layer(torch.ones(2, 5))
    for name in ("fc", "cell", "plain"):
        with pytest.raises(
            TypeError, match=rf"^{name}: input is a QTensor; allowed is a tensor of floats: insert a De"
        ):
            model[name](q)
    with pytest.raises(ValueError, match=r"^gru: state has shape \(1, 2, 5\); allowed is \(1, 2, 4\)"):
        model.gru(torch.ones(3, 2, 4), torch.ones(1, 2, 5))
    with pytest.raises(ValueError, match=r"^plain: hidden state has shape \(3, 4\); allowed is \(2, 4\)"):
        model.plain(torch.ones(2, 4), torch.ones(3, 4))


def test_attention_stays_in_floats_and_works():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    prepared = prepare_qat(with_qconfig(copy.deepcopy(layer).train(), get_default_qconfig()))
    assert type(prepared.self_attn) is nn.MultiheadAttention
    prepared(x).sum().backward()
    result = quantize_dynamic(layer)
    assert type(result.linear1) is quantized.dynamic.Linear
    torch.testing.assert_close(result(x), layer(x), rtol=0, atol=0.1)
    observed = prepare(with_qconfig(layer, default_qconfig))
    assert type(observed.self_attn) is type(result.self_attn) is nn.MultiheadAttention
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


@pytest.mark.parametrize("layer", [nn.Linear(1, 4), nn.Conv2d(1, 4, 1), nn.Conv1d(1, 4, 1, bias=False)])
def test_layers_of_one_input(layer):
    """torch._int_mm of 2.13 is wrong where one number is multiplied with each weight."""
    x = torch.linspace(-2, 2, 96).reshape(96, 1, *[1] * (layer.weight.dim() - 2))
    result = converted(QuantWrapper(layer), x)(x)
    torch.testing.assert_close(result, layer(x), rtol=0, atol=0.05)
