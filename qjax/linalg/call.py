"""A call of a product with its gradients: the checks of its arguments, states of delayed scales, and the bias."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from qcore.arguments import check_int, missing_key
from qcore.linalg import arrays
from qcore.linalg.convolution import Geometry
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, MatrixGeometry, check_bias
from qcore.linalg.operands import Operand
from qcore.linalg.product import Product, Products, check_addend, check_products, check_scaling
from qcore.linalg.scaling import newest_magnitude, next_row
from qjax._rounding.inputs import as_array, varying
from qjax._rounding.keys import Key, key_words
from qjax._rounding.meshes import on_meshes, product_sharding
from qjax.linalg.namespace import Float64
from qjax.linalg.operator import Shapes, multiply
from qjax.linalg.states import ScalingState, read, rows_of, tally

_SUMS = Products(Product(), Product(), Product())  # of a bias's gradient
_cached = lru_cache(maxsize=1024)(check_products)


def call(
    geometry: Geometry,
    a: Any,
    b: Any,
    operands: Any,
    accumulator: Any,
    grad_a: Any,
    grad_b: Any,
    names: tuple[str, str],
    key: Key,
    scaling: Any = None,
    c: Any = None,
) -> jax.Array:
    """A geometry's product with its gradients; see `qcore.linalg.product.check_products` for the arguments."""
    a, b = (float32_array(x, name) for x, name in zip((a, b), geometry.names, strict=True))
    geometry.check(a.shape, b.shape)
    pair = tuple(operands) if isinstance(operands, list) else operands
    try:
        products = _cached(pair, accumulator, grad_a, grad_b, names)
    except TypeError:  # an argument without a hash is a wrong one: `check_products` names it
        products = check_products(pair, accumulator, grad_a, grad_b, names)
    words = None if key is None else key_words(key).view(np.uint32)
    if words is None and products.stochastic:
        raise missing_key()
    scaling = None if scaling is None else rows_of(scaling)
    check_scaling(products.history, None if scaling is None else _kind(scaling))
    if c is not None:
        c = float32_array(c, "c")
        check_addend((c.shape, str(c.dtype)), geometry.result(a.shape, b.shape), products.scale_of_tensor)
    shapes, words = Shapes(a.shape, b.shape, geometry.result(a.shape, b.shape)), words if products.stochastic else None
    sharding = partial(product_sharding, (a, b), shapes.result, geometry.kept_axes(FORWARD, a.ndim, b.ndim, b.ndim))
    return on_meshes(partial(_product, geometry, products, shapes), sharding, a, b, words, scaling, c)


def _product(
    geometry: Geometry, products: Products, shapes: Shapes, a: Any, b: Any, words: Any, scaling: Any, c: Any
) -> Any:
    if scaling is not None:
        return _with_state(geometry, products, shapes, a, b, words, scaling)
    return multiply(geometry, products, FORWARD, a, b, shapes, words, None, c)


def float32_array(x: Any, name: str) -> jax.Array:
    """A float32 array; anything else is a TypeError that begins with name."""
    dtype = getattr(x, "dtype", jnp.float32)
    if dtype != jnp.float32:
        raise TypeError(f"{name} has dtype {dtype}; allowed is float32")
    return as_array(x, name)


def _kind(scaling: Any) -> tuple[tuple[int, ...], str]:
    """The shape of an array that may be a state, and its dtype."""
    array = scaling.array if isinstance(scaling, ScalingState) else read(scaling)
    return tuple(getattr(array, "shape", ())), str(getattr(array, "dtype", type(array).__name__))


def first_scaling(history: int) -> ScalingState:
    """The state of delayed scales before the first call, see `qcore.linalg.first_scaling`.

    Args:
        history: the number of past tensors in a scale's history.

    Returns:
        A `ScalingState` of shape (3, 1 + history).

    Raises:
        ValueError: if history is less than 1.

    Example:
        >>> first_scaling(2)[0]
        Array([1., 0., 0.], dtype=float32)
    """
    return ScalingState(jnp.asarray(arrays.first_scaling(history)))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _with_state(
    geometry: Geometry, products: Products, shapes: Shapes, a: jax.Array, b: jax.Array, key: Any, state: jax.Array
) -> jax.Array:
    """The product of delayed scales, whose derivative with respect to their state is the next state."""
    return multiply(geometry, products, FORWARD, a, b, shapes, key, read(state))


def _forward(geometry: Geometry, products: Products, shapes: Shapes, *operands: Any) -> tuple[jax.Array, Any]:
    return _with_state(geometry, products, shapes, *operands), operands


def _backward(
    geometry: Geometry, products: Products, shapes: Shapes, saved: Any, gradient: jax.Array
) -> tuple[Any, ...]:
    a, b, key, state = saved
    of_a = _summed(multiply(geometry, products, GRAD_A, gradient, b, shapes, key, read(state)), a)
    of_b = _summed(multiply(geometry, products, GRAD_B, gradient, a, shapes, key, read(state)), b)
    return of_a, of_b, None, tally(partial(_next_scaling, products), state, a, b, gradient)


_with_state.defvjp(_forward, _backward)


