"""Exact sums of products of integers, by whichever product of matrices serves their widths."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from qjax._namespace import Names

_INT32, _INT53 = 2**31, 2**53


def sums_of_products(input: Any, weight: Any, groups: int = 1) -> jax.Array:
    """The sums of (x - its zero point) * (w - its zero point) over the last dimension, without rounding.

    Integers of 8 bits are multiplied as int8, and others in float64, which holds all sums up to 2^53. It is called in
    traced functions.

    Args:
        input: QTensor of shape (..., groups, terms), with one scale.
        weight: QTensor of shape (outputs, ...), whose other sizes have the product `terms`, with one scale or one for
            each output.
        groups: into how many the outputs are split.

    Returns:
        Integers in int32 or float64, of shape (..., outputs).

    Raises:
        ValueError: if sums may not be exact in float64.
    """
    terms, outputs = input.shape[-1], weight.shape[0]
    if fits_int32(input, weight, terms):
        (x, x_zero), (w, w_zero) = signed(input), signed(weight)
        w = w.reshape(groups, outputs // groups, terms)
        sums = _products(x, w, "int32") - x_zero * w.sum(-1, dtype=jnp.int32)
        zeros = jnp.broadcast_to(w_zero, outputs).reshape(groups, -1)
        sums = sums - (x.sum(-1, keepdims=True, dtype=jnp.int32) - terms * x_zero) * zeros
        return sums.reshape(*sums.shape[:-2], outputs)
    if largest_sum(input, weight, terms) > _INT53:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, whose sums may pass 2^53; allowed are fewer terms")
    with Names.arithmetic():
        w = differences(weight, "float64").reshape(groups, outputs // groups, terms)
        sums = _products(differences(input, "float64"), w, "float64")
        return sums.reshape(*sums.shape[:-2], outputs)


def fits_int32(input: Any, weight: Any, terms: int) -> bool:
    """True if the integers have 8 bits and int32 holds all sums of so many products."""
    narrow = max(q.values.dtype.itemsize for q in (input, weight)) == 1
    return narrow and largest_sum(input, weight, terms) < _INT32


def largest_sum(input: Any, weight: Any, terms: int) -> int:
    """A bound of all sums of so many products."""
    return terms * (input.form.qmax - input.form.qmin) * (weight.form.qmax - weight.form.qmin)


def differences(q: Any, dtype: str) -> jax.Array:
    """The integers less their zero points, as floats."""
    zero = q.qparams.zero_point
    if zero.ndim:
        zero = zero.reshape(-1, *(1,) * (q.ndim - 1))
    return (q.values.astype("int32") - zero).astype(dtype)


def signed(q: Any) -> tuple[jax.Array, jax.Array]:
    """int8 values and a zero point with the same differences; unsigned ones are moved by 128."""
    if q.form.storage == "int8":
        return q.values, q.qparams.zero_point
    return (q.values ^ 0x80).view(jnp.int8), q.qparams.zero_point - 128


def _products(x: jax.Array, w: jax.Array, dtype: str) -> jax.Array:
    """The sums over n of x (..., groups, n) times w (groups, outputs, n), of shape (..., groups, outputs)."""
    batch = x.ndim - 2
    contracted, batched = ((batch + 1,), (2,)), ((batch,), (0,))
    sums = jax.lax.dot_general(x, w, (contracted, batched), preferred_element_type=jnp.dtype(dtype))
    return jnp.moveaxis(sums, 0, -2)
