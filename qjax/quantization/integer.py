"""Exact sums of products of integers, also over windows of images, and integers that are packed two in a byte."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from qcore.affine import AffineInteger, QParams
from qjax._namespace import Names
from qjax._rounding.packing import pack, unpack
from qjax._rounding.scopes import operation
from qjax.quantization.tensor import QTensor

_INT32, _INT53 = 2**31, 2**53


@partial(jax.jit, static_argnums=2)
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
    with _operation("sums_of_products", input, weight, groups=groups):
        return _sums_of_products(input, weight, groups)


def _sums_of_products(input: Any, weight: Any, groups: int) -> jax.Array:
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
    """True if the integers have 8 bits and int32 holds all sums of `terms` products."""
    narrow = max(q.values.dtype.itemsize for q in (input, weight)) == 1
    return narrow and largest_sum(input, weight, terms) < _INT32


def largest_sum(input: Any, weight: Any, terms: int) -> int:
    """An upper bound for the magnitudes of sums of `terms` products."""
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


Pairs = tuple[tuple[int, int], ...]


@partial(jax.jit, static_argnums=(2, 3, 4, 5))
def sums_of_windows(
    input: Any, weight: Any, stride: tuple[int, ...], padding: Pairs, dilation: tuple[int, ...], groups: int
) -> jax.Array:
    """The sums that a convolution of any number of dimensions has, without rounding; see `sums_of_products`.

    Args:
        input: QTensor of shape (batch, *sizes, channels), with one scale.
        weight: QTensor of shape (outputs, channels / groups, *kernel), with one scale or one for each output.
        stride, dilation: for each dimension.
        padding: how many zero points stand before and after the image, for each dimension.
        groups: into how many parts channels and outputs are split.

    Returns:
        Integers in int32 or float64, of shape (batch, *places, outputs).
    """
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    with _operation("sums_of_windows", input, weight, **settings):
        kernel, zero = weight.shape[2:], input.qparams.zero_point.astype(input.values.dtype)
        margins = [(0, 0, 0), *((before, after, 0) for before, after in padding), (0, 0, 0)]
        images = jax.lax.pad(input.values, zero, margins)
        windows = type(input)(_windows(images, kernel, stride, dilation, groups), input.qparams, input.form)
        filters = jnp.moveaxis(weight.values, 1, -1)
        return sums_of_products(windows, type(weight)(filters, weight.qparams, weight.form), groups)


def _operation(name: str, input: Any, weight: Any, **settings: Any) -> Any:
    """The scope of exact sums; see `qjax._rounding.scopes.operation`."""
    arrays = (part for q in (input, weight) for part in (q.values, q.qparams.scale, q.qparams.zero_point))
    return operation(name, *arrays, forms=[input.form.text, weight.form.text], **settings)


def _windows(
    images: jax.Array, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...], groups: int
) -> jax.Array:
    """What each output sees, of shape (batch, *places, groups, pixels * channels), for images with channels last.

    XLA's own convolution of int8 is 50 times slower on CPU than these copies and a product of matrices.
    """
    along = [
        [slice(i * gap, i * gap + size - (count - 1) * gap, step) for i in range(count)]
        for size, count, step, gap in zip(images.shape[1:-1], kernel, stride, dilation, strict=True)
    ]
    pixels = jnp.stack([images[(slice(None), *places)] for places in product(*along)], axis=-2)
    pixels = pixels.reshape(*pixels.shape[:-1], groups, -1)
    pixels = jnp.moveaxis(pixels, -2, -3)
    return pixels.reshape(*pixels.shape[:-2], -1)


_BITS = 4


def packs(form: AffineInteger) -> bool:
    """True if integers of this form are packed two in a byte."""
    least = -(1 << _BITS - 1) if form.signed else 0
    return least <= form.qmin and form.qmax < least + (1 << _BITS)


def packed(values: jax.Array) -> jax.Array:
    """Integers of shape (outputs, ...) as uint8 of shape (outputs, bytes)."""
    return pack(values.reshape(len(values), -1), _BITS)


def unpacked(packed: jax.Array, form: AffineInteger, shape: tuple[int, ...]) -> jax.Array:
    """The unpacked integers, in the weight's shape; `packed` may hold only some of the outputs."""
    codes, sign = unpack(packed, _BITS, prod(shape[1:])).reshape(-1, *shape[1:]), 1 << _BITS - 1
    return (codes ^ sign).astype(jnp.int8) - jnp.int8(sign) if form.signed else codes


@partial(jax.tree_util.register_dataclass, data_fields=["packed", "qparams"], meta_fields=["form", "shape"])
@dataclass(frozen=True)
class PackedTensor:
    """A quantized weight with integers packed two in a byte: a pytree.

    Attributes:
        packed: uint8 of shape (outputs, bytes).
        qparams: one scale for all, or along axis 0.
        form: the range of the integers.
        shape: of the weight, outputs first.

    Example:
        >>> from qjax.quantization import quantize_per_tensor
        >>> weight = PackedTensor.of(
        ...     quantize_per_tensor(jnp.float32([[-1.0, 0.5]]), 0.5, 0, AffineInteger(-8, 7))
        ... )
        >>> weight.packed, weight.unpacked().int_repr()
        (Array([[30]], dtype=uint8), Array([[-2,  1]], dtype=int8))
    """

    packed: jax.Array
    qparams: QParams
    form: AffineInteger
    shape: tuple[int, ...]

    @classmethod
    def of(cls, weight: QTensor) -> PackedTensor:
        """The packed form of a quantized weight whose form `packs`."""
        return cls(packed(weight.values), weight.qparams, weight.form, tuple(weight.shape))

    def unpacked(self) -> QTensor:
        """The weight."""
        return QTensor(unpacked(self.packed, self.form, self.shape), self.qparams, self.form)
