"""Operators of ONNX whose classes in onnx.reference lack what the standard has, or err."""

from __future__ import annotations

from math import isfinite, prod

import numpy as np

from qcore.arguments import quoted
from qcore.exchange.limits import check_shape
from qcore.exchange.operators.quantization import checked_axis


def softmax(x: np.ndarray, *, axis: int | None = None, version: int) -> np.ndarray:
    """Softmax in float64, rounded once; before version 13 of a matrix of all axes before one and from it on."""
    powers, sums = _powers(x, axis, version)
    return (np.exp(powers) / sums).reshape(x.shape).astype(x.dtype)


def log_softmax(x: np.ndarray, *, axis: int | None = None, version: int) -> np.ndarray:
    """The logarithm of Softmax, likewise."""
    powers, sums = _powers(x, axis, version)
    return (powers - np.log(sums)).reshape(x.shape).astype(x.dtype)


def _powers(x: np.ndarray, axis: int | None, version: int) -> tuple[np.ndarray, np.ndarray]:
    """The numbers less the greatest, and the sums of their powers of e."""
    axis = checked_axis((-1 if version >= 13 else 1) if axis is None else axis, x.ndim)
    rows = x.astype(np.float64)
    if version < 13:
        rows, axis = rows.reshape((prod(x.shape[:axis]), prod(x.shape[axis:]))), 1
    if not rows.size:
        return rows, np.ones_like(rows)
    powers = rows - rows.max(axis, keepdims=True)
    return powers, np.exp(powers).sum(axis, keepdims=True)


def local_response_normalization(
    x: np.ndarray, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0
) -> np.ndarray:
    """LRN in float64, rounded once: sums of squares over the channels around each."""
    squares, before = x.astype(np.float64) ** 2, (size - 1) // 2
    widths = [(0, 0), (before, size - 1 - before), *((0, 0),) * (x.ndim - 2)]
    check_shape((x.shape[0], x.shape[1] + size, *x.shape[2:]), "a padded input")
    squares = np.pad(squares, widths)
    sums = sum(squares[:, place : place + x.shape[1]] for place in range(size))
    return (x / (bias + alpha / size * sums) ** beta).astype(x.dtype)


def pad(
    x: np.ndarray,
    widths: np.ndarray | None = None,
    number: np.ndarray | None = None,
    axes: np.ndarray | None = None,
    *,
    mode: str = "constant",
    pads: list[int] | None = None,
    value: float = 0.0,
) -> np.ndarray:
    """Pad; negative widths take numbers away. The widths and the number are attributes before version 11."""
    modes = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    if mode not in modes:
        raise ValueError(f"mode={quoted(mode)}; allowed are {', '.join(modes)}")
    flat = [int(one) for one in (pads or [] if widths is None else widths.reshape(-1))]
    places = range(x.ndim) if axes is None else [checked_axis(int(one), x.ndim) for one in axes.reshape(-1)]
    if len(flat) != 2 * len(places):
        raise ValueError(f"pads={flat} of {len(places)} axes; allowed are two ints for each")
    around = [(0, 0)] * x.ndim
    for axis, before, after in zip(places, flat[: len(places)], flat[len(places) :], strict=True):
        around[axis] = before, after
    inside = [
        slice(max(-before, 0), max(size - max(-after, 0), 0))
        for size, (before, after) in zip(x.shape, around, strict=True)
    ]
    x, more = x[tuple(inside)], [(max(before, 0), max(after, 0)) for before, after in around]
    check_shape(tuple(size + sum(one) for size, one in zip(x.shape, more, strict=True)))
    if mode == "constant":
        fill = value if number is None or not number.size else number.reshape(-1)[0]
        return np.pad(x, more, constant_values=np.asarray(fill, x.dtype))
    return np.pad(x, more, mode=modes[mode])  # type: ignore[call-overload]


def number_range(start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """Range."""
    first, last, step = (one.reshape(-1)[0] for one in (start, limit, delta))
    for name, one in (("start", first), ("limit", last), ("delta", step)):
        if not isfinite(one):
            raise ValueError(f"{name} is {one}; allowed are finite numbers")
    if step == 0:
        raise ValueError("delta is 0; allowed are other numbers")
    count = max(int(np.ceil((float(last) - float(first)) / float(step))), 0)
    check_shape((count,))
    return first + np.arange(count).astype(start.dtype) * step


def gather_elements(x: np.ndarray, indices: np.ndarray, *, axis: int = 0) -> np.ndarray:
    """GatherElements, of axes of any size; onnx.reference takes at most 64 arrays."""
    axis = checked_axis(axis, x.ndim)
    if indices.ndim != x.ndim:
        raise ValueError(f"indices has {indices.ndim} dimensions; allowed are {x.ndim}, as the input has")
    size = x.shape[axis]
    if indices.size and not (-size <= indices.min() and indices.max() < size):
        raise ValueError(f"indices are from {indices.min()} to {indices.max()}; allowed are those of {size} elements")
    x = x[tuple(slice(None if one == axis else count) for one, count in enumerate(indices.shape))]
    return np.take_along_axis(x, indices, axis)


OPERATORS = {
    "GatherElements": gather_elements,
    "LRN": local_response_normalization,
    "LogSoftmax": log_softmax,
    "Pad": pad,
    "Range": number_range,
    "Softmax": softmax,
}
