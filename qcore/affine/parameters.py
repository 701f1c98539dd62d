"""Quantization parameters: scales, zero points, and the rules that choose them from a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

import numpy as np

from qcore.affine import law
from qcore.affine.integers import INT32, SCHEMES, AffineInteger
from qcore.arguments import check_choice, check_float, check_int, check_type, quoted
from qcore.law.carrier import CARRIERS, check_dtype
from qcore.namespace import A, Names

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

EPS = 2.0**-23
_SMALLEST, _LARGEST = 2.0**-125, 2.0**125  # beyond, 1 / scale, or x near scale / 2, is subnormal, which XLA flushes
_NORMAL, _CUTOFF = 2.0**-126, float(np.float32(6.1e-5))

_ENGINES = {
    "x86": (True, True, False),
    "fbgemm": (True, True, False),
    "qnnpack": (False, False, False),
    "onednn": (False, True, False),
    "exact": (False, True, True),
}


def engine(backend: Any) -> tuple[bool, bool, bool]:
    """torch's settings for an engine, and ours for exact sums, as three truths.

    The first: activations have 7 bits only, so that sums of products in int16 do not overflow. The second: weights have
    parameters of each channel. The third: weights have as many integers above 0 as below. In torch the scale is the
    largest magnitude / 127.5, which 127 stands for if it is positive: the largest weights of all channels get smaller.
    """
    check_choice("backend", backend, list(_ENGINES))
    return _ENGINES[backend]


@dataclass(frozen=True, eq=False)
class QParams(Generic[A]):
    """The scale and the zero point of quantized integers q, which represent (q - zero_point) * scale.

    Attributes:
        scale: float32, of shape () for the whole array, or (channels,).
        zero_point: int32, of the same shape.
        axis: the dimension of the array along which the channels lie; None for one scale of the whole array.

    Example:
        >>> QParams(np.float32(0.1), np.int32(3)).zero_point
        np.int32(3)
        >>> QParams.of([0.5, 0.25], [0, 10], axis=0).scale
        array([0.5 , 0.25], dtype=float32)
    """

    scale: A
    zero_point: A
    axis: int | None = None

    @classmethod
    def of(cls, scale: ArrayLike, zero_point: ArrayLike, axis: int | None = None, xp: type[Names] = Names) -> QParams:
        """Parameters from Python's numbers or sequences of them.

        Example:
            >>> QParams.of(0.1, 3)
            QParams(scale=array(0.1, dtype=float32), zero_point=array(3, dtype=int32), axis=None)
        """
        try:
            with np.errstate(over="ignore"):
                scale = np.asarray(scale, np.float32)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"scale={quoted(scale)}; allowed are numbers") from None
        offset = np.asarray(zero_point)
        if offset.dtype.kind not in "iu":
            raise TypeError(f"zero_point={quoted(zero_point)}; allowed are integers")
        if (offset != offset.astype(np.int32)).any():
            raise ValueError(f"zero_point={quoted(zero_point)}; allowed are integers of 32 bits")
        return cls(xp.asarray(scale), xp.asarray(offset.astype(np.int32)), axis)


def check_qparams(qparams: QParams, form: AffineInteger, shape: tuple[int, ...], xp: type[Names] = Names) -> None:
    """Raises unless parameters fit an array of a shape; values that are not concrete are not checked.

    Args:
        qparams: the parameters, a `QParams`.
        form: the integers, an `AffineInteger`.
        shape: the shape of the array.
        xp: the array namespace.

    Returns:
        None; the parameters fit.

    Raises:
        TypeError: if qparams is not a QParams of float32 and int32, or form not an AffineInteger.
        ValueError: if shapes or axis do not fit, a scale is not from 2^-125 to 2^125, or a zero point is outside of the
            range.

    Example:
        >>> from qcore.affine import UINT8
        >>> check_qparams(QParams.of([0.5, 0.25], [0, 300], axis=0), UINT8, (2, 3))
        Traceback (most recent call last):
        ValueError: zero_point=300; allowed are integers from 0 to 255 for affine(0,255,middle=128)
    """
    check_form(form)
    check_type("qparams", qparams, QParams, "a QParams")
    check_type("shape", shape, tuple, "a tuple of ints")
    for name, dtype in (("scale", "float32"), ("zero_point", "int32")):
        if (actual := dtype_of(getattr(qparams, name), xp)) != dtype:
            raise TypeError(f"{name} is {actual}; allowed is an array of {dtype} (QParams.of makes one of numbers)")
    _check_shapes(qparams, shape)
    _check_values(qparams, form, xp)


def _check_shapes(qparams: QParams, shape: tuple[int, ...]) -> None:
    expected = ()
    if qparams.axis is not None:
        check_axis(qparams.axis, len(shape))
        expected = (shape[qparams.axis],)
    for name in ("scale", "zero_point"):
        actual = tuple(getattr(qparams, name).shape)
        if actual != expected:
            raise ValueError(
                f"{name} has shape {actual}; allowed is {expected} for axis={qparams.axis} of an array of shape {shape}"
            )


def _check_values(qparams: QParams, form: AffineInteger, xp: Any) -> None:
    scale, zero_point = xp.concrete(qparams.scale), xp.concrete(qparams.zero_point)
    if scale is not None and not (ok := (scale >= _SMALLEST) & (scale <= _LARGEST)).all():
        raise ValueError(f"scale={scale[~ok].flat[0]}; allowed are finite numbers above 0, from 2^-125 to 2^125")
    if zero_point is None:
        return
    low, high = (0, 0) if form == INT32 else (form.qmin, form.qmax)
    if not (ok := (zero_point >= low) & (zero_point <= high)).all():
        raise ValueError(f"zero_point={zero_point[~ok].flat[0]}; allowed are integers from {low} to {high} for {form}")


def dtype_of(array: Any, xp: Any) -> str:
    """The name of an array's dtype; of another object, the name of its type."""
    check_namespace(xp)
    return xp.dtype(array) if hasattr(array, "dtype") and not isinstance(array, type) else type(array).__name__


