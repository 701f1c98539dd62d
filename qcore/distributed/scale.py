"""Scales of numbers on the wire: what numbers share one, what it follows from, and how receivers undo it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf, prod
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from qcore.arguments import check_choice, check_flag, check_float, check_int, quoted
from qcore.formats.block import BlockNumber, largest_number
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number, call_text
from qcore.formats.table import Table
from qcore.formats.text import Kind, Reader, choice, parse_argument, register, write
from qcore.law.tiles import MOST_ELEMENTS
from qcore.linalg.accumulator import check_scalar, optional_number

ROW, TENSOR, RANKS, QGZ, QWZ = "row", "tensor", "ranks", "qgz", "qwz"
GROUPS = ROW, TENSOR, RANKS, QGZ, QWZ
DIVIDE, RECIPROCAL, MAGNITUDE, POWER_OF_TWO = "divide", "reciprocal", "magnitude", "power_of_two"
INVERSES = DIVIDE, RECIPROCAL, MAGNITUDE, POWER_OF_TWO
_QWZ_TARGET = 8000  # elements of a group


@dataclass(frozen=True, repr=False)
class WireScale:
    """The float32 number s with which a group of numbers is multiplied before it is rounded to the wire.

        a = the largest magnitude of the group, at least `least`
        s = float32(largest / a), and 1 if that is infinite, as for a group of zeros
        q = the wire's rounding of float32(x * s)

    Receivers have the number y of q:

    - inverse="divide": y = float32(q / s). As a term of a sum y is q where s is zero.
    - inverse="reciprocal": y = float32(q * r), r = float32(1 / s).
    - inverse="magnitude": the same with r = float32(a * float32(1 / largest)).
    - inverse="power_of_two": r is the least power of two that is not below this float32 number, and s is 1 / r.

    The result of a sum is scaled again, by its own groups. The mean of N ranks has the same law with
    a = float32(largest magnitude / N) and q = the wire's rounding of float32(float32(x * s) / N).

    An infinite number in a group makes s zero: the finite numbers are sent as 0, and infinite ones as NaN. Integers
    have no NaN, which is sent as 0 there.

    Args:
        group: the numbers that share a scale. An int is the number of neighbours along a message's last axis; the last
            group of a row may be shorter. "row" is the last axis of a message, which is one number in a message of one
            dimension. "tensor" is the array of a rank, "ranks" the arrays of all ranks. "qgz" and "qwz" are the groups
            of ZeRO++: of a matrix max(rows, columns, ranks) equal ones, and of an array about 8,000 numbers each.
        largest: what the largest magnitude becomes; None is the wire's largest number.
        least: the least value of a; 0 for none.
        inverse: how receivers undo the scale.
        number: the format of numbers before they are scaled, and afterwards; None is float32.
        spreads: True makes a NaN a group's largest magnitude, so that all of its numbers become NaN; False leaves NaN
            out.

    Attributes:
        text: the text form, which `parse` reads.

    Example:
        >>> WireScale(128, inverse="power_of_two").text
        'wire_scale(128,inverse=power_of_two)'
    """

    group: int | str = ROW
    largest: float | None = None
    least: float = 0.0
    inverse: str = DIVIDE
    number: Number | None = None
    spreads: bool = False
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            group: int | Literal["row", "tensor", "ranks", "qgz", "qwz"] = "row",
            largest: float | None = None,
            least: float = 0.0,
            inverse: Literal["divide", "reciprocal", "magnitude", "power_of_two"] = "divide",
            number: Number | str | None = None,
            spreads: bool = False,
        ) -> None: ...

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        if isinstance(self.group, str):
            check_choice("group", self.group, GROUPS)
        else:
            self._set("group", check_int("group", self.group, 1, MOST_ELEMENTS))
        if self.largest is not None:
            self._set("largest", check_float("largest", self.largest, "a number above 0", _is_positive))
        self._set("least", check_float("least", self.least, "a finite number >= 0", _is_finite))
        check_choice("inverse", self.inverse, INVERSES)
        if self.number is not None:
            self._set("number", check_scalar("number", self.number))
        check_flag("spreads", self.spreads)
        self._set("text", write(self))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def _is_positive(number: float) -> bool:
    return 0 < number < inf


def _is_finite(number: float) -> bool:
    return 0 <= number < inf


class Groups(NamedTuple):
    """How a message of one rank is cut.

    Attributes:
        shape: the shape of the message.
        columns: the numbers of a row.
        size: the numbers of a group; rows are cut in groups.
        unit: the numbers that stay together where each rank adds its own part: whole rows, if rows have scales.
    """

    shape: tuple[int, ...]
    columns: int
    size: int
    unit: int = 1


def groups_of(scale: WireScale | None, shape: tuple[int, ...], ranks: int) -> Groups:
    """The groups of a message of a shape, which has elements; without a scale the format on the wire cuts it."""
    count = prod(shape)
    last = shape[-1] if len(shape) > 1 else 1
    if scale is None or scale.group in (TENSOR, RANKS):
        return Groups(shape, count, count)
    if scale.group == ROW:
        return Groups(shape, last, last, last)
    if scale.group == QGZ:
        return Groups(shape, count, _qgz_size(shape, count, ranks))
    if scale.group == QWZ:
        return Groups(shape, count, _qwz_size(shape, count))
    columns = shape[-1] if len(shape) > 1 else count
    return Groups(shape, columns, min(int(scale.group), columns))


def _qgz_size(shape: tuple[int, ...], count: int, ranks: int) -> int:
    """The numbers of a group of ZeRO++'s gradients: `all_to_all_quant_reduce`."""
    if len(shape) < 2 or count % (2 * ranks):
        raise ValueError(
            f"stack has messages of shape {shape}; allowed with group=qgz are matrices whose numbers 2 * {ranks} "
            "divides. ZeRO++ sends others as they are, as 'collective(order=nccl_ring,divide=before)' does"
        )
    groups = max(shape[0], shape[1], ranks)
    if count % groups or groups % ranks:
        raise ValueError(
            f"stack has messages of shape {shape}, which ZeRO++ cuts in {groups} groups; allowed are groups that "
            f"{ranks} ranks share, with {count} / groups numbers each"
        )
    return count // groups


