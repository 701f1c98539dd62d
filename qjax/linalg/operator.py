"""One product of two arrays, as a primitive of JAX with its derivatives."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from qcore.linalg.accumulator import CANONICAL_NAN
from qcore.linalg.convolution import ConvolutionGeometry, Geometry
from qcore.linalg.geometry import FORWARD, GRAD_A, GRAD_B, Shape, derivatives
from qcore.linalg.law import Sums, batch_shape
from qcore.linalg.law import multiply as multiply_matrices
from qcore.linalg.operands import Operand
from qcore.linalg.product import FIRST, ROLES, ROWS, SECOND, Product, Products
from qcore.linalg.rounded import apart, matrices, rounded_tensors
from qcore.linalg.scaling import of_both, prepared, rescaled
from qjax._rounding.dispatch import decode, round_operand
from qjax._rounding.inputs import varying
from qjax._rounding.keys import fold_in
from qjax._rounding.scopes import PRODUCT, kind_scope
from qjax.linalg.namespace import Float32, Float64
from qjax.linalg.parts import convolution_by_columns, exact_convolution, multiply_in_parts

_OPERANDS = {
    FORWARD: {FIRST: "input", SECOND: "weight"},
    GRAD_A: {FIRST: "grad_input.gradient", SECOND: "grad_input.weight"},
    GRAD_B: {FIRST: "grad_weight.gradient", SECOND: "grad_weight.input"},
}


@partial(jax.jit, static_argnums=(0, 1, 2, 6))
def multiply_arrays(
    geometry: Geometry,
    which: str,
    product: Product,
    first: jax.Array,
    second: jax.Array,
    key: Any,
    other: Shape,
    state: Any = None,
    addend: Any = None,
) -> jax.Array:
    """One of a geometry's products, with the result's elements in order; see `qcore.linalg.arrays.multiply_arrays`."""
    if key is not None and which != FORWARD:
        key = fold_in(key, ROLES[which])
    rows = zip(product.operands, ROWS[which], strict=True)
    given = [state[row, 0] if state is not None and operand.delayed else None for operand, row in rows]
    sums = product.sums(geometry, which, first.shape, second.shape, other, addend is not None)
    with jax.enable_x64(True):
        tensors, round_ = (first, second), partial(_rounded, key, which)
        stochastic = sums.accumulator.stochastic  # words count the elements of the whole
        # Parts of a convolution have the whole's bits, unless random words count the elements of the whole.
        if isinstance(geometry, ConvolutionGeometry) and not (stochastic or product._as_matrices) and addend is None:
            rounded = rounded_tensors(geometry, which, product, tensors, round_, given)
            return _convolved(geometry, which, rounded, other, sums)
        left, right, scales, factor = matrices(Float64, geometry, which, product, tensors, other, round_, given)
        words = None if key is None else jnp.asarray(key).view(jnp.int32)
        of_left, of_right = zip((left, right), scales or (None, None), strict=True)
        multiply_pairs = partial(_multiply_pairs, sums, words, factor)
        if addend is not None:
            addend = addend.reshape(*batch_shape(left, right), left.shape[-2], right.shape[-1])
        if stochastic or isinstance(geometry, ConvolutionGeometry):
            return multiply_pairs(of_left, of_right, addend)
        return multiply_in_parts(multiply_pairs, of_left, of_right, addend)


def _convolved(geometry: ConvolutionGeometry, which: str, rounded: Any, other: Shape, sums: Sums) -> jax.Array:
    """A convolution's product of rounded operands and the inverses of their scales, see `rounded_tensors`."""
    (first, second), inverses = rounded
    factor = of_both(Float64, *inverses)
    if sums.exact and sums.accumulator._converts:
        finish = lambda found: _result(Float64.unsigned_zero(found), factor, sums)  # noqa: E731
        return exact_convolution(geometry, which, first, second, other, finish)
    multiply_them = lambda left, right: _multiply_pairs(sums, None, factor, (left, None), (right, None))  # noqa: E731
    return convolution_by_columns(geometry, which, first, second, other, multiply_them)


