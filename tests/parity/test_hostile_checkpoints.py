"""Checkpoints that nobody's `save` wrote: an error that names the array, in all packages."""

import copy
import json
import re

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import qjax.quantization
import qtorch.quantization
from qcore.affine import checkpoint

LOADS = {
    "qcore": checkpoint.load_file,
    "qtorch": qtorch.quantization.load,
    "qjax": qjax.quantization.load,
}
ARRAYS = {
    "w.int_repr": np.int8([1, 2]),
    "w.scale": np.array(0.5, np.float32),
    "w.zero_point": np.array(0, np.int32),
}
GOOD = {"axis": None, "format": "affine(-8,7)"}
WRONG = {
    "metadata['quantized']='[1]'; allowed is a dict": (json.dumps([1]), {}),
    "metadata['quantized']='{'; allowed is a dict": ("{", {}),
    "metadata['quantized']='{\"w\": 3}'; allowed is a dict": (json.dumps({"w": 3}), {}),
    "there is no array named 'v.int_repr'": (json.dumps({"v": GOOD}), {}),
    "array 'w' of the checkpoint: text='x'": (json.dumps({"w": GOOD | {"format": "x"}}), {}),
    "array 'w' of the checkpoint: text=3 is a int": (json.dumps({"w": GOOD | {"format": 3}}), {}),
    "array 'w' of the checkpoint: format='e5m2'": (json.dumps({"w": GOOD | {"format": "e5m2"}}), {}),
    "array 'w' of the checkpoint: AffineInteger": (json.dumps({"w": {"axis": None, "low": 3}}), {}),
    "array 'w' of the checkpoint: axis": (json.dumps({"w": GOOD | {"axis": "x"}}), {}),
    "array 'w' of the checkpoint: axis=9": (json.dumps({"w": GOOD | {"axis": 9}}), {}),
    "array 'w' of the checkpoint: scale has shape ()": (json.dumps({"w": GOOD | {"axis": 0}}), {}),
    "array 'w' of the checkpoint: zero_point=99": (None, {"w.zero_point": np.array(99, np.int32)}),
    "array 'w' of the checkpoint: zero_point is int64": (None, {"w.zero_point": np.array(2**40 + 3)}),
    "array 'w' of the checkpoint: scale=nan": (None, {"w.scale": np.array(np.nan, np.float32)}),
    "array 'w' of the checkpoint: scale is int32": (None, {"w.scale": np.array(1, np.int32)}),
    "array 'w' of the checkpoint: int_repr has 99": (None, {"w.int_repr": np.int8([1, 99])}),
    "array 'w' of the checkpoint: int_repr is float32": (None, {"w.int_repr": np.float32([1, 2])}),
}


@pytest.mark.parametrize("package", LOADS)
@pytest.mark.parametrize("words", WRONG)
def test_wrong_checkpoints(words, package, tmp_path):
    text, arrays = WRONG[words]
    save_file(ARRAYS | arrays, tmp_path / "w.safetensors", {"quantized": text or json.dumps({"w": GOOD})})
    with pytest.raises(ValueError, match="^" + re.escape(words)):
        LOADS[package](tmp_path / "w.safetensors")


def test_the_right_one_loads(tmp_path):
    save_file(ARRAYS, tmp_path / "w.safetensors", {"quantized": json.dumps({"w": GOOD})})
    assert qtorch.quantization.load(tmp_path / "w.safetensors")["w"].int_repr().tolist() == [1, 2]


def test_zero_points_never_wrap(tmp_path):
    """2^40 + 3 has the low bits of 3; in modules of torch, and in states of JAX."""
    large = 2**40 + 3
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
    x = torch.ones(3, 2)
    trained = copy.deepcopy(layers).train()
    trained.qconfig = qtorch.quantization.get_default_qat_qconfig()
    trained = qtorch.quantization.prepare_qat(trained)
    trained(x)
    static = qtorch.quantization.quantize_model(layers, qtorch.quantization.get_default_qconfig(), calibrate=[x])
    for model in (qtorch.quantization.quantize_dynamic(layers), static, trained):
        right = {name: value.clone() for name, value in model.state_dict().items()}
        names = [name for name in right if name.endswith("zero_point")]
        assert names
        for name in names:
            for wrong in (torch.full(right[name].shape, large), right[name] + 0.5):
                message = f"{name} is .*; allowed are integers of int32"
                with pytest.raises(RuntimeError, match=message):
                    model.load_state_dict(right | {name: wrong})
            model.load_state_dict(right | {name: right[name].long()})


def test_states_of_jax_never_wrap(tmp_path):
    large, state = 2**40 + 3, qjax.quantization.FakeQuantize().init()
    save_file({"x.zero_point": np.array(large)}, tmp_path / "w.safetensors")
    with pytest.raises(TypeError, match=r"^tensor 'x.zero_point' is int64; allowed after jax.config"):
        qjax.quantization.load(tmp_path / "w.safetensors")
    entries = {f"x.{name}": np.asarray(getattr(state, name)) for name in ("scale", "fake_quant_enabled")}
    for wrong in (np.array(large), np.array(0.5)):
        with pytest.raises(ValueError, match=r"^array 'x.zero_point' has .*; allowed are integers of int32"):
            qjax.quantization.restore(state, entries | {"x.zero_point": wrong}, "x")


def test_a_model_loads_what_it_has():
    """The entries of a state_dict are the model's own tensors."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model.qconfig = qtorch.quantization.get_default_qat_qconfig()
    model = qtorch.quantization.prepare_qat(model.train())
    model(torch.ones(3, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(model.state_dict())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
