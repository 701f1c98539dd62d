"""Changes of dtype that compilers keep."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from qjax._rounding.dispatch import quantize

_NARROW = ("bfloat16", "float16")
DTYPES = ("float32", *_NARROW)


def cast(x: Any, dtype: Any) -> jax.Array:
    """x as numbers of another dtype of `DTYPES`, to nearest; gradients are cast back alike."""
    x = jnp.asarray(x)
    return x if x.dtype == dtype else _cast.bind(x, dtype=jnp.dtype(dtype))


def _law(x: jax.Array, dtype: Any) -> jax.Array:
    """The cast, with the rounding of the narrower dtype in integers.

    XLA may drop a pair of casts to a narrow dtype and back, and with it the rounding, under jit alone. Integers round
    what comes anew, which changes nothing where it is rounded already.
    """
    wide, narrow = x.astype(jnp.float32), [one.name for one in (x.dtype, dtype) if one.name in _NARROW]
    for name in narrow:
        wide = quantize(wide, name, "nearest")
    return wide.astype(dtype)


@lru_cache(maxsize=16)
def _compiled(dtype: Any) -> Any:
    return jax.jit(partial(_law, dtype=dtype))


def _transposed(gradient: Any, x: Any, *, dtype: Any) -> list[jax.Array]:
    return [cast(gradient, x.aval.dtype)]


_cast = Primitive("qjax_cast")
_cast.def_impl(lambda x, *, dtype: _compiled(dtype)(x))
_cast.def_abstract_eval(lambda x, *, dtype: x.update(dtype=dtype, weak_type=False))
mlir.register_lowering(_cast, mlir.lower_fun(_law, multiple_results=False))
ad.deflinear2(_cast, _transposed)
batching.defvectorized(_cast)
