"""CIFAR10 in low precision: QPyTorch's tutorial, on `qtorch`.

    python -m examples.cifar10_torch
    python -m examples.cifar10_torch --epochs 2 --limit 640 --plot curves.png

The formats are those of Wang et al., "Training Deep Neural Networks with 8-bit Floating Point Numbers": 8 bits for
weights, activations, errors and gradients, 16 bits for momentum and the accumulators of the weights, which are rounded
stochastically; the loss is multiplied by 1000, so that gradients are not too small for 8 bits.
The learning rate falls to 0 on a cosine, from epoch to epoch.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from examples.data import Data, load
from examples.models_torch import PreResNet20, fit
from examples.report import Epoch, arguments, finish, follow
from qtorch import FloatingPoint
from qtorch.optim import OptimLP
from qtorch.quant import Quantizer, quantizer

LOSS_SCALE = 1000

# Two floating point formats
bit_8 = FloatingPoint(exp=5, man=2)
bit_16 = FloatingPoint(exp=6, man=9)

# Quantization functions
weight_quant = quantizer(forward_number=bit_8, forward_rounding="nearest")
grad_quant = quantizer(forward_number=bit_8, forward_rounding="nearest")
momentum_quant = quantizer(forward_number=bit_16, forward_rounding="stochastic")
acc_quant = quantizer(forward_number=bit_16, forward_rounding="stochastic")


def act_error_quant() -> Quantizer:
    """Rounds activations on the way forward and errors on the way back."""
    return Quantizer(bit_8, bit_8, forward_rounding="nearest", backward_rounding="nearest")


def edge_quant() -> Quantizer:
    return Quantizer(bit_16, bit_16, "nearest", "nearest")


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


def train_fp32(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    torch.manual_seed(seed)
    model = PreResNet20()
    optimizer = sgd(model)
    return fit(model, optimizer, data, epochs, seed, scheduler=CosineAnnealingLR(optimizer, epochs))


def train_low(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    torch.manual_seed(seed)
    model = PreResNet20(act_error_quant, edge_quant)
    optimizer = OptimLP(
        sgd(model),
        weight_quant=weight_quant,
        grad_quant=grad_quant,
        momentum_quant=momentum_quant,
        acc_quant=acc_quant,
        grad_scaling=1 / LOSS_SCALE,
        key=seed,
    )
    scheduler = CosineAnnealingLR(optimizer, epochs)
    return fit(model, optimizer, data, epochs, seed, loss_scale=LOSS_SCALE, scheduler=scheduler)


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 10, argv)
    data = load(options.limit)
    curves = [
        follow(name, train(data, options.epochs, options.seed))
        for name, train in (("fp32", train_fp32), ("low precision", train_low))
    ]
    finish(f"PreResNet20 on {data.name}, PyTorch", curves, options.plot or "cifar10_torch.svg")


if __name__ == "__main__":
    main()
