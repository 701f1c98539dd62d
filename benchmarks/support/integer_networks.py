"""Networks and layers that are quantized by torch.ao and by qtorch alike: `package` is the one that does it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn


class Quantized(NamedTuple):
    """A quantized model, and an input of floats."""

    model: nn.Module
    x: torch.Tensor


class _Block(nn.Module):
    """Two convolutions beside a skip, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int, functional: Callable[[], Any]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(outputs), nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.skip: nn.Sequential | None = None
        if stride > 1:
            self.skip = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.functional = functional()

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.functional.add_relu(y, x if self.skip is None else self.skip(x))


class _ResNet18(nn.Module):
    def __init__(self, functional: Callable[[], Any]) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()
        self.pool, widths = nn.MaxPool2d(3, 2, 1), (64, 64, 128, 256, 512)
        pairs = itertools.pairwise(widths)
        self.blocks = nn.Sequential(
            *(
                _Block(*sizes, functional)
                for before, width in pairs
                for sizes in ((before, width, 1 + (before < width)), (width, width, 1))
            )
        )
        self.mean, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(512, 1000)

    def forward(self, x: Any) -> Any:
        x = self.blocks(self.pool(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.mean(x), 1))


def _calibrated(package: Any, model: nn.Module, groups: list[list[str]], x: torch.Tensor) -> Quantized:
    model = package.QuantWrapper(package.fuse_modules(model.eval(), groups)).eval()
    model.qconfig = package.get_default_qconfig("fbgemm")
    prepared = package.prepare(model)
    prepared(x)
    return Quantized(package.convert(prepared), x)


def resnet18(package: Any, functional: Callable[[], Any]) -> Quantized:
    """ResNet-18, calibrated with its input of two small images."""
    torch.manual_seed(0)
    model, groups = _ResNet18(functional), [["conv1", "bn1", "relu"]]
    for number, block in enumerate(model.blocks):
        place = f"blocks.{number}"
        groups += [[f"{place}.{part}" for part in ("conv1", "bn1", "relu")], [f"{place}.conv2", f"{place}.bn2"]]
        groups += [] if block.skip is None else [[f"{place}.skip.0", f"{place}.skip.1"]]
    return _calibrated(package, model, groups, torch.randn(2, 3, 32, 32))


def convolutions(package: Any) -> Quantized:
    """Eight convolutions of 16 channels, each with a ReLU, of one image of 16 x 16."""
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]
    groups = [[str(number), str(number + 1)] for number in range(0, 16, 2)]
    return _calibrated(package, nn.Sequential(*layers), groups, torch.randn(1, 16, 16, 16))


def conv_bn_relu(package: Any) -> Quantized:
    """A convolution with a batch norm and a ReLU, of one image of 32 x 32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    return _calibrated(package, model, [["0", "1", "2"]], torch.randn(1, 3, 32, 32))


def dynamic(package: Any, make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Quantized:
    """A layer of floats whose weights are integers."""
    torch.manual_seed(0)
    layer = make()
    model = package.quantize_dynamic(nn.Sequential(layer).eval(), {type(layer)}, torch.qint8)
    return Quantized(model, torch.randn(shape, generator=torch.Generator().manual_seed(1)))
