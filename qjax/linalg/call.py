"""A call of a product with its gradients: arguments, checked, and the function that JAX differentiates."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from qcore.arguments import check_int, missing_key
from qcore.linalg import arrays
from qcore.linalg.convolution import ConvolutionForm, Form
from qcore.linalg.forms import FORWARD, GRAD_A, GRAD_B, Shape, derivatives
from qcore.linalg.law import Sums
from qcore.linalg.law import multiply as multiply_matrices
from qcore.linalg.operands.matrices import matrices, rounded_tensors
from qcore.linalg.operands.operand import Operand
from qcore.linalg.operands.scaling import newest_magnitude, next_row, of_both, prepared, rescaled
from qcore.linalg.product import FIRST, ROLES, ROWS, SECOND, Product, Products, check_products, check_scaling
from qjax._rounding.dispatch import quantize
from qjax._rounding.inputs import as_array, varying
from qjax._rounding.keys import Key, fold_in, key_words
from qjax._rounding.scopes import PRODUCT, kind_scope
from qjax.linalg.namespace import Float32, Float64
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
        operands, accumulator, grad_a, grad_b, names: see `qcore.linalg.product.check_products`.
        key, scaling: as the user gives them.
    """
    a, b = (float32_array(x, name) for x, name in zip((a, b), form.names, strict=True))
    form.check(a.shape, b.shape)
    pair = tuple(operands) if isinstance(operands, list) else operands
    try:
        products = _cached(pair, accumulator, grad_a, grad_b, names)
    except TypeError:  # as an argument has no hash, which is refused in other words
        products = check_products(pair, accumulator, grad_a, grad_b, names)
    words = None if key is None else key_words(key).view(np.uint32)
    if words is None and products.stochastic:
        raise missing_key()
    shape, dtype = getattr(scaling, "shape", ()), getattr(scaling, "dtype", type(scaling).__name__)
    check_scaling(products.history, None if scaling is None else (shape, str(dtype)))
    shapes, words = Shapes(a.shape, b.shape, form.result(a.shape, b.shape)), words if products.stochastic else None
    if scaling is not None:
        return _with_state(form, products, shapes, a, b, words, scaling)
    return multiply(form, products, FORWARD, a, b, shapes, words, None)


def float32_array(x: Any, name: str) -> jax.Array:
    """A float32 array; anything else is a TypeError that begins with name."""
    dtype = getattr(x, "dtype", jnp.float32)
    if dtype != jnp.float32:
        raise TypeError(f"{name} has dtype {dtype}; allowed is float32")
    return as_array(x, name)


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
    """One of a form's products, with the result's elements in order; see `qcore.linalg.arrays.multiply_arrays`."""
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
        left, right, scales, factor = matrices(Float64, form, which, product, tensors, other, round_, given)
        words = None if key is None else jnp.asarray(key).view(jnp.int32)
        pairs = zip((left, right), scales or (None, None), strict=True)
        multiply_pairs = partial(_multiply_pairs, sums, words, factor)
        if stochastic or isinstance(form, ConvolutionForm):
            return multiply_pairs(*pairs)
        return multiply_in_parts(multiply_pairs, *pairs)


def _convolved(form: ConvolutionForm, which: str, rounded: Any, other: Shape, sums: Sums) -> jax.Array:
    """A convolution's product of rounded operands and r of their scales, see `rounded_tensors`."""
    (first, second), inverses = rounded
    factor = of_both(Float64, *inverses)
    if sums.exact and sums.accumulator.converts:
        narrow = lambda found: _result(Float64.unsigned_zero(found), factor)  # noqa: E731
        return exact_convolution(form, which, first, second, other, narrow)
    multiply_them = lambda left, right: _multiply_pairs(sums, None, factor, (left, None), (right, None))  # noqa: E731
    return convolution_by_columns(form, which, first, second, other, multiply_them)


