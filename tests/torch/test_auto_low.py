"""`lower` and `sequential_lower`: which layers round what, and that models remain models."""

import collections
import copy
import io
import pickle

import pytest
import torch
from support import assert_same_bits
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.hooks import RemovableHandle

import qtorch
from qcore import FixedPoint, FloatingPoint, Quantization, Rule
from qtorch import auto_low
from qtorch.auto_low import GROUPS, lower, sequential_lower
from qtorch.quant import Quantizer

F = FloatingPoint(5, 2)
FIXED = FixedPoint(6, 3)
BOTH = ("nearest", "nearest")
WAYS = [lower, sequential_lower]


def rounded(x):
    return qtorch.quantize(x, F, "nearest")


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        collections.OrderedDict(
            conv=nn.Conv2d(1, 4, 3),
            bn=nn.BatchNorm2d(4),
            act=nn.GELU(),
            flat=nn.Flatten(),
            fc=nn.Linear(4 * 6 * 6, 5),
        )
    )


IMAGE = torch.randn(2, 1, 8, 8)


def value_and_gradients(model, x):
    model.zero_grad()
    y = model(x)
    y.backward(torch.linspace(-1, 1, y.numel()).reshape(y.shape))
    return [y.detach(), *(p.grad.clone() for p in model.parameters())]


def assert_all_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert_same_bits(a, b)


class ByHand(nn.Module):
    """`network` with "conv" and "linear" lowered, written out."""

    def __init__(self, model, **settings):
        super().__init__()
        self.model = copy.deepcopy(model)
        self.q = Quantizer(F, FIXED, **settings)

    def forward(self, x):
        m = self.model
        return self.q(m.fc(m.flat(m.act(m.bn(self.q(m.conv(x)))))))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_outputs_and_their_gradients_are_rounded(way, rounding):
    model = network()
    by_hand = ByHand(model, forward_rounding=rounding, backward_rounding=rounding)
    low = way(model, ["conv", "linear"], F, FIXED, rounding, rounding)
    assert (low is model) == (way is lower)
    torch.manual_seed(3)
    expected = value_and_gradients(by_hand, IMAGE)
    torch.manual_seed(3)
    assert_all_same(value_and_gradients(low, IMAGE), expected)


def test_the_poster():
    prec = FloatingPoint(bit=8)

    model = network()
    by_hand = sequential_lower(model, [nn.Conv2d], FloatingPoint(5, 2), FloatingPoint(5, 2))
    model = lower(model, layer_type=["conv"], forward_number=prec, backward_number=prec)
    results = []
    for program in (by_hand, model):
        torch.manual_seed(6)
        results.append(value_and_gradients(program, IMAGE))
    assert_all_same(*results)


def test_qpytorch_calls():
    positional = sequential_lower(network(), ["conv", "linear"], F, FIXED, "nearest", "nearest")
    by_name = sequential_lower(
        network(),
        layer_types=["conv", "linear"],
        forward_number=F,
        backward_number=FIXED,
        forward_rounding="nearest",
        backward_rounding="nearest",
    )
    assert repr(positional) == repr(by_name)
    assert_all_same(value_and_gradients(positional, IMAGE), value_and_gradients(by_name, IMAGE))
    assert isinstance(positional.fc[0], nn.Linear)
    assert isinstance(positional.fc[1], Quantizer)
    plain = network()
    assert repr(sequential_lower(plain, forward_number=F)) == repr(lower(network(), forward_number=F)) == repr(plain)


LAYERS = {
    "conv": [nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(1, 2, 3), nn.Unfold(2)],
    "pool": [nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)],
    "pad": [nn.ZeroPad2d(1), nn.CircularPad2d(1)],
    "activation": [nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Softmax(-1), nn.PReLU()],
    "normalization": [nn.BatchNorm2d(1), nn.GroupNorm(1, 1), nn.LayerNorm(8), nn.RMSNorm(8)],
    "dropout": [nn.Dropout(), nn.Dropout2d()],
    "linear": [nn.Linear(8, 3)],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("group", "layer"), [(group, layer) for group in LAYERS for layer in LAYERS[group]], ids=str)
