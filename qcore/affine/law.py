"""The affine law: quantize, dequantize, both at once, and requantize; on arrays of any framework, without checks.

Arithmetic is in float32, but a float64 x is not rounded before it is multiplied. Scales are float32 and zero
points int32, and have no dimension, or one dimension and an axis of x along which they lie.
"""

from __future__ import annotations

from typing import Any

from qcore.affine.integers import AffineInteger

_SMALLEST = 2.0**-126  # of the normal numbers


def quantize(xp: Any, x: Any, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger) -> Any:
    """The integers clip(rint(x * (1 / scale)) + zero_point, qmin, qmax), as int32; NaN gives qmin."""
    return integers(xp, _steps(xp, _wide(xp, x), scale, zero_point, axis), form)


def dequantize(xp: Any, q: Any, scale: Any, zero_point: Any, axis: int | None, dtype: str) -> Any:
    """The numbers (q - zero_point) * scale, for integers that are not narrower than the zero point."""
    # Subtracted as integers, which is exact; the conversion then rounds once.
    steps = xp.astype(q - along(zero_point, axis, q.ndim), "float32")
    return xp.astype(xp.rounded(steps * along(scale, axis, q.ndim)), dtype)


def fake_quantize(
    xp: Any, x: Any, scale: Any, zero_point: Any, axis: int | None, form: AffineInteger
) -> tuple[Any, Any]:
    """The dequantized integers in x's dtype, and the mask of `straight_through`: where nothing was clipped."""
    steps = _steps(xp, _wide(xp, x), scale, zero_point, axis)
    mask = (steps >= form.low) & (steps <= form.high)  # before the clip; False for NaN
    offset = xp.astype(along(zero_point, axis, x.ndim), "float32")
    clipped = xp.astype(_clipped(xp, steps, form), "float32")
    y = xp.rounded((clipped - offset) * along(scale, axis, x.ndim))
    return xp.astype(y, xp.dtype(x)), mask


def straight_through(xp: Any, gradient: Any, mask: Any) -> Any:
    """The gradient of `fake_quantize` with respect to x: the incoming one, and 0 where x was clipped or NaN."""
    # Chosen, not multiplied with the mask: 0 * inf would be NaN.
    return xp.where(mask, gradient, xp.full_like(gradient, 0, xp.dtype(gradient)))


def requantize(
    xp: Any,
    accumulator: Any,
    input_scale: Any,
    weight_scale: Any,
    bias: Any,
    scale: Any,
    zero_point: Any,
    axis: int,
    form: AffineInteger,
) -> Any:
    """The int32 integers of sums of products, by fbgemm's formula in float32.

    With p = input_scale * weight_scale they are clip(rint((accumulator + bias / p) * (p / scale)) + zero_point, qmin,
    qmax). Weight scales and biases lie along `axis`, unless they have no dimension; a bias may be None.
    """
    product = without_subnormals(xp, input_scale * weight_scale)  # of two scales, each normal: it may underflow
    total = xp.astype(accumulator, "float32")
    if bias is not None:  # in units of the sums; fbgemm adds it before the one product with the ratio
        total = total + along(without_subnormals(xp, xp.divide(bias, product)), axis, total.ndim)
    # One ratio and one product with it, as fbgemm has it; a product and a division would round each sum twice.
    ratio = along(without_subnormals(xp, xp.divide(product, scale)), axis, total.ndim)
    return integers(xp, xp.rint(total * ratio) + xp.astype(zero_point, "float32"), form)


def mean(xp: Any, sums: Any, count: int) -> Any:
    """The means of `count` integers each, from their sums: int32, rounded in float64 to nearest even."""
    return xp.astype(xp.rint(xp.divide(xp.astype(sums, "float64"), float(count))), "int32")


def integers(xp: Any, steps: Any, form: AffineInteger) -> Any:
    """Rounded floats as int32 inside the range."""
    return xp.astype(_clipped(xp, steps, form), "int32")


def without_subnormals(xp: Any, x: Any) -> Any:
    """x with 0 for every subnormal number; XLA takes them for zeros anyway."""
    return xp.where(abs(x) < _SMALLEST, 0.0, x)


def along(parameter: Any, axis: int | None, ndim: int) -> Any:
    """A parameter that broadcasts with arrays of `ndim` dimensions."""
    if parameter.ndim == 0:
        return parameter
    return parameter.reshape(tuple(-1 if dimension == axis else 1 for dimension in range(ndim)))


def _wide(xp: Any, x: Any) -> Any:
    """x in float64 or else in float32, which holds every float16 and bfloat16."""
    return x if xp.dtype(x) == "float64" else xp.astype(x, "float32")


def _steps(xp: Any, x: Any, scale: Any, zero_point: Any, axis: int | None) -> Any:
    """rint(x * (1 / scale)) + zero_point: the zero point is added to an integer, and so decides no tie."""
    # A product with the inverse, as torch does it: a division would round differently.
    inverse = along(xp.divide(xp.full_like(scale, 1, "float32"), scale), axis, x.ndim)
    return xp.rint(x * inverse) + xp.astype(along(zero_point, axis, x.ndim), "float32")


def _clipped(xp: Any, steps: Any, form: AffineInteger) -> Any:
    """Steps inside the range; NaN becomes the lowest."""
    # Clipped as floats: the conversion of a float beyond int32, or of NaN, is not defined.
    return xp.clip(xp.where(steps == steps, steps, form.low), form.low, form.high)
