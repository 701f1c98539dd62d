"""Training in fixed point, in the manner of WAGE (Wu et al., "Training and Inference with Integers", 2018).

    python -m examples.wage_torch

Weights have 2 bits, activations, gradients and errors 8, all of them symmetric around 0. There is no normalization:
weights start large enough for 2 bits, and each layer's output is divided by a power of two that makes up for that.
Errors and gradients are divided by the power of two that is nearest to their largest magnitude; the optimizer adds
gradients up in accumulators of 8 bits, which are rounded stochastically, and there is no momentum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from examples.data import Data, load
from examples.models_torch import fit
from examples.report import Epoch, arguments, finish, follow
from qtorch import FixedPoint
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer, fixed_point_quantize

WEIGHT_BITS, BITS = 2, 8
LEARNING_RATE = 8.0  # in steps of the accumulator, for the largest gradients
WIDTHS = (3, 16, 32, 64)


def fixed(bits: int) -> FixedPoint:
    """Numbers between -1 and 1."""
    return FixedPoint(wl=bits, fl=bits - 1, symmetric=True)


def normalized(x: torch.Tensor) -> torch.Tensor:
    """x, divided by the power of two that is nearest to its largest magnitude."""
    largest = x.abs().amax()
    return x / torch.where(largest > 0, torch.exp2(largest.log2().round()), 1)


def gradient_quant(x: torch.Tensor) -> torch.Tensor:
    """The steps that weights take: multiples of the accumulator's, rounded stochastically."""
    steps = normalized(x) * LEARNING_RATE * 2.0 ** (1 - BITS)
    return fixed_point_quantize(steps, wl=BITS, fl=BITS - 1, clamp=False, rounding="stochastic")


class Pixels(nn.Module):
    """Images as 8-bit numbers; their pixels are alike, and larger ones would drive all sums out of range."""

    def __init__(self) -> None:
        super().__init__()
        self.quant = Quantizer(fixed(BITS), forward_rounding="nearest")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.quant(images / 8)


class Layer(nn.Module):
    """A layer without bias, whose output is divided by a power of two and rounded, and so is its error."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, quantized: bool) -> None:
        super().__init__()
        self.layer = layer
        inputs = layer.weight[0].numel()
        smallest = 1.5 * 2.0 ** (1 - WEIGHT_BITS)  # weights up to here are not all rounded to 0
        limit = math.sqrt(6 / inputs)
        self.divisor = 1.0
        if quantized:
            self.divisor = max(2.0 ** round(math.log2(smallest / limit)), 1.0)
            limit = max(limit, smallest)
        nn.init.uniform_(layer.weight, -limit, limit)
        quantizer = Quantizer(fixed(BITS), fixed(BITS), "nearest", "nearest", True, [normalized])
        self.quant = quantizer if quantized else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.quant(self.layer(x) / self.divisor)


def network(quantized: bool) -> nn.Sequential:
    """Three convolutions, each followed by ReLU and pooling, and a linear layer."""
    layers: list[nn.Module] = [Pixels()] if quantized else []
    for inputs, outputs in pairwise(WIDTHS):
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        layers += [Layer(convolution, quantized), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), Layer(nn.Linear(WIDTHS[-1] * 16, 10, bias=False), quantized))


def squared_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (outputs - F.one_hot(labels, 10)).square().sum() / 2


def train_fp32(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    torch.manual_seed(seed)
    model = network(quantized=False)
    return fit(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), data, epochs, seed)


def train_fixed(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    torch.manual_seed(seed)
    model = network(quantized=True)
    optimizer = OptimLP(
        torch.optim.SGD(model.parameters(), lr=1.0),
        weight_quant=fixed(WEIGHT_BITS),
        grad_quant=gradient_quant,
        acc_quant=fixed(BITS),
    )
    return fit(model, optimizer, data, epochs, seed, squared_error)


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 20, argv)
    data = load(options.limit)
    curves = [
        follow(name, train(data, options.epochs, options.seed))
        for name, train in (("fp32", train_fp32), ("fixed point", train_fixed))
    ]
    finish(f"WAGE's arithmetic on {data.name}, PyTorch", curves, options.plot or "wage_torch.svg")


if __name__ == "__main__":
    main()
