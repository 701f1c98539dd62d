"""Functions of one number on quantized arrays: the law's integers for the function of (q - zero_point) * scale.

Each function is a row of `qcore.affine.rows`, of which all packages make theirs.

Exponentials are computed in float64 and rounded once to float32; all other operations are float32, in the order of the
formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from qcore.affine import law
from qcore.affine.functional.operands import check_operand, check_output, computed, numbers, quantized
from qcore.affine.integers import INT32, AffineInteger
from qcore.affine.parameters import QParams, check_form
from qcore.affine.quantized import Q, QuantizedArray
from qcore.affine.rows import OPERATIONS, Example, F, operation
from qcore.arguments import check_flag, check_float, check_int
from qcore.namespace import Array

__all__ = ["celu", "elu", "hardsigmoid", "hardswish", "leaky_relu", "prelu", "sigmoid", "softmax", "tanh"]

_NEAR, _QUARTER = 2.0**-12, 0.25 - 2.0**-29  # of `sigmoid_of`
_UNIT, _SIGNED = "from 0 to 1", "from -1 to 1"
_DOCUMENT = """{sentence}.

Args:
    input: quantized array.
    output: the result's scale and zero point{otherwise}.
    form: the result's integers; None means input's.
{settings}
Returns:
    A quantized array of input's shape, with the form and the parameters given{or_own}.

Raises:
    TypeError, ValueError: if an argument is not as above, input has a scale for each channel, or output does not fit
        the integers{unless}.

Example:
    >>> import numpy as np
    >>> from qcore.affine import UINT8, QArray, QParams, quantize_affine
    >>> qparams = QParams.of(0.125, 120)
    >>> q = QArray(quantize_affine(np.float32({numbers}), qparams, UINT8), qparams, UINT8)
    >>> {name}(q{output}{more}).dequantize().tolist()
    {shows}
