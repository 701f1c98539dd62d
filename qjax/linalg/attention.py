"""Attention whose two products have defined accumulators."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from qcore.arguments import check_type
from qcore.linalg.attention import check_attention, check_mask, softmax, softmax_gradient
from qcore.linalg.product import ProductArguments
from qjax._rounding.inputs import ArrayLike, as_array
from qjax._rounding.keys import Key, fold_in, key_words
from qjax.linalg.matrices import matmul
from qjax.linalg.namespace import Float64


@jax.custom_jvp
@jax.jit
def _softmax(scores: jax.Array) -> jax.Array:
    with jax.enable_x64(True):
        return softmax(Float64, scores)


@_softmax.defjvp
def _tangent(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    y = _softmax(*primals)
    return y, _derivative.bind(y, tangents[0])


# (y, v) -> the derivative of softmax with the result y, times v. It is a symmetric matrix: its transpose is itself.
_derivative = core.Primitive("qjax_softmax_derivative")


def _compute(y: jax.Array, v: jax.Array) -> jax.Array:
    with jax.enable_x64(True):
        return softmax_gradient(Float64, y, v)


def _derivative_tangent(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (y, v), (of_y, of_v) = primals, tangents
    parts = [] if type(of_v) is ad.Zero else [_derivative.bind(y, of_v)]
    if type(of_y) is not ad.Zero:
        along, of_along = (jnp.sum(one * v, -1, keepdims=True) for one in (y, of_y))
        parts.append(of_y * (v - along) - y * of_along)
    return _derivative.bind(y, v), sum(parts[1:], parts[0]) if parts else jnp.zeros_like(v)


def _derivative_transposed(gradient: Any, y: Any, v: Any) -> tuple[None, Any]:
    return None, None if type(gradient) is ad.Zero else _derivative.bind(y, gradient)


def _derivative_batched(arrays: Any, axes: Any) -> tuple[jax.Array, int]:
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    y, v = (
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(arrays, axes, strict=True)
    )
    return _derivative.bind(y, v), 0


_derivative.def_impl(jax.jit(_compute))
_derivative.def_abstract_eval(lambda y, v: v)
mlir.register_lowering(_derivative, mlir.lower_fun(_compute, multiple_results=False))
ad.primitive_jvps[_derivative] = _derivative_tangent
ad.primitive_transposes[_derivative] = _derivative_transposed
batching.primitive_batchers[_derivative] = _derivative_batched


def scaled_dot_product_attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    attn_mask: ArrayLike | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    scores: ProductArguments | None = None,
    output: ProductArguments | None = None,
    rounding_key: Key = None,
) -> jax.Array:
    """softmax(scale * query @ key^T + mask) @ value, whose two products and their gradients are `matmul`s.

    The query is multiplied with the scale in float32 first. Softmax takes the exponential in float64, rounds it to
    float32, sums in float64 by halves, and divides; each result is rounded to float32.

    Args:
        query: float32 array of shape (..., L, E).
        key: float32 array of shape (..., S, E), with query's leading dimensions.
        value: float32 array of shape (..., S, V), with query's leading dimensions.
        attn_mask: bool array that broadcasts to (..., L, S), True where a key counts, or float32 array that is added
            to the scores; or None.
        is_causal: True masks keys after the query's position.
        scale: None is 1 / sqrt(E).
        scores, output: keyword arguments of the two `matmul`s as dictionaries: operands, accumulator, grad_a, grad_b.
        rounding_key: for stochastic rounding, see `matmul`; the scores have `fold_in(rounding_key, 1)`, the output
            `fold_in(rounding_key, 2)`.

    Returns:
        A float32 array of shape (..., L, V).

    Raises:
        ValueError: if shapes do not fit, an argument is out of range, or stochastic rounding has no key.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.eye(2)
        >>> low = {"operands": ("e4m3fn", "e4m3fn")}
        >>> attend = jax.jit(lambda *x: scaled_dot_product_attention(*x, is_causal=True, scores=low))
        >>> attend(x, x, x)[0]
        Array([1., 0.], dtype=float32)
    """
    query, key, value = as_array(query, "query"), as_array(key, "key"), as_array(value, "value")
    factor = check_attention(query.shape, key.shape, value.shape, attn_mask, is_causal, scale)
    check_mask(attn_mask, query.shape, key.shape)
    for name, settings in (("scores", scores), ("output", output)):
        check_type(name, settings, dict | None, "a dictionary")
    keys = (None, None) if rounding_key is None else tuple(fold_in(key_words(rounding_key), role) for role in (1, 2))
    found = matmul(query * factor, key.mT, **(scores or {}), key=keys[0])
    mask: Any = jnp.tril(jnp.ones((query.shape[-2], key.shape[-2]), bool)) if is_causal else attn_mask
    if mask is not None and mask.dtype == bool:
        found = jnp.where(mask, found, -jnp.inf)
    elif mask is not None:
        found = found + mask
    return matmul(_softmax(found), value, **(output or {}), key=keys[1])
