"""A linear layer as Microscaling hardware trains it, in JAX; `mx_linear_torch` says what is rounded along what."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax

from qjax import BlockScaled, quantize


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
