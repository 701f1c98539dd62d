"""Primitives of JAX as nodes: the table of functions that a walk calls, one for each primitive.

Floats of 16 and 8 bits are computed in float32 and rounded back, as XLA does it on a CPU; integers of 8 and 16 bits in
int32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from qjax._parameters import parameters
from qjax.export.control import CONTROL
from qjax.export.gathers import GATHERS
from qjax.export.images import IMAGES, pad
from qjax.export.walk import BITS, NO_RANDOM, Value, Walk, kind_of, kinds_of, known_arrays, wide_dtype


def _broadcast_known(walk: Walk, equation: Any, values: Sequence[Value]) -> Value | None:
    """The result of an elementwise equation of constants that were broadcast, computed once for each number."""
    arrays = known_arrays(values)
    if arrays is None:
        return None
    return walk.expand(walk.folded(equation, np.broadcast_arrays(*arrays))[0], kind_of(equation)[0])


def elementwise(op: str, compare: bool = False, **attributes: Any) -> Callable[..., Value]:
    """The translation of an elementwise primitive into one node, between casts where types are narrow."""

    def translate(walk: Walk, equation: Any, *values: Value) -> Value:
        known = _broadcast_known(walk, equation, values)
        if known is not None:
            return known
        wide = wide_dtype(values[-1].dtype)
        if compare and wide == np.bool_:
            wide = np.dtype("int32")
        operands = [walk.cast(x, wide) for x in values]
        made = walk.elementwise(op, *operands, dtype=bool if compare else wide, **attributes)
        return walk.cast(made, kind_of(equation)[1])

    return translate


def by_kind(floats: Any, integers: Any, bools: Any = None) -> Callable[..., Value]:
    """A translation for floats, another for integers and maybe one for bools."""

    def translate(walk: Walk, equation: Any, *values: Value) -> Value:
        dtype = values[-1].dtype
        chosen = bools if dtype == np.bool_ else floats if jnp.issubdtype(dtype, jnp.floating) else integers
        if chosen is None:
            raise walk.error(f"{equation.primitive.name} of {dtype} has no form in ONNX", "cast its operands")
        return chosen(walk, equation, *values)

    return translate


_greater = elementwise("Max")


def _greater_integers(walk: Walk, equation: Any, *values: Value) -> Value:
    """The greater of two integers; a bound that is the least integer of the type, as of a ReLU, changes nothing."""
    for x, bound in zip(values, values[::-1], strict=True):
        known, dtype = known_arrays([bound]), x.dtype
        if x.node is not None and x.node.op == "Cast" and x.node.inputs[0] is not None:
            inner = x.node.inputs[0].dtype
            dtype = inner if inner.kind in "iu" and np.can_cast(inner, dtype) else dtype
        if known is not None and x.shape == kind_of(equation)[0] and (known[0] <= jnp.iinfo(dtype).min).all():
            return x
    return _greater(walk, equation, *values)


def composed(function: Callable[..., Value]) -> Callable[..., Value]:
    """A translation that function(walk, params, *operands) writes, with operands in a wide dtype."""

    def translate(walk: Walk, equation: Any, *values: Value) -> Value:
        known = _broadcast_known(walk, equation, values)
        if known is not None:
            return known
        wide = wide_dtype(values[-1].dtype)
        made = function(walk, parameters(equation), *(walk.cast(x, wide) for x in values))
        return walk.cast(made, kind_of(equation)[1])

    return translate


def scalar(walk: Walk, like: Value, number: float) -> Value:
    """A number of a value's dtype."""
    return walk.constant(number, like.dtype)


def _power(walk: Walk, params: Any, x: Value) -> Value:
    """x^y for an integer y by products in XLA's order."""
    exponent = params.y
    result, square, left = None, x, abs(exponent)
    while left:
        if left & 1:
            result = square if result is None else walk.elementwise("Mul", result, square)
        left >>= 1
        if left:
            square = walk.elementwise("Mul", square, square)
    result = scalar(walk, x, 1) if result is None else result
    return walk.elementwise("Div", scalar(walk, x, 1), result) if exponent < 0 else result


