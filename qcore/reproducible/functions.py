"""What users call, the same in all packages: arguments are checked here, and a package runs the law."""

from __future__ import annotations

from typing import Any

from qcore.arguments import check_flag, check_int
from qcore.reproducible.differentiable import Differentiable
from qcore.reproducible.elementary.activations import Activations
from qcore.reproducible.elementary.arithmetic import ADD, DIV, MAXIMUM, MINIMUM, MUL, POW, SUB
from qcore.reproducible.reductions import LOGSUMEXP, MAX, MEAN, NORM, SUM, VAR, check_axes, check_numbers
from qcore.reproducible.sums import check_broadcast

Axis = int | tuple[int, ...] | None


class Functions(Activations):
    """`Activations`, arithmetic and reductions of float32 arrays."""

    def number(self, value: float, like: Any) -> Any:
        """A float32 array without axes, where an array lies."""
        raise NotImplementedError

    def _of_shape(self, name: str, x: Any, shape: tuple[int, ...]) -> Any:
        x = self.float32(name, x)
        if tuple(x.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(x.shape)}; allowed is {shape}")
        return x

    def _two(self, law: Differentiable, a: Any, b: Any) -> Any:
        a, b = self.float32("a", a), self.float32("b", b)
        if a.shape != b.shape:
            check_broadcast("a", a.shape, "b", b.shape)
        return self.call(law, a, b)

    def _reduced(self, law: Differentiable, x: Any, axis: Axis, keepdims: bool, **options: Any) -> Any:
        x = self.float32("x", x)
        check_flag("keepdims", keepdims)
        axes = check_axes("axis", axis, x.ndim)
        if law in (MAX, LOGSUMEXP):
            check_numbers(x, axes)
        return self.call(law, x, axes=axes, keepdims=keepdims, **options)

    def add(self, a: Any, b: Any) -> Any:
        """a + b of float32 arrays that broadcast.

        Args:
            a, b: float32 arrays.

        Returns:
            A float32 array of the shape that both broadcast to.

        Raises:
            TypeError: if an argument is no float32 array.
            ValueError: if the shapes do not broadcast.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.add(np.float32([1, 2]), np.float32(0.5)).tolist()
            [1.5, 2.5]
        """
        return self._two(ADD, a, b)

    def subtract(self, a: Any, b: Any) -> Any:
        """a - b of float32 arrays that broadcast.

        Args:
            a, b: float32 arrays.

        Returns:
            A float32 array of the shape that both broadcast to.

        Raises:
            TypeError: if an argument is no float32 array.
            ValueError: if the shapes do not broadcast.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.subtract(np.float32([1, 2]), np.float32(0.5)).tolist()
            [0.5, 1.5]
        """
        return self._two(SUB, a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        """a * b of float32 arrays that broadcast, never contracted with a sum.

        Args:
            a, b: float32 arrays.

        Returns:
            A float32 array of the shape that both broadcast to.

        Raises:
            TypeError: if an argument is no float32 array.
            ValueError: if the shapes do not broadcast.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.multiply(np.float32([1, 2]), np.float32(0.5)).tolist()
            [0.5, 1.0]
        """
        return self._two(MUL, a, b)

    def divide(self, a: Any, b: Any) -> Any:
        """a / b of float32 arrays that broadcast, never a product with 1 / b.

        Args:
            a, b: float32 arrays.

        Returns:
            A float32 array of the shape that both broadcast to.

        Raises:
            TypeError: if an argument is no float32 array.
            ValueError: if the shapes do not broadcast.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.divide(np.float32([1, 2]), np.float32(4)).tolist()
            [0.25, 0.5]
        """
        return self._two(DIV, a, b)

    def pow(self, a: Any, b: Any) -> Any:
        """a^b of float32 arrays that broadcast, within 0.500001 units in the last place.

        Args:
            a: float32 array, the base.
            b: float32 array, the exponent.

        Returns:
            A float32 array of the shape that both broadcast to.

        Raises:
            TypeError: if an argument is no float32 array.
            ValueError: if the shapes do not broadcast.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.pow(np.float32([2, -2]), np.float32([0.5, 3])).tolist()
            [1.4142135381698608, -8.0]
        """
        return self._two(POW, a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        """The greater of two numbers, NaN if one is; of equal ones the first, and they share the gradient.

        Args:
            a, b: float32 arrays.

        Returns:
            A float32 array of the shape that both broadcast to.

        Raises:
            TypeError: if an argument is no float32 array.
            ValueError: if the shapes do not broadcast.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.maximum(np.float32([1, 2]), np.float32(1.5)).tolist()
            [1.5, 2.0]
        """
        return self._two(MAXIMUM, a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        """The lesser of two numbers, NaN if one is; of equal ones the first, and they share the gradient.

        Args:
            a, b: float32 arrays.

        Returns:
            A float32 array of the shape that both broadcast to.

        Raises:
            TypeError: if an argument is no float32 array.
            ValueError: if the shapes do not broadcast.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.minimum(np.float32([1, 2]), np.float32(1.5)).tolist()
            [1.0, 1.5]
        """
        return self._two(MINIMUM, a, b)

    def sum(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """The sum along axes, in float64 and rounded once: each axis by halves of its index, an odd rest appended.

        Args:
            x: float32 array.
            axis: one, several, or all with None; summed in ascending order.
            keepdims: True to keep them with length 1.

        Returns:
            A float32 array of x's shape without the axes, or with length 1 there for keepdims.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.sum(np.float32([[1, 2], [3, 4]]), axis=1).tolist()
            [3.0, 7.0]
        """
        return self._reduced(SUM, x, axis, keepdims)

    def mean(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """`sum`, divided by the number of elements.

        Args:
            x: float32 array.
            axis: one axis, several, or all with None.
            keepdims: True to keep the axes with length 1.

        Returns:
            A float32 array of x's shape without the axes, or with length 1 there for keepdims.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.mean(np.float32([[1, 2], [3, 4]]), axis=1).tolist()
            [1.5, 3.5]
        """
        return self._reduced(MEAN, x, axis, keepdims)

    def var(self, x: Any, axis: Axis = None, keepdims: bool = False, correction: int = 1) -> Any:
        """The sum of the exact squares of x - mean, rounded, divided by the number of elements less a correction.

        Args:
            x: float32 array.
            axis: one axis, several, or all with None.
            keepdims: True to keep the axes with length 1.
            correction: at least 0: 1 for the unbiased variance, 0 for that of the numbers themselves.

        Returns:
            A float32 array of x's shape without the axes, or with length 1 there for keepdims.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.var(np.float32([[1, 2], [3, 5]]), axis=1).tolist()
            [0.5, 2.0]
        """
        return self._reduced(VAR, x, axis, keepdims, correction=check_int("correction", correction, 0))

    def norm(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """The square root of the sum of the exact squares, which is rounded.

        Args:
            x: float32 array.
            axis: one axis, several, or all with None.
            keepdims: True to keep the axes with length 1.

        Returns:
            A float32 array of x's shape without the axes, or with length 1 there for keepdims.

        Raises:
            TypeError, ValueError: if an argument is not as above.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.norm(np.float32([[3, 4], [6, 8]]), axis=1).tolist()
            [5.0, 10.0]
        """
        return self._reduced(NORM, x, axis, keepdims)

    def max(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """The greatest number, NaN if there is one; a zero is +0. Equal ones share the gradient.

        Args:
            x: float32 array.
            axis: one axis, several, or all with None.
            keepdims: True to keep the axes with length 1.

        Returns:
            A float32 array of x's shape without the axes, or with length 1 there for keepdims.

        Raises:
            TypeError, ValueError: if an argument is not as above, or there are no numbers along the axes.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.max(np.float32([[1, 2], [-0.0, -3]]), axis=1).tolist()
            [2.0, 0.0]
        """
        return self._reduced(MAX, x, axis, keepdims)

    def logsumexp(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """max + log(sum(exp(x - max))).

        Args:
            x: float32 array.
            axis: one axis, several, or all with None.
            keepdims: True to keep the axes with length 1.

        Returns:
            A float32 array of x's shape without the axes, or with length 1 there for keepdims.

        Raises:
            TypeError, ValueError: if an argument is not as above, or there are no numbers along the axes.

        Example:
            >>> import numpy as np
            >>> from qcore import reproducible
            >>> reproducible.logsumexp(np.float32([[0, -np.inf], [5, -np.inf]]), axis=1).tolist()
            [0.0, 5.0]
        """
        return self._reduced(LOGSUMEXP, x, axis, keepdims)
