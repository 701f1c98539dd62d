"""Operators of ONNX on single elements, and reductions.

Sums, products, quotients and square roots are rounded once, as IEEE 754 has it. Other functions of float32 numbers are
evaluated in float64 and rounded once, so are sums. float16 and bfloat16 are computed in float32 or float64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import inf, prod
from typing import Any

from qcore.exchange.nodes import Node, checked_axis, known
from qcore.exchange.values import FLOATS, Value, bits_of, cast, is_integer, wrapped
from qcore.reproducible.elementary import IN_FLOAT64
from qcore.reproducible.moves import greatest_place

Function = Callable[..., Any]


def wide(xp: Any, x: Value) -> Any:
    """A value's numbers as float64."""
    return xp.astype(x.array, "float64")


def narrow(xp: Any, x: Any, type: str) -> Value:
    """Float64 numbers in a type."""
    return Value(xp.astype(x, type), type)


def same_type(*values: Value) -> str:
    """The type that all values have."""
    if len(types := {value.type for value in values}) != 1:
        raise ValueError(f"inputs have types {', '.join(sorted(types))}; allowed is one type")
    return values[0].type


def floats_of(xp: Any, *values: Value) -> list[Any]:
    """Arrays in float32, or in float64 where they are."""
    if (type := same_type(*values)) not in FLOATS:
        raise ValueError(f"an input has type {type}; allowed are {', '.join(FLOATS)}")
    return [value.array if type == "float64" else xp.astype(value.array, "float32") for value in values]


def _two(of_floats: Function, of_integers: Function) -> Function:
    """An operator of two tensors that broadcast, rounded once."""

    def run(xp: Any, node: Node, a: Value, b: Value) -> Value:
        type = same_type(a, b)
        if is_integer(type):
            return Value(wrapped(xp, of_integers(xp, a.array, b.array), type), type)
        return Value(xp.astype(of_floats(xp, *floats_of(xp, a, b)), type), type)

    return run


def _quotient(xp: Any, a: Any, b: Any) -> Any:
    """Integer division toward zero; a division by zero is 0."""
    divisor = xp.where(b == 0, xp.full_like(b, 1, xp.dtype(b)), b)
    found = abs(a) // abs(divisor)
    found = xp.where((a < 0) != (divisor < 0), -found, found)
    return xp.where(b == 0, xp.full_like(found, 0, xp.dtype(found)), found)


def _greater(xp: Any, a: Any, b: Any) -> Any:
    return xp.where((a >= b) | (a != a), a, b)


def _lesser(xp: Any, a: Any, b: Any) -> Any:
    return xp.where((a <= b) | (a != a), a, b)


def _several(combine: Function, mean: bool = False) -> Function:
    """An operator of one or more tensors that broadcast."""

    def run(xp: Any, node: Node, *values: Value) -> Value:
        type = same_type(*values)
        if is_integer(type):
            return Value(reduce(lambda a, b: combine(xp, a, b), [value.array for value in values]), type)
        found = reduce(lambda a, b: combine(xp, a, b), floats_of(xp, *values))
        return Value(xp.astype(xp.divide(found, float(len(values))) if mean else found, type), type)

    return run


def _compared(compare: Function) -> Function:
    def run(xp: Any, node: Node, a: Value, b: Value) -> Value:
        same_type(a, b)
        return Value(compare(a.array, b.array), "bool")

    return run


def _logical(combine: Function) -> Function:
    def run(xp: Any, node: Node, *values: Value) -> Value:
        if (type := same_type(*values)) != "bool":
            raise ValueError(f"an input has type {type}; allowed is bool")
        return Value(combine(*(value.array for value in values)), type)

    return run


def _bitwise(combine: Function) -> Function:
    def run(xp: Any, node: Node, *values: Value) -> Value:
        if not is_integer(type := same_type(*values)):
            raise ValueError(f"an input has type {type}; allowed are integers")
        return Value(wrapped(xp, combine(*(value.array for value in values)), type), type)

    return run


