"""The operations: their laws, or their tables, and the gradients of real functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from qcore.arithmetic import choices, elementary, law

Gradients = Callable[..., tuple[Any, ...]]


class Operation(NamedTuple):
    """An operation on numbers.

    Attributes:
        name: of the public function.
        law: (xp, *float64 arrays, down) -> the exact results, see `qcore.arithmetic.law`; `down` is True for rounding
            down, where a sum of opposite numbers is -0. None for functions that are tables of short formats.
        gradients: (xp, gradient, *arrays) -> the gradient of each array, of float64 arrays of float32 numbers. Products
            of two are exact, and all else is one division or root after the other: no compiler can contract it. None
            for tables.
        operands: how many there are.
    """

    name: str
    law: Callable[..., Any] | None
    gradients: Gradients | None
    operands: int


def _of_divide(xp: Any, g: Any, x: Any, y: Any) -> tuple[Any, ...]:
    return xp.divide(g, y), -xp.divide(g * x, y * y)


def _of_sqrt(xp: Any, g: Any, x: Any) -> tuple[Any, ...]:
    return (xp.divide(0.5 * g, xp.sqrt(x)),)


def _of_rsqrt(xp: Any, g: Any, x: Any) -> tuple[Any, ...]:
    return (xp.divide(xp.divide(-0.5 * g, x), xp.sqrt(x)),)


def _of_extremum(first: choices.First) -> Gradients:
    """The gradient is that of the operand which is the result."""

    def gradients(xp: Any, g: Any, x: Any, y: Any) -> tuple[Any, ...]:
        is_x, zero = first(xp, x, y), law.zeros(xp, g)
        return xp.where(is_x, g, zero), xp.where(is_x, zero, g)

    return gradients


def _of_abs(xp: Any, g: Any, x: Any) -> tuple[Any, ...]:
    return (xp.where(x == 0, law.zeros(xp, g), xp.where(x < 0, -g, g)),)


def _of_copysign(xp: Any, g: Any, x: Any, y: Any) -> tuple[Any, ...]:
    same = choices.is_negative(xp, x) == choices.is_negative(xp, y)
    return xp.where(same, g, -g), law.zeros(xp, g)


def _of_clamp(xp: Any, g: Any, x: Any, low: Any, high: Any) -> tuple[Any, ...]:
    zero = law.zeros(xp, g)
    below, above = xp.where(x < low, g, zero), xp.where(x > high, g, zero)
    return xp.where((x < low) | (x > high), zero, g), below, above


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("add", law.add, lambda xp, g, x, y: (g, g), 2),
        Operation("subtract", law.subtract, lambda xp, g, x, y: (g, -g), 2),
        Operation("multiply", law.multiply, lambda xp, g, x, y: (g * y, g * x), 2),
        Operation("divide", law.divide, _of_divide, 2),
        Operation("fma", law.fma, lambda xp, g, x, y, z: (g * y, g * x, g), 3),
        Operation("faa", law.faa, lambda xp, g, x, y, z: (g, g, g), 3),
        Operation("reciprocal", law.reciprocal, lambda xp, g, x: (-xp.divide(g, x * x),), 1),
        Operation("sqrt", law.sqrt, _of_sqrt, 1),
        Operation("rsqrt", law.rsqrt, _of_rsqrt, 1),
        Operation("negate", choices.negate, lambda xp, g, x: (-g,), 1),
        Operation("abs", choices.magnitude, _of_abs, 1),
        Operation("copysign", choices.copysign, _of_copysign, 2),
        Operation("clamp", choices.clamp, _of_clamp, 3),
        Operation("next_up", choices.next_up, lambda xp, g, x: (g,), 1),
        Operation("next_down", choices.next_down, lambda xp, g, x: (g,), 1),
        *(Operation(name, choices.chosen(one), _of_extremum(one), 2) for name, one in choices.EXTREMA.items()),
        *(Operation(name, None, None, 1) for name in elementary.REAL),
        *(Operation(name, None, None, 2) for name in elementary.REAL_OF_TWO),
    )
}
