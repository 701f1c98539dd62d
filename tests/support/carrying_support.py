"""What is carried from PyTorch to flax, and what passes between the layers of a model."""

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


def tensors_of(model):
    """A `state_dict` as NumPy arrays, as a safetensors file has them."""
    return {name: value.numpy() for name, value in model.state_dict().items()}


def same_state(actual, expected):
    """Raises unless arrays have the same names, types and bits; one number may have an axis."""
    assert actual.keys() == expected.keys()
    for name, array in actual.items():
        assert array.dtype == expected[name].dtype, name
        assert array.reshape(-1).tobytes() == expected[name].reshape(-1).tobytes(), name


def channels_last(x):
    """Images as flax has them; other arrays as they are."""
    return jnp.moveaxis(jnp.asarray(x), 1, -1) if x.ndim == 4 else jnp.asarray(x)


def calibrated(model, qconfig, *batches):
    """A model prepared in PyTorch, after these batches."""
    model = copy.deepcopy(model).eval()
    model.qconfig = qconfig
    model = prepare(model)
    with torch.no_grad():
        for batch in batches:
            model(torch.from_numpy(batch))
    return model


_METHODS = {"add", "add_relu", "mul", "mul_relu", "cat", "einsum", "matmul"}


def torch_calls(model, x):
    """(method, arguments, result) of each layer of a converted model in PyTorch, by its name; and its result."""
    found, hooks = {}, []

    def keep(name, method="__call__"):
        return lambda *call: found.__setitem__(name, (method, *call[-2:]))

    for name, module in model.named_modules():
        if isinstance(module, (quantized.QFunctional, quantized.FloatFunctional)):
            for method in _METHODS:
                setattr(module, method, _keeping(getattr(type(module), method), module, keep(name, method)))
        elif isinstance(module, (Quantized, RoundedLayer, QuantStub)) and not isinstance(module, DeQuantStub):
            hooks.append(module.register_forward_hook(keep(name)))
    with torch.no_grad():
        result = model(torch.from_numpy(x))
    for hook in hooks:
        hook.remove()
    return found, result


def _keeping(method, module, keep):
    def kept(*arguments):
        result = method(module, *arguments)
        keep(arguments, result)
        return result

    return kept


def torch_results(model, x):
    """The integers, or rounded floats, after every layer of a converted model in PyTorch, with channels last, and its
    result."""
    found, result = torch_calls(model, x)
    return {name: _last(call[-1]).numpy() for name, call in found.items()}, result.numpy()


def _last(result):
    """The integers or floats of a result, with channels last, if it is a batch of images."""
    values = getattr(result, "values", result)
    values = result if callable(values) else values
    return values.movedim(1, -1).contiguous() if values.ndim == 4 else values


def jax_calls(model, x):
    """As `torch_calls`, of flax."""
    found = {}
    with _recording(found, {id(module): name for name, module in reversed(all_names(model))}):
        result = model(x)
    return found, result


def jax_results(model, x):
    """The integers, or rounded floats, after every layer of a converted model of flax, and its result."""
    found, result = jax_calls(model, x)
    return {name: getattr(call[-1], "values", call[-1]) for name, call in found.items()}, result


@contextmanager
def _recording(found, names):
    kinds = [kind for kind in vars(jax_layers).values() if isinstance(kind, type)]
    kinds = [kind for kind in kinds if issubclass(kind, jax_layers.Quantized)]
    kinds += [RoundedByJax, qnn.Observed, qnn.FloatFunctional]
    kept = [(kind, name, vars(kind)[name]) for kind in kinds for name in {"__call__"} | _METHODS if name in vars(kind)]

    def recorder(method, function):
        def call(self, *arguments):
            result = function(self, *arguments)
            if id(self) in names:  # else it is a part of a layer
                found[names[id(self)]] = method, arguments, result
            return result

        return call

    for kind, name, function in kept:
        setattr(kind, name, recorder(name, function))
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
        assert_same_bits(np.asarray(y), np.moveaxis(result, 1, -1) if result.ndim == 4 else result)
    assert all(len(np.unique(values)) > 3 for values in expected.values())
