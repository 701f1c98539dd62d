"""What users call of activation functions, the same in all packages."""

from __future__ import annotations

from typing import Any

from qcore.arguments import quoted
from qcore.numerics.elementary.functions import ElementaryFunctions


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
            >>> from qcore import numerics
            >>> numerics.tanh(np.float32([-np.inf, 0, np.inf])).tolist()
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
            >>> from qcore import numerics
            >>> numerics.sigmoid(np.float32([-np.inf, 0, np.inf])).tolist()
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
            >>> from qcore import numerics
            >>> numerics.relu(np.float32([-2, 3])).tolist()
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
            >>> from qcore import numerics
            >>> numerics.softplus(np.float32([-np.inf, np.inf])).tolist()
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
            >>> from qcore import numerics
            >>> numerics.silu(np.float32([0, 100])).tolist()
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
            >>> from qcore import numerics
            >>> numerics.gelu(np.float32([0, 100])).tolist()
            [0.0, 100.0]
        """
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate={quoted(approximate)}; allowed are 'none' and 'tanh'")
        return self._one("gelu" if approximate == "none" else "gelu_tanh", x)