def check_namespace(xp: Any) -> None:
    if not (hasattr(xp, "where") and hasattr(xp, "clip")):
        raise TypeError(f"xp={quoted(xp)} is a {type(xp).__name__}; allowed is an array namespace such as Names")


def check_form(form: Any) -> AffineInteger:
    check_type("form", form, AffineInteger, "an AffineInteger")
    return form


def check_input(x: Any, xp: Any) -> None:
    if not hasattr(x, "dtype"):
        raise TypeError(f"x is a {type(x).__name__}; allowed is an array of {', '.join(CARRIERS)}")
    check_dtype(dtype_of(x, xp))


def check_parameter(name: str, array: Any, shapes: list[tuple[int, ...]], xp: Any) -> None:
    """Raises unless an array is of float32 and has one of the shapes."""
    if (actual := dtype_of(array, xp)) != "float32":
        raise TypeError(f"{name} is {actual}; allowed is an array of float32")
    if (shape := tuple(array.shape)) not in shapes:
        raise ValueError(f"{name} has shape {shape}; allowed is {' or '.join(map(str, shapes))}")


def check_fraction(name: str, value: Any) -> float:
    return check_float(name, value, "a float above 0 and at most 1", lambda number: 0 < number <= 1)


def check_axis(axis: Any, ndim: int) -> int:
    """The dimension of an array along which channels lie."""
    if ndim == 0:
        raise ValueError(f"axis={axis} for an array without dimensions; allowed is None")
    return check_int("axis", axis, 0, ndim - 1)


def check_range(low: Any, high: Any, xp: Any) -> None:
    """Raises unless a range is of float32 and, where it is concrete, not empty as before any observation."""
    for name, end in (("low", low), ("high", high)):
        if (dtype := dtype_of(end, xp)) != "float32":
            raise TypeError(f"{name} is {dtype}; allowed is an array of float32")
    if tuple(low.shape) != tuple(high.shape):
        raise ValueError(f"low has shape {tuple(low.shape)}, high {tuple(high.shape)}; allowed is the same for both")
    minimum, maximum = xp.concrete(low), xp.concrete(high)
    if minimum is not None and (empty := minimum > maximum).any():
        values = f"low={minimum[empty].flat[0]} and high={maximum[empty].flat[0]}"
        raise ValueError(f"{values}; allowed is low <= high: observe something before asking for parameters")


def choose_qparams(
    low: A,
    high: A,
    form: AffineInteger,
    scheme: str = "affine",
    *,
    axis: int | None = None,
    eps: float = EPS,
    xp: type[Names] = Names,
) -> QParams[A]:
    """The parameters with which integers cover a range and 0, by the rule of torch's observers, in float32.

    With l = min(low, 0) and h = max(high, 0), "affine" is scale = max((h - l) / (qmax - qmin), eps) and zero_point =
    clip(qmin - rint(l / scale), qmin, qmax); "symmetric" is scale = max(max(-l, h) / ((qmax - qmin) / 2), eps) and
    zero_point = form.middle. If an end of the range is NaN or infinite, so is the scale, and `quantize_affine` raises.

    Args:
        low, high: float32 arrays of shape (), or (channels,), low <= high.
        form: the integers.
        scheme: "affine" or "symmetric".
        axis: the axis of the parameters.
        eps: the smallest scale.
        xp: the array namespace.

    Returns:
        A `QParams` of low's shape: a float32 scale and an int32 zero point, with the axis that is given.

    Raises:
        ValueError: if scheme is another one, or is "affine" for int32, or if low > high for concrete arrays.

    Example:
        >>> choose_qparams(np.float32(-1), np.float32(3), AffineInteger.of_width(8, signed=False))
        QParams(scale=np.float32(0.015686275), zero_point=array(64, dtype=int32), axis=None)
    """
    check_scheme(scheme, check_form(form))
    check_range(low, high, xp)
    if isinstance(eps, int):
        eps = check_float("eps", eps, "a number", lambda _: True)
    with xp.arithmetic():
        return QParams(*covering(xp, low, high, form, scheme, eps), axis)