def _multiply_pairs(sums: Sums, words: Any, factor: Any, left: Any, right: Any) -> jax.Array:
    """The float32 product of two matrices, each with what scales its chunks or None."""
    (a, of_a), (b, of_b) = left, right
    if sums.narrow and sums.accumulator.sequential:
        names = Float32(words, sums)
        found = names.finished(multiply_matrices(names, a, b, sums))
        if factor is None:
            return jnp.where(found == found, found, jnp.float32(jnp.nan))
        return _result(Float64.wide(found), factor)
    scales = None if of_a is None and of_b is None else (of_a, of_b)
    return _result(multiply_matrices(Float64(words), a, b, sums, scales), factor)


def _result(found: jax.Array, factor: Any) -> jax.Array:
    """Float64 accumulators, times the factor of whole operands' scales if there is one, as float32 numbers."""
    return Float64.narrow(found if factor is None else rescaled(Float64, found, factor))


def _rounded(key: Any, which: str, x: jax.Array, operand: Operand, given: Any, role: int) -> tuple[jax.Array, Any]:
    """An operand rounded, and r of its scales."""
    x, inverse = prepared(Float64, x, operand, given)
    if operand.number is None:
        return x, inverse
    with jax.enable_x64(False), kind_scope("operand", _OPERANDS[which][role]):
        key = fold_in(key, role) if operand.stochastic else None
        return quantize(x, operand.number, operand.rounding, key=key), inverse


class Shapes(NamedTuple):
    """Shapes of a form's two operands and of its product."""

    a: Shape
    b: Shape
    result: Shape

    def of(self, which: str) -> Shape:
        """The result's shape of one of the form's products."""
        return {FORWARD: self.result, GRAD_A: self.a, GRAD_B: self.b}[which]


# One of a form's products, as a primitive. It is linear in both operands, and its derivatives are the other products:
# all transformations of JAX work at every order. Operands are both tensors, then the words of a key and the state of
# delayed scales where there are any. `levels` says for each vmap around it, the outermost first, which operands have an
# axis of examples; these axes come first.
_product = core.Primitive(PRODUCT)


def _examples(levels: tuple[tuple[bool, ...], ...], operands: Any) -> Shape:
    """How many examples each vmap has."""
    sizes = []
    for depth, flags in enumerate(levels):
        index = flags.index(True)
        sizes.append(operands[index].shape[sum(level[index] for level in levels[:depth])])
    return tuple(sizes)


def _abstract(*operands: Any, which: str, shapes: Shapes, levels: Any, **others: Any) -> Any:
    if any(any(x.sharding.spec) for x in operands):  # in a mesh of explicit axes
        said = {"which": which, "shapes": shapes, "levels": levels} | others
        return jax.make_jaxpr(partial(compute, **said))(*operands).out_avals[0]
    shape, first = (*_examples(levels, operands), *shapes.of(which)), operands[0]
    sharding = first.sharding.update(spec=jax.sharding.PartitionSpec(*(None for _ in shape)))
    return first.update(shape=shape, dtype=jnp.dtype(jnp.float32), sharding=sharding, weak_type=False)


def compute(
    *operands: Any, form: Form, products: Products, which: str, shapes: Shapes, levels: Any, keyed: bool
) -> jax.Array:
    """What the primitive computes."""

    def one(first: jax.Array, second: jax.Array, *others: Any) -> jax.Array:
        key, state = others[0] if keyed else None, others[-1] if len(others) > keyed else None
        other, shape = shapes.b if which == FORWARD else shapes.of(which), shapes.of(which)
        return multiply_arrays(form, which, products.of(which), first, second, key, other, state).reshape(shape)

    for flags in reversed(levels):
        one = jax.vmap(one, tuple([0 if flag else None for flag in flags]))
    return one(*operands)


