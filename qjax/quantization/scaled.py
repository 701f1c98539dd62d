"""Rounding to a format with a given scale: the law is `qcore.linalg.scaling.round_scaled`."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from qcore import BlockScaled, Number
from qcore.formats.block import check_element
from qcore.formats.number import check_number
from qcore.linalg.scaling import round_scaled, scale_for
from qjax._rounding.dispatch import quantize
from qjax._rounding.scopes import operation, text_in_scope
from qjax.linalg.namespace import Float64


def check_scaled(number: Any) -> Number:
    """A format that may have a scale in float32, given as an object or as text."""
    number = check_number(number)
    BlockScaled(number, {...: None}, scale="float32")  # raises where it may not
    return number


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def round_with_scale(x: jax.Array, scale: jax.Array, number: Number, axis: int) -> jax.Array:
    """x rounded to a format times a scale; gradients pass straight through.

    Args:
        x: array of floats.
        scale: float32 of shape (), or one for each index along the axis.
        number: the format, which saturates.
        axis: that of several scales.
    """
    return _round(x, scale, number, axis)


@partial(jax.jit, static_argnums=(2, 3))
def _round(x: jax.Array, scale: jax.Array, number: Number, axis: int) -> jax.Array:
    def round_element(y: jax.Array, element: Number) -> jax.Array:
        with jax.enable_x64(False):
            return quantize(y, element, "nearest")

    with jax.enable_x64(True), operation("round_scaled", x, scale, number=text_in_scope(number), axis=axis):
        whole = scale.reshape(-1, *[1] * (x.ndim - 1 - axis)) if scale.size > 1 else scale.reshape(())
        y = round_scaled(Float64, x.astype(jnp.float32), whole, check_element(number), round_element)
        return y.astype(x.dtype)


def _forward(x: jax.Array, scale: jax.Array, number: Number, axis: int) -> tuple[jax.Array, jax.Array]:
    return _round(x, scale, number, axis), scale


def _backward(number: Number, axis: int, scale: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
    return grad, jnp.zeros_like(scale)


round_with_scale.defvjp(_forward, _backward)


def scale_of_range(low: jax.Array, high: jax.Array, number: Number) -> jax.Array:
    """The scale with which a format reaches the larger end of a range."""
    largest = jnp.maximum(jnp.abs(low), jnp.abs(high)).astype(jnp.float32)
    with jax.enable_x64(True):
        return scale_for(Float64, largest, check_element(number)).astype(jnp.float32)
