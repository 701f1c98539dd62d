"""Quantized linear layers: the law on exact sums, all widths, fake quantization's numbers, compiled programs."""

import copy

import numpy as np
import pytest
import torch
from covering import usually
from support import assert_same_bits

from qcore import affine as reference
from qcore.affine import INT8, UINT8, AffineInteger, QParams
from qtorch.nn import quantized
from qtorch.quantization import (
    FakeQuantize,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    default_fake_quant,
    default_per_channel_weight_fake_quant,
    get_default_qconfig,
    quantize_per_tensor,
)

FORMS = [AffineInteger.of_width(bits, signed) for bits in (2, 4, 5, 8, 12, 16) for signed in (True, False)]


def exact_sums(x, w):
    """Sums of products of Python's integers, as float64 where they are below 2^53."""
    x, w = (q.values.numpy().astype(object) - q.qparams.zero_point.numpy().astype(object) for q in (x, w))
    return np.matmul(x, w.T).astype(np.float64)


def by_the_law(layer, x, weight):
    scales = x.qparams.scale.numpy(), weight.qparams.scale.numpy()
    bias = None if layer.bias is None else layer.bias.numpy()
    output = QParams(layer.scale.numpy(), layer.zero_point.numpy())
    return reference.requantize(exact_sums(x, weight), *scales, bias, output, layer.form)


def observed(form, weight_form, bias=True, features=(24, 12)):
    """A linear layer that has seen numbers, and some of these."""
    generator = torch.Generator().manual_seed(form.qmax + weight_form.qmax)
    layer = torch.nn.Linear(*features, bias=bias)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    weight = MinMaxObserver.with_args(dtype=weight_form, qscheme=torch.per_tensor_symmetric)
    layer.qconfig = QConfig(MinMaxObserver.with_args(dtype=form), weight)
    layer.activation_post_process = layer.qconfig.activation()
    x = torch.randn(40, features[0], generator=generator)
    layer.activation_post_process(layer(x).detach())
    return layer, x


def quantized_input(x, form):
    low, high = x.aminmax()
    zero = (form.qmin + form.qmax) // 2 + 1
    return quantize_per_tensor(x, ((high - low) / (form.qmax - form.qmin)).item(), zero, form)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("weight_form", [INT8, *FORMS[2:4], FORMS[-2]], ids=str)
def test_widths(form, weight_form):
    layer, x = observed(form, weight_form)
    own = quantized.Linear.from_float(layer)
    x = quantized_input(x, form)
    result = own(x)
    assert_same_bits(result.values, by_the_law(own, x, own.weight()))
    assert (result.form, own.weight().form) == (form, weight_form)
    assert len(result.values.unique()) > 2


def test_sums_beyond_int32_are_exact():
    """2^16 products of 255 * -128 do not fit 32 bits."""
    x = quantize_per_tensor(torch.full((2, 1 << 17), 255.0), 1.0, 0, torch.quint8)
    layer = quantized.Linear(1 << 17, 3, bias_=False)
    layer.set_weight_bias(quantize_per_tensor(torch.full((3, 1 << 17), -128.0), 1.0, 0, torch.qint8), None)
    layer.scale.fill_(2.0**25), layer.zero_point.fill_(255)
    assert (layer(x).values == 255 - 128 + 0).all()


@pytest.mark.parametrize("per_channel", [False, True])
def test_of_a_layer_trained_with_fake_quantization(per_channel):
    """The stored parameters are taken: nothing is observed once more, and 300 numbers are as the fake ones."""
    layer = torch.nn.Linear(30, 10)
    layer.activation_post_process = default_fake_quant()
    make = default_per_channel_weight_fake_quant if per_channel else FakeQuantize.with_args(dtype=torch.qint8)
    layer.weight_fake_quant = make()
    generator = torch.Generator().manual_seed(1)
    x = quantized_input(torch.randn(300, 30, generator=generator), UINT8)
    for step in range(3):
        y = torch.nn.functional.linear(x.dequantize(), layer.weight_fake_quant(layer.weight * (1 + step)), layer.bias)
        layer.activation_post_process(y)
    with torch.no_grad():
        layer.weight.mul_(1.5)  # after which an observer would choose other parameters
    states = copy.deepcopy(layer.state_dict())
    own = quantized.Linear.from_float(layer)
    assert all(torch.equal(value, states[name]) for name, value in layer.state_dict().items())
    assert_same_bits(own.scale, layer.activation_post_process.scale.reshape(()))
    assert_same_bits(own.weight().qparams.scale.reshape(-1), layer.weight_fake_quant.scale)
    for fake in (layer.weight_fake_quant, layer.activation_post_process):
        fake.disable_observer()
    assert_same_bits(own.weight().dequantize(), layer.weight_fake_quant(layer.weight).detach() + 0.0)
    y = torch.nn.functional.linear(x.dequantize(), layer.weight_fake_quant(layer.weight), layer.bias)
    expected = layer.activation_post_process(y).detach()
    steps = (own(x).dequantize() - expected) / own.scale
    assert steps.abs().max() < 1.01
    assert (steps.abs() < 0.01).float().mean() > 0.99


