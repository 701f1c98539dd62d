"""Operators of ONNX that add up along channels or windows: products, convolutions, pools, norms.

Sums of products are in float64 and rounded once. Those of 8-bit integers are exact, and kept modulo 2^32. The order of
sums of floats is not defined in ONNX, and not here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np

from qcore.exchange.nodes import Node, checked_axis
from qcore.exchange.operators.arithmetic import floats_of, narrow, same_type, total, wide
from qcore.exchange.values import Value, cast, is_integer, range_of
from qcore.namespace import Names

Shape = tuple[int, ...]


class Window(NamedTuple):
    """A window that moves along the spatial dimensions: one number for each; `pads` has (before, after)."""

    kernel: Shape
    strides: Shape
    dilations: Shape
    pads: tuple[tuple[int, int], ...]
    positions: Shape


def window_of(node: Node, lengths: Sequence[int], kernel: Sequence[int]) -> Window:
    """The window of a convolution or pool over these lengths."""
    dims = len(lengths)
    kernel = tuple(kernel)
    strides, dilations = (tuple(node.get(name) or (1,) * dims) for name in ("strides", "dilations"))
    flat = list(node.get("pads") or (0,) * (2 * dims))
    sizes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    for name, found in sizes.items():
        if len(found) != dims or min(found, default=1) < 1:
            raise ValueError(f"{name}={found} of {dims} spatial dimensions; allowed are as many ints from 1 on")
    if len(flat) != 2 * dims or min(flat, default=0) < 0 or max(flat, default=0) > 2**24:
        raise ValueError(f"pads={flat} of {dims} spatial dimensions; allowed are two ints from 0 to 2^24 for each")
    reach = [gap * (size - 1) + 1 for gap, size in zip(dilations, kernel, strict=True)]
    auto = node.text("auto_pad", "NOTSET", ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"))
    if auto.startswith("SAME"):
        needs = [
            max((-(-length // step) - 1) * step + size - length, 0)
            for length, step, size in zip(lengths, strides, reach, strict=True)
        ]
        less, more = [need // 2 for need in needs], [need - need // 2 for need in needs]
        pads = tuple(zip(*((less, more) if auto == "SAME_UPPER" else (more, less)), strict=True))
    else:
        pads = tuple(zip(flat[:dims], flat[dims:], strict=True)) if auto == "NOTSET" else ((0, 0),) * dims
    positions = []
    for axis in range(dims):
        space = lengths[axis] + sum(pads[axis]) - reach[axis]
        count = space // strides[axis] + 1
        if node.get("ceil_mode", 0):
            count = -(-space // strides[axis]) + 1
            if (count - 1) * strides[axis] >= lengths[axis] + pads[axis][0]:
                count -= 1  # the last window would begin in the padding
        if space < 0 or count < 1:
            raise ValueError(f"a window of {reach[axis]} along {lengths[axis]} numbers; allowed are windows that fit")
        positions.append(count)
    return Window(kernel, strides, dilations, pads, tuple(positions))


def gathered(xp: Any, x: Any, window: Window, fill: float) -> Any:
    """What the taps of a window read of (batch, channels, *lengths): (batch, channels, taps, *positions)."""
    pads = []
    for axis, (before, after) in enumerate(window.pads):
        reach = window.dilations[axis] * (window.kernel[axis] - 1)
        last = (window.positions[axis] - 1) * window.strides[axis] + reach + 1
        pads.append((before, max(after, last - before - x.shape[axis + 2])))  # more with ceil_mode
    x = xp.pad(x, [(0, 0), (0, 0), *pads], fill)
    taps = []
    for tap in product(*(range(size) for size in window.kernel)):
        places = [
            slice(gap * at, gap * at + (count - 1) * step + 1, step)
            for at, gap, count, step in zip(tap, window.dilations, window.positions, window.strides, strict=True)
        ]
        taps.append(x[(slice(None), slice(None), *places)])
    return xp.stack(taps, 2)


def convolved(xp: Any, node: Node, x: Any, weight: Any) -> Any:
    """The convolution of float64 arrays (batch, channels, ...) and (outputs, channels / groups, ...)."""
    groups = node.get("group", 1)
    shape, outputs = tuple(x.shape), weight.shape[0]
    kernel = tuple(node.get("kernel_shape") or weight.shape[2:])
    fits = x.ndim == weight.ndim >= 3 and groups >= 1 and shape[1] == weight.shape[1] * groups and not outputs % groups
    if not fits or kernel != tuple(weight.shape[2:]):
        raise ValueError(
            f"input has shape {shape}, weight {tuple(weight.shape)} with group={groups}, kernel_shape={kernel}; "
            "allowed are (batch, channels, ...) and (outputs, channels / group, *kernel_shape)"
        )
    window = window_of(node, shape[2:], kernel)
    columns = gathered(xp, x, window, 0.0)
    columns = columns.reshape((shape[0], groups, shape[1] // groups * prod(kernel), prod(window.positions)))
    rows = weight.reshape((1, groups, outputs // groups, shape[1] // groups * prod(kernel)))
    return (rows @ columns).reshape((shape[0], outputs, *window.positions))


def along_channels(x: Any, ndim: int, axis: int = 1) -> Any:
    """Numbers of channels, or one number, for arrays of `ndim` dimensions."""
    return x.reshape((-1, *(1,) * (ndim - axis - 1))) if x.ndim else x


def conv(xp: Any, node: Node, x: Value, weight: Value, bias: Value | None = None) -> Value:
    floats_of(xp, x, weight)
    found = convolved(xp, node, wide(xp, x), wide(xp, weight))
    if bias is not None:
        found = found + along_channels(wide(xp, bias), x.ndim)
    return narrow(xp, found, x.type)


def conv_transpose(xp: Any, node: Node, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """ConvTranspose: a convolution with the mirrored weight of the input, with zeros between its numbers."""
    floats_of(xp, x, weight)
    dims, groups, kernel = x.ndim - 2, node.get("group", 1), tuple(weight.shape[2:])
    if weight.ndim != x.ndim or x.shape[1] != weight.shape[0] or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"input has shape {x.shape}, weight {weight.shape}; allowed are as many channels in both")
    strides, dilations = (tuple(node.get(name) or (1,) * dims) for name in ("strides", "dilations"))
    more = tuple(node.get("output_padding") or (0,) * dims)
    pads = list(node.get("pads") or (0,) * (2 * dims))
    auto = node.text("auto_pad", "NOTSET", ("NOTSET", "VALID"))
    if node.get("output_shape") or (auto != "NOTSET" and any(pads)):
        raise ValueError("output_shape; allowed are pads")
    array, filters = wide(xp, x), wide(xp, weight)
    for axis in range(dims):
        step, length = strides[axis], array.shape[axis + 2]
        parts = array.reshape((*array.shape[: axis + 3], 1, *array.shape[axis + 3 :]))
        parts = xp.pad(parts, [(0, step - 1) if place == axis + 3 else (0, 0) for place in range(parts.ndim)])
        array = parts.reshape((*array.shape[: axis + 2], length * step, *array.shape[axis + 3 :]))
        array = array[(*(slice(None),) * (axis + 2), slice(0, (length - 1) * step + 1))]
        reach = dilations[axis] * (kernel[axis] - 1)
        before, after = reach - pads[axis], reach - pads[axis + dims] + more[axis]
        widths = [(max(before, 0), max(after, 0)) if place == axis + 2 else (0, 0) for place in range(array.ndim)]
        array = xp.pad(array, widths)
        inside = slice(max(-before, 0), array.shape[axis + 2] - max(-after, 0))
        array = array[(*(slice(None),) * (axis + 2), inside)]
        filters = filters[(*(slice(None),) * (axis + 2), np.arange(kernel[axis])[::-1].copy())]
    filters = filters.reshape((groups, x.shape[1] // groups, *weight.shape[1:])).swapaxes(1, 2)
    filters = filters.reshape((groups * weight.shape[1], x.shape[1] // groups, *kernel))
    attributes = {"group": groups, "dilations": dilations}
    found = convolved(xp, node._replace(attributes=attributes), array, filters)
    if bias is not None:
        found = found + along_channels(wide(xp, bias), x.ndim)
    return narrow(xp, found, x.type)


def matmul(xp: Any, node: Node, a: Value, b: Value) -> Value:
    type = same_type(a, b)
    if is_integer(type):
        found = xp.astype(a.array, "int64") @ xp.astype(b.array, "int64")
        return cast(xp, Value(found, "int64"), type)
    return narrow(xp, wide(xp, a) @ wide(xp, b), type)


def gemm(xp: Any, node: Node, a: Value, b: Value, c: Value | None = None) -> Value:
    type = same_type(a, b)
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"inputs have shapes {a.shape} and {b.shape}; allowed are matrices")
    left = wide(xp, a).swapaxes(0, 1) if node.get("transA", 0) else wide(xp, a)
    right = wide(xp, b).swapaxes(0, 1) if node.get("transB", 0) else wide(xp, b)
    found = (left @ right) * node.get("alpha", 1.0)
    if c is not None:
        found = found + xp.rounded(wide(xp, c) * node.get("beta", 1.0))
    if is_integer(type):
        return cast(xp, Value(found, "float64"), type)
    return narrow(xp, found, type)


def einsum(xp: Any, node: Node, *values: Value) -> Value:
    type = same_type(*values)
    if len(values) > 2 or is_integer(type):
        raise ValueError(f"{len(values)} inputs of {type}; allowed are one or two of floats")
    equation = node.get("equation", "").replace(" ", "")
    return narrow(xp, xp.einsum(equation, *(wide(xp, value) for value in values)), type)


# Pools.


def max_pool(xp: Any, node: Node, x: Value) -> Value:
    window = window_of(node, x.shape[2:], node.get("kernel_shape", ()))
    least = range_of(x.type)[0] if is_integer(x.type) else -inf
    array = x.array if is_integer(x.type) or x.type == "float64" else xp.astype(x.array, "float32")
    found = xp.greatest(gathered(xp, array, window, least), (2,))
    return Value(xp.astype(found.reshape((*x.shape[:2], *window.positions)), xp.dtype(x.array)), x.type)


def average_pool(xp: Any, node: Node, x: Value) -> Value:
    floats_of(xp, x)
    window = window_of(node, x.shape[2:], node.get("kernel_shape", ()))
    sums = total(gathered(xp, wide(xp, x), window, 0.0), (2,)).reshape((*x.shape[:2], *window.positions))
    ones = np.ones((1, 1, *x.shape[2:]))
    if node.get("count_include_pad", 0):
        ones = np.pad(ones, [(0, 0), (0, 0), *window.pads], constant_values=1.0)
        counts = gathered(Names, ones, window._replace(pads=((0, 0),) * (x.ndim - 2)), 0.0)
    else:
        counts = gathered(Names, ones, window, 0.0)
    counts = counts.sum(2).reshape((1, 1, *window.positions))
    return narrow(xp, xp.divide(sums, xp.broadcast_to(xp.asarray(counts), tuple(sums.shape))), x.type)


def global_average_pool(xp: Any, node: Node, x: Value) -> Value:
    floats_of(xp, x)
    axes = tuple(range(2, x.ndim))
    return narrow(xp, xp.divide(total(wide(xp, x), axes), float(prod(x.shape[2:]))), x.type)


def global_max_pool(xp: Any, node: Node, x: Value) -> Value:
    return Value(xp.greatest(x.array, tuple(range(2, x.ndim))), x.type)


# Norms, in float64 and rounded once.


def _normalized(xp: Any, x: Any, axes: Shape, epsilon: float, centre: bool = True) -> Any:
    count = float(prod(x.shape[axis] for axis in axes))
    less = x - xp.divide(total(x, axes), count) if centre else x
    variance = xp.divide(total(less * less, axes), count)
    return less / xp.sqrt(variance + epsilon)


def batch_normalization(
    xp: Any, node: Node, x: Value, scale: Value, bias: Value, mean: Value, variance: Value
) -> Value:
    if node.get("training_mode", 0):
        raise ValueError("training_mode=1; allowed is 0")
    floats_of(xp, x)
    parts = [along_channels(wide(xp, one), x.ndim) for one in (scale, bias, mean, variance)]
    found = (wide(xp, x) - parts[2]) / xp.sqrt(parts[3] + node.get("epsilon", 1e-5)) * parts[0] + parts[1]
    return narrow(xp, found, x.type)


def _layer_norm(centre: bool) -> Callable[..., Value]:
    def run(xp: Any, node: Node, x: Value, scale: Value, bias: Value | None = None) -> Value:
        axes = tuple(range(checked_axis(node.get("axis", -1), x.ndim), x.ndim))
        found = _normalized(xp, wide(xp, x), axes, node.get("epsilon", 1e-5), centre) * wide(xp, scale)
        found = found if bias is None else found + wide(xp, bias)
        return narrow(xp, found, x.type)

    return run


def instance_normalization(xp: Any, node: Node, x: Value, scale: Value, bias: Value) -> Value:
    found = _normalized(xp, wide(xp, x), tuple(range(2, x.ndim)), node.get("epsilon", 1e-5))
    found = found * along_channels(wide(xp, scale), x.ndim) + along_channels(wide(xp, bias), x.ndim)
    return narrow(xp, found, x.type)


def group_normalization(xp: Any, node: Node, x: Value, scale: Value, bias: Value) -> Value:
    groups = node.get("num_groups", 0)
    if groups < 1 or x.shape[1] % groups:
        raise ValueError(f"num_groups={groups} of {x.shape[1]} channels; allowed are divisors")
    array = wide(xp, x).reshape((x.shape[0], groups, -1))
    found = _normalized(xp, array, (2,), node.get("epsilon", 1e-5))
    weights = [along_channels(wide(xp, one), x.ndim) for one in (scale, bias)]
    if scale.shape == (groups,) != (x.shape[1],):  # before version 21
        found = found * wide(xp, scale).reshape((1, -1, 1)) + wide(xp, bias).reshape((1, -1, 1))
        return narrow(xp, found.reshape(x.shape), x.type)
    return narrow(xp, found.reshape(x.shape) * weights[0] + weights[1], x.type)


OPERATORS: dict[str, Callable[..., Any]] = {
    "AveragePool": average_pool,
    "BatchNormalization": batch_normalization,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "Einsum": einsum,
    "Gemm": gemm,
    "GlobalAveragePool": global_average_pool,
    "GlobalMaxPool": global_max_pool,
    "GroupNormalization": group_normalization,
    "InstanceNormalization": instance_normalization,
    "LayerNormalization": _layer_norm(centre=True),
    "MatMul": matmul,
    "MaxPool": max_pool,
    "RMSNormalization": _layer_norm(centre=False),
}
