"""The sum of a product and a bias, and the bias's gradient."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from qcore.accumulate.forms import GRAD_B, MatrixForm, check_bias
from qcore.accumulate.product import Product
from qjax._rounding.inputs import as_array
from qjax.linalg.call import multiply_arrays

_SUM = Product()


def add_bias(x: jax.Array, bias: Any, outputs: int, axis: int) -> jax.Array:
    """x + bias in float32, along an axis counted from the end.

    The bias's gradient is the float64 sum of the gradient's other elements, in ascending order, rounded to float32.
    """
    if bias is None:
        return x
    bias = as_array(bias)
    check_bias(bias.shape, bias.dtype.name, outputs)
    return _add(axis, x, bias)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _add(axis: int, x: jax.Array, bias: jax.Array) -> jax.Array:
    return x + bias.reshape(-1, *(1,) * (-1 - axis))


def _forward(axis: int, x: jax.Array, bias: jax.Array) -> tuple[jax.Array, None]:
    return _add(axis, x, bias), None


def _backward(axis: int, saved: None, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
    rows = jnp.moveaxis(gradient, axis, -1)
    rows = rows.reshape(prod(rows.shape[:-1]), rows.shape[-1])
    shape = (1, rows.shape[1])
    return gradient, multiply_arrays(MatrixForm(), GRAD_B, _SUM, rows, jnp.ones_like(rows[:, :1]), None, shape)[0]


_add.defvjp(_forward, _backward)
