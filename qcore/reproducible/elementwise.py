"""Functions of two float32 arrays that broadcast, and their gradients: arithmetic, powers, extremes, comparisons."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from qcore.arguments import check_broadcast
from qcore.binding import public
from qcore.reproducible.binding import compared, of_two
from qcore.reproducible.differentiable import Differentiable, without_gradients
from qcore.reproducible.elementary import PARTS, ElementaryFunctions
from qcore.reproducible.operations import unbroadcast


def _binary(
    forward: Callable[..., Any], backward: Callable[..., tuple[Any, Any]], fusible: bool = True
) -> Differentiable:
    """The law of forward(xp, a, b), and of gradients backward(xp, a, b, gradient) that have the result's shape."""

    def run(xp: Any, a: Any, b: Any) -> tuple[Any, tuple[Any, Any]]:
        return forward(xp, a, b), (a, b)

    def gradients(xp: Any, saved: tuple[Any, Any], gradient: Any) -> tuple[Any, Any]:
        of_a, of_b = backward(xp, *saved, gradient)
        return unbroadcast(xp, of_a, saved[0].shape), unbroadcast(xp, of_b, saved[1].shape)

    return Differentiable(run, gradients, fusible=fusible)


def _sum(forward: Callable[..., Any], sign: Callable[[Any], Any]) -> Differentiable:
    """The law of a sum or difference: a gets the gradient of the result, b the same with a sign.

    Arrays of the result's shape are not saved: the gradients only read shapes.
    """

    def run(xp: Any, a: Any, b: Any) -> tuple[Any, tuple[Any, Any]]:
        found = forward(xp, a, b)
        a, b = (None if tuple(x.shape) == tuple(found.shape) else x for x in (a, b))
        return found, (a, b)

    def gradients(xp: Any, saved: tuple[Any, Any], gradient: Any) -> tuple[Any, ...]:
        pairs = zip((gradient, sign(gradient)), saved, strict=True)
        return tuple([found if x is None else unbroadcast(xp, found, x.shape) for found, x in pairs])

    return Differentiable(run, gradients, by_pieces=True)


