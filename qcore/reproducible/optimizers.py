"""Steps of SGD, Adam and AdamW, clipping of gradients, and learning rates; every operation is rounded to float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log, pi
from typing import Any

from qcore.arguments import check_flag, check_float, check_int, check_type, quoted
from qcore.binding import public
from qcore.namespace import A
from qcore.reproducible.differentiable import without_gradients
from qcore.reproducible.elementary import expm1
from qcore.reproducible.operations import Names, dot, total
from qcore.reproducible.pooling import LayerFunctions


def sgd_options(momentum: float, nesterov: bool, weight_decay: float) -> dict[str, Any]:
    """The options of `sgd_step`, checked, as the law takes them."""
    check_flag("nesterov", nesterov)
    momentum, weight_decay = check_float("momentum", momentum), check_float("weight_decay", weight_decay)
    if nesterov and not momentum:
        raise ValueError(f"nesterov=True with momentum={momentum}; allowed is a momentum above 0")
    return {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}


def _sgd(
    xp: Any, p: Any, gradient: Any, velocity: Any, rate: Any, momentum: float, nesterov: bool, weight_decay: float
) -> tuple[Any, Any]:
    """The parameter and the velocity after a step; terms with a factor of 0 are left out."""
    # Left out, as a sum with 0 * p is not the identity: it makes +0 of -0, and NaN where p is infinite.
    if weight_decay:
        gradient = xp.add(gradient, xp.mul(p, weight_decay))
    if velocity is not None:
        velocity = xp.add(xp.mul(velocity, momentum), gradient)
        gradient = xp.add(gradient, xp.mul(velocity, momentum)) if nesterov else velocity
    return xp.sub(p, xp.mul(gradient, rate)), velocity


def adam_options(betas: Any, eps: float, weight_decay: float) -> dict[str, Any]:
    """The numbers among the options of `adam_step`, checked, as the law takes them."""
    try:
        first, second = betas
    except (TypeError, ValueError):
        raise ValueError(f"betas={quoted(betas)}; allowed are two numbers from 0 to below 1") from None
    return {
        "betas": (_check_beta("betas[0]", first), _check_beta("betas[1]", second)),
        "eps": check_float("eps", eps),
        "weight_decay": check_float("weight_decay", weight_decay),
    }


def _check_beta(name: str, beta: Any) -> float:
    return check_float(name, beta, "a number from 0 to below 1", lambda number: 0 <= number < 1)


def _adam(
    xp: Any,
    p: Any,
    gradient: Any,
    first: Any,
    second: Any,
    step: Any,
    rate: Any,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> tuple[Any, Any, Any]:
    """(p, first moment, second moment) after a step; all but the last line are in the order of torch's formulas.

    gradient <- gradient + weight_decay * p, or decoupled p <- p * (1 - rate * weight_decay);
    first <- beta1 * first + (1 - beta1) * gradient; second <- beta2 * second + (1 - beta2) * (gradient * gradient);
    p <- p - rate / (1 - beta1^step) * (first / (sqrt(second) / sqrt(1 - beta2^step) + eps)).
    """
    if weight_decay and decoupled:
        p = xp.mul(p, xp.sub(1.0, xp.mul(rate, weight_decay)))
    elif weight_decay:
        gradient = xp.add(gradient, xp.mul(p, weight_decay))
    first = xp.add(xp.mul(first, betas[0]), xp.mul(gradient, 1.0 - betas[0]))
    second = xp.add(xp.mul(second, betas[1]), xp.mul(xp.mul(gradient, gradient), 1.0 - betas[1]))
    root = xp.div(xp.sqrt(second), xp.sqrt(_correction(xp, betas[1], step)))
    change = xp.div(first, xp.add(root, eps))
    return xp.sub(p, xp.mul(change, xp.div(rate, _correction(xp, betas[0], step)))), first, second


def _correction(xp: Any, beta: float, step: Any) -> Any:
    """1 - beta^step, as a function of one float32 number, evaluated in float64 and rounded once."""
    # By expm1: for a beta next to 1 the difference would cancel at the first steps. log(0) does not exist, so beta = 0
    # is a case of its own; the sum makes 1 an array of the step's framework.
    return xp.float32(-expm1(xp, xp.float64(step) * log(beta))) if beta else step * 0.0 + 1.0


def _clip(xp: Any, *gradients: Any, max_norm: float) -> tuple[Any, ...]:
    """All gradients times min(1, max_norm / (norm + 1e-6)), and the norm last.

    The sum of the exact squares of each gradient is rounded to float32, then the sum of these, then the square root.
    """
    # One sum for each gradient, so that the norm does not depend on how they would be concatenated.
    squares = [dot(xp, g, g, tuple(range(g.ndim))).reshape((1,)) for g in gradients]
    norm = xp.sqrt(total(xp, xp.concatenate(squares, 0), (0,))).reshape(())
    factor = xp.div(max_norm + norm * 0.0, xp.add(norm, 1e-6))
    factor = xp.where(factor > 1.0, 1.0, factor)
    return *(xp.mul(g, factor) for g in gradients), norm


@dataclass(frozen=True)
class Cosine:
    """A linear rise to the rate over the first steps, then half a cosine down to the last rate.

    rate * (step + 1) / warmup, then last + (rate - last) * sin^2(pi / 2 * r), where r is the part of the steps that is
    left. The sine is evaluated in float64 and its square rounded once; all else is float32.

    Attributes:
        rate: the highest rate, at least 0.
        steps: the number of steps after which the last rate stays.
        warmup: the number of steps of the rise, less than `steps`.
        last: the last rate, at least 0.

    Example:
        >>> import numpy as np
        >>> from qcore import reproducible
        >>> [
        ...     float(reproducible.rate(Cosine(1.0, 10, warmup=2), np.float32(step)))
        ...     for step in (0, 1, 6, 10)
        ... ]
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

    def at(self, xp: type[Names], step: A) -> A:
        """The rate at a step, by the law."""
        # As a square of a sine: (1 + cos) / 2 would cancel near the end, where the rate is small.
        left: Any = xp.float64(xp.sub(float(self.steps), step))
        left = left / float(self.steps - self.warmup)
        sine = xp.sin(xp.where(left > 0, left, 0.0) * (pi / 2))
        falling = xp.add(xp.mul(xp.float32(sine * sine), self.rate - self.last), self.last)
        rising = xp.div(xp.mul(xp.add(step, 1.0), self.rate), float(max(self.warmup, 1)))
        return xp.where(step < self.warmup, rising, falling)