def _round(walk: Walk, params: Any, x: Value) -> Value:
    if int(params.rounding_method) == 1:
        return walk.elementwise("Round", x)
    # Away from zero: trunc(x) and one more where at least half is left, exactly.
    floor = walk.elementwise("Floor", walk.elementwise("Abs", x))
    left = walk.elementwise("Sub", walk.elementwise("Abs", x), floor)
    up = walk.elementwise("GreaterOrEqual", left, scalar(walk, x, 0.5), dtype=bool)
    grown = walk.elementwise("Where", up, walk.elementwise("Add", floor, scalar(walk, x, 1)), floor)
    return walk.elementwise("Mul", walk.elementwise("Sign", x), grown)


def _convert(walk: Walk, equation: Any, x: Value) -> Value:
    return walk.cast(x, kind_of(equation)[1])


def _reduce_precision(walk: Walk, equation: Any, x: Value) -> Value:
    params = parameters(equation)
    sizes = params.exponent_bits, params.mantissa_bits
    names = {(8, 7): jnp.bfloat16, (5, 10): jnp.float16, (8, 23): jnp.float32, (11, 52): jnp.float64}
    if sizes not in names:
        raise walk.error(f"reduce_precision to {sizes} has no form in ONNX", "use qjax.quantize")
    return walk.cast(walk.cast(x, names[sizes]), x.dtype)


def _select(walk: Walk, equation: Any, which: Value, *cases: Value) -> Value:
    if which.dtype != np.bool_:
        result = cases[-1]
        for number in range(len(cases) - 2, -1, -1):
            at = walk.elementwise("Equal", which, scalar(walk, which, number), dtype=bool)
            result = walk.choose(at, cases[number], result)
        return result
    if len(cases) == 1:
        return cases[0]
    known = _broadcast_known(walk, equation, (which, *cases))
    if known is not None:
        return known
    product = _behind_a_choice(which, *cases)
    return product if product is not None else walk.choose(which, cases[1], cases[0])


def _behind_a_choice(which: Value, other: Value, x: Value) -> Value | None:
    """x, where a choice by x keeps XLA from fusing it (`Names.rounded` and `Names.divide`); else None."""
    node, doubled = which.node, other.node
    if node is None:
        return None
    if node.op == "LessOrEqual" and doubled is not None and doubled.op == "Add" and doubled.inputs == (x, x):
        first = node.inputs[0]
        if first is not None and first.node is not None and first.node.op == "Abs" and first.node.inputs == (x,):
            return x  # |x| <= largest ? x : x + x, whose second case is an infinity or NaN again
    return None


def _divide(walk: Walk, equation: Any, a: Value, b: Value) -> Value:
    node = b.node
    if node is not None and node.op == "Where":
        test = node.inputs[0]
        if test is not None and test.node is not None and test.node.op == "Not":
            equal = test.node.inputs[0]
            if equal is not None and equal.node is not None and equal.node.op == "Equal":
                source = a if a.unexpanded is None else a.unexpanded
                if equal.node.inputs == (source, source):
                    b = node.inputs[2]  # type: ignore[assignment]  # a != a ? a : b, whose quotient is NaN either way
    made = elementwise("Div")(walk, equation, a, b)
    return walk.expand(made, kind_of(equation)[0])


def _not_equal(walk: Walk, equation: Any, a: Value, b: Value) -> Value:
    known = _broadcast_known(walk, equation, (a, b))
    if known is not None:
        return known
    return walk.elementwise("Not", elementwise("Equal", compare=True)(walk, equation, a, b))


def _clamp(walk: Walk, params: Any, low: Value, x: Value, high: Value) -> Value:
    if low.ndim == high.ndim == 0 and x.dtype.name in ("float32", "float64", "int32", "int64"):
        return walk.elementwise("Clip", x, low, high)
    return walk.elementwise("Min", walk.elementwise("Max", x, low), high)


def _rsqrt(walk: Walk, params: Any, x: Value) -> Value:
    return walk.elementwise("Div", scalar(walk, x, 1), walk.elementwise("Sqrt", x))


def _logistic(walk: Walk, params: Any, x: Value) -> Value:
    return walk.elementwise("Sigmoid", x)


def _erf(walk: Walk, params: Any, x: Value) -> Value:
    return walk.elementwise("Erf", x)


