"""The law of scales and transforms of operands in float32, once, for every array namespace (`qcore.linalg.namespace`).

Each operation is float64's, rounded to float32: products of float32 numbers are exact there, and quotients rounded
twice are those rounded once. Compilers can neither contract nor rewrite it. Largest magnitudes are found as integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from qcore.arguments import quoted
from qcore.formats.block import BlockScaled, largest_number
from qcore.formats.number import Number
from qcore.law.tiles import tiles
from qcore.linalg.operands import SIZE, Hadamard, Operand, Scale

_MAGNITUDE, _INFINITY = 0x7FFFFFFF, 0x7F800000
_LARGEST = (2.0 - 2.0**-23) * 2.0**127
_STAGES = (1, 2, 4, 8)  # the distances of the numbers that a Hadamard transform adds and subtracts


def transformed(xp: Any, x: Any, transform: Hadamard) -> Any:
    """A float32 array with 16 neighbours along the last axis transformed; zeros are appended where some are missing."""
    missing = -x.shape[-1] % SIZE
    if missing:
        x = xp.pad(x, [(0, 0)] * (len(x.shape) - 1) + [(0, missing)])
    shape = x.shape
    if 0 in shape:
        return x
    x = xp.float64(x).reshape(*shape[:-1], shape[-1] // SIZE, SIZE)
    x = x * xp.constant([float(sign) for sign in transform.signs], "float64", x)
    both = xp.constant([[1.0], [-1.0]], "float64", x)  # the sum of two numbers, and the difference
    for distance in _STAGES:
        pairs = x.reshape(*x.shape[:-1], SIZE // 2 // distance, 2, distance)
        found = xp.materialize(xp.float32(pairs[..., :1, :] + pairs[..., 1:, :] * both))
        x = xp.float64(found).reshape(x.shape)
    return xp.float32(x * 0.25).reshape(shape)


def largest_magnitude(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The bits of the largest magnitude of float32 numbers along axes, which stay; NaN counts as the largest."""
    magnitudes = xp.float32_bits(x) & _MAGNITUDE
    return xp.greatest(magnitudes, axes) if axes else magnitudes


def scale_of(xp: Any, bits: Any, operand: Operand, previous: Any) -> Any:
    """s for largest magnitudes, given as bits; `previous` where these are zero or not finite."""
    largest: Any = operand._largest
    scale: Any = operand.scale
    quotient = largest / xp.float64(xp.float32_from(bits)) * 2.0**-scale.margin
    found = xp.float32(xp.clip(quotient, None, _LARGEST))
    return xp.where((bits > 0) & (bits < _INFINITY), found, previous)


def prepared(xp: Any, x: Any, operand: Operand, given: Any = None) -> tuple[Any, Any]:
    """An operand, transformed and multiplied with its scale, before it is rounded; and r of each tile, or None.

    For tiles and transforms x is a matrix, or a batch of them, laid out as (..., other axis, terms). `given` is the
    delayed scale.
    """
    if operand.transform is not None:
        x = transformed(xp, x, operand.transform)
    if operand.scale is None or 0 in x.shape:
        return x, None
    if given is not None:
        return times(xp, x, given), _inverse(xp, given)
    parts = tiles(x.shape, operand.scale.sizes(len(x.shape)))
    split = parts.split(x, lambda array, missing: xp.pad(array, [(0, count) for count in missing]))
    scale = xp.materialize(scale_of(xp, largest_magnitude(xp, split, parts.axes), operand, 1.0))
    inverse = _inverse(xp, scale).reshape(() if operand.scale._whole else parts.counts)
    return parts.merge(times(xp, split, scale)), inverse


def times(xp: Any, x: Any, scale: Any) -> Any:
    """float32(x * scale)."""
    return xp.float32(xp.float64(x) * xp.float64(scale))


def _inverse(xp: Any, scale: Any) -> Any:
    return xp.float32(1.0 / xp.float64(scale))


def scale_for(xp: Any, magnitude: Any, element: Any) -> Any:
    """float32(magnitude / the element's largest number), from 2^-126 to 2^126.

    It is 1 for zero and for a magnitude that is not finite. The element is a format that `BlockScaled` takes.
    """
    count, exponent = largest_number(element)
    bits = xp.float32_bits(magnitude)
    found = xp.float32(xp.clip(xp.float64(magnitude) / (count * 2.0**exponent), 2.0**-126, 2.0**126))
    return xp.where((bits > 0) & (bits < _INFINITY), found, 1.0)


