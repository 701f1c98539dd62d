"""The state of a low-precision optimizer: exact weights, accumulators, and the state tensors of each parameter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import keystr, tree_flatten_with_path, tree_leaves, tree_map_with_path

from qcore.arguments import quoted
from qcore.notices import warn
from qjax._rounding.dispatch import same_bits
from qjax._rounding.inputs import ArrayLike, PyTree


class LowPrecisionState(NamedTuple):
    """The state of `low_precision`, a tree of arrays.

    Attributes:
        step: int32, the number of the next step.
        key: uint32 array of the key's two words; None without a key.
        weights: the exact parameters after the last step.
        written: the parameters after `optax.apply_updates`: equal to `weights`, except where no update leads to them.
        accumulators: the parameters in the accumulators' precision, in float32 for 16-bit parameters; None without
            acc_quant.
        inner: the state of the inner optimizer.
        scaling: the state of delayed scales, None without any: a dictionary with "gradient", "accumulator", "weight"
            and "momentum", as far as their formats have a history. Each is a tree like the parameters, the last one
            like `inner`, of a float32 array for each tensor that is rounded: its scale, and the past largest
            magnitudes, the newest first.

    Example:
        >>> from qjax.optim import low_precision
        >>> optimizer = low_precision(optax.sgd(0.1))
        >>> state = optimizer.init({"w": jnp.float32([1.5])})
        >>> int(state.step), state.key
        (0, None)
    """

    step: jax.Array
    key: jax.Array | None
    weights: PyTree
    written: PyTree
    accumulators: PyTree | None
    inner: optax.OptState
    scaling: dict[str, PyTree] | None


class StateInCodes(NamedTuple):
    """A state tensor in codes of a format.

    Attributes:
        codes: array of unsigned integers.
    """

    codes: jax.Array


def apply_updates(params: PyTree, updates: PyTree, state: optax.OptState) -> PyTree:
    """Adds updates to parameters as `optax.apply_updates` does, and gives exactly the quantized weights.

    p + (q - p) is not q for all floats, so optax's function alone can miss a quantized weight by a rounding error of p,
    and loses the sign of zero. A parameter that `low_precision` did not update becomes p + u.

    Args:
        params: the tree of parameters that was passed to `update`.
        updates: the updates that it returned.
        state: the optimizer state that it returned; `low_precision` may be inside of `optax.chain` or similar.

    Returns:
        The new parameters, with the structure, shapes and dtypes of params.

    Raises:
        TypeError: if a leaf of params or updates is not an array of numbers.
        ValueError: if the state is not one of `low_precision`, or structures or shapes differ.

    Example:
        >>> from qjax.optim import low_precision
        >>> tx = low_precision(optax.sgd(0.1), weight_quant="e5m2")
        >>> params = jnp.float32([1.0, 2.0])
        >>> updates, state = tx.update(jnp.float32([3.0, -4.0]), tx.init(params), params)
        >>> apply_updates(params, updates, state)
        Array([0.75, 2.5 ], dtype=float32)
    """
    parts = _parts(state)
    _check_trees(params, updates)
    params = optax.apply_updates(params, updates)
    for part in parts:
        params = jax.tree.map(_exactly, part.weights, part.written, params, is_leaf=_is_masked)
    return params


def _check_trees(params: Any, updates: Any) -> None:
    """Raises unless both are trees of arrays of numbers, of one structure and of the same shapes."""
    for name, tree in (("params", params), ("updates", updates)):
        for leaf in jax.tree.leaves(tree):
            if not isinstance(leaf, ArrayLike) or not jnp.issubdtype(leaf.dtype, jnp.number):
                raise TypeError(f"{name} has {quoted(leaf)}; allowed is a tree of arrays of numbers")
    structures = jax.tree.structure(params), jax.tree.structure(updates)
    if structures[0] != structures[1]:
        raise ValueError(f"updates is {quoted(structures[1])}; allowed is the structure of params, {structures[0]}")
    for param, update in zip(jax.tree.leaves(params), jax.tree.leaves(updates), strict=True):
        if param.shape != update.shape:
            raise ValueError(f"updates has an array of shape {update.shape}; allowed is that of params, {param.shape}")


def _exactly(weight: Any, written: Any, param: Any) -> Any:
    return param if _is_masked(weight) else jnp.where(same_bits(param, written), weight, param)


def accumulators(state: optax.OptState) -> PyTree:
    """The high-precision copies of the parameters, from which the optimizer steps.

    Args:
        state: a state of `low_precision`, which may be inside of `optax.chain`, `optax.partition` or similar.

    Returns:
        A tree like the parameters, with `optax.MaskedNode()` for parameters without an accumulator.

    Raises:
        ValueError: if the state is not one of `low_precision` with acc_quant.

    Example:
        >>> from qjax.optim import low_precision
        >>> tx = low_precision(optax.sgd(0.1), weight_quant="e5m2", acc_quant="bfloat16")
        >>> params = jnp.float32([1.0, 2.0])
        >>> updates, state = tx.update(jnp.float32([3.0, -4.0]), tx.init(params), params)
        >>> accumulators(state)
        Array([0.69921875, 2.40625   ], dtype=float32)
    """
    trees = [part.accumulators for part in _parts(state) if part.accumulators is not None]
    if not trees:
        raise ValueError("state has no accumulators; allowed is a state of low_precision with acc_quant")
    merged = trees[0]
    for tree in trees[1:]:
        merged = jax.tree.map(lambda a, b: b if _is_masked(a) else a, merged, tree, is_leaf=_is_masked)
    return merged


def _parts(state: Any) -> list[LowPrecisionState]:
    """The states of `low_precision` inside an optimizer state; several if each is for some of the parameters."""
    leaves = jax.tree.leaves(state, is_leaf=lambda x: isinstance(x, LowPrecisionState))
    parts = [leaf for leaf in leaves if isinstance(leaf, LowPrecisionState)]
    if not parts:
        raise ValueError(f"state is a {type(state).__name__} without low_precision; allowed is one of its states")
    return parts


def _is_masked(x: Any) -> bool:
    return isinstance(x, optax.MaskedNode)


class StateTensor(NamedTuple):
    """An array of an optimizer state that belongs to a parameter.

    Attributes:
        leaf: its index among the leaves of the state.
        parameter: the parameter's number, in the order of the flattened tree.
        index: its number among the parameter's state tensors, see `state_tensors`.
        name: the name of its field, such as `mu`.
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
        ValueError: if the state has arrays of floats, but none belongs to a parameter.
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
    if not found and any(map(_is_momentum, tree_leaves(state))):
        raise _unknown(state)
    owned = {leaf for tensors in found.values() for _, leaf, _ in tensors}
    _name_others([one for leaf, one in enumerate(tree_flatten_with_path(state)[0]) if leaf not in owned])
    return [
        StateTensor(leaf, parameter, index, name)
        for parameter, tensors in found.items()
        for index, (_, leaf, name) in enumerate(sorted(tensors))
    ]


