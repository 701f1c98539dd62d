"""Operators of ONNX that move elements, choose among them, and make arrays from sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from qcore.exchange.nodes import Node, checked_axis, known
from qcore.exchange.operators.arithmetic import same_type
from qcore.exchange.values import Value, check_count, held_as, is_integer, of_tensor


def of_host(array: Any, type: str) -> Value:
    """A value that does not depend on inputs."""
    array = np.asarray(array, held_as(type))
    return Value(array, type, array)


def _at(x: Any, axis: int, place: Any) -> Any:
    """What lies at places along an axis."""
    return x[(*(slice(None),) * axis, place)]


def constant(xp: Any, node: Node) -> Value:
    kinds = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}
    for name, found in node.attributes.items():
        if name == "value":
            return of_tensor(found, node.onnx)
        if name in kinds:
            return of_host(found, kinds[name])
    raise ValueError(f"attributes {', '.join(node.attributes)}; allowed are value, {', '.join(kinds)}")


def constant_of_shape(xp: Any, node: Node, shape: Value) -> Value:
    sizes = check_count(known("the shape", shape).reshape(-1))
    value = of_tensor(node.get("value"), node.onnx) if "value" in node.attributes else of_host([0.0], "float32")
    return of_host(np.full(sizes, value.array.reshape(-1)[0]), value.type)


def reshape(xp: Any, node: Node, x: Value, shape: Value) -> Value:
    sizes = [int(size) for size in known("the shape", shape).reshape(-1)]
    if not node.get("allowzero", 0):
        sizes = [x.shape[place] if size == 0 and place < x.ndim else size for place, size in enumerate(sizes)]
    rest = prod(size for size in sizes if size != -1)
    free = sizes.count(-1)
    wanted = prod(x.shape)
    if min(sizes, default=0) < -1 or free > 1 or (wanted % rest if free and rest else rest != wanted and not free):
        raise ValueError(f"the shape is {sizes} for {wanted} elements of shape {x.shape}; allowed are shapes that fit")
    sizes = [wanted // max(rest, 1) if size == -1 else size for size in sizes]
    return Value(x.array.reshape(tuple(sizes)), x.type)


def flatten(xp: Any, node: Node, x: Value) -> Value:
    axis = node.get("axis", 1)
    axis = axis if axis == x.ndim else checked_axis(axis, x.ndim)
    return Value(x.array.reshape((prod(x.shape[:axis]), prod(x.shape[axis:]))), x.type)


def squeeze(xp: Any, node: Node, x: Value, axes: Value | None = None) -> Value:
    given = node.ints("axes", axes)
    if given is None:
        places = {axis for axis, size in enumerate(x.shape) if size == 1}
    else:
        places = {checked_axis(axis, x.ndim, "axes") for axis in given}
    if any(x.shape[axis] != 1 for axis in places):
        raise ValueError(f"axes {sorted(places)} of shape {x.shape}; allowed are axes of length 1")
    return Value(x.array.reshape(tuple(size for axis, size in enumerate(x.shape) if axis not in places)), x.type)


def unsqueeze(xp: Any, node: Node, x: Value, axes: Value | None = None) -> Value:
    given = node.ints("axes", axes, ())
    ndim = x.ndim + len(given)
    places = {checked_axis(axis, ndim, "axes") for axis in given}
    if len(places) != len(given):
        raise ValueError(f"axes={given}; allowed are different axes")
    sizes = iter(x.shape)
    return Value(x.array.reshape(tuple(1 if axis in places else next(sizes) for axis in range(ndim))), x.type)


def transpose(xp: Any, node: Node, x: Value) -> Value:
    axes = tuple(node.get("perm") or range(x.ndim)[::-1])
    if sorted(axes) != list(range(x.ndim)):
        raise ValueError(f"perm={axes}; allowed is each axis from 0 to {x.ndim - 1} once")
    return Value(xp.transpose(x.array, axes), x.type)


def concat(xp: Any, node: Node, *values: Value) -> Value:
    type = same_type(*values)
    axis = checked_axis(node.get("axis", 0), values[0].ndim)
    return Value(xp.concatenate([value.array for value in values], axis), type)


def split(xp: Any, node: Node, x: Value, sizes: Value | None = None) -> tuple[Value, ...]:
    axis = node.axis(x.ndim, 0)
    lengths = node.ints("split", sizes)
    if lengths is None:
        count = node.get("num_outputs", node.outputs)
        part = -(-x.shape[axis] // max(count, 1))
        lengths = [max(min(part, x.shape[axis] - part * place), 0) for place in range(count)]
    if sum(lengths) != x.shape[axis] or min(lengths, default=0) < 0:
        raise ValueError(f"parts of {lengths} along {x.shape[axis]}; allowed are lengths that add up to it")
    ends = np.cumsum(lengths).tolist()
    return tuple(
        Value(_at(x.array, axis, slice(end - length, end)), x.type) for end, length in zip(ends, lengths, strict=True)
    )


def slice_operator(
    xp: Any,
    node: Node,
    x: Value,
    starts: Value | None = None,
    ends: Value | None = None,
    axes: Value | None = None,
    steps: Value | None = None,
) -> Value:
    first, last = node.ints("starts", starts, ()), node.ints("ends", ends, ())
    along = node.ints("axes", axes) or list(range(len(first)))
    by = node.ints("steps", steps) or [1] * len(first)
    if not len(first) == len(last) == len(along) == len(by) or 0 in by:
        raise ValueError(
            f"starts={first}, ends={last}, axes={along}, steps={by}; allowed are equally many, steps not 0"
        )
    found = x.array
    for start, end, axis, step in zip(first, last, along, by, strict=True):
        axis = checked_axis(axis, x.ndim)
        places = range(*slice(start, end, step).indices(x.shape[axis]))
        if step > 0:
            found = _at(found, axis, slice(places.start, max(places.stop, places.start), step))
        else:  # torch has no negative steps
            found = _at(found, axis, np.asarray(places, np.int64))
    return Value(found, x.type)


def _places(xp: Any, indices: Value, length: int) -> Any:
    """Indices along an axis, counted from the first."""
    if indices.type not in ("int32", "int64"):
        raise ValueError(f"indices have type {indices.type}; allowed are int32 and int64")
    if indices.host is not None and indices.host.size:
        low, high = int(indices.host.min()), int(indices.host.max())
        if low < -length or high >= length:
            raise ValueError(f"indices from {low} to {high} along {length}; allowed are {-length} to {length - 1}")
    places = xp.astype(indices.array, "int64")
    return xp.where(places < 0, places + length, places)


def gather(xp: Any, node: Node, x: Value, indices: Value) -> Value:
    axis = node.axis(x.ndim, 0)
    return Value(_at(x.array, axis, _places(xp, indices, x.shape[axis])), x.type)


def gather_elements(xp: Any, node: Node, x: Value, indices: Value) -> Value:
    axis = node.axis(x.ndim, 0)
    places = _places(xp, indices, x.shape[axis])
    return Value(x.array[_grid(xp, indices.shape, axis, places)], x.type)


def gather_nd(xp: Any, node: Node, x: Value, indices: Value) -> Value:
    batch = node.get("batch_dims", 0)
    if indices.ndim < 1 or not 0 <= batch < indices.ndim or batch + indices.shape[-1] > x.ndim:
        raise ValueError(
            f"indices of shape {indices.shape} for shape {x.shape}, batch_dims={batch}; allowed are axes of x"
        )
    places = _tuples(xp, indices, x.shape[batch:])
    own = _grid(xp, indices.shape[:-1], -1, None)[:batch]
    return Value(x.array[(*own, *places)], x.type)


def _tuples(xp: Any, indices: Value, lengths: Sequence[int]) -> tuple[Any, ...]:
    """Indices of several axes, which lie along the last axis of an array."""
    parts = [
        Value(indices.array[..., place], indices.type, None if indices.host is None else indices.host[..., place])
        for place in range(indices.shape[-1])
    ]
    return tuple(_places(xp, part, length) for part, length in zip(parts, lengths, strict=False))


def scatter_nd(xp: Any, node: Node, x: Value, indices: Value, updates: Value) -> Value:
    """ScatterND; floats that are added at one place have sums in no defined order."""
    add = node.text("reduction", "none", ("none", "add")) == "add"
    if indices.ndim < 1 or indices.shape[-1] > x.ndim:
        raise ValueError(f"indices of shape {indices.shape} for shape {x.shape}; allowed are axes of x")
    return Value(xp.put(x.array, _tuples(xp, indices, x.shape), updates.array, add), same_type(x, updates))


def scatter_elements(xp: Any, node: Node, x: Value, indices: Value, updates: Value) -> Value:
    node.text("reduction", "none", ("none",))
    axis = node.axis(x.ndim, 0)
    places = _grid(xp, indices.shape, axis, _places(xp, indices, x.shape[axis]))
    return Value(xp.put(x.array, places, updates.array), same_type(x, updates))


def top_k(xp: Any, node: Node, x: Value, k: Value) -> tuple[Value, Value]:
    """TopK, sorted; of equal numbers the first comes first."""
    (count,) = check_count(known("k", k).reshape(-1))
    axis = node.axis(x.ndim, -1)
    if count > x.shape[axis]:
        raise ValueError(f"k={count} of {x.shape[axis]} elements; allowed are no more")
    array = x.array.swapaxes(axis, -1)
    keys = (~array if is_integer(x.type) else -array) if node.get("largest", 1) else array
    order = xp.astype(xp.argsort(keys), "int64")[..., :count]
    found = array[_grid(xp, tuple(order.shape), x.ndim - 1, order)]
    return Value(found.swapaxes(axis, -1), x.type), Value(order.swapaxes(axis, -1), "int64")


def _grid(xp: Any, shape: Sequence[int], axis: int, places: Any) -> tuple[Any, ...]:
    """Indices of all axes: the own ones, but for one axis these places."""
    own = [
        np.arange(size).reshape([-1 if place == at else 1 for at in range(len(shape))])
        for place, size in enumerate(shape)
    ]
    return tuple(places if place == axis else xp.asarray(one) for place, one in enumerate(own))


def pad(
    xp: Any,
    node: Node,
    x: Value,
    pads: Value | None = None,
    value: Value | None = None,
    axes: Value | None = None,
) -> Value:
    mode = node.text("mode", "constant", ("constant", "reflect", "edge", "wrap"))
    widths = node.ints("pads", pads, ())
    along = node.ints("axes", axes) or list(range(x.ndim))
    if len(widths) != 2 * len(along):
        raise ValueError(f"pads={widths} for axes {along}; allowed are two numbers for each")
    fill = node.get("value", 0.0) if value is None else known("the padding", value).reshape(-1)[0].item()
    full = [(0, 0)] * x.ndim
    for place, axis in enumerate(along):
        full[checked_axis(axis, x.ndim)] = (widths[place], widths[place + len(along)])
    check_count(size + before + after for size, (before, after) in zip(x.shape, full, strict=True))
    found = x.array
    for axis, (before, after) in enumerate(full):  # negative numbers cut off
        length = x.shape[axis]
        inside = slice(max(-before, 0), length - max(-after, 0))
        found = _at(found, axis, inside)
        more = (max(before, 0), max(after, 0))
        if mode == "constant":
            fill = bool(fill) if x.type == "bool" else int(fill) if is_integer(x.type) else fill
            found = xp.pad(found, [more if at == axis else (0, 0) for at in range(x.ndim)], fill)
        elif any(more):
            places = np.pad(np.arange(found.shape[axis]), more, mode=mode)  # type: ignore[call-overload]
            found = _at(found, axis, places)
    return Value(found, x.type)


def expand(xp: Any, node: Node, x: Value, shape: Value) -> Value:
    sizes = check_count(np.broadcast_shapes(x.shape, check_count(known("the shape", shape).reshape(-1))))
    return Value(xp.broadcast_to(x.array, sizes), x.type)


def tile(xp: Any, node: Node, x: Value, repeats: Value) -> Value:
    times = check_count(known("repeats", repeats).reshape(-1))
    if len(times) != x.ndim:
        raise ValueError(f"repeats={times} for shape {x.shape}; allowed is one number for each axis")
    check_count(size * count for size, count in zip(x.shape, times, strict=True))
    found = x.array
    for axis, count in enumerate(times):
        found = xp.concatenate([found] * count, axis) if count else _at(found, axis, slice(0, 0))
    return Value(found, x.type)


def shape_operator(xp: Any, node: Node, x: Value) -> Value:
    return of_host(x.shape[slice(node.get("start", 0), node.get("end"))], "int64")


def range_operator(xp: Any, node: Node, start: Value, limit: Value, delta: Value) -> Value:
    type = same_type(start, limit, delta)
    first, last, step = (
        known(name, one).reshape(-1)[0]
        for name, one in zip(("start", "limit", "delta"), (start, limit, delta), strict=True)
    )
    if step == 0:
        raise ValueError("delta=0; allowed are other numbers")
    (count,) = check_count([max(int(np.ceil((float(last) - float(first)) / float(step))), 0)])
    return of_host(first + np.arange(count).astype(held_as(type)) * step, type)


def trilu(xp: Any, node: Node, x: Value, k: Value | None = None) -> Value:
    shift = 0 if k is None else int(known("k", k).reshape(-1)[0])
    rows, columns = x.shape[-2:]
    distance = np.arange(columns)[None] - np.arange(rows)[:, None]
    kept = distance >= shift if node.get("upper", 1) else distance <= shift
    return Value(xp.where(xp.asarray(kept), x.array, xp.full_like(x.array, 0, xp.dtype(x.array))), x.type)


def one_hot(xp: Any, node: Node, indices: Value, depth: Value, values: Value) -> Value:
    (count,) = check_count(known("depth", depth).reshape(-1))
    axis = checked_axis(node.get("axis", -1), indices.ndim + 1)
    check_count((*indices.shape, count))
    places = xp.astype(indices.array, "int64")
    places = xp.where(places < 0, places + count, places)
    at = [slice(None)] * indices.ndim
    at.insert(axis, None)  # type: ignore[arg-type]
    row = np.arange(count).reshape([-1 if place == axis else 1 for place in range(indices.ndim + 1)])
    return Value(xp.where(places[tuple(at)] == xp.asarray(row), values.array[1], values.array[0]), values.type)


def _blocks(to_depth: bool) -> Callable[..., Value]:
    def run(xp: Any, node: Node, x: Value) -> Value:
        size = node.get("blocksize", 1)
        batch, channels, height, width = x.shape
        if to_depth:
            parts = x.array.reshape((batch, channels, height // size, size, width // size, size))
            found = xp.transpose(parts, (0, 3, 5, 1, 2, 4))
            return Value(found.reshape((batch, channels * size * size, height // size, width // size)), x.type)
        mode = node.text("mode", "DCR", ("DCR", "CRD"))
        inner = channels // (size * size)
        if mode == "DCR":
            found = xp.transpose(x.array.reshape((batch, size, size, inner, height, width)), (0, 3, 4, 1, 5, 2))
        else:
            found = xp.transpose(x.array.reshape((batch, inner, size, size, height, width)), (0, 1, 4, 2, 5, 3))
        return Value(found.reshape((batch, inner, height * size, width * size)), x.type)

    return run


def identity(xp: Any, node: Node, x: Value) -> Value:
    return x


def dropout(xp: Any, node: Node, x: Value, ratio: Value | None = None, training: Value | None = None) -> Any:
    if training is not None and known("training_mode", training).any():
        raise ValueError("training_mode=1; allowed is 0")
    return x, of_host(np.ones(check_count(x.shape)), "bool")


OPERATORS: dict[str, Callable[..., Any]] = {
    "Concat": concat,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "DepthToSpace": _blocks(to_depth=False),
    "Dropout": dropout,
    "Expand": expand,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_nd,
    "Identity": identity,
    "OneHot": one_hot,
    "Pad": pad,
    "Range": range_operator,
    "Reshape": reshape,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_nd,
    "Shape": shape_operator,
    "Size": lambda xp, node, x: of_host(prod(x.shape), "int64"),
    "Slice": slice_operator,
    "SpaceToDepth": _blocks(to_depth=True),
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "TopK": top_k,
    "Transpose": transpose,
    "Trilu": trilu,
    "Unsqueeze": unsqueeze,
}