def _of_quotient(xp: Any, a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    # Two quotients, and no square of b: it would overflow, or become zero, where the quotients do not.
    of_a = xp.div(gradient, b)
    return of_a, -xp.mul(of_a, xp.div(a, b))


def _of_power(xp: Any, a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    """The gradients of a^b: 0 for a where b is 0, and 0 for b where a is 0."""
    # Chosen by `where`: the products 0 * inf there would be NaN.
    slope = xp.mul(b, xp.power(a, xp.sub(b, 1.0)))
    change = xp.mul(xp.power(a, b), PARTS["log"](xp, a))
    of_a = xp.mul(gradient, xp.where(b == 0, 0.0, slope))
    return of_a, xp.mul(gradient, xp.where(a == 0, 0.0, change))


def _greater(xp: Any, a: Any, b: Any) -> Any:
    # A NaN of a is asked for, one of b is not: it makes the first comparison False, and so is taken.
    return xp.where((a >= b) | (a != a), a, b)


def _lesser(xp: Any, a: Any, b: Any) -> Any:
    return xp.where((a <= b) | (a != a), a, b)


def _of_greater(xp: Any, a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    """The gradients of the maximum; equal numbers share it, half each."""
    equal = xp.where(a == b, xp.mul(gradient, 0.5), 0.0)
    return xp.where(a > b, gradient, equal), xp.where(a < b, gradient, equal)


def _of_lesser(xp: Any, a: Any, b: Any, gradient: Any) -> tuple[Any, Any]:
    """The gradients of the maximum with a and b exchanged."""
    return _of_greater(xp, b, a, gradient)


def _prelu(xp: Any, x: Any, weight: Any) -> tuple[Any, tuple[Any, Any]]:
    return xp.where(x > 0, x, xp.mul(x, weight)), (x, weight)


def _of_prelu(xp: Any, saved: tuple[Any, Any], gradient: Any) -> tuple[Any, Any]:
    x, weight = saved
    of_x = xp.where(x > 0, gradient, xp.mul(gradient, weight))
    of_weight = xp.where(x > 0, xp.zeros((), gradient), xp.mul(gradient, x))
    return of_x, unbroadcast(xp, of_weight, weight.shape)


def _compared(xp: Any, a: Any, b: Any, relation: str) -> Any:
    return getattr(operator, relation)(a, b)


ADD = _sum(lambda xp, a, b: xp.add(a, b), lambda gradient: gradient)
SUB = _sum(lambda xp, a, b: xp.sub(a, b), lambda gradient: -gradient)
MUL = _binary(lambda xp, a, b: xp.mul(a, b), lambda xp, a, b, gradient: (xp.mul(gradient, b), xp.mul(gradient, a)))
DIV = _binary(lambda xp, a, b: xp.div(a, b), _of_quotient)
POW = _binary(lambda xp, a, b: xp.power(a, b), _of_power, fusible=False)
MAXIMUM = _binary(_greater, _of_greater)
MINIMUM = _binary(_lesser, _of_lesser)
PRELU = Differentiable(_prelu, _of_prelu)
COMPARED = without_gradients(_compared, fusible=False)


_ZEROS = "numbers of magnitude at most 2^-126 are zeros"


class ArithmeticFunctions(ElementaryFunctions):
    """`ElementaryFunctions`, and functions of two arrays."""

    add = of_two("add", ADD, "a + b.", "[1.0, 2]", "0.5", "[1.5, 2.5]")
    subtract = of_two("subtract", SUB, "a - b.", "[1.0, 2]", "0.5", "[0.5, 1.5]")
    multiply = of_two("multiply", MUL, "a * b, never contracted with a sum.", "[1.0, 2]", "0.5", "[0.5, 1.0]")
    divide = of_two("divide", DIV, "a / b, never a product with 1 / b.", "[1.0, 2]", "4.0", "[0.25, 0.5]")
    pow = of_two(
        "pow",
        POW,
        "a^b, within 0.500001 units in the last place.",
        "[2.0, -2]",
        "[0.5, 3]",
        "[1.4142135381698608, -8.0]",
    )
    maximum = of_two(
        "maximum",
        MAXIMUM,
        "The greater number; NaN if one of both is. Of equal ones the first is taken, and they share the gradient.",
        "[1.0, 2]",
        "1.5",
        "[1.5, 2.0]",
    )
    minimum = of_two(
        "minimum",
        MINIMUM,
        "The lesser number; NaN if one of both is. Of equal ones the first is taken, and they share the gradient.",
        "[1.0, 2]",
        "1.5",
        "[1.0, 1.5]",
    )
    equal = compared(
        "equal", COMPARED, "eq", f"a == b; {_ZEROS}, and NaN equals nothing.", "[0.0, 1]", "[1e-40, 2]", "[True, False]"
    )
    less = compared(
        "less",
        COMPARED,
        "lt",
        f"a < b; {_ZEROS}, and NaN is less than nothing.",
        "[0.0, 1]",
        "[1e-40, 2]",
        "[False, True]",
    )
    less_equal = compared(
        "less_equal",
        COMPARED,
        "le",
        f"a <= b; {_ZEROS}, and NaN is less than nothing.",
        "[0.0, 3]",
        "[1e-40, 2]",
        "[True, False]",
    )

    @public
    def prelu(self, x: Any, weight: Any) -> Any:
        """x where it is above 0, else weight * x; the gradient of a weight is a `sum`.

        Args:
            x: float32 array.
            weight: float32 array that broadcasts to x; for channels of shape (channels, 1, ...).

        Returns:
            A float32 array of x's shape.

        Example:
            >>> reproducible.prelu(np.float32([-2.0, 3]), np.float32([0.25])).tolist()
            [-0.5, 3.0]
        """
        x, weight = self.float32("x", x), self.float32("weight", weight)
        check_broadcast("x", x.shape, "weight", weight.shape)
        return self.call(PRELU, x, weight)
