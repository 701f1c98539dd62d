"""Delayed scales of single tensors, once, for every array namespace: the law of products' operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from qcore.accumulate.operands.operand import Operand
from qcore.accumulate.operands.scale import Scale
from qcore.accumulate.operands.scaling import newest_magnitude, next_row, prepared, times
from qcore.formats.block import BlockScaled
from qcore.formats.number import Number


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
    y, inverse = prepared(xp, x, operand_of(number), scale)
    return x if inverse is None else times(xp, round_(y, number.element), inverse)


def next_rows(xp: Any, state: Any, tensors: tuple[Any, ...], delayed: tuple[BlockScaled | None, ...]) -> list[Any]:
    """The rows of a state after a tensor and its gradient; a row of a format without history stays."""
    rows = zip(state, tensors, delayed, strict=True)
    return [
        row if number is None else next_row(xp, row, newest_magnitude(xp, x), operand_of(number))
        for row, x, number in rows
    ]
