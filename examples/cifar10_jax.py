"""CIFAR10 in low precision: QPyTorch's tutorial, the way JAX users would write it.

    python -m examples.cifar10_jax
    python -m examples.cifar10_jax --epochs 2 --limit 640 --plot curves.png

Formats and roundings are those of `examples.cifar10_torch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import optax
from flax import nnx

from examples.data import Data, load
from examples.models_jax import PreResNet20, Trainer, fit, plain_updates
from examples.report import Epoch, arguments, finish, follow
from qjax import FloatingPoint, quantizer
from qjax.optim import low_precision

LOSS_SCALE = 1000

# Two floating point formats
bit_8 = FloatingPoint(exp=5, man=2)
bit_16 = FloatingPoint(exp=6, man=9)

# Quantization functions
weight_quant = quantizer(forward_number=bit_8, forward_rounding="nearest")
grad_quant = quantizer(forward_number=bit_8, forward_rounding="nearest")
momentum_quant = quantizer(forward_number=bit_16, forward_rounding="stochastic")
acc_quant = quantizer(forward_number=bit_16, forward_rounding="stochastic")

# Of activations on the way forward and errors on the way back; of images and logits
act_error_quant = quantizer(bit_8, bit_8, forward_rounding="nearest", backward_rounding="nearest")
edge_quant = quantizer(bit_16, bit_16, "nearest", "nearest")


def sgd(data: Data, epochs: int) -> optax.GradientTransformation:
    cosine = optax.cosine_decay_schedule(0.05, epochs)

    def rate(step: Any) -> Any:
        return cosine(step // data.steps)

    return optax.chain(optax.add_decayed_weights(5e-4), optax.sgd(rate, momentum=0.9))


def train_fp32(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    model = PreResNet20(rngs=nnx.Rngs(seed))
    return fit(Trainer(model, sgd(data, epochs), apply=plain_updates), data, epochs, seed)


def train_low(data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    model = PreResNet20(act_error_quant, edge_quant, rngs=nnx.Rngs(seed))
    tx = low_precision(
        sgd(data, epochs),
        weight_quant=weight_quant,
        grad_quant=grad_quant,
        momentum_quant=momentum_quant,
        acc_quant=acc_quant,
        grad_scaling=1 / LOSS_SCALE,
        key=seed,
    )
    return fit(Trainer(model, tx, loss_scale=LOSS_SCALE), data, epochs, seed)


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 10, argv)
    data = load(options.limit)
    curves = [
        follow(name, train(data, options.epochs, options.seed))
        for name, train in (("fp32", train_fp32), ("low precision", train_low))
    ]
    finish(f"PreResNet20 on {data.name}, JAX", curves, options.plot or "cifar10_jax.svg")


if __name__ == "__main__":
    main()
