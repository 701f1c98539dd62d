"""Kernels of the affine law: quantize, dequantize, requantize, fake quantization, extremes and observers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

from qcore.affine import Extremes, QParams, law
from qcore.affine.functional.elementwise import BINARY
from qcore.affine.observers import averaged, widened
from qcore.affine.parameters import covering
from qcore.trace import BLOCK, C_TYPES, CONSTANT, ELEMENT, Trace, Value, literal
from qtorch._kernels.source import Argument, Kernel, Result
from qtorch._kernels.store import Function, load


class AffineTrace(Trace):
    """The array namespace of the affine law for values of a kernel, see `qcore.affine.Names`."""

    def rint(self, x: Value) -> Value:
        return self.note(f"__builtin_rint{'f' if x.dtype == 'float32' else ''}({{}})", x)

    def divide(self, a: Value, b: Value) -> Value:
        return self.binary("/", a, b)

    def rounded(self, product: Value) -> Value:
        return product  # the compiler's options forbid contractions

    def dtype(self, x: Value) -> str:
        return x.dtype

    def full_like(self, x: Value, number: Any, dtype: str) -> Value:
        if isinstance(number, Value):  # computed as often as x, so that it can be a result
            return self.note(f"((void){{}}, ({C_TYPES[dtype]}){{}})", x, number, dtype=dtype)
        return self.value(literal(number, dtype), dtype, CONSTANT)

    def minimum(self, a: Value, b: Value) -> Value:
        return self.note("{0} <= {1} || {0} != {0} ? {0} : {1}", a, b)  # NaN of either operand is the result

    def maximum(self, a: Value, b: Value) -> Value:
        nan_passes = " || {0} != {0}" if a.dtype.startswith("float") else ""
        return self.note(f"{{0}} >= {{1}}{nan_passes} ? {{0}} : {{1}}", a, b)

    def exp(self, x: Value) -> Value:
        return self.note("exponential({})", x)

    def tanh(self, x: Value) -> Value:
        return self.note("hyperbolic_tangent({})", x)

    def arithmetic(self) -> AbstractContextManager[None]:
        return nullcontext()

    def unsigned(self, x: Value) -> Value:
        return x + 0.0

    def astype(self, x: Value, dtype: str) -> Value:
        if x.dtype == dtype:
            return x
        if x.dtype == "bfloat16":
            x = self.note("float32((int32_t){} << 16)", x, dtype="float32")
        if dtype == "bfloat16":
            return self.note("to_bfloat16({})", self.astype(x, "float32"), dtype=dtype)
        return self.note(f"({C_TYPES[dtype]}){{}}", x, dtype=dtype)


class _Bounds(NamedTuple):
    low: Any
    high: Any


@cache
def fake_quantize(dtype: str, layout: str) -> Function | None:
    """The kernel of `qcore.affine.fake_quantize` for x of a dtype; blocks are channels with parameters of their own.

    A call gives the sizes, then the addresses of x, scale, zero point, the ends of the range, y and the mask.
    """
    trace, x, (scale, zero_point), arguments = _of_channels(dtype, layout)
    y, mask = law.fake_quantize(trace, x, scale, zero_point, None, _bounds(trace, arguments))  # type: ignore[arg-type]
    return _load(trace, arguments, [Result("y", y, dtype), Result("mask", mask, "uint8")], layout)


@cache
def quantize(dtype: str, storage: str, layout: str) -> Function | None:
    """The kernel of `qcore.affine.quantize_affine` for x of a dtype and integers of another.

    A call gives the sizes, then the addresses of x, scale, zero point, the ends of the range and the integers.
    """
    trace, x, (scale, zero_point), arguments = _of_channels(dtype, layout)
    q = law.quantize(trace, x, scale, zero_point, None, _bounds(trace, arguments))  # type: ignore[arg-type]
    return _load(trace, arguments, [Result("q", q, storage)], layout)


@cache
def dequantize(storage: str, layout: str) -> Function | None:
    """The kernel of `qcore.affine.dequantize` for integers of a dtype, to float32.

    A call gives the sizes, then the addresses of the integers, scale, zero point and the numbers.
    """
    trace, q, (scale, zero_point), arguments = _of_channels(storage, layout, lane="int32")
    numbers = law.dequantize(trace, q, scale, zero_point, None, "float32")
    return _load(trace, arguments, [Result("numbers", numbers, "float32")], layout)


@cache
def requantize(dtype: str, storage: str, biased: bool, layout: str) -> Function | None:
    """The kernel of `qcore.affine.requantize` for int32 or float32 sums, weight scales and maybe biases of channels.

    A call gives the sizes, then the addresses of the sums, the weight's scales, the biases if there are any, the
    input's scale, the result's scale and zero point, the ends of the range and the integers.
    """
    trace, arguments, q = rounding_of_sums(dtype, biased, layout)
    return _load(trace, arguments, [Result("q", q, storage)], layout)


def rounding_of_sums(dtype: str, biased: bool, layout: str) -> tuple[Trace, list[Argument], Value]:
    """The trace of `requantize`, the arrays that it reads, and its integers."""
    parameters = {"weight_scale": "float32"} | ({"bias": "float32"} if biased else {})
    trace, sums, (weight_scale, *bias), arguments = _of_channels(dtype, layout, parameters)
    whole = {"input_scale": "float32", "scale": "float32", "zero_point": "int32"}
    arguments += [Argument(name, kind) for name, kind in whole.items()]
    input_scale, scale, zero_point = (trace.value(f"{name}[0]", kind, CONSTANT) for name, kind in whole.items())
    form: Any = _bounds(trace, arguments)
    parts = input_scale, weight_scale, bias[0] if biased else None, scale, zero_point
    return trace, arguments, law.requantize(trace, sums, *parts, 0, form)


@cache
def binary(name: str, storages: tuple[str, str, str], relu: bool) -> Function | None:
    """The kernel of a law of `BINARY`, of integers of two dtypes, to integers of a third.

    A call gives the number of elements, then the addresses of a, of b, of the scale and the zero point of a, of b and
    of the result, of the ends of the range, and of the integers.
    """
    trace = AffineTrace()
    arguments = [Argument(operand, storage, ELEMENT) for operand, storage in zip("ab", storages[:2], strict=True)]
    parameters = []
    for prefix in ("a_", "b_", ""):
        own = [Argument(prefix + field, kind) for field, kind in _PARAMETERS.items()]
        scale, zero_point = (trace.value(f"{one.name}[0]", one.dtype, CONSTANT) for one in own)
        parameters.append(QParams(scale, zero_point))
        arguments += own
    values = [trace.value(f"{operand}[j]", "int32", ELEMENT) for operand in "ab"]
    a, b = (_Operand(trace, value, qparams) for value, qparams in zip(values, parameters, strict=False))
    q = BINARY[name](a, b, parameters[2], _bounds(trace, arguments), relu)  # type: ignore[arg-type]
    return _load(trace, arguments, [Result("q", q, storages[2])], "flat")


class _Operand(NamedTuple):
    """A quantized array in a kernel, with the attributes that a law reads."""

    names: AffineTrace
    values: Value
    qparams: QParams


_PARAMETERS = {"scale": "float32", "zero_point": "int32"}


def _of_channels(
    dtype: str, layout: str, parameters: dict[str, str] = _PARAMETERS, lane: str = ""
) -> tuple[AffineTrace, Value, list[Value], list[Argument]]:
    """A trace with elements, and with parameters of the whole tensor ("flat") or of each block."""
    trace, level, place = AffineTrace(), *((CONSTANT, "0") if layout == "flat" else (BLOCK, "j"))
    arguments = [Argument("x", dtype, ELEMENT), *(Argument(name, kind, level) for name, kind in parameters.items())]
    found = [trace.value(f"{name}[{place}]", kind, level) for name, kind in parameters.items()]
    return trace, trace.value("x[j]", lane or dtype, ELEMENT), found, arguments


def _bounds(trace: Trace, arguments: list[Argument]) -> _Bounds:
    arguments.append(Argument("ends", "float32"))
    return _Bounds(*(trace.value(f"ends[{index}]", "float32", CONSTANT) for index in (0, 1)))


def _load(trace: Trace, arguments: list[Argument], results: list[Result], layout: str) -> Function | None:
    return load(Kernel(trace, arguments, results, 1 if layout == "flat" else 4, layout == "columns").source())


@cache
def straight_through(width: int) -> Function | None:
    """The kernel of `law.straight_through` for gradients of a width in bits.

    A call gives the number of elements, then the addresses of the gradient, the mask and the result.
    """
    trace, dtype = Trace(), f"int{width}"
    gradient, mask = trace.value("gradient[j]", dtype, ELEMENT), trace.value("mask[j]", "uint8", ELEMENT)
    result = trace.where(mask != 0, gradient, 0)
    arguments = [Argument("gradient", dtype, ELEMENT), Argument("mask", "uint8", ELEMENT)]
    return load(Kernel(trace, arguments, [Result("result", result, dtype)]).source())


@cache
def extremes() -> Function | None:
    """The kernel of the least and the greatest element, of float32.

    A call gives the rows and columns of x and of the one block, then the addresses of x and of the two. Floats are
    compared as integers in the same order, in which NaN are beyond the infinities on either side.
    """
    trace = Trace()
    ends = _extremes(trace, trace.value("x[j]", "int32", ELEMENT), (0, 1))
    results = [Result(name, end, "int32") for name, end in zip(("low", "high"), ends, strict=True)]
    return load(Kernel(trace, [Argument("x", "int32", ELEMENT)], results, 4).source())


class _Settings(NamedTuple):
    """The settings of a rule that `observe` reads, in memory order; the names are attributes of `AffineInteger`."""

    low: Any
    high: Any
    qmin: Any
    middle: Any
    steps: Any
    eps: Any
    share: Any


@cache
def observe(averages: bool, scheme: str, layout: str) -> Function | None:
    """The kernel that adds x, of float32, to extremes, chooses parameters by them and then fake-quantizes x.

    A call gives the sizes, then the addresses of x, the least and the greatest element so far, the settings in float32
    (see `_Settings`: the ends of the range, qmin, the middle, qmax - qmin, the smallest scale, and the share of the
    newest array), and then those of y, the mask, the next extremes, which may be where the old ones are, scale and zero
    point.
    """
    trace, flat = AffineTrace(), layout == "flat"
    level, place, axes = (CONSTANT, "0", (0, 1)) if flat else (BLOCK, "j", (0,))
    names = "min_val", "max_val"
    arguments = [Argument("x", "int32", ELEMENT), *(Argument(name, "float32", level) for name in names)]
    state = Extremes(*(trace.value(f"{name}[{place}]", "float32", level) for name in names))
    fields = range(len(_Settings._fields))
    settings = _Settings(*(trace.value(f"settings[{index}]", "float32", CONSTANT) for index in fields))
    bits = trace.value("x[j]", "int32", ELEMENT)
    low, high = (trace.unsigned(trace.float32_from(end)) for end in _extremes(trace, bits, axes))
    state = averaged(trace, state, low, high, settings.share) if averages else widened(trace, state, low, high)
    scale, zero_point = covering(trace, *state, settings, scheme, settings.eps)
    y, mask = law.fake_quantize(trace, trace.float32_from(bits), scale, zero_point, None, settings)  # type: ignore[arg-type]
    results = [Result("y", y, "float32"), Result("mask", mask, "uint8")]
    results += [Result(f"next_{name}", value, "float32") for name, value in zip(names, state, strict=True)]
    results += [Result("scale", scale, "float32"), Result("zero_point", zero_point, "int32")]
    return _load(trace, [*arguments, Argument("settings", "float32")], results, layout)


def _extremes(trace: Trace, bits: Value, axes: tuple[int, ...]) -> tuple[Value, ...]:
    """The bits of the least and the greatest float32 number along axes; the bits of NaN if there is a NaN."""
    rank = _rank(bits)
    return in_order(trace, ~trace.amax(~rank, axes), trace.amax(rank, axes))


def in_order(trace: Trace, low: Value, high: Value) -> tuple[Value, ...]:
    """The bits of the numbers with the least and the greatest rank; the bits of NaN if there is a NaN."""
    nan = (low < -0x7F800001) | (high > 0x7F800000)
    return tuple(trace.where(nan, 0x7FC00000, _rank(end)) for end in (low, high))


def _rank(bits: Value) -> Value:
    """Integers in the order of the float32 numbers with these bits; applied twice, the bits again."""
    # Floats are sign and magnitude: negative ones ascend with their numbers once all bits but the sign are flipped.
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
