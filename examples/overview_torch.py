"""What QPyTorch's functionality overview shows, on `qtorch`: formats, autograd, optimizers, whole models.

    python -m examples.overview_torch

After the overview, its logistic regression is trained on images, in full and in low precision.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn, sigmoid
from torch.optim import SGD

from examples.data import Data, load
from examples.models_torch import fit
from examples.report import Epoch, arguments, finish, follow
from qtorch import FixedPoint, FloatingPoint
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer, block_quantize, fixed_point_quantize, float_quantize
from qtorch.recipes import sequential_lower

forward_num = FixedPoint(wl=4, fl=2)
backward_num = FloatingPoint(exp=5, man=2)


def low(x: torch.Tensor) -> torch.Tensor:
    """Rounds weights and gradients."""
    return float_quantize(x, exp=5, man=2, rounding="nearest")


def high(x: torch.Tensor) -> torch.Tensor:
    """Rounds momenta and accumulators."""
    return float_quantize(x, exp=6, man=9, rounding="nearest")


class LinearLP(nn.Module):
    """A low-precision logistic regression."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Linear(5, 1)
        self.Q = Quantizer(
            forward_number=forward_num,
            backward_number=backward_num,
            forward_rounding="nearest",
            backward_rounding="stochastic",
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.Q(self.W(x))


class LinearFP(nn.Module):
    """The same in full precision."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.W(x)


def quantization() -> None:
    """Three kinds of formats, two ways of rounding."""
    x = torch.rand(5)
    print(f"Full Precision: {x}")
    print(f"Low Precision: {low(x)}")
    print(f"Nearest: {float_quantize(x, exp=5, man=2, rounding='nearest')}")
    print(f"Stochastic: {float_quantize(x, exp=5, man=2, rounding='stochastic')}")
    print(f"Fixed point: {fixed_point_quantize(x, wl=4, fl=2, rounding='nearest')}")
    print(f"Block floating point: {block_quantize(x, wl=4, rounding='nearest')}")


def autograd() -> LinearLP:
    """Formats of their own for values and for gradients."""
    model = LinearLP()
    output = model(torch.rand(5))
    print(f"Low Precision Output: {output}")
    nn.BCELoss()(sigmoid(output), torch.Tensor([0])).backward()
    return model


def optimization(model: LinearLP) -> None:
    """Weights, gradients and momenta in low precision."""
    optimizer = OptimLP(
        SGD(model.parameters(), momentum=0.9, lr=0.1), weight_quant=low, grad_quant=low, momentum_quant=high
    )
    print(f"Weight before optimizer stepping: \n{model.W.weight.data}")
    print(f"Gradient before optimizer stepping: \n{model.W.weight.grad}\n")
    optimizer.step()
    print(f"Weight after optimizer stepping: \n{model.W.weight.data}")
    print(f"Gradient after optimizer stepping: \n{model.W.weight.grad}\n")
    optimizer.zero_grad()


def accumulation(model: LinearLP) -> None:
    """Steps that add up in accumulators of higher precision, from which the weights are rounded."""
    optimizer = OptimLP(
        SGD(model.parameters(), momentum=0, lr=0.1),
        weight_quant=low,
        grad_quant=low,
        momentum_quant=high,
        acc_quant=high,
    )
    print(f"Weight before optimizer stepping: \n{model.W.weight.data}\n")
    optimizer.step()
    print(f"after stepping, high precision accumulator : \n{optimizer.weight_acc[model.W.weight]}\n")
    print(f"after stepping, low precision weight : \n{model.W.weight.data}\n")
    optimizer.zero_grad()


def helper() -> None:
    """A low-precision model from a full-precision one."""
    model = LinearFP()
    lowered = sequential_lower(model, layer_types=["linear"], forward_number=forward_num, backward_number=backward_num)
    print(f"Full Precision Model: \n{model}")
    print(f"Low Precision Model: \n{lowered}")


def train(data: Data, epochs: int, seed: int, lowered: bool) -> Iterator[Epoch]:
    """Logistic regression on images."""
    torch.manual_seed(seed)
    model: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    if lowered:
        numbers = {"forward_number": FixedPoint(wl=8, fl=4), "backward_number": backward_num}
        model = sequential_lower(model, layer_types=["linear"], **numbers)
    optimizer: torch.optim.Optimizer = SGD(model.parameters(), momentum=0.9, lr=1e-4)
    if lowered:
        optimizer = OptimLP(optimizer, weight_quant=low, grad_quant=low, momentum_quant=high, acc_quant=high)
    return fit(model, optimizer, data, epochs, seed, F.cross_entropy)


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 10, argv)
    torch.manual_seed(options.seed)
    quantization()
    optimization(autograd())
    accumulation(autograd())
    helper()
    data = load(options.limit)
    curves = [
        follow(name, train(data, options.epochs, options.seed, lowered))
        for name, lowered in (("fp32", False), ("low precision", True))
    ]
    finish(f"Logistic regression on {data.name}, PyTorch", curves, options.plot or "overview_torch.svg")


if __name__ == "__main__":
    main()
