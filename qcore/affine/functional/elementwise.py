"""Sums, products, contractions and concatenations of quantized arrays: one law for all frameworks.

Every operation is rounded to float32 in the order of the formulas; none is fused. Each operand has one scale, and
operands may have integers of different ranges. The result has the first operand's range of integers, unless `form` is
given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qcore.affine import law
from qcore.affine.functional.operands import (
    check_operand,
    check_output,
    computed,
    differences,
    integer_of,
    inverse,
    numbers,
    quantized,
    wrapped,
)
from qcore.affine.integers import AffineInteger
from qcore.affine.parameters import QParams
from qcore.affine.quantized import Q
from qcore.affine.rows import operation
from qcore.arguments import check_flag, check_float, check_int, check_type, quoted
from qcore.namespace import Array
from qcore.notices import warn

__all__ = [
    "add",
    "add_scalar",
    "cat",
    "clamp",
    "einsum",
    "masked_fill",
    "matmul",
    "mul",
    "mul_scalar",
    "stack",
    "threshold",
]


def add(a: Q, b: Q, output: QParams, form: AffineInteger | None = None, relu: bool = False) -> Q:
    """The quantized sum: the law's integers for (a - its zero point) * its scale + the same of b.

    Args:
        a, b: quantized arrays whose shapes broadcast.
        output: the result's scale and zero point.
        form: the result's integers; None means a's.
        relu: True for max(sum, 0): no integer is below the zero point.

    Returns:
        A quantized array of the shape that a and b broadcast to, with the form and the parameters given.

    Raises:
        ValueError: if shapes do not broadcast, there is a scale for each channel, or output does not fit the integers.

    Example:
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> import numpy as np
        >>> a = QArray(np.uint8([0, 10, 20]), QParams.of(0.5, 10), UINT8)
        >>> add(a, a, QParams.of(1.0, 100)).values
        array([ 90, 100, 110], dtype=uint8)
    """
    form = _check(a, b, output, form, relu)
    return computed(_added, (a, b), output, form, relu)


def mul(a: Q, b: Q, output: QParams, form: AffineInteger | None = None, relu: bool = False) -> Q:
    """The quantized product: rint((a - za) * (b - zb) * ((sa * sb) * (1 / scale))) + zero_point, clipped.

    Args:
        a, b, output, form, relu: as for `add`.

    Returns:
        A quantized array of the shape that a and b broadcast to, with the form and the parameters given.

    Raises:
        ValueError: if shapes do not broadcast, there is a scale for each channel, or output does not fit the integers.

    Example:
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> import numpy as np
        >>> a = QArray(np.uint8([0, 12, 20]), QParams.of(0.5, 10), UINT8)
        >>> mul(a, a, QParams.of(1.0, 100)).values
        array([125, 101, 125], dtype=uint8)
    """
    form = _check(a, b, output, form, relu)
    return computed(_multiplied, (a, b), output, form, relu)


def _added(a: Any, b: Any, output: QParams, form: AffineInteger, relu: bool) -> Any:
    """The int32 integers of `add`, of arrays, or of anything that has their names, values and parameters."""
    xp = a.names
    with xp.arithmetic():
        q = law.quantize(xp, numbers(a) + numbers(b), output.scale, output.zero_point, None, form)
        return xp.maximum(q, output.zero_point) if relu else q


def _multiplied(a: Any, b: Any, output: QParams, form: AffineInteger, relu: bool) -> Any:
    """The int32 integers of `mul`."""
    xp = a.names
    with xp.arithmetic():
        product = xp.astype(differences(a), "float32") * xp.astype(differences(b), "float32")
        scale = law.without_subnormals(xp, a.qparams.scale * b.qparams.scale)
        ratio = law.without_subnormals(xp, scale * inverse(xp, output.scale))
        q = law.integers(xp, xp.rint(product * ratio) + xp.astype(output.zero_point, "float32"), form)
        return xp.maximum(q, output.zero_point) if relu else q


BINARY = {"add": _added, "mul": _multiplied}


_MOST = 2**53  # up to which float64 holds all integers


def einsum(equation: str, a: Q, b: Q, output: QParams, form: AffineInteger | None = None) -> Q:
    """The quantized contraction of two arrays: rint(sums * ((sa * sb) * (1 / scale))) + zero_point, clipped.

    The sums are the exact sums of (a - za) * (b - zb), rounded to float32.

    Args:
        equation: as for `numpy.einsum`, of two operands, with "->": `bij,bjk->bik`.
        a, b, output, form: as for `add`.

    Returns:
        A quantized array with the form and the parameters given.

    Raises:
        ValueError: if the equation is not of two operands, or sums may pass 2^53; if there is a scale for each channel,
            or output does not fit the integers. If shapes do not fit the equation, the framework's error.

    Example:
        >>> from qcore.affine import INT8, QArray, QParams
        >>> import numpy as np
        >>> a = QArray(np.int8([[1, 2], [3, 4]]), QParams.of(0.5, 0), INT8)
        >>> einsum("ij,jk->ik", a, a, QParams.of(0.25, 3)).values
        array([[10, 13],
               [18, 25]], dtype=int8)
    """
    check_type("equation", equation, str, "a str")
    if "->" not in equation or equation.count(",") != 1:
        raise ValueError(f"equation={quoted(equation)}; allowed are equations of two operands, with '->'")
    form = _check(a, b, output, form, False)
    largest = 1
    for q in (a, b):
        largest *= q.form.qmax - q.form.qmin
    if largest * min(_size(a), _size(b)) > _MOST:  # no sum has more terms than the smaller array has elements
        raise ValueError(f"operands have shapes {tuple(a.shape)} and {tuple(b.shape)}, whose sums may pass 2^53")
    return computed(_contracted, (a, b), output, form, equation)


def _contracted(a: Any, b: Any, output: QParams, form: AffineInteger, equation: str) -> Any:
    xp = a.names
    sums = xp.einsum(equation, *(xp.astype(differences(q), "float64") for q in (a, b)))
    scale = law.without_subnormals(xp, a.qparams.scale * b.qparams.scale)
    ratio = law.without_subnormals(xp, scale * inverse(xp, output.scale))
    steps = xp.rint(xp.astype(sums, "float32") * ratio) + xp.astype(output.zero_point, "float32")
    return law.integers(xp, steps, form)


def matmul(a: Q, b: Q, output: QParams, form: AffineInteger | None = None) -> Q:
    """The quantized product of matrices, or of stacks of them whose first dimensions broadcast; see `einsum`.

    Args:
        a, b: quantized arrays of shapes (..., rows, terms) and (..., terms, columns).
        output, form: as for `add`.

    Returns:
        A quantized array of shape (..., rows, columns), with the form and the parameters given.

    Raises:
        TypeError, ValueError: as `einsum` does, and if an array has fewer than two dimensions.

    Example:
        >>> from qcore.affine import INT8, QArray, QParams
        >>> import numpy as np
        >>> a = QArray(np.int8([[1, 2], [3, 4]]), QParams.of(0.5, 0), INT8)
        >>> matmul(a, a, QParams.of(0.25, 0)).dequantize()
        array([[1.75, 2.5 ],
               [3.75, 5.5 ]], dtype=float32)
    """
    for name, q in (("a", a), ("b", b)):
        check_operand(name, q)
        if q.ndim < 2:
            raise ValueError(f"{name} has shape {tuple(q.shape)}; allowed are two dimensions or more")
    return einsum("...ij,...jk->...ik", a, b, output, form)


def _size(q: Any) -> int:
    return math.prod(q.shape)


def cat(arrays: Sequence[Q], axis: int, output: QParams | None = None, form: AffineInteger | None = None) -> Q:
    """Joins arrays along an axis; each is requantized, unless it has the result's parameters.

    Args:
        arrays: quantized arrays, at least one, of equal sizes but along the axis.
        axis: the axis along which they are joined; -1 is the last.
        output: the result's scale and zero point. None means the first array's; the other arrays are clipped by them.
        form: as for `add`.

    Returns:
        A quantized array with the form and the parameters given, as long along the axis as all arrays together.

    Raises:
        TypeError: if an argument has the wrong type, or arrays is empty; in JAX also if sizes do not fit.
        ValueError: if sizes or axis do not fit, there is a scale for each channel, or output does not fit the integers.

    Warns:
        UserWarning: without output, if an array is known to have other parameters than the first.

    Example:
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> import numpy as np
        >>> a = QArray(np.uint8([0, 1]), QParams.of(0.5, 0), UINT8)
        >>> cat([a, a], 0, QParams.of(0.25, 3)).values
        array([3, 5, 3, 5], dtype=uint8)
    """
    output, form = _check_arrays(arrays, output, form)
    axis = check_int("axis", axis, -arrays[0].ndim, arrays[0].ndim - 1)
    return _joined(arrays, axis, output, form)


def stack(arrays: Sequence[Q], axis: int, output: QParams | None = None, form: AffineInteger | None = None) -> Q:
    """Joins arrays along a new axis, each requantized as by `cat`.

    Args:
        arrays: quantized arrays, at least one, of one shape.
        axis: the new axis of the result; -1 is the last.
        output, form: as for `cat`.

    Returns:
        A quantized array with the form and the parameters given, and one dimension more.

    Raises:
        TypeError: if an argument has the wrong type, or arrays is empty.
        ValueError: if shapes or axis do not fit, there is a scale for each channel, or output does not fit them.

    Warns:
        UserWarning: as `cat` does.

    Example:
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> import numpy as np
        >>> a, b = (QArray(np.uint8([0, 1]), QParams.of(scale, 0), UINT8) for scale in (0.5, 1.0))
        >>> stack([a, b], 0, a.qparams).values
        array([[0, 1],
               [0, 2]], dtype=uint8)
    """
    output, form = _check_arrays(arrays, output, form)
    shape = tuple(arrays[0].shape)
    for number, q in enumerate(arrays):
        if tuple(q.shape) != shape:
            raise ValueError(f"arrays[{number}] has shape {tuple(q.shape)}; allowed is {shape}, the first one's")
    axis = check_int("axis", axis, -len(shape) - 1, len(shape)) % (len(shape) + 1)
    longer = (*shape[:axis], 1, *shape[axis:])
    return _joined([q.reshape(longer) for q in arrays], axis, output, form)


def _check_arrays(arrays: Any, output: QParams | None, form: AffineInteger | None) -> tuple[QParams, AffineInteger]:
    """The parameters and the integers of arrays that are joined."""
    if not isinstance(arrays, (list, tuple)) or not arrays:
        raise TypeError(f"arrays is a {type(arrays).__name__}; allowed is a list or tuple of at least one QTensor")
    for number, q in enumerate(arrays):
        check_operand(f"arrays[{number}]", q)
    chosen: QParams = arrays[0].qparams if output is None else output
    if output is None:
        _warn_of_others(arrays, chosen)
    return chosen, check_output(arrays[0], chosen, form)


def _warn_of_others(arrays: Sequence[Any], output: QParams) -> None:
    """Warns of arrays that are known to have other parameters than the first."""
    concrete = arrays[0].names.concrete
    for number, q in enumerate(arrays):
        if q.qparams is output:
            continue
        pairs = (q.qparams.scale, output.scale), (q.qparams.zero_point, output.zero_point)
        known = [(concrete(own), concrete(first)) for own, first in pairs]
        if any(own is not None and first is not None and own != first for own, first in known):
            warn(
                f"arrays[{number}] has another scale or zero point than the first of the joined arrays, whose own the "
                "result has, so that numbers beyond its range are clipped; FloatFunctional.cat gives the result a "
                "scale of its own"
            )
            return


def _joined(arrays: Sequence[Any], axis: int, output: QParams, form: AffineInteger) -> Any:
    """Quantized arrays in a row, with the parameters and the integers of the result."""
    own = tuple(q.qparams is output and q.form == form for q in arrays)
    return computed(_concatenated, (arrays[0], list(arrays[1:])), output, form, axis, own)


def _concatenated(
    first: Any, others: list[Any], output: QParams, form: AffineInteger, axis: int, own: Sequence[bool]
) -> Any:
    """The integers of arrays in a row; the arrays for which `own` has True keep theirs."""
    arrays = zip([first, *others], own, strict=True)
    return first.names.concatenate([q.values if keeps else _requantized(q, output, form) for q, keeps in arrays], axis)


def _requantized(q: Any, output: QParams, form: AffineInteger) -> Any:
    """A quantized array's integers for other parameters; for equal ones they stay as they are."""
    made = q.names.astype(quantized(q.names, numbers(q), output, form), form.storage)
    if q.form != form or form.storage != "int32":
        return made
    own = q.qparams  # float32 does not hold all integers of 32 bits
    return q.names.where((own.scale == output.scale) & (own.zero_point == output.zero_point), q.values, made)