def _erfc(walk: Walk, params: Any, x: Value) -> Value:
    return walk.elementwise("Sub", scalar(walk, x, 1), _erf(walk, params, x))


def _expm1(walk: Walk, params: Any, x: Value) -> Value:
    """exp(x) - 1 by way of float64, which keeps the digits of small results."""
    if x.dtype == np.float64:
        return walk.elementwise("Sub", walk.elementwise("Exp", x), scalar(walk, x, 1))
    wide = walk.cast(x, np.float64)
    return walk.cast(walk.elementwise("Sub", walk.elementwise("Exp", wide), scalar(walk, wide, 1)), x.dtype)


def _log1p(walk: Walk, params: Any, x: Value) -> Value:
    """log(1 + x) by way of float64."""
    if x.dtype == np.float64:
        return walk.elementwise("Log", walk.elementwise("Add", x, scalar(walk, x, 1)))
    wide = walk.cast(x, np.float64)
    return walk.cast(walk.elementwise("Log", walk.elementwise("Add", wide, scalar(walk, wide, 1))), x.dtype)


def _exp2(walk: Walk, params: Any, x: Value) -> Value:
    return walk.elementwise("Pow", scalar(walk, x, 2), x)


def _square(walk: Walk, params: Any, x: Value) -> Value:
    return walk.elementwise("Mul", x, x)


def _is_finite(walk: Walk, equation: Any, x: Value) -> Value:
    x = walk.cast(x, wide_dtype(x.dtype))
    beyond = walk.elementwise("Or", walk.elementwise("IsNaN", x, dtype=bool), walk.elementwise("IsInf", x, dtype=bool))
    return walk.elementwise("Not", beyond)


def _bitcast(walk: Walk, equation: Any, x: Value) -> Value:
    """Bits as another type: uint8 as int8 and back, and bfloat16 in the upper half of float32."""
    dtype = kind_of(equation)[1]
    if {x.dtype.name, dtype.name} == {"int8", "uint8"}:
        signed = walk.cast(x, np.int32)
        if dtype == np.int8:  # by arithmetic: a cast beyond the range is not defined
            over = walk.elementwise("Greater", signed, scalar(walk, signed, 127), dtype=bool)
            moved = walk.elementwise("Sub", signed, scalar(walk, signed, 256))
        else:
            over = walk.elementwise("Less", signed, scalar(walk, signed, 0), dtype=bool)
            moved = walk.elementwise("Add", signed, scalar(walk, signed, 256))
        return walk.cast(walk.elementwise("Where", over, moved, signed), dtype)
    if dtype == np.float32 and (half := _upper_half(x)) is not None:
        return walk.cast(half, np.float32)
    if x.dtype != jnp.bfloat16 or dtype.itemsize != 2:
        raise walk.error(f"the bits of {x.dtype} as {dtype} have no form in ONNX", "use qjax.quantize")
    return walk.emit(BITS, x, shape=x.shape, dtype=dtype)  # `_upper_half` takes it away


def _upper_half(x: Value) -> Value | None:
    """The bfloat16 array of which x is (bits << 16), or None."""
    steps = []
    while x.node is not None and x.node.inputs[0] is not None:
        steps.append(x.node.op)
        x = x.node.inputs[0]
        if steps[-1] == BITS:
            break
    return x if steps == ["BitShift", "Cast", BITS] else None


def _shift(direction: str) -> Callable[..., Value]:
    def translate(walk: Walk, equation: Any, x: Value, count: Value) -> Value:
        known = _broadcast_known(walk, equation, (x, count))
        if known is not None:
            return known
        if not x.dtype.name.startswith("uint"):
            if direction == "LEFT":
                factor = walk.elementwise("Pow", scalar(walk, x, 2), count)
                return walk.cast(walk.elementwise("Mul", x, factor), x.dtype)
            raise walk.error(f"{equation.primitive.name} of {x.dtype} has no form in ONNX", "use uint32")
        return walk.elementwise("BitShift", x, count, direction=direction)

    return translate


