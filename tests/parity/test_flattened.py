"""Layers over several axes (`nnx.LinearGeneral`, `nnx.Einsum`, attention) have the bits of PyTorch's linear layers."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flax_support import layer_of, module_of
from support import assert_same_bits
from torch import nn

import qjax.nnx as qnn
import qjax.quantization as jq
import qtorch.quantization as tq

RNG = np.random.default_rng(0)
X = RNG.integers(-16, 17, (3, 4, 6)).astype(np.float32) / 8
WEIGHTS = [RNG.integers(-32, 33, shape).astype(np.float32) / 32 for shape in ((8, 6), (10, 8), (5, 10))]
BIASES = [RNG.integers(-8, 9, len(weight)).astype(np.float32) / 8 for weight in WEIGHTS]


class Torch(nn.Sequential):
    def __init__(self):
        super().__init__(*(nn.Linear(weight.shape[1], len(weight)) for weight in WEIGHTS))
        for layer, weight, bias in zip(self, WEIGHTS, BIASES, strict=True):
            layer.weight.data, layer.bias.data = torch.from_numpy(weight), torch.from_numpy(bias)


class Flax(nnx.Module):
    """Features in two axes, which the second layer takes at the front, and the third in the other order."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List(
            [
                nnx.LinearGeneral(6, (2, 4), rngs=rngs),
                nnx.LinearGeneral((2, 4), (5, 2), axis=(0, -1), rngs=rngs),
                nnx.Einsum("...ba,oab->o...", (5, 2, 5), (5,), rngs=rngs),
            ]
        )

    def __call__(self, x):
        first, second, third = self.layers
        return jnp.moveaxis(third(second(jnp.moveaxis(first(x), -2, 0)).swapaxes(-1, -2).swapaxes(-1, -2)), 0, -1)


def flax():
    model, (first, second, third) = module_of(Flax), WEIGHTS
    kernels = first.T.reshape(6, 2, 4), second.T.reshape(2, 4, 5, 2), third.reshape(5, 5, 2).transpose(0, 2, 1)
    for layer, kernel, bias in zip(model.layers, kernels, BIASES, strict=True):
        layer.kernel[...], layer.bias[...] = jnp.asarray(kernel), bias.reshape(layer.bias.shape)
    return model


def trained(model):
    model.train()
    model(torch.from_numpy(X) if isinstance(model, nn.Module) else X)


SETTINGS = {
    "static": lambda package: {"calibrate": [torch.from_numpy(X) if package is tq else X]},
    "trained": lambda package: {"train": trained},
    "dynamic": lambda package: {"qconfig": package.default_dynamic_qconfig},
    "weights": lambda package: {"qconfig": package.QConfig(None, "mxfp4")},
}


@pytest.mark.heavy
@pytest.mark.parametrize("way", SETTINGS)
def test_bits_of_linear_layers(way):
    expected = tq.quantize_model(Torch(), **SETTINGS[way](tq))(torch.from_numpy(X))
    small = qnn.quantize_model(flax(), **SETTINGS[way](jq))
    assert {row.state for row in qnn.report(small)} <= {"quantized", "rounded"}
    assert_same_bits(nnx.jit(lambda model, x: model(x))(small, X), expected)


REASONS = {
    "batch_axis={0: 3}, so that its kernel is a stack": lambda r: nnx.LinearGeneral(6, 2, batch_axis={0: 3}, rngs=r),
    "along b a stack of matrices": lambda r: nnx.Einsum("bta,bac->btc", (3, 6, 2), rngs=r),
    "sums over axes of input and kernel": lambda r: nnx.Einsum("bta,ac->tbc", (6, 2), rngs=r),
    "letters once in an array": lambda r: nnx.Einsum("bta,aac->btc", (6, 6, 2), rngs=r),
    "it has a dot_general of its own": lambda r: nnx.LinearGeneral(6, 2, dot_general=lambda *a, **k: a, rngs=r),
    "{nnx.LSTMCell: default_dynamic_qconfig}": lambda r: nnx.LSTMCell(2, 2, rngs=r),
    "no dynamic one, since its gate_fn": lambda r: nnx.GRUCell(2, 2, gate_fn=nnx.relu, rngs=r),
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_has_no_form_says_why(reason):
    layer = nnx.Dict(layer=module_of(lambda: REASONS[reason](nnx.Rngs(0))))
    assert any(reason in row.reason for row in qnn.report(layer))


def test_stubs_of_the_user_leave_attention():
    attention = layer_of(nnx.MultiHeadAttention, 2, 6, decode=False)
    prepared = qnn.prepare(nnx.Dict(attention=attention, layer=layer_of(nnx.Linear, 2, 2)), jq.default_qconfig)
    assert "quantize_model of a model without a QuantStub" in next(iter(qnn.report(prepared))).reason
    rounded = qnn.prepare(attention, jq.QConfig(None, "mxfp4"))
    assert [row.state for row in qnn.report(rounded)] == ["observed"] * 4


def test_other_arguments_are_refused():
    attention = layer_of(nnx.MultiHeadAttention, 2, 6, decode=False)
    small = qnn.quantize_model(attention, jq.QConfig(None, "int8"))
    with pytest.raises(TypeError, match="key has out_sharding='x'; allowed in a quantized layer is None"):
        small.key(X, out_sharding="x")
