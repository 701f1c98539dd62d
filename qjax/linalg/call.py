"""A call of a product with its gradients: arguments, checked, and the function that JAX differentiates."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qcore.accumulate import arrays
from qcore.accumulate.convolution import ConvolutionForm, Form
from qcore.accumulate.forms import FORWARD, GRAD_A, GRAD_B, Shape
from qcore.accumulate.law import Sums, multiply
from qcore.accumulate.operands.matrices import matrices, rounded_tensors
from qcore.accumulate.operands.operand import Operand
from qcore.accumulate.operands.scaling import next_row, of_both, prepared, rescaled
from qcore.accumulate.product import FIRST, ROLES, ROWS, SECOND, Product, Products, check_products, check_scaling
from qcore.arguments import missing_key
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import as_array
from qjax._rounding.keys import Key, fold_in, key_words
from qjax._rounding.scopes import PRODUCT, kind_scope
from qjax.linalg.array_names import Names, NarrowNames
from qjax.linalg.parts import multiply_in_parts
from qjax.linalg.windows import convolution_by_columns, exact_convolution

_OPERANDS = {
    FORWARD: {FIRST: "input", SECOND: "weight"},
    GRAD_A: {FIRST: "grad_input.gradient", SECOND: "grad_input.weight"},
    GRAD_B: {FIRST: "grad_weight.gradient", SECOND: "grad_weight.input"},
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
    scaling: Any = None,
) -> jax.Array:
    """A form's product with its gradients.

    Args:
        form: the form.
        a, b: the operands.
        operands, accumulator, grad_a, grad_b, names: see `qcore.accumulate.product.check_products`.
        key, scaling: as the user gives them.
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
    check_scaling(products.history, None if scaling is None else (scaling.shape, str(scaling.dtype)))
    return _differentiable(form, products, a, b, words if products.stochastic else None, scaling)


def _float32(x: Any, name: str) -> jax.Array:
    dtype = getattr(x, "dtype", jnp.float32)
    if dtype != jnp.float32:
        raise TypeError(f"{name} has dtype {dtype}; allowed is float32")
    return as_array(x)


@partial(jax.jit, static_argnums=(0, 1, 2, 6))
def multiply_arrays(
    form: Form,
    which: str,
    product: Product,
    first: jax.Array,
    second: jax.Array,
    key: Any,
    other: Shape,
    state: Any = None,
) -> jax.Array:
    """One of a form's products, with the result's elements in order; see `qcore.accumulate.arrays.multiply_arrays`."""
    if key is not None and which != FORWARD:
        key = fold_in(key, ROLES[which])
    rows = zip(product.operands, ROWS[which], strict=True)
    given = [state[row, 0] if state is not None and operand.delayed else None for operand, row in rows]
    sums = product.sums(first.shape, second.shape, form.contraction(which, first.shape, second.shape, other))
    with jax.enable_x64(True):
        tensors, round_ = (first, second), partial(_rounded, key, which)
        stochastic = sums.accumulator.stochastic  # words count the elements of the whole
        if isinstance(form, ConvolutionForm) and not (stochastic or product.as_matrices):
            return _convolved(form, which, rounded_tensors(product, tensors, round_, given), other, sums)
        left, right, scales, factor = matrices(Names, form, which, product, tensors, other, round_, given)
        words = None if key is None else jnp.asarray(key).view(jnp.int32)
        pairs = zip((left, right), scales or (None, None), strict=True)
        multiply_pairs = partial(_multiply_pairs, sums, words, factor)
        if stochastic or isinstance(form, ConvolutionForm):
            return multiply_pairs(*pairs)
        return multiply_in_parts(multiply_pairs, *pairs)


def _convolved(form: ConvolutionForm, which: str, rounded: Any, other: Shape, sums: Sums) -> jax.Array:
    """A convolution's product of rounded operands and r of their scales, see `rounded_tensors`."""
    (first, second), inverses = rounded
    factor = of_both(Names, *inverses)
    if sums.exact and sums.accumulator.converts:
        narrow = lambda found: _result(Names.unsigned_zero(found), factor)  # noqa: E731
        return exact_convolution(form, which, first, second, other, narrow)
    multiply_them = lambda left, right: _multiply_pairs(sums, None, factor, (left, None), (right, None))  # noqa: E731
    return convolution_by_columns(form, which, first, second, other, multiply_them)


