"""Exact sums of products of a convolution: as a product of matrices of int8, or in floats that hold all sums."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.nn import functional

from qtorch._affine.integer.conversion import requantize
from qtorch._affine.integer.kernel import Geometry, Rounding, product_of
from qtorch._affine.integer.products import are_zero, corrected, fits_int32, float_differences, largest_sum, signed
from qtorch._torch_internals import INT8_TERMS, int8_product, multiplies_int8

_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_INT24, _INT53 = 2**24, 2**53


def sums_of_windows(
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> torch.Tensor:
    """The sums of (x - its zero point) * (w - its zero point) over each window, without rounding; around x is nothing.

    Args:
        input: QTensor of shape (batch, channels, *sizes), with one scale.
        weight: QTensor of shape (outputs, channels / groups, *kernel), with one scale or one for each output.
        stride, padding, dilation: for each dimension.
        groups: into how many parts channels and outputs are split.

    Returns:
        Integers in int32, float32 or float64, of shape (batch, *places, outputs).

    Raises:
        ValueError: if sums may not be exact in float64.
    """
    terms = prod(weight.shape[1:])
    product = product_of(weight, Geometry(stride, padding, dilation, groups), None)
    sums = None if product is None else product(input.values, input.qparams)
    if sums is not None:
        return sums.movedim(1, -1)
    if groups == 1 and fits_int32(input, weight, terms):
        if multiplies_int8(input.device) or prod(weight.shape[2:]) == 1:
            return _by_int8(input, weight, stride, padding, dilation)
        if prod(weight.shape[2:]) <= INT8_TERMS // 2:
            return _by_parts(input, weight, stride, padding, dilation)
    most = largest_sum(input, weight, terms)
    if most > _INT53:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, whose sums may pass 2^53; allowed are fewer terms")
    exact = torch.float32 if most <= _INT24 and input.values.is_cpu else torch.float64  # GPUs may go by way of Winograd
    if len(stride) > 1 and exact is torch.float32:  # torch takes ten times as long for groups with channels first
        input = input._with(input.values.movedim(1, -1).contiguous().movedim(-1, 1))
    operands = (float_differences(q, exact) for q in (input, weight))
    convolve: Any = _CONVOLUTIONS[len(stride)]
    with torch.autocast(input.device.type, enabled=False):
        return convolve(*operands, None, stride, padding, dilation, groups).movedim(1, -1)


def rounded_windows(input: Any, weight: Any, geometry: Geometry, rounding: Rounding) -> torch.Tensor:
    """The integers of shape (batch, outputs, *places) to which `sums_of_windows` are rounded; the same errors."""
    product = product_of(weight, geometry, rounding)
    values = None if product is None else product(input.values, input.qparams)
    if values is not None:
        return values
    sums = sums_of_windows(input, weight, *geometry)
    return requantize(sums, input.qparams.scale, weight.qparams.scale, *rounding).movedim(-1, 1)


def _by_parts(
    input: Any, weight: Any, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> torch.Tensor:
    """Convolutions of so few channels at a time that float32 holds the sums, where there is nothing faster for int8."""
    (images, zero), filters = signed(input), float_differences(weight, torch.float32)
    centred = weight.form.signed and are_zero(weight.qparams.zero_point)
    terms = INT8_TERMS if centred else INT8_TERMS // 2  # differences may be twice as large
    channels = max(1, terms // prod(weight.shape[2:]))
    images = _padded(images.movedim(1, -1), zero, padding).movedim(-1, 1).to(torch.float32)
    convolve: Any = _CONVOLUTIONS[len(stride)]
    with torch.autocast(input.device.type, enabled=False):
        parts = zip(images.split(channels, 1), filters.split(channels, 1), strict=True)
        sums = [convolve(*part, None, stride, 0, dilation).movedim(1, -1) for part in parts]
    total = sums[0] if len(sums) == 1 else torch.stack([one.to(torch.int32) for one in sums]).sum(0, dtype=torch.int32)
    of_filters = filters.flatten(1).sum(1, dtype=torch.float64).to(torch.int32)
    return total.sub_((zero * of_filters).to(total.dtype))


def _by_int8(
    input: Any, weight: Any, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> torch.Tensor:
    (images, zero), (filters, zeros) = signed(input), signed(weight)
    rows = _windows(_padded(images.movedim(1, -1), zero, padding), weight.shape[2:], stride, dilation)
    places = rows.shape[: images.ndim - 1]
    terms = prod(weight.shape[1:])
    rows = rows.reshape(prod(places), terms).contiguous()  # of one dimension they may overlap, which oneDNN gets wrong
    filters = filters.movedim(1, -1).reshape(len(filters), terms)
    sums = corrected(int8_product(rows, filters.t()), rows, zero, filters, zeros)
    return sums.reshape(*places, len(filters))


def _padded(images: torch.Tensor, zero: torch.Tensor, padding: tuple[int, ...]) -> torch.Tensor:
    """Images of shape (batch, *sizes, channels) within margins of their zero point."""
    if not any(padding):
        return images.contiguous()
    batch, *sizes, channels = images.shape
    larger = [size + 2 * margin for size, margin in zip(sizes, padding, strict=True)]
    result = zero.to(images.dtype).expand(batch, *larger, channels).contiguous()
    inside = tuple(slice(margin, margin + size) for size, margin in zip(sizes, padding, strict=True))
    result[(slice(None), *inside)] = images
    return result


def _windows(
    images: torch.Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> torch.Tensor:
    """All places of a kernel, as a view of shape (batch, *places, *kernel, channels) of images with channels last."""
    sizes, strides = list(images.shape), list(images.stride())
    places = [
        (size - gap * (count - 1) - 1) // step + 1
        for size, count, step, gap in zip(sizes[1:-1], kernel, stride, dilation, strict=True)
    ]
    along = strides[1:-1]
    moves = [one * step for one, step in zip(along, stride, strict=True)]
    inner = [one * gap for one, gap in zip(along, dilation, strict=True)]
    shape = (sizes[0], *places, *kernel, sizes[-1])
    return images.as_strided(shape, (strides[0], *moves, *inner, strides[-1]))