def test_groups(group, layer, way):
    low = way(copy.deepcopy(layer), [group], F, None, *BOTH)
    others = way(copy.deepcopy(layer), [other for other in GROUPS if other != group], F, None, *BOTH)
    torch.manual_seed(4)
    y = layer(IMAGE)
    torch.manual_seed(4)
    assert_same_bits(low(IMAGE), rounded(y))
    torch.manual_seed(4)
    assert_same_bits(others(IMAGE), y)


def test_groups_have_all_of_torchs_layers_once():
    kinds = [kind for group in GROUPS.values() for kind in group]
    assert len(kinds) == len(set(kinds))
    names = {"Identity", "Flatten", "Unflatten", "PixelShuffle", "PixelUnshuffle", "ChannelShuffle", "Upsample"}
    names |= {"UpsamplingNearest2d", "UpsamplingBilinear2d", "PairwiseDistance", "CosineSimilarity", "Container"}
    names |= {"Module", "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"}
    public = {name: getattr(nn.modules, name) for name in nn.modules.__all__ if "Transformer" not in name}
    layers = {kind for name, kind in public.items() if issubclass(kind, nn.Module) and name not in names}
    assert set(kinds) == layers


@pytest.mark.parametrize("way", WAYS)
def test_losses(way):
    loss = way(nn.MSELoss(), ["loss"], F, None, *BOTH)
    x = torch.randn(5)
    assert_same_bits(loss(x, target=torch.zeros(5)), rounded(nn.MSELoss()(x, torch.zeros(5))))


@pytest.mark.parametrize("way", WAYS)
def test_embeddings_attention_and_recurrent_layers(way):
    torch.manual_seed(0)
    embedding = nn.Embedding(5, 4)
    index = torch.tensor([[0, 3]])
    assert_same_bits(
        way(embedding, ["embedding"], F, None, *BOTH)(index), rounded(nn.Embedding.forward(embedding, index))
    )
    x = torch.randn(3, 2, 4)
    attention = nn.MultiheadAttention(4, 2)
    expected = attention(x, x, x)
    low = way(attention, ["attention"], F, None, *BOTH)
    output, weights = low(query=x, key=x, value=x)
    assert_same_bits(output, rounded(expected[0]))
    assert_same_bits(weights, rounded(expected[1]))
    assert low(x, x, x, need_weights=False)[1] is None
    lstm = nn.LSTM(4, 4)
    y, (h, c) = lstm(x)
    packed = lstm(pack_sequence([x[:, 0], x[:2, 1]]))[0]
    low = way(lstm, ["rnn"], F, None, *BOTH)
    z, (low_h, low_c) = low(x)
    assert_all_same([z, low_h, low_c], [rounded(y), rounded(h), rounded(c)])
    low_packed = low(pack_sequence([x[:, 0], x[:2, 1]]))[0]
    assert type(low_packed) is type(packed)
    assert_same_bits(low_packed.data, rounded(packed.data))
    assert low_packed.batch_sizes.equal(packed.batch_sizes)


Pair = collections.namedtuple("Pair", "value index")


class Odd(nn.Module):
    """Outputs of many kinds."""

    def forward(self, x, kind="tuple"):
        integers = torch.arange(3)
        return {
            "tuple": (x, integers, None),
            "list": [x, [x, 7]],
            "dict": {"a": x, "b": integers},
            "namedtuple": Pair(x, integers),
            "none": None,
        }[kind]