def add_scalar(input: Q, number: float) -> Q:
    """input + number: the zero point moves by -number / scale; where it would leave the range, the scale grows.

    With n = zero_point - rint(number / scale) in float64, the result has zero point n; where n is below qmin, zero
    point qmin and scale * (qmax - n) / (qmax - qmin); where n is above qmax, zero point qmax and scale * (n - qmin) /
    (qmax - qmin). Its integers are the law's for (input - n) * scale.

    Args:
        input: quantized array.
        number: finite.

    Returns:
        A quantized array of input's shape and form, with a zero point, and maybe a scale, of its own.

    Raises:
        TypeError: if an argument has the wrong type; number is an int or a float of Python's.
        ValueError: if number is not finite, input has a scale for each channel, or the result's scale is above 2^125.
            JAX raises the last one when the result is dequantized.

    Example:
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> import numpy as np
        >>> moved = add_scalar(QArray(np.uint8([0, 10, 20]), QParams.of(0.5, 10), UINT8), 1.0)
        >>> moved.values, moved.qparams.zero_point
        (array([ 0, 10, 20], dtype=uint8), array(8, dtype=int32))
    """
    check_operand("input", input)
    _check_number(number)
    return input.names.program(_added_number, (input,), number)


def _added_number(input: Any, number: float) -> Any:
    """`add_scalar` of checked arguments."""
    xp, form, scale = input.names, input.form, input.qparams.scale
    low, high, span = float(form.qmin), float(form.qmax), float(form.qmax - form.qmin)
    with xp.arithmetic():
        wide = xp.astype(scale, "float64")
        steps = xp.rint(xp.divide(xp.full_like(wide, number, "float64"), wide))
        zero = xp.astype(input.qparams.zero_point, "float64") - steps  # the zero point, if integers had no ends
        factor = xp.where(zero > high, xp.divide(zero - low, span), xp.divide(high - zero, span))
        stretched = xp.astype(factor * wide, "float32")
        inside = (zero >= low) & (zero <= high)
        output = QParams(xp.where(inside, scale, stretched), law.integers(xp, zero, form))
        # Differences are exact in float64, also from a zero point far outside of the range.
        shifted = xp.astype(xp.astype(input.values, "float64") - zero, "float32")
        return wrapped(input, quantized(xp, xp.rounded(shifted * scale), output, form), output, form)


