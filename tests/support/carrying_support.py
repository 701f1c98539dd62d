"""One model in PyTorch and in flax, and what passes between its layers."""

import copy
from contextlib import contextmanager

import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from support import assert_same_bits

import qjax.nnx as qnn
from qjax._models import all_names
from qjax.nnx import quantized as jax_layers
from qjax.nnx.rounded import RoundedLayer as RoundedByJax
from qtorch.nn import quantized
from qtorch.nn.quantized.base import Quantized
from qtorch.nn.rounded import RoundedLayer
from qtorch.quantization import DeQuantStub, QuantStub, prepare


class TorchNet(torch.nn.Module):
    """A residual network with a linear layer behind it."""

    def __init__(self):
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
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


def tensors_of(model):
    """A `state_dict` as NumPy arrays, as a safetensors file has them."""
    return {name: value.numpy() for name, value in model.state_dict().items()}


def images(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3, 9, 8)).astype(np.float32)


def channels_last(x):
    return jnp.moveaxis(jnp.asarray(x), 1, -1)


def calibrated(model, qconfig, *batches):
    """A model prepared in PyTorch, after these batches."""
    model = copy.deepcopy(model).eval()
    model.qconfig = qconfig
    model = prepare(model)
    with torch.no_grad():
        for batch in batches:
            model(torch.from_numpy(batch))
    return model


def torch_results(model, x):
    """The integers, or rounded floats, after every layer of a converted model in PyTorch, with channels last, and its
    result."""
    found, hooks = {}, []

    def keep(name):
        def hook(module, inputs, output):
            found[name] = _last(output)

        return hook

    for name, module in model.named_modules():
        if isinstance(module, (quantized.QFunctional, quantized.FloatFunctional)):
            for method in _METHODS:
                setattr(module, method, _keeping(getattr(module, method), found, name))
        elif isinstance(module, (Quantized, RoundedLayer, QuantStub)) and not isinstance(module, DeQuantStub):
            hooks.append(module.register_forward_hook(keep(name)))
    with torch.no_grad():
        result = model(torch.from_numpy(x))
    for hook in hooks:
        hook.remove()
    return {name: value.numpy() for name, value in found.items()}, result.numpy()


_METHODS = {"add", "add_relu", "mul", "mul_relu", "cat"}


def _keeping(method, found, name):
    def kept(*arguments):
        result = method(*arguments)
        found[name] = _last(result)
        return result

    return kept


def _last(result):
    """The integers or floats of a result, with channels last, if it is a batch of images."""
    values = getattr(result, "values", result)
    values = result if callable(values) else values
    return values.movedim(1, -1).contiguous() if values.ndim >= 3 else values


def jax_results(model, x):
    """The integers, or rounded floats, after every layer of a converted model of flax, and its result."""
    found = {}
    with _recording(found, {id(module): name for name, module in reversed(all_names(model))}):
        result = model(x)
    return found, result


@contextmanager
def _recording(found, names):
    kinds = [kind for kind in vars(jax_layers).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, jax_layers.Quantized)]
    kinds += [RoundedByJax, qnn.Observed, qnn.FloatFunctional]
    kept = [(kind, name, vars(kind)[name]) for kind in kinds for name in {"__call__"} | _METHODS if name in vars(kind)]

    def recorder(function):
        def call(self, *arguments):
            result = function(self, *arguments)
            if id(self) in names:  # else it is a part of a layer
                found[names[id(self)]] = getattr(result, "values", result)
            return result

        return call

    for kind, name, function in kept:
        setattr(kind, name, recorder(function))
    try:
        yield
    finally:
        for kind, name, function in kept:
            setattr(kind, name, function)


def same_at_every_layer(torch_model, jax_model, x, of_jax=channels_last, eager=False):
    """Raises unless two converted models have the same integers after every layer, compiled, and eagerly if asked."""
    expected, result = torch_results(torch_model, x)
    assert len(expected) > 1
    for run in (nnx.jit(jax_results), jax_results)[: 1 + eager]:
        found, y = run(jax_model, of_jax(x))
        assert found.keys() == expected.keys()
        for name, values in found.items():
            assert_same_bits(np.asarray(values), expected[name])
        assert_same_bits(np.asarray(y), result)
    assert all(len(np.unique(values)) > 3 for values in expected.values())
