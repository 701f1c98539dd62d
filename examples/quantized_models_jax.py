"""A residual network that can be quantized, its settings by bit width, and what is measured of it, in JAX (flax)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import qjax.nnx as qnn
from examples.data import Data
from examples.models_jax import Trainer, conv, fit, norm, plain_updates, right
from examples.quantized_report import CALIBRATION, Row, time_of
from examples.report import follow
from qcore.affine import AffineInteger
from qjax.quantization import HistogramObserver, PerChannelMinMaxObserver, QConfig, save


class Block(nnx.Module):
    """Two convolutions, around which the input is added through a third one; the image is half as high and wide."""

    def __init__(self, inputs: int, outputs: int, rngs: nnx.Rngs) -> None:
        self.conv1, self.bn1, self.relu = conv(inputs, outputs, 3, rngs, 2), norm(outputs, rngs), qnn.ReLU()
        self.conv2, self.bn2 = conv(outputs, outputs, 3, rngs), norm(outputs, rngs)
        self.conv3, self.bn3 = conv(inputs, outputs, 1, rngs, 2), norm(outputs, rngs)
        self.add = qnn.FloatFunctional()

    def results(self, x: Any) -> list[Any]:
        first = self.relu(self.bn1(self.conv1(x)))
        second = self.bn2(self.conv2(first))
        shortcut = self.bn3(self.conv3(x))
        return [first, second, shortcut, self.add.add_relu(second, shortcut)]


class ResidualCNN(nnx.Module):
    """Residual network of seven convolutions and a linear layer, for images of 32x32.

    It runs in floats until it is converted, then in integers from `quant` to `dequant`. Names and numbers are those of
    `examples.quantized_models_torch`, but for the order of axes: channels are last, from `quant` on.
    """

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.quant, self.dequant = qnn.QuantStub(), qnn.DeQuantStub()
        self.conv, self.bn, self.relu = conv(3, 16, 3, rngs, 2), norm(16, rngs), qnn.ReLU()
        self.blocks = nnx.List([Block(16, 32, rngs), Block(32, 64, rngs)])
        self.fc = nnx.Linear(64, 10, rngs=rngs)

    def results(self, images: jax.Array) -> list[Any]:
        """What each layer returns, in order; the last one are the logits."""
        found: list[Any] = [self.quant(images.transpose(0, 2, 3, 1))]
        found.append(self.relu(self.bn(self.conv(found[-1]))))
        for block in self.blocks:
            found += block.results(found[-1])
        found.append(found[-1].mean((1, 2)))
        found.append(self.fc(found[-1]))
        return found

    def __call__(self, images: jax.Array) -> jax.Array:
        return self.dequant(self.results(images)[-1])


@nnx.jit
def run(model: Any, images: Any) -> jax.Array:
    return model(images)


def trained(model: nnx.Module, data: Data, epochs: int, seed: int, name: str = "fp32") -> Any:
    """The model after its training, in evaluation."""
    trainer = Trainer(model, optax.adam(0.002), apply=plain_updates)
    follow(name, fit(trainer, data, epochs, seed))
    return trainer.trained()


def weight_observer(bits: int) -> PerChannelMinMaxObserver:
    """Integers of so many bits, with a scale for each output channel."""
    return PerChannelMinMaxObserver(dtype=AffineInteger.of_width(bits), qscheme="per_channel_symmetric")


def settings(bits: int, weight_bits: int | None = None) -> QConfig:
    """Integers of so many bits for what layers return, with one scale for all of it, and for weights.

    Args:
        bits: for results.
        weight_bits: for weights; None for as many.
    """
    results = HistogramObserver(dtype=AffineInteger.of_width(bits, signed=False))
    return QConfig(results, weight_observer(weight_bits or bits))


def calibrated(model: nnx.Module, qconfig: QConfig, images: np.ndarray) -> nnx.Module:
    """A copy of a model with observers that have seen what its layers return for images."""
    prepared = qnn.prepare(model, qconfig)
    for first in range(0, min(CALIBRATION, len(images)), 64):
        run(prepared, images[first : first + 64])
    return prepared


def accuracy(model: nnx.Module, data: Data) -> float:
    """The test accuracy in percent."""
    counts = [right(run(model, images), labels) for images, labels in data.test_batches()]
    return sum(map(int, counts)) / len(data.test_labels) * 100


def measured(name: str, model: nnx.Module, data: Data) -> Row:
    """Accuracy, the size of a safetensors file of the model, and the time that a batch of test images takes."""
    images, _ = next(data.test_batches())
    arrays = {".".join(map(str, path)): one.get_value() for path, one in nnx.to_flat_state(nnx.state(model))}
    with TemporaryDirectory() as folder:
        save(file := Path(folder) / "model.safetensors", arrays)
        size = file.stat().st_size
    return Row(name, accuracy(model, data), size, time_of(lambda: run(model, images).block_until_ready()))