def mul_scalar(input: Q, number: float) -> Q:
    """input * number: the scale is multiplied by abs(number); for negative numbers the integers are mirrored.

    A product with 0 has integers 0, scale 1 and zero point 0.

    Args:
        input: quantized array.
        number: finite.

    Returns:
        A quantized array of input's shape and form, with a scale, and maybe a zero point, of its own.

    Raises:
        TypeError: if an argument has the wrong type; number is an int or a float of Python's.
        ValueError: if number is not finite, input has a scale for each channel, or the result's scale is not from
            2^-125 to 2^125. JAX raises the last one when the result is dequantized.

    Example:
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> import numpy as np
        >>> mul_scalar(QArray(np.uint8([0, 10, 20]), QParams.of(0.5, 10), UINT8), -2).values
        array([255, 245, 235], dtype=uint8)
    """
    check_operand("input", input)
    _check_number(number)
    return input.names.program(_multiplied_by, (input,), number)


def _multiplied_by(input: Any, number: float) -> Any:
    """`mul_scalar` of checked arguments."""
    xp, form, scale = input.names, input.form, input.qparams.scale
    with xp.arithmetic():
        integers, zero = xp.astype(input.values, "int32"), input.qparams.zero_point
        if number == 0:
            output = QParams(xp.full_like(scale, 1, "float32"), xp.full_like(zero, 0, "int32"))
            return wrapped(input, xp.full_like(integers, 0, "int32"), output, form)
        if number < 0:  # scales are above 0, so the integers turn around the middle of the range
            integers, zero = form.qmin + form.qmax - integers, form.qmin + form.qmax - zero
        factor = xp.full_like(xp.astype(scale, "float64"), abs(number), "float64")
        output = QParams(xp.astype(xp.astype(scale, "float64") * factor, "float32"), zero)
        return wrapped(input, integers, output, form)