"""


def _activation(limits: str = "", **row: Any) -> Callable[[F], F]:
    """Adds the row of an activation; one with an example has the document of all."""
    words = {"otherwise": "", "or_own": "", "unless": "", "output": "" if limits else ", qparams"}
    if limits:
        own = f"those of numbers {limits}"
        words |= {"otherwise": f"; None for {own}, see `unit_qparams`", "or_own": f", or {own}"}
    if limits == _UNIT:
        words["unless"] = "; int32 needs an output"

    def add(function: F) -> F:
        operation(limits=limits, **row)(function)
        if "example" in row:
            function.__doc__ = OPERATIONS[function.__name__].document(_DOCUMENT, function.__name__, words=words)
        return function

    return add


@_activation(
    settings={"alpha": "a finite number."},
    example=Example([-99.0, 0.0, 2.0], [-0.5, 0.0, 2.0], {"alpha": 0.5}),
    layers=["ELU"],
    flax="elu",
)
def elu(input: Q, output: QParams, form: AffineInteger | None = None, alpha: float = 1.0) -> Q:
    """x where it is above 0, else alpha * (exp(x) - 1)."""
    alpha = check_float("alpha", alpha, "a finite number", _is_finite)
    return _applied(input, output, form, _elu_of, alpha, 1.0)


@_activation(
    settings={"alpha": "a finite number but 0."},
    example=Example([-99.0, 0.0, 2.0], [-0.5, 0.0, 2.0], {"alpha": 0.5}),
)
def celu(input: Q, output: QParams, form: AffineInteger | None = None, alpha: float = 1.0) -> Q:
    """x where it is above 0, else alpha * (exp(x / alpha) - 1)."""
    alpha = check_float("alpha", alpha, "a finite number but 0", lambda number: 0 < abs(number) < inf)
    return _applied(input, output, form, _elu_of, alpha, alpha)


@_activation(
    settings={"slope": "a finite number."},
    example=Example([-4.0, 0.0, 4.0], [-1.0, 0.0, 4.0], {"slope": 0.25}),
    layers=["LeakyReLU"],
    names={"slope": "negative_slope"},
    flax="leaky_relu",
)
def leaky_relu(input: Q, output: QParams, form: AffineInteger | None = None, slope: float = 0.01) -> Q:
    """x where it is above 0, else x * slope."""
    slope = check_float("slope", slope, "a finite number", _is_finite)
    return _applied(input, output, form, _leaky_relu_of, slope)


@_activation(layers=["PReLU"])
def prelu(input: Q, weight: Array, output: QParams, form: AffineInteger | None = None, axis: int = 1) -> Q:
    """x where it is above 0, else x * w, for one slope w or one for each channel.

    Args:
        input: quantized array.
        weight: quantized array of shape (1,) or (channels,), with one scale or one for each channel.
        output: the result's scale and zero point.
        form: the result's integers; None means input's.
        axis: along which input's channels lie; of arrays with fewer dimensions the last.

    Returns:
        A quantized array of input's shape, with the form and the parameters given.

    Raises:
        ValueError: if weight has another shape, input has a scale for each channel, or output does not fit the
            integers.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import INT8, UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[112, 112, 128]]), QParams.of(0.5, 120), UINT8)
        >>> slopes = QArray(np.int8([1, 2, 3]), QParams.of(0.25, 0), INT8)
        >>> prelu(q, slopes, q.qparams).values  # -4, -4 and 4 become -1, -2 and 4
        array([[118, 116, 128]], dtype=uint8)
    """
    check_operand("input", input)
    if not isinstance(weight, QuantizedArray):
        raise TypeError(f"weight is a {type(weight).__name__}; allowed is a QTensor")
    axis = min(check_int("axis", axis, -1), input.ndim - 1)
    channels = input.shape[axis] if input.ndim else 1
    if tuple(weight.shape) not in ((1,), (channels,)):
        raise ValueError(f"weight has shape {tuple(weight.shape)}; allowed are (1,) and ({channels},), the channels")
    return _applied(input, output, form, _prelu_of, axis % max(input.ndim, 1), more=(weight,))


@_activation(example=Example([-1.5, 0.0, 4.0], [-0.375, 0.0, 4.0]), layers=["Hardswish"], flax="hard_swish")
def hardswish(input: Q, output: QParams, form: AffineInteger | None = None) -> Q:
    """x * clip(x + 3, 0, 6) / 6."""
    return _applied(input, output, form, _hardswish_of)


@_activation(_UNIT, example=Example([-4.0, 0.0, 1.5], [0.0, 0.5, 0.75]))
def hardsigmoid(input: Q, output: QParams | None = None, form: AffineInteger | None = None) -> Q:
    """clip(x + 3, 0, 6) / 6."""
    output = _unit(input, output, form, False)
    return _applied(input, output, form, _hardsigmoid_of)


@_activation(_UNIT, example=Example([-99.0, 0.0], [0.0, 0.5]), layers=["Sigmoid"], flax="sigmoid")
def sigmoid(input: Q, output: QParams | None = None, form: AffineInteger | None = None) -> Q:
    """1 / (1 + exp(-x))."""
    return _applied(input, _unit(input, output, form, False), form, sigmoid_of)


@_activation(_SIGNED, example=Example([-99.0, 0.0], [-1.0, 0.0]))
def tanh(input: Q, output: QParams | None = None, form: AffineInteger | None = None) -> Q:
    """tanh(x)."""
    return _applied(input, _unit(input, output, form, True), form, tanh_of)


@_activation(_UNIT)
def softmax(input: Q, axis: int, output: QParams | None = None, form: AffineInteger | None = None) -> Q:
    """exp(x) over the sum of exp(x) along an axis.

    The exponentials of x less the greatest along the axis are rounded to multiples of 2^-32, so that their sums are
    exact in any order; their quotients are rounded once to float32.

    Args:
        input, output, form: as for `hardsigmoid`.
        axis: the axis along which results add up to 1; -1 is the last.

    Returns:
        A quantized array of input's shape, with the given form and parameters, or those of numbers from 0 to 1.

    Raises:
        ValueError: if axis does not fit, input has a scale for each channel, or parameters do not fit the integers;
            output must be given for int32.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> softmax(QArray(np.uint8([[0, 0, 11]]), QParams.of(0.1, 128), UINT8), -1).values
        array([[ 51,  51, 154]], dtype=uint8)
    """
    output = _unit(input, output, form, False)
    axis = check_int("axis", axis, -input.ndim, input.ndim - 1) % input.ndim
    return computed(_softmax, (input,), output, check_output(input, output, form), axis)


def _softmax(q: Any, output: QParams, form: AffineInteger, axis: int) -> Any:
    xp = q.names
    steps = xp.astype(q.values, "float64")
    below = steps - xp.greatest(steps, (axis,))  # exact, and independent of the zero point
    # Integers, so that their sum has no order; an exponential below 2^-33 of the greatest counts as 0.
    parts = xp.rint(xp.exp(below * xp.astype(q.qparams.scale, "float64")) * 2.0**32)
    sums = xp.astype(xp.total(xp.astype(parts, "int64"), (axis,)), "float64")
    return quantized(xp, xp.astype(xp.divide(parts, sums), "float32"), output, form)


def unit_qparams(input: QuantizedArray, form: AffineInteger, signed: bool) -> QParams:
    """The parameters of numbers from 0 to 1: scale 1 / levels, zero point qmin; or of numbers from -1 to 1.

    Args:
        input: quantized array on whose device the parameters are made.
        form: the integers; their number is levels.
        signed: True for numbers from -1 to 1: scale 2 / levels and the zero point in the middle.

    Returns:
        A `QParams` without an axis: a float32 scale and an int32 zero point, of shape ().

    Raises:
        TypeError: if input is not a quantized array, form not an `AffineInteger`, or signed neither True nor False.
        ValueError: if input has a scale for each channel.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> unit_qparams(QArray(np.uint8([1]), QParams.of(0.1, 0), UINT8), UINT8, True).zero_point
        array(128, dtype=int32)
    """
    check_operand("input", input)
    check_flag("signed", signed)
    xp, levels = input.names, check_form(form).qmax - form.qmin + 1
    scale = xp.full_like(input.qparams.scale, (2 if signed else 1) / levels, "float32")
    return QParams(scale, xp.full_like(scale, form.qmin + (levels // 2 if signed else 0), "int32"))


def sigmoid_of(xp: Any, x: Any) -> Any:
    """1 / (1 + exp(-x)) of float32 numbers, computed in float64 and rounded once.

    Next to 0 it is 1/2 + x/4 - x^3/48. The cube is too small for float64, and many sums of the other two terms lie in
    the middle of two float32 numbers, where the last bit of exp would decide. Libraries differ in this bit. So next to
    0 the result is 1/2 plus an exact product a little smaller than x/4.
    """
    wide = xp.astype(x, "float64")
    beyond = xp.divide(xp.full_like(x, 1, "float64"), 1.0 + xp.exp(-wide))
    return xp.astype(xp.where(abs(wide) < _NEAR, 0.5 + wide * _QUARTER, beyond), "float32")


def tanh_of(xp: Any, x: Any) -> Any:
    """tanh(x) of float32 numbers, computed in float64 and rounded once."""
    return xp.astype(xp.tanh(xp.astype(x, "float64")), "float32")


def _elu_of(xp: Any, x: Any, alpha: float, divisor: float) -> Any:
    """x, or below 0 alpha * (exp(x / divisor) - 1), of which the difference is rounded once."""
    below = xp.astype(xp.exp(xp.divide(xp.astype(x, "float64"), divisor)) - 1.0, "float32")
    return xp.where(x > 0, x, below * alpha)


def _leaky_relu_of(xp: Any, x: Any, slope: float) -> Any:
    return xp.where(x > 0, x, x * slope)


def _prelu_of(xp: Any, x: Any, weight: Any, axis: int) -> Any:
    steps, own = xp.astype(weight.values, "int32"), weight.qparams
    slopes = law.dequantize(xp, steps, own.scale, own.zero_point, own.axis, "float32")
    return xp.where(x > 0, x, x * law.along(slopes, axis, x.ndim))


def _hardsigmoid_of(xp: Any, x: Any) -> Any:
    return xp.divide(xp.clip(x + 3.0, 0.0, 6.0), 6.0)


def _hardswish_of(xp: Any, x: Any) -> Any:
    return xp.divide(x * xp.clip(x + 3.0, 0.0, 6.0), 6.0)


def _is_finite(number: float) -> bool:
    """By a comparison, which `torch.compile` traces."""
    return abs(number) < inf


def _unit(q: Any, output: QParams | None, form: AffineInteger | None, signed: bool) -> QParams:
    check_operand("input", q)
    if output is not None:
        return output
    chosen = q.form if form is None else check_form(form)
    if chosen == INT32 and not signed:
        name = "input" if form is None else "form"
        raise ValueError(f"{name} has integers of 32 bits; allowed are up to 16, or an output that fits them")
    return unit_qparams(q, chosen, signed)


def _applied(
    q: Any, output: QParams, form: AffineInteger | None, function: Any, *settings: Any, more: tuple[Any, ...] = ()
) -> Any:
    """The law's integers for function(xp, numbers, *more, *settings), where more are arrays."""
    check_operand("input", q)
    return computed(_activated, (q, more), output, check_output(q, output, form), function, *settings)


def _activated(q: Any, more: Any, output: QParams, form: AffineInteger, function: Any, *settings: Any) -> Any:
    return quantized(q.names, q.names.rounded(function(q.names, numbers(q), *more, *settings)), output, form)
