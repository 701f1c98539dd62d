"""A law with its gradients, and how it runs on arrays of any namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

_numbers = count()


@dataclass(frozen=True, eq=False)
class Differentiable:
    """A law and its gradients, both written for settled float32 arrays; see `qcore.reproducible`.

    Attributes:
        forward: (xp, *arrays, **options) -> the result, or a tuple of results, and a tuple of the arrays to save.
        backward: (xp, saved, gradient, **options) -> a tuple with the gradient of each array, or None. If results are a
            tuple, so are their gradients.
        by_pieces: True if gradients depend on the arrays only by choices, such as the place of the greatest number.
            Second derivatives then take saved arrays for constants; else the arrays themselves are kept for them.
        several: True if results are a tuple, even of one array.
        fusible: False if PyTorch runs the law operation by operation: it uses names that
            `qtorch.reproducible.fused.trace` does not have.
        name: a name that differs between laws. A traced program looks up a text faster than an object.
    """

    forward: Callable[..., tuple[Any, tuple[Any, ...]]]
    backward: Callable[..., tuple[Any, ...]]
    by_pieces: bool = False
    several: bool = False
    fusible: bool = True
    name: str = field(init=False, default_factory=lambda: f"law {next(_numbers)}")

    def run(self, xp: Any, arrays: Sequence[Any], options: dict[str, Any]) -> tuple[Any, tuple[Any, ...]]:
        """The result and the saved arrays; arguments need not be settled."""
        with xp.arithmetic():
            result, saved = self.forward(xp, *(_entered(xp, x) for x in arrays), **options)
            return _returned(xp, result), saved

    def gradient_of(self, gradients: tuple[Any, ...]) -> Any:
        """The gradient argument of `backward`, from the gradients of all results."""
        return gradients[0] if len(gradients) == 1 and not self.several else gradients

    def gradients(self, xp: Any, saved: Any, gradient: Any, options: dict[str, Any]) -> tuple[Any, ...]:
        """The gradients of all arrays."""
        with xp.arithmetic():
            entered = tuple(_entered(xp, g) for g in gradient) if isinstance(gradient, tuple) else None
            found = self.backward(xp, saved, entered or _entered(xp, gradient), **options)
            return _returned(xp, found)

    def smooth_gradients(
        self, xp: Any, arrays: Sequence[Any], saved: Sequence[Any], gradient: Any, options: dict[str, Any]
    ) -> tuple[Any, ...]:
        """The gradients as differentiable functions of float64 arrays and gradients.

        Args:
            xp: an array namespace with `Unrounded`.
            arrays: the arrays of the forward pass; laws `by_pieces` do not read them.
            saved: the arrays that the forward pass saved; only laws `by_pieces` read them.
            gradient: the gradient of the result, or a tuple for several results.
            options: the law's options.
        """
        with xp.arithmetic():
            kept = saved if self.by_pieces else self.forward(xp, *arrays, **options)[1]
            return self.backward(xp, tuple(kept), gradient, **options)


def without_gradients(function: Callable[..., Any], fusible: bool = True) -> Differentiable:
    """The law of function(xp, *arrays, **options), which has no gradients."""

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise TypeError("this function has no gradients; allowed are arguments that need none")

    def forward(xp: Any, *arrays: Any, **options: Any) -> tuple[Any, tuple[()]]:
        return function(xp, *arrays, **options), ()

    return Differentiable(forward, refuse, fusible=fusible)


def _entered(xp: Any, x: Any) -> Any:
    return x if x is None or not xp.is_float32(x) else xp.settled(x)


def _returned(xp: Any, found: Any) -> Any:
    if isinstance(found, tuple):
        return tuple(_returned(xp, one) for one in found)
    return found if found is None or not xp.is_float32(found) else xp.one_nan(found)
