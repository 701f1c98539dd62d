"""What users call of optimizers, the same in all packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from qcore.arguments import check_flag, check_float, check_type
from qcore.reproducible.functions import Functions
from qcore.reproducible.optimizers.adam import ADAM, adam_options
from qcore.reproducible.optimizers.clipping import CLIP
from qcore.reproducible.optimizers.schedules import RATE, Cosine, Milestones
from qcore.reproducible.optimizers.sgd import SGD, sgd_options


class Optimizing(Functions):
    """Steps of optimizers, clipping and schedules."""

    def known(self, x: Any) -> float | None:
        """The value of an array without dimensions; None if it is traced, or on a device to wait for."""
        raise NotImplementedError

    def count(self, name: str, x: Any, least: int) -> Any:
        """A number of steps, a float32 array without dimensions. Raises an error that names it if it is not one."""
        x = self._of_shape(name, x, ())
        number = self.known(x)
        if number is not None and not (number >= least and number.is_integer()):
            raise ValueError(f"{name}={number}; allowed is a whole number >= {least}")
        return x

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

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> one, zero = np.float32(1), np.float32(0)
            >>> p, *moments = reproducible.adam_step(one, one, zero, zero, one, np.float32(0.25))
            >>> float(p)  # the first step is one rate long, whatever the gradient
            0.75
        """
        options = adam_options(betas, eps, weight_decay)
        check_flag("decoupled", decoupled)
        p = self.float32("p", p)
        moments = {"gradient": gradient, "first": first, "second": second}
        given = [self._of_shape(name, x, tuple(p.shape)) for name, x in moments.items()]
        step, rate = self.count("step", step, 1), self._of_shape("rate", rate, ())
        return self.call(ADAM, p, *given, step, rate, **options, decoupled=decoupled)

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

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.sgd_step(np.float32([1]), np.float32([0.5]), None, np.float32(0.25))[0].tolist()
            [0.875]
        """
        options = sgd_options(momentum, nesterov, weight_decay)
        if (velocity is None) != (momentum == 0):
            came = "None" if velocity is None else "given"
            raise ValueError(f"velocity is {came} with momentum={momentum}; allowed is one with momentum above 0")
        p = self.float32("p", p)
        gradient = self._of_shape("gradient", gradient, tuple(p.shape))
        velocity = velocity if velocity is None else self._of_shape("velocity", velocity, tuple(p.shape))
        return self.call(SGD, p, gradient, velocity, self._of_shape("rate", rate, ()), **options)

    def clip_by_norm(self, gradients: Sequence[Any], max_norm: float) -> tuple[list[Any], Any]:
        """Gradients times min(1, max_norm / (norm + 1e-6)), and their common norm before.

        Args:
            gradients: float32 arrays.
            max_norm: the largest norm that changes nothing, above 0.

        Returns:
            A list of float32 arrays of the gradients' shapes, and the norm, a float32 array without dimensions.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> gradients, norm = reproducible.clip_by_norm([np.float32([3]), np.float32([4])], 10.0)
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

    def rate(self, schedule: Cosine | Milestones, step: Any) -> Any:
        """The learning rate of a schedule at a step, which is counted from 0.

        Args:
            schedule: a `Cosine` or `Milestones`.
            step: float32 array without dimensions: the number of steps made so far.

        Returns:
            A float32 array without dimensions.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> float(reproducible.rate(reproducible.Milestones(1.0, (10,), 0.5), np.float32(10)))
            0.5
        """
        if not isinstance(schedule, Cosine | Milestones):
            raise TypeError(f"schedule is a {type(schedule).__name__}; allowed are Cosine and Milestones")
        return self.call(RATE, self.count("step", step, 0), schedule=schedule)
