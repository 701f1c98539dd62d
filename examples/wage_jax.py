"""Training in fixed point, in the manner of WAGE (Wu et al., "Training and Inference with Integers", 2018).

    python -m examples.wage_jax

Formats and network are those of `examples.wage_torch`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from examples.data import Data, load
from examples.models_jax import Function, Trainer, fit, plain_updates, same
from examples.report import Epoch, arguments, finish, follow
from qjax import FixedPoint, quantizer
from qjax.optim import low_precision

WEIGHT_BITS, BITS = 2, 8
LEARNING_RATE = 8.0  # in steps of the accumulator, for the largest gradients
WIDTHS = (3, 16, 32, 64)


def fixed(bits: int) -> FixedPoint:
    """Numbers between -1 and 1."""
    return FixedPoint(wl=bits, fl=bits - 1, symmetric=True)


def normalized(x: Any) -> jax.Array:
    """x, divided by the power of two that is nearest to its largest magnitude."""
    largest = jnp.abs(x).max()
    return jnp.ldexp(x, -jnp.where(largest > 0, jnp.round(jnp.log2(largest)), 0).astype(jnp.int32))


# Of images, whose pixels are alike; larger ones would drive all sums out of range
pixel_quant = quantizer(fixed(BITS), forward_rounding="nearest")
act_error_quant = quantizer(fixed(BITS), fixed(BITS), "nearest", "nearest", True, [normalized])
# The steps that weights take: multiples of the accumulator's
gradient_quant = quantizer(FixedPoint(wl=BITS, fl=BITS - 1, clamp=False), forward_rounding="stochastic")


class Layer(nnx.Module):
    """A layer without bias, whose output is divided by a power of two and rounded, and so is its error."""

    def __init__(self, make: Any, inputs: int, quantized: bool) -> None:
        smallest = 1.5 * 2.0 ** (1 - WEIGHT_BITS)  # weights up to here are not all rounded to 0
        limit = math.sqrt(6 / inputs)
        self.divisor = 1.0
        if quantized:
            self.divisor = max(2.0 ** round(math.log2(smallest / limit)), 1.0)
            limit = max(limit, smallest)
        uniform = nnx.initializers.uniform(2 * limit)
        self.layer = make(use_bias=False, kernel_init=lambda *told, **named: uniform(*told, **named) - limit)
        self.quant: Function = act_error_quant if quantized else same

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.quant(self.layer(x) / self.divisor)


class Network(nnx.Module):
    """Three convolutions, each followed by ReLU and pooling, and a linear layer."""

    def __init__(self, quantized: bool, rngs: nnx.Rngs) -> None:
        def conv(inputs: int, outputs: int) -> Layer:
            def make(**options: Any) -> nnx.Conv:
                return nnx.Conv(inputs, outputs, (3, 3), padding=1, rngs=rngs, **options)

            return Layer(make, inputs * 9, quantized)

        def linear(**options: Any) -> nnx.Linear:
            return nnx.Linear(WIDTHS[-1] * 16, 10, rngs=rngs, **options)

        self.convolutions = nnx.List([conv(inputs, outputs) for inputs, outputs in pairwise(WIDTHS)])
        self.linear = Layer(linear, WIDTHS[-1] * 16, quantized)
        self.quantized = quantized

    def __call__(self, images: jax.Array) -> jax.Array:
        x = images.transpose(0, 2, 3, 1)
        if self.quantized:
            x = pixel_quant(x / 8)
        for convolution in self.convolutions:
            x = nnx.max_pool(nnx.relu(convolution(x)), (2, 2), (2, 2))
        return self.linear(x.reshape(len(x), -1))


def squared_error(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.square(outputs - jax.nn.one_hot(labels, 10)).sum() / 2


def train_fp32(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    model = Network(quantized=False, rngs=nnx.Rngs(seed))
    return fit(Trainer(model, optax.sgd(0.01, momentum=0.9), apply=plain_updates), data, epochs, seed)


def train_fixed(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    model = Network(quantized=True, rngs=nnx.Rngs(seed))
    scale = LEARNING_RATE * 2.0 ** (1 - BITS)
    tx = optax.chain(
        optax.stateless_with_tree_map(lambda grad, _: normalized(grad) * scale),
        low_precision(optax.sgd(1.0), fixed(WEIGHT_BITS), grad_quant=gradient_quant, acc_quant=fixed(BITS), key=seed),
    )
    return fit(Trainer(model, tx, squared_error), data, epochs, seed)


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 20, argv)
    data = load(options.limit)
    curves = [
        follow(name, train(data, options.epochs, options.seed))
        for name, train in (("fp32", train_fp32), ("fixed point", train_fixed))
    ]
    finish(f"WAGE's arithmetic on {data.name}, JAX", curves, options.plot or "wage_jax.svg")


if __name__ == "__main__":
    main()
