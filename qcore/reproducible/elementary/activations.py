"""What users call of activation functions, the same in all packages."""

from __future__ import annotations

from math import inf
from typing import Any

from qcore.arguments import check_float, quoted
from qcore.reproducible.elementary.functions import ElementaryFunctions
from qcore.reproducible.elementary.piecewise import PIECEWISE, PRELU
from qcore.reproducible.operations import normal
from qcore.reproducible.sums import check_broadcast

_ALPHA, _SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946  # of selu, as torch has them


class Activations(ElementaryFunctions):
    """`ElementaryFunctions`, and activation functions of neural networks."""

    def tanh(self, x: Any) -> Any:
        """The hyperbolic tangent.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.tanh(np.float32([-np.inf, 0, np.inf])).tolist()
            [-1.0, 0.0, 1.0]
        """
        return self._one("tanh", x)

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + exp(-x)).

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.sigmoid(np.float32([-np.inf, 0, np.inf])).tolist()
            [0.0, 0.5, 1.0]
        """
        return self._one("sigmoid", x)

    def relu(self, x: Any) -> Any:
        """x where it is above 0, else +0.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.relu(np.float32([-2, 3])).tolist()
            [0.0, 3.0]
        """
        return self._one("relu", x)

    def softplus(self, x: Any) -> Any:
        """log(1 + exp(x)).

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.softplus(np.float32([-np.inf, np.inf])).tolist()
            [0.0, inf]
        """
        return self._one("softplus", x)

    def silu(self, x: Any) -> Any:
        """x / (1 + exp(-x)), rounded once.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.silu(np.float32([0, 100])).tolist()
            [0.0, 100.0]
        """
        return self._one("silu", x)

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        """x times the normal distribution function, a product of two float32 numbers.

        Args:
            x: float32 array.
            approximate: "none", or "tanh" for x * sigmoid(2u) with u = sqrt(2 / pi) * (x + 0.044715 x^3), each
                operation rounded to float32.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.
            ValueError: if approximate is another.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.gelu(np.float32([0, 100])).tolist()
            [0.0, 100.0]
        """
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate={quoted(approximate)}; allowed are 'none' and 'tanh'")
        return self._one("gelu" if approximate == "none" else "gelu_tanh", x)

    def abs(self, x: Any) -> Any:
        """The magnitude; its derivative at 0 is 0.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.abs(np.float32([-2, 3])).tolist()
            [2.0, 3.0]
        """
        return self._piecewise("abs", x)

    def leaky_relu(self, x: Any, slope: float = 0.01) -> Any:
        """x where it is above 0, else slope * x.

        Args:
            x: float32 array.
            slope: a finite number.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.leaky_relu(np.float32([-2, 3]), 0.5).tolist()
            [-1.0, 3.0]
        """
        return self._piecewise("leaky_relu", x, slope=_finite("slope", slope))

    def prelu(self, x: Any, weight: Any) -> Any:
        """x where it is above 0, else weight * x; the gradient of a weight is a `sum`.

        Args:
            x: float32 array.
            weight: float32 array that broadcasts to x; for channels of shape (channels, 1, ...).

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.prelu(np.float32([-2, 3]), np.float32([0.25])).tolist()
            [-0.5, 3.0]
        """
        x, weight = self.float32("x", x), self.float32("weight", weight)
        check_broadcast("x", x.shape, "weight", weight.shape)
        return self.call(PRELU, x, weight)

    def clamp(self, x: Any, low: float | None = None, high: float | None = None) -> Any:
        """The nearest number from low to high; the derivative is 1 there, at both ends too, and 0 elsewhere.

        Args:
            x: float32 array.
            low, high: numbers, or None for no bound.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.clamp(np.float32([-2, 0.5, 3]), 0, 1).tolist()
            [0.0, 0.5, 1.0]
        """
        return self._clamped(x, low, high, True)

    def hardtanh(self, x: Any, low: float = -1.0, high: float = 1.0) -> Any:
        """`clamp` whose derivative at both ends is 0, as that of torch.nn.Hardtanh.

        Args:
            x: float32 array.
            low, high: numbers.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.hardtanh(np.float32([-2, 0.5, 3])).tolist()
            [-1.0, 0.5, 1.0]
        """
        return self._clamped(x, low, high, False)

    def hardsigmoid(self, x: Any) -> Any:
        """(x + 3) / 6 between -3 and 3, beyond them 0 and 1.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.hardsigmoid(np.float32([-4, 0, 4])).tolist()
            [0.0, 0.5, 1.0]
        """
        return self._piecewise("hardsigmoid", x)

    def hardswish(self, x: Any) -> Any:
        """x times its `hardsigmoid`, up to -3 a +0.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.hardswish(np.float32([-4, 1, 4])).tolist()
            [0.0, 0.6666666865348816, 4.0]
        """
        return self._piecewise("hardswish", x)

    def elu(self, x: Any, alpha: float = 1.0) -> Any:
        """x where it is above 0, else alpha * (exp(x) - 1).

        Args:
            x: float32 array.
            alpha: a finite number.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.elu(np.float32([-100, 3]), 0.5).tolist()
            [-0.5, 3.0]
        """
        return self._piecewise("elu", x, positive=1.0, negative=_finite("alpha", alpha), divisor=1.0)

    def selu(self, x: Any) -> Any:
        """`elu` times 1.0507, with the alpha 1.6733, whose product is one number.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.selu(np.float32([-100, 1])).tolist()
            [-1.7580993175506592, 1.0507010221481323]
        """
        return self._piecewise("elu", x, positive=_SCALE, negative=_SCALE * _ALPHA, divisor=1.0)

    def celu(self, x: Any, alpha: float = 1.0) -> Any:
        """x where it is above 0, else alpha * (exp(x / alpha) - 1).

        Args:
            x: float32 array.
            alpha: a finite number that is not 0.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.celu(np.float32([-100, 3]), 0.5).tolist()
            [-0.5, 3.0]
        """
        number = _finite("alpha", alpha)
        if number == 0:
            raise ValueError("alpha=0; allowed is a finite number that is not 0")
        return self._piecewise("elu", x, positive=1.0, negative=number, divisor=number)

    def _piecewise(self, name: str, x: Any, **options: Any) -> Any:
        return self.call(PIECEWISE[name], self.float32("x", x), **options)

    def _clamped(self, x: Any, low: float | None, high: float | None, ends: bool) -> Any:
        least = -inf if low is None else _number("low", low)
        most = inf if high is None else _number("high", high)
        if least > most:
            raise ValueError(f"low={quoted(low)} and high={quoted(high)}; allowed is low <= high")
        return self._piecewise("clamp", x, low=least, high=most, ends=ends)


def _number(name: str, value: Any) -> float:
    """A number that is not NaN, as float32 has it."""
    return normal(check_float(name, value, "a number", lambda number: number == number))


def _finite(name: str, value: Any) -> float:
    """A finite number as float32 has it."""
    return normal(check_float(name, value, "a finite number", lambda number: abs(number) < 2.0**127))
