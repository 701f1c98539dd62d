"""The rounded operands of a product, and the matrices that it multiplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from qcore.linalg.convolution import ConvolutionGeometry, Geometry
from qcore.linalg.product import FIRST, SECOND, Product
from qcore.linalg.scaling import of_both, spread

# (x, how it is rounded, its delayed scale, the role for its key) -> x rounded, and r of its scales, or None; or, with a
# decoder, its elements, and the scales of its blocks and of the whole.
Round = Callable[..., tuple[Any, Any]]
_ROLES = FIRST, SECOND


class Matrices(NamedTuple):
    """The two matrices of a product, and the factors of its sums.

    Attributes:
        left, right: float32 arrays (..., M, K) and (..., K, N).
        scales: see `qcore.linalg.law.multiply`.
        factor: a float32 array of shape (), the factor of the accumulator's last number; or None.
    """

    left: Any
    right: Any
    scales: tuple[Any, Any] | None
    factor: Any


def matrices(
    xp: Any,
    geometry: Geometry,
    which: str,
    product: Product,
    tensors: tuple[Any, Any],
    other: Any,
    round_: Round,
    given: Any = (None, None),
) -> Matrices:
    """The matrices of a geometry's product.

    Args:
        xp: the array namespace.
        geometry, which, other: see `qcore.linalg.geometry.MatrixGeometry.matrices`.
        product: how the operands are rounded.
        tensors: the first and the second operand.
        round_: rounds one operand.
        given: the delayed scale of each operand, or None.
    """
    # Operands that are rounded as tensors come first: their blocks and words follow the tensor's own axes.
    rounded, inverses = rounded_tensors(geometry, which, product, tensors, round_, given)
    if not product._as_matrices:
        left, right = geometry.matrices(xp, which, rounded[0], rounded[1], other)
        return Matrices(left, right, None, of_both(xp, inverses[0], inverses[1]))
    if isinstance(geometry, ConvolutionGeometry):
        return _of_places(xp, geometry, which, product, rounded, inverses, other, round_, given)
    left, right = geometry.matrices(xp, which, rounded[0], rounded[1], other)
    # Both sides as (..., other axis, terms), so that one rule of blocks and tiles holds for left and right matrices.
    sides, places = [left, right.mT], (1, 0) if geometry.is_swapped(which) else (0, 1)
    scales, chunk = [], product.accumulator.length(left.shape[-1])
    for side, index in enumerate(places):
        sides[side], inverse = _rounded_side(product, index, sides[side], inverses[index], round_, given)
        scales.append(_scales(xp, product, index, inverse, sides[side], chunk))
    (of_left, of_right), factor = _factors(xp, product, scales)
    return _matrices(sides[0], sides[1].mT, of_left, None if of_right is None else of_right.mT, factor)


def _of_places(
    xp: Any,
    geometry: ConvolutionGeometry,
    which: str,
    product: Product,
    tensors: list[Any],
    inverses: list[Any],
    other: Any,
    round_: Round,
    given: Any,
) -> Matrices:
    """The matrices of a convolution with an operand that is rounded as the matrix of each place.

    Numbers and scales are gathered alike. So each is rounded once, however many windows it is in.
    """
    sides, scales = [], []
    for index, x in enumerate(tensors):
        side = geometry.laid_out(which, index, x)
        side = side.mT if geometry.sums_over_rows(which, index) else side
        filled = product.filled(side.shape[-1])
        side, inverse = _rounded_side(product, index, side, inverses[index], round_, given)
        missing = filled - side.shape[-1]
        side = xp.pad(side, [(0, 0)] * 3 + [(0, missing)]) if missing else side
        sides.append(side)
        scales.append(_scales(xp, product, index, inverse, side, product.chunk_of(filled)))

    def put_back(index: int, side: Any) -> Any:
        side = side.mT if geometry.sums_over_rows(which, index) else side
        return geometry.put_back(which, index, side, tuple(tensors[index].shape[2:]))

    pair = [put_back(index, side) for index, side in enumerate(sides)]
    left, right = geometry.matrices(xp, which, pair[0], pair[1], other, by_places=True)
    found, factor = _factors(xp, product, scales)
    at_left, at_right = (1, 0) if geometry.is_swapped(which) else (0, 1)
    of_left, of_right = found[at_left], found[at_right]
    if of_left is not None:
        of_left = geometry.left(which, put_back(at_left, of_left), by_places=True)
    if of_right is not None:
        pair[at_right] = put_back(at_right, of_right)
        of_right = geometry.right(xp, which, geometry.windows(xp, which, pair[0], pair[1], other), by_places=True)
        number: Any = product.operands[at_right].number
        if product.block and number.scale == "e8m0":  # which has no zero, for places that padding added
            of_right = xp.where(of_right == 0, 2.0**-127, of_right)
    return _matrices(left, right, of_left, of_right, factor)


def _matrices(left: Any, right: Any, of_left: Any, of_right: Any, factor: Any) -> Matrices:
    return Matrices(left, right, None if of_left is None and of_right is None else (of_left, of_right), factor)


def _rounded_side(product: Product, index: int, side: Any, inverse: Any, round_: Round, given: Any) -> tuple[Any, Any]:
    """An operand laid out as (..., other axis, terms), rounded if it is rounded as a matrix; and r of its scales."""
    if not product.operands[index]._as_matrix:
        return side, inverse
    arguments = side, product.operands[index], given[index], _ROLES[index]
    return round_(*arguments, True) if product.block else round_(*arguments)


def _scales(xp: Any, product: Product, index: int, inverse: Any, side: Any, chunk: int) -> tuple[Any, Any]:
    """The scales of an operand's chunks, (..., rows, chunks), and that of the whole operand; None for 1."""
    operand: Any = product.operands[index]
    rows, terms = side.shape[-2:]
    if product.block:
        scales, whole = inverse
        size = operand.number.block_sizes(2)[0] or rows
        return (xp.repeat(scales, size, -2)[..., :rows, :] if size > 1 else scales), whole
    if inverse is None or not operand._tiled:
        return None, inverse
    return spread(xp, inverse, operand.scale, rows, terms, chunk), None