def test_results_of_a_reduced_range_use_all_integers():
    layer, x = observed(UINT8, INT8)
    layer.qconfig = get_default_qconfig("x86")
    layer.activation_post_process = layer.qconfig.activation()
    layer.activation_post_process(x)
    own = quantized.Linear.from_float(layer)
    assert own.form == UINT8
    assert own.weight().qparams.axis == 0


@pytest.mark.parametrize("weight_form", usually((INT8,), (INT8, FORMS[2])))
def test_compiled(weight_form):
    layer, x = observed(UINT8, weight_form)
    own = quantized.Linear.from_float(layer)
    x = quantized_input(x, UINT8)
    compiled = torch.compile(own, fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(x).values, own(x).values)


def test_a_weight_of_4_bits_takes_half_a_byte():
    layer, _ = observed(UINT8, FORMS[2], features=(25, 12))
    own = quantized.Linear.from_float(layer)
    assert {name: tuple(value.shape) for name, value in own.state_dict().items()} == {
        "bias": (12,),
        "scale": (),
        "zero_point": (),
        "weight.packed": (12, 13),
        "weight.scale": (),
        "weight.zero_point": (),
    }
    values = own.weight().values
    assert values.min() < 0 <= 7 == values.max()


@pytest.mark.parametrize("weight_form", [INT8, FORMS[3]], ids=str)
def test_state_dicts(weight_form):
    layer, x = observed(UINT8, weight_form)
    layer.qconfig = QConfig(MinMaxObserver, PerChannelMinMaxObserver.with_args(dtype=weight_form))
    own = quantized.Linear.from_float(layer)
    other = quantized.Linear(24, 12, dtype=weight_form)
    other.load_state_dict(own.state_dict())
    x = quantized_input(x, UINT8)
    assert other(x).equal(own(x))
    assert copy.deepcopy(other)(x).equal(own(x))


def test_autocast_changes_nothing():
    x, weight = (
        quantize_per_tensor(torch.randn(90, 700, generator=torch.Generator().manual_seed(0)), 0.02, 3, torch.qint8)
        for _ in range(2)
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = quantized.functional.linear(x, weight, None, 0.4, 0)
    assert result.equal(quantized.functional.linear(x, weight, None, 0.4, 0))


WRONG = {
    "Linear: input is a Tensor; allowed is a QTensor: insert a QuantStub": lambda: quantized.Linear(2, 1)(
        torch.ones(2)
    ),
    r"input has shape \(1, 3\); allowed is \(..., 2\)": lambda: quantized.Linear(2, 1)(
        quantize_per_tensor(torch.ones(1, 3), 1.0, 0, torch.quint8)
    ),
    "in_features=0": lambda: quantized.Linear(0, 1),
    "bias_=1 is a int": lambda: quantized.Linear(1, 1, 1),
    "dtype=torch.float32; allowed are": lambda: quantized.Linear(1, 1, dtype=torch.float32),
    "weight is a Tensor": lambda: quantized.Linear(1, 1).set_weight_bias(torch.ones(1, 1), None),
    r"weight has shape \(1, 2\); allowed is \(1, 1\)": lambda: quantized.Linear(1, 1).set_weight_bias(
        quantize_per_tensor(torch.ones(1, 2), 1.0, 0, torch.qint8), None
    ),
    "Linear has as activation_post_process NoneType": lambda: quantized.Linear.from_float(torch.nn.Linear(1, 1)),
    "no qconfig and no weight_fake_quant": lambda: quantized.Linear.from_float(seen(torch.nn.Linear(1, 1))),
    "observe something before": lambda: quantized.Linear.from_float(seen(torch.nn.Linear(1, 1), MinMaxObserver())),
    "fake quantization has seen nothing": lambda: quantized.Linear.from_float(
        seen(torch.nn.Linear(1, 1), FakeQuantize())
    ),
}


def seen(layer, observer=None):
    layer.activation_post_process = observer or MinMaxObserver()
    if observer is None:
        layer.activation_post_process(torch.ones(1))
    return layer


@pytest.mark.parametrize("message", WRONG)
def test_wrong_arguments(message):
    with pytest.raises((TypeError, ValueError), match=message):
        WRONG[message]()


def test_floats_are_no_integers_of_a_file():
    layer = quantized.Linear(2, 2)
    before = layer.state_dict()["weight.int_repr"].clone()
    state = layer.state_dict() | {"weight.int_repr": torch.full((2, 2), 1.7)}
    with pytest.raises(RuntimeError, match=r"weight\.int_repr has dtype torch\.float32; allowed is torch\.int8"):
        layer.load_state_dict(state)
    assert torch.equal(layer.state_dict()["weight.int_repr"], before)


def test_errors_name_the_layer():
    layer = quantized.Linear(2, 1)
    layer.layer_name = "features.3"
    with pytest.raises(TypeError, match=r"features\.3: input is a Tensor"):
        layer(torch.ones(2))


def test_rows_that_share_memory():
    """oneDNN's product is wrong for them."""
    layer, x = observed(UINT8, INT8)
    own, x = quantized.Linear.from_float(layer), quantized_input(x, UINT8)
    for rows in (x.values[:1].expand(6, 24), x.values.flatten().as_strided((6, 24), (5, 1)), x.values[::3]):
        assert own(x._with(rows)).equal(own(x._with(rows.clone(memory_format=torch.contiguous_format))))
