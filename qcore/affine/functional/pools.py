"""Pools and means of quantized arrays: the parameters stay, sums are exact, and quotients are rounded once, to even."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any, NamedTuple

from qcore.affine import law
from qcore.affine.functional.operands import check_operand, computed, differences
from qcore.affine.integers import AffineInteger
from qcore.affine.parameters import QParams
from qcore.affine.quantized import Q
from qcore.affine.rows import operation
from qcore.arguments import check_flag, check_int, check_size, check_sizes, check_type

__all__ = ["adaptive_avg_pool", "avg_pool", "max_pool", "mean"]

Counts = tuple[tuple[Any, ...], ...]  # for each dimension a number, or two ends, of each window


@operation(passing=["MaxPool1d", "MaxPool2d", "MaxPool3d"])
def max_pool(
    input: Q,
    dimensions: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Q:
    """The greatest integer of each window; padding is never the greatest.

    Args:
        input: quantized array of shape (batch, channels, *sizes), or (channels, *sizes).
        dimensions: the number of sizes: 1, 2 or 3.
        kernel_size, stride, padding, dilation: for all dimensions or for each; stride None means kernel_size.
        ceil_mode: True if a last window may reach beyond the padding.

    Returns:
        A quantized array of shape (batch, channels, *windows), or without the batch, with input's form and parameters.

    Raises:
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
    return computed(_max_pool, (input,), input.qparams, input.form, windows)


def _max_pool(q: Any, _: QParams, form: AffineInteger, windows: Windows) -> Any:
    xp = q.names
    x = windows.padded(xp, xp.astype(q.values, "int32"), form.qmin)  # never greater than an element
    return windows.reduced(x, xp.maximum)


@operation(passing=["AvgPool1d", "AvgPool2d", "AvgPool3d"], rounds=True)
def avg_pool(
    input: Q,
    dimensions: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Q:
    """rint(sum of (input - zero_point) / count) + zero_point of each window; padding counts as 0.

    Args:
        input, dimensions, kernel_size, stride, padding, ceil_mode: as for `max_pool`.
        count_include_pad: True if the padding is counted.
        divisor_override: a divisor that replaces the count; None keeps the count.

    Returns:
        A quantized array of shape (batch, channels, *windows), or without the batch, with input's form and parameters.

    Raises:
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
        check_size("divisor_override", divisor_override)
    windows = make_windows(tuple(input.shape), kernel_size, stride, padding, 1, ceil_mode, dimensions)
    counts = ((divisor_override,),) if divisor_override else _counts(windows, tuple(input.shape), count_include_pad)
    return computed(_avg_pool, (input,), input.qparams, input.form, windows, counts)


def _avg_pool(q: Any, output: QParams, form: AffineInteger, windows: Windows, counts: Counts) -> Any:
    xp = q.names
    x = windows.padded(xp, xp.astype(differences(q), "int64"), 0)  # sums are exact, whatever the window
    sums = windows.reduced(x, operator.add)
    return _rounded(q, xp.divide(xp.astype(sums, "float64"), _product(q, counts)), output.zero_point)


@operation(passing=["AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d"], rounds=True)
def adaptive_avg_pool(input: Q, output_size: int | Sequence[int | None] | None, dimensions: int = 2) -> Q:
    """rint(sum of input / count) of windows that cover each dimension evenly.

    The window i of n over a size s is from floor(i * s / n) to ceil((i + 1) * s / n).

    Args:
        input: quantized array of shape (batch, channels, *sizes), or (channels, *sizes).
        output_size: the number of windows along all dimensions, or along each; None keeps a dimension's size.
        dimensions: the number of sizes: 1, 2 or 3.

    Returns:
        A quantized array of shape (batch, channels, *windows), or without the batch, with input's form and parameters.

    Raises:
        ValueError: if shapes or settings do not fit, or input has a scale for each channel.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[[3, 5, 4], [4, 9, 6]]]), QParams.of(0.1, 7), UINT8)
        >>> adaptive_avg_pool(q, (1, 2)).values
        array([[[5, 6]]], dtype=uint8)
    """
    check_operand("input", input)
    along = _covering(tuple(input.shape), output_size, dimensions)
    return computed(_adaptive_avg_pool, (input,), input.qparams, input.form, along)


def _adaptive_avg_pool(q: Any, _: QParams, form: AffineInteger, along: tuple[tuple[int, Counts], ...]) -> Any:
    xp = q.names
    sums = xp.astype(q.values, "int64")
    for axis, spans in along:
        places, size, rest = len(spans), q.shape[axis], (slice(None),) * axis
        if size % places:
            sums = xp.concatenate([xp.total(sums[(*rest, slice(*span))], (axis,)) for span in spans], axis)
        else:  # windows that do not overlap
            apart = sums.reshape((*sums.shape[:axis], places, size // places, *sums.shape[axis + 1 :]))
            sums = xp.total(apart, (axis + 1,)).reshape((*sums.shape[:axis], places, *sums.shape[axis + 1 :]))
    counts = tuple(tuple(high - low for low, high in spans) for _, spans in along)
    return _rounded(q, xp.divide(xp.astype(sums, "float64"), _product(q, counts)), 0)


def mean(input: Q, axes: tuple[int, ...], keepdims: bool = False) -> Q:
    """rint(sum of input / count) along dimensions.

    Args:
        input: quantized array.
        axes: the dimensions.
        keepdims: True if they stay, with size 1.

    Returns:
        A quantized array without these dimensions, or with sizes of 1 there, of input's form and parameters.

    Raises:
        TypeError: if an argument has the wrong type; axes is a tuple, also for one dimension.
        ValueError: if a dimension is out of range or given twice, or input has a scale for each channel.

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
    return computed(_mean, (input,), input.qparams, input.form, places, keepdims)