def _multiply_pairs(sums: Sums, words: Any, factor: Any, left: Any, right: Any) -> jax.Array:
    """The float32 product of two matrices, each with what scales its chunks or None."""
    (a, of_a), (b, of_b) = left, right
    if sums.narrow and sums.accumulator.sequential:
        names = NarrowNames(words, sums)
        found = names.finished(multiply(names, a, b, sums))
        if factor is None:
            return jnp.where(found == found, found, jnp.float32(jnp.nan))
        return _result(Names.wide(found), factor)
    scales = None if of_a is None and of_b is None else (of_a, of_b)
    return _result(multiply(Names(words), a, b, sums, scales), factor)


def _result(found: jax.Array, factor: Any) -> jax.Array:
    """Float64 accumulators, times the factor of whole operands' scales if there is one, as float32 numbers."""
    return Names.narrow(found if factor is None else rescaled(Names, found, factor))


def _rounded(key: Any, which: str, x: jax.Array, operand: Operand, given: Any, role: int) -> tuple[jax.Array, Any]:
    """An operand rounded, and r of its scales."""
    x, inverse = prepared(Names, x, operand, given)
    if operand.number is None:
        return x, inverse
    with jax.enable_x64(False), kind_scope("operand", _OPERANDS[which][role]):
        key = fold_in(key, role) if operand.stochastic else None
        return quantize(x, operand.number, operand.rounding, key=key), inverse


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _differentiable(form: Form, products: Products, a: jax.Array, b: jax.Array, key: Any, state: Any) -> jax.Array:
    found = _multiply(form, FORWARD, products.forward, a, b, key, b.shape, state)
    return found.reshape(form.result(a.shape, b.shape))


def _multiply(
    form: Form, which: str, product: Product, a: jax.Array, b: jax.Array, key: Any, other: Shape, state: Any
) -> jax.Array:
    """`multiply_arrays`, in a scope that says what is multiplied."""
    with jax.named_scope(f"{PRODUCT}{which}:{form.text}:{product.text}:{','.join(map(str, other))}"):
        return multiply_arrays(form, which, product, a, b, key, other, state)


def _forward(form: Form, products: Products, a: jax.Array, b: jax.Array, key: Any, state: Any) -> tuple[jax.Array, Any]:
    return _differentiable(form, products, a, b, key, state), (a, b, key, state)


def _backward(form: Form, products: Products, saved: Any, gradient: jax.Array) -> tuple[Any, ...]:
    a, b, key, state = saved
    of_a = _multiply(form, GRAD_A, products.grad_a, gradient, b, key, a.shape, state).reshape(a.shape)
    of_b = _multiply(form, GRAD_B, products.grad_b, gradient, a, key, b.shape, state).reshape(b.shape)
    return of_a, of_b, None, None if state is None else _next_scaling(products, state, (a, b, gradient))


_differentiable.defvjp(_forward, _backward)


@partial(jax.jit, static_argnums=0)
def _next_scaling(products: Products, state: jax.Array, tensors: tuple[jax.Array, ...]) -> jax.Array:
    """See `qcore.accumulate.arrays.next_scaling`."""
    with jax.enable_x64(True):
        rows = zip(state, tensors, products.rows, strict=True)
        return jnp.stack([next_row(Names, row, x, how) if how.delayed else row for row, x, how in rows])


def first_scaling(history: int) -> jax.Array:
    """The state of delayed scales before the first call, see `qcore.accumulate.first_scaling`.

    Args:
        history: of the scales, how many past tensors they follow from.

    Returns:
        A float32 array of shape (3, 1 + history).

    Raises:
        TypeError: if history is no int.
        ValueError: if history is less than 1.

    Example:
        >>> first_scaling(2)[0]
        Array([1., 0., 0.], dtype=float32)
    """
    return jnp.asarray(arrays.first_scaling(history))
