"""Pools and means of quantized arrays: the parameters stay, sums are exact, and quotients are rounded once, to even."""

from __future__ import annotations

import operator
from functools import reduce
from math import prod
from typing import Any

from qcore.affine import law
from qcore.affine.arithmetic.operands import check_operand, differences, wrapped
from qcore.affine.arithmetic.windows import Windows, check_images, make_windows
from qcore.arguments import check_flag, check_int, check_type


def max_pool(
    input: Any,
    dimensions: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Any:
    """The greatest integer of each window; what lies around the array never is.

    Args:
        input: quantized array of shape (batch, channels, *sizes), or (channels, *sizes).
        dimensions: how many sizes there are: 1, 2 or 3.
        kernel_size, stride, padding, dilation: for all dimensions or for each; stride None means kernel_size.
        ceil_mode: True if a last window may reach beyond the padding.

    Returns:
        A quantized array of shape (batch, channels, *windows), or without the batch, with input's form and parameters.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if shapes or settings do not fit, or input has a scale for each channel.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[[3, 5, 4, 9]]]), QParams.of(0.1, 7), UINT8)
        >>> max_pool(q, 1, 2).values
        array([[[5, 9]]], dtype=uint8)
    """
    check_operand("input", input)
    windows = make_windows(tuple(input.shape), kernel_size, stride, padding, dilation, ceil_mode, dimensions)
    xp = input.names
    with xp.arithmetic():
        x = windows.padded(xp, xp.astype(input.values, "int32"), input.form.qmin)
        return wrapped(input, windows.reduced(x, xp.maximum), input.qparams, input.form)


def avg_pool(
    input: Any,
    dimensions: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """rint(sum of (input - zero_point) / count) + zero_point of each window; what lies around the array counts as 0.

    Args:
        input, dimensions, kernel_size, stride, padding, ceil_mode: as for `max_pool`.
        count_include_pad: whether the padding is counted.
        divisor_override: what to divide by in the place of the count.

    Returns:
        A quantized array of shape (batch, channels, *windows), or without the batch, with input's form and parameters.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if shapes or settings do not fit, or input has a scale for each channel.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[[3, 5], [4, 9]]]), QParams.of(0.1, 7), UINT8)
        >>> avg_pool(q, 2, 2).values
        array([[[5]]], dtype=uint8)
    """
    check_operand("input", input)
    check_flag("count_include_pad", count_include_pad)
    if divisor_override is not None:
        check_int("divisor_override", divisor_override, 1)
    windows = make_windows(tuple(input.shape), kernel_size, stride, padding, 1, ceil_mode, dimensions)
    xp = input.names
    with xp.arithmetic():
        x = windows.padded(xp, xp.astype(differences(input), "int64"), 0)
        sums = windows.reduced(x, operator.add)
        counts = [[divisor_override]] if divisor_override else _counts(windows, tuple(input.shape), count_include_pad)
        quotients = xp.divide(xp.astype(sums, "float64"), _product(input, counts))
        return wrapped(input, _rounded(input, quotients, input.qparams.zero_point), input.qparams, input.form)


def adaptive_avg_pool(input: Any, output_size: Any, dimensions: int = 2) -> Any:
    """rint(sum of input / count) of windows that cover each dimension evenly.

    The window i of n over a size s is from floor(i * s / n) to ceil((i + 1) * s / n).

    Args:
        input: quantized array of shape (batch, channels, *sizes), or (channels, *sizes).
        output_size: how many windows there are along all dimensions, or each; None leaves a dimension as it is.
        dimensions: how many sizes there are: 1, 2 or 3.

    Returns:
        A quantized array of shape (batch, channels, *windows), or without the batch, with input's form and parameters.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if shapes or settings do not fit, or input has a scale for each channel.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[[3, 5, 4], [4, 9, 6]]]), QParams.of(0.1, 7), UINT8)
        >>> adaptive_avg_pool(q, (1, 2)).values
        array([[[5, 6]]], dtype=uint8)
    """
    check_operand("input", input)
    shape = tuple(input.shape)
    check_images(shape, dimensions)
    asked = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * dimensions
    if len(asked) != dimensions:
        raise ValueError(f"output_size={output_size}; allowed are one number or {dimensions}")
    xp, first = input.names, len(shape) - dimensions
    with xp.arithmetic():
        sums, counts = xp.astype(input.values, "int64"), []
        for number, places in enumerate(asked):
            axis, size = first + number, shape[first + number]
            places = size if places is None else check_int("output_size", places, 1, 2**16)
            spans = [(i * size // places, -(-(i + 1) * size // places)) for i in range(places)]
            rest = (slice(None),) * axis
            if size % places:
                sums = xp.concatenate([xp.total(sums[(*rest, slice(*span))], (axis,)) for span in spans], axis)
            else:  # windows that do not overlap
                apart = sums.reshape((*sums.shape[:axis], places, size // places, *sums.shape[axis + 1 :]))
                sums = xp.total(apart, (axis + 1,)).reshape((*sums.shape[:axis], places, *sums.shape[axis + 1 :]))
            counts.append([high - low for low, high in spans])
        quotients = xp.divide(xp.astype(sums, "float64"), _product(input, counts))
        return wrapped(input, _rounded(input, quotients, 0), input.qparams, input.form)


def mean(input: Any, axes: tuple[int, ...], keepdims: bool = False) -> Any:
    """rint(sum of input / count) along dimensions.

    Args:
        input: quantized array.
        axes: the dimensions.
        keepdims: whether they stay, with a size of 1.

    Returns:
        A quantized array without these dimensions, or with sizes of 1 there, of input's form and parameters.

    Raises:
        TypeError: if an argument has the wrong type; axes is a tuple, of one dimension too.
        ValueError: if a dimension is out of range or stands there twice, or input has a scale for each channel.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[1, 3], [4, 4]]), QParams.of(0.5, 0), UINT8)
        >>> mean(q, (1,)).values
        array([2, 4], dtype=uint8)
    """
    check_operand("input", input)
    check_flag("keepdims", keepdims)
    check_type("axes", axes, (tuple, list), "a tuple of dimensions")
    places = tuple(check_int("axes", axis, -input.ndim, input.ndim - 1) % input.ndim for axis in axes)
    if len(set(places)) < len(places):
        raise ValueError(f"axes={axes}; allowed are dimensions that differ")
    xp, shape = input.names, tuple(input.shape)
    with xp.arithmetic():
        sums = xp.total(xp.astype(input.values, "int64"), places)
        integers = law.mean(xp, sums, prod([shape[axis] for axis in places]))
        if not keepdims:
            integers = integers.reshape(tuple(size for axis, size in enumerate(shape) if axis not in places))
        return wrapped(input, integers, input.qparams, input.form)


def _counts(windows: Windows, shape: tuple[int, ...], with_padding: bool) -> list[list[int]]:
    """How many elements each window has along each dimension."""
    margins = windows.before if with_padding else (0,) * len(windows.before)
    sizes = shape[len(shape) - len(margins) :]
    return [windows.inside(sizes, number, margin) for number, margin in enumerate(margins)]


def _product(q: Any, counts: list[list[int]]) -> Any:
    """The counts of all windows, of those along each dimension: float64, or a number that is that of all."""
    xp = q.names
    if all(min(line) == max(line) for line in counts):
        return float(prod([line[0] for line in counts]))
    along = (xp.constant([float(n) for n in line], "float64", q.values) for line in counts)
    last = len(counts) - 1
    return reduce(lambda a, b: a * b, (x.reshape((-1, *(1,) * (last - number))) for number, x in enumerate(along)))


def _rounded(q: Any, quotients: Any, offset: Any) -> Any:
    xp = q.names
    return xp.clip(xp.astype(xp.rint(quotients), "int32") + offset, q.form.qmin, q.form.qmax)