@operation(passing=["ReLU", "ReLU6", "Hardtanh"])
def clamp(input: Q, low: float | None = None, high: float | None = None) -> Q:
    """The integers clipped to those of `low` and `high`; the parameters stay.

    `relu6` is clamp(input, 0, 6), and `hardtanh` clamp(input, -1, 1). If low is above high, all become the integer of
    `high`.

    Args:
        input: quantized array.
        low, high: numbers, which may be infinite; None for no bound.

    Returns:
        A quantized array of input's shape, form and parameters.

    Raises:
        ValueError: if a number is NaN, or input has a scale for each channel.

    Example:
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> import numpy as np
        >>> clamp(QArray(np.uint8([0, 10, 250]), QParams.of(0.5, 10), UINT8), 0, 6).values
        array([10, 10, 22], dtype=uint8)
    """
    check_operand("input", input)
    bounds = _check_bound("low", low), _check_bound("high", high)
    return computed(_clamped, (input,), input.qparams, input.form, *bounds)


def _check_bound(name: str, bound: Any) -> float | None:
    return None if bound is None else check_float(name, bound, "a number or None", lambda number: number == number)


def _clamped(q: Any, _: QParams, form: AffineInteger, low: float | None, high: float | None) -> Any:
    xp = q.names
    integers = xp.astype(q.values, "int32")
    for bound, chosen in ((low, xp.maximum), (high, xp.minimum)):
        if bound is not None:
            integers = chosen(integers, integer_of(q, bound))
    return integers


