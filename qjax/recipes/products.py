"""Products of a traced program by `qjax.linalg`: of an input and a weight, in the layouts of torch's layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from qcore.formats.block import BlockNumber
from qcore.linalg.convolution import weight_layout
from qcore.linalg.product import Products
from qjax._parameters import Parameters, parameters
from qjax._rounding.dispatch import quantize
from qjax._rounding.meshes import on_meshes
from qjax.linalg import conv1d, conv2d, conv3d, linear
from qjax.linalg.states import rows_of

_NARROW = ("bfloat16", "float16")
DTYPES = ("float32", *_NARROW)
_PRODUCTS = frozenset(("dot_general", "ragged_dot_general", "conv_general_dilated"))
# Products that `multiply` cannot compute, with the places of their two factors: of sparse arrays, and of scaled ones.
_LEFT = {
    **dict.fromkeys(("bcoo_dot_general", "bcoo_spdot_general"), (0, 2)),
    **dict.fromkeys(("bcoo_dot_general_sampled", "scaled_matmul_wrapper"), (0, 1)),
    **dict.fromkeys(("bcsr_dot_general", "coo_matvec", "coo_matmat", "csr_matvec", "csr_matmat"), (0, 3)),
}
_FUNCTIONS = {1: conv1d, 2: conv2d, 3: conv3d}


_NO_PRODUCT = "qjax.linalg has no such product"


def is_product(equation: Any) -> bool:
    """True if an equation sums products of numbers that are not integers."""
    name = equation.primitive.name
    if not (name in _PRODUCTS or name in _LEFT) or not jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.inexact):
        return False
    return name != "dot_general" or len(_terms(equation)) > 0


def factors_of(equation: Any) -> tuple[int, int]:
    """The places of a product's two factors among its operands; of a sparse one the place of its numbers."""
    return _LEFT.get(equation.primitive.name, (0, 1))


def shapes_of(equation: Any) -> tuple[tuple[int, ...], ...]:
    """The shapes of a product's two factors."""
    params, shapes = parameters(equation), [equation.invars[place].aval.shape for place in factors_of(equation)]
    infos = [params.spinfo if params.lhs_spinfo is None else params.lhs_spinfo, params.rhs_spinfo]
    given = [params.shape if info is None else info.shape for info in infos]
    if infos[1] is None:
        given[1] = None
    return tuple(tuple(shape if own is None else own) for own, shape in zip(given, shapes, strict=True))


def why_not(equation: Any) -> str:
    """Why `multiply` cannot compute a product; "" if it can."""
    name, params = equation.primitive.name, parameters(equation)
    dtypes = [str(atom.aval.dtype) for atom in (*equation.invars[:2], equation.outvars[0])]
    if any(dtype.startswith("complex") for dtype in dtypes):
        return f"its numbers are complex ({dtypes[-1]}); products of their real and imaginary parts are lowered"
    if name in _LEFT:
        is_sparse = name != "scaled_matmul_wrapper"
        return f"it is {name}, of a sparse array; products of x.todense() are lowered" if is_sparse else _NO_PRODUCT
    other = next((dtype for dtype in dtypes if dtype not in DTYPES), None)
    if other is not None:
        return f"{other} numbers; allowed are {', '.join(DTYPES)}"
    if name == "conv_general_dilated":
        if params.batch_group_count != 1:
            return "a convolution with batch_group_count, of which qjax.linalg has none"
        if len(params.window_strides) not in _FUNCTIONS:
            return f"a convolution of {len(params.window_strides)} dimensions; allowed are 1, 2 and 3"
    if name == "ragged_dot_general":
        numbers = params.ragged_dot_dimension_numbers
        plain = numbers.dot_dimension_numbers == (((1,), (1,)), ((), ()))
        if not plain or (*numbers.lhs_ragged_dimensions,) != (0,) or (*numbers.rhs_group_dimensions,) != (0,):
            return "a ragged product other than jax.lax.ragged_dot's"
    return ""


def multiply_adds(equation: Any) -> int:
    """The number of multiply-adds of a product, of which a complex one counts as four.

    Without the zeros in a dilated input, and without the numbers that a sparse array does not store.
    """
    return _multiply_adds(equation) * (4 if jnp.issubdtype(equation.outvars[0].aval.dtype, jnp.complexfloating) else 1)


