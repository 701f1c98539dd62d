"""States of delayed scales: several uses of a state are one step of it, by the largest magnitudes of all uses.

JAX adds up the derivatives of all uses of an array. The derivative of a state is the next state, and a sum of next
states is not a state. So while a state is differentiated, its rows are numbers of a dtype of their own, whose addition
takes the row with the larger newest magnitude: in sums of calls, `scan`, `lax.map`, `jit`, `checkpoint` and `cond`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import DynamicJaxprTracer

from qjax._rounding.inputs import ArrayLike


@jax.tree_util.register_pytree_with_keys_class
class ScalingState:
    """The state of delayed scales: a float32 array whose last two axes are its rows and (scale, magnitudes).

    It has the attributes and methods of a `jax.Array`, and functions of `jax.numpy` take it; as a pytree it has one
    leaf, `array`. The gradient with respect to it is the next state, by the largest magnitudes of all uses, of which
    there may be any number. A bare array is a state as well, for one use.

    Args:
        array: float32 array of shape (..., rows, 1 + history); None of its numbers are checked here.

    Example:
        >>> import numpy as np
        >>> state = ScalingState(np.float32([[1, 0, 0]]))
        >>> state.shape, state[0]
        ((1, 3), array([1., 0., 0.], dtype=float32))
    """

    def __init__(self, array: ArrayLike) -> None:
        self._rows: Any = array

    @property
    def array(self) -> jax.Array:
        """The state as a plain array. A derivative does not pass through it."""
        return read(self._rows) if _is_tallied(self._rows) else self._rows

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[object, object]], None]:
        return ((jax.tree_util.GetAttrKey("array"), self._rows),), None

    def tree_flatten(self) -> tuple[tuple[object], None]:
        return (self._rows,), None

    @classmethod
    def tree_unflatten(cls, _: None, leaves: Sequence[object]) -> ScalingState:
        """A derivative rebuilds its arguments with tracers: here begins what it differentiates."""
        rows: Any = leaves[0]
        if _is_tallied(rows) and not isinstance(rows, Tracer):  # a result of a derivative's function
            return cls(read(rows))
        return cls(tallied(rows))

    def __getitem__(self, index: Any) -> Any:
        """A state of some layers or rows; one row, or a part of rows, is a plain array."""
        parts = index if isinstance(index, tuple) else (index,)
        kept = all(isinstance(part, (int, slice)) for part in parts) and len(parts) < self.ndim
        if kept and self.ndim - sum(isinstance(part, int) for part in parts) >= 2:
            return ScalingState(part(self._rows, index))
        return self.array[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.array, name)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        return len(self.array)

    def __eq__(self, other: object) -> Any:
        return self.array == (other.array if isinstance(other, ScalingState) else other)

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        return np.asarray(self.array).__array__(*args, **kwargs)

    def __jax_array__(self) -> jax.Array:
        return jnp.asarray(self.array)

    def __repr__(self) -> str:
        return "ScalingState(" + repr(self.array) + ")"


def rows_of(state: Any) -> Any:
    """The array of a state, in which several uses are one step if it is differentiated here."""
    return state._rows if isinstance(state, ScalingState) else tallied(state)


def read(rows: Any) -> Any:
    """The numbers of a state's rows; a derivative does not pass through."""
    return _read(rows) if _is_tallied(rows) else rows


@jax.custom_vjp
def _read(rows: Any) -> jax.Array:
    return _numbers(rows)


_read.defvjp(lambda rows: (_numbers(rows), rows), lambda rows, _: (_unused(rows),))


def part(rows: Any, index: Any) -> Any:
    """Some layers or rows of a state, by ints and slices."""
    if not _is_tallied(rows):
        return rows[index]

    @jax.custom_vjp
    def read_part(rows: Any) -> Any:
        return jax.lax.convert_element_type(_numbers(rows)[index], _tally())

    def put(rows: Any, found: Any) -> tuple[Any]:
        whole = jnp.zeros(rows.shape, jnp.float32).at[index].set(_numbers(found))
        return (jax.lax.convert_element_type(whole, _tally()),)

    read_part.defvjp(lambda rows: (read_part(rows), rows), put)
    return read_part(rows)


def anchored(x: Any, states: Sequence[Any]) -> Any:
    """x, whose derivative leaves the states of layers that it does not follow from as they are."""
    return _anchored(x, states) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x


@jax.custom_vjp
def _anchored(x: jax.Array, states: Any) -> jax.Array:
    return x


def _anchored_forward(x: jax.Array, states: Any) -> tuple[jax.Array, Any]:
    return x, states


def _anchored_backward(states: Any, gradient: jax.Array) -> tuple[jax.Array, Any]:
    return gradient, jax.tree.map(_unused, states)


_anchored.defvjp(_anchored_forward, _anchored_backward)


def _unused(rows: Any) -> Any:
    """The derivative of a state that is not used."""
    zeros = jnp.zeros(rows.shape, jnp.float32)
    return jax.lax.convert_element_type(zeros, _tally()) if _is_tallied(rows) else zeros