@operation(passing=["Threshold"])
def threshold(input: Q, threshold: float, value: float) -> Q:
    """Keeps the integers of numbers above `threshold`; all other integers become the integer of `value`.

    The parameters stay.

    Args:
        input: quantized array.
        threshold: finite; it is rounded to float32.
        value: finite.

    Returns:
        A quantized array of input's shape, form and parameters.

    Raises:
        ValueError: if a number is not finite, or input has a scale for each channel.

    Example:
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> threshold(QArray(np.uint8([0, 12, 13]), QParams.of(0.5, 10), UINT8), 1.0, -2.0).values
        array([ 6,  6, 13], dtype=uint8)
    """
    check_operand("input", input)
    _check_number(threshold, "threshold")
    _check_number(value, "value")
    return computed(_thresholded, (input,), input.qparams, input.form, threshold, value)


def _thresholded(q: Any, _: QParams, form: AffineInteger, threshold: float, value: float) -> Any:
    xp = q.names
    x = xp.astype(numbers(q), "float64")  # in which no limit is subnormal: XLA takes such floats for 0
    above = x > xp.full_like(x, float(np.float32(threshold)), "float64")
    return xp.where(above, xp.astype(q.values, "int32"), integer_of(q, value))


def masked_fill(input: Q, mask: Array, value: float) -> Q:
    """Puts the integer of a number where a mask is true; the parameters stay.

    Args:
        input: quantized array.
        mask: bools whose shape broadcasts to input's.
        value: a number, which may be infinite.

    Returns:
        A quantized array of input's shape, form and parameters.

    Raises:
        ValueError: if value is NaN, or input has a scale for each channel.

    Example:
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([0, 12, 13]), QParams.of(0.5, 10), UINT8)
        >>> masked_fill(q, np.array([True, False, False]), 1.0).values
        array([12, 12, 13], dtype=uint8)
    """
    check_operand("input", input)
    value = check_float("value", value, "a number", lambda number: number == number)
    xp = input.names
    if not hasattr(mask, "dtype"):
        raise TypeError(f"mask={quoted(mask)} is a {type(mask).__name__}; allowed is an array of bools")
    if xp.dtype(mask) != "bool":
        raise TypeError(f"mask has dtype {mask.dtype}; allowed is bool")
    return computed(_filled, (input, mask), input.qparams, input.form, value)


def _filled(q: Any, mask: Any, _: QParams, form: AffineInteger, value: float) -> Any:
    return q.names.where(mask, integer_of(q, value), q.names.astype(q.values, "int32"))


def _check(a: Any, b: Any, output: QParams, form: AffineInteger | None, relu: bool) -> AffineInteger:
    check_operand("a", a)
    check_operand("b", b)
    check_flag("relu", relu)
    return check_output(a, output, form)


def _check_number(number: Any, name: str = "number") -> None:
    if not isinstance(number, (int, float)) or isinstance(number, bool):
        raise TypeError(f"{name}={quoted(number)} is a {type(number).__name__}; allowed is an int or a float")
    if not math.isfinite(check_float(name, number, "a finite number", lambda _: True)):  # no int beyond floats
        raise ValueError(f"{name}={number}; allowed are finite numbers")
