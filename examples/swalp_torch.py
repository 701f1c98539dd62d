"""Training in block floating point with averaged weights, in the manner of SWALP (Yang et al., 2019).

    python -m examples.swalp_torch

Everything has 8 bits and is rounded stochastically, with one exponent for each image or each row of weights. In the
second half of the training the weights after each epoch are averaged in full precision: the average is better than
any of them, since their rounding errors cancel out.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel

from examples.data import Data, load
from examples.models_torch import PreResNet20, fit, run_epoch
from examples.report import Curve, Epoch, arguments, finish, follow
from qtorch import BlockFloatingPoint
from qtorch.optim import OptimLP
from qtorch.quant import quantizer
from qtorch.recipes import sequential_lower

block = BlockFloatingPoint(wl=8, dim=0)
quant = quantizer(forward_number=block, forward_rounding="stochastic")


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


def train_fp32(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    torch.manual_seed(seed)
    model = PreResNet20()
    return fit(model, sgd(model), data, epochs, seed)


def train_low(data: Data, epochs: int, seed: int, averaged: list[Epoch]) -> Iterator[Epoch]:
    """Trains, and tests the averaged weights after each epoch as well."""
    torch.manual_seed(seed)
    model = sequential_lower(PreResNet20(), ["conv", "linear"], forward_number=block, backward_number=block)
    quantizers = dict.fromkeys(("weight_quant", "grad_quant", "momentum_quant", "acc_quant"), quant)
    optimizer = OptimLP(sgd(model), **quantizers, key=seed)
    for number, epoch in enumerate(fit(model, optimizer, data, epochs, seed), start=1):
        if number <= max(1, epochs // 2):
            average = AveragedModel(model, use_buffers=True)
        average.update_parameters(model)
        averaged.append(epoch._replace(test=run_epoch(data.test_batches(), average, F.cross_entropy)[1]))
        yield epoch


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 12, argv)
    data = load(options.limit)
    averaged: list[Epoch] = []
    curves = [
        follow("fp32", train_fp32(data, options.epochs, options.seed)),
        follow("block floating point", train_low(data, options.epochs, options.seed, averaged)),
        Curve("averaged", averaged),
    ]
    finish(f"SWALP's arithmetic on {data.name}, PyTorch", curves, options.plot or "swalp_torch.svg")


if __name__ == "__main__":
    main()
