"""The arrays of pytrees, apart from everything else in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np


def take_arrays(tree: Any, *whole: type) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The arrays of a pytree, and the function that rebuilds the tree with other arrays.

    Args:
        tree: any pytree.
        whole: types of nodes that count as arrays.
    """
    leaves, structure = jax.tree.flatten(tree, is_leaf=lambda node: isinstance(node, whole))
    arrays = [leaf for leaf in leaves if is_array(leaf, *whole)]
    others = [None if is_array(leaf, *whole) else (leaf,) for leaf in leaves]  # None where an array belongs
    return arrays, partial(_put_arrays, structure, others)


def _put_arrays(structure: Any, others: Sequence[tuple[Any] | None], arrays: Sequence[Any]) -> Any:
    remaining = iter(arrays)
    return jax.tree.unflatten(structure, [next(remaining) if one is None else one[0] for one in others])


def is_array(leaf: Any, *whole: type) -> bool:
    """True of arrays of JAX and NumPy, and of nodes of these types."""
    return isinstance(leaf, (jax.Array, np.ndarray, *whole))
