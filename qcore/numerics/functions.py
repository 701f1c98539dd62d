"""What users call, the same in all packages: arguments are checked here, and a package runs the law."""

from __future__ import annotations

import operator
from typing import Any

from qcore.numerics.differentiable import Differentiable
from qcore.numerics.elementary.arithmetic import ADD, DIV, MUL, POW, SUB
from qcore.numerics.elementary.laws import ELEMENTARY
from qcore.numerics.reductions import LOGSUMEXP, MAX, MEAN, NORM, SUM, VAR

Axis = int | tuple[int, ...] | None


class Functions:
    """Elementary functions, arithmetic and reductions of float32 arrays; their bits are those of `qcore.numerics`.

    A function of one number is evaluated in float64 and rounded once. Numbers of magnitude at most 2^-126 are zeros,
    as arguments and as results. All functions have gradients.
    """

    def call(self, law: Differentiable, *arrays: Any, **options: Any) -> Any:
        """The result of a law."""
        raise NotImplementedError

    def float32(self, name: str, x: Any) -> Any:
        """A float32 array as the package has it; a TypeError that names the argument if x is none."""
        raise NotImplementedError

    def _one(self, name: str, x: Any) -> Any:
        return self.call(ELEMENTARY[name], self.float32("x", x))

    def _two(self, law: Differentiable, a: Any, b: Any) -> Any:
        return self.call(law, self.float32("a", a), self.float32("b", b))

    def _reduced(self, law: Differentiable, x: Any, axis: Axis, keepdims: bool, **options: Any) -> Any:
        x = self.float32("x", x)
        return self.call(law, x, axes=check_axes("axis", axis, x.ndim), keepdims=bool(keepdims), **options)

    def exp(self, x: Any) -> Any:
        """e^x.

        Example:
            >>> import numpy as np
            >>> from qcore import numerics
            >>> numerics.exp(np.float32([0, 1])).tolist()
            [1.0, 2.7182817459106445]
        """
        return self._one("exp", x)

    def expm1(self, x: Any) -> Any:
        """e^x - 1."""
        return self._one("expm1", x)

    def log(self, x: Any) -> Any:
        """The natural logarithm."""
        return self._one("log", x)

    def log1p(self, x: Any) -> Any:
        """log(1 + x)."""
        return self._one("log1p", x)

    def tanh(self, x: Any) -> Any:
        """The hyperbolic tangent."""
        return self._one("tanh", x)

    def sigmoid(self, x: Any) -> Any:
        """1 / (1 + exp(-x))."""
        return self._one("sigmoid", x)

    def erf(self, x: Any) -> Any:
        """The error function."""
        return self._one("erf", x)

    def sin(self, x: Any) -> Any:
        """The sine of radians."""
        return self._one("sin", x)

    def cos(self, x: Any) -> Any:
        """The cosine of radians."""
        return self._one("cos", x)

    def sqrt(self, x: Any) -> Any:
        """The square root."""
        return self._one("sqrt", x)

    def rsqrt(self, x: Any) -> Any:
        """1 / sqrt(x), rounded once."""
        return self._one("rsqrt", x)

    def reciprocal(self, x: Any) -> Any:
        """1 / x."""
        return self._one("reciprocal", x)

    def relu(self, x: Any) -> Any:
        """x where it is above 0, else +0."""
        return self._one("relu", x)

    def softplus(self, x: Any) -> Any:
        """log(1 + exp(x))."""
        return self._one("softplus", x)

    def silu(self, x: Any) -> Any:
        """x / (1 + exp(-x)), rounded once."""
        return self._one("silu", x)

    def gelu(self, x: Any, approximate: str = "none") -> Any:
        """x times the normal distribution function, a product of two float32 numbers.

        Args:
            x: float32 array.
            approximate: "none", or "tanh" for x * sigmoid(2u) with u = sqrt(2 / pi) * (x + 0.044715 x^3), each
                operation rounded to float32.

        Raises:
            TypeError, ValueError: if an argument is not as above.
        """
        if approximate not in ("none", "tanh"):
            raise ValueError(f"approximate={approximate!r}; allowed are 'none' and 'tanh'")
        return self._one("gelu" if approximate == "none" else "gelu_tanh", x)

    def add(self, a: Any, b: Any) -> Any:
        """a + b of float32 arrays that broadcast."""
        return self._two(ADD, a, b)

    def subtract(self, a: Any, b: Any) -> Any:
        """a - b of float32 arrays that broadcast."""
        return self._two(SUB, a, b)

    def multiply(self, a: Any, b: Any) -> Any:
        """a * b of float32 arrays that broadcast, never contracted with a sum."""
        return self._two(MUL, a, b)

    def divide(self, a: Any, b: Any) -> Any:
        """a / b of float32 arrays that broadcast, never a product with 1 / b."""
        return self._two(DIV, a, b)

    def pow(self, a: Any, b: Any) -> Any:
        """a^b of float32 arrays that broadcast, within 0.500001 units in the last place.

        Example:
            >>> import numpy as np
            >>> from qcore import numerics
            >>> numerics.pow(np.float32([2, -2]), np.float32([0.5, 3])).tolist()
            [1.4142135381698608, -8.0]
        """
        return self._two(POW, a, b)

    def sum(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """The sum along axes, in float64 and rounded once: each axis by halves of its index, an odd rest appended.

        Args:
            x: float32 array.
            axis: one, several, or all with None; summed in ascending order.
            keepdims: True to keep them with length 1.

        Raises:
            TypeError, ValueError: if an argument is not as above.
        """
        return self._reduced(SUM, x, axis, keepdims)

    def mean(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """`sum`, divided by the number of elements."""
        return self._reduced(MEAN, x, axis, keepdims)

    def var(self, x: Any, axis: Axis = None, keepdims: bool = False, correction: int = 1) -> Any:
        """The sum of the exact squares of x - mean, rounded, divided by the number of elements less a correction."""
        return self._reduced(VAR, x, axis, keepdims, correction=operator.index(correction))

    def norm(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """The square root of the sum of the exact squares, which is rounded."""
        return self._reduced(NORM, x, axis, keepdims)

    def max(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """The greatest number, NaN if there is one; a zero is +0. Equal ones share the gradient."""
        return self._reduced(MAX, x, axis, keepdims)

    def logsumexp(self, x: Any, axis: Axis = None, keepdims: bool = False) -> Any:
        """max + log(sum(exp(x - max)))."""
        return self._reduced(LOGSUMEXP, x, axis, keepdims)


def check_axes(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes as numbers from 0 on, in ascending order.

    Raises:
        TypeError, ValueError: if they are no axes of an array of so many dimensions, each named once.
    """
    if axis is None:
        return tuple(range(ndim))
    try:
        given = [operator.index(one) for one in (axis if isinstance(axis, tuple | list) else (axis,))]
    except TypeError:
        raise TypeError(f"{name}={axis!r}; allowed are ints, tuples of ints and None") from None
    found = [one + ndim if one < 0 else one for one in given]
    if not all(0 <= one < ndim for one in found) or len(set(found)) != len(found):
        raise ValueError(f"{name}={axis!r}; allowed are different axes from {-ndim} to {ndim - 1}")
    return tuple([one for one in range(ndim) if one in found])
