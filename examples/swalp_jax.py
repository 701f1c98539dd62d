"""Training in block floating point with averaged weights, in the manner of SWALP (Yang et al., 2019).

    python -m examples.swalp_jax

Formats are those of `examples.swalp_torch`; the model is PreResNet20 as it is, lowered by a transformation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from examples.data import Data, load
from examples.models_jax import PreResNet20, Trainer, accuracy, fit, plain_updates
from examples.report import Curve, Epoch, arguments, finish, follow
from qjax import BlockFloatingPoint, quantizer
from qjax.optim import low_precision
from qjax.recipes import lower

block = BlockFloatingPoint(wl=8, dim=0)
quant = quantizer(forward_number=block, forward_rounding="stochastic")


class Lowered(nnx.Module):
    """A model whose convolutions and linear layers round their outputs, each time with another key."""

    def __init__(self, model: nnx.Module, rngs: nnx.Rngs) -> None:
        self.model = model
        self.keys = rngs.quantize.fork()

    def __call__(self, images: jax.Array) -> jax.Array:
        graph, state = nnx.split(self.model)

        def forward(state: Any, images: jax.Array) -> tuple[jax.Array, Any]:
            model: Any = nnx.merge(graph, state, copy=True)
            return model(images), nnx.state(model, nnx.BatchStat)

        lowered = lower(forward, ["conv", "linear"], forward_number=block, backward_number=block)
        outputs, statistics = lowered(state, images, key=self.keys())
        nnx.update(self.model, statistics)
        return outputs


def sgd() -> optax.GradientTransformation:
    return optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(0.05, momentum=0.9))


def train_fp32(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    model = PreResNet20(rngs=nnx.Rngs(seed))
    return fit(Trainer(model, sgd(), apply=plain_updates), data, epochs, seed)


def train_low(data: Data, epochs: int, seed: int, averaged: list[Epoch]) -> Iterator[Epoch]:
    """Trains, and tests the averaged weights after each epoch as well."""
    rngs = nnx.Rngs(seed)
    quantizers = dict.fromkeys(("weight_quant", "grad_quant", "momentum_quant", "acc_quant"), quant)
    trainer = Trainer(Lowered(PreResNet20(rngs=rngs), rngs), low_precision(sgd(), **quantizers, key=seed))
    count, average = 0, trainer.state[:2]  # of parameters and statistics
    for number, epoch in enumerate(fit(trainer, data, epochs, seed), start=1):
        count = 1 if number <= max(1, epochs // 2) else count + 1
        average = jax.tree.map(lambda mean, x, count=count: _next_mean(mean, x, count), average, trainer.state[:2])
        averaged.append(epoch._replace(test=accuracy(trainer, average[0], average[1], data)))
        yield epoch


def _next_mean(mean: jax.Array, x: jax.Array, count: int) -> jax.Array:
    return mean + (x - mean) / count if jnp.issubdtype(x.dtype, jnp.floating) else x


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 12, argv)
    data = load(options.limit)
    averaged: list[Epoch] = []
    curves = [
        follow("fp32", train_fp32(data, options.epochs, options.seed)),
        follow("block floating point", train_low(data, options.epochs, options.seed, averaged)),
        Curve("averaged", averaged),
    ]
    finish(f"SWALP's arithmetic on {data.name}, JAX", curves, options.plot or "swalp_jax.svg")


if __name__ == "__main__":
    main()
