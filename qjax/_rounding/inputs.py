"""The arrays that users may pass: JAX's, also traced ones, and NumPy's."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import quoted
from qcore.law.carrier import CARRIERS, check_dtype

ArrayLike = jax.Array | np.ndarray | np.generic
PyTree = Any  # arrays in any containers: JAX has no type for it
Tree = TypeVar("Tree")  # a PyTree, where the result has its structure
Result = TypeVar("Result")  # of a function that is transformed


def as_array(x: Any, name: str = "x") -> jax.Array:
    """A JAX array of numbers unchanged, or a copy of a NumPy array; name is the argument's.

    Raises:
        TypeError: if x is not an array of a carrier's dtype, or is float64 without x64: JAX would convert it to float32
            silently.
    """
    if not isinstance(x, (jax.Array, np.ndarray, np.generic)):
        raise TypeError(
            f"{name} is a {type(x).__name__}; allowed is a jax.Array or NumPy array of {', '.join(CARRIERS)}"
        )
    if x.dtype.name not in CARRIERS:
        check_dtype(x.dtype.name, name)
    return x if isinstance(x, jax.Array) else _of_numpy(x, name)


def as_integers(x: Any, name: str) -> jax.Array:
    """A JAX array of integers unchanged, or a copy of NumPy's (64-bit integers keep 32 bits); else a TypeError."""
    return _of_dtype(x, name, jnp.integer, "integers")


def as_numbers(x: Any, name: str) -> jax.Array:
    """`jnp.asarray`; an int that no array holds is a ValueError."""
    try:
        return jnp.asarray(x)
    except (OverflowError, ValueError):  # the latter for very long ints
        raise ValueError(f"{name}={quoted(x)}; allowed are numbers that an array holds") from None


def as_float32(x: Any, name: str) -> jax.Array:
    """A JAX array of float32 unchanged, or a copy of NumPy's; else a TypeError."""
    return _of_dtype(x, name, jnp.float32, "float32")


def _of_dtype(x: Any, name: str, scalar: Any, allowed: str) -> jax.Array:
    known = isinstance(x, (jax.Array, np.ndarray, np.generic))
    if not known or not jnp.issubdtype(x.dtype, scalar):
        came = f"an array of {x.dtype}" if known else f"a {type(x).__name__}"
        raise TypeError(f"{name} is {came}; allowed is a jax.Array or NumPy array of {allowed}")
    return x if isinstance(x, jax.Array) else _of_numpy(x, name)


def array_of(name: str, array: np.ndarray) -> jax.Array:
    """An array of JAX with the same numbers as the tensor of a file."""
    short = array
    if array.dtype.itemsize == 8 and array.dtype != np.complex64 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        short = array.astype({"i": np.int32, "u": np.uint32}.get(array.dtype.kind, array.dtype))
        if short.dtype == array.dtype or (short != array).any():
            raise TypeError(
                f"tensor {quoted(name)} is {array.dtype}; allowed after "
                'jax.config.update("jax_enable_x64", True), and without it integers of 32 bits'
            )
    return jnp.asarray(short)


def _of_numpy(x: np.ndarray | np.generic, name: str) -> jax.Array:
    if not x.dtype.isnative:
        native = x.dtype.newbyteorder().str
        raise TypeError(f"{name} has dtype {x.dtype.str}; allowed is this machine's byte order: {native}")
    if x.dtype.itemsize == 8 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        if x.dtype == np.float64:
            raise TypeError(
                f'{name} has dtype float64; allowed only after jax.config.update("jax_enable_x64", True), or as float32'
            )
        x = x.astype(f"{x.dtype.kind}4")
    return jnp.asarray(np.array(x))  # a copy: even after jnp.array, XLA may read x later, when the user has changed it


def varying(x: Any) -> frozenset[str]:
    """The axes of a mesh along which devices hold different arrays."""
    kind: Any = jax.typeof(x)
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying  # of JAX before 0.10.2, and from then on
