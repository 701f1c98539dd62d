"""Rows of a table, whose gradient is a sum for each row in an order that only positions decide."""

from __future__ import annotations

from math import nan, prod
from typing import Any

from qcore.numerics.differentiable import Differentiable


def _embedding(xp: Any, weight: Any, indices: Any) -> tuple[Any, tuple[Any, ...]]:
    count = weight.shape[0]
    known = xp.to_float64(indices)  # int8 may not have the number of rows
    known = (known >= 0) & (known < count)
    indices = xp.to_int32(indices)
    rows = xp.where(known[..., None], weight[xp.where(known, indices, 0)], nan)
    # What is no row is a row behind the last; a table without columns knows how many rows there are.
    return rows, (xp.where(known, indices, count), weight[:, :0])


def _embedding_gradient(xp: Any, saved: tuple[Any, ...], gradient: Any) -> tuple[Any, None]:
    indices, empty = saved
    count, width = empty.shape[0], gradient.shape[-1]
    rows = gradient.reshape((prod(indices.shape), width))
    return xp.narrow(_sum_by_index(xp, xp.wide(rows), indices.reshape(-1), count + 1)[:-1]), None


def _sum_by_index(xp: Any, rows: Any, indices: Any, count: int) -> Any:
    """For each index from 0 to count - 1 the sum of its float64 rows.

    The rows of an index, in their order, are summed in pairs of neighbours, level by level, as a tree of additions: the
    odd one out goes on to the next level. Rows of all indices are done at once, after a stable sort.
    """
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


EMBEDDING = Differentiable(_embedding, _embedding_gradient)
