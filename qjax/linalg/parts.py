"""Large products in parts, so that there are float64 copies, and columns of convolutions, of parts alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.linalg.forms import Shape

BLOCK = 1 << 21  # numbers that are copied at a time
_SIDE = 1024  # rows and columns of a part of a result

Matrices = tuple[Any, ...]  # a matrix, or batches of them, and what scales its chunks or None


def fits(numbers: int) -> bool:
    """True if so many numbers are copied at a time; with several devices, which hold parts themselves, all are."""
    return numbers <= BLOCK or jax.device_count() > 1


def together(count: int, numbers: int) -> int:
    """How many of `count` examples, which have so many numbers in all, are multiplied at a time."""
    return count if fits(numbers) else _even(count, max(BLOCK * count // numbers, 1))


def _even(length: int, most: int) -> int:
    """The length of parts that have at most so many elements each, and nearly as many as one another."""
    return -(-length // -(-length // most))


def multiply_in_parts(
    multiply: Callable[[Matrices, Matrices], jax.Array], left: Matrices, right: Matrices
) -> jax.Array:
    """A float32 product of matrices, each element of which follows from a row and a column alone.

    Args:
        multiply: the product of parts.
        left: arrays of shapes (..., M, K) and (..., M, chunks).
        right: arrays of shapes (..., K, N) and (..., chunks, N), with the same leading dimensions.
    """
    *batch, rows, terms = left[0].shape
    columns, count = right[0].shape[-1], prod(batch)
    numbers = max(rows * terms, terms * columns, rows * columns)  # of an example
    if fits(count * numbers):
        return multiply(left, right)
    if batch:
        examples = jax.tree.map(partial(_examples, batch), (left, right))
        size = max(BLOCK // numbers, 1)
        found = jax.lax.map(lambda pair: multiply_in_parts(multiply, *pair), examples, batch_size=size)
        return found.reshape(*batch, rows, columns)
    side = min(max(BLOCK // max(terms, 1), 64), _SIDE)
    height, width = _even(rows, side), _even(columns, side)
    across = -(-columns // width)

    def part(index: jax.Array) -> tuple[jax.Array, Any]:
        top, begin = _begin(index // across, height, rows), _begin(index % across, width, columns)
        above = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, top, height, 0), left)
        beside = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, begin, width, 1), right)
        return multiply(above, beside), (top, begin)

    return _put_together(part, -(-rows // height) * across, (rows, columns))


def _examples(batch: list[int], x: jax.Array) -> jax.Array:
    """Matrices, or what broadcasts to so many, along one leading axis."""
    return jnp.broadcast_to(x, (*batch, *x.shape[-2:])).reshape(-1, *x.shape[-2:])


def multiply_examples(
    multiply: Callable[[jax.Array], jax.Array], x: jax.Array, shape: Shape, size: int, axis: int = 0
) -> jax.Array:
    """A float32 result of a shape whose elements along an axis follow from those of x; of `size` of them at a time."""
    count = x.shape[axis]
    if size == count:
        return multiply(x)
    before, after = (np.int32(0),) * axis, (np.int32(0),) * (len(shape) - 1 - axis)

    def part(index: jax.Array) -> tuple[jax.Array, Any]:
        begin = _begin(index, size, count)
        return multiply(jax.lax.dynamic_slice_in_dim(x, begin, size, axis)), (*before, begin, *after)

    return _put_together(part, -(-count // size), shape)


def _begin(index: jax.Array, size: int, length: int) -> jax.Array:
    """Where a part begins; the last one earlier, as what lies in two parts has the same bits in both."""
    return jnp.minimum(index * size, length - size)


def _put_together(part: Callable[[jax.Array], tuple[jax.Array, Any]], count: int, shape: Shape) -> jax.Array:
    """The float32 array of so many parts, each with its place.

    Places are int32: vmap outside of `jax.enable_x64` has no int64.
    """

    def put(result: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
        return jax.lax.dynamic_update_slice(result, *part(index)), None

    return jax.lax.scan(put, jnp.zeros(shape, jnp.float32), jnp.arange(count, dtype=jnp.int32))[0]