def _multiply_pairs(sums: Sums, words: Any, factor: Any, left: Any, right: Any, addend: Any = None) -> jax.Array:
    """The float32 product of two matrices, each with the scales of its chunks or None, and an addend or None."""
    (a, of_a), (b, of_b) = left, right
    if sums.narrow and sums.accumulator._sequential:
        names = Float32(words, sums)
        found = names.finished(multiply_matrices(names, a, b, sums))
        if factor is None:
            return jnp.where(found == found, found, jnp.float32(jnp.nan))
        return _result(Float64.float64(found), factor, sums)
    scales = None if of_a is None and of_b is None else (of_a, of_b)
    return _result(multiply_matrices(Float64(words), a, b, sums, scales, addend), factor, sums)


def _result(found: jax.Array, factor: Any, sums: Sums) -> jax.Array:
    """Float64 accumulators, times the factor of whole operands' scales if there is one, as float32 numbers."""
    result = Float64.float32(found if factor is None else rescaled(Float64, found, factor))
    if sums.accumulator.nan == CANONICAL_NAN:
        return result
    return jnp.where(result == result, result.view(jnp.int32), np.int32(sums.accumulator.nan)).view(jnp.float32)


def _rounded(
    key: Any, which: str, x: jax.Array, operand: Operand, given: Any, role: int, coded: bool = False
) -> tuple[jax.Array, Any]:
    """An operand rounded, and the inverse of its scale or None; see `qcore.linalg.rounded.Round`."""
    x, inverse = prepared(Float64, x, operand, given)
    if operand.number is None:
        return x, inverse
    with jax.enable_x64(False), kind_scope("operand", _OPERANDS[which][role]):
        key = fold_in(key, role) if operand.stochastic else None
        found = round_operand(x, operand.number, operand.rounding, key, coded)
        return apart(operand.number, found, decode) if coded else (found, inverse)


class Shapes(NamedTuple):
    """Shapes of a geometry's two operands and of its product."""

    a: Shape
    b: Shape
    result: Shape

    def of(self, which: str) -> Shape:
        """The result's shape of one of the geometry's products."""
        return {FORWARD: self.result, GRAD_A: self.a, GRAD_B: self.b}[which]


# One of a geometry's products, as a primitive. It is linear in both operands, and its derivatives are the other
# products: all transformations of JAX work at every order. Its operands are both factors, then an addend, the words of
# a key and the state of delayed scales where there are any. `levels` has an entry for each vmap around it, the
# outermost first: which operands have an axis of examples. These axes come first.
_product = core.Primitive(PRODUCT)


def _examples(levels: tuple[tuple[bool, ...], ...], operands: Any) -> Shape:
    """How many examples each vmap has."""
    sizes = []
    for depth, flags in enumerate(levels):
        index = flags.index(True)
        sizes.append(operands[index].shape[sum(level[index] for level in levels[:depth])])
    return tuple(sizes)


def _abstract(*operands: Any, which: str, shapes: Shapes, levels: Any, **others: Any) -> Any:
    # In a mesh of explicit axes only tracing tells the result's sharding.
    if any(any(x.sharding.spec) for x in operands):
        params = {"which": which, "shapes": shapes, "levels": levels} | others
        return jax.make_jaxpr(partial(compute, **params))(*operands).out_avals[0]
    shape, first = (*_examples(levels, operands), *shapes.of(which)), operands[0]
    sharding = first.sharding.update(spec=jax.sharding.PartitionSpec(*(None for _ in shape)))
    return first.update(shape=shape, dtype=jnp.dtype(jnp.float32), sharding=sharding, weak_type=False)


def compute(
    *operands: Any,
    geometry: Geometry,
    products: Products,
    which: str,
    shapes: Shapes,
    levels: Any,
    keyed: bool,
    adds: bool,
) -> jax.Array:
    """The primitive's result."""

    def one(first: jax.Array, second: jax.Array, *others: Any) -> jax.Array:
        addend, key = others[0] if adds else None, others[adds] if keyed else None
        state = others[-1] if len(others) > keyed + adds else None
        other, shape = shapes.b if which == FORWARD else shapes.of(which), shapes.of(which)
        found = multiply_arrays(geometry, which, products.of(which), first, second, key, other, state, addend)
        return found.reshape(shape)

    for flags in reversed(levels):
        one = jax.vmap(one, tuple([0 if flag else None for flag in flags]))
    return one(*operands)