def _multiply_adds(equation: Any) -> int:
    name, result = equation.primitive.name, equation.outvars[0].aval.shape
    first, second = (equation.invars[place].aval.shape for place in factors_of(equation))
    if name == "conv_general_dilated":
        params = parameters(equation)
        outputs = second[params.dimension_numbers.rhs_spec[0]]
        zeros = prod(params.lhs_dilation)
        return prod(result) * (prod(second) // max(outputs, 1)) // zeros
    if name in ("ragged_dot_general", "scaled_matmul_wrapper"):
        return prod(result) * first[-1]
    if name in _LEFT and name != "bcoo_dot_general_sampled":
        # Each stored number is multiplied by a number of each column of the second factor.
        (_, summed), (_, batch) = parameters(equation).dimension_numbers or (((), (0,)), ((), ()))
        whole = shapes_of(equation)[1]
        return prod(first) * prod(second) // max(prod(whole[axis] for axis in (*summed, *batch)), 1)
    return prod(result) * prod(first[axis] for axis in _terms(equation))


def _terms(equation: Any) -> Sequence[int]:
    return parameters(equation).dimension_numbers[0][0]


def last_factor(equation: Any, moved: Sequence[int] | None) -> int:
    """The index of the factor to which the last axis of a result belongs: in input @ weight the weight.

    `moved` is the order of the result's axes behind transpositions that follow the product, or None.
    """
    if equation.primitive.name != "dot_general":
        return 1
    (contracted, _), (batch, _) = parameters(equation).dimension_numbers
    rows = equation.invars[0].aval.ndim - len(contracted) - len(batch)
    shape = equation.outvars[0].aval.shape
    free = [axis for axis in moved or range(len(shape)) if axis >= len(batch)]
    # Axes of length 1, as einsum adds them, belong to neither factor.
    last = next((axis for axis in reversed(free) if shape[axis] != 1), free[-1] if free else len(batch) + rows)
    return int(last >= len(batch) + rows)


def multiply(
    equation: Any, operands: Sequence[Any], weight: int, products: Products, key: Any, scaling: Any
) -> jax.Array:
    """The result of a product's equation, whose operand `weight` is the second factor, with defined products."""
    result = equation.outvars[0].aval
    law = partial(_multiply, equation, weight, products, result.dtype)
    return on_meshes(law, lambda: result.sharding, list(operands), key, None if scaling is None else rows_of(scaling))


def _multiply(
    equation: Any, weight: int, products: Products, dtype: Any, operands: Sequence[Any], key: Any, scaling: Any
) -> jax.Array:
    arguments = {
        "operands": products.forward.operands,
        "accumulator": products.forward.accumulator,
        "grad_input": products.grad_a,
        "grad_weight": products.grad_b,
        "key": key,
        "scaling": scaling,
    }
    x, w = (cast(operands[one], jnp.float32) for one in (1 - weight, weight))
    if equation.primitive.name == "dot_general":
        y = _contract(parameters(equation), x, w, weight, arguments)
    elif equation.primitive.name == "ragged_dot_general":
        y = _multiply_groups(x, w, operands[2], arguments)
    else:
        y = _convolve(parameters(equation), x, w, arguments)
    return cast(y, dtype)


def _contract(params: Parameters, x: jax.Array, w: jax.Array, weight: int, arguments: dict[str, Any]) -> jax.Array:
    """A general product of two arrays as `linear`: batch axes first, then rows or columns, then the summed axes."""
    terms, batches = params.dimension_numbers
    order = np.argsort(terms[1 - weight], kind="stable")  # sums run in the order of the input's axes
    arrays, free = [], []
    for array, which in ((x, 1 - weight), (w, weight)):
        axes, own = _order(params, which, array.ndim, order)
        arrays.append(array.transpose(axes))
        free.append([array.shape[axis] for axis in own])
    lead, (rows, columns) = arrays[0].shape[: len(batches[0])], free
    count = prod(x.shape[axis] for axis in terms[1 - weight])
    # Rows of an input without a batch keep their axes, which blocks of examples see; a vector is a batch of one.
    x = arrays[0].reshape(*lead, *([prod(rows)] if lead else rows or [1]), count)
    w = arrays[1].reshape(*lead, prod(columns), count)
    y = linear(x, w, **arguments).reshape(*lead, *rows, *columns)
    if weight == 1:
        return y
    first, middle, end = len(lead), len(lead) + len(rows), y.ndim
    return y.transpose(*range(first), *range(middle, end), *range(first, middle))


def _order(params: Parameters, which: int, ndim: int, order: Any) -> tuple[list[int], list[int]]:
    """The axes of a factor of a general product: of batches, its own, summed ones in an order; and its own."""
    terms, batches = params.dimension_numbers
    summed, batch = [terms[which][place] for place in order], list(batches[which])
    own = [axis for axis in range(ndim) if axis not in (*summed, *batch)]
    return [*batch, *own, *summed], own


def in_layout(
    equation: Any, weight: int, number: BlockNumber, law: Callable[..., jax.Array], w: jax.Array, key: Any
) -> jax.Array:
    """law(w, key) of an equation's weight, whose blocks lie as in a product of a recipe: in (outputs, inputs).

    In convolutions they lie along the channels of each tap and group, as `qcore.linalg.convolution` has them.
    """
    params, name = parameters(equation), equation.primitive.name
    if name == "ragged_dot_general":
        return law(w.swapaxes(1, 2), key).swapaxes(1, 2)
    if name == "dot_general":
        terms, batches = params.dimension_numbers
        axes, own = _order(params, weight, w.ndim, np.argsort(terms[1 - weight], kind="stable"))
        moved, lead = w.transpose(axes), len(batches[weight])
        ends = lead, lead + len(own), w.ndim
        sizes = (prod(moved.shape[begin:end]) for begin, end in pairwise(ends))
        rows = moved.reshape(*moved.shape[:lead], *sizes)
        return law(rows, key).reshape(moved.shape).transpose(np.argsort(axes))
    if weight != 1:  # a convolution of a parameter with data
        return law(w, key)
    order = params.dimension_numbers.rhs_spec
    moved = w.transpose(order)
    layout = weight_layout(number, moved.shape[2:], params.feature_group_count)
    rounded = law(moved, key) if layout is None else layout.put_back(law(layout.laid_out(moved), key))
    return rounded.transpose(np.argsort(order))


def _multiply_groups(x: jax.Array, w: jax.Array, sizes: Any, arguments: dict[str, Any]) -> jax.Array:
    """A product for each group of rows, in which other groups' rows are zeros."""
    groups = w.shape[0]
    group = jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(x.shape[0]), side="right")
    own = group == jnp.arange(groups)[:, None]
    parts = jnp.where(own[..., None], x, jnp.float32(0))
    y = linear(parts, w.swapaxes(1, 2), **arguments)
    chosen = y[jnp.minimum(group, groups - 1), jnp.arange(x.shape[0])]
    return jnp.where((group < groups)[:, None], chosen, jnp.float32(0))


