"""Sums over many ranks in one process, on JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

import qcore.distributed.reducer as law
from qcore.arguments import missing_key
from qcore.distributed import stream
from qcore.distributed.collective import REDUCE
from qcore.distributed.law import DIVIDED, LEVELS, RESULT, SUM, TERMS, OfLevel
from qcore.distributed.stream import Level, Steps
from qjax._rounding.inputs import as_array
from qjax._rounding.keys import key_words
from qjax.distributed.arrays import Terms, from_float32, names_of, reduce, reduce_scatter, to_float32


class Reducer(law.Reduction):
    """The sum of many ranks' gradients, given one after the other: one process simulates N.

    It has the bits of `reduce` of the stack of all gradients, for which it needs less memory; see
    `qcore.distributed.Reducer`, whose bits it has. Gradients are added outside of jit, vmap and shard_map.

    Args:
        collective: as for `reduce`; also NCCL's PAT, which has a reduce-scatter alone: its parts, one after the other.
        ranks: how many gradients will be added, N: arrays, or trees of arrays of one dtype.
        labels: "rotated": in each chunk of a ring the k-th gradient is that of the rank whose number is added as the
            k-th; "ranks": the k-th gradient is that of rank k, for which rings keep all gradients.
        key: as for `reduce`.

    Attributes:
        labels: the labels that are used: "ranks" for other orders than rings, "own_first" and "nccl_pat".
        came: how many gradients were added.

    Raises:
        ValueError: if ranks fill no nodes of the collective, or stochastic rounding has no key.

    Example:
        >>> reducer = Reducer("nccl.ring.bf16", ranks=3)
        >>> for number in 1.0, 256.0, 1.0:  # 257 is no bfloat16
        ...     reducer.add({"weight": jnp.float32([number])})
        >>> reducer.result(), reducer.labels
        ({'weight': Array([256.], dtype=float32)}, 'rotated')
    """

    classes, allowed, terms = (jax.Array, np.ndarray), "a jax.Array or NumPy array", Terms

    def _words(self, key: Any, stochastic: bool) -> Any:
        if stochastic and key is None:
            raise missing_key()
        return None if key is None else key_words(key)

    def _flattened(self, gradient: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
        leaves, structure = jax.tree.flatten(gradient)
        for leaf in leaves:
            if isinstance(leaf, Tracer):
                raise TypeError("gradient is traced; allowed are arrays outside of jit: `reduce` takes traced stacks")
        return leaves, partial(_like, jax.tree.unflatten(structure, range(len(leaves))))

    def _structure(self, make: Callable[[list[Any]], Any]) -> Any:
        return jax.tree.structure(super()._structure(make))

    def _message(self, leaves: list[Any], kept: bool) -> jax.Array:
        parts = [as_array(leaf, "gradient").reshape(-1) for leaf in leaves]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts)

    def _names(self, flush: bool, role: int) -> Terms:
        return names_of(self._key, flush, role)

    def _steps(self, level: Level, names: OfLevel) -> Steps:
        return CompiledSteps(level, names)

    def _of_total(self, total: jax.Array) -> jax.Array:
        return _of_total(total, self._like.dtype)

    def _of_stack(self) -> jax.Array:
        call = reduce if self._call == REDUCE else reduce_scatter
        return call(
            jnp.stack(self._stack).reshape(self.ranks, *self._shape),
            self.collective,
            key=self._key.view(np.uint32) if self._key is not None else None,
        ).reshape(-1)


def _like(tree: Any, leaves: list[Any]) -> Any:
    """A tree like another; pickle takes trees of a user's own nodes, and not their structures."""
    return jax.tree.unflatten(jax.tree.structure(tree), leaves)


class CompiledSteps(Steps):
    """Each step of the law as a program of XLA's, of which one serves all ranks and nodes."""

    def __init__(self, level: Level, names: OfLevel) -> None:
        super().__init__(level, names)
        self.keys = {role: names(role).key for role in (SUM, TERMS, DIVIDED, RESULT)}

    def term(self, x: jax.Array, rank: int) -> jax.Array:
        return _term(self.level, self.keys, x, rank)

    def kept(self, term: jax.Array) -> jax.Array:
        return term

    def stored(self, total: Any) -> np.ndarray:
        return np.asarray(total)  # JAX reads float64 arrays of a pickle as float32

    def added(self, total: jax.Array, terms: Sequence[jax.Array], step: int) -> jax.Array:
        return _added(self.level, self.keys, total, terms, step)

    def node(self, term: jax.Array) -> jax.Array:
        return _node(self.level, self.keys, term)

    def hop(self, total: jax.Array, child: jax.Array, level: int, row: int) -> jax.Array:
        return _hop(self.level, {LEVELS: self.names(LEVELS + level).key}, total, child, row)

    def result(self, total: jax.Array) -> jax.Array:
        return _result(self.level, self.keys, total)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """A step of `qcore.distributed.stream` as a function of a level, keys by roles, and arrays."""

    @partial(jax.jit, static_argnums=0)
    def run(level: Level, keys: dict[int, Any], *arguments: Any) -> Any:
        return function(level, lambda role: Terms(keys[role], level.law.flush), *arguments)

    return run


_added, _node, _result = map(_compiled, (stream.added, stream.node, stream.result))
_term = _compiled(lambda level, names, x, rank: stream.term(level, names, to_float32(x), rank))
_hop = _compiled(lambda level, names, total, child, row: stream.hop(level, names, total, child, 0, row))


@partial(jax.jit, static_argnums=1)
def _of_total(total: jax.Array, dtype: Any) -> jax.Array:
    return from_float32(Terms.float32(total), dtype)