def _tangent(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    """The sum of two products, of each operand's tangent with the other operand, and of the addend's tangent."""
    first, second, *others = primals
    if len(others) > params["keyed"] + params["adds"]:
        raise NotImplementedError(
            "products with delayed scales have no second derivatives: a scale follows from past arrays of the same "
            "role, and there are none of these. Allowed are scales just in time, such as Scale() for Scale(history=16)"
        )
    of_first, of_second = tangents[:2]
    found = _product.bind(*primals, **params)
    parts = []
    if params["adds"]:
        if type(tangents[2]) is not ad.Zero:
            parts.append(_spread(tangents[2], [flags[2] for flags in params["levels"]], found.shape))
        others = others[1:]
        levels = tuple([(*flags[:2], *flags[3:]) for flags in params["levels"]])
        params = params | {"adds": False, "levels": levels}
    if type(of_first) is not ad.Zero:
        parts.append(_product.bind(of_first, second, *others, **params))
    if type(of_second) is not ad.Zero:
        parts.append(_product.bind(first, of_second, *others, **params))
    return found, sum(parts[1:], parts[0]) if parts else jnp.zeros_like(found)


def _spread(x: jax.Array, flags: list[bool], shape: Shape) -> jax.Array:
    """An addend's tangent for all examples: vmaps whose flag is False share it."""
    new = tuple([axis for axis, flag in enumerate(flags) if not flag])
    return jnp.broadcast_to(jnp.expand_dims(x, new), shape)


def _transposed(v: Any, first: Any, second: Any, *others: Any, **params: Any) -> tuple[Any, ...]:
    """The gradient of the operand that is not given, summed over the examples of the vmaps that share the operand."""
    if type(v) is ad.Zero:
        return None, None, *(None for _ in others)
    place = 0 if ad.is_undefined_primal(first) else 1
    x, y, which = derivatives(params["which"], _V, _FIRST, _SECOND)[place]
    arrays = {_V: v, _FIRST: first, _SECOND: second}
    levels, shared = params["levels"], tuple([i for i, flags in enumerate(params["levels"]) if not flags[place]])
    flags = [{_V: True, _FIRST: level[0], _SECOND: level[1]} for level in levels]
    levels = tuple([(each[x], each[y], *level[2:]) for each, level in zip(flags, levels, strict=True)])
    found = _product.bind(arrays[x], arrays[y], *others, **params | {"which": which, "levels": levels})
    found = found.sum(shared) if shared else found
    return *((found, None) if place == 0 else (None, found)), *(None for _ in others)


_V, _FIRST, _SECOND = "v", "first", "second"


def _batched(operands: Any, axes: Any, **params: Any) -> tuple[jax.Array, int]:
    flags = tuple([axis is not None for axis in axes])
    operands = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(operands, axes, strict=True)]
    if params["adds"] and not (flags[0] or flags[1]):  # a tangent, without the addend, must have the axis of examples
        count = operands[flags.index(True)].shape[0]
        operands[0], flags = jnp.broadcast_to(operands[0], (count, *operands[0].shape)), (True, *flags[1:])
    return _product.bind(*operands, **params | {"levels": (flags, *params["levels"])}), 0


_product.def_impl(
    jax.jit(compute, static_argnames=("geometry", "products", "which", "shapes", "levels", "keyed", "adds"))
)
_product.def_abstract_eval(_abstract)
mlir.register_lowering(_product, mlir.lower_fun(compute, multiple_results=False))
ad.primitive_jvps[_product] = _tangent
ad.primitive_transposes[_product] = _transposed
batching.primitive_batchers[_product] = _batched


def multiply(
    geometry: Geometry,
    products: Products,
    which: str,
    first: jax.Array,
    second: jax.Array,
    shapes: Shapes,
    *others: Any,
) -> jax.Array:
    """One of a geometry's products, which JAX differentiates.

    Args:
        geometry, products, which: the product.
        first, second: its operands.
        shapes: the shapes of the geometry's operands and result.
        others: the words of the forward product's key, the state of delayed scales, and the addend; each may be None.
    """
    key, state, addend = (*others, None, None, None)[:3]
    given = [x for x in (addend, key, state) if x is not None]
    axes = [varying(x) for x in (first, second, *given)]
    if len(set(axes)) > 1:  # in shard_map: devices that share an operand add up their gradients
        every = frozenset().union(*axes)
        first, second, *given = (
            jax.lax.pcast(x, tuple(every - own), to="varying") if every - own else x
            for x, own in zip((first, second, *given), axes, strict=True)
        )
    params: dict[str, Any] = {
        "geometry": geometry,
        "products": products,
        "which": which,
        "shapes": shapes,
        "levels": (),
    }
    return _product.bind(first, second, *given, **params, keyed=key is not None, adds=addend is not None)
