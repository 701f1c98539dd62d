"""A residual network that can be quantized, its settings by bit width, and what is measured of it, in PyTorch."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from examples.data import Data
from examples.models_torch import Make, fit, run_epoch
from examples.quantized_report import CALIBRATION, Row, time_of
from examples.report import follow
from qcore.affine import AffineInteger
from qtorch.nn.quantized import FloatFunctional
from qtorch.quantization import (
    DeQuantStub,
    HistogramObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QuantStub,
    prepare,
    save,
)


class Block(nn.Module):
    """Two convolutions, around which the input is added through a third one; the image is half as high and wide."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = conv(inputs, outputs, 3, 2), nn.BatchNorm2d(outputs), nn.ReLU()
        self.conv2, self.bn2 = conv(outputs, outputs, 3), nn.BatchNorm2d(outputs)
        self.conv3, self.bn3 = conv(inputs, outputs, 1, 2), nn.BatchNorm2d(outputs)
        self.add = FloatFunctional()

    def results(self, x: Any) -> list[Any]:
        first = self.relu(self.bn1(self.conv1(x)))
        second = self.bn2(self.conv2(first))
        shortcut = self.bn3(self.conv3(x))
        return [first, second, shortcut, self.add.add_relu(second, shortcut)]


class ResidualCNN(nn.Module):
    """Residual network of seven convolutions and a linear layer, for images of 32x32.

    It runs in floats until it is converted, then in integers from `quant` to `dequant`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.bn, self.relu = conv(3, 16, 3, 2), nn.BatchNorm2d(16), nn.ReLU()
        self.blocks = nn.ModuleList([Block(16, 32), Block(32, 64)])
        self.fc = nn.Linear(64, 10)

    def results(self, images: Any) -> list[Any]:
        """What each layer returns, in order; the last one are the logits."""
        found = [self.quant(images)]
        found.append(self.relu(self.bn(self.conv(found[-1]))))
        for block in self.blocks:
            found += block.results(found[-1])
        found.append(found[-1].mean((2, 3)))
        found.append(self.fc(found[-1]))
        return found

    def forward(self, images: Any) -> torch.Tensor:
        return self.dequant(self.results(images)[-1])


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def trained(make: Make, data: Data, epochs: int, seed: int, name: str = "fp32") -> nn.Module:
    """The model that a function makes, after its training, in evaluation."""
    torch.manual_seed(seed)
    model = make()
    follow(name, fit(model, torch.optim.Adam(model.parameters(), 0.002), data, epochs, seed))
    return model.eval()


def weight_observer(bits: int) -> Any:
    """Integers of so many bits, with a scale for each output channel."""
    return PerChannelMinMaxObserver.with_args(dtype=AffineInteger.of_width(bits), qscheme=torch.per_channel_symmetric)


def settings(bits: int, weight_bits: int | None = None) -> QConfig:
    """Integers of so many bits for what layers return, with one scale for all of it, and for weights.

    Args:
        bits: for results.
        weight_bits: for weights; None for as many.
    """
    results = HistogramObserver.with_args(dtype=AffineInteger.of_width(bits, signed=False))
    return QConfig(results, weight_observer(weight_bits or bits))


def calibrated(model: nn.Module, qconfig: QConfig, images: np.ndarray) -> nn.Module:
    """A copy of a model with observers that have seen what its layers return for images."""
    model.qconfig = qconfig  # type: ignore[assignment]
    prepared = prepare(model)
    with torch.no_grad():
        for batch in torch.from_numpy(images[:CALIBRATION]).split(64):
            prepared(batch)
    return prepared


def accuracy(model: nn.Module, data: Data) -> float:
    """The test accuracy in percent."""
    return run_epoch(data.test_batches(), model, F.cross_entropy)[1]


def measured(name: str, model: nn.Module, data: Data) -> Row:
    """Accuracy, the size of a safetensors file of the model, and the time that a batch of test images takes."""
    images = torch.from_numpy(next(data.test_batches())[0])
    with TemporaryDirectory() as folder, torch.no_grad():
        save(file := Path(folder) / "model.safetensors", model.state_dict())
        return Row(name, accuracy(model, data), file.stat().st_size, time_of(lambda: model(images)))