def _tangent(primals: Any, tangents: Any, **said: Any) -> tuple[Any, Any]:
    """The sum of the same product of each operand's tangent with the other operand."""
    first, second, *others = primals
    if len(others) > said["keyed"]:
        raise NotImplementedError(
            "products with delayed scales have no second derivatives: a scale follows from past arrays of the same "
            "role, and there are none of these. Allowed are scales just in time, such as Scale() for Scale(history=16)"
        )
    of_first, of_second = tangents[:2]
    found = _product.bind(*primals, **said)
    parts = []
    if type(of_first) is not ad.Zero:
        parts.append(_product.bind(of_first, second, *others, **said))
    if type(of_second) is not ad.Zero:
        parts.append(_product.bind(first, of_second, *others, **said))
    return found, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(found)


def _transposed(v: Any, first: Any, second: Any, *others: Any, **said: Any) -> tuple[Any, ...]:
    """The gradient of the operand that is not given; of one that vmaps share it is the sum over their examples."""
    if type(v) is ad.Zero:
        return None, None, *(None for _ in others)
    place = 0 if ad.is_undefined_primal(first) else 1
    x, y, which = derivatives(said["which"], _V, _FIRST, _SECOND)[place]
    arrays = {_V: v, _FIRST: first, _SECOND: second}
    levels, shared = said["levels"], tuple([i for i, flags in enumerate(said["levels"]) if not flags[place]])
    flags = [{_V: True, _FIRST: level[0], _SECOND: level[1]} for level in levels]
    levels = tuple([(each[x], each[y], *level[2:]) for each, level in zip(flags, levels, strict=True)])
    found = _product.bind(arrays[x], arrays[y], *others, **said | {"which": which, "levels": levels})
    found = found.sum(shared) if shared else found
    return *((found, None) if place == 0 else (None, found)), *(None for _ in others)


_V, _FIRST, _SECOND = "v", "first", "second"


def _batched(operands: Any, axes: Any, **said: Any) -> tuple[jax.Array, int]:
    flags = tuple([axis is not None for axis in axes])
    operands = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    return _product.bind(*operands, **said | {"levels": (flags, *said["levels"])}), 0


_product.def_impl(jax.jit(compute, static_argnames=("form", "products", "which", "shapes", "levels", "keyed")))
_product.def_abstract_eval(_abstract)
mlir.register_lowering(_product, mlir.lower_fun(compute, multiple_results=False))
ad.primitive_jvps[_product] = _tangent
ad.primitive_transposes[_product] = _transposed
batching.primitive_batchers[_product] = _batched


def multiply(
    form: Form, products: Products, which: str, first: jax.Array, second: jax.Array, shapes: Shapes, *others: Any
) -> jax.Array:
    """One of a form's products, which JAX differentiates.

    Args:
        form, products, which, first, second, shapes: which product, of what.
        others: the words of the forward product's key, and the state of delayed scales; None where there are none.
    """
    key, state = others or (None, None)
    given = [x for x in (key, state) if x is not None]
    axes = [varying(x) for x in (first, second, *given)]
    if len(set(axes)) > 1:  # in shard_map: the gradient of what devices share is the sum of theirs
        every = frozenset().union(*axes)
        first, second, *given = (
            jax.lax.pcast(x, tuple(every - own), to="varying") if every - own else x
            for x, own in zip((first, second, *given), axes, strict=True)
        )
    said: dict[str, Any] = {"form": form, "products": products, "which": which, "shapes": shapes, "levels": ()}
    return _product.bind(first, second, *given, **said, keyed=key is not None)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _with_state(
    form: Form, products: Products, shapes: Shapes, a: jax.Array, b: jax.Array, key: Any, state: jax.Array
) -> jax.Array:
    """The product of delayed scales, whose derivative with respect to their state is the next state."""
    return multiply(form, products, FORWARD, a, b, shapes, key, state)


def _forward(form: Form, products: Products, shapes: Shapes, *operands: Any) -> tuple[jax.Array, Any]:
    return _with_state(form, products, shapes, *operands), operands


