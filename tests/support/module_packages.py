"""PyTorch and flax by common names, for models that a test writes once."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from flax_support import layer_of, run
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qjax.nnx.rounded import RoundedLayer as FlaxRounded
from qjax.quantization import functional
from qtorch.nn import quantized as tq_layers
from qtorch.nn.rounded import RoundedLayer


class Torch:
    """What models are made of, in PyTorch, and the workflow."""

    called = "forward"
    package, Module, Sequential, array = tq, nn.Module, nn.Sequential, staticmethod(torch.from_numpy)
    relu, clip, cat = torch.relu, staticmethod(lambda x: torch.clamp(x, 0, 6)), torch.cat
    flip = staticmethod(lambda x: x.flip(-1))
    quantize_model, quantize_dynamic = staticmethod(tq.quantize_model), staticmethod(tq.quantize_dynamic)
    convert, fuse_modules, report = staticmethod(tq.convert), staticmethod(tq.fuse_modules), staticmethod(tq.report)
    Linear, Conv, ReLU, layers, RoundedLayer = nn.Linear, nn.Conv1d, nn.ReLU, tq_layers, RoundedLayer
    FloatFunctional, stubs = tq_layers.FloatFunctional, (tq.QuantStub, tq.DeQuantStub)
    QuantWrapper, LayerNorm, parameter = (
        tq.QuantWrapper,
        nn.LayerNorm,
        staticmethod(lambda x: nn.Parameter(torch.from_numpy(x))),
    )

    @staticmethod
    def numbers(y):
        return y.detach().numpy()

    @staticmethod
    def linear(outputs=4, kind=nn.Linear, inputs=4):
        return kind(inputs, outputs)

    @staticmethod
    def norm():
        return nn.BatchNorm1d(4)

    @staticmethod
    def narrow(x):
        """A tensor, or a layer, in bfloat16."""
        return x.bfloat16()

    @staticmethod
    def conv(inputs=4, outputs=4):
        return nn.Conv1d(inputs, outputs, 1)

    @staticmethod
    def ready(make):
        torch.manual_seed(0)
        return make().eval()

    @staticmethod
    def prepared(model, settings, train=False):
        """The model prepared with settings, or with settings by names and types."""
        model = copy.deepcopy(model).train(train)
        tq.propagate_qconfig_(model, settings if isinstance(settings, dict) else {"": settings})
        return (tq.prepare_qat if train else tq.prepare)(model)

    @staticmethod
    def loaded(model, other):
        """The model with the numbers of another one."""
        model.load_state_dict(other.state_dict())
        return model

    @staticmethod
    def run(model, x):
        return model(x)


class Flax:
    """The same in flax."""

    called = "__call__"
    package, Module, Sequential, array = jq, nnx.Module, nnx.Sequential, staticmethod(jnp.asarray)
    relu, clip, cat = staticmethod(nnx.relu), staticmethod(lambda x: jnp.clip(x, 0, 6)), staticmethod(jnp.concatenate)
    quantize_model, quantize_dynamic = staticmethod(qnn.quantize_model), staticmethod(qnn.quantize_dynamic)
    convert, fuse_modules, report = staticmethod(qnn.convert), staticmethod(qnn.fuse_modules), staticmethod(qnn.report)
    Linear, Conv, ReLU, layers, RoundedLayer = nnx.Linear, nnx.Conv, qnn.ReLU, qnn.quantized, FlaxRounded
    FloatFunctional, stubs = qnn.FloatFunctional, (qnn.QuantStub, qnn.DeQuantStub)
    QuantWrapper, parameter = qnn.QuantWrapper, nnx.Param
    LayerNorm = staticmethod(lambda features: layer_of(nnx.LayerNorm, features))
    numbers, run, flip = staticmethod(np.asarray), staticmethod(run), staticmethod(lambda x: functional.flip(x, -1))

    @staticmethod
    def linear(outputs=4, kind=nnx.Linear, inputs=4):
        return kind(inputs, outputs, rngs=nnx.Rngs(0))

    @staticmethod
    def conv(inputs=4, outputs=4):
        return layer_of(nnx.Conv, inputs, outputs, (1,))

    @staticmethod
    def norm():
        return nnx.BatchNorm(4, rngs=nnx.Rngs(0))

    @staticmethod
    def narrow(x):
        """An array, or a copy of a layer, in bfloat16."""
        if not isinstance(x, nnx.Module):
            return x.astype(jnp.bfloat16)
        graph, state = nnx.split(x)
        return nnx.merge(graph, jax.tree.map(lambda one: one.astype(jnp.bfloat16), state))

    @staticmethod
    def ready(make):
        return make()

    @staticmethod
    def prepared(model, settings, train=False):
        return (qnn.prepare_qat if train else qnn.prepare)(model, settings)

    @staticmethod
    def loaded(model, other):
        return qnn.from_torch(model, qnn.to_torch(other))
