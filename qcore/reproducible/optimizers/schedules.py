"""Learning rates as functions of the step, a float32 number from 0 on."""

from __future__ import annotations

from dataclasses import dataclass
from math import pi
from typing import Any

from qcore.arguments import check_float, check_int, quoted
from qcore.reproducible.differentiable import without_gradients


@dataclass(frozen=True)
class Cosine:
    """A linear rise to the rate over the first steps, then half a cosine down to the last rate.

    rate * (step + 1) / warmup, then last + (rate - last) * sin^2(pi / 2 * r), where r is the part of the steps that is
    left. The sine is evaluated in float64 and its square rounded once; all else is float32.

    Attributes:
        rate: the highest rate, at least 0.
        steps: after which the last rate stays.
        warmup: steps of the rise, fewer than all.
        last: the last rate, at least 0.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import numpy as np
        >>> from qcore import reproducible
        >>> [float(reproducible.rate(Cosine(1.0, 10, warmup=2), np.float32(step))) for step in (0, 1, 6, 10)]
        [0.5, 1.0, 0.5, 0.0]
    """

    rate: float
    steps: int
    warmup: int = 0
    last: float = 0.0

    def __post_init__(self) -> None:
        _set_floats(self, "rate", "last")
        check_int("steps", self.steps, 1)
        check_int("warmup", self.warmup, 0, self.steps - 1)

    def at(self, xp: Any, step: Any) -> Any:
        """The rate at a step, by the law."""
        left = xp.wide(xp.sub(float(self.steps), step)) / float(self.steps - self.warmup)
        sine = xp.sin(xp.where(left > 0, left, 0.0) * (pi / 2))
        falling = xp.add(xp.mul(xp.narrow(sine * sine), self.rate - self.last), self.last)
        rising = xp.div(xp.mul(xp.add(step, 1.0), self.rate), float(max(self.warmup, 1)))
        return xp.where(step < self.warmup, rising, falling)


@dataclass(frozen=True)
class Milestones:
    """A rate that is multiplied with a factor at some steps, each product rounded to float32.

    Attributes:
        rate: the first rate, at least 0.
        milestones: the steps from which on it is multiplied once more, in ascending order.
        factor: what it is multiplied with, at least 0.

    Raises:
        TypeError, ValueError: if an argument is not as above.

    Example:
        >>> import numpy as np
        >>> from qcore import reproducible
        >>> [float(reproducible.rate(Milestones(1.0, (10, 20), 0.5), np.float32(step))) for step in (9, 10, 20)]
        [1.0, 0.5, 0.25]
    """

    rate: float
    milestones: tuple[int, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        _set_floats(self, "rate", "factor")
        if not isinstance(self.milestones, tuple | list):
            kind = type(self.milestones).__name__
            raise TypeError(f"milestones={quoted(self.milestones)} is a {kind}; allowed is a tuple of ints")
        milestones = tuple([check_int(f"milestones[{i}]", one, 0) for i, one in enumerate(self.milestones)])
        if list(milestones) != sorted(milestones):
            raise ValueError(f"milestones={milestones}; allowed is an ascending order")
        object.__setattr__(self, "milestones", milestones)

    def at(self, xp: Any, step: Any) -> Any:
        """The rate at a step, by the law."""
        rate = step * 0.0 + self.rate
        for milestone in self.milestones:
            rate = xp.where(step >= milestone, xp.mul(rate, self.factor), rate)
        return rate


def _set_floats(schedule: Cosine | Milestones, *names: str) -> None:
    for name in names:
        object.__setattr__(schedule, name, check_float(name, getattr(schedule, name)))


RATE = without_gradients(lambda xp, step, schedule: schedule.at(xp, step))
