"""Models whose products can be compared one by one: each with the operands, and the gradient, of another program.

A compiler leaves roundings out between products, so two programs of one model differ soon. Here the first one records
what each product reads and the gradient that reaches its result; the second one computes each product from these.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Taps:
    """One run of a model.

    Attributes:
        tap: (x, probe, forced number or None, forced gradient or None) -> x, whose gradient is the probe's too.
        probes: for each tap a tensor of zeros, whose gradient is what arrives at the tap; None in the first run.
        forced: for each tap a number and a gradient, of which an operand takes the number and a result the gradient.
        numbers: what the taps saw.
        places: for each tap the product's name, and the operand's place or None for the result.
    """

    tap: Any
    probes: Any = None
    forced: Any = None
    numbers: list[Any] = field(default_factory=list)
    places: list[tuple[str, int | None]] = field(default_factory=list)

    def product(self, name: str, function: Any, *operands: Any) -> Any:
        """The result of a function that multiplies."""
        y = function(*[self._at(name, i, x) for i, x in enumerate(operands)])
        return self._at(name, None, y)

    def _at(self, name: str, operand: int | None, x: Any) -> Any:
        count = len(self.numbers)
        self.places.append((name, operand))
        if self.probes is not None:
            number, gradient = (None, None) if self.forced is None else self.forced[count]
            x = self.tap(
                x, self.probes[count], None if operand is None else number, None if operand is not None else gradient
            )
        self.numbers.append(x)
        return x
