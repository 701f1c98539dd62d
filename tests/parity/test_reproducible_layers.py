"""Paddings, norms and general linear layers of models: near the framework's own, and the same bits in torch and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from covering import usually
from flax import nnx
from flax_support import layer_of, run
from numerics_support import numbers
from support import assert_same_bits
from torch import nn

import qjax
import qtorch

RNG, RNGS = np.random.default_rng(41), nnx.Rngs(0)
X = numbers(RNG, 2, 4, 7, 6)  # (batch, channels, height, width)
FLAX = {
    "strides": lambda: layer_of(nnx.Conv, 4, 3, (3, 4), strides=2, padding="SAME"),
    "lower": lambda: layer_of(nnx.Conv, 4, 3, (2, 2), padding="SAME_LOWER"),
    "reflect": lambda: layer_of(nnx.Conv, 4, 3, (3, 4), padding="REFLECT"),
    "pairs": lambda: layer_of(nnx.Conv, 4, 3, (3, 3), padding=((1, 2), (0, 1))),
    "causal": lambda: layer_of(nnx.Conv, 4, 3, (3,), padding="CAUSAL", kernel_dilation=2),
    "several axes": lambda: layer_of(nnx.LinearGeneral, (6, 4), (2, 3), axis=(-2, -1)),
}


QUICK = ("several axes",)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.heavy) for n in FLAX])
def test_layers_of_flax(name):
    layer, x = FLAX[name](), jnp.moveaxis(X, 1, -1)
    ours = qjax.reproducible.convert(layer)
    y = run(ours, x)
    np.testing.assert_allclose(y, run(layer, x), rtol=1e-4, atol=1e-5)
    qjax.reproducible.load_state_dict(ours, qjax.reproducible.state_dict(ours))
    assert_same_bits(run(ours, x), y)


def pairs():
    """Layers of torch and flax with the same parameters."""
    yield nn.Conv2d(4, 3, (3, 4), padding="same"), layer_of(nnx.Conv, 4, 3, (3, 4), padding="SAME")
    circular = nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular")
    yield circular, layer_of(nnx.Conv, 4, 3, (3, 3), padding="CIRCULAR")
    yield nn.GroupNorm(2, 4), layer_of(nnx.GroupNorm, 4, 2, epsilon=1e-5)
    yield nn.InstanceNorm2d(4, affine=True), layer_of(nnx.InstanceNorm, 4, epsilon=1e-5)
    yield nn.PReLU(), nnx.PReLU()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("index", usually((2, 3, 4), range(5)))
def test_both_packages(index):
    first, second = list(pairs())[index]
    state = {name: numbers(RNG, *p.shape) for name, p in first.state_dict().items()}
    first.load_state_dict({name: torch.from_numpy(p) for name, p in state.items()})
    near = first(torch.from_numpy(X))
    y = qtorch.reproducible.convert(first)(torch.from_numpy(X))
    torch.testing.assert_close(y, near, rtol=1e-4, atol=1e-5)
    second = qjax.reproducible.convert(second)
    qjax.reproducible.load_state_dict(second, state)
    assert_same_bits(np.moveaxis(np.asarray(run(second, np.moveaxis(X, 1, -1))), -1, 1), y)


def test_states_in_a_traced_program():
    """An optimizer whose blocks are those of torch's layouts steps on `state_dict`, within jit."""
    graph, params = nnx.split(layer_of(nnx.MultiHeadAttention, 2, 4, decode=False))

    @jax.jit
    def doubled(params):
        model = nnx.merge(graph, params, copy=True)
        named = {name: 2 * x for name, x in qjax.reproducible.state_dict(model).items()}
        qjax.reproducible.load_state_dict(model, named)
        return nnx.state(model, nnx.Param)

    before, after = (qjax.reproducible.state_dict(nnx.merge(graph, one)) for one in (params, doubled(params)))
    assert set(after) == {
        f"{where}_proj{what}"
        for where, what in (("in", "_weight"), ("in", "_bias"), ("out", ".weight"), ("out", ".bias"))
    }
    for name, x in before.items():
        assert_same_bits(after[name], 2 * x, name)


def test_layers_of_torch():
    """Paddings, moves and activations between convolutions."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(4, 4, 3, padding="same", padding_mode="reflect"), nn.ReflectionPad2d(2), nn.ZeroPad2d(1)]
    layers += [nn.MaxPool2d(3, 2, ceil_mode=True), nn.PixelShuffle(2), nn.UpsamplingNearest2d(scale_factor=2)]
    layers += [
        nn.Hardswish(inplace=True),
        nn.ConstantPad2d(1, 0.5),
        nn.CELU(inplace=True),
        nn.AvgPool2d(3, ceil_mode=True),
    ]
    model, x = nn.Sequential(*layers), torch.from_numpy(X)
    near = model(x)
    torch.testing.assert_close(qtorch.reproducible.convert(model)(x), near, rtol=1e-4, atol=1e-5)
    one = qtorch.reproducible.convert(nn.Conv1d(4, 2, 3))
    assert_same_bits(one(x[0, :, 0]), one(x[:1, :, 0])[0])


def test_what_layers_do_in_place_is_seen():
    """As in torch: the first activation also changes what is added."""

    class Model(nn.Module):
        def forward(self, x):
            return nn.functional.relu(x, inplace=True) + x

    x = torch.tensor([-1.0, 2.0])
    assert qtorch.reproducible.convert(Model())(x.clone()).tolist() == [0.0, 4.0]
