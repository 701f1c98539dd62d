"""State_dicts that torch.ao saved (tests/support/record_torch_ao.py): they load, and compute what torch did."""

import pytest
import torch
from quantization_support import torch_ao, torch_engine
from record_torch_ao import ROWS, Net, Recurrent
from torch import nn
from workflow_support import recorded

from qcore.affine import AffineInteger
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    DeQuantStub,
    HistogramObserver,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QuantStub,
    convert,
    from_torch_ao,
    fuse_modules,
    get_default_qat_qconfig,
    get_default_qconfig,
    prepare,
    prepare_qat,
    quantize_dynamic,
    to_torch_ao,
)


def net(qconfig, training=False):
    model = fuse_modules(Net(FloatFunctional, QuantStub, DeQuantStub).train(training), ROWS)
    model.qconfig = qconfig
    return model


@pytest.mark.parametrize("backend", ["fbgemm", "qnnpack"])
def test_quantized_models(backend):
    saved = recorded(f"quantized_{backend}")
    model = convert(prepare(net(get_default_qconfig(backend))), allow_uncalibrated=True)
    state = from_torch_ao(saved["state"])
    assert all(isinstance(value, torch.Tensor) and not value.is_quantized for value in state.values())
    model.load_state_dict(state)
    weight = saved["state"]["conv.weight"]
    assert torch.equal(model.conv.weight().int_repr(), weight.int_repr())
    apart = (model(saved["input"]) - saved["output"]) / model.fc.scale
    assert apart.abs().max() <= 1.001
    assert (apart.abs() > 0.5).float().mean() < 0.1


def test_prepared_models():
    saved = recorded("prepared")
    model = prepare(net(get_default_qconfig("qnnpack")))
    model.load_state_dict(from_torch_ao(saved["state"]))
    torch.testing.assert_close(model(saved["input"]), saved["output"])
    theirs = recorded("quantized_qnnpack")["state"]
    model = prepare(net(get_default_qconfig("qnnpack")))
    model.load_state_dict(from_torch_ao(saved["state"]))
    converted = convert(model)
    for name in ("quant", "add", "conv", "side", "fc"):
        layer = converted.get_submodule(name)
        assert layer.scale == theirs[f"{name}.scale"].reshape(()), name
        assert layer.zero_point == theirs[f"{name}.zero_point"].reshape(()), name


def test_trained_models():
    saved = recorded("qat")
    model = prepare_qat(net(get_default_qat_qconfig("fbgemm"), training=True))
    model.load_state_dict(from_torch_ao(saved["state"]))
    torch.testing.assert_close(model.eval()(saved["input"]), saved["output"])
    converted = convert(model)
    assert ((converted(saved["input"]) - saved["output"]) / converted.fc.scale).abs().max() <= 2.001


def test_what_old_versions_wrote():
    """Version 1 had the weight beside the scale, version 2 under _packed_params; channels had min_vals."""
    saved = recorded("quantized_fbgemm")["state"]
    weight, bias = saved["fc._packed_params._packed_params"]
    newest = from_torch_ao({key: value for key, value in saved.items() if key.startswith("fc.")})
    others = {"fc.scale": saved["fc.scale"], "fc.zero_point": saved["fc.zero_point"]}
    second = {
        "fc._packed_params.weight": weight,
        "fc._packed_params.bias": bias,
        "fc._packed_params.dtype": torch.qint8,
    }
    for old in ({"fc.weight": weight, "fc.bias": bias}, second):
        state = from_torch_ao(others | old)
        assert state.keys() == newest.keys()
        assert all(torch.equal(state[key], newest[key]) for key in state)
    assert list(from_torch_ao({"x.min_vals": torch.ones(2)})) == ["x.min_val"]


def test_observers_of_old_versions():
    """Those of version 1 had no eps, and histograms that saw nothing had bounds of shape (0,)."""
    old = {"histogram": torch.zeros(2048), "min_val": torch.zeros(0), "max_val": torch.zeros(0)}
    observer, x = HistogramObserver(), torch.tensor([-1.0, 3.0])
    observer.load_state_dict(from_torch_ao(old))
    observer(x)
    other = HistogramObserver()
    other(x)
    assert observer.calculate_qparams() == other.calculate_qparams()
    channels = PerChannelMinMaxObserver()
    channels.load_state_dict(from_torch_ao({"min_vals": -torch.ones(2), "max_vals": torch.ones(2)}))
    channels(torch.tensor([[2.0], [0.0]]))
    assert channels.max_val.tolist() == [2, 1]


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_recurrent_layers_and_cells(dtype):
    """Their packed weights become tensors, which torch.load reads with weights_only=True."""
    saved = recorded(f"recurrent_{dtype}", weights_only=False)
    model = quantize_dynamic(Recurrent(), dtype=torch.qint8 if dtype == "int8" else torch.float16)
    state = from_torch_ao(saved["state"])
    assert all(type(value) is torch.Tensor and not value.requires_grad for value in state.values())
    model.load_state_dict(state)
    torch.testing.assert_close(model(saved["input"]), saved["output"], rtol=0, atol=2e-6)


