"""Statistics of several arrays that a traced program merges: of a site, of iterations, of devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from qcore.insight import Statistics
from qcore.insight.lanes import DIGIT, LENGTH, SUMS, merge_lanes


def merged(a: Statistics, b: Statistics) -> Statistics:
    """Those of a site: one, or an entry for each iteration if one is a scan's."""
    if a.number != b.number:
        raise ValueError(
            f"fn rounds to {a.number} and {b.number} at one site; allowed are names of their own, by scopes"
        )
    if a.lanes.ndim == b.lanes.ndim == 1:
        return Statistics(a.number, merge_lanes(jnp, a.lanes, b.lanes))
    return Statistics(a.number, jnp.concatenate([one.lanes.reshape(-1, one.lanes.shape[-1]) for one in (a, b)]))


def none_like(one: Statistics) -> Statistics:
    """Those of no elements."""
    return Statistics(one.number, jnp.zeros(one.lanes.shape[-1], jnp.int32))


def flat(one: Statistics) -> Statistics:
    """All together, of statistics that a scan within made."""
    lanes = one.lanes.reshape(-1, one.lanes.shape[-1])
    total = lanes[0]
    for i in range(1, len(lanes)):
        total = merge_lanes(jnp, total, lanes[i])
    return Statistics(one.number, total)


def over_axes(lanes: Any, axes: tuple[str, ...]) -> Any:
    """The lanes of all devices along axes of a mesh merged, of which there are at most 2^15."""
    if not axes:
        return lanes
    half, mask = DIGIT // 2, (1 << DIGIT // 2) - 1
    low = lanes[..., SUMS : 2 * SUMS]
    high, middle, low, digest = jax.lax.psum((lanes[..., :SUMS], low >> half, low & mask, lanes[..., LENGTH:]), axes)
    middle = middle + (low >> half)
    magnitudes = jax.lax.pmax(lanes[..., 2 * SUMS : LENGTH], axes)
    return jnp.concatenate([high + (middle >> half), (middle & mask) << half | (low & mask), magnitudes, digest], -1)
