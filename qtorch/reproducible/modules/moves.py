"""Rows of the registry: functions that move numbers, compare them, and choose among them."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from qcore.arguments import check_int, quoted
from qcore.reproducible.moves import FITTING
from qtorch._torch_internals import functions_of_layers
from qtorch.reproducible.functions import FUNCTIONS
from qtorch.reproducible.modules.elementwise import equal, numbers
from qtorch.reproducible.modules.registry import defines, float32, in_place, named, refuse, row


class ValuesAndIndices(NamedTuple):
    """What torch's sort, topk, max and min along an axis return."""

    values: Tensor
    indices: Tensor


@defines(Tensor.unflatten)
def _unflatten(input: Tensor, dim: int, sizes: Any) -> Tensor:
    return torch.unflatten(input, dim, sizes)  # Dynamo does not trace the method


@defines(torch.chunk, Tensor.chunk)
def _chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    if check_int("chunks", chunks, 1) and x.shape[dim] == 0:  # torch has so many empty parts
        return _split(x, [0] * chunks, dim)
    return _split(x, -(-x.shape[dim] // chunks), dim)


@defines(torch.split, Tensor.split, torch.split_with_sizes, Tensor.split_with_sizes)
def _split(x: Tensor, split_size_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    length, sizes = x.shape[dim], split_size_or_sections
    if isinstance(sizes, int):
        check_int("split_size", sizes, 0 if length == 0 else 1)
        full, rest = divmod(length, max(sizes, 1))
        sizes = [sizes] * full + [rest] * (rest > 0 or length == 0)  # of nothing there is one empty part
    if sum(sizes) != length:
        raise ValueError(f"sections {sizes} do not add up to the length {length}; allowed are those that do")
    if len(set(sizes)) == 1:
        return FUNCTIONS.chunk(x, len(sizes), dim)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple([FUNCTIONS.narrow(x, dim, start, size) for start, size in zip(starts, sizes, strict=True)])


@defines(torch.tensor_split, Tensor.tensor_split)
def _tensor_split(x: Tensor, indices_or_sections: Any, dim: int = 0) -> tuple[Tensor, ...]:
    given, length = indices_or_sections, x.shape[dim]
    if isinstance(given, int):
        check_int("sections", given, 1)
        ends = [length // given * i + min(i, length % given) for i in range(1, given)]
    else:
        ends = [int(end) for end in given]
    pairs = list(zip([0, *ends], [*ends, length], strict=True))
    if all(0 <= start <= stop for start, stop in pairs):
        return _split(x, [stop - start for start, stop in pairs], dim)
    # Ends may be negative, beyond the length, or out of order, as those of slices.
    parts = [slice(*pair).indices(length)[:2] for pair in pairs]
    return tuple([FUNCTIONS.narrow(x, dim, start, max(stop - start, 0)) for start, stop in parts])


@defines(torch.unbind, Tensor.unbind)
def _unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    length = x.shape[dim]
    return tuple([one.squeeze(dim) for one in FUNCTIONS.chunk(x, length, dim)]) if length else ()


@defines(torch.narrow, Tensor.narrow)
def _narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    return FUNCTIONS.narrow(x, dim, start, length)


@defines(torch.select, Tensor.select)
def _select(x: Tensor, dim: int, index: int) -> Tensor:
    return FUNCTIONS.narrow(x, dim, index + x.shape[dim] * (index < 0), 1).squeeze(dim)


@defines(Tensor.__getitem__, operator.getitem)
def _part(x: Tensor, index: Any) -> Tensor:
    return FUNCTIONS.part(x, tuple(index) if isinstance(index, list) and _has_slices(index) else index)


def _has_slices(index: Any) -> bool:
    return any(isinstance(one, slice) or one is None or one is ... for one in index)


@defines(Tensor.__setitem__, operator.setitem)
def _put(x: Tensor, index: Any, value: Any) -> None:
    """Places that are named twice would have one of two numbers."""
    tensors = [one for one in (index if isinstance(index, tuple) else (index,)) if isinstance(one, Tensor | list)]
    refuse(index=any(isinstance(one, list) or one.dtype is not torch.bool for one in tensors))
    if isinstance(value, Tensor):
        value = _expanded(float32(value), tuple(FUNCTIONS.places(x)[index].shape))
    Tensor.__setitem__(x, index, value)


@defines(torch.index_copy, Tensor.index_copy)
def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """What fills caches of a fixed length. Places that are named twice would have one of two numbers."""
    if not torch.compiler.is_dynamo_compiling() and len(index.unique()) < index.numel():
        raise ValueError("index names a place twice; allowed are different places")
    return torch.index_copy(x, dim, index, source)


in_place(_index_copy, Tensor.index_copy_)


@defines(Tensor.copy_)
def _copy(x: Tensor, other: Tensor, non_blocking: bool = False) -> Tensor:
    if not x.is_floating_point():
        refuse(other=True)
    return x.copy_(_expanded(float32(other), tuple(x.shape)))


def _expanded(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x in a shape that it broadcasts to; leading axes of length 1 may be missing there."""
    while x.ndim > len(shape) and x.shape[0] == 1:
        x = x.squeeze(0)
    return x if tuple(x.shape) == shape else FUNCTIONS.broadcast_to(x, shape)


@defines(Tensor.expand, torch.broadcast_to, Tensor.broadcast_to)
def _expand(x: Tensor, *sizes: Any, implicit: bool = False) -> Tensor:
    wanted = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    missing = len(wanted) - x.ndim
    shape = [x.shape[i - missing] if size == -1 and i >= missing else size for i, size in enumerate(wanted)]
    return FUNCTIONS.broadcast_to(x, shape)


@defines(Tensor.expand_as)
def _expand_as(x: Tensor, other: Tensor) -> Tensor:
    return FUNCTIONS.broadcast_to(x, tuple(other.shape))


@defines(torch.broadcast_tensors)
def _broadcast_tensors(*tensors: Any) -> list[Tensor]:
    given = tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    shape = torch.broadcast_shapes(*[x.shape for x in given])
    return [FUNCTIONS.broadcast_to(x, tuple(shape)) if x.is_floating_point() else x.expand(shape) for x in given]


@defines(F.pad, *functions_of_layers("pad"))  # Dynamo looks into the first one
def _pad(x: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """Negative numbers of elements cut, before others are put around."""
    widths = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    for axis, (before, after) in enumerate(widths, x.ndim - len(widths)):
        if before < 0 or after < 0:
            start, stop = max(-before, 0), x.shape[axis] - max(-after, 0)
            x = FUNCTIONS.narrow(x, axis, start, max(stop - start, 0))
    kept = [(max(before, 0), max(after, 0)) for before, after in widths]
    return FUNCTIONS.pad(x, kept, mode, 0.0 if value is None else value)


def _moved(function: Any, x: Tensor, *arguments: Any, **options: Any) -> Tensor:
    return FUNCTIONS.moved(x, lambda places: function(places, *arguments, **options))


for _function in named("repeat_interleave tile", torch, Tensor) | named("repeat unfold", Tensor) | {torch.take}:
    row(partial(_moved, _function), _function)


@defines(torch.gather, Tensor.gather)
def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    refuse(sparse_grad=sparse_grad)
    return FUNCTIONS.take_along_axis(x, index, dim)


@defines(torch.take_along_dim, Tensor.take_along_dim)
def _take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    return FUNCTIONS.moved(x, lambda places: torch.take_along_dim(places, indices, dim))


@defines(torch.index_select, Tensor.index_select)
def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return FUNCTIONS.take(x, index, dim)


@defines(torch.masked_select, Tensor.masked_select)
def _masked_select(x: Tensor, mask: Tensor) -> Tensor:
    return FUNCTIONS.moved(x, lambda places: places.masked_select(mask))


@defines(F.interpolate)
def _interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Modes that copy numbers; torch has them for floating numbers only."""
    if mode not in ("nearest", "nearest-exact"):
        raise ValueError(f"mode={quoted(mode)} has no defined bits; allowed are 'nearest' and 'nearest-exact'")
    settings = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    return FUNCTIONS.moved(x, lambda places: F.interpolate(places.to(torch.float64), *settings).to(torch.int64))


@defines(torch.where, Tensor.where)
def _where(condition: Tensor, a: Any, b: Any) -> Tensor:
    if condition.dtype is not torch.bool:  # the method's first argument is what is chosen
        condition, a = a, condition
    return FUNCTIONS.where(condition, float32(a), float32(b))


@defines(Tensor.masked_fill, torch.masked_fill)
def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return FUNCTIONS.where(mask, float32(value), x)


in_place(_masked_fill, Tensor.masked_fill_)


@defines(torch.ne, torch.not_equal, Tensor.ne, Tensor.not_equal, Tensor.__ne__, operator.ne)
def _not_equal(a: Any, b: Any) -> Tensor:
    return ~FUNCTIONS.equal(*numbers(a, b))


@defines(Tensor.bool)
def _bool(x: Tensor) -> Tensor:
    return _not_equal(x, 0.0)


@defines(torch.logical_not, Tensor.logical_not)
def _logical_not(x: Tensor) -> Tensor:
    return equal(x, 0.0)


@defines(torch.argmax, Tensor.argmax)
def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    flat = x.reshape(-1) if dim is None else x
    found = FUNCTIONS.argmax(flat, 0 if dim is None else dim).to(torch.int64)
    if not keepdim:
        return found
    return found.reshape((1,) * x.ndim) if dim is None else found.unsqueeze(dim)


@defines(torch.argmin, Tensor.argmin)
def _argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _argmax(-x, dim, keepdim)


@defines(torch.max, Tensor.max)
def _max(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Of all numbers, along an axis with places, or of two tensors."""
    if isinstance(dim, Tensor):
        return FUNCTIONS.maximum(*numbers(x, dim))
    return FUNCTIONS.max(x) if dim is None else _chosen(x, _argmax(x, dim, True), dim, keepdim)


@defines(torch.min, Tensor.min)
def _min(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    if isinstance(dim, Tensor):
        return FUNCTIONS.minimum(*numbers(x, dim))
    return -FUNCTIONS.max(-x) if dim is None else _chosen(x, _argmin(x, dim, True), dim, keepdim)


def _chosen(x: Tensor, indices: Tensor, dim: int, keepdim: bool) -> ValuesAndIndices:
    values = FUNCTIONS.take_along_axis(x, indices, dim)
    return ValuesAndIndices(values, indices) if keepdim else ValuesAndIndices(values.squeeze(dim), indices.squeeze(dim))


@defines(torch.argsort, Tensor.argsort)
def _argsort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    return FUNCTIONS.argsort(x, dim, descending).to(torch.int64)


@defines(torch.sort, Tensor.sort)
def _sort(x: Tensor, dim: int = -1, descending: bool = False, *, stable: bool | None = False) -> ValuesAndIndices:
    return _chosen(x, _argsort(x, dim, descending), dim, True)


@defines(torch.topk, Tensor.topk)
def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesAndIndices:
    """The first k of the sorted numbers; of equal numbers the lower index comes first."""
    return _chosen(x, _argsort(x, dim, largest).narrow(dim, 0, k), dim, True)


@defines(Tensor.to, Tensor.type_as)
def _to(x: Tensor, *arguments: Any, **options: Any) -> Any:
    """To another device, and from integers to float32."""
    other = arguments[0] if arguments else None
    dtypes = [one for one in (*arguments, *options.values()) if isinstance(one, torch.dtype)]
    dtype = other.dtype if isinstance(other, Tensor) else dtypes[0] if dtypes else None
    if x.is_floating_point() and dtype is torch.bool:
        return _bool(x)
    if x.is_floating_point() and dtype is not None and not dtype.is_floating_point and not dtype.is_complex:
        limits = torch.iinfo(dtype)
        return FUNCTIONS.call(FITTING, x.detach(), least=float(limits.min), most=float(limits.max) + 1).to(dtype)
    y = x.to(*arguments, **options)
    if x.dtype is not y.dtype and (x.is_floating_point() or y.dtype is not torch.float32):
        raise ValueError(f"from {x.dtype} to {y.dtype} has no defined bits; allowed is torch.float32")
    return y


@defines(Tensor.type)
def _type(x: Tensor, dtype: torch.dtype | None = None) -> Any:
    return x.type() if dtype is None else _to(x, dtype)


@defines(Tensor.int)
def _int(x: Tensor, memory_format: Any = torch.preserve_format) -> Tensor:
    return _to(x, torch.int32)


@defines(Tensor.long)
def _long(x: Tensor, memory_format: Any = torch.preserve_format) -> Tensor:
    return _to(x, torch.int64)


@defines(Tensor.float)
def _float(x: Tensor, memory_format: Any = torch.preserve_format) -> Tensor:
    return _to(x, torch.float32)


@defines(torch.arange)
def _arange(*arguments: Any, **options: Any) -> Tensor:
    """Integers as floating numbers; a step that is not an integer would be rounded."""
    given = [one for one in (*arguments, *options.values()) if isinstance(one, float)]
    refuse(step=any(one != int(one) for one in given))
    return torch.arange(*arguments, **options)