def _one(function: Function) -> Function:
    """A function of float64 numbers, rounded once; options are read from the node."""

    def run(xp: Any, node: Node, x: Value) -> Value:
        floats_of(xp, x)
        return narrow(xp, function(xp, wide(xp, x), node), x.type)

    return run


def _by_name(name: str) -> Function:
    return _one(lambda xp, x, node: IN_FLOAT64[name](xp, x))


def _kept(function: Function) -> Function:
    """A function that rounds nothing, for integers and floats of any width."""

    def run(xp: Any, node: Node, x: Value) -> Value:
        if is_integer(x.type):
            return Value(wrapped(xp, function(xp, x.array), x.type), x.type)
        return Value(xp.astype(function(xp, *floats_of(xp, x)), x.type), x.type)

    return run


def _steps(function: Function) -> Function:
    """A function that makes floats whole, and keeps the sign of a zero."""

    def run(xp: Any, node: Node, x: Value) -> Value:
        (array,) = floats_of(xp, x)
        return Value(xp.astype(function(xp, array), x.type), x.type)

    return run


def whole(xp: Any, x: Any) -> Any:
    """The nearest whole number, ties to even, with x's sign also for zeros, which `xp.rint` may lack."""
    found = xp.rint(x)
    return xp.where(found == 0, x * 0.0, found)


def _sign(xp: Any, x: Any) -> Any:
    one = xp.full_like(x, 1, xp.dtype(x))
    return xp.where(x > 0, one, xp.where(x < 0, -one, x))


def _elu(xp: Any, x: Any, alpha: float, gamma: float = 1.0) -> Any:
    return xp.where(
        x > 0, x * gamma, IN_FLOAT64["expm1"](xp, xp.minimum(x, xp.full_like(x, 0, "float64"))) * alpha * gamma
    )


def _celu(xp: Any, x: Any, alpha: float) -> Any:
    return xp.where(x > 0, x, IN_FLOAT64["expm1"](xp, xp.minimum(x, xp.full_like(x, 0, "float64")) / alpha) * alpha)


def _hard_sigmoid(xp: Any, x: Any, alpha: float, beta: float) -> Any:
    return xp.clip(x * alpha + beta, 0.0, 1.0)


def _gelu(xp: Any, x: Any, node: Node) -> Any:
    kind = node.text("approximate", "none", ("none", "tanh"))
    return IN_FLOAT64["gelu" if kind == "none" else "gelu_tanh"](xp, x)


def clip(xp: Any, node: Node, x: Value, low: Value | None = None, high: Value | None = None) -> Value:
    """Clip; the bounds are attributes before version 11."""
    array = x.array
    for bound, name, choose in ((low, "min", _greater), (high, "max", _lesser)):
        if bound is not None:
            same_type(x, bound)
            array = choose(xp, array, bound.array)
        elif name in node.attributes:
            array = choose(xp, array, xp.full_like(array, node.attributes[name], xp.dtype(array)))
    return Value(array, x.type)


def where(xp: Any, node: Node, condition: Value, a: Value, b: Value) -> Value:
    return Value(xp.where(condition.array, a.array, b.array), same_type(a, b))


def prelu(xp: Any, node: Node, x: Value, slope: Value) -> Value:
    a, b = floats_of(xp, x, slope)
    return Value(xp.astype(xp.where(a < 0, xp.rounded(a * b), a), x.type), x.type)


