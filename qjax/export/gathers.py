"""Gathers and scatters, and slices at places that the program computes, as nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qjax._parameters import parameters
from qjax.export.walk import Value, Walk, kind_of, known_arrays

_ALLOWED = "take whole rows along one dimension (jnp.take), or use indices that are known when the function is exported"


def _mode(equation: Any) -> str:
    return str(parameters(equation).mode).rpartition(".")[2].lower()


def _places(operand: tuple[int, ...], indices: np.ndarray, numbers: Any, sizes: Any) -> np.ndarray:
    """The flat places in an operand that a gather reads; -1 for those outside."""
    whole = np.arange(int(np.prod(operand, dtype=int)), dtype=np.int32).reshape(operand)
    with jax.ensure_compile_time_eval():
        found = jax.lax.gather(
            jnp.asarray(whole), jnp.asarray(indices, jnp.int32), numbers, sizes, mode="fill", fill_value=-1
        )
        return np.asarray(found)


def _fill_value(equation: Any, dtype: np.dtype) -> Any:
    given = parameters(equation).fill_value
    if given is not None:
        return given
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    limits = jnp.iinfo(dtype)
    return limits.min if jnp.issubdtype(dtype, jnp.signedinteger) else limits.max


def _gather(walk: Walk, equation: Any, x: Value, indices: Value) -> Value:
    params = parameters(equation)
    numbers, sizes = params.dimension_numbers, tuple(params.slice_sizes)
    axes, along = tuple(numbers.start_index_map), tuple(numbers.operand_batching_dims)
    inside = tuple(numbers.collapsed_slice_dims) == tuple(sorted(axes))
    rows = inside and all(sizes[axis] == x.shape[axis] for axis in range(x.ndim) if axis not in (*axes, *along))
    if indices.known is not None and not (rows and len(axes) == 1 and not along):
        return _known_gather(walk, equation, x, indices.known, numbers, sizes)
    return _gather_rows(walk, equation, x, indices, numbers) if rows else _window(walk, equation, x, indices, numbers)


def _gather_rows(walk: Walk, equation: Any, x: Value, indices: Value, numbers: Any) -> Value:
    """Whole rows at computed places along some dimensions, maybe others in each row of further dimensions."""
    shape, dtype = kind_of(equation)
    axes, along = tuple(numbers.start_index_map), tuple(numbers.operand_batching_dims)
    places, inside = _inside(walk, equation, indices, np.array([x.shape[axis] for axis in axes], np.int64))
    before, rest = places.shape[:-1], [axis for axis in range(x.ndim) if axis not in (*axes, *along)]
    if len(axes) == 1 and not along:
        (axis,) = axes
        spread = (*x.shape[:axis], *before, *x.shape[axis + 1 :])
        found = walk.emit("Gather", x, walk.reshape(places, before), shape=spread, dtype=dtype, axis=axis)
        # The indices' dimensions stand where the axis was; JAX may have them elsewhere.
        own = range(axis, axis + len(before))
        found = walk.transpose(found, [*own, *(place for place in range(found.ndim) if place not in own)])
    else:
        # Dimensions that operand and indices share come first in both, the axes of the indices next.
        moved, shared = walk.transpose(x, (*along, *axes, *rest)), tuple(numbers.start_indices_batching_dims)
        order = [*shared, *(place for place in range(len(before)) if place not in shared)]
        rows = walk.transpose(places, (*order, len(before)))
        kind = (*(before[place] for place in order), *(x.shape[axis] for axis in rest))
        found = walk.emit("GatherND", moved, rows, shape=kind, dtype=dtype, batch_dims=len(along))
        found = walk.transpose(found, [*np.argsort(order).tolist(), *range(len(before), found.ndim)])
    found = _in_place(walk, found, len(before), numbers.offset_dims, len(shape))
    if inside is not None:
        wide = walk.reshape(inside, (*before, *(1,) * len(rest)))
        mask = _in_place(walk, wide, len(before), numbers.offset_dims, len(shape))
        found = _filled(walk, equation, mask, found)
    return found


def _filled(walk: Walk, equation: Any, inside: Value, found: Value) -> Value:
    """The numbers of a gather, and its fill value where an index was outside."""
    return walk.choose(inside, found, walk.constant(_fill_value(equation, found.dtype), found.dtype))


def _in_place(walk: Walk, found: Value, batch: int, offsets: Any, ndim: int) -> Value:
    """Puts the dimensions of the indices and those of the slices where a gather's result has them."""
    own, rest, order = iter(range(batch)), iter(range(batch, ndim)), []
    for place in range(ndim):
        order.append(next(rest) if place in offsets else next(own))
    return walk.transpose(found, order)