def round_scaled(xp: Any, x: Any, scale: Any, element: Any, round_: Callable[[Any, Any], Any]) -> Any:
    """float32(q * scale), where q is float32(x * float32(1 / scale)) rounded to the element, which saturates.

    The scale spreads over x; `round_` rounds an array to a format.
    """
    return times(xp, round_(times(xp, x, _inverse(xp, scale)), element), scale)


def spread(xp: Any, inverse: Any, scale: Scale, rows: int, terms: int, chunk: int) -> Any:
    """r of tiles for each row of a matrix and each chunk of its sums: (..., rows, chunks)."""
    count = -(-terms // chunk)
    inverse = xp.repeat(inverse, rows if scale.outer is None else scale.outer, -2)[..., :rows, :]
    return xp.repeat(inverse, count if scale.terms is None else scale.terms // chunk, -1)[..., :count]


def of_both(xp: Any, first: Any, second: Any) -> Any:
    """float32(r of the first * r of the second); None is 1."""
    if first is None or second is None:
        return second if first is None else first
    return times(xp, first, second)


def rescaled(xp: Any, found: Any, factor: Any) -> Any:
    """float32(float32(sum) * factor), in float64."""
    return xp.float64(times(xp, xp.float32(found), factor))


def newest_magnitude(xp: Any, x: Any) -> Any:
    """The bits of a float32 tensor's largest magnitude, of shape (1,); 0 for no elements."""
    return largest_magnitude(xp, xp.pad(x.reshape(-1), [(0, int(0 in x.shape))]), (0,))


def next_row(xp: Any, row: Any, newest: Any, operand: Operand) -> Any:
    """The state of a delayed scale after a step: the next scale, and the past largest magnitudes, the newest first.

    `newest` is the largest of `newest_magnitude` over the tensors of the step.
    """
    past = xp.concatenate([newest, xp.float32_bits(row)[1:-1]], 0)
    scale = scale_of(xp, xp.greatest(past, (0,)), operand, row[:1])
    return xp.float32_from(xp.concatenate([xp.float32_bits(scale), past], 0))


@lru_cache(maxsize=256)
def operand_of(number: BlockScaled) -> Operand:
    """A format with a history as an operand."""
    return Operand(number.element, scale=Scale(None, None, number.history, number.margin, number.reduce_amax))


def round_delayed(xp: Any, x: Any, number: BlockScaled, scale: Any, round_: Callable[[Any, Number], Any]) -> Any:
    """float32(q * r), where q is float32(x * s) rounded to the element, which saturates, and r is float32(1 / s).

    `scale` is s, a float32 array of shape (); `round_` rounds an array to a format.
    """
    return round_each_delayed(xp, [x], number, [scale], lambda arrays, element: [round_(arrays[0], element)])[0]


def round_each_delayed(
    xp: Any,
    arrays: Sequence[Any],
    number: BlockScaled,
    scales: Sequence[Any],
    round_: Callable[[list[Any], Number], Sequence[Any]],
) -> list[Any]:
    """`round_delayed` of several arrays, each with its own scale; one call of `round_` rounds all elements."""
    operand = operand_of(number)
    pairs = [prepared(xp, x, operand, scale) for x, scale in zip(arrays, scales, strict=True)]
    rounded = round_([y for y, _ in pairs], number.element)
    return [
        x if inverse is None else times(xp, y, inverse)
        for x, y, (_, inverse) in zip(arrays, rounded, pairs, strict=True)
    ]


def next_rows(xp: Any, state: Any, tensors: tuple[Any, ...], delayed: tuple[BlockScaled | None, ...]) -> list[Any]:
    """The rows of a state after a tensor and its gradient; a row of a format without history stays."""
    rows = zip(state, tensors, delayed, strict=True)
    return [
        row if number is None else next_row(xp, row, newest_magnitude(xp, x), operand_of(number))
        for row, x, number in rows
    ]


def is_delayed(number: Any) -> bool:
    """True for a format whose scale follows from past tensors."""
    return getattr(number, "history", None) is not None


def check_row(name: str, row: Any, history: int) -> None:
    """Raises unless an array is a row of a state: float32, the scale and the `history` past magnitudes."""
    shape, dtype = getattr(row, "shape", None), str(getattr(row, "dtype", None)).removeprefix("torch.")
    if shape is None or dtype != "float32" or tuple(shape) != (1 + history,):
        got = quoted(row) if shape is None else f"{dtype}{list(shape)}"
        raise ValueError(f"{name} is {got}; allowed is float32[{1 + history}], by the format's history")
