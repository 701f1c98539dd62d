"""quantize_model names layers whose results are farther from the floats' than rounding makes them."""

import re

import numpy as np
import pytest
from flax import nnx
from flax_support import layer_of
from module_packages import Flax, Torch

X = np.random.default_rng(0).standard_normal((32, 4), np.float32)
SETTINGS = {
    "integers": lambda package: None,
    "formats": lambda package: package.QConfig("e4m3fn", "e4m3fn"),
    "weights alone": lambda package: package.QConfig(None, "mxfp8_e4m3"),
}
NAMED = r"layer '([\d.]+)[^']*' \(-?\d+\.\d dB; rounding alone has \d+\.\d dB\)"


def model(of):
    """In flax with layers of several axes."""
    layers = [of.linear(), of.ReLU(), of.linear()]
    if of is Flax:
        layers += layer_of(nnx.LinearGeneral, 4, (2, 4)), layer_of(nnx.LinearGeneral, (2, 4), 4, axis=(-2, -1))
    return of.ready(lambda: of.Sequential(*layers))


CASES = [(Torch, name) for name in SETTINGS] + [(Flax, "integers")]
CASES += [pytest.param(Flax, name, marks=pytest.mark.heavy) for name in ("formats", "weights alone")]


@pytest.mark.parametrize(("of", "name"), CASES)
def test_a_layer_that_computes_something_else_is_named(monkeypatch, of, name):
    settings, data = SETTINGS[name](of.package), [of.array(X)]
    of.quantize_model(model(of), settings, data)  # without a warning
    kind = of.layers.Linear if name == "integers" else of.RoundedLayer
    call = getattr(kind, of.called)
    monkeypatch.setattr(kind, of.called, lambda self, x: call(self, of.flip(x)))
    with pytest.warns(UserWarning, match="larger errors than rounding has") as caught:
        of.quantize_model(model(of), settings, data)
    assert {path[0] for path in re.findall(NAMED, str(caught[0].message))} >= {"0", "2"} | (
        {"3"} if of is Flax else set()
    )


@pytest.mark.parametrize("of", [Torch, Flax])
def test_a_model_that_does_not_run_says_so(monkeypatch, of):
    def broken(self, x):
        raise ValueError("no bits")

    monkeypatch.setattr(of.layers.Linear, of.called, broken)
    with pytest.warns(UserWarning, match="the quantized model does not run on the first inputs: no bits"):
        of.quantize_model(of.Sequential(of.linear()), calibrate=[of.array(X)])