def _broadcast(walk: Walk, equation: Any, x: Value, *sizes: Value) -> Value:
    params = parameters(equation)
    shape, places = params.shape, params.broadcast_dimensions
    if x.unexpanded is not None:
        x = walk.reshape(x.unexpanded, (1,) * (x.ndim - x.unexpanded.ndim) + x.unexpanded.shape)
    spread = [1] * len(shape)
    for size, place in zip(x.shape, places, strict=True):
        spread[place] = size
    if x.size == 1:
        return walk.expand(walk.reshape(x, ()), shape)
    return walk.expand(walk.reshape(x, spread), shape)


def _reshape(walk: Walk, equation: Any, x: Value, *sizes: Value) -> Value:
    shape = kind_of(equation)[0]
    if x.unexpanded is not None and x.unexpanded.size == 1:
        return walk.expand(walk.reshape(x.unexpanded, ()), shape) if shape else walk.reshape(x.unexpanded, ())
    return walk.reshape(x, shape)


def _transpose(walk: Walk, equation: Any, x: Value) -> Value:
    return walk.transpose(x, parameters(equation).permutation)


def _concatenate(walk: Walk, equation: Any, *values: Value) -> Value:
    shape, dtype = kind_of(equation)
    return walk.emit("Concat", *values, shape=shape, dtype=dtype, axis=parameters(equation).dimension)


def _stack(walk: Walk, equation: Any, *values: Value) -> Value:
    shape, dtype = kind_of(equation)
    axis = parameters(equation).axis
    parts = [walk.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:])) for x in values]
    return walk.emit("Concat", *parts, shape=shape, dtype=dtype, axis=axis)


def _tile(walk: Walk, equation: Any, x: Value) -> Value:
    shape, dtype = kind_of(equation)
    return walk.emit("Tile", x, walk.constant(parameters(equation).reps, np.int64), shape=shape, dtype=dtype)


def _split(walk: Walk, equation: Any, x: Value) -> list[Value]:
    params = parameters(equation)
    axis, start, parts = params.axis, 0, []
    for size in params.sizes:
        starts, ends = [0] * x.ndim, list(x.shape)
        starts[axis], ends[axis] = start, start + size
        parts.append(walk.slice(x, starts, ends))
        start += size
    return parts


def _slice(walk: Walk, equation: Any, x: Value) -> Value:
    params = parameters(equation)
    return walk.slice(x, params.start_indices, params.limit_indices, params.strides)


def _reverse(walk: Walk, equation: Any, x: Value) -> Value:
    axes = parameters(equation).dimensions
    rows = [-1] * len(axes), [-(2**31)] * len(axes), axes, [-1] * len(axes)
    return walk.emit("Slice", x, *(walk.constant(row, np.int64) for row in rows), shape=x.shape, dtype=x.dtype)


def _pad(walk: Walk, equation: Any, x: Value, number: Value) -> Value:
    return pad(walk, x, number, parameters(equation).padding_config)


def _iota(walk: Walk, equation: Any, *sizes: Value) -> Value:
    shape, dtype = kind_of(equation)
    axis = parameters(equation).dimension
    line = np.arange(shape[axis]).astype(dtype).reshape([-1 if place == axis else 1 for place in range(len(shape))])
    return walk.expand(walk.constant(line), shape)


def _reduced(op: str) -> Callable[..., Value]:
    def translate(walk: Walk, equation: Any, x: Value) -> Value:
        axes = parameters(equation).axes
        if not axes:
            return x
        wide = walk.cast(x, "int64" if x.dtype.name.startswith("uint") else wide_dtype(x.dtype))
        return walk.cast(reduce(walk, op, wide, axes), kind_of(equation)[1])

    return translate


def reduce(walk: Walk, op: str, x: Value, axes: Any, keep: bool = False) -> Value:
    """The result of a reduction along axes; the greatest and the least of floats are NaN if there is a NaN."""
    shape = [1 if axis in axes else size for axis, size in enumerate(x.shape) if keep or axis not in axes]
    rows = walk.constant(list(axes), np.int64)

    def reduced(op: str, x: Value) -> Value:
        return walk.emit(op, x, rows, shape=shape, dtype=x.dtype, keepdims=int(keep))

    made = reduced(op, x)
    if op in ("ReduceMax", "ReduceMin") and x.dtype.name in ("float32", "float64"):
        # The runtimes' own maxima lose a NaN that is not the first number.
        marks = walk.cast(walk.elementwise("IsNaN", x, dtype=bool), np.int32)
        seen = walk.cast(reduced("ReduceMax", marks), bool)
        made = walk.elementwise("Where", seen, scalar(walk, made, np.nan), made)
    return made