def _summed(gradient: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient of x; in shard_map the sum over devices that share x."""
    shared = tuple(varying(gradient) - varying(x))
    return jax.lax.psum(gradient, shared) if shared else gradient


@partial(jax.jit, static_argnums=0)
def _next_scaling(products: Products, state: jax.Array, *tensors: jax.Array) -> jax.Array:
    """See `qcore.linalg.arrays.next_scaling`."""
    with jax.enable_x64(True):
        rows = zip(state, tensors, products.rows, strict=True)
        return jnp.stack(
            [next_row(Float64, row, _newest(row, x, how), how) if how.delayed else row for row, x, how in rows]
        )


def _newest(row: jax.Array, x: jax.Array, operand: Operand) -> jax.Array:
    """The bits of x's largest magnitude; in shard_map the largest over devices that share the state."""
    found = newest_magnitude(Float64, x)
    shared, own = tuple(varying(found) - varying(row)), tuple(varying(row) - varying(found))
    if shared and operand.scale is not None and not operand.scale.reduce_amax:
        raise ValueError(
            f"scaling is the same along the axes {', '.join(map(repr, sorted(shared)))} of a mesh, with "
            "reduce_amax=False; allowed is a state for each device there"
        )
    found = jax.lax.pmax(found, shared) if shared else found
    return jax.lax.pcast(found, own, to="varying") if own else found


def share_scaling(scaling: jax.Array | ScalingState, uses: int) -> tuple[jax.Array | ScalingState, ...]:
    """The state of delayed scales for several products, which make one step of it.

    A `ScalingState` has any number of uses; this is for states that are bare arrays. JAX adds up the derivatives of an
    array that is used several times, but a sum of next states is not a state. The derivative with respect to a shared
    state is the next state by the largest magnitudes of all uses, as in torch.

    Args:
        scaling: the state, float32 of shape (3, 1 + history).
        uses: the number of products that use it, at most once each; only products that are differentiated count.

    Returns:
        The state, `uses` times, for one product each.

    Raises:
        ValueError: if uses is less than 1, or scaling has another shape or dtype.

    Example:
        >>> from qjax import linalg
        >>> kept = "operand(e4m3fn,scale=scale(history=2))"
        >>> def loss(state, x, w):
        ...     states = linalg.share_scaling(state, 2)
        ...     for one in states:
        ...         x = linalg.linear(
        ...             x, w, operands=(kept, kept), grad_weight=f"product(None,{kept})", scaling=one
        ...         )
        ...     return x.sum()
        >>> state = linalg.first_scaling(2).array
        >>> jax.jit(jax.grad(loss))(state, jnp.ones((1, 2)), jnp.ones((2, 2)))[0]
        Array([224.,   2.,   0.], dtype=float32)
    """
    shape, dtype = _kind(scaling)
    if len(shape) != 2 or shape[0] != 3 or shape[1] < 2 or dtype != "float32":
        raise ValueError(f"scaling has shape {shape} and dtype {dtype}; allowed is float32 of shape (3, 1 + history)")
    uses = check_int("uses", uses, 1)
    return (scaling,) * uses if isinstance(scaling, ScalingState) else _share(scaling, uses)


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _share(state: jax.Array, uses: int) -> tuple[jax.Array, ...]:
    return (state,) * uses


def _share_forward(state: jax.Array, uses: int) -> tuple[Any, Any]:
    return _share(state, uses), state


def _share_backward(uses: int, state: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array]:
    """For each row, the row of the use with the largest newest magnitude; older magnitudes are equal in all uses."""
    rows = jnp.stack(found)
    used = rows[:, :, 0] != 0  # a state that was not used has the derivative 0, and no scale is 0
    newest = jnp.where(used, jax.lax.bitcast_convert_type(rows[:, :, 1], jnp.int32), -1)
    largest = jnp.argmax(newest, 0)
    return (jnp.where(used.any(0)[:, None], rows[largest, jnp.arange(3)], state),)


_share.defvjp(_share_forward, _share_backward)


def add_bias(x: jax.Array, bias: Any, outputs: int, axis: int) -> jax.Array:
    """x + bias in float32, along an axis counted from the end.

    The bias's gradient is the float64 sum of the gradient's other elements, in ascending order, rounded to float32.
    """
    if bias is None:
        return x
    bias = as_array(bias, "bias")
    check_bias(bias.shape, bias.dtype.name, outputs)
    return on_meshes(partial(_add, axis), lambda: jax.typeof(x).sharding, x, bias)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _add(axis: int, x: jax.Array, bias: jax.Array) -> jax.Array:
    return x + bias.reshape(-1, *(1,) * (-1 - axis))


def _derivative(axis: int, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, Any]:
    """The tangent of the sum. The bias's part is a product with ones, whose transpose is the product that sums."""
    x, bias = primals
    of_x, of_bias = tangents
    y = _add(axis, x, bias)
    if isinstance(of_bias, SymbolicZero):
        return y, of_x
    rows, columns = x.size // max(bias.size, 1), bias.size
    ones, shapes = jnp.ones((rows, 1)), Shapes((rows, 1), (1, columns), (rows, columns))
    spread = multiply(MatrixGeometry(), _SUMS, FORWARD, ones, of_bias.reshape(1, columns), shapes)
    shape = jnp.moveaxis(x, axis, -1).shape
    spread = jnp.moveaxis(spread.reshape(shape), -1, axis)
    return y, spread if isinstance(of_x, SymbolicZero) else of_x + spread


_add.defjvp(_derivative, symbolic_zeros=True)
