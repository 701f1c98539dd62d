"""Bounds of a format, or of each block: numbers within them are neither saturated nor subnormal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qcore.formats.block import BlockNumber
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.foreign import ForeignNumber
from qcore.formats.number import Number
from qcore.formats.table import Table
from qcore.insight.law import Bounds, to_float32
from qcore.law.carrier import CARRIERS, Carrier
from qcore.law.float_scale import from_working, times, working
from qcore.law.grid import Grid
from qcore.law.program import KINDS, Program
from qcore.law.rounding import Rounding
from qcore.law.shared_scale import Shared, block_grid, lane, shared_scale
from qcore.law.tiles import Tiles
from qcore.namespace import Names

_NO_EXPONENT = -(1 << 16)  # below that of any carrier's numbers
ALLOWED = [name for name, carrier in CARRIERS.items() if carrier.lane_bits == 32]


class Range(NamedTuple):
    """The range of a format on a carrier.

    Attributes:
        carrier: the carrier.
        program: the program of blocks; None for formats without them.
        constants: for blocks the exponent of the smallest normal number of elements before they are scaled, then the
            program's; for other formats the fields of `Bounds`, in float32. Ints or 0-d arrays.
    """

    carrier: Carrier
    program: Program | None
    constants: tuple[Any, ...]


def check_carrier(name: str, argument: str = "x") -> Carrier:
    """The carrier of an argument's dtype."""
    if name not in ALLOWED:
        raise TypeError(f"{argument} has dtype {name}; allowed are {', '.join(ALLOWED)}")
    return CARRIERS[name]


@lru_cache(maxsize=1024)
def range_of(number: Number, carrier: Carrier) -> Range:
    """The range of a format on a carrier."""
    largest = (carrier.infinity >> carrier.padding) - 1 << carrier.padding
    ends = np.array([largest, largest | carrier.negative], np.int32)
    if isinstance(number, ForeignNumber):
        return _range_of_numbers(carrier, ends, 0)
    if isinstance(number, BlockNumber):
        program, constants = number.program(Rounding.TOWARD_ZERO, carrier, coded=False)
        element = getattr(number, "element", None)
        if isinstance(element, Table):
            program, constants = _with_ends(element, program, constants)
        low = _low(element)
        return Range(carrier, program, (_NO_EXPONENT if low is None else low, *constants))
    if isinstance(number, FixedPoint):  # what wraps around is beyond the range, too
        number = replace(number, wrap=False)
    program, constants = number.program(Rounding.TOWARD_ZERO, carrier, coded=False)
    # The law itself shows the ends of the range: it saturates the carrier's largest numbers.
    ends = program.run(Names, ends, constants, ())
    normal = 0 if _low(number) is None else number.magnitudes.lowest_lane(carrier)  # type: ignore[attr-defined]
    return _range_of_numbers(carrier, ends, normal)


def _range_of_numbers(carrier: Carrier, ends: np.ndarray, normal: int) -> Range:
    """The range of a format without blocks, from the lanes of its ends and of its smallest normal number."""
    lanes = np.array([*(ends & carrier.magnitude_mask), normal], np.int32)
    return Range(carrier, None, tuple(map(int, to_float32(Names, lanes, carrier))))


def _with_ends(element: Table, program: Program, constants: tuple[Any, ...]) -> tuple[Program, tuple[Any, ...]]:
    """The program of blocks of a table with a grid in the table's place, of which only the ends are read."""
    ratios = (max(end, 0.0).as_integer_ratio() for end in (max(element.finite), -min(element.finite)))
    work = working(program.carrier)
    top, bottom = (work.lane_at_most(count, 1 - divisor.bit_length()) for count, divisor in ratios)
    scales = sum(len(part._fields) for part in KINDS[program.kind])
    grid = Grid(base=0, top=0, coarsest=0, finest=0, limit=top, keep=0, lower=bottom - top)
    return replace(program, element="grid", entries=0, steps=0), (*constants[:scales], *grid)


def _low(number: Any) -> int | None:
    """The exponent of the smallest normal number; None for formats without subnormal numbers."""
    if isinstance(number, FloatingPoint | BinaryFloat) and number.magnitudes.subnormals and number.man:
        return number.magnitudes.lowest
    return None


def bounds(xp: Any, bits: Any, found: Range, blocks: Tiles) -> Bounds:
    """The bounds of lanes that are split into blocks, with which they broadcast; in float32.

    `bits` are the lanes before rounding, `found` is the format's range.
    """
    carrier = found.carrier
    if found.program is None:
        return Bounds(*found.constants)
    low, *constants = found.constants
    ends = (_scaled if found.program.float_scaled else _shared)(xp, bits, low, found.program, constants, blocks)
    return Bounds(*(to_float32(xp, end, carrier) for end in ends))


def _scaled(
    xp: Any, bits: Any, low: Any, program: Program, constants: Sequence[Any], blocks: Tiles
) -> tuple[Any, Any, Any]:
    """The ends of elements under scales that are floats."""
    carrier = program.carrier
    work, full = working(carrier), program.scaling(xp, bits, constants, blocks.axes).full
    grid = Grid(*constants[-len(Grid._fields) :])  # the elements', without codes the last part

    def scaled(lanes: Any) -> Any:
        """Magnitudes times the scale; 0 stays 0."""
        lanes = lanes + (full & 0)
        return from_working(xp, times(xp, lanes, full, work), carrier) & (-lanes >> work.last)

    normal = xp.clip((full & 0) + (low + work.bias), 0, None) << work.width
    return scaled(grid.limit), scaled(grid.limit + grid.lower), scaled(normal)


def _shared(
    xp: Any, bits: Any, low: Any, program: Program, constants: Sequence[Any], blocks: Tiles
) -> tuple[Any, Any, Any]:
    carrier, shared = program.carrier, Shared(*constants)
    scale, nan = shared_scale(xp, bits, carrier, shared, blocks.axes, program.kind, blocks.around)
    grid: Grid = block_grid(xp, scale, nan, carrier, shared, program.kind)
    lowest = grid.limit + grid.lower
    return grid.limit, lowest, lane(xp, scale + low, 0, carrier)
