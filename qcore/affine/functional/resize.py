"""Images of quantized arrays in other sizes: places and weights are those of `torch.nn.functional.interpolate`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qcore.affine.functional.operands import check_operand, computed
from qcore.affine.integers import AffineInteger
from qcore.affine.parameters import QParams
from qcore.affine.quantized import Q
from qcore.affine.rows import operation
from qcore.arguments import check_choice, check_flag, check_size, quoted

__all__ = ["interpolate"]


@operation(passing=["Upsample"], rounds=True)
def interpolate(
    input: Q,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Q:
    """Resizes images: to the nearest integers, or to the rounded bilinear mean of integers.

    The bilinear mean is in float32, h0 * (w0 * a + w1 * b) + h1 * (w0 * c + w1 * d), every operation rounded. The
    parameters stay.

    Args:
        input: quantized array of shape (batch, channels, *sizes), with one to three sizes; two for "bilinear".
        size: the size of the result, for all dimensions or for each.
        scale_factor: the size of the result as a multiple of the input's; exactly one of size and scale_factor is
            given.
        mode: "nearest" or "bilinear".
        align_corners: True if "bilinear" keeps the elements at the corners; None means False.

    Returns:
        A quantized array of shape (batch, channels, *new sizes), with input's form and parameters.

    Raises:
        ValueError: if shapes or settings do not fit, or input has a scale for each channel.

    Example:
        >>> import numpy as np
        >>> from qcore.affine import UINT8, QArray, QParams
        >>> q = QArray(np.uint8([[[[0, 100]]]]), QParams.of(0.1, 7), UINT8)
        >>> interpolate(q, (1, 4), mode="bilinear").values
        array([[[[  0,  25,  75, 100]]]], dtype=uint8)
    """
    check_operand("input", input)
    check_choice("mode", mode, ("nearest", "bilinear"))
    sizes = tuple(input.shape)[2:]
    if len(sizes) not in ((2,) if mode == "bilinear" else (1, 2, 3)):
        raise ValueError(
            f"input has shape {tuple(input.shape)} with mode={quoted(mode)}; allowed is (batch, channels, *sizes)"
        )
    if align_corners is not None:
        if mode == "nearest":
            raise ValueError(f"align_corners={quoted(align_corners)} with mode='nearest'; allowed is None")
        check_flag("align_corners", align_corners)
    along = _dimensions(sizes, size, scale_factor)
    return computed(_interpolated, (input,), input.qparams, input.form, along, mode, bool(align_corners))


def _interpolated(q: Any, _: QParams, form: AffineInteger, along: tuple[_Along, ...], mode: str, aligned: bool) -> Any:
    if mode == "bilinear":
        return _bilinear(q.names, q, along, aligned)
    x = q.values  # integers are picked, never computed, so the parameters stay
    for number, dimension in enumerate(along):
        x = x[(*(slice(None),) * (2 + number), dimension.nearest(q.names, x))]
    return x


class _Along(NamedTuple):
    """A dimension: its size, the size of the result, and the distance of the result's neighbours in the input."""

    old: int
    new: int
    step: float | None

    def distance(self, aligned: bool) -> float:
        """The given step, or the quotient of both sizes; it is rounded to float32 where it is used."""
        if aligned:
            return (self.old - 1) / max(self.new - 1, 1)
        return self.old / self.new if self.step is None else self.step

    def nearest(self, xp: Any, like: Any) -> Any:
        """For each index of the result the nearest index here."""
        return self._index(xp, _times(xp, xp.arange(self.new, like), self.distance(False)))

    def neighbours(self, xp: Any, like: Any, aligned: bool) -> tuple[Any, Any, Any]:
        """For each index of the result the two indices around it here, and the weight of the second."""
        places, step = xp.arange(self.new, like), self.distance(aligned)
        sources = _times(xp, places, step) if aligned else _times(xp, 2 * places + 1, step / 2) - 0.5
        # In front of the first middle torch repeats the first element; behind the last, the upper index is clipped.
        sources = xp.clip(sources, 0.0, None)
        lower = self._index(xp, sources)
        return lower, xp.clip(lower + 1, 0, self.old - 1), sources - xp.astype(lower, "float32")

    def _index(self, xp: Any, sources: Any) -> Any:
        return xp.clip(xp.astype(xp.floor(sources), "int32"), 0, self.old - 1)


def _times(xp: Any, places: Any, step: float) -> Any:
    """Integers times float32(step), rounded."""
    return xp.rounded(xp.astype(places, "float32") * xp.full((), step, "float32"))


def _dimensions(sizes: tuple[int, ...], size: Any, scale_factor: Any) -> tuple[_Along, ...]:
    if (size is None) == (scale_factor is None):
        raise ValueError(f"size={quoted(size)} and scale_factor={quoted(scale_factor)}; allowed is one of them")
    asked = scale_factor if size is None else size
    asked = tuple(asked) if isinstance(asked, (tuple, list)) else (asked,) * len(sizes)
    if len(asked) != len(sizes):
        raise ValueError(
            f"{'scale_factor' if size is None else 'size'}={asked}; allowed are one number or {len(sizes)}"
        )
    if size is not None:
        return tuple(_Along(old, check_size("size", new), None) for old, new in zip(sizes, asked, strict=True))
    for factor in asked:
        if not isinstance(factor, (int, float)) or not 0 < factor < float("inf"):
            raise ValueError(f"scale_factor={quoted(factor)}; allowed are finite numbers above 0")
    return tuple(
        _Along(old, check_size("size * scale_factor", int(old * factor)), 1.0 / factor)
        for old, factor in zip(sizes, asked, strict=True)
    )


def _bilinear(xp: Any, q: Any, along: tuple[_Along, ...], aligned: bool) -> Any:
    # Along the width first: the order of roundings is that of the formula in `interpolate`.
    x = xp.astype(xp.astype(q.values, "int32"), "float32")
    for axis, dimension in ((3, along[1]), (2, along[0])):
        lower, upper, weight = dimension.neighbours(xp, x, aligned)
        weight = weight.reshape((-1, *(1,) * (3 - axis)))
        rest = (slice(None),) * axis
        x = xp.rounded(x[(*rest, lower)] * (1.0 - weight)) + xp.rounded(x[(*rest, upper)] * weight)
    return xp.clip(xp.rint(x), q.form.low, q.form.high)
