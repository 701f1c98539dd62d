"""PyTorch and flax by common names, for models that a test writes once."""

import copy

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from carrying_support import channels_last
from flax import nnx
from flax_support import layer_of, module_of, run
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq
from qjax._models import names_of
from qjax.nnx.rounded import RoundedLayer as FlaxRounded
from qjax.quantization import functional
from qtorch.nn import quantized as tq_layers
from qtorch.nn.rounded import RoundedLayer


class TorchModule(nn.Module):
    """Its code is `run`, as in flax's below."""

    def forward(self, *arguments, **settings):
        return self.run(*arguments, **settings)


class FlaxModule(nnx.Module):
    def __call__(self, *arguments, **settings):
        return self.run(*arguments, **settings)


class Torch:
    """What models are made of, in PyTorch, and the workflow; images have channels before rows."""

    called = "forward"
    package, Module, Sequential, array = tq, TorchModule, nn.Sequential, staticmethod(torch.from_numpy)
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

    act, channels, BatchNorm, GroupNorm = nn, 1, nn.BatchNorm2d, nn.GroupNorm
    InstanceNorm = staticmethod(lambda width: nn.InstanceNorm2d(width, affine=True))
    max_pool, avg_pool = staticmethod(nn.functional.max_pool2d), staticmethod(nn.functional.avg_pool2d)
    tanh, relu_of_integers, softmax = torch.tanh, torch.relu, staticmethod(lambda x: torch.softmax(x, -1))
    images, mean = array, staticmethod(lambda x: x.mean((2, 3)))
    chunk = staticmethod(torch.chunk)
    channel_shuffle = staticmethod(nn.functional.channel_shuffle)
    pad_rows = staticmethod(lambda x: nn.functional.pad(x, (0, 0, 1, 1)))
    pad_end = staticmethod(lambda x: nn.functional.pad(x, (0, 1, 0, 1)))
    halves, window = staticmethod(lambda x: x.chunk(2, 1)), staticmethod(lambda x, part: x[:, :, part, part])
    largest = staticmethod(lambda x: x.amax((2, 3)))
    flat = staticmethod(lambda x: x.permute(0, 2, 3, 1).flatten(1))  # in flax's order

    @staticmethod
    def conv2d(inputs, outputs, size=1, stride=1, padding=0, groups=1, bias=True, dilation=1, mode="zeros"):
        return nn.Conv2d(inputs, outputs, size, stride, padding, dilation, groups, bias, mode)

    @staticmethod
    def up2d(inputs, outputs):
        return nn.ConvTranspose2d(inputs, outputs, 2, 2)

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

    @staticmethod
    def made(make):
        torch.manual_seed(0)
        return make()

    @staticmethod
    def module(model, path):
        return model.get_submodule(path)

    @staticmethod
    def step(model, x):
        """The loss before a step of training."""
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()


class Flax:
    """The same in flax, with channels last."""

    called = "__call__"
    package, Module, Sequential, array = jq, FlaxModule, nnx.Sequential, staticmethod(jnp.asarray)
    relu, clip, cat = staticmethod(nnx.relu), staticmethod(lambda x: jnp.clip(x, 0, 6)), staticmethod(jnp.concatenate)
    quantize_model, quantize_dynamic = staticmethod(qnn.quantize_model), staticmethod(qnn.quantize_dynamic)
    convert, fuse_modules, report = staticmethod(qnn.convert), staticmethod(qnn.fuse_modules), staticmethod(qnn.report)
    Linear, Conv, ReLU, layers, RoundedLayer = nnx.Linear, nnx.Conv, qnn.ReLU, qnn.quantized, FlaxRounded
    FloatFunctional, stubs = qnn.FloatFunctional, (qnn.QuantStub, qnn.DeQuantStub)
    QuantWrapper, parameter = qnn.QuantWrapper, nnx.Param
    LayerNorm = staticmethod(lambda features: layer_of(nnx.LayerNorm, features, epsilon=1e-5))
    numbers, run, flip = staticmethod(np.asarray), staticmethod(run), staticmethod(lambda x: functional.flip(x, -1))
    act, channels = qnn, -1
    BatchNorm = staticmethod(lambda width: layer_of(nnx.BatchNorm, width, epsilon=1e-5))
    GroupNorm = staticmethod(lambda groups, width: layer_of(nnx.GroupNorm, width, groups, epsilon=1e-5))
    InstanceNorm = staticmethod(lambda width: layer_of(nnx.InstanceNorm, width, epsilon=1e-5))
    max_pool, avg_pool = (
        staticmethod(lambda x, size, stride=None, pool=pool: pool(x, (size, size), (stride or size,) * 2))
        for pool in (qnn.max_pool, qnn.avg_pool)
    )
    tanh, relu_of_integers, softmax = staticmethod(jnp.tanh), staticmethod(qnn.relu), staticmethod(qnn.softmax)
    images, mean = staticmethod(channels_last), staticmethod(lambda x: x.mean((1, 2)))
    made, module = staticmethod(module_of), staticmethod(lambda model, path: names_of(model)[path])
    chunk = staticmethod(functional.chunk)
    channel_shuffle = staticmethod(lambda x, groups: functional.channel_shuffle(x, groups, channels_last=True))
    pad_rows = staticmethod(lambda x: functional.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0))))
    pad_end = staticmethod(lambda x: functional.pad(x, ((0, 0), (0, 1), (0, 1), (0, 0))))
    halves, window = staticmethod(lambda x: jnp.split(x, 2, -1)), staticmethod(lambda x, part: x[:, part, part])
    largest = staticmethod(lambda x: x.max((1, 2)))
    flat = staticmethod(lambda x: x.reshape(len(x), -1))

    @staticmethod
    def conv2d(inputs, outputs, size=1, stride=1, padding=0, groups=1, bias=True, dilation=1, mode="zeros"):
        size, padding = (one if isinstance(one, tuple) else (one, one) for one in (size, padding))
        settings = {"strides": stride, "kernel_dilation": dilation, "feature_group_count": groups, "use_bias": bias}
        padding = padding if mode == "zeros" else mode.upper()
        return layer_of(nnx.Conv, inputs, outputs, size, padding=padding, **settings)

    @staticmethod
    def up2d(inputs, outputs):
        return layer_of(nnx.ConvTranspose, inputs, outputs, (2, 2), (2, 2), padding="VALID")

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

    @staticmethod
    def step(model, x):
        """The loss before a step of training."""
        loss, gradients = _loss_and_gradients(model, x)
        nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param).update(model, gradients)
        return float(loss)


@nnx.jit
@nnx.value_and_grad
def _loss_and_gradients(model, x):
    return (model(x) ** 2).mean()
