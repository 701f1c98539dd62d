"""One model in PyTorch and in flax, and what passes between its layers."""

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx

import qjax.nnx as qnn
import qtorch.quantization as tq
from qtorch.nn import quantized


class TorchNet(torch.nn.Module):
    """A residual network with a linear layer behind it."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant = tq_stub("QuantStub"), tq_stub("DeQuantStub")
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, stride=2, padding=(1, 0), groups=2)
        self.side = torch.nn.Conv2d(8, 8, (3, 3), stride=2, padding=(1, 0), bias=False)
        self.sum, self.gate, self.both = (quantized.FloatFunctional() for _ in range(3))
        self.layers = torch.nn.Sequential(torch.nn.Linear(48, 20), torch.nn.Linear(20, 5))

    def forward(self, x):
        x = torch.relu(self.first(self.quant(x)))
        x = self.sum.add_relu(self.second(x), self.side(x))
        x = self.both.cat([self.gate.mul(x, x), x], 1).permute(0, 2, 3, 1).flatten(1)
        return self.dequant(self.layers(x[:, :48]))


class JaxNet(nnx.Module):
    """The same with channels last."""

    def __init__(self, rngs):
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        self.first = nnx.Conv(3, 8, (3, 3), padding=1, rngs=rngs)
        other = {"strides": 2, "padding": (1, 0), "rngs": rngs}
        self.second = nnx.Conv(8, 8, (3, 3), feature_group_count=2, **other)
        self.side = nnx.Conv(8, 8, (3, 3), use_bias=False, **other)
        self.sum, self.gate, self.both = (qnn.FloatFunctional() for _ in range(3))
        self.layers = nnx.Sequential(nnx.Linear(48, 20, rngs=rngs), nnx.Linear(20, 5, rngs=rngs))

    def __call__(self, x):
        x = qnn.relu(self.first(self.quant(x)))
        x = self.sum.add_relu(self.second(x), self.side(x))
        x = self.both.cat([self.gate.mul(x, x), x], -1)
        x = x.reshape(x.shape[0], -1)
        return self.dequant(self.layers(x[:, :48]))


def tq_stub(name):
    return getattr(tq, name)()


def tensors_of(model):
    """A `state_dict` as NumPy arrays, as a safetensors file has them."""
    return {name: value.numpy() for name, value in model.state_dict().items()}


def images(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3, 9, 8)).astype(np.float32)


def channels_last(x):
    return jnp.moveaxis(jnp.asarray(x), 1, -1)