@dataclass(frozen=True)
class Milestones:
    """A rate that is multiplied with a factor at some steps, each product rounded to float32.

    Attributes:
        rate: the first rate, at least 0.
        milestones: the steps from which on the rate is multiplied once more, in ascending order.
        factor: the factor at each milestone, at least 0.

    Example:
        >>> import numpy as np
        >>> from qcore import reproducible
        >>> [
        ...     float(reproducible.rate(Milestones(1.0, (10, 20), 0.5), np.float32(step)))
        ...     for step in (9, 10, 20)
        ... ]
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

    def at(self, xp: type[Names], step: A) -> A:
        """The rate at a step, by the law."""
        # One product for each milestone, as a loop over steps would make them; a power would round otherwise.
        rate = step * 0.0 + self.rate
        for milestone in self.milestones:
            rate = xp.where(step >= milestone, xp.mul(rate, self.factor), rate)
        return rate


def _set_floats(schedule: Cosine | Milestones, *names: str) -> None:
    for name in names:
        object.__setattr__(schedule, name, check_float(name, getattr(schedule, name)))


SGD = without_gradients(_sgd)
ADAM = without_gradients(_adam)
CLIP = without_gradients(_clip)
RATE = without_gradients(lambda xp, step, schedule: schedule.at(xp, step))


class OptimizerFunctions(LayerFunctions):
    """`LayerFunctions`, steps of optimizers, clipping and schedules."""

    def count(self, name: str, x: Any, least: int) -> Any:
        """A number of steps, checked: a float32 array without dimensions, if known a whole number >= `least`."""
        x = self._of_shape(name, x, ())
        number = self.known(x)
        if number is not None and not (number >= least and number.is_integer()):
            raise ValueError(f"{name}={number}; allowed is a whole number >= {least}")
        return x

    @public
    def adam_step(
        self,
        p: Any,
        gradient: Any,
        first: Any,
        second: Any,
        step: Any,
        rate: Any,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> tuple[Any, Any, Any]:
        """A step of Adam in torch's order, each operation rounded to float32: parameter and moments.

        Args:
            p, gradient, first, second: float32 arrays of one shape: the parameter, its gradient, and the moments, which
                are zeros at first.
            step: float32 array without dimensions: the step's number, from 1 on.
            rate: float32 array without dimensions: the learning rate.
            betas: the moments' factors, at least 0 and below 1.
            eps: added to the root of the second moment, at least 0.
            weight_decay: the factor of the weight's decay, at least 0.
            decoupled: True for AdamW.

        Returns:
            The parameter and both moments after the step.

        Example:
            >>> one, zero = np.float32(1.0), np.float32(0.0)
            >>> p, *moments = reproducible.adam_step(one, one, zero, zero, one, np.float32(0.25))
            >>> float(p)  # the first step is one rate long, whatever the gradient
            0.75
        """
        options = adam_options(betas, eps, weight_decay)
        check_flag("decoupled", decoupled)
        arrays = self.adam_arrays(p, gradient, first, second, step, rate)
        return self.call(ADAM, *arrays, **options, decoupled=decoupled)

    def adam_arrays(self, p: Any, gradient: Any, first: Any, second: Any, step: Any, rate: Any) -> tuple[Any, ...]:
        """The arrays of the law `ADAM`, checked."""
        p = self.float32("p", p)
        others = {"gradient": gradient, "first": first, "second": second}
        given = [self._of_shape(name, x, tuple(p.shape)) for name, x in others.items()]
        return p, *given, self.count("step", step, 1), self._of_shape("rate", rate, ())

    @public
    def sgd_step(
        self,
        p: Any,
        gradient: Any,
        velocity: Any,
        rate: Any,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> tuple[Any, Any]:
        """A step of gradient descent, each operation rounded to float32: parameter and velocity.

        gradient <- gradient + weight_decay * p; velocity <- momentum * velocity + gradient; p <- p - rate * velocity,
        or with Nesterov's momentum p - rate * (gradient + momentum * velocity).

        Args:
            p, gradient, velocity: float32 arrays of one shape: the parameter, its gradient, and the velocity, which is
                zeros at first; None without momentum.
            rate: float32 array without dimensions: the learning rate.
            momentum: the velocity's factor, at least 0.
            nesterov: True for Nesterov's momentum.
            weight_decay: times the parameter is added to its gradient, at least 0.

        Returns:
            The parameter and the velocity after the step, float32 arrays of p's shape; the velocity is None without
            momentum.

        Example:
            >>> p, grad, rate = np.float32([1.0]), np.float32([0.5]), np.float32(0.25)
            >>> reproducible.sgd_step(p, grad, None, rate)[0].tolist()
            [0.875]
        """
        options = sgd_options(momentum, nesterov, weight_decay)
        if (velocity is None) != (momentum == 0):
            came = "None" if velocity is None else "given"
            raise ValueError(f"velocity is {came} with momentum={momentum}; allowed is one with momentum above 0")
        return self.call(SGD, *self.sgd_arrays(p, gradient, velocity, rate), **options)

    def sgd_arrays(self, p: Any, gradient: Any, velocity: Any, rate: Any) -> tuple[Any, ...]:
        """The arrays of the law `SGD`, checked."""
        p = self.float32("p", p)
        gradient = self._of_shape("gradient", gradient, tuple(p.shape))
        velocity = velocity if velocity is None else self._of_shape("velocity", velocity, tuple(p.shape))
        return p, gradient, velocity, self._of_shape("rate", rate, ())

    @public
    def clip_by_norm(self, gradients: Sequence[Any], max_norm: float) -> tuple[list[Any], Any]:
        """Gradients times min(1, max_norm / (norm + 1e-6)), and their common norm before.

        Args:
            gradients: float32 arrays.
            max_norm: the largest norm of gradients that stay as they are, above 0.

        Returns:
            A list of float32 arrays of the gradients' shapes, and the norm, a float32 array without dimensions.

        Example:
            >>> gradients, norm = reproducible.clip_by_norm([np.float32([3.0]), np.float32([4.0])], 10.0)
            >>> [g.tolist() for g in gradients], float(norm)
            ([[3.0], [4.0]], 5.0)
        """
        max_norm = check_float("max_norm", max_norm, "a number > 0", lambda number: number > 0)
        check_type("gradients", gradients, Iterable, "a sequence of float32 arrays")
        given = [self.float32(f"gradients[{i}]", g) for i, g in enumerate(gradients)]
        if not given:
            raise ValueError("gradients has no array; allowed is at least one")
        *clipped, norm = self.call(CLIP, *given, max_norm=max_norm)
        return clipped, norm

    @public
    def rate(self, schedule: Cosine | Milestones, step: Any) -> Any:
        """The learning rate of a schedule at a step, which is counted from 0.

        Args:
            schedule: a `Cosine` or `Milestones`.
            step: float32 array without dimensions: the number of steps made so far.

        Returns:
            A float32 array without dimensions.

        Example:
            >>> float(reproducible.rate(reproducible.Milestones(1.0, (10,), 0.5), np.float32(10.0)))
            0.5
        """
        if not isinstance(schedule, Cosine | Milestones):
            raise TypeError(f"schedule is a {type(schedule).__name__}; allowed are Cosine and Milestones")
        return self.call(RATE, self.count("step", step, 0), schedule=schedule)
