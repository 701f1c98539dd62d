"""Blocks of any shape: how an array is divided into tiles whose elements share a scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from types import EllipsisType
from typing import Any, NamedTuple

from qcore.arguments import check_int, quoted

MOST_AXES, MOST_ELEMENTS = 64, 2**40  # of an array, and of a block along an axis

Shape = tuple[int, ...]
Sizes = tuple[Any, ...]  # of a block along each axis, None is all of it; or FLAT and a size. A pair has a sub-block's.
Block = tuple[tuple[int | EllipsisType | str, int | None], ...]  # axis, ... or FLAT, and size, in order
BlockLike = Mapping[int, int | None] | Mapping[int | EllipsisType | str, int | None] | Block  # as users give blocks
FLAT = "flat"  # the only axis of blocks that are cut from the elements in row-major order


def check_block(block: Any, name: str = "block") -> Block:
    """A user's mapping of axes to sizes as sorted pairs, without the default `...: 1`."""
    try:
        pairs = dict(block).items()
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}={quoted(block)} is a {type(block).__name__}; allowed is a mapping of axes to sizes "
            "such as {-1: 32}"
        ) from None
    found = {}
    if FLAT in dict(pairs):
        if len(pairs) > 1 or dict(pairs)[FLAT] is None:
            raise ValueError(f"{name}={quoted(block)}; allowed beside 'flat' is no other axis, and a size")
        return ((FLAT, check_int(f"{name}['flat']", dict(pairs)[FLAT], 1, MOST_ELEMENTS)),)
    # -1 and the same axis counted from the front are two keys here: which axis they name depends on the array.
    for axis, size in pairs:
        axis = axis if axis is ... else check_int(f"{name}'s axis", axis, -MOST_AXES, MOST_AXES - 1)
        found[axis] = None if size is None else check_int(f"{name}[{_name(axis)}]", size, 1, MOST_ELEMENTS)
    others = found.pop(..., 1)
    return *sorted(found.items()), *([] if others == 1 else [(..., others)])


def block_text(block: Block) -> str:
    """A block as the mapping that makes it."""
    return "{" + ", ".join(f"{_name(axis)}: {size}" for axis, size in block) + "}"


def _name(axis: Any) -> str:
    return "..." if axis is ... else str(axis)


def block_sizes(block: Block, ndim: int) -> Sizes:
    """The size of a block along each axis of an array of `ndim` dimensions; None is the whole axis.

    Blocks that are cut from the elements in row-major order have the sizes `(FLAT, size)`, or `(size,)` of one axis.
    """
    if block[:1] and block[0][0] == FLAT:
        return (FLAT, block[0][1]) if ndim > 1 else (block[0][1],) * ndim
    sizes, named = [dict(block).get(..., 1)] * ndim, set()
    for axis, size in block:
        if not isinstance(axis, int):  # the other axes, `...`
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
    """An array as blocks: each axis that blocks divide becomes two, one along the blocks and one inside them.

    Sub-blocks have scales of their own: `axes` and `counts` are then those of sub-blocks, and an axis may become three.

    Attributes:
        shape: the shape of the array.
        cut: the shape whose axes blocks divide: that of the array, or that of all elements in a row.
        padded: `cut` after zeros are appended, so that the blocks' sizes divide it.
        tiled: its shape after the axes are split.
        axes: the axes of `tiled` that lie inside blocks.
        counts: the number of blocks along each axis of `cut`.
        around: the axes of `tiled` along the sub-blocks of a block.
        padded_counts: the number of blocks along each axis of `padded`.
    """

    shape: Shape
    cut: Shape
    padded: Shape
    tiled: Shape
    axes: Shape
    counts: Shape
    around: Shape = ()
    padded_counts: Shape = ()

    def split(self, array: Any, pad: Callable[[Any, Shape], Any]) -> Any:
        """The array with split axes; `pad` appends the given number of zeros along each axis."""
        if len(self.tiled) > MOST_AXES:
            raise ValueError(
                f"x has {len(self.shape)} axes, which its blocks split into {len(self.tiled)}; allowed are {MOST_AXES}"
            )
        array = array if self.cut == self.shape else array.reshape(self.cut)
        if self.cut != self.padded:
            array = pad(array, tuple(wide - length for wide, length in zip(self.padded, self.cut, strict=True)))
        return array if self.tiled == self.cut else array.reshape(self.tiled)

    def merge(self, array: Any) -> Any:
        """The inverse of `split`."""
        if self.tiled != self.padded:
            array = array.reshape(self.padded)
        array = array if self.cut == self.padded else array[tuple(map(slice, self.cut))]
        return array if self.cut == self.shape else array.reshape(self.shape)

    def spread(self, scales: Any) -> Any:
        """An array of shape `counts`, one number per block, in a shape that broadcasts with `tiled`."""
        return scales.reshape(tuple(1 if axis in self.axes else size for axis, size in enumerate(self.tiled)))

    def collect(self, scales: Any) -> Any:
        """The inverse of `spread`; drops the scales of sub-blocks that are padding only."""
        scales = scales.reshape(self.padded_counts)
        return scales if self.counts == self.padded_counts else scales[tuple(map(slice, self.counts))]


