"""A law with its gradients, and how it runs on arrays of any namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from qcore.numerics.operations import Names

_numbers = count()


@dataclass(frozen=True, eq=False)
class Differentiable:
    """A law and its gradients, both written for settled float32 arrays; see `qcore.numerics`.

    Attributes:
        forward: (xp, *arrays, **options) -> the result, or a tuple of results, and a tuple of the arrays to save.
        backward: (xp, saved, gradient, **options) -> a tuple of the gradients of all arrays, None where there is none.
            If results are a tuple, so are their gradients.
        name: another one for each law. A traced program looks up a text for less than an object.
    """

    forward: Callable[..., tuple[Any, tuple[Any, ...]]]
    backward: Callable[..., tuple[Any, ...]]
    name: str = field(init=False, default_factory=lambda: f"law {next(_numbers)}")

    @property
    def no_second_derivative(self) -> str:
        """What is said where a gradient of the law is differentiated: its steps round, and have no derivatives."""
        name = self.forward.__name__.strip("_")
        named = f"{name}, a function" if name.isidentifier() and name != "forward" else "a function"
        return (
            f"{named} with defined bits, has first derivatives only; allowed for second derivatives are the "
            "framework's own functions, and the products of qtorch.linalg and qjax.linalg"
        )

    def run(self, xp: Any, arrays: Sequence[Any], options: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """The result and what is saved; arguments need not be settled."""
        with xp.arithmetic():
            result, saved = self.forward(xp, *(_entered(xp, x) for x in arrays), **options)
            return _returned(xp, result), saved

    def gradients(self, xp: Any, saved: Any, gradient: Any, options: dict[str, Any]) -> tuple[Any, ...]:
        """The gradients of all arrays."""
        with xp.arithmetic():
            entered = tuple(_entered(xp, g) for g in gradient) if isinstance(gradient, tuple) else None
            found = self.backward(xp, saved, entered or _entered(xp, gradient), **options)
            return _returned(xp, found)


def without_gradients(function: Callable[..., Any]) -> Differentiable:
    """The law of function(xp, *arrays, **options), which is not differentiated."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise TypeError("this function has no gradients; allowed are arguments that need none")

    return Differentiable(lambda xp, *arrays, **options: (function(xp, *arrays, **options), ()), refuse)


def apply(law: Differentiable, *arrays: Any, **options: Any) -> Any:
    """The result of a law on NumPy arrays."""
    return law.run(Names, arrays, options)[0]


def _entered(xp: Any, x: Any) -> Any:
    return x if x is None or not xp.is_float32(x) else xp.settled(x)


def _returned(xp: Any, found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(_returned(xp, one) for one in found)
    return found if found is None or not xp.is_float32(found) else xp.one_nan(found)
