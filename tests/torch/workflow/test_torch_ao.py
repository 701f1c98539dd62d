"""State_dicts that torch.ao saved (tests/support/record_torch_ao.py): they load, and compute what torch did."""

import pytest
import torch
from record_torch_ao import ROWS, Net
from workflow_support import recorded

from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    DeQuantStub,
    QuantStub,
    convert,
    from_torch_ao,
    fuse_modules,
    get_default_qat_qconfig,
    get_default_qconfig,
    prepare,
    prepare_qat,
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


def test_unknown_entries_are_named():
    with pytest.raises(TypeError, match=r"state_dict\['lstm.param'\] is a object; allowed are tensors"):
        from_torch_ao({"lstm.param": object()})
