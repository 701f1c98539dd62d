"""What results are compared with is not changed by the model's code; tests/parity/test_twins.py has the rest."""

import pytest
import torch
from torch import nn

from qtorch.quantization import quantize_model

X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))


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