def tiles(shape: Shape, sizes: Sizes) -> Tiles:
    """The blocks of an array that is not empty."""
    padded, tiled, axes, counts, around, padded_counts = [], [], [], [], [], []
    cut, sizes = ((prod(shape),), sizes[1:]) if is_flat(sizes) else (shape, sizes)
    for length, given in zip(cut, sizes, strict=True):
        size, inner = given if isinstance(given, tuple) else (given, None)
        size = length if size is None else min(size, length)  # a longer block would only be padded with zeros
        inner = size if inner is None else min(inner, length)
        size = -(-size // inner) * inner
        count = -(-length // size)
        padded.append(count * size)
        counts.append(-(-length // inner))
        padded_counts.append(count * size // inner)
        if count > 1 or size == 1:  # no axis of length 1 that only says that there is one block
            tiled.append(count)
        if size > inner:
            around.append(len(tiled))
            tiled.append(size // inner)
        if inner > 1:
            axes.append(len(tiled))
            tiled.append(inner)
    return Tiles(shape, cut, *map(tuple, (padded, tiled, axes, counts, around, padded_counts)))


def block_counts(shape: Shape, sizes: Sizes) -> Shape:
    """The number of blocks, or of sub-blocks, along each axis; also for an empty array."""
    shape, sizes = ((prod(shape),), sizes[1:]) if is_flat(sizes) else (shape, sizes)
    inner = (size[1] if isinstance(size, tuple) else size for size in sizes)
    return tuple(
        min(length, 1) if size is None else -(-length // size) for length, size in zip(shape, inner, strict=True)
    )


def is_flat(sizes: Sizes) -> bool:
    """True if blocks are cut from the elements in row-major order."""
    return sizes[:1] == (FLAT,)


class Matrix(NamedTuple):
    """A contiguous array as a matrix, and its blocks as tiles of that matrix.

    Tiles at the right and the lower edge may be smaller. An array without blocks, or with one block, is a single row.
    """

    rows: int
    columns: int
    block_rows: int
    block_columns: int

    @property
    def counts(self) -> tuple[int, int]:
        """The number of blocks from top to bottom, and from left to right."""
        return -(-self.rows // self.block_rows), -(-self.columns // self.block_columns)


def as_matrix(shape: Shape, sizes: Sizes) -> Matrix | None:
    """An array that is not empty as a matrix.

    None where blocks extend along more axes than a matrix has, or have sub-blocks.
    """
    if is_flat(sizes):
        shape, sizes = (prod(shape),), sizes[1:]
    axes: list[tuple[int, int]] = [(1, 1)]
    # A loop, as an axis that has become longer may fit its outer neighbour, too.
    for length, size in zip(shape, sizes, strict=True):
        if isinstance(size, tuple):
            return None
        axes.append((length, length if size is None else min(size, length)))
        while len(axes) > 1 and (joined := _joined(*axes[-2:])):
            axes[-2:] = [joined]
    if len(axes) > 2:
        return None
    (rows, block_rows), (columns, block_columns) = [(1, 1), *axes][-2:]
    return Matrix(rows, columns, block_rows, block_columns)


def _joined(outer: tuple[int, int], inner: tuple[int, int]) -> tuple[int, int] | None:
    """Two neighbouring axes, each a length and a block's size, as one axis; None where that would divide blocks."""
    (count, size), (length, block) = outer, inner
    if block == length:  # whole inner rows: blocks of several outer steps stay contiguous
        return count * length, size * length
    if count == 1 or (size == 1 and length % block == 0):  # no block reaches from one outer step into the next
        return count * length, block
    return None
