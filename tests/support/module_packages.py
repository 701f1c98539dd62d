"""PyTorch and flax by common names, for models that a test writes once."""

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq


class Torch:
    """What models are made of, in PyTorch."""

    called = "forward"
    package, Module, array = tq, nn.Module, staticmethod(torch.from_numpy)
    relu, clip, cat = torch.relu, staticmethod(lambda x: torch.clamp(x, 0, 6)), torch.cat
    quantize_model, report = staticmethod(tq.quantize_model), staticmethod(tq.report)
    Linear = nn.Linear

    @staticmethod
    def numbers(y):
        return y.detach().numpy()

    @staticmethod
    def linear(outputs=4):
        return nn.Linear(4, outputs)

    @staticmethod
    def ready(make):
        torch.manual_seed(0)
        return make().eval()


class Flax:
    """The same in flax."""

    called = "__call__"
    package, Module, array = jq, nnx.Module, staticmethod(jnp.asarray)
    relu, clip, cat = staticmethod(nnx.relu), staticmethod(lambda x: jnp.clip(x, 0, 6)), staticmethod(jnp.concatenate)
    quantize_model, report = staticmethod(qnn.quantize_model), staticmethod(qnn.report)
    Linear, numbers = nnx.Linear, staticmethod(np.asarray)

    @staticmethod
    def linear(outputs=4):
        return nnx.Linear(4, outputs, rngs=nnx.Rngs(0))

    @staticmethod
    def ready(make):
        return make()
