"""What code of models asks of layers: settings and arguments by name; and weights that flax computes at each call."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax_support import layer_of

from qjax.nnx import quantize_model
from qjax.quantization import QConfig, default_dynamic_qconfig

X = np.random.default_rng(0).normal(size=(2, 8, 8, 3)).astype(np.float32)
SETTINGS = {
    "int8": (None, [X]),
    "formats": (QConfig("e4m3fn", "e4m3fn"), [X]),
    "weights": (QConfig(None, "mxfp8_e4m3"), None),
    "dynamic": ({"fc": default_dynamic_qconfig}, None),
}


class Net(nnx.Module):
    """It reads settings, and calls layers by the names of their arguments."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv, self.bn = layer_of(nnx.Conv, 3, 4, (3, 3), strides=(2, 2)), nnx.BatchNorm(4, rngs=rngs)
        self.norm, self.fc = nnx.LayerNorm(4, rngs=rngs), layer_of(nnx.Linear, 4, 2)

    def __call__(self, x):
        assert (self.conv.strides, self.conv.kernel_size, self.conv.out_features) == ((2, 2), (3, 3), 4)
        assert (self.norm.num_features, self.fc.in_features, self.fc.out_features) == (4, 4, 2)
        x = nnx.relu(self.bn(self.conv(inputs=x)))
        return self.fc(inputs=self.norm(x=x))


@pytest.mark.parametrize(
    "name", ["dynamic", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("int8", "formats", "weights"))]
)
def test_layers_have_settings_and_take_arguments_by_name(name):
    model = Net()
    model.eval()
    small = quantize_model(model, *SETTINGS[name])
    assert jnp.linalg.norm(small(X) - model(X)) / jnp.linalg.norm(model(X)) < 0.15


@pytest.mark.heavy
def test_layers_in_training_have_them_too():
    def train(model):
        optimizer = nnx.Optimizer(model, optax.sgd(0.01), wrt=nnx.Param)
        optimizer.update(model, nnx.grad(lambda model: jnp.mean(model(X) ** 2))(model))

    assert quantize_model(Net(), train=train)(X).shape == (2, 4, 4, 2)


class Normed(nnx.Module):
    def __init__(self, kind):
        rngs = nnx.Rngs(0)
        self.norm = kind(nnx.Linear(3, 4, rngs=rngs), rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [nnx.WeightNorm, nnx.SpectralNorm])
def test_weights_that_a_wrapper_computes_are_named(kind):
    model = Normed(kind)
    model.eval()
    for settings, data in SETTINGS.values():
        settings = default_dynamic_qconfig if isinstance(settings, dict) else settings
        with pytest.raises(ValueError, match=rf"layer 'norm' is a {kind.__name__}, which .* put norm\.layer_instance"):
            quantize_model(model, settings, data)
    expected = model(X)
    model.norm = model.norm.layer_instance  # the remedy
    found = quantize_model(model, calibrate=[X])(X)
    assert jnp.linalg.norm(found - expected) / jnp.linalg.norm(expected) < 0.05
