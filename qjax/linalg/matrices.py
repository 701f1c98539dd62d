"""Products of matrices with a defined accumulator, and their gradients."""

from __future__ import annotations

import jax

from qcore.linalg.accumulator import AccumulatorLike
from qcore.linalg.geometry import MatrixGeometry, check_batches
from qcore.linalg.product import Operands, ProductLike
from qjax._rounding.inputs import ArrayLike
from qjax._rounding.keys import Key
from qjax.linalg.call import add_bias, call, float32_array
from qjax.linalg.states import ScalingState

_MATMUL, _LINEAR = MatrixGeometry(), MatrixGeometry(transposed=True)


def matmul(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    operands: Operands = None,
    accumulator: AccumulatorLike = None,
    grad_a: ProductLike = None,
    grad_b: ProductLike = None,
    key: Key = None,
    scaling: jax.Array | ScalingState | None = None,
) -> jax.Array:
    """The product of two matrices, or of batches of them, with a defined accumulator; see `qcore.linalg.matmul`.

    It has the same bits in all packages, under jit, vmap and any sharding, and works without x64. The gradients are two
    products of their own: the gradient of the result times b transposed, and a transposed times the gradient of the
    result. If b is a matrix, the second sums over the rows of all leading dimensions. Rounding passes gradients
    straight through. With c it is the sum a b + c, whose accumulators start at c; the gradient of c is that of the
    result. All arguments but a, b, c and key are static.

    Args:
        a: float32 array of shape (..., M, K).
        b: float32 array of shape (K, N), or (..., K, N) with a's leading dimensions.
        c: float32 array of shape (..., M, N), at which the accumulators start; None is +0.
        operands: the roundings of a and b: a pair of formats, their texts, `Operand`s or None.
        accumulator: an `Accumulator` or its text; None is the exact sum, rounded once to float32.
        grad_a, grad_b: the products of the gradients of a and b: each a `Product` (or its text), whose first operand is
            the gradient of the result. None takes the other operand as the forward product rounds it, the unrounded
            gradient, and the same accumulator.
        key: for stochastic rounding, as for `qjax.quantize`.
        scaling: the state of delayed scales, a float32 array that starts as `first_scaling(history)`. Its gradient is
            the next state, not a derivative. Each state belongs to one call.

    Returns:
        A float32 array of shape (..., M, N).

    Raises:
        ValueError: if shapes do not fit, an argument is out of range, or stochastic rounding has no key.

    Example:
        >>> import jax.numpy as jnp
        >>> from qjax import Accumulator
        >>> a, b = jnp.float32([[1.0, 2.0**-12]]), jnp.ones((2, 1))
        >>> matmul(a, b), matmul(a, b, accumulator=Accumulator("float(6,9)", chunk=1))
        (Array([[1.0002441]], dtype=float32), Array([[1.]], dtype=float32))
    """
    return call(_MATMUL, a, b, operands, accumulator, grad_a, grad_b, ("grad_a", "grad_b"), key, scaling, c)


def bmm(
    a: ArrayLike,
    b: ArrayLike,
    c: ArrayLike | None = None,
    *,
    operands: Operands = None,
    accumulator: AccumulatorLike = None,
    grad_a: ProductLike = None,
    grad_b: ProductLike = None,
    key: Key = None,
    scaling: jax.Array | ScalingState | None = None,
) -> jax.Array:
    """`matmul` of arrays of shapes (batch, M, K) and (batch, K, N).

    Args:
        a: float32 array of shape (batch, M, K).
        b: float32 array of shape (batch, K, N).
        c: float32 array of shape (batch, M, N) or None; all others are as for `matmul`.

    Returns:
        A float32 array of shape (batch, M, N).

    Raises:
        TypeError, ValueError: as `matmul` does.

    Example:
        >>> import jax.numpy as jnp
        >>> bmm(jnp.ones((2, 1, 3)), jnp.ones((2, 3, 1))).ravel()
        Array([3., 3.], dtype=float32)
    """
    a, b = float32_array(a, "a"), float32_array(b, "b")
    check_batches(a.shape, b.shape)
    return call(_MATMUL, a, b, operands, accumulator, grad_a, grad_b, ("grad_a", "grad_b"), key, scaling, c)


def linear(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    c: ArrayLike | None = None,
    operands: Operands = None,
    accumulator: AccumulatorLike = None,
    grad_input: ProductLike = None,
    grad_weight: ProductLike = None,
    key: Key = None,
    scaling: jax.Array | ScalingState | None = None,
) -> jax.Array:
    """input @ weight.T + bias with a defined accumulator.

    The bias is added in float32 after the product. Its gradient is the sum of the rows of the gradient: float64
    additions in ascending order, rounded once to float32.

    Args:
        input: float32 array of shape (..., in).
        weight: float32 array of shape (out, in), or (*batch, out, in) with input's leading dimensions (*batch, M).
        bias: float32 array of shape (out,), or None.
        c: float32 array of the result's shape, at which the accumulators start; None is +0.
        operands, accumulator, key, scaling: as for `matmul`.
        grad_input, grad_weight: the products of both gradients, as grad_a and grad_b of `matmul`.

    Returns:
        A float32 array of shape (..., out).

    Raises:
        ValueError: if shapes do not fit, an argument is out of range, or stochastic rounding has no key.

    Example:
        >>> import jax.numpy as jnp
        >>> linear(jnp.float32([[1, 2]]), jnp.float32([[0.5, 0.25]]), operands=("e4m3fn", "e4m3fn"))
        Array([[1.]], dtype=float32)
    """
    names = ("grad_input", "grad_weight")
    y = call(_LINEAR, input, weight, operands, accumulator, grad_input, grad_weight, names, key, scaling, c)
    return add_bias(y, bias, y.shape[-1], -1)
