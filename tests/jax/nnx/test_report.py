"""Reports of dynamic models of flax, and of what does nothing; tests/parity/test_report.py has the other states."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax_support import layer_of, run
from support import assert_same_bits

import qjax.nnx as qnn
from qcore.affine import AffineInteger
from qjax.nnx import quantize_dynamic as dynamic
from qjax.quantization import QConfig, default_qconfig

RNGS = nnx.Rngs(0)


def test_dynamic_models():
    model = nnx.Sequential(nnx.RNN(layer_of(nnx.GRUCell, 2, 3)), layer_of(nnx.Linear, 3, 2), nnx.RMSNorm(2, rngs=RNGS))
    small = dynamic(model, dtype=AffineInteger.of_width(4))
    assert sorted((one.path, one.state, one.weight) for one in qnn.report(small)) == [
        ("0", "quantized", "affine(-8,7)"),
        ("1", "quantized", "affine(-8,7)"),
        ("2", "float", ""),
    ]
    assert qnn.report(dynamic(model, {"1"}, "float16"))["1"].weight == "float16"
    assert qnn.report(dynamic(layer_of(nnx.Linear, 2, 2)))[""].state == "quantized"


def test_what_does_not_fit_is_said():
    model = nnx.Sequential(layer_of(nnx.Linear, 2, 2), nnx.RMSNorm(2, rngs=RNGS))
    with pytest.raises(ValueError, match="0: x has shape"):
        dynamic(model).layers[0](jnp.ones((1, 5)))


@pytest.mark.parametrize(
    "cell",
    [
        lambda: layer_of(nnx.SimpleCell, 2, 2, residual=True),
        pytest.param(lambda: layer_of(nnx.SimpleCell, 2, 2, activation_fn=nnx.sigmoid), marks=pytest.mark.heavy),
        lambda: layer_of(nnx.GRUCell, 2, 2, gate_fn=nnx.hard_sigmoid),
        lambda: layer_of(nnx.OptimizedLSTMCell, 2, 2, activation_fn=nnx.relu),
    ],
)
def test_a_cell_with_another_law_is_not_dynamic(cell):
    """Alone it is refused; beside a layer that is quantized it stays, with its bits."""
    cell = cell()
    for model in (cell, nnx.RNN(cell)):
        with pytest.raises(ValueError, match="model has no layer that is quantized dynamically"):
            dynamic(model)
    model = nnx.Sequential(layer_of(nnx.Linear, 2, 2), nnx.RNN(cell))
    x = jnp.ones((1, 3, 2))
    assert_same_bits(run(dynamic(model).layers[1], x), run(nnx.RNN(cell), x))


@pytest.mark.heavy
def test_cells_are_not_observed_and_work():
    """Observers inside would see floats that no integers take the place of."""
    model = nnx.Sequential(nnx.RNN(layer_of(nnx.GRUCell, 2, 3)), qnn.QuantWrapper(layer_of(nnx.Linear, 3, 2)))
    prepared = qnn.prepare(model, default_qconfig)
    assert type(prepared.layers[0].cell.dense_i) is nnx.Linear
    x = np.ones((1, 4, 2), np.float32)
    run(prepared, x)
    np.testing.assert_allclose(run(qnn.convert(prepared), x), run(model, x), atol=0.05)


def test_a_range_that_is_not_finite_is_not_swallowed():
    model = dynamic(layer_of(nnx.Linear, 2, 2))
    assert np.isnan(model(jnp.float32([[1, 2], [jnp.nan, 1]]))).all()


def test_a_layer_in_floats_says_what_to_insert():
    model = nnx.Sequential(qnn.QuantStub(), layer_of(nnx.Linear, 2, 2), nnx.RMSNorm(2, rngs=RNGS))
    prepared = qnn.prepare(model, default_qconfig)
    x = jnp.ones((2, 2))
    run(prepared, x)
    converted = qnn.convert(prepared)
    for call in (lambda model, x: model(x), run):
        with pytest.raises(TypeError, match="layer '2': a QTensor is where numbers are needed: insert a DeQuantStub"):
            call(converted, x)
    q = converted.layers[0](x)
    for operation in (lambda: q + q, lambda: q * 2, lambda: 1 - q, lambda: q / 2, lambda: -q, lambda: q @ x):
        with pytest.raises(TypeError, match=r"^arithmetic of a QTensor; allowed are the methods of FloatFunctional"):
            operation()


class Sum(nnx.Module):
    """Does what only floats can do."""

    def __init__(self, inner=None):
        self.inner = inner

    def __call__(self, x):
        return self.inner(x + x if self.inner is None else x)


INTEGERS_IN_FLOATS = {
    r"layer 'module\.0': a QTensor is .* a Dropout must be in evaluation \(model\.eval\(\)\)": lambda: nnx.Sequential(
        nnx.Dropout(0.5, rngs=RNGS)
    ),
    r"layer 'module\.inner': arithmetic of a QTensor; allowed are the methods of FloatFunctional": lambda: Sum(Sum()),
    r"layer 'module\.0': a QTensor is where numbers are needed": lambda: nnx.Sequential(nnx.RMSNorm(2, rngs=RNGS)),
}


@pytest.mark.parametrize("message", INTEGERS_IN_FLOATS)
def test_layers_of_floats_are_named(message):
    prepared = qnn.prepare(qnn.QuantWrapper(INTEGERS_IN_FLOATS[message]()), default_qconfig)
    prepared.quant(jnp.ones((3, 2)))
    with pytest.raises(TypeError, match=message):
        qnn.convert(prepared)(jnp.ones((3, 2)))


PROGRAM = """
import sys, jax.numpy as jnp
from qjax.quantization import quantize_per_tensor
assert "flax" not in sys.modules
q = quantize_per_tensor(jnp.float32([1]), 0.5, 0, "quint8")

def error(f):
    try:
        f()
    except TypeError as error:
        return str(error).partition("arithmetic")[0]

assert error(lambda: -q) == ""
from flax import nnx

class Add(nnx.Module):
    def __call__(self, x):
        return x + 1

model = nnx.Sequential(Add())
assert error(lambda: -q) == ""
assert error(lambda: model(q)) == "layer '0': "
assert "qjax.nnx" not in sys.modules
"""


@pytest.mark.heavy
def test_errors_name_the_layer_whatever_was_imported():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("settings", [QConfig("e4m3fn", "e4m3fn"), QConfig("mxfp8_e4m3", "mxfp4")])
def test_a_loaded_model_has_the_rows_of_the_converted_one(settings):
    """Also those of stubs and functionals, which stay the modules that they were."""

    class Sum(nnx.Module):
        def __init__(self):
            self.quant, self.linear, self.sum = qnn.QuantStub(), layer_of(nnx.Linear, 32, 32), qnn.FloatFunctional()

        def __call__(self, x):
            x = self.quant(x)
            return self.sum.add(self.linear(x), x)

    prepared = qnn.prepare(Sum(), settings)
    prepared(jnp.ones((2, 32)))
    made = qnn.convert(prepared)
    loaded = qnn.from_torch(Sum(), qnn.to_torch(made), settings)
    assert list(qnn.report(loaded)) == list(qnn.report(made))
    assert {row.state for row in qnn.report(made)} == {"rounded"}