def _inside(walk: Walk, equation: Any, indices: Value, limits: np.ndarray) -> tuple[Value, Value | None]:
    """Indices within the limits, and where they were inside before (None if the mode needs no mask)."""
    # XLA clips indices that a program promises to be inside, and so does the file.
    places, clips = walk.cast(indices, np.int64), _mode(equation) != "fill_or_drop"
    last = walk.constant(limits - 1)
    if places.known is not None:
        cut = np.clip(places.known, 0, limits - 1)
        valid = (places.known == cut).all(-1)
        return walk.constant(cut), None if clips or valid.all() else walk.constant(valid)
    low = walk.elementwise("Max", places, walk.constant(0, np.int64))
    cut = walk.elementwise("Min", low, last)
    if clips:
        return cut, None
    same = walk.cast(walk.elementwise("Equal", places, cut, dtype=bool), np.int32)
    rows = walk.constant([places.ndim - 1], np.int64)
    valid = walk.emit("ReduceMin", same, rows, shape=places.shape[:-1], dtype=np.int32, keepdims=0)
    return cut, walk.cast(valid, bool)


def _known_gather(walk: Walk, equation: Any, x: Value, indices: np.ndarray, numbers: Any, sizes: Any) -> Value:
    """Any gather at known places: elements of the flat operand."""
    shape, dtype = kind_of(equation)
    if _mode(equation) != "fill_or_drop":
        limits = [x.shape[axis] - sizes[axis] for axis in numbers.start_index_map]
        indices = np.clip(indices, 0, limits)
    places = _places(x.shape, indices, numbers, sizes)
    outside = places < 0
    flat = walk.reshape(x, (x.size,))
    found = walk.emit("Gather", flat, walk.constant(np.maximum(places, 0), np.int64), shape=shape, dtype=dtype, axis=0)
    if outside.any():
        found = _filled(walk, equation, walk.constant(~outside), found)
    return found


def _window(walk: Walk, equation: Any, x: Value, indices: Value, numbers: Any) -> Value:
    """One slice of any size at a computed place."""
    if indices.ndim != 1 or numbers.operand_batching_dims:
        raise walk.error("this gather has no form in ONNX", _ALLOWED)
    axes, sizes = list(numbers.start_index_map), parameters(equation).slice_sizes
    starts, inside = _inside(walk, equation, indices, np.array([x.shape[a] - sizes[a] + 1 for a in axes], np.int64))
    found = walk.reshape(_cut(walk, x, starts, axes, sizes), kind_of(equation)[0])
    return found if inside is None else _filled(walk, equation, inside, found)


def _cut(walk: Walk, x: Value, starts: Value, axes: list[int], sizes: Any) -> Value:
    """A slice of these sizes that begins at computed places along axes."""
    lengths = walk.constant([sizes[axis] for axis in axes], np.int64)
    ends = walk.elementwise("Add", starts, lengths)
    shape = [sizes[axis] if axis in axes else size for axis, size in enumerate(x.shape)]
    return walk.emit("Slice", x, starts, ends, walk.constant(axes, np.int64), shape=shape, dtype=x.dtype)


def _joined(walk: Walk, starts: tuple[Value, ...], limits: np.ndarray) -> Value:
    """The starts along all dimensions as one value, inside the limits, as lax clips them."""
    parts = [walk.reshape(walk.cast(one, np.int64), (1,)) for one in starts]
    known = known_arrays(parts)
    if known is not None:
        return walk.constant(np.clip(np.concatenate(known), 0, limits))
    row = walk.emit("Concat", *parts, shape=(len(parts),), dtype=np.int64, axis=0) if len(parts) > 1 else parts[0]
    return walk.elementwise("Min", walk.elementwise("Max", row, walk.constant(0, np.int64)), walk.constant(limits))


def _dynamic_slice(walk: Walk, equation: Any, x: Value, *starts: Value) -> Value:
    sizes = parameters(equation).slice_sizes
    limits = np.array([whole - size for whole, size in zip(x.shape, sizes, strict=True)], np.int64)
    begins = _joined(walk, starts, limits)
    if begins.known is not None:
        ends = [int(start) + size for start, size in zip(begins.known, sizes, strict=True)]
        return walk.slice(x, [int(start) for start in begins.known], ends)
    return _cut(walk, x, begins, list(range(x.ndim)), sizes)


