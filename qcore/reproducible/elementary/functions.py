"""What users call of elementary functions, the same in all packages."""

from __future__ import annotations

from typing import Any

from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary.laws import ELEMENTARY


class ElementaryFunctions:
    """Functions of one float32 array; their bits are those of `qcore.reproducible`.

    A function is evaluated in float64 and rounded once. Numbers of magnitude at most 2^-126 are zeros, as arguments
    and as results. All functions have gradients.
    """

    def call(self, law: Differentiable, *arrays: Any, **options: Any) -> Any:
        """The result of a law."""
        raise NotImplementedError

    def float32(self, name: str, x: Any) -> Any:
        """A float32 array as the package has it; a TypeError that names the argument if x is none."""
        raise NotImplementedError

    def _one(self, name: str, x: Any) -> Any:
        return self.call(ELEMENTARY[name], self.float32("x", x))

    def exp(self, x: Any) -> Any:
        """e^x.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.exp(np.float32([0, 1])).tolist()
            [1.0, 2.7182817459106445]
        """
        return self._one("exp", x)

    def expm1(self, x: Any) -> Any:
        """e^x - 1.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.expm1(np.float32([0, -np.inf])).tolist()
            [0.0, -1.0]
        """
        return self._one("expm1", x)

    def log(self, x: Any) -> Any:
        """The natural logarithm.

        Args:
            x: float32 array; of a negative number it is NaN.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.log(np.float32([0, 1, np.inf])).tolist()
            [-inf, 0.0, inf]
        """
        return self._one("log", x)

    def log1p(self, x: Any) -> Any:
        """log(1 + x).

        Args:
            x: float32 array; below -1 it is NaN.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.log1p(np.float32([-1, 0])).tolist()
            [-inf, 0.0]
        """
        return self._one("log1p", x)

    def erf(self, x: Any) -> Any:
        """The error function.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.erf(np.float32([-np.inf, 0, np.inf])).tolist()
            [-1.0, 0.0, 1.0]
        """
        return self._one("erf", x)

    def sin(self, x: Any) -> Any:
        """The sine of radians.

        Args:
            x: float32 array of angles in radians; of an infinity it is NaN.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.sin(np.float32([0, np.pi / 2])).tolist()
            [0.0, 1.0]
        """
        return self._one("sin", x)

    def cos(self, x: Any) -> Any:
        """The cosine of radians.

        Args:
            x: float32 array of angles in radians; of an infinity it is NaN.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.cos(np.float32([0, np.pi])).tolist()
            [1.0, -1.0]
        """
        return self._one("cos", x)

    def sqrt(self, x: Any) -> Any:
        """The square root.

        Args:
            x: float32 array; of a negative number it is NaN.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.sqrt(np.float32([0.25, 9])).tolist()
            [0.5, 3.0]
        """
        return self._one("sqrt", x)

    def rsqrt(self, x: Any) -> Any:
        """1 / sqrt(x), rounded once.

        Args:
            x: float32 array; of a negative number it is NaN.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.rsqrt(np.float32([0.25, 4])).tolist()
            [2.0, 0.5]
        """
        return self._one("rsqrt", x)

    def reciprocal(self, x: Any) -> Any:
        """1 / x.

        Args:
            x: float32 array.

        Returns:
            A float32 array of x's shape.

        Raises:
            TypeError: if x is no float32 array.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.reciprocal(np.float32([-4, 0.5])).tolist()
            [-0.25, 2.0]
        """
        return self._one("reciprocal", x)