def _reduce_logical(op: str) -> Callable[..., Value]:
    def translate(walk: Walk, equation: Any, x: Value) -> Value:
        return walk.cast(reduce(walk, op, walk.cast(x, np.int32), parameters(equation).axes), bool)

    return translate


def _argument(op: str) -> Callable[..., Value]:
    def translate(walk: Walk, equation: Any, x: Value) -> Value:
        shape, dtype = kind_of(equation)
        (axis,) = parameters(equation).axes
        wide = walk.cast(x, "int64" if x.dtype.name.startswith("uint") else wide_dtype(x.dtype))
        made = walk.emit(op, wide, shape=shape, dtype=np.int64, axis=axis, keepdims=0)
        return walk.cast(made, dtype)

    return translate


def _cumulative(walk: Walk, equation: Any, x: Value) -> Value:
    params = parameters(equation)
    wide = walk.cast(x, wide_dtype(x.dtype))
    axis = walk.constant(params.axis, np.int64)
    made = walk.emit("CumSum", wide, axis, shape=x.shape, dtype=wide.dtype, reverse=int(params.reverse))
    return walk.cast(made, x.dtype)


def _top_k(walk: Walk, equation: Any, x: Value) -> list[Value]:
    params = parameters(equation)
    axis, k = x.ndim - 1 if params.axis is None else params.axis, params.k
    found, places = _best(walk, x, axis, k, largest=1)
    return [walk.cast(found, x.dtype), walk.cast(places, kinds_of(equation)[1][1])]


def _best(walk: Walk, x: Value, axis: int, k: int, largest: int) -> list[Value]:
    wide = walk.cast(x, "int64" if x.dtype.name.startswith("uint") else wide_dtype(x.dtype))
    shape = [k if place == axis else size for place, size in enumerate(x.shape)]
    kinds = [(shape, wide.dtype), (shape, np.int64)]
    return walk.emit_all("TopK", [wide, walk.constant([k], np.int64)], kinds, axis=axis, largest=largest, sorted=1)


def _sort(walk: Walk, equation: Any, *values: Value) -> list[Value]:
    params = parameters(equation)
    axis = params.dimension
    if params.num_keys != 1:
        raise walk.error("sort by several keys has no form in ONNX", "sort by one")
    found, places = _best(walk, values[0], axis, values[0].shape[axis], largest=0)
    rest = [walk.emit("GatherElements", x, places, shape=x.shape, dtype=x.dtype, axis=axis) for x in values[1:]]
    return [walk.cast(found, values[0].dtype), *rest]


def _dot(walk: Walk, equation: Any, a: Value, b: Value) -> Value:
    """A product of matrices: dimensions become (batch, rows, terms) and (batch, terms, columns)."""
    shape, dtype = kind_of(equation)
    (terms_a, terms_b), (batch_a, batch_b) = parameters(equation).dimension_numbers
    narrow = a.dtype.itemsize == b.dtype.itemsize == 1 and not jnp.issubdtype(a.dtype, jnp.floating)
    if not narrow:
        wide = wide_dtype(dtype)
        a, b = walk.cast(a, wide), walk.cast(b, wide)
    rows = [axis for axis in range(a.ndim) if axis not in (*terms_a, *batch_a)]
    columns = [axis for axis in range(b.ndim) if axis not in (*terms_b, *batch_b)]
    batch = [a.shape[axis] for axis in batch_a]
    free_a, free_b = [a.shape[axis] for axis in rows], [b.shape[axis] for axis in columns]
    count = int(np.prod([a.shape[axis] for axis in terms_a], dtype=int))
    a = walk.transpose(a, (*batch_a, *rows, *terms_a))
    b = walk.transpose(b, (*batch_b, *terms_b, *columns))
    plain = not batch and a.ndim >= 1 and len(terms_a) == 1 and len(columns) == 1
    if not plain:
        a = walk.reshape(a, (*batch, int(np.prod(free_a, dtype=int)), count))
        b = walk.reshape(b, (*batch, count, int(np.prod(free_b, dtype=int))))
    made_shape = (*a.shape[:-1], b.shape[-1])
    if narrow:
        made = walk.emit("MatMulInteger", a, b, shape=made_shape, dtype=np.int32)
    else:
        made = walk.emit("MatMul", a, b, shape=made_shape, dtype=a.dtype)
    return walk.cast(walk.reshape(made, shape), dtype)