def _dynamic_update_slice(walk: Walk, equation: Any, x: Value, update: Value, *starts: Value) -> Value:
    limits = np.array([whole - size for whole, size in zip(x.shape, update.shape, strict=True)], np.int64)
    if x.ndim == 0:
        return update
    begins = _joined(walk, starts, limits)
    grid = walk.constant(np.moveaxis(np.indices(update.shape), 0, -1), np.int64)
    places = walk.elementwise("Add", grid, begins)
    return walk.emit("ScatterND", x, places, update, shape=x.shape, dtype=x.dtype)


def _scatter(reduction: str | None) -> Callable[..., Value]:
    def translate(walk: Walk, equation: Any, x: Value, indices: Value, updates: Value) -> Value:
        numbers = parameters(equation).dimension_numbers
        axes, along = tuple(numbers.scatter_dims_to_operand_dims), tuple(numbers.operand_batching_dims)
        inserted = tuple(numbers.inserted_window_dims)
        windows = [axis for axis in range(x.ndim) if axis not in (*inserted, *along)]
        sizes = [1] * x.ndim
        for axis, place in zip(windows, numbers.update_window_dims, strict=True):
            sizes[axis] = updates.shape[place]
        if indices.known is not None:
            gather = jax.lax.GatherDimensionNumbers(
                offset_dims=tuple(numbers.update_window_dims),
                collapsed_slice_dims=inserted,
                start_index_map=axes,
                operand_batching_dims=along,
                start_indices_batching_dims=tuple(numbers.scatter_indices_batching_dims),
            )
            known = indices.known
            if _mode(equation) != "fill_or_drop":
                known = np.clip(known, 0, [x.shape[axis] - sizes[axis] for axis in axes])
            return _known_scatter(walk, x, _places(x.shape, known, gather, tuple(sizes)), updates, reduction)
        rest = [axis for axis in range(x.ndim) if axis not in axes]
        if windows != rest or along or any(sizes[axis] != x.shape[axis] for axis in rest):
            raise walk.error("this scatter has no form in ONNX", _ALLOWED)
        return _scatter_rows(walk, equation, x, indices, updates, reduction)

    return translate


def _scatter_rows(walk: Walk, equation: Any, x: Value, indices: Value, updates: Value, reduction: str | None) -> Value:
    """Whole rows that go to computed places along some dimensions."""
    numbers = parameters(equation).dimension_numbers
    axes, windows = tuple(numbers.scatter_dims_to_operand_dims), tuple(numbers.update_window_dims)
    order = [*axes, *(axis for axis in range(x.ndim) if axis not in axes)]
    moved = walk.transpose(x, order)
    rows = walk.transpose(updates, [*(place for place in range(updates.ndim) if place not in windows), *windows])
    places, inside = _inside(walk, equation, indices, np.array([x.shape[axis] for axis in axes], np.int64))
    target = moved
    if inside is not None:  # what goes nowhere goes to one more row, which is cut off again
        spare = walk.slice(moved, [0] * x.ndim, [1, *moved.shape[1:]])
        longer = moved.shape[0] + 1, *moved.shape[1:]
        target = walk.emit("Concat", moved, spare, shape=longer, dtype=x.dtype, axis=0)
        outside = walk.constant([moved.shape[0], *[0] * (len(axes) - 1)], np.int64)
        places = walk.choose(walk.reshape(inside, (*inside.shape, 1)), places, outside)
    made = walk.emit("ScatterND", target, places, rows, shape=target.shape, dtype=x.dtype, reduction=reduction)
    return walk.transpose(walk.slice(made, [0] * x.ndim, moved.shape), np.argsort(order).tolist())


def _known_scatter(walk: Walk, x: Value, places: np.ndarray, updates: Value, reduction: str | None) -> Value:
    flat, rows = walk.reshape(x, (x.size,)), walk.reshape(updates, (updates.size,))
    inside = np.flatnonzero(places.reshape(-1) >= 0)
    if len(inside) < places.size:
        rows = walk.emit("Gather", rows, walk.constant(inside, np.int64), shape=(len(inside),), dtype=x.dtype, axis=0)
    at = walk.constant(places.reshape(-1)[inside], np.int64)
    made = walk.emit("ScatterElements", flat, at, rows, shape=flat.shape, dtype=x.dtype, axis=0, reduction=reduction)
    return walk.reshape(made, x.shape)


GATHERS: dict[str, Callable[..., Value]] = {
    "gather": _gather,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "scatter": _scatter(None),
    "scatter-add": _scatter("add"),
    "scatter_add": _scatter("add"),
    "scatter-mul": _scatter("mul"),
    "scatter_mul": _scatter("mul"),
    "scatter_max": _scatter("max"),
    "scatter_min": _scatter("min"),
}
