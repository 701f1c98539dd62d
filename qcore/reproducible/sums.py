"""Sums by halves along several axes, sums of rows by index, and what gradients need of them."""

from __future__ import annotations

from typing import Any

from qcore.linalg.sums.tree import tree_sum


def tree_sums(xp: Any, a: Any, b: Any, axes: tuple[int, ...]) -> Any:
    """The float64 sums of float32 numbers, or where b is not None of their products with b's, axis after axis."""
    x = xp.wide(a) if b is None else xp.wide(a) * xp.wide(b)
    for axis in axes:
        empty = not x.shape[axis]
        x = xp.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x) if empty else tree_sum(xp, x, axis)
    return x


def sums_by_index(xp: Any, rows: Any, indices: Any, count: int) -> Any:
    """For each index from 0 to count - 1 the float64 sum of its float32 rows.

    The rows of an index, in their order, are summed in pairs of neighbours, level by level, as a tree of additions: the
    odd one out goes on to the next level. Rows of all indices are done at once, after a stable sort.
    """
    rows = xp.wide(rows)
    if rows.shape[0] == 0:
        return xp.zeros((count, rows.shape[1]), rows)
    order = xp.argsort(indices)
    indices, rows = indices[order], rows[order]
    firsts = xp.searchsorted(indices, xp.arange(count, indices))
    place = xp.arange(len(indices), indices) - firsts[indices]  # among the rows of the same index
    distance = 1
    while distance < len(indices):
        later, same = rows[distance:], indices[distance:] == indices[:-distance]
        meets = same & (place[:-distance] % (2 * distance) == 0)
        sums = xp.where(meets[:, None], rows[:-distance] + later, rows[:-distance])
        rows = xp.materialize(xp.concatenate([sums, rows[-distance:]], 0))  # which each level reads three times
        distance *= 2
    found = xp.where(firsts < len(indices), firsts, 0)
    present = indices[found] == xp.arange(count, indices)
    return xp.where(present[:, None], rows[found], xp.zeros((), rows))


def total(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The sums of float32 numbers along axes, which stay: in float64, axis after axis, rounded once to float32.

    Axes are numbers from 0 on, in ascending order.
    """
    return xp.narrow(xp.sums(x, None, axes))


def dot(xp: Any, a: Any, b: Any, axes: tuple[int, ...]) -> Any:
    """The sums of the exact products of float32 numbers of one shape, as `total`."""
    return xp.narrow(xp.sums(a, b, axes))


def check_broadcast(a: str, shape: Any, b: str, other: Any) -> None:
    """Refuses shapes that do not broadcast, of two arguments with these names."""
    for m, n in zip(shape[::-1], other[::-1], strict=False):
        if m != n and m != 1 and n != 1:
            came = f"{a} has shape {tuple(shape)}, {b} {tuple(other)}"
            raise ValueError(f"{came}; allowed are shapes that broadcast")


def unbroadcast(xp: Any, gradient: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of an array of a shape, of which copies were made when it met a larger one."""
    extra = gradient.ndim - len(shape)
    axes = [extra + i for i, size in enumerate(shape) if size == 1 and gradient.shape[extra + i] != 1]
    if not extra and not axes:
        return gradient
    return total(xp, gradient, (*range(extra), *axes)).reshape(tuple(shape))


def squeezed(x: Any, axes: tuple[int, ...]) -> Any:
    """x without axes of length 1."""
    return x.reshape(tuple([size for axis, size in enumerate(x.shape) if axis not in axes]))


def expanded(x: Any, axes: tuple[int, ...], ndim: int) -> Any:
    """The inverse of `squeezed`, for a result with so many dimensions."""
    sizes = iter(tuple(x.shape))
    return x.reshape(tuple([1 if axis in axes else next(sizes) for axis in range(ndim)]))