@pytest.mark.parametrize("way", WAYS)
def test_outputs_of_any_structure_keyword_arguments_and_classes_as_types(way):
    low, x = way(nn.Sequential(Odd()), [Odd], F, None, *BOTH)[0], torch.randn(4)
    y, integers, nothing = low(x)
    assert_same_bits(y, rounded(x))
    assert nothing is None
    assert integers.dtype is torch.int64
    first, (second, seven) = low(x, kind="list")
    assert_all_same([first, second], [rounded(x)] * 2)
    assert seven == 7
    assert_same_bits(low(x=x, kind="dict")["a"], rounded(x))
    pair = low(x, "namedtuple")
    assert type(pair) is Pair
    assert_same_bits(pair.value, rounded(x))
    assert low(x, kind="none") is None


@pytest.mark.parametrize("way", WAYS)
def test_subclasses_count_and_layers_in_two_places_are_lowered_once(way):
    class Scaled(nn.Linear):
        def forward(self, x, scale=1.0):
            return super().forward(x) * scale

    layer, x = Scaled(3, 3), torch.randn(2, 3)
    model = nn.ModuleList([layer, layer])
    expected = rounded(layer(x, scale=0.3))
    low = way(model, ["linear"], F, None, *BOTH)
    assert_same_bits(low[1](x, scale=0.3), expected)
    assert low[0] is low[1]


@pytest.mark.parametrize("way", WAYS)
def test_copies_and_pickles_are_models_of_their_own(way):
    low = way(network(), ["conv", "linear"], F, FIXED, *BOTH)
    expected = value_and_gradients(low, IMAGE)
    buffer = io.BytesIO()
    torch.save(low, buffer)
    buffer.seek(0)
    taken, RemovableHandle.next_id = RemovableHandle.next_id, 0  # as in another process
    twins = [copy.deepcopy(low), pickle.loads(pickle.dumps(low)), torch.load(buffer, weights_only=False)]
    calls = []
    for twin in twins:
        for layer in (twin.conv, twin.fc):
            layer.register_forward_hook(lambda *_: calls.append(1))
        assert_all_same(value_and_gradients(twin, IMAGE), expected)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
        assert twin(IMAGE).eq(0).all()
    assert len(calls) == 12
    RemovableHandle.next_id = max(taken, RemovableHandle.next_id)
    assert_all_same(value_and_gradients(low, IMAGE), expected)


def quantizers_of(model):
    pairs = [m[1] for m in model.modules() if isinstance(m, auto_low.Lowered)]
    hooks = [
        hook.quantizer for m in model.modules() for hook in m._forward_hooks.values() if hasattr(hook, "quantizer")
    ]
    return pairs + hooks


@pytest.mark.parametrize("way", WAYS)
def test_every_layer_has_its_own_quantizer(way):
    low = way(network(), ["conv", "linear"], F)
    twin = copy.deepcopy(low)
    assert len({id(q) for q in quantizers_of(low) + quantizers_of(twin)}) == 4


@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("second", WAYS)
def test_lowering_twice_is_refused_and_changes_nothing(first, second):
    low = first(network(), ["linear"], F, None, *BOTH)
    expected = low(IMAGE)
    for model in (low, copy.deepcopy(low)):
        with pytest.raises(ValueError, match=r"fc\S* is lowered already"):
            second(model, ["conv", "linear"], FIXED)
        assert_same_bits(model(IMAGE), expected)
    again = second(low, ["conv"], F, None, *BOTH)
    assert_same_bits(again(IMAGE), first(network(), ["conv", "linear"], F, None, *BOTH)(IMAGE))
    weighted = first(network(), ["linear"], weight_number=F)
    with pytest.raises(ValueError, match="fc is lowered already"):
        second(weighted, ["linear"], F)


def test_lower_keeps_names_and_types():
    model, low = network(), lower(network(), list(GROUPS), F)
    assert low.state_dict().keys() == model.state_dict().keys()
    assert [type(m) for m in low.modules()] == [type(m) for m in model.modules()]
    low.load_state_dict(model.state_dict(), strict=True)
    model.load_state_dict(low.state_dict(), strict=True)


