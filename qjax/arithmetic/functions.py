"""The functions of JAX arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.arguments import missing_key
from qcore.arithmetic.call import (
    DTYPES,
    OperationCall,
    Question,
    are_bits,
    indices_of,
    numbers_of,
    slopes_of,
    stand_ins_of,
    table_of,
)
from qcore.arithmetic.operations import OPERATIONS
from qcore.arithmetic.rows import Arithmetic
from qcore.binding import JAX
from qjax._rounding.dispatch import decode, encode, quantize
from qjax._rounding.inputs import as_array, as_integers
from qjax._rounding.keys import key_words
from qjax.linalg.namespace import Float64


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
@partial(jax.jit, static_argnums=(0, 1))
def _rounded(call: OperationCall, dtype: str, key: Any, *arrays: Any) -> jax.Array:
    """The results of arrays of one shape."""
    with jax.enable_x64(True):
        if call.operands:
            return _from_table(call, dtype, key, arrays)
        found = quantize(call.exact(Float64(), *map(_wide, arrays)), **call.quantizing, key=key)
        return _narrow(found, dtype)


def _codes_of(x: jax.Array, text: str) -> Any:
    return x.view(jnp.uint16) if are_bits(x.dtype.name, text) else encode(x, text)


def _index_of(call: OperationCall, codes: Any) -> Any:
    return indices_of(call.widths, tuple(x.astype(jnp.int32) for x in codes))


def _from_table(call: OperationCall, dtype: str, key: Any, arrays: Any) -> jax.Array:
    """The results of a function that is a table."""
    index = _index_of(call, map(_codes_of, arrays, call.operands))
    if call.is_stochastic:
        return _narrow(quantize(jnp.asarray(stand_ins_of(call))[index], **call.quantizing, key=key), dtype)
    table = numbers_of(call)
    if dtype == "float32":
        return jnp.asarray(table)[index]
    if dtype == "float16":
        return jnp.asarray(table.astype(np.float16))[index]
    return jnp.asarray((table.view(np.int32) >> 16).astype(np.int16))[index].view(jnp.bfloat16)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
@partial(jax.jit, static_argnums=0)
def _gradients(call: OperationCall, gradient: Any, *arrays: Any) -> tuple[jax.Array, ...]:
    with jax.enable_x64(True):
        gradients = OPERATIONS[call.operation].gradients
        if gradients is None:
            index = _index_of(call, map(_codes_of, arrays, call.operands))
            tables = (x.astype(np.float64) for x in slopes_of(call.operation, call.operands))
            found = tuple(_wide(gradient) * jnp.asarray(table)[index] for table in tables)
        else:
            found = gradients(Float64(), *map(_wide, (gradient, *arrays)))
        return tuple(_narrow(g, x.dtype.name) for g, x in zip(found, arrays, strict=True))


@_gradients.defjvp
def _refuse(call: OperationCall, primals: Any, tangents: Any) -> Any:
    raise TypeError(f"x of {call.operation} is differentiated twice; allowed are first derivatives, by jax.grad")


def _forward(call: OperationCall, dtype: str, key: Any, *arrays: Any) -> tuple[jax.Array, Any]:
    return _rounded(call, dtype, key, *arrays), arrays


def _backward(call: OperationCall, dtype: str, arrays: Any, gradient: Any) -> tuple[Any, ...]:
    return None, *_gradients(call, gradient, *arrays)


_rounded.defvjp(_forward, _backward)


def _wide(x: jax.Array) -> jax.Array:
    """Float64 numbers by the bits of float32 ones: XLA's conversions on CPUs may make zeros of subnormal numbers."""
    if x.dtype == jnp.bfloat16:
        x = (x.view(jnp.int16).astype(jnp.int32) << 16).view(jnp.float32)
    return Float64.float64(x.astype(jnp.float32))


def _narrow(x: jax.Array, dtype: str) -> jax.Array:
    """Float64 numbers rounded to a dtype; all NaN are one."""
    if dtype == "float32":
        return Float64.float32(x)
    short = Float64.float32(quantize(x, dtype))
    if dtype == "float16":
        return short.astype(jnp.float16)
    return (short.view(jnp.int32) >> 16).astype(jnp.int16).view(jnp.bfloat16)


@partial(jax.jit, static_argnums=0)
def _encoded(call: OperationCall, key: Any, *codes: Any) -> jax.Array:
    """The codes of the results of codes."""
    with jax.enable_x64(True):
        numbers = [decode(x, text, jnp.float64) for x, text in zip(codes, call.operands, strict=True)]
        return encode(call.exact(Float64(), *jnp.broadcast_arrays(*numbers)), **call.quantizing, key=key)


@partial(jax.jit, static_argnums=0)
def _looked_up(call: OperationCall, key: Any, *codes: Any) -> jax.Array:
    with jax.enable_x64(True):
        index = _index_of(call, codes)
        if call.is_stochastic:
            return encode(jnp.asarray(stand_ins_of(call))[index], **call.quantizing, key=key)
        return jnp.asarray(table_of(call))[index]


@partial(jax.jit, static_argnums=0)
def _answered(question: Question, *given: Any) -> jax.Array:
    with jax.enable_x64(True):
        if question.operands:
            given = tuple(decode(x, text) for x, text in zip(given, question.operands, strict=True))
        found = question.answer(Float64(), *map(_wide, given))
        return found.astype(jnp.uint8) if question.name == "classify" else found


class Arrays(Arithmetic, package=__name__.rpartition(".")[0], words=JAX):
    """The functions of JAX arrays, which also take NumPy's arrays."""

    def floats(self, name: str, x: Any) -> tuple[jax.Array, str]:
        known = isinstance(x, (jax.Array, np.ndarray, np.generic))
        if not known or x.dtype.name not in DTYPES:
            came = f"an array of {x.dtype}" if known else f"a {type(x).__name__}"
            raise TypeError(f"{name} is {came}; allowed is a jax.Array or NumPy array of {', '.join(DTYPES)}")
        return as_array(x, name), x.dtype.name

    def codes(self, name: str, x: Any) -> jax.Array:
        return as_integers(x, name)

    def on_numbers(self, call: OperationCall, arrays: tuple[Any, ...], dtype: str, key: Any) -> jax.Array:
        return _rounded(call, dtype, _words(call, key), *jnp.broadcast_arrays(*arrays))

    def on_question(self, question: Question, given: tuple[Any, ...]) -> jax.Array:
        return _answered(question, *given)

    def on_codes(self, call: OperationCall, codes: tuple[Any, ...], key: Any) -> jax.Array:
        return (_looked_up if call.is_looked_up else _encoded)(call, _words(call, key), *codes)


def _words(call: OperationCall, key: Any) -> Any:
    """The words of a key that stochastic rounding needs."""
    if call.is_stochastic and key is None:
        raise missing_key()
    return None if key is None else jnp.asarray(key_words(key)).view(jnp.uint32)


FUNCTIONS = Arrays()
