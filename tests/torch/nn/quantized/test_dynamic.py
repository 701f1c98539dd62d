"""Dynamic layers: torch's numbers within a step, NaN that stay, float16 weights, and encoders that go on working."""

import copy

import pytest
import torch
from quantization_support import torch_ao
from support import assert_same_bits

from qcore.affine import AffineInteger
from qtorch.nn.quantized import Embedding, dynamic
from qtorch.quantization import (
    MinMaxObserver,
    QConfigDynamic,
    default_dynamic_qconfig,
    float16_dynamic_qconfig,
    per_channel_dynamic_qconfig,
    quantize_per_tensor,
)

nn = torch.nn
FOUR = QConfigDynamic(
    weight=MinMaxObserver.with_args(dtype=AffineInteger.of_width(4), qscheme=torch.per_tensor_symmetric)
)
LAYERS = {
    "Linear": lambda: nn.Linear(12, 8),
    "LSTM": lambda: nn.LSTM(12, 8, 2, bidirectional=True),
    "GRU": lambda: nn.GRU(12, 8, 2, bidirectional=True, batch_first=True),
    "LSTMCell": lambda: nn.LSTMCell(12, 8),
    "GRUCell": lambda: nn.GRUCell(12, 8),
    "RNNCell": lambda: nn.RNNCell(12, 8, nonlinearity="relu"),
}


def pair(name, qconfig):
    """A layer of floats and the dynamic one; weights are random but the same in every run."""
    torch.manual_seed(3)
    layer = LAYERS[name]()
    layer.qconfig = qconfig
    return layer, getattr(dynamic, name).from_float(layer)


def numbers(name):
    shape = (9, 4, 12) if name in ("LSTM", "GRU") else (30, 12)
    return torch.randn(shape, generator=torch.Generator().manual_seed(4))


def flat(results):
    return [results] if isinstance(results, torch.Tensor) else [x for one in results for x in flat(one)]


@pytest.mark.parametrize("name", LAYERS)
def test_beside_torch(name):
    """torch fuses a product into a sum and takes other exponentials: differences are of the last bits of float32."""
    layer, own = pair(name, default_dynamic_qconfig)
    with torch_ao() as peer:
        wrapped = peer.quantize_dynamic(nn.Sequential(copy.deepcopy(layer)), {type(layer)}, torch.qint8)
        expected = wrapped[0](numbers(name))
    for mine, theirs in zip(flat(own(numbers(name))), flat(expected), strict=True):
        assert (mine - theirs).abs().max() < 2e-6


TOLERANCES = {
    "4 bits": (FOUR, 0.35),
    "channels": (per_channel_dynamic_qconfig, 0.05),
    "float16": (float16_dynamic_qconfig, 2e-3),
}


@pytest.mark.parametrize("kind", TOLERANCES)
@pytest.mark.parametrize("name", LAYERS)
def test_near_the_layer_of_floats(name, kind):
    qconfig, tolerance = TOLERANCES[kind]
    layer, own = pair(name, qconfig)
    for mine, theirs in zip(flat(own(numbers(name))), flat(layer(numbers(name))), strict=True):
        error = (mine - theirs).abs().max()
        assert mine.dtype is torch.float32
        assert 0 < error < tolerance


@pytest.mark.parametrize("name", LAYERS)
def test_state_dicts(name):
    _, own = pair(name, default_dynamic_qconfig)
    expected = flat(own(numbers(name)))
    other = copy.deepcopy(own)
    for value in other.state_dict().values():
        value.zero_()
    other.load_state_dict(own.state_dict())
    for mine, theirs in zip(flat(other(numbers(name))), expected, strict=True):
        assert_same_bits(mine, theirs)
    assert all(isinstance(value, torch.Tensor) for value in own.state_dict().values())


@pytest.mark.parametrize("name", ["Linear", pytest.param("LSTMCell", marks=pytest.mark.heavy)])
def test_compiled(name):
    _, own = pair(name, default_dynamic_qconfig)
    compiled = torch.compile(own, fullgraph=True, backend="aot_eager")
    for mine, theirs in zip(flat(compiled(numbers(name))), flat(own(numbers(name))), strict=True):
        assert_same_bits(mine, theirs)


def test_float16_weights_have_the_bits_of_the_product_of_floats():
    layer, own = pair("Linear", float16_dynamic_qconfig)
    with torch.no_grad():
        layer.weight[0, 0] = 1e6
    own = dynamic.Linear.from_float(layer)
    weight = layer.weight.detach().clamp(-65504, 65504).half().float()
    assert own.weight[0, 0] == 65504
    assert_same_bits(own(numbers("Linear")), nn.functional.linear(numbers("Linear"), weight, layer.bias).detach())


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_what_is_not_finite_is_not_swallowed(number):
    x = numbers("Linear")
    x[3, 4] = number
    assert pair("Linear", default_dynamic_qconfig)[1](x).isnan().all()


