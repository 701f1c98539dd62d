"""load_converted: a float model and the state_dict of a converted one are enough."""

import contextlib
import copy
import re

import pytest
import torch
from covering import usually
from record_torch_ao import ROWS as NET_ROWS
from record_torch_ao import Net, Recurrent
from support import assert_same_bits
from torch import nn
from workflow_support import ROWS, Residual, digits, mlp, recorded, with_qconfig

from qcore.affine import AffineInteger
from qtorch import quantization as tq
from qtorch.nn import quantized
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    DeQuantStub,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigDynamic,
    QuantStub,
    convert,
    from_torch_ao,
    fuse_modules,
    get_default_qconfig,
    load_converted,
    per_channel_dynamic_qconfig,
    prepare,
    quantize_dynamic,
    quantize_model,
    to_torch_ao,
)


def calibrated(model, qconfig, x):
    prepared = prepare(with_qconfig(model, qconfig))
    prepared(x)
    return convert(prepared)


def weights(bits):
    return PerChannelMinMaxObserver.with_args(dtype=AffineInteger.of_width(bits), qscheme="symmetric")


CASES = {
    "fbgemm": get_default_qconfig("fbgemm"),
    "qnnpack": get_default_qconfig("qnnpack"),
    "4 bits": QConfig(MinMaxObserver, weights(4)),
    "12 bits": QConfig(MinMaxObserver, weights(12)),
}


@pytest.mark.parametrize("make", [mlp, Residual])
@pytest.mark.parametrize("name", CASES)
def test_what_was_calibrated(name, make):
    x = digits()[0][:64]
    fused = lambda: fuse_modules(Residual().eval(), ROWS) if make is Residual else mlp().eval()  # noqa: E731
    saved = calibrated(fused(), CASES[name], x)
    loaded = load_converted(fused(), saved.state_dict())
    assert torch.equal(loaded(x), saved(x))
    assert not loaded.training
    assert [type(layer) for layer in loaded.modules()] == [type(layer) for layer in saved.modules()]


def test_layers_that_stayed_in_floats_and_settings_of_ones_own():
    x, narrow = digits()[0][:64], QConfig(MinMaxObserver.with_args(dtype=AffineInteger.of_width(6)), weights(6))
    model = mlp().eval()
    model.module[1].qconfig, model.dequant.qconfig = narrow, narrow
    model.quant.qconfig = narrow
    model = nn.Sequential(model.quant, model.module[0], model.module[1], model.dequant, model.module[3])
    prepared = prepare(model)
    prepared(x)
    saved = convert(prepared)
    assert type(saved[4]) is nn.Linear
    loaded = load_converted(model, saved.state_dict())
    assert torch.equal(loaded(x), saved(x))
    assert loaded[2].form == narrow.activation().rule.form


@pytest.mark.parametrize("dtype", [torch.qint8, torch.float16, None])
def test_what_is_dynamic(dtype):
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(0))
    model = Recurrent()
    spec = None if dtype else dict.fromkeys((nn.LSTM, nn.GRUCell), per_channel_dynamic_qconfig)
    saved = quantize_dynamic(model, spec, dtype or torch.qint8)
    loaded = load_converted(copy.deepcopy(model), saved.state_dict())
    assert [type(layer) for layer in loaded.modules()] == [type(layer) for layer in saved.modules()]
    assert torch.equal(loaded(x), saved(x))


def test_formats_come_from_the_model():
    x, settings = digits()[0][:8], QConfig("e4m3fn", "mxfp4")
    saved = calibrated(mlp().eval(), settings, x)
    loaded = load_converted(with_qconfig(mlp().eval(), settings), saved.state_dict())
    assert torch.equal(loaded(x), saved(x))


def test_a_state_dict_of_torch_ao():
    saved = recorded("quantized_fbgemm")
    model = fuse_modules(Net(FloatFunctional, QuantStub, DeQuantStub).eval(), NET_ROWS)
    loaded = load_converted(model, from_torch_ao(saved["state"]))
    assert type(loaded.add) is quantized.QFunctional
    assert ((loaded(saved["input"]) - saved["output"]) / loaded.fc.scale).abs().max() <= 1.001


def test_what_is_refused():
    x = digits()[0][:8]
    saved = calibrated(fuse_modules(Residual().eval(), ROWS), CASES["fbgemm"], x).state_dict()
    with pytest.raises(ValueError, match=r"allowed is the float model with the same layers fused: [\s\S]*bn1"):
        load_converted(Residual(), saved)
    with pytest.raises(ValueError, match="state_dict has no quantized layer"):
        load_converted(Residual(), Residual().state_dict())
    with pytest.raises(TypeError, match="model is a OrderedDict"):
        load_converted(saved, saved)