@pytest.mark.parametrize("types", [["conv", "normalization"], ["linear"], [nn.Conv2d]])
def test_old_and_new_checkpoints_load_into_pairs(types):
    torch.manual_seed(1)
    old = network()
    for parameter in old.parameters():
        nn.init.normal_(parameter)
    low = sequential_lower(network(), types, F, None, *BOTH)
    assert low.state_dict().keys() != old.state_dict().keys()
    before = old.state_dict()
    low.load_state_dict(before, strict=True)
    assert before.keys() == old.state_dict().keys()
    expected = sequential_lower(old, types, F, None, *BOTH)
    assert_same_bits(low.eval()(IMAGE), expected.eval()(IMAGE))
    other = sequential_lower(network(), types, F, None, *BOTH)
    other.load_state_dict(low.state_dict(), strict=True)
    assert_same_bits(other.eval()(IMAGE), expected(IMAGE))
    with pytest.raises(RuntimeError, match="Missing"):
        other.load_state_dict({name: value for name, value in before.items() if "weight" not in name})
    with pytest.raises(RuntimeError, match="nonsense"):
        other.load_state_dict({**before, "fc.nonsense": torch.ones(1)})


def test_pairs_have_the_attributes_of_their_layers():
    old = network()
    low = sequential_lower(old, ["conv", "linear"], F, None, *BOTH)
    assert low.fc.weight is low.fc[0].weight
    assert (low.fc.in_features, low.conv.stride) == (144, (1, 1))
    assert not hasattr(low.fc, "nothing")
    assert_same_bits(nn.Sequential(low.conv[0], low.bn, low.act, low.flat, low.fc[0])(IMAGE), old(IMAGE))
    assert [type(m) for m in old] == [nn.Conv2d, nn.BatchNorm2d, nn.GELU, nn.Flatten, nn.Linear]
    assert not quantizers_of(old)


@pytest.mark.parametrize("way", WAYS)
def test_the_model_itself_may_be_a_layer(way):
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    expected = rounded(layer(x))
    low = way(layer, ["linear"], F, None, *BOTH)
    assert_same_bits(low(x), expected)
    if way is sequential_lower:
        assert isinstance(low[0], nn.Linear)
        low.load_state_dict(layer.state_dict(), strict=True)
    with pytest.raises(ValueError, match="lowered already"):
        way(low, ["linear"], F)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", ["train", "eval", "padded"])
def test_transformers(way, mode):
    """Whose encoders reach into their layers, and in evaluation do not call them at all."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2), torch.randn(2, 5, 8)
    mask = torch.tensor([[False] * 5, [False, False, False, True, True]]) if mode == "padded" else None
    expected = model(x, src_key_padding_mask=mask).detach()
    low = way(model, ["linear", "normalization"], F, None, *BOTH)
    low.train(mode == "train")
    with torch.set_grad_enabled(mode == "train"):
        y = low(x, src_key_padding_mask=mask)
    shown = slice(None) if mask is None else ~mask
    assert_same_bits(y[shown], rounded(y)[shown])
    assert (y - expected)[shown].abs().max() < 1.5
    with torch.no_grad():
        assert_same_bits(low.train()(x, src_key_padding_mask=mask)[shown], y[shown])


@pytest.mark.parametrize("way", WAYS)
def test_compiled_and_exported(way):
    low = way(network().eval(), ["linear", "activation"], F, FIXED, "stochastic", "nearest")
    torch._dynamo.reset()
    compiled = torch.compile(low, fullgraph=True, backend="aot_eager")
    results = []
    for model in (low, compiled):
        torch.manual_seed(2)
        results.append(value_and_gradients(model, IMAGE))
    assert_same_bits(results[1][0], results[0][0])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)  # torch's own convolutions may sum gradients in another order
    exported = torch.export.export(low, (IMAGE,)).module()
    torch.manual_seed(2)
    assert_same_bits(exported(IMAGE), results[0][0])


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
