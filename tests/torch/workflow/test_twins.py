"""quantize_model names layers whose results are farther from the floats' than rounding makes them."""

import pytest
import torch
from torch import nn

from qtorch.nn import quantized
from qtorch.nn.rounded import RoundedLayer
from qtorch.quantization import QConfig, quantize_model

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
SETTINGS = {
    "integers": (quantized.Linear, None),
    "formats": (RoundedLayer, QConfig("e4m3fn", "e4m3fn")),
    "weights alone": (RoundedLayer, QConfig(None, "mxfp8_e4m3")),
}
NAMED = r"larger errors than rounding has: layer '\d(\.module)?' \(-?\d+\.\d dB; rounding alone has \d+\.\d dB\)"


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_layer_that_computes_something_else_is_named(monkeypatch, name):
    kind, settings = SETTINGS[name]
    quantize_model(model(), settings, [X])  # without a warning
    forward = kind.forward

    def without_bias(self, x):
        bias, self.bias = self.bias, None
        result = forward(self, x)
        self.bias = bias
        return result

    monkeypatch.setattr(kind, "forward", without_bias)
    with pytest.warns(UserWarning, match=NAMED):
        quantize_model(model(), settings, [X])


class Sums(nn.Module):
    """Code that changes results in place, and a layer in two places."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.one(x)
        y += self.two(x)
        return self.two(y.relu_())


@pytest.mark.filterwarnings("ignore:.*ran 2 times")
def test_results_that_are_changed_in_place():
    quantize_model(Sums().eval(), calibrate=[X])  # without a warning


LENGTHS = []  # of the caches that the model below is called with


class Cache(list):
    """What torch does not take for a tree of tensors."""


class Cached(nn.Module):
    """Code that changes an argument, as models of text do with their cache, and draws random numbers."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, cache):
        LENGTHS.append(len(cache))
        cache.append(self.one(x))
        return self.two(torch.cat(list(cache), -2) + torch.rand(()))


def test_arguments_that_a_model_changes():
    quantize_model(Cached().eval(), calibrate=[(X, Cache())])  # without a warning
    assert len(LENGTHS) > 3
    assert set(LENGTHS) == {0}


def test_a_model_that_does_not_run_says_so(monkeypatch):
    def broken(self, x):
        raise ValueError("no bits")

    monkeypatch.setattr(quantized.Linear, "forward", broken)
    with pytest.warns(UserWarning, match="the quantized model does not run on the first inputs: no bits"):
        quantize_model(model(), calibrate=[X])