def test_recurrent_layers_of_eight_bits_are_named():
    packed = recorded("recurrent_int8", weights_only=False)["state"]["gru._all_weight_values.0.param"]
    (_, biases, _, _, products), _ = packed.__getstate__()
    old = torch.ops.quantized.make_quantized_cell_params_dynamic(*products, *biases, False)
    with pytest.warns(UserWarning, match=r"gru\.ih\.0 and gru\.hh\.0 were made for activations of 8 bits"):
        state = from_torch_ao({"gru._all_weight_values.0.param": old})
    assert state["gru.ih.0.weight.int_repr"].shape == (12, 6)


STATES = ["quantized_fbgemm", "quantized_qnnpack", "prepared", "qat", "dynamic_int8", "dynamic_float16"]


def parts(value):
    """What an entry of torch.ao's state_dict says, in plain values."""
    if isinstance(value, torch.ScriptObject):
        return parts(value.__getstate__()[0])
    if isinstance(value, (tuple, list)):
        return [parts(one) for one in value]
    if isinstance(value, torch.Tensor) and value.is_quantized:
        channels = value.qscheme() not in (torch.per_tensor_affine, torch.per_tensor_symmetric)
        scales = value.q_per_channel_scales().float().tolist() if channels else value.q_scale()
        return value.int_repr().tolist(), scales, value.q_per_channel_axis() if channels else value.q_zero_point()
    return value.reshape(-1).tolist() if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("name", [*STATES, "recurrent_int8", "recurrent_float16"])
def test_there_and_back(name):
    state = recorded(name, weights_only=False)["state"]
    back = to_torch_ao(from_torch_ao(state))
    assert back.keys() == {key for key in state if not key.endswith("num_batches_tracked")} | back.keys()
    assert {key: parts(value) for key, value in back.items()} == {key: parts(state[key]) for key in back}


@pytest.mark.parametrize("name", STATES)
def test_torch_ao_loads_what_is_saved_here(name):
    """A model that went through the steps here, and its state through both functions; the outputs are recorded."""
    pytest.importorskip("torch.ao.quantization")
    saved = recorded(name)
    state = to_torch_ao(from_torch_ao(saved["state"]))
    x = saved["input"]
    with torch_ao() as ao, torch_engine("qnnpack" if name.endswith("qnnpack") else "fbgemm"):
        backend = "fbgemm" if name in ("quantized_fbgemm", "qat") else "qnnpack"
        if name.startswith("dynamic"):
            head, x = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5)), x.flatten(1)
            model = ao.quantize_dynamic(head, {nn.Linear}, torch.qint8 if name == "dynamic_int8" else torch.float16)
        elif name == "qat":
            model = ao.fuse_modules_qat(Net(torch.ao.nn.quantized.FloatFunctional, ao.QuantStub, ao.DeQuantStub), ROWS)
            model.qconfig = ao.get_default_qat_qconfig(backend, version=0)
            model = ao.prepare_qat(model).eval().apply(ao.disable_observer)
        else:
            model = Net(torch.ao.nn.quantized.FloatFunctional, ao.QuantStub, ao.DeQuantStub).eval()
            model = ao.fuse_modules(model, ROWS)
            model.qconfig = ao.get_default_qconfig(backend)
            model = ao.prepare(model)
            model = model if name == "prepared" else ao.convert(model)
        model.load_state_dict(state)
        result = model(x)
    if name.startswith("quantized"):
        assert ((result - saved["output"]) / model.fc.scale).abs().max() <= 1.001  # another processor, another way
    else:
        torch.testing.assert_close(result, saved["output"], rtol=1e-5, atol=1e-5)


def test_recurrent_layers_in_torch_ao():
    pytest.importorskip("torch.ao.quantization")
    torch.manual_seed(2)
    model, x = Recurrent(), torch.randn(5, 3, 4)
    ours = quantize_dynamic(model)
    with torch_ao() as ao, torch_engine("fbgemm"):
        theirs = ao.quantize_dynamic(Recurrent())
        theirs.load_state_dict(to_torch_ao(ours.state_dict()))
        torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=2e-6)


def test_what_torch_ao_has_not_is_named():
    four = MinMaxObserver.with_args(dtype=AffineInteger.of_width(4), qscheme="symmetric")
    model = convert(prepare(net(QConfig(MinMaxObserver, four))), allow_uncalibrated=True)
    with pytest.raises(ValueError, match=r"state_dict has conv\.weight\.packed of torch\.uint8; allowed is int8"):
        to_torch_ao(model.state_dict())


def test_unknown_entries_are_named():
    with pytest.raises(TypeError, match=r"state_dict\['lstm.param'\] is a object; allowed are tensors"):
        from_torch_ao({"lstm.param": object()})
