"""Products of tensors as products of matrices: forward, and the two of the gradients, with the orders of their sums.

A geometry maps the tensors of a call to a pair of arrays (..., M, K) and (..., K, N) whose product has the elements of
the result in its row-major order. The contraction index, ascending:

| product | forward | gradient of a | gradient of b |
| --- | --- | --- | --- |
| a @ b | a's last axis | b's last axis | a's axes before the last, flattened; of batches a's last but one |
| linear | input features | output features | input's axes before the last, flattened; of batches the last but one |

All functions are methods that NumPy's, torch's and JAX's arrays have alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]


FORWARD, GRAD_A, GRAD_B = "forward", "grad_a", "grad_b"


def derivatives(which: str, v: Any, first: Any, second: Any) -> tuple[tuple[Any, Any, str], tuple[Any, Any, str]]:
    """A product's gradients, for the gradient v of its result: each is a product (first, second, which).

    The products of a geometry are the derivatives of one number, the sum of gradient * (a times b), which is linear in
    all three tensors. So the derivatives of each product are the two other products, at every order.
    """
    if which == FORWARD:
        return (v, second, GRAD_A), (v, first, GRAD_B)
    if which == GRAD_A:  # of the gradient and b; v has a's shape, and takes its place
        return (v, second, FORWARD), (first, v, GRAD_B)
    return (second, v, FORWARD), (first, v, GRAD_A)  # of the gradient and a; v takes the place of b


class Contraction(NamedTuple):
    """The sums of a product.

    Attributes:
        terms: the number of terms of each sum.
        first, second: the operands' axes that are summed over, the last one fastest.
        of_place: the terms of a position or a tap, of convolutions, whose neighbouring terms are not neighbours in the
            operands; None for products of matrices.
    """

    terms: int
    first: tuple[int, ...]
    second: tuple[int, ...]
    of_place: int | None = None


@dataclass(frozen=True)
class MatrixGeometry:
    """A product of matrices, or of batches of them.

    Attributes:
        transposed: True if b is (..., N, K), as a linear layer's weight, or one for each of a batch.
    """

    transposed: bool = False

    @property
    def text(self) -> str:
        """What `geometry_of` makes the geometry from."""
        return "linear" if self.transposed else "matmul"

    @property
    def names(self) -> tuple[str, str]:
        """What messages call the operands."""
        return ("input", "weight") if self.transposed else ("a", "b")

    def check(self, a: Shape, b: Shape) -> None:
        """Raises for shapes that do not fit."""
        batched = len(b) > 2 and len(a) == len(b) and a[:-2] == b[:-2]
        least = 1 if self.transposed else 2
        terms = b[-1 if self.transposed else -2] if len(b) >= 2 else None
        if len(a) < least or not (len(b) == 2 or batched) or a[-1] != terms:
            allowed = (
                "(..., K) and (N, K), or (*batch, M, K) and (*batch, N, K)"
                if self.transposed
                else "(..., M, K) and (K, N), or (*batch, K, N)"
            )
            raise ValueError(f"{self.names[0]} has shape {a}, {self.names[1]} has shape {b}; allowed are {allowed}")

    def result(self, a: Shape, b: Shape) -> Shape:
        """The shape of the result."""
        return (*a[:-1], b[-2] if self.transposed else b[-1])

    def matrices(self, xp: Any, which: str, first: Any, second: Any, other: Shape) -> tuple[Any, Any]:
        """The two arrays whose product a product is.

        Args:
            xp: the array namespace, for geometries that gather.
            which: `FORWARD`, `GRAD_A` or `GRAD_B`: in gradients' products the gradient is the first operand.
            first, second: the operands.
            other: the shape of b in forward products, else of the operand whose gradient it is.
        """
        if which == FORWARD:
            return self._rows(first, other), (second.mT if self.transposed else second)
        if which == GRAD_A:
            return self._rows(first, second.shape), (second if self.transposed else second.mT)
        gradient, a = self._rows(first, other), self._rows(second, other)
        return (gradient.mT, a) if self.transposed else (a.mT, gradient)

    def is_swapped(self, which: str) -> bool:
        """True if the second operand is the left matrix."""
        return which == GRAD_B and not self.transposed

    def contraction(self, which: str, first: Shape, second: Shape, other: Shape) -> Contraction:
        """What a product sums over; arguments as for `matrices`, with shapes."""
        last, dims = len(first) - 1, len(second)
        if which == FORWARD:
            return Contraction(first[-1], (last,), (dims - 1 if self.transposed else dims - 2,))
        if which == GRAD_A:
            return Contraction(first[-1], (last,), (dims - 2 if self.transposed else dims - 1,))
        rows = (last - 1,) if len(other) > 2 else tuple(range(last))
        return Contraction(prod(first[axis] for axis in rows), rows, rows)

    def kept_axes(self, which: str, first: int, second: int, other: int) -> tuple[dict[int, int], dict[int, int]]:
        """For each operand its axes that are not summed over, and the result's axis for each; see `matrices`.

        `first`, `second` and `other` are numbers of dimensions.
        """
        matrix = other if which == GRAD_B else second  # the dimensions of b
        batch = {axis: axis for axis in range(matrix - 2)}
        outputs, inputs = (matrix - 2, matrix - 1) if self.transposed else (matrix - 1, matrix - 2)
        if which == GRAD_B:
            return batch | {first - 1: outputs}, batch | {second - 1: inputs}
        rows = {axis: axis for axis in range(first - 1)}
        return rows, batch | {outputs if which == FORWARD else inputs: first - 1}

    def is_laid_out(self, number: Any) -> bool:
        """True if a format's blocks follow the geometry's own layout of an operand, and not the tensor's axes."""
        return False

    @staticmethod
    def _rows(x: Any, b: Shape) -> Any:
        """All axes before the last as one, unless b has a matrix for each of a batch."""
        return x if len(b) > 2 else x.reshape(prod(x.shape[:-1]), x.shape[-1])


def check_batches(a: Shape, b: Shape) -> None:
    """Raises unless both shapes of `bmm` have three dimensions."""
    if len(a) != 3 or len(b) != 3:
        raise ValueError(f"a has shape {a}, b has shape {b}; allowed are (batch, M, K) and (batch, K, N)")


def check_bias(bias: Shape, dtype: str, outputs: int) -> None:
    """Raises unless a bias has one float32 number for each output."""
    if dtype != "float32":
        raise TypeError(f"bias has dtype {dtype}; allowed is float32")
    if bias != (outputs,):
        raise ValueError(f"bias has shape {bias}; allowed is {(outputs,)}")