def _mean(q: Any, _: QParams, form: AffineInteger, places: tuple[int, ...], keepdims: bool) -> Any:
    xp, shape = q.names, tuple(q.shape)
    sums = xp.total(xp.astype(q.values, "int64"), places)
    integers = law.mean(xp, sums, prod([shape[axis] for axis in places]))
    kept = tuple(size for axis, size in enumerate(shape) if axis not in places)
    return integers if keepdims else integers.reshape(kept)


def _covering(shape: tuple[int, ...], output_size: Any, dimensions: int) -> tuple[tuple[int, Counts], ...]:
    """For each of the last dimensions its axis, and the ends of the windows that cover it evenly."""
    check_images(shape, dimensions)
    asked = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * dimensions
    if len(asked) != dimensions:
        raise ValueError(f"output_size={output_size}; allowed are one number or {dimensions}")
    along = []
    for axis, places in enumerate(asked, len(shape) - dimensions):
        size = shape[axis]
        places = size if places is None else check_int("output_size", places, 1, 2**16)
        # Windows overlap unless the number of places divides the size: the ends are rounded outwards.
        along.append((axis, tuple((i * size // places, -(-(i + 1) * size // places)) for i in range(places))))
    return tuple(along)


def _counts(windows: Windows, shape: tuple[int, ...], with_padding: bool) -> Counts:
    """The number of elements of each window along each dimension."""
    margins = windows.before if with_padding else (0,) * len(windows.before)
    sizes = shape[len(shape) - len(margins) :]
    return tuple(windows.inside(sizes, number, margin) for number, margin in enumerate(margins))


def _product(q: Any, counts: Counts) -> Any:
    """The product of the counts along all dimensions, for each window: float64, or one number where all are equal."""
    xp = q.names
    if all(min(line) == max(line) for line in counts):
        return float(prod([line[0] for line in counts]))
    along = (xp.constant([float(n) for n in line], "float64", q.values) for line in counts)
    last = len(counts) - 1
    return reduce(lambda a, b: a * b, (x.reshape((-1, *(1,) * (last - number))) for number, x in enumerate(along)))


def _rounded(q: Any, quotients: Any, offset: Any) -> Any:
    xp = q.names
    return xp.clip(xp.astype(xp.rint(quotients), "int32") + offset, q.form.qmin, q.form.qmax)


class Windows(NamedTuple):
    """The windows along the last dimensions of an array.

    Attributes:
        kernel, stride, dilation: the sizes and distances of windows in each dimension.
        before: the padding at the start of each dimension.
        after: the padding at its end, with which all windows are inside.
        counts: the number of windows along each dimension.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    counts: tuple[int, ...]

    def padded(self, xp: Any, x: Any, value: int) -> Any:
        """The array with a value around it, without the elements at the end that no window reaches."""
        inner = [min(0, end) for end in self.after]
        sizes = x.shape[x.ndim - len(inner) :]
        x = x[(..., *(slice(0, size + end) for size, end in zip(sizes, inner, strict=True)))]
        rest = [(0, 0)] * (x.ndim - len(inner))
        widths = [(start, max(0, end)) for start, end in zip(self.before, self.after, strict=True)]
        return xp.pad(x, [*rest, *widths], value) if any(map(any, widths)) else x

    def reduced(self, x: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """Combines the elements of each window of the padded array by an associative function, by dimensions."""
        # Along one dimension after the other: a window of m x n takes m + n steps, not m * n.
        for number, size in enumerate(self.kernel):
            rest = (slice(None),) * (x.ndim - len(self.kernel) + number)
            step, gap, count = self.stride[number], self.dilation[number], self.counts[number]
            cuts = [slice(place * gap, place * gap + step * (count - 1) + 1, step) for place in range(size)]
            x = reduce(combine, [x[(*rest, cut)] for cut in cuts])
        return x

    def inside(self, sizes: tuple[int, ...], number: int, margin: int) -> tuple[int, ...]:
        """The number of each window's elements along a dimension that lie in the array with a margin."""
        start, step, size = self.before[number], self.stride[number], self.kernel[number]
        low, high = -margin, sizes[number] + margin
        begins = [place * step - start for place in range(self.counts[number])]
        return tuple(min(begin + size, high) - max(begin, low) for begin in begins)


def make_windows(
    shape: tuple[int, ...], kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any, dimensions: int
) -> Windows:
    """The windows of a pool over the last dimensions of a shape, as `torch.nn.functional` places them."""
    check_flag("ceil_mode", ceil_mode)
    check_images(shape, dimensions)
    kernel = check_sizes("kernel_size", kernel_size, 1, dimensions)
    as_kernel = stride is None or (isinstance(stride, (tuple, list)) and not stride)
    steps = check_sizes("stride", kernel if as_kernel else stride, 1, dimensions)
    margins = check_sizes("padding", padding, 0, dimensions)
    gaps = check_sizes("dilation", dilation, 1, dimensions)
    places, after = [], []
    sizes = shape[-dimensions:]
    for size, count, step, margin, gap in zip(sizes, kernel, steps, margins, gaps, strict=True):
        extent, room = gap * (count - 1) + 1, size + 2 * margin
        if 2 * margin > count or room < extent:
            raise ValueError(
                f"input has shape {shape} with kernel_size={kernel}, padding={margins} and dilation={gaps}; allowed "
                "are paddings of at most half a kernel, and inputs that hold one"
            )
        number = -(-(room - extent) // step) + 1 if ceil_mode else (room - extent) // step + 1
        if (number - 1) * step >= size + margin:  # a window that would lie in the padding alone
            number -= 1
        places.append(number)
        after.append((number - 1) * step + extent - size - margin)
    return Windows(kernel, steps, gaps, margins, tuple(after), tuple(places))


def check_images(shape: tuple[int, ...], dimensions: Any) -> None:
    """Raises unless a shape has this many dimensions after the channels, with a batch or without."""
    dimensions = check_int("dimensions", dimensions, 1, 3)
    if len(shape) not in (dimensions + 1, dimensions + 2):
        raise ValueError(f"input has shape {shape}; allowed are {dimensions + 1} or {dimensions + 2} dimensions")