def _backward(form: Form, products: Products, shapes: Shapes, saved: Any, gradient: jax.Array) -> tuple[Any, ...]:
    a, b, key, state = saved
    of_a = _summed(multiply(form, products, GRAD_A, gradient, b, shapes, key, state), a)
    of_b = _summed(multiply(form, products, GRAD_B, gradient, a, shapes, key, state), b)
    return of_a, of_b, None, _next_scaling(products, state, (a, b, gradient))


_with_state.defvjp(_forward, _backward)


def _summed(gradient: jax.Array, x: jax.Array) -> jax.Array:
    """The gradient of x; in shard_map the sum over devices that share x."""
    shared = tuple(varying(gradient) - varying(x))
    return jax.lax.psum(gradient, shared) if shared else gradient


@partial(jax.jit, static_argnums=0)
def _next_scaling(products: Products, state: jax.Array, tensors: tuple[jax.Array, ...]) -> jax.Array:
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
    if shared and not operand.scale.reduce_amax:
        raise ValueError(
            f"scaling is the same along the axes {', '.join(map(repr, sorted(shared)))} of a mesh, with "
            "reduce_amax=False; allowed is a state for each device there"
        )
    found = jax.lax.pmax(found, shared) if shared else found
    return jax.lax.pcast(found, own, to="varying") if own else found


def share_scaling(scaling: jax.Array, uses: int) -> tuple[jax.Array, ...]:
    """The state of delayed scales for several products, which make one step of it.

    JAX adds up derivatives with respect to an array that is used several times, and sums of next states are none. The
    derivative with respect to a shared state is the next state by the largest magnitudes of all uses, as in torch.

    Args:
        scaling: the state, float32 of shape (3, 1 + history).
        uses: how many products use it, at most once each. Those that are not differentiated do not count.

    Returns:
        The state, `uses` times, for one product each.

    Raises:
        TypeError: if uses is no int.
        ValueError: if uses is less than 1, or scaling has another shape or dtype.

    Example:
        >>> from qjax import linalg
        >>> kept = "operand(e4m3fn,scale=scale(history=2))"
        >>> def loss(state, x, w):
        ...     states = linalg.share_scaling(state, 2)
        ...     for one in states:
        ...         x = linalg.linear(x, w, operands=(kept, kept), grad_weight=f"product(None,{kept})", scaling=one)
        ...     return x.sum()
        >>> jax.grad(loss)(linalg.first_scaling(2), jnp.ones((1, 2)), jnp.ones((2, 2)))[0]
        Array([224.,   2.,   0.], dtype=float32)
    """
    shape, dtype = tuple(getattr(scaling, "shape", ())), getattr(scaling, "dtype", type(scaling).__name__)
    if len(shape) != 2 or shape[0] != 3 or shape[1] < 2 or dtype != jnp.float32:
        raise ValueError(f"scaling has shape {shape} and dtype {dtype}; allowed is float32 of shape (3, 1 + history)")
    return _share(scaling, check_int("uses", uses, 1))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def _share(state: jax.Array, uses: int) -> tuple[jax.Array, ...]:
    return (state,) * uses


def _share_forward(state: jax.Array, uses: int) -> tuple[Any, Any]:
    return _share(state, uses), state


def _share_backward(uses: int, state: jax.Array, found: tuple[jax.Array, ...]) -> tuple[jax.Array]:
    """Each row of the use with the largest newest magnitude, as the older ones are the same in all uses."""
    rows = jnp.stack(found)
    used = rows[:, :, 0] != 0  # JAX's derivative with respect to what was not used is 0, which no scale is
    newest = jnp.where(used, jax.lax.bitcast_convert_type(rows[:, :, 1], jnp.int32), -1)
    largest = jnp.argmax(newest, 0)
    return (jnp.where(used.any(0)[:, None], rows[largest, jnp.arange(3)], state),)


_share.defvjp(_share_forward, _share_backward)


def first_scaling(history: int) -> jax.Array:
    """The state of delayed scales before the first call, see `qcore.linalg.first_scaling`.

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