def _qwz_size(shape: tuple[int, ...], count: int) -> int:
    """The numbers of a group of ZeRO++'s weights: `CUDAQuantizer.quantize`."""
    if count % 8:
        raise ValueError(f"stack has messages of shape {shape}; allowed with group=qwz are multiples of 8 numbers")
    groups = ceil(count / _QWZ_TARGET)
    while count % (8 * groups):
        groups += 1
    return count // groups


def _group(reader: Reader) -> int | str:
    """Reads a number of elements, or a word."""
    if reader.token.isalpha() and reader.token not in GROUPS:
        raise reader.error(f"allowed here are an int, {', '.join(GROUPS)}")
    return reader.next() if reader.token in GROUPS else reader.integer()


_PARAMETERS = {
    "group": _group,
    "largest": Reader.decimal,
    "least": Reader.decimal,
    "inverse": choice(INVERSES),
    "number": optional_number,
    "spreads": Reader.flag,
}
register("wire_scale", Kind(WireScale, _PARAMETERS, 0, 1, 0))


def check_scale(scale: Any, wire: Any) -> WireScale:
    """A `WireScale`, given as such or as text, for numbers on a wire."""
    found = parse_argument(scale, "scale") if isinstance(scale, str) else scale
    if not isinstance(found, WireScale):
        kind = type(found).__name__
        raise TypeError(f"scale={quoted(scale)} is a {kind}; allowed are a WireScale, its text, and None")
    if wire is None or isinstance(wire, BlockNumber | Table):
        text = "None" if wire is None else quoted(wire.text)
        raise ValueError(
            f"scale={found.text} with wire={text}; allowed are fixed and floating point formats and posits"
        )
    if found.largest is None and not isinstance(wire, FixedPoint | FloatingPoint | BinaryFloat):
        raise ValueError(f"scale={found.text} with wire={wire.text}; allowed is a scale with largest= there")
    return found


def largest_of(scale: WireScale, wire: Number) -> float:
    """What the largest magnitude of a group becomes."""
    if scale.largest is not None:
        return scale.largest
    count, exponent = largest_number(wire)
    return count * 2.0**exponent
