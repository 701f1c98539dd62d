"""Exact sums of convolutions: a product of matrices for each tap, and no columns in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from qcore.accumulate.convolution import ConvolutionForm
from qcore.accumulate.forms import FORWARD, GRAD_B, Shape
from qjax.linalg.array_names import Names


def exact_convolution(
    form: ConvolutionForm, which: str, first: jax.Array, second: jax.Array, other: Shape
) -> jax.Array:
    """The float64 sums of one of a convolution's products, if no addition rounds: any order has their bits.

    Channels come first, so that each product is one of two matrices, of a group's channels and of all examples'
    positions. What a tap reads is copied for its product alone.

    Args:
        form, which, first, second, other: see `qcore.accumulate.convolution.ConvolutionForm.matrices`.

    Returns:
        The result's elements in order.
    """
    x, places, positions, strides = form.windows(Names, which, first, second, other)
    x = _channels_first(x, form.groups)
    sizes = *x.shape[:3], *((count - 1) * step + 1 for count, step in zip(positions, strides, strict=True))
    spaced = (..., *(slice(None, None, step) for step in strides))
    starts = jnp.asarray([(0, 0, 0, *place) for place in places], jnp.int32)

    def product(left: jax.Array, start: jax.Array, ours: Shape, its: Shape) -> jax.Array:
        """Of each group, with what the tap at a start reads."""
        read = jax.lax.dynamic_slice(x, start, sizes)[spaced]
        return jax.lax.dot_general(left, read, ((ours, its), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST)

    if which == GRAD_B:
        gradient, terms = _channels_first(first, form.groups), tuple(range(2, x.ndim))
        found = jax.lax.map(lambda start: product(gradient, start, terms, terms), starts)
        return jnp.moveaxis(found, 0, -1)
    weight = Names.wide(second).reshape(form.groups, -1, second.shape[1], len(places))
    taps = jnp.moveaxis(weight if which == FORWARD else weight.swapaxes(1, 2), -1, 0)

    def add(total: jax.Array, tap: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + product(*tap, (2,), (1,)), None

    total, _ = jax.lax.scan(add, product(taps[0], starts[0], (2,), (1,)), (taps[1:], starts[1:]))
    return jnp.moveaxis(total, 2, 0)


def _channels_first(x: jax.Array, groups: int) -> jax.Array:
    """(batch, channels, ...) as float64 numbers (groups, channels of a group, batch, ...), in memory."""
    batch, channels, *positions = x.shape
    split = Names.wide(x).reshape(batch, groups, channels // groups, *positions)
    return Names.materialize(jnp.moveaxis(split, 0, 2))
