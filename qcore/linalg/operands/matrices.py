"""The two matrices that a product multiplies, rounded, and the scales of its sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from qcore.linalg.convolution import Form
from qcore.linalg.operands.operand import Operand
from qcore.linalg.operands.scaling import of_both, spread
from qcore.linalg.product import FIRST, SECOND, Product

# (x, how it is rounded, its delayed scale, the role for its key) -> x rounded, and r of its scales, or None
Round = Callable[[Any, Operand, Any, int], tuple[Any, Any]]


_ROLES = FIRST, SECOND


class Matrices(NamedTuple):
    """What a product multiplies.

    Attributes:
        left, right: float32 arrays (..., M, K) and (..., K, N).
        scales: see `qcore.linalg.law.multiply`.
        factor: a float32 array of shape () that the accumulator's last number is multiplied with, or None.
    """

    left: Any
    right: Any
    scales: tuple[Any, Any] | None
    factor: Any


def matrices(
    xp: Any,
    form: Form,
    which: str,
    product: Product,
    tensors: tuple[Any, Any],
    other: Any,
    round_: Round,
    given: Any = (None, None),
) -> Matrices:
    """The matrices of a form's product.

    Args:
        xp: the array namespace.
        form, which, other: see `qcore.linalg.forms.MatrixForm.matrices`.
        product: how the operands are rounded.
        tensors: the first and the second operand.
        round_: rounds one.
        given: the delayed scales of both; None where there is none.
    """
    rounded, inverses = rounded_tensors(product, tensors, round_, given)
    left, right = form.matrices(xp, which, rounded[0], rounded[1], other)
    if not product.as_matrices:
        return Matrices(left, right, None, of_both(xp, inverses[0], inverses[1]))
    sides, places = [left, right.mT], (1, 0) if form.is_swapped(which) else (0, 1)
    for side, index in enumerate(places):
        operand = product.operands[index]
        if operand.as_matrix:
            sides[side], inverses[index] = round_(sides[side], operand, given[index], _ROLES[index])
    left, right = sides[0], sides[1].mT
    if not product.tiled:
        return Matrices(left, right, None, of_both(xp, inverses[0], inverses[1]))
    terms = left.shape[-1]
    chunk, spreads = product.accumulator.length(terms), []
    for x, index in zip(sides, places, strict=True):
        inverse, scale = inverses[index], product.operands[index].scale
        inverse = inverse.reshape(1, 1) if inverse is not None and scale.whole else inverse
        spreads.append(None if inverse is None else spread(xp, inverse, scale, x.shape[-2], terms, chunk))
    first, second = spreads
    scales = None if first is None and second is None else (first, None if second is None else second.mT)
    return Matrices(left, right, scales, None)


def rounded_tensors(
    product: Product, tensors: tuple[Any, Any], round_: Round, given: Any
) -> tuple[list[Any], list[Any]]:
    """Both operands, and r of their scales; those that are rounded as matrices are as they were."""
    rounded, inverses = list(tensors), [None, None]
    for index, operand in enumerate(product.operands):
        if not operand.as_matrix:
            rounded[index], inverses[index] = round_(rounded[index], operand, given[index], _ROLES[index])
    return rounded, inverses
