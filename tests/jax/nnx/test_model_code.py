"""What code of models asks of layers: settings and arguments by name; and weights that flax computes at each call."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax_support import layer_of

from qjax.nnx import quantize_model, report
from qjax.nnx.rounded import RoundedLayer
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


class Held(nnx.Module):
    """Layers in a container of Python, which flax allows as data."""

    def __init__(self, container):
        self.layers = nnx.data(container([layer_of(nnx.Linear, 3, 4), layer_of(nnx.Linear, 4, 2)]))

    def __call__(self, x):
        for layer in self.layers.values() if isinstance(self.layers, dict) else self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("container", [list, lambda layers: dict(enumerate(layers))], ids=["list", "dict"])
def test_layers_in_containers_of_python_have_names_settings_and_reports(container):
    small = quantize_model(Held(container), {"layers.1": default_dynamic_qconfig})
    assert {row.path: row.state for row in report(small)} == {"layers.0": "float", "layers.1": "quantized"}


@pytest.mark.heavy
def test_layers_in_containers_of_python_are_calibrated():
    model = Held(list)
    found = quantize_model(model, calibrate=[X])
    assert jnp.linalg.norm(found(X) - model(X)) / jnp.linalg.norm(model(X)) < 0.05


def test_layers_in_tuples_are_named():
    with pytest.raises(
        TypeError, match=r"^layers is a tuple of modules, which flax cannot change; allowed is nnx.List"
    ):
        quantize_model(Held(tuple), default_dynamic_qconfig)


class Noisy(nnx.Module):
    """It draws numbers in evaluation."""

    def __init__(self):
        self.fc, self.rngs = layer_of(nnx.Linear, 3, 2), nnx.Rngs(noise=0)

    def __call__(self, x):
        return self.fc(jax.random.normal(self.rngs.noise(), x.shape))


class Tagger(nnx.Module):
    def __init__(self):
        self.rnn, self.fc = nnx.RNN(layer_of(nnx.LSTMCell, 3, 4)), layer_of(nnx.Linear, 4, 2)

    def __call__(self, x):
        return self.fc(self.rnn(x))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        (Noisy, QConfig("int8", "int8")),
        pytest.param(
            Tagger, {"": QConfig("e4m3fn", "e4m3fn"), "rnn": QConfig("mxfp4", "mxfp4")}, marks=pytest.mark.heavy
        ),
    ],
)
def test_layers_behind_random_numbers_and_rounded_recurrent_layers_are_not_blamed(model, settings, recwarn):
    quantize_model(model(), settings, [X[0, ..., :3]])
    assert [str(one.message) for one in recwarn if "larger errors" in str(one.message)] == []


class Programs(nnx.Module):
    """It calls a layer within programs of JAX."""

    def __init__(self):
        self.fc = layer_of(nnx.Linear, 3, 2)

    def __call__(self, x):
        return nnx.jit(nnx.remat(lambda layer, x: layer(x)))(self.fc, x)


def test_layers_within_programs_are_judged(monkeypatch, recwarn):
    settings, data = QConfig("e4m3fn", "e4m3fn"), [X[0, ..., :3]]
    quantize_model(Programs(), settings, data)
    assert not recwarn.list
    call = RoundedLayer.__call__
    monkeypatch.setattr(RoundedLayer, "__call__", lambda self, x: -call(self, x))
    with pytest.warns(UserWarning, match="layer 'fc' .* rounding alone has"):
        quantize_model(Programs(), settings, data)


class Reading(nnx.Module):
    """It multiplies with weights of its layers itself."""

    def __init__(self):
        self.conv, self.up = layer_of(nnx.Conv, 3, 4, (2, 3)), layer_of(nnx.ConvTranspose, 4, 3, (2, 3))
        self.fc, self.table = layer_of(nnx.Linear, 3, 5), layer_of(nnx.Embed, 5, 3)

    def __call__(self, x):
        weights = self.conv.kernel, self.up.kernel, self.fc.kernel[...], self.table.embedding.T
        x = self.fc(self.up(self.conv(x))) + self.table(jnp.arange(2)).sum()
        return x, [1 * weight for weight in weights]


@pytest.mark.parametrize(
    "settings",
    [
        QConfig(None, "mxfp8_e4m3"),
        pytest.param({"": None, "fc": default_dynamic_qconfig}, marks=pytest.mark.heavy),
        pytest.param(None, marks=pytest.mark.heavy),
    ],
    ids=["weights", "dynamic", "int8"],
)
def test_code_that_multiplies_with_weights_of_layers_gets_what_they_were_rounded_to(settings):
    model = Reading()
    found = quantize_model(model, settings, [X])(X)[1]
    for one, floats in zip(found, model(X)[1], strict=True):
        assert one.shape == floats.shape
        assert jnp.abs(one - floats).max() < 0.15 * jnp.abs(floats).max()


class Mapped(nnx.Module):
    def __init__(self, by_flax):
        self.fc, self.by_flax = layer_of(nnx.Linear, 3, 2), by_flax

    def __call__(self, x):
        if not self.by_flax:
            return jax.vmap(self.fc)(x)
        return nnx.vmap(lambda layer, row: layer(row), in_axes=(None, 0))(self.fc, x)


@pytest.mark.parametrize("by_flax", [False, True])
def test_transformations_that_keep_no_ranges_are_named(by_flax):
    model, x = Mapped(by_flax), X[0, 0]
    with pytest.raises(ValueError, match=r"ranges are observed within jax\.vmap, .*; allowed are nnx\.jit"):
        quantize_model(model, QConfig("e4m3fn", "e4m3fn"), [x])
    found = quantize_model(model, QConfig(None, "mxfp8_e4m3"))(x)  # a remedy
    assert jnp.abs(found - model(x)).max() < 0.1


@pytest.mark.heavy
def test_weights_on_an_explicit_mesh_are_calibrated():
    """Without the mesh as context, as the float model runs."""
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2])
    model = nnx.Sequential(layer_of(nnx.Linear, 3, 4), nnx.relu, layer_of(nnx.Linear, 4, 2))
    expected = quantize_model(model, QConfig("e4m3fn", "e4m3fn"), [X])(X)
    for layer in (model.layers[0], model.layers[2]):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "model"))
        layer.kernel.set_value(jax.device_put(layer.kernel[...], sharding))
    assert np.array_equal(quantize_model(model, QConfig("e4m3fn", "e4m3fn"), [X])(X), expected)