def _factors(xp: Any, product: Product, scales: list[tuple[Any, Any]]) -> tuple[list[Any], Any]:
    """The scales of both operands' chunks, and the factor of the accumulator's last number."""
    (first, whole_first), (second, whole_second) = scales
    factor = of_both(xp, whole_first, whole_second)
    if not product._tiled:
        return [first, second], factor
    # Sums of chunks are rescaled before they are added, also by the scale of an operand that has only one.
    if first is not None:
        return [of_both(xp, first, factor), second], None
    return [first, None if second is None else of_both(xp, factor, second)], None


def apart(number: Any, coded: Any, decode: Callable[..., Any]) -> tuple[Any, Any]:
    """The elements of encoded blocks, and their scales: float32 arrays, of each block and of the whole or None."""
    codes, scales = coded
    whole = None
    if number.tensor_scale is not None:
        scales, whole = scales
    return decode(codes, number.element), (decode(scales, number.scale_format), whole)


def rounded_tensors(
    geometry: Geometry, which: str, product: Product, tensors: tuple[Any, Any], round_: Round, given: Any
) -> tuple[list[Any], list[Any]]:
    """Both operands, and r of their scales. An operand that is rounded as a matrix is returned as it is."""
    rounded, inverses = list(tensors), [None, None]
    for index, operand in enumerate(product.operands):
        if operand._as_matrix:
            continue
        arguments, x = (operand, given[index], _ROLES[index]), rounded[index]
        if isinstance(geometry, ConvolutionGeometry) and geometry.is_laid_out(operand.number):
            y, inverses[index] = round_(geometry.laid_out(which, index, x), *arguments)
            rounded[index] = geometry.put_back(which, index, y, tuple(x.shape[2:]))
        else:
            rounded[index], inverses[index] = round_(x, *arguments)
    return rounded, inverses
