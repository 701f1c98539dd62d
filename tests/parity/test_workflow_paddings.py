"""Convolutions with their own integers around images, in PyTorch and in flax: calibrated, trained, converted."""

import copy

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from carrying_support import calibrated, same_at_every_layer, tensors_of, torch_results
from flax import nnx
from flax_support import module_of
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq


class TorchNet(nn.Module):
    """Paddings as flax has them: so many that a stride of 1 keeps the size."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant = tq.QuantStub(), tq.DeQuantStub()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect", bias=False)
        self.bn1, self.relu1 = nn.BatchNorm2d(8), nn.ReLU()
        self.conv2 = nn.Conv2d(8, 6, (5, 3), (2, 1), (2, 2), (1, 2), 2, padding_mode="circular")
        self.conv3 = nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular", groups=6)

    def forward(self, x):
        x = self.relu1(self.bn1(self.conv1(self.quant(x))))
        return self.dequant(self.conv3(self.conv2(x)).permute(0, 2, 3, 1))


class JaxNet(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        self.conv1 = nnx.Conv(3, 8, (3, 3), padding="REFLECT", use_bias=False, rngs=rngs)
        self.bn1, self.relu1 = nnx.BatchNorm(8, epsilon=1e-5, rngs=rngs), qnn.ReLU()
        dilated = {"strides": (2, 1), "kernel_dilation": (1, 2), "feature_group_count": 2}
        self.conv2 = nnx.Conv(8, 6, (5, 3), padding="CIRCULAR", **dilated, rngs=rngs)
        self.conv3 = nnx.Conv(6, 6, (3, 3), padding="CIRCULAR", feature_group_count=6, rngs=rngs)

    def __call__(self, x):
        x = self.relu1(self.bn1(self.conv1(self.quant(x))))
        return self.dequant(self.conv3(self.conv2(x)))


ROWS = [["conv1", "bn1", "relu1"]]
IMAGES = np.random.default_rng(0).normal(3.0, 1.0, (12, 3, 9, 8)).astype(np.float32)


def last(x):
    return jnp.moveaxis(jnp.asarray(x), 1, -1)


def test_converted_models():
    """Calibrated there and served here."""
    torch.manual_seed(0)
    floats = TorchNet()
    floats.train()(torch.from_numpy(IMAGES))  # statistics
    fused = tq.fuse_modules(floats.eval(), ROWS)
    converted = tq.convert(calibrated(fused, tq.get_default_qconfig("fbgemm"), IMAGES))
    settings = jq.get_default_qconfig("fbgemm")
    own = qnn.from_torch(module_of(JaxNet), tensors_of(floats))
    own.eval()
    own = qnn.fuse_modules(own, ROWS)
    served = qnn.from_torch(own, tensors_of(converted), settings)
    assert {qnn.report(served)[name].state for name in ("conv1", "conv2", "conv3")} == {"quantized"}
    same_at_every_layer(converted, served, IMAGES, last)
    zeros = copy.deepcopy(converted)
    for conv in (zeros.conv1, zeros.conv2, zeros.conv3):
        conv.padding_mode = "zeros"
    assert not np.array_equal(torch_results(zeros, IMAGES)[1], torch_results(converted, IMAGES)[1])


@pytest.mark.heavy
def test_trained_models():
    """Each layer's integers are within one step of what it was trained for."""
    model = module_of(JaxNet)
    model.train()
    prepared = qnn.prepare_qat(qnn.fuse_modules(model, ROWS), jq.get_default_qat_qconfig("fbgemm"))
    nnx.jit(lambda model, x: model(x))(prepared, last(IMAGES))
    prepared.eval()
    made = qnn.convert(prepared)
    x = made.quant(last(IMAGES[::-1]))
    for name in ("conv1", "conv2", "conv3"):
        simulated, layer = getattr(prepared, name), getattr(made, name)
        q = layer(x)
        apart = (simulated(x.dequantize()) - q.dequantize()) / layer.scale[...]
        assert np.abs(apart).max() <= 1.001, name
        assert len(np.unique(q.values)) > 30
        x = q
