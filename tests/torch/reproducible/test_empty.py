"""Tensors without elements in models with defined bits: what torch returns, or an error that names an argument."""

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from qtorch import reproducible

SHAPES = ((0,), (0, 3), (3, 0), (2, 3, 0, 4), (1, 3, 0, 0), (0, 3, 4, 4), (4, 6), (6,))
FUNCTIONS = {
    "chunk": lambda x: x.chunk(2),
    "chunk of the last axis": lambda x: torch.chunk(x, 3, -1),
    "split": lambda x: x.split(2),
    "split into ones": lambda x: torch.split(x, 1, -1),
    "split into nothing": lambda x: x.split(0),
    "split by sizes": lambda x: x.split([1] * x.shape[0]),
    "tensor_split": lambda x: torch.tensor_split(x, 3, -1),
    "tensor_split by ends": lambda x: x.tensor_split([1, 2]),
    "tensor_split by ends from the end": lambda x: x.tensor_split([-2, 9, 1]),
    "unbind": lambda x: x.unbind(),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 2),
    "adaptive_avg_pool2d to one": lambda x: F.adaptive_avg_pool2d(x, (1, 1)),
    "mean": lambda x: x.mean(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "linear": lambda x: F.linear(x, torch.ones(2, x.shape[-1])),
}


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_torch(name):
    for shape in SHAPES:
        x = torch.ones(shape)
        try:
            right = FUNCTIONS[name](x)
        except (RuntimeError, IndexError, ValueError):  # torch's for shapes that it does not take
            continue
        found = reproducible.convert(Model(FUNCTIONS[name]))(x)
        pairs = [(found, right)] if isinstance(right, torch.Tensor) else list(zip(found, right, strict=True))
        for one, other in pairs:
            assert one.shape == other.shape, shape
            assert torch.equal(one.isnan(), other.isnan()), shape
            assert torch.allclose(one, other, equal_nan=True), shape


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.chunk(0), "chunks=0; allowed is an int >= 1"),
        (lambda x: x.split(0), "split_size=0; allowed is an int >= 1"),
        (lambda x: x.tensor_split(0), "sections=0; allowed is an int >= 1"),
        (lambda x: F.adaptive_avg_pool2d(x, 0), r"output_size=\(0, 0\) has windows of several sizes"),
    ],
)
def test_divisions_by_zero_have_words(function, message):
    with pytest.raises(ValueError, match=message):
        reproducible.convert(Model(function))(torch.ones(1, 1, 4, 4))


def test_ends_of_all_kinds():
    x = torch.arange(12.0).reshape(6, 2)
    for first, second in product(range(-7, 9), repeat=2):
        found = reproducible.convert(Model(lambda x, ends=(first, second): x.tensor_split(ends)))(x)
        assert all(map(torch.equal, found, x.tensor_split((first, second))))