def _passed(walk: Walk, equation: Any, *values: Value) -> list[Value]:
    return list(values)


def _refused(why: str, allowed: str) -> Callable[..., Value]:
    def translate(walk: Walk, equation: Any, *values: Value) -> Value:
        raise walk.error(why, allowed)

    return translate


_RANDOM = _refused("random numbers are not reproduced in ONNX", NO_RANDOM)
_PRODUCT = _refused("a product with an accumulator has no form in ONNX", "export it without `qjax.linalg`")
_OF_KEYS = "random_seed random_wrap random_unwrap random_fold_in random_split random_bits threefry2x32".split()
_unary = {
    "abs": "Abs", "ceil": "Ceil", "cos": "Cos", "exp": "Exp", "floor": "Floor", "log": "Log", "neg": "Neg",
    "sign": "Sign", "sin": "Sin", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh", "acos": "Acos", "asin": "Asin",
    "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh",
}  # fmt: skip
_compared = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"}

PRIMITIVES: dict[str, Callable[..., Any]] = {
    **{name: elementwise(op) for name, op in _unary.items()},
    **{name: elementwise(op, compare=True) for name, op in _compared.items()},
    "add": elementwise("Add"),
    "add_any": elementwise("Add"),
    "sub": elementwise("Sub"),
    "mul": elementwise("Mul"),
    "div": _divide,
    "rem": by_kind(elementwise("Mod", fmod=1), elementwise("Mod", fmod=1)),
    "pow": elementwise("Pow"),
    "max": by_kind(_greater, _greater_integers, elementwise("Or")),
    "min": by_kind(elementwise("Min"), elementwise("Min"), elementwise("And")),
    "and": by_kind(None, elementwise("BitwiseAnd"), elementwise("And")),
    "or": by_kind(None, elementwise("BitwiseOr"), elementwise("Or")),
    "xor": by_kind(None, elementwise("BitwiseXor"), elementwise("Xor")),
    "not": by_kind(None, elementwise("BitwiseNot"), elementwise("Not")),
    "ne": _not_equal,
    "shift_left": _shift("LEFT"),
    "shift_right_logical": _shift("RIGHT"),
    "integer_pow": composed(_power),
    "round": composed(_round),
    "clamp": composed(_clamp),
    "rsqrt": composed(_rsqrt),
    "logistic": composed(_logistic),
    "erf": composed(_erf),
    "erfc": composed(_erfc),
    "expm1": composed(_expm1),
    "log1p": composed(_log1p),
    "exp2": composed(_exp2),
    "square": composed(_square),
    "is_finite": _is_finite,
    "select_n": _select,
    "convert_element_type": _convert,
    "reduce_precision": _reduce_precision,
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "transpose": _transpose,
    "concatenate": _concatenate,
    "stack": _stack,
    "tile": _tile,
    "split": _split,
    "slice": _slice,
    "rev": _reverse,
    "pad": _pad,
    "iota": _iota,
    "reduce_sum": _reduced("ReduceSum"),
    "reduce_max": _reduced("ReduceMax"),
    "reduce_min": _reduced("ReduceMin"),
    "reduce_prod": _reduced("ReduceProd"),
    "reduce_and": _reduce_logical("ReduceMin"),
    "reduce_or": _reduce_logical("ReduceMax"),
    "argmax": _argument("ArgMax"),
    "argmin": _argument("ArgMin"),
    "cumsum": _cumulative,
    "sort": _sort,
    "top_k": _top_k,
    "dot_general": _dot,
    **dict.fromkeys(
        ("copy", "copy_p", "stop_gradient", "optimization_barrier", "name", "sharding_constraint", "device_put"),
        _passed,
    ),
    **dict.fromkeys(_OF_KEYS, _RANDOM),
    "qjax_product": _PRODUCT,
    **GATHERS,
    **IMAGES,
    **CONTROL,
}
