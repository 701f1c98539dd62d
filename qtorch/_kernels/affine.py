"""The kernels of the affine law: fake quantization, its gradient, and the extremes of a tensor."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from qcore.affine import law
from qtorch._kernels.source import Argument, Kernel, Result
from qtorch._kernels.store import Function, load
from qtorch._kernels.trace import BLOCK, C_TYPES, CONSTANT, ELEMENT, Trace, Value, literal


class AffineTrace(Trace):
    """The names that the affine law uses of an array namespace, see `qcore.affine.Names`, for values of a kernel."""

    def rint(self, x: Value) -> Value:
        return self.note(f"__builtin_rint{'f' if x.dtype == 'float32' else ''}({{}})", x)

    def divide(self, a: Value, b: Value) -> Value:
        return self.binary("/", a, b)

    def rounded(self, product: Value) -> Value:
        return product  # which the compiler is told not to contract

    def dtype(self, x: Value) -> str:
        return x.dtype

    def full_like(self, x: Value, number: float, dtype: str) -> Value:
        return self.value(literal(number, dtype), dtype, CONSTANT)

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
    trace, level = AffineTrace(), CONSTANT if layout == "flat" else BLOCK
    place = "0" if layout == "flat" else "j"
    arguments = [
        Argument("x", dtype, ELEMENT),
        Argument("scale", "float32", level),
        Argument("zero_point", "int32", level),
        Argument("ends", "float32"),
    ]
    x = trace.value("x[j]", dtype, ELEMENT)
    scale = trace.value(f"scale[{place}]", "float32", level)
    zero_point = trace.value(f"zero_point[{place}]", "int32", level)
    bounds = _Bounds(*(trace.value(f"ends[{index}]", "float32", CONSTANT) for index in (0, 1)))
    y, mask = law.fake_quantize(trace, x, scale, zero_point, None, bounds)  # type: ignore[arg-type]
    results = [Result("y", y, dtype), Result("mask", mask, "uint8")]
    return load(Kernel(trace, arguments, results, 1 if layout == "flat" else 4, layout == "columns").source())


@cache
def straight_through(width: int) -> Function | None:
    """The kernel of `law.straight_through` for gradients of so many bits.

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
    rank = _in_order(trace.value("x[j]", "int32", ELEMENT))
    low, high = ~trace.amax(~rank, (0, 1)), trace.amax(rank, (0, 1))
    nan = (low < -0x7F800001) | (high > 0x7F800000)
    ends = [trace.where(nan, 0x7FC00000, _in_order(end)) for end in (low, high)]
    results = [Result(name, end, "int32") for name, end in zip(("low", "high"), ends, strict=True)]
    return load(Kernel(trace, [Argument("x", "int32", ELEMENT)], results, 4).source())


def _in_order(bits: Value) -> Value:
    """Integers in the order of the float32 numbers with these bits; or the bits of such integers."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)
