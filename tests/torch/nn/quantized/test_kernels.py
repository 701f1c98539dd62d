"""Layers in integers by one call of C: the bits of the law, whatever changes between two calls."""

import copy
import io

import pytest
import torch
from calls import calls_of
from covering import usually
from support import assert_same_bits
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qtorch._affine import launch, products
from qtorch.nn.intrinsic.quantized import ConvReLU2d
from qtorch.nn.quantized import Conv1d, Conv2d, Conv3d, Linear, QFunctional, dynamic
from qtorch.nn.quantized.weights import QuantizedWeight
from qtorch.quantization import (
    QTensor,
    QuantWrapper,
    convert,
    fuse_modules,
    get_default_qconfig,
    prepare,
)

GENERATOR = torch.Generator().manual_seed(0)


def quantized(shape, form=UINT8, zero_point=7, scale=0.05):
    values = torch.randint(form.qmin, form.qmax + 1, shape, generator=GENERATOR).to(getattr(torch, form.storage))
    return QTensor(values, QParams(torch.tensor(scale), torch.tensor(zero_point, dtype=torch.int32)), form)


def weight_of(shape, channels):
    values = torch.randint(-128, 128, shape, generator=GENERATOR).to(torch.int8)
    scale = torch.rand(shape[0], generator=GENERATOR) / 100 + 0.001
    zeros = torch.randint(-9, 9, (shape[0],), dtype=torch.int32, generator=GENERATOR)
    return QTensor(values, QParams(scale, zeros, 0) if channels else QParams(scale[0], zeros[0]), INT8)


def filled(layer, channels=True):
    bias = torch.randn(layer.weight.shape[0], generator=GENERATOR)
    layer.set_weight_bias(weight_of(layer.weight.shape, channels), bias if layer.bias is not None else None)
    layer.scale.fill_(3.0), layer.zero_point.fill_(11)
    return layer


def by_law(monkeypatch, function):
    """What a function gives without kernels."""
    with monkeypatch.context() as patch:
        for module in (products,):
            patch.setattr(module, "is_there", lambda: False)
        patch.setattr(launch.laws, "binary", lambda *_: None)
        return function()


