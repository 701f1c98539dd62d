"""The same model leaves PyTorch and JAX as two files with the same integers, in onnxruntime."""

import jax.numpy as jnp
import jax_export_support
import numpy as np
import onnx
import pytest
import torch
from carrying_support import channels_last, tensors_of
from export_support import Probe
from flax import nnx
from flax_support import module_of
from support import assert_same_bits
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.export
import qtorch.quantization as tq
from qcore.exchange.run import run_onnx

IMAGES = np.random.default_rng(0).normal(size=(2, 3, 8, 8)).astype(np.float32)


class Flax(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv, self.norm = nnx.Conv(3, 4, (3, 3), padding=1, rngs=rngs), nnx.BatchNorm(4, epsilon=1e-5, rngs=rngs)
        self.fc = nnx.Linear(4, 5, rngs=rngs)

    def __call__(self, x):
        return self.fc(nnx.relu(self.norm(self.conv(x))).max((1, 2)))


class Torch(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.conv(x))).amax((2, 3)))


def integers(path, x):
    """The arrays of integers, and the result in floats, that onnxruntime computes."""
    (found, *_) = jax_export_support.results(path, (x,))
    return [one for one in found if one.dtype == np.uint8], next(one for one in found if one.dtype == np.float32)


@pytest.mark.heavy
def test_two_files_of_one_model(tmp_path):
    torch.manual_seed(0)
    floats = Torch().eval()
    own = qnn.from_torch(module_of(Flax), tensors_of(floats))
    small = tq.quantize_model(floats, tq.default_qconfig, [torch.from_numpy(IMAGES)])
    calibrated = qnn.quantize_model(own, jq.default_qconfig, [channels_last(IMAGES)])
    served = qnn.from_torch(calibrated, tensors_of(small))
    qtorch.export.to_onnx(Probe(small).eval(), (torch.from_numpy(IMAGES),), tmp_path / "torch.onnx")
    images = np.ascontiguousarray(channels_last(IMAGES))
    jax_export_support.to_onnx(jax_export_support.probed(served), (images,), tmp_path / "jax.onnx")
    own = run_onnx(tmp_path / "jax.onnx", {"args.0": images})
    theirs, expected = integers(tmp_path / "torch.onnx", IMAGES)
    ours, found = integers(tmp_path / "jax.onnx", images)
    assert_same_bits(found, expected)
    assert_same_bits(own["output_0"], expected)  # by NumPy
    assert len(ours) == len(theirs) >= 4
    by_size = [sorted(rows, key=lambda one: (one.ndim, one.size)) for rows in (ours, theirs)]
    for one, other in zip(*by_size, strict=True):
        assert_same_bits(np.moveaxis(one, -1, 1), other)


@pytest.mark.parametrize("zeros", [torch.zeros, jnp.zeros])
def test_arrays_of_frameworks_are_refused_with_the_remedy(zeros):
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    infos = [onnx.helper.make_tensor_value_info(name, 1, [3]) for name in "xy"]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "one", infos[:1], infos[1:]))
    with pytest.raises(TypeError, match=r"input 'x' is a .*; allowed is a NumPy array: onnxruntime .* qtorch and qjax"):
        run_onnx(model, {"x": zeros(3)})