def mod(xp: Any, node: Node, a: Value, b: Value) -> Value:
    """Mod: the sign of the divisor for integers, of the dividend with fmod=1."""
    type = same_type(a, b)
    x, y = (wide(xp, a), wide(xp, b)) if type in FLOATS else (a.array, b.array)
    if type in FLOATS or node.get("fmod", 0):
        found = x - y * (xp.trunc(xp.divide(x, y)) if type in FLOATS else _quotient(xp, x, y))
        return Value(xp.astype(found, xp.dtype(a.array)), type)
    return Value(x - y * (x // xp.where(y == 0, xp.full_like(y, 1, xp.dtype(y)), y)), type)


def power(xp: Any, node: Node, a: Value, b: Value) -> Value:
    """Pow of floats, evaluated in float64 for squares and cubes, else by the law of `qcore.reproducible`."""
    exponent = b.host
    if exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) in (1.0, 2.0, 3.0):
        times = int(exponent.reshape(-1)[0])
        if is_integer(a.type):
            return Value(wrapped(xp, reduce(lambda x, y: x * y, [a.array] * times), a.type), a.type)
        return narrow(xp, reduce(lambda x, y: xp.rounded(x * y), [wide(xp, a)] * times), a.type)
    if a.type != "float32":
        raise ValueError(f"an input has type {a.type}; allowed is float32, or the exponents 1, 2 and 3")
    return Value(xp.power(a.array, xp.astype(b.array, "float32")), a.type)


def is_inf(xp: Any, node: Node, x: Value) -> Value:
    (array,) = floats_of(xp, x)
    found = (array == inf) if node.get("detect_positive", 1) else array != array
    if node.get("detect_negative", 1):
        found = found | (array == -inf)
    return Value(found & (array == array), "bool")


def bit_shift(xp: Any, node: Node, x: Value, by: Value) -> Value:
    type, left = same_type(x, by), node.text("direction", "", ("LEFT", "RIGHT")) == "LEFT"
    bits = bits_of(type)
    shift = xp.clip(by.array, 0, bits - 1)
    found = x.array << shift if left else x.array >> shift
    found = xp.where(by.array < bits, found, xp.full_like(found, 0, xp.dtype(found)))
    return Value(wrapped(xp, found, type), type)


# Reductions. Sums of integers are exact modulo 2^bits, those of floats are in float64 and rounded once.


def reduced(node: Node, x: Value, axes: Value | None, default: Any = None) -> tuple[int, ...]:
    """The axes of a reduction."""
    given = node.ints("axes", axes, default)
    if not given:
        return () if node.get("noop_with_empty_axes", 0) else tuple(range(x.ndim))
    return tuple(sorted({checked_axis(axis, x.ndim) for axis in given}))


def _without(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    """The result of a reduction, whose axes have length 1."""
    return x if keep else x.reshape(tuple(size for axis, size in enumerate(x.shape) if axis not in axes))


def total(x: Any, axes: tuple[int, ...]) -> Any:
    """The sums along axes, which stay."""
    return x.sum(axes, keepdims=True) if axes else x


def _reduction(before: Function, after: Function | None = None) -> Function:
    """The sum of before(x), and after(xp, sum, count) of it."""

    def run(xp: Any, node: Node, x: Value, axes: Value | None = None) -> Value:
        along = reduced(node, x, axes)
        count = prod(x.shape[axis] for axis in along)
        if is_integer(x.type):
            found = total(before(xp, xp.astype(x.array, "int64")), along)
            found = found if after is None else after(xp, xp.astype(found, "float64"), count)
            found = xp.astype(xp.trunc(found), "int64") if after is not None else found
            held = cast(xp, Value(found, "int64"), x.type).array
        else:
            found = total(before(xp, wide(xp, x)), along)
            held = xp.astype(found if after is None else after(xp, found, count), x.type)
        return Value(_without(held, along, bool(node.get("keepdims", 1))), x.type)

    return run


def _extreme(sign: int) -> Function:
    def run(xp: Any, node: Node, x: Value, axes: Value | None = None) -> Value:
        along = reduced(node, x, axes)
        if any(x.shape[axis] == 0 for axis in along):
            raise ValueError(f"the extreme of no numbers: shape {x.shape}, axes {along}; allowed are axes with numbers")
        array = xp.astype(x.array, "float32") if x.type in ("float16", "bfloat16", "bool") else x.array
        if is_integer(x.type):  # the complement, as the least integer has no negative
            found = xp.greatest(array, along) if sign > 0 else ~xp.greatest(~array, along)
        else:
            found = sign * xp.greatest(sign * array, along)
        if x.type == "bool":
            return Value(_without(found, along, bool(node.get("keepdims", 1))) != 0, x.type)
        return Value(xp.astype(_without(found, along, bool(node.get("keepdims", 1))), xp.dtype(x.array)), x.type)

    return run


def product_of(xp: Any, node: Node, x: Value, axes: Value | None = None) -> Value:
    along, array = reduced(node, x, axes), wide(xp, x) if x.type in FLOATS else xp.astype(x.array, "int64")
    for axis in along:
        before = (slice(None),) * axis
        parts = [array[(*before, slice(i, i + 1))] for i in range(array.shape[axis])]
        one = xp.full_like(array[(*before, slice(0, 1))], 1, xp.dtype(array))
        array = reduce(lambda a, b: a * b, parts, one)
    found = narrow(xp, array, x.type) if x.type in FLOATS else cast(xp, Value(array, "int64"), x.type)
    return found._replace(array=_without(found.array, along, bool(node.get("keepdims", 1))))


def _arg(sign: int) -> Function:
    def run(xp: Any, node: Node, x: Value) -> Value:
        axis = node.axis(x.ndim, 0)
        if node.get("select_last_index", 0):
            raise ValueError("select_last_index=1; allowed is 0")
        array = xp.astype(x.array, "float64")
        found = xp.astype(greatest_place(xp, sign * array, axis), "int64")
        return Value(_without(found, (axis,), bool(node.get("keepdims", 1))), "int64")

    return run


def _softmax(log: bool) -> Function:
    def run(xp: Any, node: Node, x: Value) -> Value:
        floats_of(xp, x)
        axis = node.axis(x.ndim, -1 if node.version >= 13 else 1)
        shape = x.shape
        array = wide(xp, x)
        if node.version < 13:  # a matrix
            array, axis = array.reshape((prod(shape[:axis]), prod(shape[axis:]))), 1
        less = array - xp.greatest(array, (axis,))
        powers = xp.exp(less)
        sums = total(powers, (axis,))
        found = less - xp.log(sums) if log else xp.divide(powers, sums)
        return narrow(xp, found.reshape(shape), x.type)

    return run


def cum_sum(xp: Any, node: Node, x: Value, axis: Value) -> Value:
    place = checked_axis(int(known("axis", axis).reshape(-1)[0]), x.ndim)
    type = "float64" if x.type in FLOATS else "int64"
    array, before = xp.astype(x.array, type), (slice(None),) * place
    parts = [array[(*before, slice(i, i + 1))] for i in range(x.shape[place])]
    parts = parts[::-1] if node.get("reverse", 0) else parts
    sums, running = [], None
    for part in parts:
        following = part if running is None else running + part
        if node.get("exclusive", 0):
            sums.append(xp.full_like(part, 0, type) if running is None else running)
        else:
            sums.append(following)
        running = following
    sums = sums[::-1] if node.get("reverse", 0) else sums
    if not sums:
        return x
    found = xp.concatenate(sums, place)
    return narrow(xp, found, x.type) if x.type in FLOATS else cast(xp, Value(found, "int64"), x.type)


OPERATORS: dict[str, Function] = {
    "Abs": _kept(lambda xp, x: abs(x)),
    "Add": _two(lambda xp, a, b: a + b, lambda xp, a, b: a + b),
    "And": _logical(lambda a, b: a & b),
    "ArgMax": _arg(1),
    "ArgMin": _arg(-1),
    "BitShift": bit_shift,
    "BitwiseAnd": _bitwise(lambda a, b: a & b),
    "BitwiseNot": _bitwise(lambda a: ~a),
    "BitwiseOr": _bitwise(lambda a, b: a | b),
    "BitwiseXor": _bitwise(lambda a, b: a ^ b),
    "Ceil": _steps(lambda xp, x: -xp.floor(-x)),
    "Celu": _one(lambda xp, x, node: _celu(xp, x, node.get("alpha", 1.0))),
    "Clip": clip,
    "Cos": _by_name("cos"),
    "CumSum": cum_sum,
    "Div": _two(lambda xp, a, b: xp.divide(a, b), _quotient),
    "Elu": _one(lambda xp, x, node: _elu(xp, x, node.get("alpha", 1.0))),
    "Equal": _compared(lambda a, b: a == b),
    "Erf": _by_name("erf"),
    "Exp": _by_name("exp"),
    "Floor": _steps(lambda xp, x: xp.floor(x)),
    "Gelu": _one(_gelu),
    "Greater": _compared(lambda a, b: a > b),
    "GreaterOrEqual": _compared(lambda a, b: a >= b),
    "HardSigmoid": _one(lambda xp, x, node: _hard_sigmoid(xp, x, node.get("alpha", 0.2), node.get("beta", 0.5))),
    "HardSwish": _one(lambda xp, x, node: x * _hard_sigmoid(xp, x, 1 / 6, 0.5)),
    "IsInf": is_inf,
    "IsNaN": lambda xp, node, x: Value(x.array != x.array, "bool"),
    "LeakyRelu": _one(lambda xp, x, node: xp.where(x < 0, x * node.get("alpha", 0.01), x)),
    "Less": _compared(lambda a, b: a < b),
    "LessOrEqual": _compared(lambda a, b: a <= b),
    "Log": _by_name("log"),
    "LogSoftmax": _softmax(log=True),
    "Max": _several(_greater),
    "Mean": _several(lambda xp, a, b: a + b, mean=True),
    "Min": _several(_lesser),
    "Mod": mod,
    "Mul": _two(lambda xp, a, b: xp.rounded(a * b), lambda xp, a, b: a * b),
    "Neg": _kept(lambda xp, x: -x),
    "Not": _logical(lambda a: ~a),
    "Or": _logical(lambda a, b: a | b),
    "PRelu": prelu,
    "Pow": power,
    "Reciprocal": _steps(lambda xp, x: xp.divide(xp.full_like(x, 1, xp.dtype(x)), x)),
    "ReduceL1": _reduction(lambda xp, x: abs(x)),
    "ReduceL2": _reduction(lambda xp, x: x * x, lambda xp, x, count: xp.sqrt(x)),
    "ReduceMax": _extreme(1),
    "ReduceMean": _reduction(lambda xp, x: x, lambda xp, x, count: xp.divide(x, float(count))),
    "ReduceMin": _extreme(-1),
    "ReduceProd": product_of,
    "ReduceSum": _reduction(lambda xp, x: x),
    "ReduceSumSquare": _reduction(lambda xp, x: x * x),
    "Relu": _kept(lambda xp, x: xp.where(x < 0, xp.full_like(x, 0, xp.dtype(x)), x)),
    "Round": _steps(whole),
    "Selu": _one(
        lambda xp, x, node: _elu(xp, x, node.get("alpha", 1.6732631921768188), node.get("gamma", 1.0507010221481323))
    ),
    "Sigmoid": _by_name("sigmoid"),
    "Sign": _kept(_sign),
    "Sin": _by_name("sin"),
    "Softmax": _softmax(log=False),
    "Softplus": _by_name("softplus"),
    "Softsign": _one(lambda xp, x, node: xp.divide(x, abs(x) + 1.0)),
    "Sqrt": _by_name("sqrt"),
    "Sub": _two(lambda xp, a, b: a - b, lambda xp, a, b: a - b),
    "Sum": _several(lambda xp, a, b: a + b),
    "Swish": _one(lambda xp, x, node: x * IN_FLOAT64["sigmoid"](xp, x * node.get("alpha", 1.0))),
    "Tanh": _by_name("tanh"),
    "ThresholdedRelu": _one(lambda xp, x, node: xp.where(x > node.get("alpha", 1.0), x, xp.full_like(x, 0, "float64"))),
    "Where": where,
    "Xor": _logical(lambda a, b: a ^ b),
}
