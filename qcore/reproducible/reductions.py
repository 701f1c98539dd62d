"""Reductions along axes; their sums have the order of `qcore.reproducible.operations.tree_sums`."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, prod
from typing import Any

from qcore.arguments import check_int
from qcore.binding import public
from qcore.reproducible.binding import Axes, Axis, reduced_axes, reduction
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary import PARTS
from qcore.reproducible.elementwise import ArithmeticFunctions
from qcore.reproducible.operations import dot, expanded, squeezed, total

exp, log = PARTS["exp"], PARTS["log"]


def size(x: Any, axes: Axes) -> int:
    """The number of elements along axes."""
    return prod([x.shape[axis] for axis in axes])


def mean(xp: Any, x: Any, axes: Axes) -> Any:
    """The sum, rounded to float32, divided by the number of elements."""
    # A division: a product with the inverse of the number would round twice.
    return xp.div(total(xp, x, axes), float(size(x, axes)))


def greatest(xp: Any, x: Any, axes: Axes) -> Any:
    """The greatest numbers along axes, which stay; a zero is +0."""
    found = xp.greatest(x, axes)  # frameworks differ in the sign of a zero here
    return xp.where(found == 0, 0.0, found)


def _reduction(forward: Callable[..., Any], backward: Callable[..., Any], by_pieces: bool = False) -> Differentiable:
    """The law of forward(xp, x, axes) and of backward(xp, x, result, gradient, axes), with axes of length 1 kept."""

    def run(xp: Any, x: Any, axes: Axes, keepdims: bool, **options: Any) -> tuple[Any, tuple[Any, Any]]:
        found = forward(xp, x, axes, **options)
        return found if keepdims else squeezed(found, axes), (x, found)

    def gradients(xp: Any, saved: tuple[Any, Any], gradient: Any, axes: Axes, keepdims: bool, **options: Any) -> Any:
        gradient = gradient if keepdims else expanded(gradient, axes, saved[0].ndim)
        found = backward(xp, *saved, gradient, axes, **options)
        return (xp.broadcast_to(found, tuple(saved[0].shape)),)

    return Differentiable(run, gradients, by_pieces)


def _divisor(x: Any, axes: Axes, correction: int) -> float:
    """The number of elements less the correction; 0 at least, as in torch, so that the quotient is infinite or NaN."""
    return float(max(size(x, axes) - correction, 0))


def _variance(xp: Any, x: Any, axes: Axes, correction: int) -> Any:
    # In two passes: the mean of squares less the square of the mean would cancel.
    centred = xp.sub(x, mean(xp, x, axes))
    return xp.div(dot(xp, centred, centred, axes), _divisor(x, axes, correction))


def _of_variance(xp: Any, x: Any, found: Any, gradient: Any, axes: Axes, correction: int) -> Any:
    centred = xp.sub(x, mean(xp, x, axes))
    return xp.mul(centred, xp.div(xp.mul(gradient, 2.0), _divisor(x, axes, correction)))


def _of_norm(xp: Any, x: Any, found: Any, gradient: Any, axes: Axes) -> Any:
    # At zero the norm has no derivative; 0 is its subgradient of least norm, and x / 0 would be NaN.
    return xp.mul(gradient, xp.where(found == 0, 0.0, xp.div(x, found)))


def _of_greatest(xp: Any, x: Any, found: Any, gradient: Any, axes: Axes) -> Any:
    """The gradient of the maximum; all elements that are equal to it share it."""
    chosen = x == found
    count = total(xp, xp.where(chosen, 1.0, xp.zeros(tuple(x.shape), x)), axes)
    return xp.where(chosen, xp.div(gradient, count), 0.0)


def _logsumexp(xp: Any, x: Any, axes: Axes) -> Any:
    # Less the greatest, no exponential overflows. An infinity is not taken out: infinity less infinity would be NaN.
    most = xp.greatest(x, axes)
    most = xp.where(abs(most) == inf, 0.0, most)
    return xp.add(most, log(xp, total(xp, exp(xp, xp.sub(x, most)), axes)))


def _of_logsumexp(xp: Any, x: Any, found: Any, gradient: Any, axes: Axes) -> Any:
    return xp.mul(gradient, exp(xp, xp.sub(x, found)))


SUM = _reduction(total, lambda xp, x, found, gradient, axes: gradient, by_pieces=True)
MEAN = _reduction(mean, lambda xp, x, found, gradient, axes: xp.div(gradient, float(size(x, axes))), by_pieces=True)
VAR = _reduction(_variance, _of_variance)
NORM = _reduction(lambda xp, x, axes: xp.sqrt(dot(xp, x, x, axes)), _of_norm)
MAX = _reduction(greatest, _of_greatest, by_pieces=True)
LOGSUMEXP = _reduction(_logsumexp, _of_logsumexp)


class ReductionFunctions(ArithmeticFunctions):
    """`ArithmeticFunctions`, and reductions of float32 arrays."""

    sum = reduction(
        "sum",
        SUM,
        "The sum along axes, in float64 and rounded once: each axis by halves of its index, an odd rest appended.",
        "[[1.0, 2], [3, 4]]",
        "[3.0, 7.0]",
    )
    mean = reduction("mean", MEAN, "`sum`, divided by the number of elements.", "[[1.0, 2], [3, 4]]", "[1.5, 3.5]")
    norm = reduction(
        "norm", NORM, "The square root of the rounded sum of the exact squares.", "[[3.0, 4], [6, 8]]", "[5.0, 10.0]"
    )
    max = reduction(
        "max",
        MAX,
        "The greatest number, NaN if there is one; a zero is +0. Equal ones share the gradient.",
        "[[1.0, 2], [-0.0, -3]]",
        "[2.0, 0.0]",
        empty=False,
    )
    logsumexp = reduction(
        "logsumexp",
        LOGSUMEXP,
        "max + log(sum(exp(x - max))).",
        "[[0.0, -np.inf], [5, -np.inf]]",
        "[0.0, 5.0]",
        empty=False,
    )

    @public
    def var(self, x: Any, axis: Axis = None, keepdims: bool = False, correction: int = 1) -> Any:
        """The sum of the exact squares of x - mean, rounded, divided by the number of elements less a correction.

        Args:
            x: float32 array.
            axis: one axis, several, or all with None.
            keepdims: True to keep the axes with length 1.
            correction: at least 0; 1 for the unbiased variance, 0 for the variance of the numbers themselves.

        Returns:
            A float32 array of x's shape without the axes, or with length 1 there for keepdims.

        Example:
            >>> reproducible.var(np.float32([[1.0, 2], [3, 5]]), axis=1).tolist()
            [0.5, 2.0]
        """
        x, correction = self.float32("x", x), check_int("correction", correction, 0)
        return self.call(VAR, x, axes=reduced_axes(x, axis, keepdims), keepdims=keepdims, correction=correction)
