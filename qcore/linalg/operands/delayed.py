"""Delayed scales of single tensors, once, for every array namespace: the law of products' operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from qcore.arguments import quoted
from qcore.formats.block import BlockScaled
from qcore.formats.number import Number
from qcore.linalg.operands.operand import Operand
from qcore.linalg.operands.scale import Scale
from qcore.linalg.operands.scaling import newest_magnitude, next_row, prepared, times


@lru_cache(maxsize=256)
def operand_of(number: BlockScaled) -> Operand:
    """A format with a history as an operand."""
    return Operand(number.element, scale=Scale(None, None, number.history, number.margin, number.reduce_amax))


def round_delayed(xp: Any, x: Any, number: BlockScaled, scale: Any, round_: Callable[[Any, Number], Any]) -> Any:
    """float32(q * r), where q is float32(x * s) rounded to the element, which saturates, and r is float32(1 / s).

    Args:
        xp: the array namespace.
        x: float32 array.
        number: the format.
        scale: s, a float32 array of shape ().
        round_: rounds an array to a format.
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
    """Refuses an array that is not a row of a state: float32, the scale and the past magnitudes.

    Args:
        name: how the row is named in an error.
        row: the array.
        history: of the format.
    """
    shape, dtype = getattr(row, "shape", None), str(getattr(row, "dtype", None)).removeprefix("torch.")
    if shape is None or dtype != "float32" or tuple(shape) != (1 + history,):
        got = quoted(row) if shape is None else f"{dtype}{list(shape)}"
        raise ValueError(f"{name} is {got}; allowed is float32[{1 + history}], by the format's history")