def tally(next_rows: Callable[..., jax.Array], rows: Any, *tensors: Any) -> Any:
    """The derivative of a state: next_rows(state, *tensors), of one use.

    Under vmap a use of all examples is one step, unless each example has a state of its own.
    """
    found = _of_all_examples(next_rows)(read(rows), *tensors)
    return jax.lax.convert_element_type(found, _tally()) if _is_tallied(rows) else found


def _of_all_examples(next_rows: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function of a state and tensors; examples that share a state are one tensor."""

    @custom_vmap
    def compute(state: jax.Array, *tensors: jax.Array) -> jax.Array:
        return next_rows(state, *tensors)

    @compute.def_vmap
    def batched(_: int, batches: Any, state: jax.Array, *tensors: jax.Array) -> tuple[jax.Array, bool]:
        if not batches[0]:
            return compute(state, *tensors), False
        of_each = jax.vmap(next_rows, [0 if batch else None for batch in batches])
        return _of_all_examples(of_each)(state, *tensors), True

    return compute


def tallied(rows: Any) -> Any:
    """Rows as numbers of the dtype that tallies uses, where a derivative takes them; else unchanged."""
    differentiable = isinstance(rows, Tracer) and not isinstance(rows, DynamicJaxprTracer)
    return _begin.bind(rows) if differentiable and rows.dtype == jnp.float32 else rows


# The identity, but in a derivative with respect to its operand, whose rule JAX calls at once.
_begin = Primitive("qjax_scaling_state")
_begin.def_impl(lambda rows: rows)
_begin.def_abstract_eval(lambda rows: rows)
mlir.register_lowering(_begin, lambda _, rows: [rows])
batching.defvectorized(_begin)
ad.primitive_jvps[_begin] = lambda primals, tangents: jax.jvp(_to_tally, primals, (ad.instantiate_zeros(*tangents),))


@jax.custom_vjp
def _to_tally(rows: jax.Array) -> Any:
    return jax.lax.convert_element_type(rows, _tally())


def _tally_forward(rows: jax.Array) -> tuple[Any, jax.Array]:
    return _to_tally(rows), rows


def _tally_backward(rows: jax.Array, found: Any) -> tuple[jax.Array]:
    """A row that was not used, of which the derivative is 0, stays: no scale is 0."""
    found = _numbers(found)
    return (jnp.where(found[..., :1] == 0, rows, found),)


_to_tally.defvjp(_tally_forward, _tally_backward)


def _numbers(rows: Any) -> jax.Array:
    return jax.lax.convert_element_type(rows, jnp.float32)


def _is_tallied(rows: Any) -> bool:
    return jnp.issubdtype(getattr(rows, "dtype", None) or jnp.float32, jax.dtypes.extended)


def _larger(dtype: Any, first: Any, second: Any) -> Any:
    """For each row, the one with the larger newest magnitude; NaN is the largest. Older magnitudes are equal."""
    first, second = _numbers(first), _numbers(second)
    (a, b) = (
        jnp.where(rows[..., :1] != 0, jax.lax.bitcast_convert_type(rows[..., 1:2], jnp.int32), -1)
        for rows in (first, second)
    )
    return jax.lax.convert_element_type(jnp.where(b > a, second, first), dtype)


@cache
def _tally() -> Any:
    """The dtype. JAX has no public name for dtypes with an addition of their own, which flax's FP8 layers use as well.

    Outside of compiled programs their arrays are JAX's `EArray`s, to which JAX has the addition but for this table.
    """
    from jax._src import ad_util, core, dtypes, earray
    from jax._src.interpreters import pxla

    class Rules:
        allow_conversion = True
        add = staticmethod(_larger)

        @staticmethod
        def physical_element_aval(dtype: Any) -> Any:
            return core.ShapedArray((), np.dtype(np.float32))

        @staticmethod
        def convert_from(dtype: Any, other: Any) -> bool:
            return other == np.float32

        @staticmethod
        def convert_to(other: Any, dtype: Any) -> bool:
            return other == np.float32

        @staticmethod
        def zero(dtype: Any) -> Any:
            return jax.lax.convert_element_type(np.float32(0), dtype)

        @staticmethod
        def tangent_dtype(dtype: Any) -> Any:
            return dtype

        @staticmethod
        def full(shape: Any, value: Any, dtype: Any) -> Any:
            return jax.lax.convert_element_type(jax.lax.full(shape, value, jnp.float32), dtype)

        @staticmethod
        def global_sharded_result_handler(aval: Any, sharding: Any, committed: bool) -> Any:
            make = pxla.global_result_handlers[core.ShapedArray](core.physical_aval(aval), sharding, committed)
            return make.wrap(partial(earray.EArray, aval))

    class Tally(dtypes.ExtendedDType):
        _rules, name, itemsize = Rules, "scaling_state", 4
        type: Any = jax.dtypes.extended

    table: dict[Any, Any] = ad_util.raw_jaxval_adders
    table.setdefault(earray.EArray, lambda first, second: first.dtype._rules.add(first.dtype, first, second))
    return Tally()