def covering(xp: Any, low: Any, high: Any, form: Any, scheme: str, eps: Any) -> tuple[Any, Any]:
    """The scale and the zero point of `choose_qparams` without checks, within `xp.arithmetic()`.

    A kernel passes a form of its own: an object with the attributes of an `AffineInteger`.
    """
    low, high = xp.clip(low, None, 0), xp.clip(high, 0, None)  # 0 must be a number of the result
    if scheme == "symmetric":
        scale = xp.clip(xp.divide(xp.maximum(-low, high), form.steps * 0.5), eps, None)
        return scale, xp.full_like(scale, form.middle, "int32")
    scale = xp.clip(xp.divide(high - low, form.steps), eps, None)
    return scale, law.integers(xp, form.qmin - xp.rint(xp.divide(low, scale)), form)


def check_scheme(scheme: Any, form: AffineInteger) -> None:
    check_choice("scheme", scheme, SCHEMES)
    if scheme == "affine" and form.storage == "int32" and form.qmin == INT32.qmin:
        raise ValueError("scheme='affine' for all of int32, whose zero point is always 0; allowed is 'symmetric'")


def choose_qparams_dynamic(low: A, high: A, form: AffineInteger, *, xp: type[Names] = Names) -> QParams[A]:
    """The parameters that fbgemm chooses for activations at run time: computed in float64, with scales from 6.1e-5 on.

    With l = min(low, 0) and h = max(high, 0), scale = (h - l) / (qmax - qmin), or 0.1 if this is below 2^-126, as of a
    range that is empty; a range with a NaN or an infinity in it has such a scale, too. A scale below float32(6.1e-5)
    becomes float32(6.1e-5), and l and h grow with it in float32. zero_point = rint(qmin - l / scale) or
    rint(qmax - h / scale), by the end of the range whose terms are smaller, clipped.

    Args:
        low, high: float32 arrays of shape (), low <= high.
        form: the integers.
        xp: the array namespace, with 64-bit types.

    Returns:
        A `QParams` without an axis: a float32 scale and an int32 zero point, of shape ().

    Raises:
        ValueError: if form is int32, or low > high, both being concrete.

    Example:
        >>> choose_qparams_dynamic(np.float32(0), np.float32(1e-4), AffineInteger(0, 255))
        QParams(scale=array(6.1e-05, dtype=float32), zero_point=array(0, dtype=int32), axis=None)
    """
    check_scheme("affine", check_form(form))
    check_range(low, high, xp)
    with xp.arithmetic():
        return dynamic_qparams(xp, low, high, form)


def dynamic_qparams(xp: Any, low: Any, high: Any, form: AffineInteger) -> QParams:
    """`choose_qparams_dynamic` without checks, within `xp.arithmetic()`."""
    steps = form.qmax - form.qmin
    low, high = xp.clip(low, None, 0), xp.clip(high, 0, None)
    scale = xp.divide(xp.astype(high, "float64") - xp.astype(low, "float64"), float(steps))
    scale = xp.where(scale < _NORMAL, xp.full_like(scale, 0.1, "float64"), scale)
    low, high, scale = _cut_off(xp, low, high, scale)
    below, above = xp.divide(xp.astype(low, "float64"), scale), xp.divide(xp.astype(high, "float64"), scale)
    # Both ends give a zero point; the one from the end with smaller terms has the smaller rounding error.
    nearer = abs(form.qmin) - abs(below) < abs(form.qmax) - abs(above)
    offset = xp.where(nearer, form.qmin - below, form.qmax - above)
    return QParams(xp.astype(scale, "float32"), law.integers(xp, xp.rint(offset), form))


def _cut_off(xp: Any, low: Any, high: Any, scale: Any) -> tuple[Any, Any, Any]:
    """Ranges whose scale would be below 6.1e-5 grow to it, by a factor in float32."""
    small = scale < _CUTOFF
    factor = xp.divide(xp.full_like(low, _CUTOFF, "float32"), xp.astype(scale, "float32"))
    larger = xp.full_like(scale, _CUTOFF, "float64")
    return xp.where(small, low * factor, low), xp.where(small, high * factor, high), xp.where(small, larger, scale)
