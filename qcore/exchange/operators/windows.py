"""Operators of ONNX with windows: convolutions and pools. Sums are in float64 and rounded once.

Each place of a window is a pass over the images, so that no array holds all windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import quoted
from qcore.exchange.limits import check_shape
from qcore.exchange.operators.quantization import centred, ratio_of, requantized, sums_of

Sizes = Sequence[int] | None


class Window(NamedTuple):
    """A window that moves along the spatial dimensions: one number for each; `pads` has (before, after)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    positions: tuple[int, ...]


def _sizes(dims: int, low: int = 1, **given: Sizes) -> list[tuple[int, ...]]:
    """Attributes with one number for each spatial dimension, 1 where they are left out."""
    found = {name: tuple((low,) * dims if one is None else one) for name, one in given.items()}
    for name, one in found.items():
        if len(one) != dims or min(one, default=low) < low:
            raise ValueError(f"{name}={one} of {dims} spatial dimensions; allowed are as many ints from {low} on")
    return [*found.values()]


def _pads(pads: Sizes, dims: int) -> tuple[tuple[int, int], ...]:
    flat = tuple(pads or (0,) * (2 * dims))
    if len(flat) != 2 * dims or min(flat, default=0) < 0:
        raise ValueError(f"pads={flat} of {dims} spatial dimensions; allowed are two ints from 0 on for each")
    return tuple(zip(flat[:dims], flat[dims:], strict=True))


