"""The sum of a product and a bias, and the bias's gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from qcore.linalg.forms import FORWARD, MatrixForm, check_bias
from qcore.linalg.product import Product, Products
from qjax._rounding.inputs import as_array
from qjax.linalg.call import Shapes, multiply

_SUMS = Products(Product(), Product(), Product())


def add_bias(x: jax.Array, bias: Any, outputs: int, axis: int) -> jax.Array:
    """x + bias in float32, along an axis counted from the end.

    The bias's gradient is the float64 sum of the gradient's other elements, in ascending order, rounded to float32.
    """
    if bias is None:
        return x
    bias = as_array(bias, "bias")
    check_bias(bias.shape, bias.dtype.name, outputs)
    return _add(axis, x, bias)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _add(axis: int, x: jax.Array, bias: jax.Array) -> jax.Array:
    return x + bias.reshape(-1, *(1,) * (-1 - axis))


def _derivative(axis: int, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, Any]:
    """The bias's tangent is a product with ones, whose transpose is the product that sums."""
    x, bias = primals
    of_x, of_bias = tangents
    y = _add(axis, x, bias)
    if isinstance(of_bias, SymbolicZero):
        return y, of_x
    rows, columns = x.size // max(bias.size, 1), bias.size
    ones, shapes = jnp.ones((rows, 1)), Shapes((rows, 1), (1, columns), (rows, columns))
    spread = multiply(MatrixForm(), _SUMS, FORWARD, ones, of_bias.reshape(1, columns), shapes)
    shape = jnp.moveaxis(x, axis, -1).shape
    spread = jnp.moveaxis(spread.reshape(shape), -1, axis)
    return y, spread if isinstance(of_x, SymbolicZero) else of_x + spread


_add.defjvp(_derivative, symbolic_zeros=True)
