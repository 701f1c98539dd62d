"""Checkpoints that nobody's `save` wrote: an error that names the array, in all packages."""

import json
import re

import numpy as np
import pytest
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
