"""The law as a list of operations, from which C is written (`qcore.writer`): kernels of qtorch, and `emit-c`.

The law's own Python runs once, on `Value`s that record their operations, with `Trace` as its array namespace. The level
of a value is the number of times that it is computed: once, once a tensor, once a block, or for each element.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CONSTANT, TENSOR, BLOCK, ELEMENT = range(4)  # levels
C_TYPES = {
    **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float32": "float",
    "float64": "double",
    "float16": "_Float16",
    "bfloat16": "bfloat16",
}


class Value:
    """The result of an operation.

    Attributes:
        name: of this value alone.
        text: C for the operation, with `{}` for its parts, or for an argument; "" for a maximum, which needs a loop.
        dtype: a key of `C_TYPES`. Comparisons are integers with the width of their operands.
        level: CONSTANT, TENSOR, BLOCK or ELEMENT.
        operands: the values that the operation reads.
        parts: the operands and the numbers of the text; () for arguments.
        like: the dtype as which the numbers are written.
        label, function: the name that the law gives the value, and the function of the law that does; "" for none.
        pairs: C for the operation on pairs of lanes, with `{}` for operands, if vectors have no operation on single
            ones.
    """

    shape = (0, 0)  # a kernel sees every tensor as rows and columns
    ndim = 0  # and every parameter of the affine law as a number

    pairs = label = function = like = ""
    parts: tuple[Any, ...] = ()

    def __init__(self, trace: Trace, name: str, text: str, dtype: str, level: int, operands: tuple[Value, ...]) -> None:
        self.trace = trace
        self.name = name
        self.text = text
        self.dtype = dtype
        self.level = level
        self.operands = operands

    @property
    def width(self) -> int:
        """The bits of the variable."""
        return int(self.dtype.lstrip("bufinloat"))

    # fmt: off
    def __add__(self, other: Any) -> Value: return self.trace.binary("+", self, other)
    def __radd__(self, other: Any) -> Value: return self.trace.binary("+", other, self)
    def __sub__(self, other: Any) -> Value: return self.trace.binary("-", self, other)
    def __rsub__(self, other: Any) -> Value: return self.trace.binary("-", other, self)
    def __mul__(self, other: Any) -> Value: return self.trace.binary("*", self, other)
    def __rmul__(self, other: Any) -> Value: return self.trace.binary("*", other, self)
    def __lshift__(self, other: Any) -> Value: return self.trace.binary("<<", self, other)
    def __rlshift__(self, other: Any) -> Value: return self.trace.binary("<<", self.trace.hidden(other, self), self)
    def __rshift__(self, other: Any) -> Value: return self.trace.binary(">>", self, other)
    def __rrshift__(self, other: Any) -> Value: return self.trace.binary(">>", self.trace.hidden(other, self), self)
    def __and__(self, other: Any) -> Value: return self.trace.binary("&", self, other)
    def __rand__(self, other: Any) -> Value: return self.trace.binary("&", other, self)
    def __or__(self, other: Any) -> Value: return self.trace.binary("|", self, other)
    def __ror__(self, other: Any) -> Value: return self.trace.binary("|", other, self)
    def __xor__(self, other: Any) -> Value: return self.trace.binary("^", self, other)
    def __rxor__(self, other: Any) -> Value: return self.trace.binary("^", other, self)
    def __lt__(self, other: Any) -> Value: return self.trace.binary("<", self, other)
    def __le__(self, other: Any) -> Value: return self.trace.binary("<=", self, other)
    def __gt__(self, other: Any) -> Value: return self.trace.binary(">", self, other)
    def __ge__(self, other: Any) -> Value: return self.trace.binary(">=", self, other)
    def __eq__(self, other: Any) -> Value: return self.trace.binary("==", self, other)  # type: ignore[override]
    def __ne__(self, other: Any) -> Value: return self.trace.binary("!=", self, other)  # type: ignore[override]
    def __neg__(self) -> Value: return self.trace.note("-{}", self)
    def __invert__(self) -> Value: return self.trace.note("~{}", self)
    def __abs__(self) -> Value: return self.trace.note("{0} < 0 ? -{0} : {0}", self)
    # fmt: on

    def __hash__(self) -> int:
        return hash(self.name)


class FloatValue(Value):
    """A value of laws that divide floats, and take their magnitudes."""

    # fmt: off
    def __truediv__(self, other: Any) -> Value: return self.trace.binary("/", self, other)
    def __rtruediv__(self, other: Any) -> Value: return self.trace.binary("/", other, self)
    def __abs__(self) -> Value: return self.trace.note(f"__builtin_fabs{'f' if self.width == 32 else ''}({{}})", self)
    # fmt: on

    __hash__ = Value.__hash__


class Row:
    """A part of an array of integers that a kernel reads.

    Args:
        trace: the trace of its values.
        name: of the array in C.
        dtype: of its integers.
        start, length: its first integer there, and how many it has.
    """

    def __init__(self, trace: Trace, name: str, dtype: str, start: int, length: int) -> None:
        self.trace, self.name, self.dtype, self.start, self.length = trace, name, dtype, start, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> Value:
        return self.trace.value(f"{self.name}[{self.start + place}]", self.dtype, CONSTANT)


class Trace:
    """The values of a kernel, in an order in which they can be computed; equal operations are one value.

    It is the array namespace of the law, see `qcore.namespace`.

    Args:
        float16: the float with which lanes of 16 bits are converted, "float16" or "bfloat16"; else unused.

    Attributes:
        values: the values, by their operation.
        maxima: the maxima of blocks and of the tensor.
    """

    quotient_error = 0  # division is IEEE 754's, see `compiler`
    short = False
    value_type = Value

    def __init__(self, float16: str = "") -> None:
        self._float_of = {16: float16, 32: "float32", 64: "float64"}
        self.values: dict[tuple[Any, ...], Value] = {}
        self.maxima: list[Value] = []

    def value(
        self, text: str, dtype: str, level: int, operands: tuple[Value, ...] = (), parts: Any = (), like: str = ""
    ) -> Value:
        """The value of a text of C with `{}` for its parts; without operands it is an argument."""
        read = (part.name if isinstance(part, Value) else literal(part, like) for part in parts)
        key = text.format(*read) or operands[0].name, dtype, level
        if key not in self.values:
            found = self.value_type(self, f"v{len(self.values)}", text, dtype, level, operands)
            found.parts, found.like = parts, like
            self.values[key] = found
        return self.values[key]

    def named(self, function: str, /, **values: Any) -> None:
        """See `qcore.namespace.Names`: several values may share a name, and a value keeps its first one.

        Arguments have their names from who writes the function that they are passed to.
        """
        for name, given in values.items():
            for value in given if isinstance(given, (list, tuple)) else (given,):
                if isinstance(value, Value) and value.operands and not value.label:
                    value.label, value.function = name, function

    def note(self, pattern: str, *operands: Any, dtype: str = "", like: str = "") -> Value:
        """The value of an operation.

        Args:
            pattern: C, with `{}` for operands.
            operands: values, and numbers, which are written with the type of the first value, or of `like`.
            dtype: the type of the result, by default the type of the first value.
        """
        values = tuple(operand for operand in operands if isinstance(operand, Value))
        like = like or values[0].dtype
        return self.value(pattern, dtype or like, max(one.level for one in values), values, operands, like)

    def binary(self, sign: str, a: Any, b: Any) -> Value:
        like = a.dtype if isinstance(a, Value) else b.dtype
        compares = sign in ("<", "<=", ">", ">=", "==", "!=")
        found = self.note(f"{{}} {sign} {{}}", a, b, dtype=like.replace("float", "int") if compares else like)
        if sign in ("<<", ">>") and isinstance(b, Value) and b.level == ELEMENT:
            read = ("{}" if isinstance(one, Value) else f"{(one & 0xFFFF) * 0x10001}u" for one in (a, b))
            self.in_pairs(found, f"{'left' if sign == '<<' else 'right'}_pair({', '.join(read)})")
        return found

    def in_pairs(self, value: Value, pattern: str) -> Value:
        """The value of an operation that AVX2 has for lanes of 32 bits only, see `Value.pairs`."""
        if value.width == 16 and value.level == ELEMENT:
            value.pairs = pattern
        return value

    def hidden(self, number: int, like: Value) -> Any:
        """A number that is shifted, as a value where compilers make no vectors of shifts of constants."""
        return (
            self.value(f"hidden({literal(number, like.dtype)})", like.dtype, CONSTANT) if like.width == 64 else number
        )

    def where(self, condition: Value, a: Any, b: Any) -> Value:
        like = next((operand.dtype for operand in (a, b) if isinstance(operand, Value)), condition.dtype)
        return self.note("{} ? {} : {}", condition, a, b, like=like)

    def clip(self, x: Value, low: Any, high: Any) -> Value:
        x = x if low is None else self.note("{0} < {1} ? {1} : {0}", x, low)
        return x if high is None else self.note("{0} > {1} ? {1} : {0}", x, high)

    def amax(self, x: Value, axis: Iterable[int], keepdims: bool = True) -> Value:
        maximum = self.value("", x.dtype, TENSOR if len(tuple(axis)) == len(x.shape) else BLOCK, (x,))
        if all(maximum is not one for one in self.maxima):
            self.maxima.append(maximum)
        return maximum

    def take(self, row: Row, places: Value) -> Value:
        return self.note(f"{row.name}[{row.start} + {{}}]", places, dtype=row.dtype)

    def float32_bits(self, x: Value) -> Value:
        return self.note("bits32({})", x, dtype="int32")

    def float32_from(self, bits: Value) -> Value:
        return self.note("float32({})", bits, dtype="float32")

    def lanes(self, x: Value) -> Value:
        return self.note("bits64({})", x, dtype="int64")

    def floats(self, bits: Value) -> Value:
        return self.note("float64({})", bits, dtype="float64")

    def float64(self, x: Value) -> Value:
        return self.note("(double){}", x, dtype="float64")

    def trunc(self, x: Value) -> Value:
        return self.note(f"__builtin_trunc{'f' if x.width == 32 else ''}({{}})", x)

    def float_bits(self, lanes: Value) -> Value:
        floats = self._float_of[lanes.width]
        return self.in_pairs(self.note(f"{floats}_bits({{}})", lanes), f"{floats}_pair({{}})")

    def integers(self, bits: Value) -> Value:
        return self.note(f"({C_TYPES[bits.dtype]})float{bits.width}({{}})", bits)

    def product_bits(self, a: Any, b: Any) -> Value:
        return self._of_floats("*", a, b)

    def quotient_bits(self, a: Any, b: Any) -> Value:
        return self._of_floats("/", a, b)

    def _of_floats(self, sign: str, a: Any, b: Any) -> Value:
        """The bits of the result of an operation on two integers as floats."""
        width = (a if isinstance(a, Value) else b).width
        return self.note(f"bits{width}(to_float{width}({{}}) {sign} to_float{width}({{}}))", a, b)

    def rotate_left(self, x: Value, distance: int) -> Value:
        """See `qcore.random.threefry.rotate_left`: compilers recognize the rotation of unsigned integers."""
        return self.note(f"rotate({{}}, {distance})", x)


# Operations with a number whose result is the other operand, and operations whose result is the number.
_NEUTRAL = {("+", 0), ("|", 0), ("^", 0), ("&", -1), ("*", 1), ("-", 0), ("<<", 0), (">>", 0)}
_DECIDED = {("&", 0), ("*", 0), ("|", -1)}
_BOTH_WAYS = "+|^&*"


def decided(sign: str, a: Any, b: Any) -> Any:
    """The operand that an operation returns if a constant operand decides that, as in x + 0 or x & 0; else None."""
    if isinstance(b, int) and (sign, b) in _NEUTRAL | _DECIDED:
        return a if (sign, b) in _NEUTRAL else b
    if isinstance(a, int) and sign in _BOTH_WAYS and (sign, a) in _NEUTRAL | _DECIDED:
        return b if (sign, a) in _NEUTRAL else a
    return a if isinstance(a, int) and a == 0 and sign in ("<<", ">>") else None


def literal(number: Any, dtype: str) -> str:
    """A number in C, which has no literals for the least integers."""
    if dtype.startswith("float"):
        text = float(number).hex().replace("inf", "__builtin_inf()").replace("nan", '__builtin_nan("")')
        return f"({C_TYPES[dtype]})({text})"
    suffix = "LL" if dtype == "int64" else ""
    return f"({number + 1}{suffix} - 1)" if number in (-(1 << 31), -(1 << 63)) else f"{number}{suffix}"


def needed(targets: Iterable[Value], level: int) -> list[Value]:
    """The values that a pass of a level computes for its targets, each after its operands."""
    found: dict[str, Value] = {}

    def visit(value: Value) -> None:
        if value.name not in found:
            found[value.name] = value
            if value.level in (CONSTANT, level) and value.text:
                for operand in value.operands:
                    visit(operand)

    for target in targets:
        visit(target)
    return sorted(found.values(), key=lambda value: int(value.name[1:]))
