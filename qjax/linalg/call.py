"""A call of a product with its gradients: arguments, checked, and the function that JAX differentiates."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.accumulate.convolution import Form
from qcore.accumulate.forms import FORWARD, GRAD_A, GRAD_B, Shape
from qcore.accumulate.law import multiply
from qcore.accumulate.product import FIRST, ROLES, SECOND, Operand, Product, Products, check_products
from qcore.arguments import missing_key
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import as_array
from qjax._rounding.keys import Key, fold_in, key_words
from qjax._rounding.scopes import PRODUCT, kind_scope
from qjax.linalg.array_names import Names, NarrowNames

_OPERANDS = {
    FORWARD: ("input", "weight"),
    GRAD_A: ("grad_input.gradient", "grad_input.weight"),
    GRAD_B: ("grad_weight.gradient", "grad_weight.input"),
}
_cached = lru_cache(maxsize=1024)(check_products)


def call(
    form: Form,
    a: Any,
    b: Any,
    operands: Any,
    accumulator: Any,
    grad_a: Any,
    grad_b: Any,
    names: tuple[str, str],
    key: Key,
) -> jax.Array:
    """A form's product with its gradients.

    Args:
        form: the form.
        a, b: the operands.
        operands, accumulator, grad_a, grad_b, names: see `qcore.accumulate.product.check_products`.
        key: as the user gives it.
    """
    a, b = (_float32(x, name) for x, name in zip((a, b), form.names, strict=True))
    form.check(a.shape, b.shape)
    pair = tuple(operands) if isinstance(operands, list) else operands
    try:
        products = _cached(pair, accumulator, grad_a, grad_b, names)
    except TypeError:  # as an argument has no hash, which is refused in other words
        products = check_products(pair, accumulator, grad_a, grad_b, names)
    words = None if key is None else key_words(key).view(np.uint32)
    if words is None and products.stochastic:
        raise missing_key()
    return _differentiable(form, products, a, b, words if products.stochastic else None)


def _float32(x: Any, name: str) -> jax.Array:
    x = as_array(x)
    if x.dtype != jnp.float32:
        raise TypeError(f"{name} has dtype {x.dtype}; allowed is float32")
    return x


@partial(jax.jit, static_argnums=(0, 1, 2, 6))
def multiply_arrays(
    form: Form, which: str, product: Product, first: jax.Array, second: jax.Array, key: Any, other: Shape
) -> jax.Array:
    """One of a form's products, with the result's elements in order; see `qcore.accumulate.arrays.multiply_arrays`."""
    if key is not None and which != FORWARD:
        key = fold_in(key, ROLES[which])
    pairs = zip((first, second), product.operands, (FIRST, SECOND), strict=True)
    operands = []
    for (x, operand, role), name in zip(pairs, _OPERANDS[which], strict=True):
        with kind_scope("operand", name):
            operands.append(_rounded(x, operand, key, role))
    sums = product.sums(first.shape, second.shape, form.contraction(which, first.shape, second.shape, other))
    left, right = form.matrices(Names, which, operands[0], operands[1], other)
    with jax.enable_x64(True):
        if sums.narrow and sums.accumulator.sequential:
            found = multiply(NarrowNames(), left, right, sums)
            return jnp.where(found == found, found, jnp.float32(jnp.nan))
        words = None if key is None else jnp.asarray(key).view(jnp.int32)
        return Names.narrow(multiply(Names(words), left, right, sums))


def _rounded(x: jax.Array, operand: Operand, key: Any, role: int) -> jax.Array:
    if operand.number is None:
        return x
    key = fold_in(key, role) if operand.stochastic else None
    return quantize(x, operand.number, operand.rounding, key=key)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _differentiable(form: Form, products: Products, a: jax.Array, b: jax.Array, key: Any) -> jax.Array:
    return _multiply(form, FORWARD, products.forward, a, b, key, b.shape).reshape(form.result(a.shape, b.shape))


def _multiply(form: Form, which: str, product: Product, a: jax.Array, b: jax.Array, key: Any, other: Shape) -> Any:
    """`multiply_arrays`, in a scope that says what is multiplied."""
    with jax.named_scope(f"{PRODUCT}{which}:{form.text}:{product.text}:{','.join(map(str, other))}"):
        return multiply_arrays(form, which, product, a, b, key, other)


def _forward(form: Form, products: Products, a: jax.Array, b: jax.Array, key: Any) -> tuple[jax.Array, Any]:
    return _differentiable(form, products, a, b, key), (a, b, key)


def _backward(form: Form, products: Products, saved: Any, gradient: jax.Array) -> tuple[Any, ...]:
    a, b, key = saved
    of_a = _multiply(form, GRAD_A, products.grad_a, gradient, b, key, a.shape).reshape(a.shape)
    of_b = _multiply(form, GRAD_B, products.grad_b, gradient, a, key, b.shape).reshape(b.shape)
    return of_a, of_b, None


_differentiable.defvjp(_forward, _backward)
