"""The products of convolutions: of parts, so that no operand is copied once for each tap."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import jax
import jax.numpy as jnp

from qcore.linalg.convolution import ConvolutionForm
from qcore.linalg.forms import FORWARD, GRAD_B, Shape
from qjax.linalg.namespace import Float64
from qjax.linalg.parts import multiply_examples, together


def exact_convolution(
    form: ConvolutionForm,
    which: str,
    first: jax.Array,
    second: jax.Array,
    other: Shape,
    narrow: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """A product if no addition of float64 numbers rounds: then a product for each tap has its bits.

    Args:
        form, which, first, second, other: see `qcore.linalg.convolution.ConvolutionForm.matrices`.
        narrow: makes float32 results of float64 sums.
    """
    batch, shape = len(first), _result(form, which, first, other)
    size = together(batch, max(first.size, second.size if which == GRAD_B else prod(shape)))
    if which == GRAD_B:
        return narrow(_sums_of_weights(form, first, second, shape, size))

    def multiply(examples: jax.Array) -> jax.Array:
        return narrow(_sums(form, which, examples, second, other)).reshape(-1, *shape[1:])

    return multiply_examples(multiply, first, shape, size)


def convolution_by_columns(
    form: ConvolutionForm,
    which: str,
    first: jax.Array,
    second: jax.Array,
    other: Shape,
    multiply: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """A product as that of two matrices, of which there are columns for some examples at a time.

    For the gradient of a weight, which sums over examples, they are for some channels, or for all of several groups.

    Args:
        form, which, first, second, other: as above.
        multiply: the float32 product of two matrices.
    """
    shape, of_weight = _result(form, which, first, other), which == GRAD_B
    terms = form.groups * form.contraction(which, first.shape, second.shape, other).terms
    columns = terms * (prod(shape[1:]) if of_weight else shape[0] * prod(shape[2:]))
    x, axis = (second, 1) if of_weight else (first, 0)
    size = x.shape[axis] if of_weight and form.groups > 1 else together(x.shape[axis], columns)

    def multiply_columns(part: jax.Array) -> jax.Array:
        pair = (first, part) if of_weight else (part, second)
        channels = (other[0], part.shape[1] // form.groups, *other[2:]) if of_weight else other
        found = multiply(*form.matrices(Float64, which, *pair, channels))
        return found.reshape(channels if of_weight else (-1, *shape[1:]))

    return multiply_examples(multiply_columns, x, shape, size, axis)


def _result(form: ConvolutionForm, which: str, first: jax.Array, other: Shape) -> Shape:
    return form.result(first.shape, other) if which == FORWARD else other


def _sums(form: ConvolutionForm, which: str, first: jax.Array, second: jax.Array, other: Shape) -> jax.Array:
    """The float64 sums of a result, or of an input's gradient: (batch, groups, channels of a group, ...)."""
    weight = Float64.wide(second).reshape(form.groups, -1, second.shape[1], prod(second.shape[2:]))
    taps = jnp.moveaxis(weight if which == FORWARD else weight.swapaxes(1, 2), -1, 0)
    read, starts = _reader(form, which, first, second, other)

    def product(weight: jax.Array, start: jax.Array) -> jax.Array:
        return _products(weight, read(start), (2,), (1,))

    def add(total: jax.Array, tap: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + product(*tap), None

    total, _ = jax.lax.scan(add, product(taps[0], starts[0]), (taps[1:], starts[1:]))
    return jnp.moveaxis(total, 2, 0)


def _sums_of_weights(form: ConvolutionForm, gradient: jax.Array, x: jax.Array, shape: Shape, size: int) -> jax.Array:
    """The float64 sums of a weight's gradient, (groups, outputs of a group, channels, taps), `size` examples a time."""

    def sums(gradient: jax.Array, x: jax.Array) -> jax.Array:
        read, starts = _reader(form, GRAD_B, gradient, x, shape)
        rows, terms = _channels_first(gradient, form.groups), tuple(range(2, gradient.ndim + 1))
        return jnp.moveaxis(jax.lax.map(lambda start: _products(rows, read(start), terms, terms), starts), 0, -1)

    if size == len(x):
        return sums(gradient, x)
    full = len(x) // size
    parts = [one[: full * size].reshape(full, size, *one.shape[1:]) for one in (gradient, x)]
    rest = sums(gradient[full * size :], x[full * size :])
    return jax.lax.scan(lambda total, part: (total + sums(*part), None), rest, parts)[0]


def _reader(
    form: ConvolutionForm, which: str, first: jax.Array, second: jax.Array, other: Shape
) -> tuple[Callable[[jax.Array], jax.Array], jax.Array]:
    """What a tap reads as a function of where it starts, and where all taps do.

    Channels come first, so that each product is one of two matrices, of a group's channels and of all examples'
    positions. What a tap reads is copied for its product alone.
    """
    x, places, positions, strides = form.windows(Float64, which, first, second, other)
    x = _channels_first(x, form.groups)
    sizes = *x.shape[:3], *((count - 1) * step + 1 for count, step in zip(positions, strides, strict=True))
    spaced = (..., *(slice(None, None, step) for step in strides))
    starts = jnp.asarray([(0, 0, 0, *place) for place in places], jnp.int32)
    return lambda start: jax.lax.dynamic_slice(x, start, sizes)[spaced], starts


def _products(left: jax.Array, right: jax.Array, ours: Shape, its: Shape) -> jax.Array:
    """The float64 products of each group's arrays, summed over these axes."""
    return jax.lax.dot_general(left, right, ((ours, its), ((0,), (0,))), precision=jax.lax.Precision.HIGHEST)


def _channels_first(x: jax.Array, groups: int) -> jax.Array:
    """(batch, channels, ...) as float64 numbers (groups, channels of a group, batch, ...), in memory."""
    batch, channels, *positions = x.shape
    split = Float64.wide(x).reshape(batch, groups, channels // groups, *positions)
    return Float64.materialize(jnp.moveaxis(split, 0, 2))
