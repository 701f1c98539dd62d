"""Exact sums of products of integers, by whichever product of matrices serves their widths."""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import QParams
from qtorch._affine.integer.conversion import dequantize, requantize
from qtorch._affine.integer.kernel import Geometry, Rounding, product_of
from qtorch._torch_internals import int8_product, is_memory

_INT32, _INT53 = 2**31, 2**53
_FEW_ROWS = 16  # fewer take no longer than the kernel needs to lay out the weight


def sums_of_products(input: Any, weight: Any) -> torch.Tensor:
    """The sums of (x - its zero point) * (w - its zero point) over the last dimension, without rounding.

    Integers of 8 bits are multiplied as int8, where a processor has no instructions for int8 by a kernel in C, or in
    parts that float32 holds; others in float64, which holds all sums up to 2^53.

    Args:
        input: QTensor of shape (rows, terms), with one scale.
        weight: QTensor of shape (outputs, terms), with one scale or one for each output.

    Returns:
        Integers in int32, float32 or float64, of shape (rows, outputs).

    Raises:
        ValueError: if sums may not be exact in float64.
    """
    terms = weight.shape[1]
    sums = _by_kernel(input, weight, None)
    if sums is not None:
        return sums
    if fits_int32(input, weight, terms):
        (rows, zero), (filters, zeros) = signed(input), signed(weight)
        rows = rows.contiguous()  # expanded and overlapping ones oneDNN gets wrong
        return corrected(int8_product(rows, filters.t()), rows, zero, filters, zeros)
    if largest_sum(input, weight, terms) > _INT53:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, whose sums may pass 2^53; allowed are fewer terms")
    return float_differences(input, torch.float64) @ float_differences(weight, torch.float64).t()


def rounded_products(input: Any, weight: Any, rounding: Rounding) -> torch.Tensor:
    """The integers to which `sums_of_products` are rounded, which raises the same errors."""
    values = _by_kernel(input, weight, rounding)
    if values is not None:
        return values
    return requantize(sums_of_products(input, weight), input.qparams.scale, weight.qparams.scale, *rounding)


def _by_kernel(input: Any, weight: Any, rounding: Rounding | None) -> torch.Tensor | None:
    if input.shape[0] < _FEW_ROWS:
        return None
    product = product_of(weight, Geometry(), rounding)
    return None if product is None else product(input.values.contiguous(), input.qparams)


def corrected(
    sums: torch.Tensor, rows: torch.Tensor, zero: torch.Tensor, filters: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The sums of (row - zero) * (filter - its zero), of those of row * filter, which are new.

    Those in float32 are of at most `INT8_TERMS` products, so that what is taken away is exact too, and the difference
    is rounded once, as the conversion of int32 is.
    """
    if not are_zero(zeros):
        of_rows = (row_sums(rows) - zero * rows.shape[1]).unsqueeze(1) * zeros
        sums = sums.to(torch.int32) - of_rows
    return sums.sub_((zero * row_sums(filters)).to(sums.dtype))


def are_zero(zeros: torch.Tensor) -> bool:
    """True if all of these are known to be 0: in programs, and of tensors without values, none is."""
    return not torch.compiler.is_dynamo_compiling() and is_memory(zeros) and not zeros.is_meta and not zeros.any()


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """The sums of int8 matrices' rows, int32; float32, which is faster, holds those of up to 2^17 numbers."""
    if rows.shape[1] <= 1 << 17:
        return rows.to(torch.float32).sum(1).to(torch.int32)
    return rows.sum(1, dtype=torch.int32)


def fits_int32(input: Any, weight: Any, terms: int) -> bool:
    """True if the integers have 8 bits and int32 holds all sums of so many products."""
    narrow = max(q.values.element_size() for q in (input, weight)) == 1
    return narrow and largest_sum(input, weight, terms) < _INT32


def largest_sum(input: Any, weight: Any, terms: int) -> int:
    """A bound of all sums of so many products."""
    return terms * (input.form.qmax - input.form.qmin) * (weight.form.qmax - weight.form.qmin)


def float_differences(q: Any, dtype: torch.dtype) -> torch.Tensor:
    """The integers less their zero points, as floats."""
    zero = q.qparams.zero_point
    if dtype is torch.float32:
        return dequantize(q.values, QParams(torch.ones_like(q.qparams.scale), zero, q.qparams.axis), q.form)
    if zero.ndim:
        zero = zero.reshape(-1, *(1,) * (q.ndim - 1))
    return (q.values.to(torch.int32) - zero).to(dtype)


def signed(q: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 values and a zero point with the same differences; unsigned ones are moved by 128."""
    if q.values.dtype is torch.int8:
        return q.values, q.qparams.zero_point
    return (q.values ^ 0x80).view(torch.int8), q.qparams.zero_point - 128