def _halves(needs: Sequence[int], auto_pad: str) -> tuple[tuple[int, int], ...]:
    """Padding of these sizes, the larger half of each behind the images for SAME_UPPER."""
    return tuple((n // 2, n - n // 2) if auto_pad == "SAME_UPPER" else (n - n // 2, n // 2) for n in needs)


def _checked_auto_pad(auto_pad: str) -> str:
    allowed = "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"
    if auto_pad not in allowed:
        raise ValueError(f"auto_pad={quoted(auto_pad)}; allowed are {', '.join(allowed)}")
    return auto_pad


def window_of(
    lengths: Sequence[int],
    kernel_shape: Sizes,
    strides: Sizes,
    dilations: Sizes,
    pads: Sizes,
    auto_pad: str,
    ceil_mode: int = 0,
) -> Window:
    """The window of a convolution or pool over these lengths."""
    dims = len(lengths)
    kernel, steps, gaps = _sizes(dims, kernel_shape=kernel_shape, strides=strides, dilations=dilations)
    reach = [gap * (size - 1) + 1 for gap, size in zip(gaps, kernel, strict=True)]
    if _checked_auto_pad(auto_pad).startswith("SAME"):
        rows = zip(lengths, steps, reach, strict=True)
        found = _halves(
            [max((-(-length // step) - 1) * step + size - length, 0) for length, step, size in rows], auto_pad
        )
    else:
        found = _pads(pads if auto_pad == "NOTSET" else None, dims)
    check_shape(tuple(size + sum(pad) for size, pad in zip(lengths, found, strict=True)), "a padded input")
    positions = []
    for axis in range(dims):
        space = lengths[axis] + sum(found[axis]) - reach[axis]
        count = space // steps[axis] + 1
        if ceil_mode:
            count = -(-space // steps[axis]) + 1
            if (count - 1) * steps[axis] >= lengths[axis] + found[axis][0]:
                count -= 1  # the last window would begin in the padding
        if space < 0 or count < 1:
            raise ValueError(f"a window of {reach[axis]} along {lengths[axis]} numbers; allowed are windows that fit")
        positions.append(count)
    return Window(kernel, steps, gaps, found, tuple(positions))


def passes(x: np.ndarray, window: Window, fill: float) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """For each place of a window what it reads of (batch, channels, *lengths): (batch, channels, *positions)."""
    pads = []
    for axis, (before, after) in enumerate(window.pads):
        reach = window.dilations[axis] * (window.kernel[axis] - 1)
        last = (window.positions[axis] - 1) * window.strides[axis] + reach + 1
        pads.append((before, max(after, last - before - x.shape[axis + 2])))  # more with ceil_mode
    check_shape(
        (*x.shape[:2], *(size + sum(pad) for size, pad in zip(x.shape[2:], pads, strict=True))), "a padded input"
    )
    x = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=np.asarray(fill, x.dtype))
    for place in product(*(range(size) for size in window.kernel)):
        yield place, x[(slice(None), slice(None), *_strided(place, window))]


def _strided(place: tuple[int, ...], window: Window) -> list[slice]:
    """Where a place of the window lies for all positions."""
    rows = zip(place, window.dilations, window.positions, window.strides, strict=True)
    return [slice(gap * at, gap * at + (count - 1) * step + 1, step) for at, gap, count, step in rows]


def convolved(
    x: np.ndarray,
    weight: np.ndarray,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sizes = None,
    group: int = 1,
    kernel_shape: Sizes = None,
    pads: Sizes = None,
    strides: Sizes = None,
) -> np.ndarray:
    """The convolution of float64 arrays (batch, channels, ...) and (outputs, channels / group, ...)."""
    kernel = tuple(weight.shape[2:] if kernel_shape is None else kernel_shape)
    fits = x.ndim == weight.ndim >= 3 and group >= 1 and x.shape[1] == weight.shape[1] * group
    if not fits or weight.shape[0] % group or kernel != weight.shape[2:]:
        raise ValueError(
            f"input has shape {x.shape}, weight {weight.shape} with group={group}, kernel_shape={kernel}; "
            "allowed are (batch, channels, ...) and (outputs, channels / group, *kernel_shape)"
        )
    window = window_of(x.shape[2:], kernel, strides, dilations, pads, auto_pad)
    batch, outputs, channels = x.shape[0], weight.shape[0] // group, weight.shape[1]
    check_shape((batch, group * outputs, *window.positions))
    sums: Any = np.zeros((batch, group, outputs, prod(window.positions)))
    for place, part in passes(x, window, 0.0):
        rows = weight[(slice(None), slice(None), *place)].reshape((group, outputs, channels))
        sums += rows @ part.reshape((batch, group, channels, -1))
    return sums.reshape((batch, group * outputs, *window.positions))


def along_channels(x: np.ndarray, ndim: int, axis: int = 1) -> np.ndarray:
    """Numbers of channels, or one number, for arrays of `ndim` dimensions."""
    return x.reshape((-1, *(1,) * (ndim - axis - 1))) if x.ndim else x


def conv(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None, **settings: Any) -> np.ndarray:
    """Conv."""
    found = convolved(x.astype(np.float64), weight.astype(np.float64), **settings)
    if bias is not None:
        found += along_channels(bias.astype(np.float64), x.ndim)
    return found.astype(x.dtype)


def conv_transpose(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sizes = None,
    group: int = 1,
    kernel_shape: Sizes = None,
    output_padding: Sizes = None,
    output_shape: Sizes = None,
    pads: Sizes = None,
    strides: Sizes = None,
) -> np.ndarray:
    """ConvTranspose: each number of the input times the weight is added to a window of the output."""
    dims, kernel = x.ndim - 2, tuple(weight.shape[2:] if kernel_shape is None else kernel_shape)
    if weight.ndim != x.ndim or x.ndim < 3 or x.shape[1] != weight.shape[0] or group < 1 or x.shape[1] % group:
        raise ValueError(f"input has shape {x.shape}, weight {weight.shape}; allowed are as many channels in both")
    steps, gaps = _sizes(dims, strides=strides, dilations=dilations)
    more: Sequence[int] = _sizes(dims, 0, output_padding=output_padding)[0]
    reach = [gap * (size - 1) + 1 for gap, size in zip(gaps, kernel, strict=True)]
    whole = [step * (size - 1) + one for step, size, one in zip(steps, x.shape[2:], reach, strict=True)]
    if output_shape or _checked_auto_pad(auto_pad).startswith("SAME"):
        wanted = output_shape or [step * size for step, size in zip(steps, x.shape[2:], strict=True)]
        needs = [size + extra - one for size, extra, one in zip(whole, more, wanted, strict=True)]
        margins = _halves([max(need, 0) for need in needs], auto_pad)
        more = [extra + max(-need, 0) for extra, need in zip(more, needs, strict=True)]
    else:
        margins = _pads(pads if auto_pad == "NOTSET" else None, dims)
    channels, outputs = x.shape[1] // group, weight.shape[1]
    shape = check_shape((x.shape[0], group * outputs, *(a + b for a, b in zip(whole, more, strict=True))))
    sums, window = np.zeros(shape), Window(kernel, steps, gaps, margins, x.shape[2:])
    columns = x.astype(np.float64).reshape((x.shape[0], group, channels, -1))
    filters = weight.astype(np.float64).reshape((group, channels, outputs, *kernel)).swapaxes(1, 2)
    for place in product(*(range(size) for size in kernel)):
        part = filters[(*(slice(None),) * 3, *place)] @ columns
        sums[(slice(None), slice(None), *_strided(place, window))] += part.reshape((*shape[:2], *x.shape[2:]))
    inside = [slice(before, size - after) for (before, after), size in zip(margins, shape[2:], strict=True)]
    found = sums[(slice(None), slice(None), *inside)]
    return (found if bias is None else found + along_channels(bias.astype(np.float64), x.ndim)).astype(x.dtype)


def conv_integer(
    x: np.ndarray,
    w: np.ndarray,
    x_zero_point: np.ndarray | None = None,
    w_zero_point: np.ndarray | None = None,
    **settings: Any,
) -> np.ndarray:
    """ConvInteger: exact sums, modulo 2^32."""
    of_filters = centred(w, w_zero_point, (-1, *(1,) * (w.ndim - 1)))
    return sums_of(convolved(centred(x, x_zero_point), of_filters, **settings))


def qlinear_conv(
    x: np.ndarray,
    x_scale: np.ndarray,
    x_zero_point: np.ndarray,
    w: np.ndarray,
    w_scale: np.ndarray,
    w_zero_point: np.ndarray,
    y_scale: np.ndarray,
    y_zero_point: np.ndarray,
    bias: np.ndarray | None = None,
    **settings: Any,
) -> np.ndarray:
    """QLinearConv: exact sums and the int32 bias, times (x_scale * w_scale) / y_scale, in float32."""
    sums = conv_integer(x, w, x_zero_point, w_zero_point, **settings)
    if bias is not None:
        sums = sums + along_channels(bias, x.ndim)  # modulo 2^32
    return requantized(sums, along_channels(ratio_of(x_scale.reshape(()), w_scale, y_scale), x.ndim), y_zero_point)


# Pools.


def max_pool(
    x: np.ndarray,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sizes = None,
    kernel_shape: Sizes = None,
    outputs: int = 1,
    pads: Sizes = None,
    storage_order: int = 0,
    strides: Sizes = None,
) -> Any:
    """MaxPool, and where in x the greatest numbers are."""
    window = window_of(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -inf
    found = np.full(check_shape((*x.shape[:2], *window.positions)), least, x.dtype)
    if outputs == 1:
        for _, part in passes(x, window, least):
            np.maximum(found, part, out=found)
        return found
    where = np.full(found.shape, -1)
    for place, part in passes(x, window, least):
        index, inside = _indices(place, window, x.shape[2:], storage_order)
        better = inside & ((part > found) | (where < 0))
        found, where = np.where(better, part, found), np.where(better, index, where)
    images = np.arange(x.shape[0] * x.shape[1]).reshape((*x.shape[:2], *(1,) * (x.ndim - 2)))
    return found, where + images * prod(x.shape[2:])


def _indices(place: Sequence[int], window: Window, lengths: Sequence[int], storage_order: int) -> tuple[Any, Any]:
    """Where in an image a place of the window lies for all positions, as one number, and whether it is no padding."""
    index, inside, dims = np.int64(0), np.bool_(True), len(lengths)
    for axis in range(dims)[:: -1 if storage_order else 1]:
        along = window.dilations[axis] * place[axis] - window.pads[axis][0]
        along = along + window.strides[axis] * np.arange(window.positions[axis])
        along = along.reshape((-1, *(1,) * (dims - axis - 1)))
        index, inside = index * lengths[axis] + along, inside & (along >= 0) & (along < lengths[axis])
    return index, inside


def means_of(x: np.ndarray, *, count_include_pad: int = 0, **settings: Any) -> np.ndarray:
    """The means of numbers in windows, summed in their own type, with the padding's or without it."""
    window = _pool_window(x.shape[2:], **settings)
    sums: Any = np.zeros(check_shape((*x.shape[:2], *window.positions)), x.dtype)
    counts: Any = np.zeros((1, 1, *window.positions), x.dtype)
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if count_include_pad:
        ones = np.pad(ones, [(0, 0), (0, 0), *window.pads], constant_values=1.0)
    around = window._replace(pads=((0, 0),) * len(window.pads)) if count_include_pad else window
    for (_, part), (_, one) in zip(passes(x, window, 0.0), passes(ones, around, 0.0), strict=True):
        sums += part
        counts += one
    return sums / counts


def _pool_window(
    lengths: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sizes = None,
    kernel_shape: Sizes = None,
    pads: Sizes = None,
    strides: Sizes = None,
) -> Window:
    return window_of(lengths, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)


def average_pool(x: np.ndarray, **settings: Any) -> np.ndarray:
    """AveragePool."""
    return means_of(x.astype(np.float64), **settings).astype(x.dtype)


OPERATORS = {
    "AveragePool": average_pool,
    "Conv": conv,
    "ConvInteger": conv_integer,
    "ConvTranspose": conv_transpose,
    "MaxPool": max_pool,
    "QLinearConv": qlinear_conv,
}
