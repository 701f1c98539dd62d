"""The arrays of an optax state that are state tensors of a parameter."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax.tree_util import keystr, tree_flatten_with_path, tree_leaves, tree_map_with_path


class StateTensor(NamedTuple):
    """An array of an optimizer state that belongs to a parameter.

    Attributes:
        leaf: its index among the leaves of the state.
        parameter: the parameter's number, in the order of the flattened tree.
        index: its number among the parameter's state tensors, see `state_tensors`.
        name: of its field: `mu`.
    """

    leaf: int
    parameter: int
    index: int
    name: str


@dataclass(frozen=True)
class _Mark:
    """A placeholder for an array of the state: its parameter, if any, and the depth of the tree that it lies in."""

    parameter: int | None = None
    depth: int = 0


def state_tensors(tx: optax.GradientTransformation, state: Any, params: Any) -> list[StateTensor]:
    """The floating arrays in the parts of a state that have the parameters' structure; not step counters.

    A parameter's state tensors are numbered in the order of their fields' names (`mu`, `nu`, `nu_max`, `trace`), and
    for equal names in the order of the leaves. So Adam's `mu` is number 0 and `nu` number 1, as `exp_avg` and
    `exp_avg_sq` are in PyTorch.

    Raises:
        ValueError: if the state has arrays of floats, but none can be found to be a parameter's.
    """
    numbers = {path: number for number, (path, _) in enumerate(tree_flatten_with_path(params)[0])}

    def mark(path: Any, leaf: Any) -> _Mark:
        owners = (numbers[path[:length]] for length in range(len(path) + 1) if path[:length] in numbers)
        return _Mark(next(owners, None), len(path)) if jnp.issubdtype(leaf.dtype, jnp.floating) else _Mark()

    # each part as a whole, because parameters may be masked in it, or have several arrays each
    try:
        marks = optax.tree_utils.tree_map_params(
            tx,
            lambda part: tree_map_with_path(mark, part),
            state,
            transform_non_params=lambda _: _Mark(),
            is_leaf=lambda _: True,
        )
    except Exception:  # whatever tx.init raises for the placeholder of parameters that optax gives it
        marks = _by_structure(state, params)
    found = defaultdict(list)
    for leaf, (path, one) in enumerate(tree_flatten_with_path(marks)[0]):
        if one.parameter is not None:
            field = path[: len(path) - one.depth][-1:]
            found[one.parameter].append((keystr(field), leaf, keystr(field, simple=True)))
    if not found and any(jnp.issubdtype(x.dtype, jnp.floating) and x.ndim for x in tree_leaves(state)):
        raise _unknown(state)
    return [
        StateTensor(leaf, parameter, index, name)
        for parameter, tensors in found.items()
        for index, (_, leaf, name) in enumerate(sorted(tensors))
    ]


def _by_structure(state: Any, params: Any) -> Any:
    """Marks for the floating arrays of those subtrees that have all paths of the parameters, as in `optax.lbfgs`.

    An array may be several of a parameter's, one behind the other: its last axes are the parameter's.
    """
    owners = list(enumerate(tree_flatten_with_path(params)[0]))
    parts = defaultdict(dict)
    for path, leaf in tree_flatten_with_path(state)[0]:
        for number, (own, x) in owners:
            fits = own and path[-len(own) :] == own and leaf.shape[leaf.ndim - x.ndim :] == x.shape
            if fits and jnp.issubdtype(leaf.dtype, jnp.floating):
                parts[path[: -len(own)]][path] = _Mark(number, len(own))
    whole = [part for part in parts.values() if len(part) == len(owners)]
    marks = {path: mark for part in reversed(whole) for path, mark in part.items()}
    return tree_map_with_path(lambda path, _: marks.get(path, _Mark()), state)


def _unknown(state: Any) -> ValueError:
    """For an optimizer of which it cannot be found out what momentum_quant would round."""
    paths = (keystr(path, simple=True, separator=".") for path, _ in tree_flatten_with_path(state)[0])
    return ValueError(
        f"momentum_quant with an optimizer whose state ({', '.join(paths)}) has no parts that "
        "optax.tree_utils.tree_map_params finds or that have all paths of the parameters, as in optax.flatten; "
        "allowed is momentum_quant=None"
    )
