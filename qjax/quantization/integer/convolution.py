"""Exact sums over windows of images, as products of matrices."""

from __future__ import annotations

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from qjax.quantization.integer.products import sums_of_products

Pairs = tuple[tuple[int, int], ...]


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
    kernel, zero = weight.shape[2:], input.qparams.zero_point.astype(input.values.dtype)
    margins = [(0, 0, 0), *((before, after, 0) for before, after in padding), (0, 0, 0)]
    images = jax.lax.pad(input.values, zero, margins)
    windows = type(input)(_windows(images, kernel, stride, dilation, groups), input.qparams, input.form)
    filters = jnp.moveaxis(weight.values, 1, -1)
    return sums_of_products(windows, type(weight)(filters, weight.qparams, weight.form), groups)


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
