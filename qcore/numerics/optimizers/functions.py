"""What users call of optimizers, the same in all packages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qcore.arguments import check_flag
from qcore.numerics.functions import Functions
from qcore.numerics.optimizers.adam import ADAM
from qcore.numerics.optimizers.clipping import CLIP
from qcore.numerics.optimizers.schedules import RATE, Cosine, Milestones
from qcore.numerics.optimizers.sgd import SGD


class Optimizing(Functions):
    """Steps of optimizers, clipping and schedules."""

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
            eps: added to the root of the second moment.
            weight_decay: the factor of the weight's decay.
            decoupled: True for AdamW.

        Returns:
            The parameter and both moments after the step.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import numerics
            >>> one, zero = np.float32(1), np.float32(0)
            >>> p, *moments = numerics.adam_step(one, one, zero, zero, one, np.float32(0.25))
            >>> float(p)  # the first step is one rate long, whatever the gradient
            0.75
        """
        arrays = {"p": p, "gradient": gradient, "first": first, "second": second, "step": step, "rate": rate}
        given = [self.float32(name, x) for name, x in arrays.items()]
        check_flag("decoupled", decoupled)
        if not all(0 <= beta < 1 for beta in betas) or len(betas) != 2:
            raise ValueError(f"betas={betas!r}; allowed are two numbers from 0 to below 1")
        options = {"eps": float(eps), "weight_decay": float(weight_decay), "decoupled": decoupled}
        return self.call(ADAM, *given, betas=tuple(map(float, betas)), **options)

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
            momentum: the velocity's factor.
            nesterov: True for Nesterov's momentum.
            weight_decay: times the parameter is added to its gradient.

        Returns:
            The parameter and the velocity after the step, float32 arrays of p's shape; the velocity is None without
            momentum.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import numerics
            >>> numerics.sgd_step(np.float32([1]), np.float32([0.5]), None, np.float32(0.25))[0].tolist()
            [0.875]
        """
        check_flag("nesterov", nesterov)
        if (velocity is None) != (momentum == 0) or (nesterov and not momentum):
            raise ValueError(
                f"momentum={momentum}, nesterov={nesterov}; allowed is momentum with a velocity, or neither"
            )
        arrays = {"p": p, "gradient": gradient, "velocity": velocity, "rate": rate}
        given = [x if x is None else self.float32(name, x) for name, x in arrays.items()]
        options = {"momentum": float(momentum), "nesterov": nesterov, "weight_decay": float(weight_decay)}
        return self.call(SGD, *given, **options)

    def clip_by_norm(self, gradients: Sequence[Any], max_norm: float) -> tuple[list[Any], Any]:
        """Gradients times min(1, max_norm / (norm + 1e-6)), and their common norm before.

        Args:
            gradients: float32 arrays.
            max_norm: the largest norm that changes nothing.

        Returns:
            A list of float32 arrays of the gradients' shapes, and the norm, a float32 array without dimensions.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import numerics
            >>> gradients, norm = numerics.clip_by_norm([np.float32([3]), np.float32([4])], 10.0)
            >>> [g.tolist() for g in gradients], float(norm)
            ([[3.0], [4.0]], 5.0)
        """
        given = [self.float32(f"gradients[{i}]", g) for i, g in enumerate(gradients)]
        if not given or not max_norm > 0:
            raise ValueError(
                f"max_norm={max_norm!r}, {len(given)} gradients; allowed are numbers above 0, at least one"
            )
        *clipped, norm = self.call(CLIP, *given, max_norm=float(max_norm))
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
            >>> from qcore import numerics
            >>> float(numerics.rate(numerics.Milestones(1.0, (10,), 0.5), np.float32(10)))
            0.5
        """
        if not isinstance(schedule, Cosine | Milestones):
            raise TypeError(f"schedule is a {type(schedule).__name__}; allowed are Cosine and Milestones")
        return self.call(RATE, self.float32("step", step), schedule=schedule)
