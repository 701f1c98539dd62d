"""A linear layer as Microscaling hardware trains it, in JAX; `mx_linear_torch` says what is rounded along what.

    python -m examples.mx_linear_jax

Two such layers are trained on images: in float32, in MXFP8 with E5M2 gradients, and in NVFP4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import optax
from flax import nnx

from examples.data import Data, load
from examples.models_jax import Trainer, fit, plain_updates
from examples.report import Epoch, arguments, finish, follow
from qjax import NAMED, NVFP4, BlockScaled, quantize


def along(number: BlockScaled, axis: int) -> BlockScaled:
    """A format whose tiles lie along one axis, with these tiles along another."""
    ((_, size),) = number.block
    return replace(number, block={axis: size})


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def linear(x: jax.Array, weight: jax.Array, forward_number: BlockScaled, backward_number: BlockScaled) -> jax.Array:
    """x @ weight^T with quantized operands, and so its gradients.

    Args:
        x: array of shape (..., features in).
        weight: array of shape (features out, features in).
        forward_number: of x and weight; its tiles lie along one axis, no matter which.
        backward_number: of the gradient of the output.
    """
    return _rounded(x, forward_number, -1) @ _rounded(weight, forward_number, -1).mT


def _forward(
    x: jax.Array, weight: jax.Array, number: BlockScaled, backward_number: BlockScaled
) -> tuple[jax.Array, Any]:
    return linear(x, weight, number, backward_number), (x, weight)


def _backward(
    number: BlockScaled, backward_number: BlockScaled, saved: Any, grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, weight = saved
    grad_x = _rounded(grad, backward_number, -1) @ _rounded(weight, number, 0)
    rows, x_rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    return grad_x, _rounded(rows, backward_number, 0).mT @ _rounded(x_rows, number, 0)


linear.defvjp(_forward, _backward)


def _rounded(x: jax.Array, number: BlockScaled, axis: int) -> jax.Array:
    return quantize(x, along(number, axis), "nearest")


NUMBERS = {"fp32": None, "mxfp8": (NAMED["mxfp8_e4m3"][0], NAMED["mxfp8_e5m2"][0]), "nvfp4": (NVFP4(), NVFP4())}


class Network(nnx.Module):
    """Two linear layers for images.

    Args:
        numbers: the formats forward and backward; None for float32.
        rngs: for the weights.
    """

    def __init__(self, numbers: tuple[Any, Any] | None, rngs: nnx.Rngs) -> None:
        self.hidden, self.out = nnx.Linear(3 * 32 * 32, 64, rngs=rngs), nnx.Linear(64, 10, rngs=rngs)
        self.numbers = numbers

    def __call__(self, images: jax.Array) -> jax.Array:
        return self._layer(self.out, nnx.relu(self._layer(self.hidden, images.reshape(len(images), -1))))

    def _layer(self, layer: Any, x: jax.Array) -> jax.Array:
        return layer(x) if self.numbers is None else linear(x, layer.kernel.mT, *self.numbers) + layer.bias


def train(name: str, data: Data, epochs: int, seed: int) -> Iterator[Epoch]:
    model = Network(NUMBERS[name], nnx.Rngs(seed))
    return fit(Trainer(model, optax.sgd(0.01), apply=plain_updates), data, epochs, seed)


def main(argv: list[str] | None = None) -> None:
    options = arguments(__doc__, 10, argv)
    data = load(options.limit)
    curves = [follow(name, train(name, data, options.epochs, options.seed)) for name in NUMBERS]
    finish(f"Two linear layers on {data.name}, JAX", curves, options.plot or "mx_linear_jax.svg")


if __name__ == "__main__":
    main()
