"""Rules and weights of `lower` and `sequential_lower`; wrong arguments raise."""

import copy

import pytest
import torch
from support import assert_same_bits
from torch import nn
from torch_auto_low_support import (
    BOTH,
    FIXED,
    IMAGE,
    WAYS,
    F,
    Odd,
    network,
    quantizers_of,
    rounded,
    value_and_gradients,
)

import qtorch
from qcore import Quantization, Rule
from qtorch.quant import Quantizer


@pytest.mark.parametrize("way", WAYS)
def test_rules(way):
    rules = [
        Rule("conv"),
        Rule("*", "conv", Quantization(FIXED)),
        Rule("f*", "linear", Quantization(F, None, "nearest"), weight_number=FIXED),
        Rule("*", nn.Linear, Quantization(FIXED)),
        Rule("act", outputs=Quantization(F, None, "nearest")),
    ]
    model = network()
    low = way(network(), rules=rules)
    with torch.no_grad():
        model.fc.weight.copy_(qtorch.quantize(model.fc.weight, FIXED, "nearest"))
    expected = rounded(model.fc(model.flat(rounded(model.act(model.bn(model.conv(IMAGE)))))))
    assert_same_bits(low(IMAGE), expected)
    fewer, rest = rules[:1] + rules[2:], {"forward_number": F, "forward_rounding": "nearest"}
    assert_same_bits(way(network(), ["conv", "linear"], rules=[*fewer, Rule("*", "conv")], **rest)(IMAGE), expected)
    first = way(network(), ["conv", "linear"], rules=[Rule("f*")], **rest)
    assert_same_bits(first(IMAGE), way(network(), ["conv"], **rest)(IMAGE))
    nothing_said = way(network(), rules=[Rule(), *rules])
    assert_same_bits(nothing_said(IMAGE), network()(IMAGE))
    everything = way(nn.Sequential(nn.Sequential(Odd()), nn.Flatten(0)), rules=[Rule("*", None, Quantization(F))])
    assert len(quantizers_of(everything)) == 2


class Negative(nn.Module):
    """Somebody else's parametrization."""

    def forward(self, weight):
        return -weight


@pytest.mark.parametrize("way", WAYS)
def test_quantizers_and_parametrizations_are_no_layers(way):
    layer = nn.utils.parametrize.register_parametrization(nn.Linear(3, 3), "weight", Negative())
    low = way(nn.Sequential(layer, Quantizer(F)), rules=[Rule(outputs=Quantization(F))])
    assert len(quantizers_of(low)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_weights(way):
    old, low = network(), way(network(), ["linear", "conv"], weight_number=F)
    for name in ("fc", "conv"):
        layer = getattr(low, name)
        assert_same_bits(layer.weight, rounded(getattr(old, name).weight))
        assert_same_bits(layer.bias, getattr(old, name).bias)
    with torch.no_grad():
        old.fc.weight.copy_(rounded(old.fc.weight))
        old.conv.weight.copy_(rounded(old.conv.weight))
    ours, theirs = (value_and_gradients(model, IMAGE) for model in (low, old))
    assert_same_bits(ours[0], theirs[0])
    for one, other in ((low.fc, old.fc), (low.conv, old.conv)):
        assert_same_bits(one.parametrizations.weight.original.grad, other.weight.grad)
    twin = copy.deepcopy(low)
    assert_same_bits(twin(IMAGE), ours[0])
    for source in (network(), low):  # checkpoints with either naming
        low.load_state_dict(source.state_dict(), strict=True)
        assert_same_bits(low(IMAGE), ours[0])
    pairs = way(network(), ["linear"], F, None, *BOTH, weight_number=F, weight_rounding="down")
    pairs.load_state_dict(network().state_dict(), strict=True)
    weight = qtorch.quantize(network().fc.weight, F, "down")
    flat = nn.Sequential(*list(network())[:4])(IMAGE)
    assert_same_bits(pairs(IMAGE), rounded(nn.functional.linear(flat, weight, network().fc.bias)))
    lstm, x = nn.LSTM(3, 3), torch.randn(4, 3)
    with torch.no_grad():
        expected = copy.deepcopy(lstm)
        for name, parameter in expected.named_parameters():
            parameter.copy_(rounded(parameter) if "weight" in name else parameter)
        assert_same_bits(way(lstm, ["rnn"], weight_number=F)(x)[0], expected(x)[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"layer_types": ["convolution"]}, ValueError, ["layer_types", "convolution", "conv, linear, pool", "rnn"]),
        ({"layer_type": [3]}, TypeError, ["layer_types", "3", "conv, linear"]),
        ({"layer_types": [int]}, TypeError, ["layer_types", "int", "classes of torch.nn.Module"]),
        ({"layer_types": "conv"}, TypeError, ["layer_types", "'conv'", "list"]),
        ({"layer_types": nn.Linear}, TypeError, ["layer_types", "Linear", "list"]),
        ({"layer_types": 3}, TypeError, ["layer_types", "3", "list"]),
        ({"forward_number": 3}, TypeError, ["forward_number", "3", "Number"]),
        ({"weight_number": "e9"}, ValueError, ["weight_number", "e9"]),
        ({"weight_rounding": "near"}, ValueError, ["weight_rounding", "near"]),
        ({"rules": [3]}, TypeError, ["rules", "int", "Rules"]),
        ({"rules": Rule()}, TypeError, ["rules", "Rule", "list"]),
        ({"rules": [Rule(layer_type="cnv")]}, ValueError, ["cnv", "conv, linear"]),
        ({"rules": [Rule()], "forward_number": F}, ValueError, ["rules", "layer_types"]),
        ({"rules": [Rule()], "weight_number": F}, ValueError, ["rules", "layer_types"]),
    ],
)
def test_wrong_arguments(way, arguments, error, words):
    with pytest.raises(error) as caught:
        way(network(), **arguments)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("way", WAYS)
def test_what_is_no_model(way):
    with pytest.raises(TypeError, match=r"model is a list; allowed is a torch\.nn\.Module"):
        way([network()], ["linear"], F)
