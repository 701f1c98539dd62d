"""Normalisation of quantized arrays: sums of integers and their squares are exact, and all else is in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from qcore.affine import law
from qcore.affine.functional.operands import check_operand, check_output, computed, differences, quantized
from qcore.affine.integers import AffineInteger
from qcore.affine.parameters import QParams, check_fraction, check_parameter
from qcore.affine.quantized import Q
from qcore.affine.rows import operation
from qcore.arguments import check_flag, check_size
from qcore.namespace import Array

__all__ = ["batch_norm", "group_norm", "layer_norm"]


@operation(layers=["LayerNorm"])
def layer_norm(
    input: Q,
    normalized_shape: int | Sequence[int],
    weight: Array | None,
    bias: Array | None,
    eps: float,
    output: QParams,
    form: AffineInteger | None = None,
) -> Q:
    """The law's integers for (x - mean) / sqrt(variance + eps) * weight + bias over the last dimensions.

    With integers d = input - zero_point, n of them with the sums s1 of d and s2 of d * d, which are exact in int64:
    variance = float32((n * s2 - s1 * s1) / (n * n) * scale^2), computed in float64; x - mean = float32((d - s1 / n) *
    scale), computed in float64; the rest is float32, each operation rounded, the square root too.

    Args:
        input: quantized array.
        normalized_shape: the sizes of the last dimensions.
        weight, bias: float32 arrays of these sizes, or None.
        eps: added to variances, above 0 and at most 1.
        output: the result's scale and zero point.
        form: the result's integers; None means input's.

    Returns:
        A quantized array of input's shape, with the form and the parameters given.

    Raises:
        ValueError: if shapes or eps do not fit, input has a scale for each channel, or output does not fit the
            integers.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[0, 10, 20]]), QParams.of(0.1, 7), UINT8)
        >>> layer_norm(q, (3,), None, None, 1e-5, QParams.of(0.1, 100)).values
        array([[ 88, 100, 112]], dtype=uint8)
    """
    check_operand("input", input)
    shape = _last_sizes(input, normalized_shape)
    _check("weight", weight, shape, input)
    _check("bias", bias, shape, input)
    axes = tuple(range(input.ndim - len(shape), input.ndim))
    return _checked(input, input.values.shape, axes, weight, bias, eps, output, form)


@operation(layers=["GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"])
def group_norm(
    input: Q,
    groups: int,
    weight: Array | None,
    bias: Array | None,
    eps: float,
    output: QParams,
    form: AffineInteger | None = None,
) -> Q:
    """`layer_norm`'s law over groups of channels and all sizes; instance norm is the case of one channel per group.

    Args:
        input: quantized array of shape (batch, channels, *sizes).
        groups: the number of groups of channels.
        weight, bias: float32 arrays of shape (channels,), or None.
        eps, output, form: as for `layer_norm`.

    Returns:
        A quantized array of input's shape, with the form and the parameters given.

    Raises:
        ValueError: if shapes, groups or eps do not fit, input has a scale for each channel, or output does not fit the
            integers.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[1, 3, 5, 9]]), QParams.of(1.0, 0), UINT8)
        >>> # two groups of two channels
        >>> group_norm(q, 2, None, None, 1e-5, QParams.of(0.5, 100)).dequantize()
        array([[-1.,  1., -1.,  1.]], dtype=float32)
    """
    check_operand("input", input)
    if input.ndim < 2 or input.shape[1] % check_size("groups", groups):
        raise ValueError(
            f"input has shape {tuple(input.shape)} and groups={groups}; allowed are (batch, channels, *sizes)"
        )
    batch, channels, *sizes = input.shape
    _check("weight", weight, (channels,), input)
    _check("bias", bias, (channels,), input)
    split = (batch, groups, channels // groups, *sizes)
    shape = (1, groups, channels // groups, *(1,) * len(sizes))
    parameters: tuple[Any, Any] = weight, bias
    weight, bias = (None if x is None else x.reshape(shape) for x in parameters)
    return _checked(input, split, tuple(range(2, len(split))), weight, bias, eps, output, form)


@operation(layers=["BatchNorm2d", "BatchNorm3d"])
def batch_norm(
    input: Q,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    variance: Array,
    eps: float,
    output: QParams,
    form: AffineInteger | None = None,
    relu: bool = False,
) -> Q:
    """rint((input - zero_point) * alpha + beta) + the result's zero point, with alpha and beta for each channel.

    In float32, each operation rounded: factor = weight / sqrt(variance + eps), alpha = factor * (its scale / the
    result's), beta = (bias - mean * factor) / the result's scale.

    Args:
        input: quantized array of shape (batch, channels, *sizes).
        weight, bias: float32 arrays of shape (channels,), or None for 1 and 0.
        mean, variance: float32 arrays of shape (channels,).
        eps, output, form: as for `layer_norm`.
        relu: True for no integer below the zero point.

    Returns:
        A quantized array of input's shape, with the form and the parameters given.

    Raises:
        ValueError: if shapes or eps do not fit, input has a scale for each channel, or output does not fit the
            integers.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[0, 10, 20]]), QParams.of(0.1, 7), UINT8)
        >>> ones = np.ones(3, np.float32)
        >>> batch_norm(q, None, None, ones, ones, 1e-5, QParams.of(0.1, 100)).values
        array([[ 83,  93, 103]], dtype=uint8)
    """
    check_operand("input", input)
    form = check_output(input, output, form)
    if input.ndim < 2:
        raise ValueError(f"input has shape {tuple(input.shape)}; allowed is (batch, channels, *sizes)")
    for name, x in (("weight", weight), ("bias", bias)):
        _check(name, x, (input.shape[1],), input)
    for name, x in (("mean", mean), ("variance", variance)):
        check_parameter(name, x, [(input.shape[1],)], input.names)
    eps = check_fraction("eps", eps)
    check_flag("relu", relu)
    return computed(_batch_norm, (input, weight, bias, mean, variance), output, form, eps, relu)


def _batch_norm(
    q: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any,
    output: QParams,
    form: AffineInteger,
    eps: float,
    relu: bool,
) -> Any:
    xp = q.names
    ones = xp.full_like(variance, 1, "float32")
    # Everything of a channel is computed once, before the elements.
    factor = xp.divide(ones if weight is None else weight, _root(xp, variance + eps))
    alpha = factor * xp.divide(q.qparams.scale, output.scale)
    shift = -xp.rounded(mean * factor) if bias is None else bias - xp.rounded(mean * factor)
    beta = xp.divide(shift, output.scale)
    # Scales of input and output are part of alpha and beta: one product and one sum for each element.
    steps = xp.rounded(xp.astype(differences(q), "float32") * law.along(alpha, 1, q.ndim))
    steps = xp.rint(steps + law.along(beta, 1, q.ndim)) + xp.astype(output.zero_point, "float32")
    integers = law.integers(xp, steps, form)
    return xp.maximum(integers, output.zero_point) if relu else integers


def _last_sizes(q: Any, normalized_shape: Any) -> tuple[int, ...]:
    """The sizes of the last dimensions; raises unless the array has them."""
    shape = tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    shape = tuple(check_size("normalized_shape", size, 0) for size in shape)
    if not shape or tuple(q.shape)[-len(shape) :] != shape:
        raise ValueError(f"input has shape {tuple(q.shape)}; allowed is (..., {', '.join(map(str, shape))})")
    return shape


def _checked(
    q: Any,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    weight: Any,
    bias: Any,
    eps: float,
    output: QParams,
    form: AffineInteger | None,
) -> Any:
    form = check_output(q, output, form)
    eps = check_fraction("eps", eps)
    return computed(_normalized, (q, weight, bias), output, form, shape, axes, eps)


def _normalized(
    q: Any,
    weight: Any,
    bias: Any,
    output: QParams,
    form: AffineInteger,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    eps: float,
) -> Any:
    xp, count = q.names, prod([shape[axis] for axis in axes])
    d, scale = xp.astype(differences(q), "int64").reshape(shape), xp.astype(q.qparams.scale, "float64")
    # n * sum(d^2) - sum(d)^2 is exact in integers; float sums of squares would cancel.
    first, second = xp.total(d, axes), xp.total(d * d, axes)
    spread = xp.divide(xp.astype(count * second - first * first, "float64"), float(count * count))
    # In float64 up to the statistics, and rounded once: sums of many elements have more than 24 bits.
    variance = xp.astype(spread * scale * scale, "float32")
    middle = xp.divide(xp.astype(first, "float64"), float(count))
    centred = xp.astype((xp.astype(d, "float64") - middle) * scale, "float32")
    y = xp.divide(centred, _root(xp, variance + eps))
    if weight is not None:
        y = xp.rounded(y * weight)
    if bias is not None:
        y = y + bias
    return quantized(xp, xp.rounded(y).reshape(tuple(q.shape)), output, form)


def _root(xp: Any, x: Any) -> Any:
    """The square root of float32 numbers, rounded once; by way of float64, so that no compiler uses rsqrt."""
    return xp.astype(xp.sqrt(xp.astype(x, "float64")), "float32")


def _check(name: str, x: Any, shape: tuple[Any, ...], q: Any) -> None:
    if x is not None:
        check_parameter(name, x, [shape], q.names)
