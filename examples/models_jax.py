"""PreResNet20 with quantizers where a low-precision network has them, and its training loop, in JAX (flax nnx)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from examples.data import Data
from examples.gpt_jax import Ordinary, named
from examples.report import Epoch
from qjax.optim import apply_updates

Function = Callable[[jax.Array], jax.Array]
State = tuple[Any, Any, Any]  # parameters, running statistics, the optimizer's state

_INIT = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


def same(x: jax.Array) -> jax.Array:
    return x


class Block(nnx.Module):
    """Two convolutions, each after normalization and ReLU, around which the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int, quant: Function, functions: Any, rngs: nnx.Rngs) -> None:
        self.bn1 = norm(inputs, rngs)
        self.conv1 = conv(inputs, outputs, 3, rngs, stride)
        self.bn2 = norm(outputs, rngs)
        self.conv2 = conv(outputs, outputs, 3, rngs)
        self.shortcut = same if inputs == outputs else conv(inputs, outputs, 1, rngs, stride)
        self.quant, self.functions = quant, nnx.static(functions)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.quant(named("conv1", self.conv1, self.quant(self.functions.relu(self.bn1(x)))))
        y = self.quant(named("conv2", self.conv2, self.quant(self.functions.relu(self.bn2(y)))))
        return self.functions.add(y, named("shortcut", self.shortcut, x))


class PreResNet20(nnx.Module):
    """Residual network of 20 layers for images of 32x32 (He et al., "Identity Mappings in Deep Residual Networks").

    Args:
        quant: rounds activations and errors.
        edge_quant: rounds the images and the logits.
        functions: those between layers: `Ordinary`, or `qjax.reproducible`.
        rngs: for the weights.
    """

    def __init__(
        self, quant: Function = same, edge_quant: Function = same, functions: Any = Ordinary, *, rngs: nnx.Rngs
    ) -> None:
        self.conv = conv(3, 16, 3, rngs)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        sizes = [(i, o, 1 if i == o else 2) for i, o in pairwise(widths)]
        self.blocks = nnx.List([Block(*size, quant, functions, rngs) for size in sizes])
        self.bn = norm(64, rngs)
        self.fc = nnx.Linear(64, 10, rngs=rngs)
        self.quant = quant
        self.edge_quant = edge_quant
        self.functions = nnx.static(functions)

    def __call__(self, images: jax.Array) -> jax.Array:
        x = self.quant(named("conv", self.conv, self.edge_quant(images.transpose(0, 2, 3, 1))))
        for index, block in enumerate(self.blocks):
            x = named(f"blocks.{index}", block, x)
        x = self.quant(self.functions.relu(self.bn(x)))
        return self.edge_quant(named("fc", self.fc, self.functions.mean(x, (1, 2))))


def conv(inputs: int, outputs: int, size: int, rngs: nnx.Rngs, stride: int = 1) -> nnx.Conv:
    window = {"kernel_size": (size, size), "strides": stride, "padding": size // 2}
    return nnx.Conv(inputs, outputs, **window, use_bias=False, kernel_init=_INIT, rngs=rngs)


def norm(features: int, rngs: nnx.Rngs) -> nnx.BatchNorm:
    return nnx.BatchNorm(features, momentum=0.9, rngs=rngs)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class Trainer:
    """The jitted functions that train and test a model.

    Args:
        model: an nnx module of arrays of images.
        tx: the optimizer.
        criterion: the loss of the model's outputs and labels.
        loss_scale: what the loss is multiplied with before gradients are taken.
        apply: puts updates into parameters: a function of parameters, updates and the optimizer's state.
    """

    def __init__(
        self,
        model: nnx.Module,
        tx: optax.GradientTransformation,
        criterion: Callable[[jax.Array, jax.Array], jax.Array] = cross_entropy,
        loss_scale: float = 1.0,
        apply: Callable[[Any, Any, Any], Any] = apply_updates,
    ) -> None:
        self._models = []
        for mode in (model.train, model.eval):
            mode()
            graph, params, statistics = nnx.split(model, nnx.Param, ...)
            self._models.append(graph)
        self._tx, self._criterion, self._loss_scale, self._apply = tx, criterion, loss_scale, apply
        self.state: State = (params, statistics, tx.init(params))

    @partial(jax.jit, static_argnums=0)
    def step(self, state: State, images: Any, labels: Any) -> tuple[State, Any]:
        """One step; the new state, and the loss and the number of right answers."""
        params, statistics, inner = state
        (_, (statistics, result)), grads = jax.value_and_grad(self._loss, has_aux=True)(
            params, statistics, images, labels
        )
        updates, inner = self._tx.update(grads, inner, params)
        return (self._apply(params, updates, inner), statistics, inner), result

    def _loss(self, params: Any, statistics: Any, images: Any, labels: Any) -> tuple[jax.Array, Any]:
        model = nnx.merge(self._models[0], params, statistics, copy=True)
        outputs = model(images)
        loss = self._criterion(outputs, labels)
        after = nnx.split(model, nnx.Param, ...)[2]
        return loss * self._loss_scale, (after, (loss, right(outputs, labels)))

    @partial(jax.jit, static_argnums=0)
    def test(self, params: Any, statistics: Any, images: Any, labels: Any) -> jax.Array:
        """The number of right answers."""
        return right(nnx.merge(self._models[1], params, statistics)(images), labels)

    def trained(self) -> nnx.Module:
        """The model with its state, in evaluation."""
        params, statistics, _ = self.state
        return nnx.merge(self._models[1], params, statistics)


def right(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    return (outputs.argmax(-1) == labels).sum()


def plain_updates(params: Any, updates: Any, _: Any) -> Any:
    return optax.apply_updates(params, updates)


def accuracy(trainer: Trainer, params: Any, statistics: Any, data: Data) -> float:
    """Of the test images, in percent."""
    counts = [trainer.test(params, statistics, images, labels) for images, labels in data.test_batches()]
    return sum(map(int, counts)) / len(data.test_labels) * 100


def fit(trainer: Trainer, data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    """Trains a model and tests it after each epoch."""
    random = np.random.default_rng(seed)
    for _ in range(epochs):
        begin, results = perf_counter(), []
        for images, labels in data.batches(random):
            trainer.state, result = trainer.step(trainer.state, images, labels)
            results.append(result)
        losses, counts = np.asarray(results).T
        seconds = perf_counter() - begin
        train = counts.sum() / (len(counts) * len(labels)) * 100
        params, statistics, _ = trainer.state
        yield Epoch(float(losses.mean()), float(train), accuracy(trainer, params, statistics, data), seconds)