LAYERS = {
    "linear": (lambda: Linear(37, 21), (5, 3, 37)),
    "linear, one row": (lambda: Linear(64, 16, False), (1, 64)),
    "conv1d": (lambda: Conv1d(5, 7, 3, padding=2, dilation=2), (2, 5, 9)),
    "conv2d": (lambda: Conv2d(3, 8, (3, 2), stride=2, padding=1), (2, 3, 9, 8)),
    "conv2d with a relu": (lambda: ConvReLU2d(3, 8, 3, padding=1), (2, 3, 9, 8)),
    "depthwise": (lambda: Conv2d(16, 16, 3, padding=1, groups=16), (2, 16, 9, 8)),
    "conv3d": (lambda: Conv3d(4, 5, 2, padding=(1, 0, 1)), (2, 4, 5, 4, 3)),
}
CHANGES = {
    "nothing": lambda layer: layer,
    "integers": lambda layer: layer.weight.int_repr.bitwise_xor_(5),
    "zero points": lambda layer: layer.weight.zero_point.add_(3),
    "scales": lambda layer: layer.weight.scale.mul_(0.5),
    "bias": lambda layer: layer.bias is None or layer.bias.add_(1),
    "the result's parameters": lambda layer: (layer.scale.mul_(2), layer.zero_point.add_(9)),
    "the weight": lambda layer: setattr(layer, "weight", QuantizedWeight(weight_of(layer.weight.shape, False))),
    "the memory of the integers": lambda layer: setattr(layer.weight.int_repr, "data", layer.weight.int_repr.flip(0)),
    "a loaded state": lambda layer: layer.load_state_dict(filled(copy.deepcopy(layer)).state_dict()),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_after_changes(name, monkeypatch):
    make, shape = LAYERS[name]
    layer, inputs = filled(make()), [quantized(shape), quantized(shape, INT8, -3)]
    if len(shape) == 4:
        inputs.append(inputs[0].contiguous(memory_format=torch.channels_last))
    for change in CHANGES.values():
        change(layer)
        for x in inputs:
            assert layer.__dict__.get("_kept") is None or layer.__dict__["_kept"].made[0] is not None
            expected = by_law(monkeypatch, lambda x=x: copy.deepcopy(layer)(x))
            assert_same_bits(layer(x).values.contiguous(), expected.values.contiguous())
    file = io.BytesIO()
    torch.save(layer, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    assert "_kept" in vars(layer)
    assert "_kept" not in vars(loaded)
    assert_same_bits(loaded(inputs[0]).values.contiguous(), layer(inputs[0]).values.contiguous())


def test_settings_of_a_convolution_that_change():
    layer, x = filled(Conv2d(3, 8, 3)), quantized((1, 3, 9, 9))
    assert layer(x).shape == (1, 8, 7, 7)
    layer.stride, layer.padding = (2, 2), (1, 1)
    assert layer(x).shape == (1, 8, 5, 5)


def test_weights_of_inference_mode_are_not_kept(monkeypatch):
    """Their writes are not counted."""
    with torch.inference_mode():
        layer, x = filled(Linear(8, 4)), quantized((3, 8))
        for _ in range(2):
            assert_same_bits(layer(x).values, by_law(monkeypatch, lambda: copy.deepcopy(layer)(x)).values)
            layer.weight = QuantizedWeight(weight_of((4, 8), True))
            layer(x)
            layer.weight.int_repr.bitwise_xor_(3)


@pytest.mark.parametrize("name", usually(("add_relu",), ["add", "mul", "add_relu", "mul_relu"]))
def test_two_operands(name, monkeypatch):
    images = quantized((2, 5, 4, 3))
    last = images.contiguous(memory_format=torch.channels_last)
    pairs = [
        (images, quantized((2, 5, 4, 3), INT8, -3, 0.1)),
        (last, last),
        (images, last),
        (images, quantized((5, 1, 1))),
        (quantized((6, 6)), quantized((6, 6), AffineInteger.of_width(16), 300, 0.001)),
    ]
    for form in (UINT8, AffineInteger(-5, 9), AffineInteger.of_width(16)):
        layer = QFunctional(0.07, 3, form)
        for a, b in pairs:
            expected = by_law(monkeypatch, lambda a=a, b=b, layer=layer: getattr(layer, name)(a, b))
            assert_same_bits(getattr(layer, name)(a, b).values.contiguous(), expected.values.contiguous())
            layer.zero_point.add_(1)


RECURRENT = {
    "LSTM": lambda: dynamic.LSTM(9, 17, 2, bidirectional=True, batch_first=True),
    "LSTM without biases": lambda: dynamic.LSTM(9, 16, bias=False),
    "GRU": lambda: dynamic.GRU(9, 17, 2, bidirectional=True),
    "GRU without biases": lambda: dynamic.GRU(9, 5, bias=False, batch_first=True),
}


def tensors(results):
    if isinstance(results, torch.nn.utils.rnn.PackedSequence):
        return [results.data]
    return [results] if isinstance(results, torch.Tensor) else [x for one in results for x in tensors(one)]


def with_weights(layer, channels):
    for product in (one for one in layer.modules() if isinstance(one, dynamic.product.DynamicProduct)):
        product.weight = QuantizedWeight(weight_of(product.weight.shape, channels))
        if product.bias is not None:
            product.bias.copy_(torch.randn(product.bias.shape, generator=GENERATOR))
    return layer


@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name, channels, monkeypatch):
    """Of numbers near 0 and far from it, of several lengths, of NaN, and with states before the first step."""
    layer = with_weights(RECURRENT[name](), channels)
    x = torch.randn(6, 4, 9, generator=GENERATOR) * 10 ** torch.randint(-6, 3, (6, 4, 1), generator=GENERATOR)
    state = torch.randn(len(layer.ih), 6 if layer.batch_first else 4, layer.hidden_size, generator=GENERATOR)
    lengths = [4, 1, 3, 2, 4, 2] if layer.batch_first else [6, 1, 4, 2]
    packed = pack_padded_sequence(x, lengths, layer.batch_first, enforce_sorted=False)
    broken = x.clone()
    broken[2, 2, 2] = torch.nan
    first = (state, state * 3) if "LSTM" in name else state
    for call in [(x,), (packed,), (x, first), (x.double(),), (x[:, 0],), (broken,)]:
        expected = by_law(monkeypatch, lambda call=call: copy.deepcopy(layer)(*call))
        for own, law in zip(tensors(layer(*call)), tensors(expected), strict=True):
            assert torch.equal(own.isnan(), law.isnan())
            assert_same_bits(own.nan_to_num(), law.nan_to_num())


def test_states_that_are_differentiated_keep_their_gradients():
    layer = dynamic.LSTM(3, 4)
    cell = torch.ones(1, 2, 4, requires_grad=True)
    layer(torch.ones(5, 2, 3), (torch.zeros(1, 2, 4), cell))[1][1].sum().backward()
    assert cell.grad.abs().sum() > 0


@pytest.mark.parametrize("name", usually(("LSTM",), ["LSTM", "GRU", "LSTM with projections"]))
def test_steps_are_one_operator_of_a_compiled_program(name):
    torch.manual_seed(0)
    layer = dynamic.LSTM(9, 7, 2, bidirectional=True, proj_size=3) if "proj" in name else RECURRENT[name]()
    layer, graphs = with_weights(layer, True), []
    torch.compiler.reset()  # after layers of other sizes these would be symbols, with operations of their own

    def backend(graph, _):
        graphs.append(graph)
        return graph

    x = torch.randn(4, 20, 9)
    found = tensors(torch.compile(layer, fullgraph=True, backend=backend)(x))
    for mine, theirs in zip(found, tensors(layer(x)), strict=True):
        assert_same_bits(mine, theirs)
    called = [node for node in graphs[0].graph.nodes if "recurrent" in str(node.target)]
    assert len(called) == 4
    assert len(graphs[0].graph.nodes) < 100


def test_calls_of_a_convolution_with_batch_norm_and_relu():
    """Arguments are checked where they come in: a forward enters 120 Python functions at most."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    model = QuantWrapper(fuse_modules(model, ["0", "1", "2"])).eval()
    model.qconfig = get_default_qconfig()
    prepared, x = prepare(model), torch.randn(1, 3, 8, 8)
    prepared(x)
    result = convert(prepared)
    result(x)
    entered = calls_of(lambda: result(x))
    assert len(entered) <= 120, entered
