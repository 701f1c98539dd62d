"""Rules and weights of `lower` and `sequential_lower`; wrong arguments raise."""

import copy
import warnings

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
from qtorch.recipes import lower


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


def old(norm, layer):
    """A layer with torch's older hooks, which compute the weight before each call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return norm(layer)


COMPUTED = {
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
    "old weight_norm": lambda: old(nn.utils.weight_norm, nn.Linear(4, 4)),
    "old spectral_norm": lambda: old(nn.utils.spectral_norm, nn.Linear(4, 4)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_weights_are_rounded_last(name):
    torch.manual_seed(0)
    layer = COMPUTED[name]().eval()
    x = torch.eye(4)
    wide = layer(x) - layer.bias
    low = lower(layer, ["linear"], weight_number="fixed(8,2)")
    y = low(x) - low.bias
    torch.testing.assert_close(y, qtorch.quantize(wide.detach(), "fixed(8,2)", "nearest"))
    y.sum().backward()
    assert all(p.grad is not None for name, p in low.named_parameters() if name != "bias")
    assert str(low) == "Linear(in_features=4, out_features=4, bias=True, weight=fixed(8,2))"
    with pytest.raises(ValueError, match="lowered already"):
        lower(low, ["linear"], weight_number="int8")


def test_both_halves_of_attention_are_rounded():
    torch.manual_seed(0)
    low = lower(nn.MultiheadAttention(8, 2), ["attention"], weight_number="int2")
    assert not low.in_proj_weight.any()
    assert not low.out_proj.weight.any()
    with pytest.warns(UserWarning, match="layer_types match no layer"):  # the half that is a linear layer is not one
        assert lower(nn.MultiheadAttention(8, 2), ["linear"], "int2").out_proj.weight.any()


class Sum(nn.Linear):
    """A weight and what is added to it, as LoRA does."""

    def __init__(self):
        super().__init__(4, 4)
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))

    def forward(self, x):
        return nn.functional.linear(x, self.weight + self.up @ self.down, self.bias)


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return x * self.weight if x.dim() > 1 else x @ self.weight


def test_programs_round_what_they_multiply_by():
    torch.manual_seed(0)
    low, x = lower(Sum(), ["linear"], weight_number="int4"), torch.randn(3, 4)
    weight = qtorch.quantize(low.weight + low.up @ low.down, "int4", "nearest")
    assert_same_bits(low(x), nn.functional.linear(x, weight, low.bias))
    low(x).sum().backward()
    assert low.up.grad.any()
    low = lower(nn.Sequential(Product()), rules=[Rule("0", weight_number="int4")])
    assert_same_bits(low(x[0]), x[0] @ qtorch.quantize(low[0].weight, "int4", "nearest"))
    with pytest.raises(ValueError, match="0 multiplies by no weight that lower finds"):
        low(torch.eye(4))


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: nn.init.zeros_(layer.weight),
        lambda layer: layer.weight.mul_(2),
        lambda layer: layer.weight.data.zero_(),
        lambda layer: layer.weight.T.fill_(1),
        lambda layer: layer.weight.__setitem__(0, 1),
        lambda layer: torch.add(layer.weight, 1, out=layer.weight),
    ],
)
def test_changes_of_rounded_weights_in_place_raise(change):
    low = lower(nn.Linear(4, 4), ["linear"], weight_number="int4")
    with pytest.raises(RuntimeError, match=r"would not reach the parameter; .*parametrizations.weight.original"):
        change(low)
    assert type(low.weight + 1) is torch.Tensor


@pytest.mark.parametrize("wrap", [torch.compile, torch.optim.swa_utils.AveragedModel])
def test_names_are_those_inside_wrappers(wrap):
    low = lower(wrap(nn.Sequential(nn.Linear(4, 4))), rules=[Rule("0", weight_number="int2")])
    assert not next(layer for layer in low.modules() if isinstance(layer, nn.Linear)).weight.any()


@pytest.mark.parametrize("way", WAYS)
def test_rules_that_match_nothing_raise(way):
    with pytest.raises(ValueError, match=r"rules match no layer; the model has conv \(Conv2d\), bn \(BatchNorm2d\)"):
        way(network(), rules=[Rule("head", weight_number="int8")])
    with pytest.raises(ValueError, match="rules match no layer"):
        way(network(), ["conv"], rules=iter([Rule("head", weight_number="int8")]))
    with pytest.raises(ValueError, match="1 has no weight yet"):
        way(nn.Sequential(nn.ReLU(), nn.LazyLinear(2)), ["linear"], weight_number="int8")
