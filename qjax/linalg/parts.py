"""Large products in parts: only a part has float64 copies at a time, and no operand is copied once for each tap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.linalg.convolution import ConvolutionGeometry
from qcore.linalg.geometry import FORWARD, GRAD_B, Shape
from qjax.linalg.namespace import Float64

BLOCK = 1 << 21  # numbers that are copied at a time
_SIDE = 1024  # rows and columns of a part of a result

Matrices = tuple[Any, ...]  # a matrix, or batches of them, and the scales of its chunks or None


def _fits(numbers: int) -> bool:
    """True if this count of numbers is copied at once, as it always is on several devices, which hold parts."""
    return numbers <= BLOCK or jax.device_count() > 1


def _together(count: int, numbers: int) -> int:
    """The number of examples that are multiplied at a time, of `count` examples with `numbers` numbers together."""
    return count if _fits(numbers) else _even(count, max(BLOCK * count // numbers, 1))


def _even(length: int, most: int) -> int:
    """The length of parts with at most `most` elements each, all of nearly the same length."""
    return -(-length // -(-length // most))


def multiply_in_parts(
    multiply: Callable[[Matrices, Matrices, Any], jax.Array], left: Matrices, right: Matrices, addend: Any = None
) -> jax.Array:
    """A float32 product of matrices whose elements each follow from one row and one column.

    `left` are arrays of shapes (..., M, K) and (..., M, chunks), `right` of (..., K, N) and (..., chunks, N), and
    `addend` of (..., M, N).
    """
    *batch, rows, terms = left[0].shape
    columns, count = right[0].shape[-1], prod(batch)
    numbers = max(rows * terms, terms * columns, rows * columns)  # of an example
    if _fits(count * numbers):
        return multiply(left, right, addend)
    if batch:
        examples = jax.tree.map(partial(_examples, batch), (left, right, addend))
        size = max(BLOCK // numbers, 1)
        found = jax.lax.map(lambda three: multiply_in_parts(multiply, *three), examples, batch_size=size)
        return found.reshape(*batch, rows, columns)
    side = min(max(BLOCK // max(terms, 1), 64), _SIDE)
    height, width = _even(rows, side), _even(columns, side)
    across = -(-columns // width)

    def part(index: jax.Array) -> tuple[jax.Array, Any]:
        top, begin = _begin(index // across, height, rows), _begin(index % across, width, columns)
        above = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, top, height, 0), left)
        beside = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, width, 1), right)
        here = None if addend is None else jax.lax.dynamic_slice(addend, (top, begin), (height, width))
        return multiply(above, beside, here), (top, begin)

    return _put_together(part, -(-rows // height) * across, (rows, columns))


def _examples(batch: list[int], x: jax.Array) -> jax.Array:
    """Matrices, broadcast to a batch, along one leading axis."""
    return jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(-1, *x.shape[-2:])


def _multiply_examples(
    multiply: Callable[[jax.Array], jax.Array], x: jax.Array, shape: Shape, size: int, axis: int = 0
) -> jax.Array:
    """A float32 result of a shape, for `size` examples at a time: elements along the axis belong to those of x."""
    count = x.shape[axis]
    if size == count:
        return multiply(x)
    before, after = (np.int32(0),) * axis, (np.int32(0),) * (len(shape) - 1 - axis)

    def part(index: jax.Array) -> tuple[jax.Array, Any]:
        begin = _begin(index, size, count)
        return multiply(jax.lax.dynamic_slice_in_dim(x, begin, size, axis)), (*before, begin, *after)

    return _put_together(part, -(-count // size), shape)


def _begin(index: jax.Array, size: int, length: int) -> jax.Array:
    """Where a part begins. The last part overlaps the one before it; elements in both have the same bits."""
    return jnp.minimum(index * size, length - size)


def _put_together(part: Callable[[jax.Array], tuple[jax.Array, Any]], count: int, shape: Shape) -> jax.Array:
    """The float32 array of all parts, each in its place.

    Places are int32: vmap outside of `jax.enable_x64` has no int64.
    """

    def put(result: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
        return jax.lax.dynamic_update_slice(result, *part(index)), None

    return jax.lax.scan(put, jnp.zeros(shape, jnp.float32), jnp.arange(count, dtype=jnp.int32))[0]


def exact_convolution(
    geometry: ConvolutionGeometry,
    which: str,
    first: jax.Array,
    second: jax.Array,
    other: Shape,
    finish: Callable[[jax.Array], jax.Array],
) -> jax.Array:
    """A product where no addition of float64 numbers rounds: the sum of a product for each tap has the same bits.

    Arguments as for `ConvolutionGeometry.matrices`; `finish` makes float32 results of float64 sums.
    """
    batch, shape = len(first), _result(geometry, which, first, other)
    size = _together(batch, max(first.size, second.size if which == GRAD_B else prod(shape)))
    if which == GRAD_B:
        return finish(_sums_of_weights(geometry, first, second, shape, size))

    def multiply(examples: jax.Array) -> jax.Array:
        return finish(_sums(geometry, which, examples, second, other)).reshape(-1, *shape[1:])

    return _multiply_examples(multiply, first, shape, size)


def convolution_by_columns(
    geometry: ConvolutionGeometry,
    which: str,
    first: jax.Array,
    second: jax.Array,
    other: Shape,
    multiply: Callable[[jax.Array, jax.Array], jax.Array],
) -> jax.Array:
    """A product of two matrices, whose columns are made for some examples at a time.

    The gradient of a weight sums over examples: its columns are made for some channels, or at once if there are groups.

    Args:
        geometry, which, first, second, other: as above.
        multiply: the float32 product of two matrices.
    """
    shape, of_weight = _result(geometry, which, first, other), which == GRAD_B
    terms = geometry.groups * geometry.contraction(which, first.shape, second.shape, other).terms
    columns = terms * (prod(shape[1:]) if of_weight else shape[0] * prod(shape[2:]))
    x, axis = (second, 1) if of_weight else (first, 0)
    size = x.shape[axis] if of_weight and geometry.groups > 1 else _together(x.shape[axis], columns)

    def multiply_columns(part: jax.Array) -> jax.Array:
        pair = (first, part) if of_weight else (part, second)
        channels = (other[0], part.shape[1] // geometry.groups, *other[2:]) if of_weight else other
        found = multiply(*geometry.matrices(Float64, which, *pair, channels))
        return found.reshape(channels if of_weight else (-1, *shape[1:]))

    return _multiply_examples(multiply_columns, x, shape, size, axis)


def _result(geometry: ConvolutionGeometry, which: str, first: jax.Array, other: Shape) -> Shape:
    return geometry.result(first.shape, other) if which == FORWARD else other


def _sums(geometry: ConvolutionGeometry, which: str, first: jax.Array, second: jax.Array, other: Shape) -> jax.Array:
    """The float64 sums of a result, or of an input's gradient: (batch, groups, channels of a group, ...)."""
    weight = Float64.float64(second).reshape(geometry.groups, -1, second.shape[1], prod(second.shape[2:]))
    taps = jnp.moveaxis(weight if which == FORWARD else weight.swapaxes(1, 2), -1, 0)
    read, starts = _reader(geometry, which, first, second, other)

    def product(weight: jax.Array, start: jax.Array) -> jax.Array:
        return _products(weight, read(start), (2,), (1,))

    def add(total: jax.Array, tap: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + product(*tap), None

    total, _ = jax.lax.scan(add, product(taps[0], starts[0]), (taps[1:], starts[1:]))
    return jnp.moveaxis(total, 2, 0)


def _sums_of_weights(
    geometry: ConvolutionGeometry, gradient: jax.Array, x: jax.Array, shape: Shape, size: int
) -> jax.Array:
    """The float64 sums of a weight's gradient, (groups, outputs of a group, channels, taps), `size` examples a time."""

    def sums(gradient: jax.Array, x: jax.Array) -> jax.Array:
        read, starts = _reader(geometry, GRAD_B, gradient, x, shape)
        rows, terms = _channels_first(gradient, geometry.groups), tuple(range(2, gradient.ndim + 1))
        return jnp.moveaxis(jax.lax.map(lambda start: _products(rows, read(start), terms, terms), starts), 0, -1)

    if size == len(x):
        return sums(gradient, x)
    full = len(x) // size
    parts = [one[: full * size].reshape(full, size, *one.shape[1:]) for one in (gradient, x)]
    rest = sums(gradient[full * size :], x[full * size :])
    return jax.lax.scan(lambda total, part: (total + sums(*part), None), rest, parts)[0]


def _reader(
    geometry: ConvolutionGeometry, which: str, first: jax.Array, second: jax.Array, other: Shape
) -> tuple[Callable[[jax.Array], jax.Array], jax.Array]:
    """A function that reads the numbers of a tap from its start, and the starts of all taps.

    Channels come first, so that each product is a product of two matrices: a group's channels and all examples'
    positions. The numbers of a tap are copied for its product alone.
    """
    x, places, positions, strides = geometry.windows(Float64, which, first, second, other)
    x = _channels_first(x, geometry.groups)
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
    split = Float64.float64(x).reshape(batch, groups, channels // groups, *positions)
    return Float64.materialize(jnp.moveaxis(split, 0, 2))
