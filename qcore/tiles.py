"""Blocks of any shape: how an array is divided into tiles whose elements share a scale."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

from qcore.arguments import check_int

Shape = tuple[int, ...]
Sizes = tuple[int | None, ...]  # of a block along each axis; None is all of it
Block = tuple[tuple[Any, int | None], ...]  # axis or ... and size, in order


def check_block(block: Any) -> Block:
    """A user's mapping of axes to sizes as sorted pairs; other axes that are of size 1 need no saying."""
    try:
        pairs = dict(block).items()
    except (TypeError, ValueError):
        raise TypeError(
            f"block={block!r} is a {type(block).__name__}; allowed is a mapping of axes to sizes such as {{-1: 32}}"
        ) from None
    found = {}
    for axis, size in pairs:
        axis = axis if axis is ... else check_int("axis of block", axis)
        found[axis] = None if size is None else check_int(f"block[{_name(axis)}]", size, 1)
    others = found.pop(..., 1)
    return *sorted(found.items()), *([] if others == 1 else [(..., others)])


def block_text(block: Block) -> str:
    """A block as the mapping that makes it."""
    return "{" + ", ".join(f"{_name(axis)}: {size}" for axis, size in block) + "}"


def _name(axis: Any) -> str:
    return "..." if axis is ... else str(axis)


def block_sizes(block: Block, ndim: int) -> Sizes:
    """The sizes of a block along each axis of an array of so many dimensions."""
    sizes, named = [dict(block).get(..., 1)] * ndim, set()
    for axis, size in block:
        if axis is ...:
            continue
        if not -ndim <= axis < ndim:
            allowed = f"{-ndim} <= axis < {ndim}" if ndim else "none but ..."
            raise ValueError(
                f"block={block_text(block)} has axis {axis}; allowed are {allowed} for an array of {ndim} dimensions"
            )
        if axis % ndim in named:
            raise ValueError(f"block={block_text(block)} has axis {axis} twice in an array of {ndim} dimensions")
        named.add(axis % ndim)
        sizes[axis] = size
    return tuple(sizes)


class Tiles(NamedTuple):
    """An array as blocks: an axis that is divided becomes two, the blocks along it and what is inside of each.

    Attributes:
        shape: the array's.
        padded: the array's once zeros are appended, so that the sizes divide it.
        split: that of all axes.
        axes: those of `split` that lie inside of blocks.
        counts: how many blocks there are along each axis of the array.
    """

    shape: Shape
    padded: Shape
    split: Shape
    axes: Shape
    counts: Shape

    @property
    def ragged(self) -> bool:
        return self.shape != self.padded

    @property
    def missing(self) -> Shape:
        """How many zeros are appended along each axis."""
        return tuple(wide - length for wide, length in zip(self.padded, self.shape, strict=True))

    def apart(self, array: Any, pad: Callable[[Any, Shape], Any]) -> Any:
        """The array with split axes; `pad` appends so many zeros along each axis."""
        if self.ragged:
            array = pad(array, self.missing)
        return array if self.split == self.shape else array.reshape(self.split)

    def together(self, array: Any) -> Any:
        """The inverse of `apart`."""
        if self.split != self.padded:
            array = array.reshape(self.padded)
        return array[tuple(map(slice, self.shape))] if self.ragged else array

    def spread(self, scales: Any) -> Any:
        """An array of `counts`, one number a block, such that it broadcasts with the array with split axes."""
        return scales.reshape(tuple(1 if axis in self.axes else size for axis, size in enumerate(self.split)))


def tiles(shape: Shape, sizes: Sizes) -> Tiles:
    """The blocks of an array with elements."""
    padded, split, axes, counts = [], [], [], []
    for length, size in zip(shape, sizes, strict=True):
        size = length if size is None else min(size, length)
        count = -(-length // size)
        padded.append(count * size)
        counts.append(count)
        if count > 1 or size == 1:
            split.append(count)
        if size > 1:
            axes.append(len(split))
            split.append(size)
    return Tiles(shape, tuple(padded), tuple(split), tuple(axes), tuple(counts))


def block_counts(shape: Shape, sizes: Sizes) -> Shape:
    """How many blocks there are along each axis, also where there are no elements."""
    return tuple(
        min(length, 1) if size is None else -(-length // size) for length, size in zip(shape, sizes, strict=True)
    )


class Merged(NamedTuple):
    """A contiguous array of few axes, which lie inside of blocks and outside by turns.

    Attributes:
        pattern: "r" for each axis inside of blocks, "k" for each outside.
        shape: with neighbouring axes of one kind merged, and none of length 1.
    """

    pattern: str
    shape: Shape


def merged(split: Shape, axes: Shape) -> Merged:
    groups: list[tuple[str, list[int]]] = []
    for axis, length in enumerate(split):
        kind = "r" if axis in axes else "k"
        if length == 1:
            continue
        if not groups or groups[-1][0] != kind:
            groups.append((kind, []))
        groups[-1][1].append(length)
    return Merged("".join(kind for kind, _ in groups), tuple(prod(lengths) for _, lengths in groups))