def _by_structure(state: Any, params: Any) -> Any:
    """Marks for the floating arrays of subtrees that have all paths of the parameters, as in `optax.lbfgs`.

    An array may be a stack of several arrays of a parameter: its last axes are then the parameter's. Arrays in a list
    with an item for each parameter, in the order of the flattened tree, belong to the parameter of their item.
    """
    owners = list(enumerate(tree_flatten_with_path(params)[0]))
    parts = defaultdict(dict)
    for path, leaf in tree_flatten_with_path(state)[0]:
        for number, (own, x) in owners:
            fits = path[len(path) - len(own) :] == own and leaf.shape[leaf.ndim - x.ndim :] == x.shape
            if fits and jnp.issubdtype(leaf.dtype, jnp.floating):
                parts[path[: -len(own)]][path] = _Mark(number, len(own))
    whole = [part for part in parts.values() if len(part) == len(owners)]
    marks = {path: mark for part in reversed(whole) for path, mark in part.items()}
    marks |= {path: mark for path, mark in _in_lists(state, len(owners)).items() if path not in marks}
    return tree_map_with_path(lambda path, _: marks.get(path, _Mark()), state)


def _name_others(leaves: Sequence[tuple[Any, Any]]) -> None:
    """Warns of matrices that belong to no parameter; vectors may be the optimizer's own numbers, one for each step."""
    names = [keystr(path, simple=True, separator=".") for path, x in leaves if _is_momentum(x) and x.ndim > 1]
    if names:
        warn(
            f"momentum_quant leaves {', '.join(names)} of the optimizer's state as it is; rounded are arrays in parts "
            "with the parameters' structure, and in lists with an item for each parameter"
        )


def _in_lists(state: Any, count: int) -> dict[Any, _Mark]:
    """Marks for the floating arrays in lists of so many items, by their paths; tuples are chains of optimizers."""
    marks = {}
    for path, node in tree_flatten_with_path(state, is_leaf=lambda x: isinstance(x, list) and len(x) == count)[0]:
        if isinstance(node, list):
            for inner, x in tree_flatten_with_path(node)[0]:
                if _is_momentum(x):
                    marks[*path, *inner] = _Mark(inner[0].idx, len(inner))
    return marks


def _is_momentum(x: Any) -> bool:
    """True of floating arrays that are no scalars."""
    return jnp.issubdtype(x.dtype, jnp.floating) and x.ndim > 0


def _unknown(state: Any) -> ValueError:
    """The error for an optimizer whose state tensors cannot be found."""
    paths = (keystr(path, simple=True, separator=".") for path, _ in tree_flatten_with_path(state)[0])
    return ValueError(
        f"momentum_quant with an optimizer whose state ({', '.join(paths)}) has no parts that "
        "optax.tree_utils.tree_map_params finds or that have all paths of the parameters, as in optax.flatten; "
        "allowed is momentum_quant=None"
    )
