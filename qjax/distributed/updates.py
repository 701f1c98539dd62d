"""Gradients of many ranks in a chain of optax."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import missing_key
from qcore.distributed.backends import CollectiveLike, check_collective
from qcore.distributed.collective import REDUCE
from qjax._rounding.inputs import as_array
from qjax._rounding.keys import Key, fold_in, key_words
from qjax.distributed.arrays import psum, reduce

if TYPE_CHECKING:
    import optax


class ReduceState(NamedTuple):
    """The state of `reduce_updates`: how many updates there were, int32."""

    count: jax.Array


def reduce_updates(
    collective: CollectiveLike, axis_name: Hashable | None = None, *, key: Key = None
) -> optax.GradientTransformation:
    """An optax transformation that makes the gradients of ranks the collective's sum of them, or their mean.

    All arrays of the updates are one message, in the order of `jax.tree.leaves`. In `jax.vmap` and `jax.shard_map` the
    bits are those of `reduce`, as for `psum`.

    Args:
        collective: as for `reduce`; with a mean such as "nccl.ring.bf16.avg" the updates are those of one rank's size.
        axis_name: the axis of ranks of vmap or of a mesh, or a tuple of several. None: the updates' arrays have a
            leading axis of ranks, as those of `jax.vmap(jax.grad(loss))`.
        key: as for `reduce`; the n-th update, from 0 on, has `fold_in(key, n)`.

    Returns:
        A `GradientTransformation`, whose state counts the updates.

    Raises:
        ImportError: if optax is not installed.
        ValueError: if the collective has no all-reduce, stochastic rounding has no key, or the updates have several
            dtypes.

    Example:
        >>> import optax
        >>> chain = optax.chain(reduce_updates("nccl.ring.bf16"), optax.sgd(1.0))
        >>> state = chain.init({"w": jnp.zeros(1)})
        >>> chain.update({"w": jnp.float32([[1.0], [256.0], [1.0]])}, state)[0]  # 257 is no bfloat16
        {'w': Array([-256.], dtype=float32)}
    """
    try:
        import optax
    except ModuleNotFoundError as error:
        raise ImportError("qjax.distributed.reduce_updates needs optax: pip install optax") from error
    if check_collective(collective, "float32", REDUCE).stochastic and key is None:
        raise missing_key()
    words = None if key is None else key_words(key)

    def init(params: Any) -> ReduceState:
        return ReduceState(jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, ReduceState]:
        leaves, structure = jax.tree.flatten(updates)
        of_step = None if words is None else fold_in(words, state.count)
        found = _reduced([as_array(leaf, "updates") for leaf in leaves], collective, axis_name, of_step)
        return jax.tree.unflatten(structure, found), ReduceState(state.count + 1)

    return optax.GradientTransformation(init, update)


def _reduced(leaves: list[jax.Array], collective: CollectiveLike, axis_name: Any, key: Any) -> list[jax.Array]:
    """The arrays after a call on one message."""
    dtypes = sorted({leaf.dtype.name for leaf in leaves})
    if len(dtypes) > 1:
        raise ValueError(f"updates have dtypes {', '.join(dtypes)}; allowed is one, that of their message")
    if not leaves:
        return []
    begin = 0 if axis_name is not None else 1
    ranks = sorted({leaf.shape[:begin] for leaf in leaves})
    if len(ranks) > 1 or len(ranks[0]) < begin:
        raise ValueError(
            f"updates have shapes {', '.join(str(leaf.shape) for leaf in leaves)}; allowed is (ranks, ...)"
        )
    message = jnp.concatenate([leaf.reshape(*leaf.shape[:begin], -1) for leaf in leaves], -1)
    of_stack = axis_name is None
    found = reduce(message, collective, key=key) if of_stack else psum(message, axis_name, collective, key=key)
    shapes = [leaf.shape[begin:] for leaf in leaves]
    parts = jnp.split(found, np.cumsum([prod(shape) for shape in shapes])[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