def test_states_and_single_sequences():
    layer, own = pair("LSTM", default_dynamic_qconfig)
    x, state = numbers("LSTM"), (torch.ones(4, 4, 8), -torch.ones(4, 4, 8))
    for mine, theirs in zip(flat(own(x, state)), flat(layer(x, state)), strict=True):
        assert (mine - theirs).abs().max() < 0.05
    for mine, theirs in zip(flat(own(x[:, 0])), flat(layer(x[:, 0])), strict=True):
        assert mine.shape == theirs.shape
    assert pair("Linear", default_dynamic_qconfig)[1](torch.zeros(0, 12)).shape == (0, 8)


def test_layers_without_bias():
    layer = nn.LSTM(3, 2, bias=False)
    layer.qconfig = default_dynamic_qconfig
    own = dynamic.LSTM.from_float(layer)
    assert own.ih[0].bias is None
    assert (own(torch.ones(4, 1, 3))[0] - layer(torch.ones(4, 1, 3))[0]).abs().max() < 0.05


def test_an_encoder_in_evaluation_goes_on_working():
    """torch's fast path asks for the weight's device; a quantized weight keeps it away."""
    encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(6))
    expected = encoder(x).detach()
    for name in ("linear1", "linear2"):
        getattr(encoder, name).qconfig = default_dynamic_qconfig
        setattr(encoder, name, dynamic.Linear.from_float(getattr(encoder, name)))
    with torch.no_grad():
        assert (encoder(x) - expected).abs().max() < 0.2


WRONG = {
    "Linear has no qconfig": lambda: dynamic.Linear.from_float(nn.Linear(1, 1)),
    "input is a QTensor; allowed is a tensor of floats": lambda: dynamic.Linear(2, 1)(
        quantize_per_tensor(torch.ones(1, 2), 1.0, 0, torch.quint8)
    ),
    r"input has shape \(1, 3\); allowed is \(..., 2\)": lambda: dynamic.Linear(2, 1)(torch.ones(1, 3)),
    r"input is \(3,\); allowed is": lambda: dynamic.LSTM(2, 1)(torch.ones(3)),
    r"state has shape \(2, 1, 1\); allowed is \(1, 1, 1\)": lambda: dynamic.GRU(2, 1)(
        torch.ones(3, 1, 2), torch.ones(2, 1, 1)
    ),
    "nonlinearity='gelu'": lambda: dynamic.RNNCell(1, 1, nonlinearity="gelu"),
    "hidden state has shape": lambda: dynamic.RNNCell(1, 2)(torch.ones(3, 1), torch.ones(2, 2)),
    "LSTM: input has dtype int64; allowed are float32": lambda: dynamic.LSTM(2, 1)(torch.ones(3, 1, 2).long()),
    r"GRU: state is a int; allowed is a tensor of shape \(1, 1, 1\)": lambda: dynamic.GRU(2, 1)(torch.ones(3, 1, 2), 3),
    r"LSTM: state is a Tensor; allowed are None and a pair": lambda: dynamic.LSTM(2, 1)(
        torch.ones(3, 1, 2), torch.ones(1, 1, 1)
    ),
    r"LSTM: state is a tuple; allowed are None and a pair": lambda: dynamic.LSTM(2, 1)(
        torch.ones(3, 1, 2), (torch.ones(1, 1, 1),)
    ),
    "LSTMCell: state is a Tensor; allowed are None and a pair": lambda: dynamic.LSTMCell(1, 2)(
        torch.ones(3, 1), torch.ones(3, 2)
    ),
    "RNNCell: hidden state is a int; allowed is a tensor of": lambda: dynamic.RNNCell(1, 2)(torch.ones(3, 1), 3),
    "x is a NoneType; allowed is": lambda: dynamic.GRUCell(1, 2)(None),
    "Embedding: input is a list; allowed is a torch.Tensor of": lambda: Embedding(5, 4)([1, 2]),
    "Embedding: input has dtype torch.uint8; allowed are int32 and": lambda: Embedding(5, 4)(torch.ones(5).byte()),
    "proj_size=2; allowed is an int from 0 to 1": lambda: dynamic.LSTM(1, 2, proj_size=2),
    "proj_size=1; allowed is an int from 0 to 0": lambda: dynamic.GRU(1, 2, proj_size=1),
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        WRONG[message]()
