"""Affine quantization with checked arguments, by default of NumPy arrays."""

from __future__ import annotations

from typing import Any

from qcore.affine import law
from qcore.affine.integers import AffineInteger
from qcore.affine.parameters import (
    QParams,
    check_axis,
    check_form,
    check_input,
    check_parameter,
    check_qparams,
    dtype_of,
)
from qcore.arguments import check_choice, check_type
from qcore.law.carrier import CARRIERS
from qcore.namespace import A, Names

_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
_SUMS = ("int32", "float32", "float64")


def quantize_affine(x: A, qparams: QParams, form: AffineInteger, xp: type[Names] = Names) -> A:
    """The integers clip(rint(x * (1 / scale)) + zero_point, qmin, qmax); rint rounds ties to even.

    All arithmetic is in float32, but the elements of float64 arrays are multiplied in float64. NaN becomes qmin,
    infinity qmax, and minus infinity qmin.

    Args:
        x: array of any shape; float32, float64, float16 or bfloat16.
        qparams: the parameters.
        form: the integers.
        xp: the array namespace.

    Returns:
        An array of x's shape and the dtype `form.storage`.

    Raises:
        ValueError: if the parameters do not fit x or the integers, or a scale is not from 2^-125 to 2^125.

    Example:
        >>> import numpy as np
        >>> quantize_affine(np.float32([-1, 0.5, 1.5, 9]), QParams.of(0.01, 100), AffineInteger(0, 255))
        array([  0, 150, 250, 255], dtype=uint8)
    """
    check_input(x, xp)
    check_qparams(qparams, form, tuple(x.shape), xp)
    with xp.arithmetic():
        q = law.quantize(xp, x, qparams.scale, qparams.zero_point, qparams.axis, form)
        return xp.astype(q, form.storage)


def dequantize(q: A, qparams: QParams, form: AffineInteger, dtype: str = "float32", xp: type[Names] = Names) -> A:
    """The numbers (q - zero_point) * scale, rounded to float32.

    Args:
        q: array of integers of up to 32 bits.
        qparams: the parameters.
        form: the integers.
        dtype: the dtype of the result: "float32", "float64", "float16" or "bfloat16", converted from float32.
        xp: the array namespace.

    Returns:
        An array of q's shape and this dtype.

    Raises:
        TypeError: if an argument has the wrong type, or dtype is "bfloat16" before ml_dtypes is imported.
        ValueError: if the parameters do not fit q or the integers, or dtype is another one.

    Example:
        >>> import numpy as np
        >>> dequantize(np.uint8([0, 100, 255]), QParams.of(0.5, 100), AffineInteger(0, 255))
        array([-50. ,   0. ,  77.5], dtype=float32)
    """
    if (actual := dtype_of(q, xp)) not in _INTEGERS:
        raise TypeError(f"q is {actual}; allowed is an array of {', '.join(_INTEGERS)}")
    check_choice("dtype", dtype, list(CARRIERS))
    check_qparams(qparams, form, tuple(q.shape), xp)
    with xp.arithmetic():
        q = xp.astype(q, "int32")
        return law.dequantize(xp, q, qparams.scale, qparams.zero_point, qparams.axis, dtype)


def fake_quantize(x: A, qparams: QParams, form: AffineInteger, xp: type[Names] = Names) -> tuple[A, A]:
    """Quantizes and dequantizes: (clip(rint(x * (1 / scale)) + zero_point, qmin, qmax) - zero_point) * scale.

    Args:
        x, qparams, form, xp: as for `quantize_affine`.

    Returns:
        An array of x's shape and dtype; and a mask, true where the integer was inside the range before it was clipped:
        there the gradient passes, see `law.straight_through`. It is false for NaN.

    Raises:
        TypeError, ValueError: as `quantize_affine` does.

    Example:
        >>> import numpy as np
        >>> y, mask = fake_quantize(np.float32([-1, 0.26, 99]), QParams.of(0.5, 0), AffineInteger(0, 255))
        >>> y, mask
        (array([ 0. ,  0.5, 99. ], dtype=float32), array([False,  True,  True]))
    """
    check_input(x, xp)
    check_qparams(qparams, form, tuple(x.shape), xp)
    with xp.arithmetic():
        return law.fake_quantize(xp, x, qparams.scale, qparams.zero_point, qparams.axis, form)


def requantize(
    accumulator: A,
    input_scale: A,
    weight_scale: A,
    bias: A | None,
    output: QParams,
    form: AffineInteger,
    axis: int = -1,
    xp: type[Names] = Names,
) -> A:
    """The integers of a linear layer's or convolution's sums of products of integers, by fbgemm's formula.

    With p = input_scale * weight_scale they are clip(rint((accumulator + bias / p) * (p / scale)) + zero_point, qmin,
    qmax), each operation rounded to float32.

    Args:
        accumulator: sums of products (q - zero_point) of the input times (q - zero_point) of the weight: integers in
            int32, float32 or float64.
        input_scale: float32 array of shape ().
        weight_scale: float32 array of shape (), or (channels,).
        bias: float32 array of shape (channels,), or None.
        output: the result's parameters, without an axis.
        form: the result's integers.
        axis: the dimension of the accumulator along which the channels lie; -1 is the last.
        xp: the array namespace.

    Returns:
        An array of the accumulator's shape and the dtype `form.storage`.

    Raises:
        ValueError: if shapes do not fit, or the parameters do not fit the integers.

    Example:
        >>> import numpy as np
        >>> scales = np.float32(0.5), np.float32([0.25, 0.125])
        >>> requantize(
        ...     np.int32([[8, -8], [80, 800]]), *scales, None, QParams.of(0.5, 3), AffineInteger(0, 255)
        ... )
        array([[  5,   2],
               [ 23, 103]], dtype=uint8)
    """
    axis = check_requantized(accumulator, input_scale, weight_scale, bias, output, form, axis, xp)
    with xp.arithmetic():
        outputs = output.scale, output.zero_point
        q = law.requantize(xp, accumulator, input_scale, weight_scale, bias, *outputs, axis, form)
        return xp.astype(q, form.storage)


def check_requantized(
    accumulator: Any,
    input_scale: Any,
    weight_scale: Any,
    bias: Any,
    output: QParams,
    form: AffineInteger,
    axis: int = -1,
    xp: Any = Names,
) -> int:
    """The axis of the channels, counted from the first; raises what `requantize` raises."""
    if (actual := dtype_of(accumulator, xp)) not in _SUMS:
        raise TypeError(f"accumulator is {actual}; allowed is an array of {', '.join(_SUMS)}")
    check_type("output", output, QParams, "a QParams")
    if output.axis is not None:
        raise ValueError(f"output.axis={output.axis}; allowed is None")
    check_qparams(output, check_form(form), tuple(accumulator.shape), xp)
    axis = check_axis(accumulator.ndim - 1 if isinstance(axis, int) and axis == -1 else axis, accumulator.ndim)
    channels = (accumulator.shape[axis],)
    check_parameter("input_scale", input_scale, [()], xp)
    check_parameter("weight_scale", weight_scale, [(), channels], xp)
    if bias is not None:
        check_parameter("bias", bias, [channels], xp)
    return axis
