"""The law of scaled numbers on the wire, once, for every array namespace (`qcore.linalg.namespace`).

Each operation is float64's, rounded to float32: sums and products of float32 numbers are exact there, and quotients
rounded twice are those rounded once. Compilers can neither contract nor rewrite it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore.distributed.scale import DIVIDE, POWER_OF_TWO, RANKS, RECIPROCAL, Groups, WireScale, largest_of
from qcore.formats.fixed import FixedPoint
from qcore.formats.number import Number
from qcore.law.rounding import Rounding

_MAGNITUDE, _INFINITY, _MANTISSA = 0x7FFFFFFF, 0x7F800000, 0x7FFFFF  # of float32's bits
RANDOM_BITS = 24


def scaled(
    xp: Any,
    x: Any,
    wire: Number,
    rounding: Rounding,
    scale: WireScale,
    groups: Groups,
    step: int,
    ranks: int = 1,
    is_term: bool = False,
) -> Any:
    """What receivers have of float32 numbers (k, n) that are scaled, rounded to the wire, and sent: (k, n), float32.

    Args:
        xp: the array namespace.
        x: the numbers of k ranks.
        wire, rounding, scale: the law of the wire.
        groups: the groups of a rank's numbers.
        step: the number of earlier roundings of each element.
        ranks: the number of ranks whose mean is sent, of which x is the sum.
        is_term: True if receivers add the numbers.
    """
    x = _of_format(xp, x, scale.number)
    parts = _split(xp, x, groups)
    largest = largest_of(scale, wire)
    magnitude = _magnitude(xp, parts, scale, ranks)
    inverse = _inverse(xp, magnitude, largest, scale)
    factor = _factor(xp, magnitude, inverse, largest, scale)
    factor, inverse = (_merged(xp, some, parts.shape, x.shape, groups) for some in (factor, inverse))
    y = xp.float32(xp.float64(x) * xp.float64(factor))
    if ranks > 1:
        y = xp.float32(xp.divide(xp.float64(y), float(ranks)))
    sent = xp.rounded(xp.float64(y), wire, rounding, step, RANDOM_BITS)
    if isinstance(wire, FixedPoint):  # integers have neither NaN nor -0
        sent = xp.where((sent == sent) & (sent != 0), sent, 0.0)
    if scale.inverse != DIVIDE:
        found = sent * xp.float64(inverse)
    else:
        found = xp.divide(sent, xp.float64(xp.where(factor == 0, 1.0, factor) if is_term else factor))
    return _of_format(xp, xp.float32(found), scale.number)


def _of_format(xp: Any, x: Any, number: Number | None) -> Any:
    """Float32 numbers, rounded to a format."""
    if number is None:
        return x
    return xp.float32(xp.rounded(xp.float64(x), number, Rounding.NEAREST, 0, RANDOM_BITS))


def _split(xp: Any, x: Any, groups: Groups) -> Any:
    """Numbers (k, n) as (k, rows, groups of a row, numbers of a group), with zeros for what is missing in a row."""
    rows = x.reshape(x.shape[0], -1, groups.columns)
    missing = -groups.columns % groups.size
    if missing:
        rows = xp.pad(rows, [(0, 0), (0, 0), (0, missing)])
    return rows.reshape(*rows.shape[:2], -1, groups.size)


def _merged(xp: Any, each: Any, parts: tuple[int, ...], shape: tuple[int, ...], groups: Groups) -> Any:
    """A number of each group for each of the numbers (k, n), whose groups have the shape `parts`."""
    spread = xp.broadcast_to(each, parts).reshape(*parts[:2], parts[2] * parts[3])
    return spread[:, :, : groups.columns].reshape(shape)


def _magnitude(xp: Any, parts: Any, scale: WireScale, ranks: int) -> Any:
    """a of each group, float64."""
    bits = xp.float32_bits(parts) & _MAGNITUDE
    if not scale.spreads:
        bits = xp.where(bits > _INFINITY, bits * 0, bits)
    largest = xp.float32_from(xp.greatest(bits, (0, 3) if scale.group == RANKS else (3,)))
    if ranks > 1:
        largest = xp.float32(xp.divide(xp.float64(largest), float(ranks)))
    wide = xp.float64(largest)
    return xp.where(wide < scale.least, scale.least, wide) if scale.least else wide


def _inverse(xp: Any, magnitude: Any, largest: float, scale: WireScale) -> Any:
    """r of each group, float32; without a meaning where receivers divide by s."""
    if scale.inverse == RECIPROCAL:
        return xp.float32(1.0 / xp.float64(_quotient(xp, magnitude, largest)))
    found = xp.float32(magnitude * float(np.float32(1.0 / largest)))
    if scale.inverse == POWER_OF_TWO:
        found = xp.float32_from((xp.float32_bits(found) + _MANTISSA) & _INFINITY)
        found = xp.where(found == 0, 1.0, found)  # of a group of zeros
    return found


def _factor(xp: Any, magnitude: Any, inverse: Any, largest: float, scale: WireScale) -> Any:
    """s of each group, float32."""
    if scale.inverse == POWER_OF_TWO:
        return xp.float32(1.0 / xp.float64(inverse))
    return _quotient(xp, magnitude, largest)


def _quotient(xp: Any, magnitude: Any, largest: float) -> Any:
    """float32(largest / a), and 1 where it is infinite."""
    found = xp.float32(largest / magnitude)
    return xp.where(xp.float32_bits(found) == _INFINITY, 1.0, found)
