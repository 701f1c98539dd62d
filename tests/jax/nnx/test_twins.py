"""quantize_model names layers whose results are farther from the floats' than rounding makes them."""

import numpy as np
import pytest
from flax import nnx
from flax_support import module_of

import qjax.nnx as qnn
from qjax.nnx import quantized
from qjax.nnx.rounded import RoundedLayer
from qjax.quantization import QConfig

X = np.random.default_rng(0).normal(size=(4, 6, 8)).astype(np.float32)
SETTINGS = {
    "integers": (quantized.Linear, None),
    "formats": (RoundedLayer, QConfig("e4m3fn", "e4m3fn")),
    "weights alone": (RoundedLayer, QConfig(None, "mxfp8_e4m3")),
}
NAMED = (
    r"larger errors than rounding has: layer '[\w.]+' \(-?\d+\.\d dB; rounding alone has \d+\.\d dB\); "
    r"layer '[\w.]+' \([^;]*; [^;]*\); layer"
)


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.wide, self.split = nnx.Linear(8, 8, rngs=rngs), nnx.LinearGeneral(8, (2, 4), rngs=rngs)
        self.out = nnx.LinearGeneral((2, 4), 4, axis=(-2, -1), rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.gelu(self.split(nnx.relu(self.wide(x)))))


def model():
    made = module_of(Model)
    for layer in (made.wide, made.split, made.out):
        layer.bias[...] = np.full(layer.bias.shape, 2, np.float32)
    return made


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "integers" else pytest.mark.heavy) for name in SETTINGS]
)
def test_a_layer_that_computes_something_else_is_named(monkeypatch, name):
    kind, settings = SETTINGS[name]
    qnn.quantize_model(model(), settings, [X])  # without a warning
    call = kind.__call__

    def without_bias(self, x):
        bias, self.bias = self.bias, nnx.data(None)
        result = call(self, x)
        self.bias = bias
        return result

    def doubled(self, x):
        return 2 * call(self, x)

    monkeypatch.setattr(kind, "__call__", without_bias if name == "integers" else doubled)
    with pytest.warns(UserWarning, match=NAMED):
        qnn.quantize_model(model(), settings, [X])


def test_numbers_of_the_first_call_are_kept():
    """Calibration writes to the array that it has shown."""
    batch = X.copy()

    def calibrate(small):
        small(batch)
        batch[:] = np.nan

    qnn.quantize_model(nnx.Sequential(model().wide), QConfig("int8", "int8"), calibrate)  # without a warning


def test_a_model_that_does_not_run_says_so(monkeypatch):
    def broken(self, x):
        raise ValueError("no bits")

    monkeypatch.setattr(quantized.Linear, "__call__", broken)
    with pytest.warns(UserWarning, match="the quantized model does not run on the first inputs: no bits"):
        qnn.quantize_model(nnx.Sequential(model().wide), calibrate=[X])