def test_what_quantize_model_returned_is_made_by_it_again():
    x, parts = torch.randn(4, 2), (nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    small = quantize_model(nn.Sequential(*parts), calibrate=[x])
    model, saved = nn.Sequential(*map(copy.deepcopy, parts)), small.state_dict()
    with pytest.raises(ValueError, match=r"layer '0' of model no module: .* allowed is quantize_model\(model, ..\)"):
        load_converted(model, saved)
    again = quantize_model(model, calibrate=[0 * x])
    again.load_state_dict(saved)
    assert torch.equal(again(x), small(x))


def test_settings_say_the_format_of_codes():
    saved = quantize_model(nn.Sequential(nn.Linear(32, 2)), QConfig(None, "gguf(q8_0)")).state_dict()
    model = nn.Sequential(nn.Linear(32, 2))
    with pytest.raises(ValueError, match=r"rounded numbers of layer '0', and does not say their format; .* QConfig"):
        load_converted(model, saved)
    again = load_converted(with_qconfig(model, QConfig(None, "gguf(q8_0)")), saved)
    assert torch.equal(again[0].weight.codes, saved["0.weight.codes"])


INT8 = {
    "weight.int_repr": torch.zeros(2, 2, dtype=torch.int8),
    "weight.scale": torch.tensor(0.5),
    "weight.zero_point": torch.tensor(0),
    "scale": torch.tensor(1.0),
    "zero_point": torch.tensor(0),
}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"weight.scale": torch.ones(3)}, "weight.scale of shape (3,)"),
        ({"weight.scale": torch.tensor(float("nan"))}, "weight.scale that is no scale"),
        ({"weight.zero_point": torch.tensor(300)}, "weight.zero_point that is no int8"),
        ({"weight.zero_point": torch.tensor(0.5)}, "weight.zero_point that is no int8"),
        ({"weight.int_repr": 3}, "state_dict['weight.int_repr'] is a int"),
        ({"bias": "x"}, "state_dict['bias'] is a str"),
        ({3: torch.ones(1)}, "the name 3 of state_dict is a int"),
    ],
)
def test_hostile_entries(wrong, words):
    """Neither `to_torch_ao` nor `load_converted` ends in an error of Python's own."""
    with pytest.raises((TypeError, ValueError), match=re.escape(words)):
        to_torch_ao(INT8 | wrong)
    with contextlib.suppress(TypeError, ValueError):  # a scale of another shape is the layer's own error
        load_converted(torch.nn.Linear(2, 2), INT8 | wrong)


def test_a_recurrent_layer_lacks_a_half():
    hidden = {f"hh.0.{name}": value for name, value in INT8.items() if "weight" in name}
    with pytest.raises(ValueError, match=re.escape("state_dict has hh.0.weight and no ih.0.weight")):
        to_torch_ao(hidden)


WEIGHTS_ALONE = {
    "integers": QConfig(None, weights(8)),
    "codes": QConfig(None, "nvfp4"),
    "bytes": QConfig(None, "gguf(q8_0)"),
    "dynamic": {nn.Linear: QConfigDynamic(weight=weights(8))},
}


def on_meta(make):
    with torch.device("meta"):
        return make().eval()


def mixed():
    """A row that is fused, a clamp, an average that keeps scales, and a linear layer."""
    torch.manual_seed(1)
    first = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU6(), nn.AvgPool2d(2)
    return nn.Sequential(*first, nn.Conv2d(4, 8, 3, padding=1), nn.Flatten(), nn.Linear(128, 5)).eval()


@pytest.mark.parametrize(
    "settings",
    [None, QConfig("e4m3fn", "e4m3fn"), pytest.param(QConfig("mxfp8_e4m3", "mxfp4"), marks=pytest.mark.heavy)],
)
def test_models_on_meta_are_converted_for_a_state(settings):
    """What follows from names and shapes is the same without memory; scales and numbers come with the state."""
    x = torch.randn(3, 2, 10, 10)
    small = quantize_model(mixed(), settings, calibrate=[x])
    empty = quantize_model(on_meta(mixed), settings, calibrate=[x.to("meta")])
    empty.load_state_dict(small.state_dict(), assign=True)
    assert_same_bits(empty(x), small(x))


@pytest.mark.parametrize("name", usually({*WEIGHTS_ALONE} - {"codes"}, WEIGHTS_ALONE))
def test_states_need_no_float_weights(name):
    settings, x = WEIGHTS_ALONE[name], torch.randn(3, 2, 10, 10)
    small, model = quantize_model(mixed(), settings), on_meta(mixed)
    model.qconfig = None if isinstance(settings, dict) else settings
    loaded = load_converted(model, small.state_dict())
    assert not any(one.is_meta for one in loaded.state_dict().values())
    assert_same_bits(loaded(x), small(x))


def test_torch_ao_has_no_ranges_of_rows():
    small = quantize_model(nn.Sequential(nn.Linear(2, 2)), tq.default_dynamic_qconfig)
    with pytest.raises(ValueError, match=r"state_dict has 0.input_range, .*; allowed are layers of quantize_dynamic"):
        to_torch_ao(small.state_dict())


def test_a_state_dict_says_the_range_of_dynamic_layers():
    """Loading gives the saved numbers, whatever range the layers had; other layers' entries change nothing."""
    model, x = nn.Sequential(nn.Linear(3, 2)), torch.randn(4, 3)
    rows, whole = (make(model, {"": tq.default_dynamic_qconfig}) for make in (quantize_model, tq.quantize_dynamic))
    expected = {one: one(x) for one in (rows, whole)}
    assert not torch.equal(*expected.values())
    for saved in rows, whole:
        for target in map(copy.deepcopy, (rows, whole)):
            target.load_state_dict(saved.state_dict())
            assert_same_bits(target(x), expected[saved])
            target.load_state_dict({}, strict=False)
            assert_same_bits(target(x), expected[saved])
            assert target.state_dict().keys() == saved.state_dict().keys()
