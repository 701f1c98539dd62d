"""PreResNet20 with quantizers where a low-precision network has them, and its training loop, in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from examples.data import Data
from examples.report import Epoch

Make = Callable[[], nn.Module]


class Block(nn.Module):
    """Two convolutions, each after normalization and ReLU, around which the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int, quant: Make) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.shortcut = nn.Identity() if inputs == outputs else conv(inputs, outputs, 1, stride)
        self.quant = quant()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.quant(self.conv1(self.quant(F.relu(self.bn1(x)))))
        y = self.quant(self.conv2(self.quant(F.relu(self.bn2(y)))))
        return y + self.shortcut(x)


class PreResNet20(nn.Module):
    """Residual network of 20 layers for images of 32x32 (He et al., "Identity Mappings in Deep Residual Networks").

    Args:
        quant: makes what rounds activations and errors; called once for each block.
        edge_quant: makes what rounds the images and the logits.
    """

    def __init__(self, quant: Make = nn.Identity, edge_quant: Make = nn.Identity) -> None:
        super().__init__()
        self.conv = conv(3, 16, 3)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(*(Block(i, o, 1 if i == o else 2, quant) for i, o in pairwise(widths)))
        self.bn = nn.BatchNorm2d(64)
        self.fc = nn.Linear(64, 10)
        self.quant = quant()
        self.edge_quant = edge_quant()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.quant(self.conv(self.edge_quant(x)))
        x = self.quant(F.relu(self.bn(self.blocks(x))))
        return self.edge_quant(self.fc(x.mean((2, 3))))


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out")
    return layer


def run_epoch(
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    model: nn.Module,
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    optimizer: torch.optim.Optimizer | None = None,
    loss_scale: float = 1.0,
) -> tuple[float, float]:
    """Goes through images once; trains if there is an optimizer.

    Returns:
        The mean loss, and the accuracy in percent.
    """
    model.train(optimizer is not None)
    loss_sum, correct, total = 0.0, 0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for images, labels in batches:
            inputs, targets = torch.from_numpy(images), torch.from_numpy(labels)
            output = model(inputs)
            loss = criterion(output, targets)
            loss_sum += loss.item() * len(targets)
            correct += int((output.argmax(1) == targets).sum())
            total += len(targets)
            if optimizer is not None:
                optimizer.zero_grad()
                (loss * loss_scale).backward()
                optimizer.step()
    return loss_sum / total, correct / total * 100


def fit(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Data,
    epochs: int,
    seed: int,
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.cross_entropy,
    loss_scale: float = 1.0,
    scheduler: LRScheduler | None = None,
) -> Iterator[Epoch]:
    """Trains a model and tests it after each epoch."""
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        begin = perf_counter()
        loss, train = run_epoch(data.batches(random), model, criterion, optimizer, loss_scale)
        seconds = perf_counter() - begin
        if scheduler is not None:
            scheduler.step()
        _, test = run_epoch(data.test_batches(), model, criterion)
        yield Epoch(loss, train, test, seconds)
