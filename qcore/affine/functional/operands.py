"""The first and the last steps of arithmetic on quantized arrays: checked operands, their numbers, and the result."""

from __future__ import annotations

from math import inf
from typing import Any

from qcore.affine import law
from qcore.affine.integers import AffineInteger
from qcore.affine.parameters import QParams, check_form, check_qparams
from qcore.affine.quantized import QuantizedArray
from qcore.arguments import check_type

_LARGEST = (2 - 2**-23) * 2.0**127  # of float32


def check_operand(name: str, q: Any) -> None:
    """Raises unless an operand is a quantized array with one scale for the whole."""
    if not isinstance(q, QuantizedArray):
        raise TypeError(f"{name} is a {type(q).__name__}; allowed is a QTensor: insert QuantStub (Quantize) before it")
    if q.qparams.axis is not None:
        raise ValueError(f"{name} has axis={q.qparams.axis}; allowed is a QTensor with one scale")


def check_output(like: Any, output: Any, form: AffineInteger | None) -> AffineInteger:
    """The range of the result's integers, by default `like`'s; raises unless the parameters fit it."""
    check_type("output", output, QParams, "a QParams")
    chosen: AffineInteger = like.form if form is None else check_form(form)
    check_qparams(output, chosen, (), like.names)
    return chosen


def differences(q: Any) -> Any:
    """The integers less their zero point, exactly: int32."""
    return q.names.astype(q.values, "int32") - q.qparams.zero_point


def numbers(q: Any) -> Any:
    """The numbers (q - zero_point) * scale, in float32."""
    xp, qparams = q.names, q.qparams
    return law.dequantize(xp, xp.astype(q.values, "int32"), qparams.scale, qparams.zero_point, None, "float32")


def integer_of(q: Any, number: float) -> Any:
    """The int32 integer of a number under an array's parameters; an infinity becomes an end of the range."""
    xp, qparams = q.names, q.qparams
    number = inf if number > _LARGEST else -inf if number < -_LARGEST else float(number)
    x = xp.full_like(qparams.scale, number, "float32")
    return law.quantize(xp, x, qparams.scale, qparams.zero_point, None, q.form)


def computed(function: Any, arrays: Any, output: QParams, form: AffineInteger, *settings: Any) -> Any:
    """A quantized array of the first array's kind, with the integers function(*arrays, output, form, *settings)."""
    first = arrays[0]
    return type(first)._made(first.names.program(stored, (arrays, output), function, form, *settings), output, form)


def stored(arrays: Any, output: QParams, function: Any, form: AffineInteger, *settings: Any) -> Any:
    """The integers of a law in the dtype that stores them: the program of `computed`."""
    xp = arrays[0].names
    with xp.arithmetic():
        return xp.astype(function(*arrays, output, form, *settings), form.storage)


def quantized(xp: Any, x: Any, output: QParams, form: AffineInteger) -> Any:
    """The integers of the law for numbers."""
    return law.quantize(xp, x, output.scale, output.zero_point, None, form)


def wrapped(like: Any, integers: Any, output: QParams, form: AffineInteger) -> Any:
    """A quantized array of `like`'s kind, from integers of any type."""
    return type(like)._made(like.names.astype(integers, form.storage), output, form)


def inverse(xp: Any, scale: Any) -> Any:
    """1 / scale, rounded."""
    return xp.divide(xp.full_like(scale, 1, "float32"), scale)
