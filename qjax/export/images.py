"""Padding, convolutions and pools of floats as nodes; ONNX has channels first, where flax has them last."""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from qjax._parameters import parameters
from qjax.export.walk import Value, Walk, kind_of, wide_dtype

_MOST = 4096  # elements of a window that is written as sums of slices


def pad(walk: Walk, x: Value, number: Value, config: Any) -> Value:
    """The numbers of `lax.pad`: before, after and between the elements of each dimension; negative ones remove."""
    for axis, (_, _, between) in enumerate(config):
        if between and x.shape[axis] > 1:
            size = x.shape[axis]
            apart = walk.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
            widths = [(0, 0)] * apart.ndim
            widths[axis + 1] = 0, between
            filled = _padded(walk, apart, number, widths)
            row = walk.reshape(filled, (*x.shape[:axis], size * (between + 1), *x.shape[axis + 1 :]))
            ends = list(row.shape)
            ends[axis] -= between
            x = walk.slice(row, [0] * x.ndim, ends)
    starts = [max(0, -low) for low, _, _ in config]
    ends = [size - max(0, -high) for size, (_, high, _) in zip(x.shape, config, strict=True)]
    return _padded(walk, walk.slice(x, starts, ends), number, [(max(0, a), max(0, b)) for a, b, _ in config])


def _padded(walk: Walk, x: Value, number: Value, widths: list[tuple[int, int]]) -> Value:
    if not any(map(any, widths)):
        return x
    dtype = x.dtype
    wide = dtype if dtype.name in ("int8", "uint8", "bool") else wide_dtype(dtype)
    shape = [size + sum(width) for size, width in zip(x.shape, widths, strict=True)]
    rows = walk.constant([a for a, _ in widths] + [b for _, b in widths], np.int64)
    made = walk.emit("Pad", walk.cast(x, wide), rows, walk.cast(number, wide), shape=shape, dtype=wide)
    return walk.cast(made, dtype)


def _convolution(walk: Walk, equation: Any, images: Value, kernel: Value) -> Value:
    params, (shape, dtype) = parameters(equation), kind_of(equation)
    if params.batch_group_count != 1:
        raise walk.error("a convolution with batch groups has no form in ONNX", "export the forward pass")
    wide = wide_dtype(dtype)
    if wide.name != "float32":
        raise walk.error(f"a convolution of {dtype} has no form in ONNX", "use float32")
    numbers = params.dimension_numbers
    x = walk.transpose(walk.cast(images, wide), numbers.lhs_spec)
    w = walk.transpose(walk.cast(kernel, wide), numbers.rhs_spec)
    margins, spread = params.padding, params.lhs_dilation
    if any(gap != 1 for gap in spread) or any(low < 0 or high < 0 for low, high in margins):
        config = [(0, 0, 0)] * 2 + [(low, high, gap - 1) for (low, high), gap in zip(margins, spread, strict=True)]
        x = pad(walk, x, walk.constant(0, wide), config)
        margins = [(0, 0)] * len(margins)
    ordered = [shape[axis] for axis in numbers.out_spec]
    made = walk.emit(
        "Conv", x, w, shape=ordered, dtype=wide,
        strides=list(params.window_strides), dilations=list(params.rhs_dilation),
        pads=[low for low, _ in margins] + [high for _, high in margins], group=params.feature_group_count,
        kernel_shape=list(w.shape[2:]),
    )  # fmt: skip
    return walk.cast(walk.transpose(made, np.argsort(numbers.out_spec).tolist()), dtype)


def _windows(op: str, start: float) -> Any:
    def translate(walk: Walk, equation: Any, x: Value) -> Value:
        params, (shape, dtype) = parameters(equation), kind_of(equation)
        window, strides = params.window_dimensions, params.window_strides
        gaps, base = params.window_dilation, params.base_dilation
        wide = wide_dtype(dtype)
        config = [(low, high, gap - 1) for (low, high), gap in zip(params.padding, base, strict=True)]
        outside = start if np.issubdtype(wide, np.floating) else np.iinfo(wide).min if op == "Max" else 0
        if op == "Min":
            outside = np.inf if np.issubdtype(wide, np.floating) else np.iinfo(wide).max
        x = walk.cast(x, wide)
        if op == "Max" and wide == np.float32 and all(gap == 1 for gap in base):
            pooled = _max_pool(walk, x, window, strides, gaps, params.padding, shape)
            if pooled is not None:
                return walk.cast(pooled, dtype)
        if prod(window) > _MOST:
            raise walk.error(f"a window of {window} has no form in ONNX", f"use up to {_MOST} elements")
        # In XLA's order, so that sums have the same bits.
        x = pad(walk, x, walk.constant(outside, wide), config)
        parts = []
        for place in product(*map(range, window)):
            starts = [at * gap for at, gap in zip(place, gaps, strict=True)]
            ends = [a + (size - 1) * step + 1 for a, size, step in zip(starts, shape, strides, strict=True)]
            parts.append(walk.slice(x, starts, ends, strides))
        return walk.cast(reduce(lambda a, b: walk.elementwise(op, a, b), parts), dtype)

    return translate


def _max_pool(
    walk: Walk, x: Value, window: Any, strides: Any, gaps: Any, margins: Any, shape: tuple[int, ...]
) -> Value | None:
    """MaxPool along the dimensions that have windows; None where they are too many."""
    along = [axis for axis in range(x.ndim) if (window[axis], strides[axis]) != (1, 1) or any(margins[axis])]
    if not 1 <= len(along) <= 3 or any(low < 0 or high < 0 for low, high in margins):
        return None
    if any(max(margins[axis]) >= (window[axis] - 1) * gaps[axis] + 1 for axis in along):
        return None
    rest = [axis for axis in range(x.ndim) if axis not in along]
    order = [*rest, *along]
    moved = walk.transpose(x, order)
    lead = [x.shape[axis] for axis in rest]
    if len(lead) != 2:
        moved = walk.reshape(moved, (1, prod(lead), *moved.shape[len(lead) :]))
    made = walk.emit(
        "MaxPool", moved, shape=(*moved.shape[:2], *(shape[axis] for axis in along)), dtype=x.dtype,
        kernel_shape=[window[axis] for axis in along], strides=[strides[axis] for axis in along],
        dilations=[gaps[axis] for axis in along],
        pads=[margins[axis][0] for axis in along] + [margins[axis][1] for axis in along],
    )  # fmt: skip
    made = walk.reshape(made, (*lead, *made.shape[2:]))
    return walk.transpose(made, np.argsort(order).tolist())


IMAGES = {
    "conv_general_dilated": _convolution,
    "reduce_window_max": _windows("Max", -np.inf),
    "reduce_window_min": _windows("Min", np.inf),
    "reduce_window_sum": _windows("Add", 0.0),
}
