"""`lower` and `sequential_lower`: which layers there are, and that their outputs and gradients are rounded."""

import copy
import pickle

import pytest
import torch
from support import assert_all_same_bits, assert_same_bits
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch_auto_low_support import BOTH, FIXED, IMAGE, WAYS, F, Odd, Pair, network, rounded, value_and_gradients

from qcore import FloatingPoint
from qtorch.quant import Quantizer
from qtorch.recipes import GROUPS, lower, sequential_lower
from qtorch.recipes.layers import RoundedPair


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
    assert_all_same_bits(value_and_gradients(low, IMAGE), expected)


def test_the_poster():
    prec = FloatingPoint(bit=8)

    model = network()
    by_hand = sequential_lower(model, [nn.Conv2d], FloatingPoint(5, 2), FloatingPoint(5, 2))
    model = lower(model, layer_type=["conv"], forward_number=prec, backward_number=prec)
    results = []
    for program in (by_hand, model):
        torch.manual_seed(6)
        results.append(value_and_gradients(program, IMAGE))
    assert_all_same_bits(*results)


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
    assert_all_same_bits(value_and_gradients(positional, IMAGE), value_and_gradients(by_name, IMAGE))
    assert isinstance(positional.fc[0], nn.Linear)
    assert isinstance(positional.fc[1], Quantizer)
    plain = network()
    for way in WAYS:
        with pytest.warns(UserWarning, match="nothing is lowered: there is no recipe, rule or format"):
            assert repr(way(network())) == repr(plain)
        with pytest.warns(UserWarning, match=r"layer_types match no layer.*conv \(Conv2d\), bn \(Batch"):
            assert repr(way(network(), forward_number=F)) == repr(plain)


LAYERS = {
    "conv": [nn.Conv2d(1, 2, 3), nn.ConvTranspose2d(1, 2, 3), nn.Unfold(2)],
    "pool": [nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2)],
    "pad": [nn.ZeroPad2d(1), nn.CircularPad2d(1)],
    "activation": [nn.ReLU(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Softmax(-1), nn.PReLU()],
    "normalization": [nn.BatchNorm2d(1), nn.GroupNorm(1, 1), nn.LayerNorm(8), nn.RMSNorm(8)],
    "dropout": [nn.Dropout(), nn.Dropout2d()],
    "linear": [nn.Linear(8, 3)],
}


@pytest.mark.filterwarnings("ignore:layer_types match no layer")
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
    assert_all_same_bits([z, low_h, low_c], [rounded(y), rounded(h), rounded(c)])
    low_packed = low(pack_sequence([x[:, 0], x[:2, 1]]))[0]
    assert type(low_packed) is type(packed)
    assert_same_bits(low_packed.data, rounded(packed.data))
    assert low_packed.batch_sizes.equal(packed.batch_sizes)


@pytest.mark.parametrize("way", WAYS)
def test_outputs_of_any_structure_keyword_arguments_and_classes_as_types(way):
    low, x = way(nn.Sequential(Odd()), [Odd], F, None, *BOTH)[0], torch.randn(4)
    y, integers, nothing = low(x)
    assert_same_bits(y, rounded(x))
    assert nothing is None
    assert integers.dtype is torch.int64
    first, (second, seven) = low(x, kind="list")
    assert_all_same_bits([first, second], [rounded(x)] * 2)
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


def test_pickles_of_before_find_pairs():
    assert pickle.loads(pickle.dumps(RoundedPair, protocol=0).replace(b"RoundedPair", b"Lowered")) is RoundedPair
