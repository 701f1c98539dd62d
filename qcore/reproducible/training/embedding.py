"""Rows of a table, whose gradient is a sum for each row in an order that only positions decide."""

from __future__ import annotations

from math import nan, prod
from typing import Any

from qcore.reproducible.differentiable import Differentiable


def _embedding(xp: Any, weight: Any, indices: Any, padding: int = -1) -> tuple[Any, tuple[Any, ...]]:
    count = weight.shape[0]
    known = xp.to_float64(indices)  # int8 may not have the number of rows
    known = (known >= 0) & (known < count)
    indices = xp.to_int32(indices)
    rows = xp.where(known[..., None], weight[xp.where(known, indices, 0)], nan)
    # What is no row, and the row of the padding, is a row behind the last. A table without columns says how many rows
    # there are.
    return rows, (xp.where(known & (indices != padding), indices, count), weight[:, :0])


def _embedding_gradient(xp: Any, saved: tuple[Any, ...], gradient: Any, padding: int = -1) -> tuple[Any, None]:
    indices, empty = saved
    count, width = empty.shape[0], gradient.shape[-1]
    rows = gradient.reshape((prod(indices.shape), width))
    return xp.narrow(xp.sums_by_index(rows, indices.reshape(-1), count + 1)[:-1]), None


EMBEDDING = Differentiable(_embedding, _embedding_gradient, by_pieces=True, fusible=False)