def _convolve(params: Parameters, x: jax.Array, w: jax.Array, arguments: dict[str, Any]) -> jax.Array:
    layout, dims = params.dimension_numbers, len(params.window_strides)
    x, w = jnp.transpose(x, layout.lhs_spec), jnp.transpose(w, layout.rhs_spec)
    padding, spread = tuple(low for low, _ in params.padding), tuple(params.lhs_dilation)
    if any(low != high or low < 0 for low, high in params.padding) or any(step > 1 for step in spread):
        edges = ((low, high, step - 1) for (low, high), step in zip(params.padding, spread, strict=True))
        x, padding = jax.lax.pad(x, jnp.float32(0), ((0, 0, 0), (0, 0, 0), *edges)), (0,) * dims
    steps, gaps = tuple(params.window_strides), tuple(params.rhs_dilation)
    y = _FUNCTIONS[dims](x, w, None, steps, padding, gaps, params.feature_group_count, **arguments)
    return jnp.transpose(y, tuple(np.argsort(layout.out_spec)))


def cast(x: Any, dtype: Any) -> jax.Array:
    """x as numbers of another dtype of `DTYPES`, to nearest; gradients are cast back in the same way."""
    x = jnp.asarray(x)
    return x if x.dtype == dtype else _cast.bind(x, dtype=jnp.dtype(dtype))


def _law(x: jax.Array, dtype: Any) -> jax.Array:
    """The cast, with the rounding of the narrower dtype in integers.

    Under jit XLA may drop a pair of casts to a narrow dtype and back, and with it the rounding. So integers round the
    numbers once more, which does not change numbers that are rounded already.
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
