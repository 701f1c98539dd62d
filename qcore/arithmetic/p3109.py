"""Operations on codes by the names and rules of IEEE P3109. It follows the interim report v4.0, a draft.

The text of a specialization names an operation, the formats of its operands and of its result, and how it is projected:

    Exp<Binary8p3se, Binary8p4se, (NearestTiesToEven, SatFinite)>
    ScaledAdd<(Binary8p1uf, Binary8p4se), (Binary8p1uf, Binary8p3se), binary16>
    BlockDotProduct<32, Binary8p1uf, Binary4p2sf, Binary8p1uf, Binary4p2sf, binary32>

The rules differ from those of `qcore.arithmetic`: there is one NaN and no -0, of which external formats (binary32,
binary16, BFloat16) have codes; x / 0, 1 / 0 and the tangent of a quarter turn are NaN.

Example:
    >>> import numpy as np
    >>> from qcore.arithmetic import p3109
    >>> divide = p3109.specialization("Divide<Binary8p3se, Binary8p3se, Binary8p3se>")
    >>> divide(np.uint8([64, 64]), np.uint8([68, 0])).tolist()  # 1 / 2, and 1 / 0, which is NaN
    [60, 128]
    >>> p3109.is_provided("Exp<Binary8p3se, Binary8p4se, (NearestTiesToEven, SatFinite)>")
    True
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import inf, nan
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import quoted
from qcore.arithmetic import extended
from qcore.arithmetic.extended import EXACT, ROUNDED
from qcore.arithmetic.queries import decoded, ranks
from qcore.arithmetic.specializations import (
    COMPARISONS,
    NEXT,
    OF_BLOCKS,
    OPERATIONS,
    REDUCTIONS,
    ROUNDINGS,
    SATURATIONS,
    SCALED,
    TO_BLOCK,
    USUAL,
    Specialization,
    digits_of,
)
from qcore.formats.floating import BinaryFloat
from qcore.formats.number import check_number
from qcore.lazy import public_names

__all__ = ["OPERATIONS", "ROUNDINGS", "SATURATIONS", "Specialization", "is_provided", "kappa", "specialization"]
__dir__ = public_names(__name__)

_MOST_BITS = 24  # significant bits of an operand, with its scale
_FARTHEST = 300  # exponents of operands, of results and of products with scales


class Layout(NamedTuple):
    """What a text names between its brackets.

    Attributes:
        operands: how many there are; each has a format.
        result: True if the result's format follows.
        scaled: True if each operand's format comes after that of its scale.
        result_scale: True if the format of the result's scale comes before that of the result.
        block: True if the number of elements comes first.
        projections: how many there may be.
    """

    operands: int
    result: bool = True
    scaled: bool = False
    result_scale: bool = False
    block: bool = False
    projections: int = 1


def layout_of(name: str) -> Layout:
    if name in ("Convert", *ROUNDED):
        return Layout(extended.count_of(name))
    if name in SCALED.values():
        return Layout(extended.count_of(name.removeprefix("Scaled")), scaled=True)
    if name in OF_BLOCKS.values():
        return Layout(extended.count_of(name.removeprefix("Block")), scaled=True, result_scale=True, block=True)
    if name in TO_BLOCK:
        return Layout(1, result_scale=True, block=True, projections=1 + (name == TO_BLOCK[1]))
    if name in REDUCTIONS or name == "ConvertFromBlock":
        return Layout(2 if name == "BlockDotProduct" else 1, scaled=True, block=True)
    count = extended.count_of(name) if name in EXACT else 2 if name in COMPARISONS else 1
    return Layout(count, result=False, projections=0)


def specialization(text: str) -> Specialization:
    """The specialization of a text.

    Args:
        text: an operation with formats and, for results that are rounded, a projection, as the module describes;
            without a projection it is (NearestTiesToEven, SatNone). Formats are Binary8p4se and
            its kind, binary32, binary16 and BFloat16. Operations that return an operand have one format. The format of
            a scale comes before that of its numbers, and the number of a block's elements before all formats.

    Returns:
        A function of arrays of codes.

    Raises:
        ValueError: if there is no such operation or format, or it is not provided.

    Example:
        >>> add = specialization("Add<Binary8p4se, Binary8p3se, BFloat16, (ToOdd, SatFinite)>")
        >>> hex(add(np.uint8([64]), np.uint8([64]))[0])
        '0x4000'
    """
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"text={quoted(text)}; allowed is an operation with formats, such as 'Negate<Binary8p4se>'")
    name = match[1]
    if name not in OPERATIONS:
        raise ValueError(f"text={quoted(text)}; allowed operations are {', '.join(OPERATIONS)}")
    layout, (block, numbers, projections) = layout_of(name), _named(match[2], text)
    if layout.block != (block is not None):
        raise ValueError(f"text={quoted(text)}; allowed is {'a' if layout.block else 'no'} number of elements first")
    if len(projections) > layout.projections:
        rounds = "rounds nothing" if layout.projections == 0 else f"has {len(projections)} projections"
        allowed = layout.projections or "no projection"
        raise ValueError(f"text={quoted(text)}: {name} {rounds}; allowed is {allowed}")
    if not layout.result:
        numbers = numbers * layout.operands if len(numbers) == 1 else numbers
        if name in EXACT and len(set(numbers)) > 1:
            raise ValueError(f"text={quoted(text)}; allowed is one format for {name}")
    expected = layout.operands * (1 + layout.scaled) + layout.result + layout.result_scale
    if len(numbers) != expected:
        raise ValueError(f"text={quoted(text)} has {len(numbers)} formats; allowed are {expected}")
    found = _specialization(name, layout, block, numbers, projections)
    _check_exact(found, text)
    return found


_TEXT = re.compile(r"\s*(\w+)\s*<((?:[^<>()]|\([^<>()]*\))*)>\s*")
_FORMAT = re.compile(r"Binary\d+p\d+[su][ef]|binary32|binary16|BFloat16")
_Named = tuple[int | None, list[BinaryFloat], list[tuple[str, str]]]


def _named(between: str, text: str) -> _Named:
    """The number of elements, formats and projections between a text's brackets."""
    numbers, projections, block = [], [], None
    for group, single in re.findall(r"\(([^()]*)\)|([^,()\s]+)", between):
        names = [one.strip() for one in (group or single).split(",")]
        if single.isdecimal() and block is None and not numbers and int(single) > 0:
            block = int(single)
        elif group and not any(map(_FORMAT.fullmatch, names)):
            projections.append(_projection(names, text))
        else:
            numbers += [_format(one, text) for one in names]
    return block, numbers, projections


def _format(name: str, text: str) -> BinaryFloat:
    if not _FORMAT.fullmatch(name):
        raise ValueError(
            f"text={quoted(text)}; allowed formats are Binary8p4se and its kind, binary32, binary16, BFloat16"
        )
    number = check_number(name, "text")
    assert isinstance(number, BinaryFloat)
    return number


def _projection(names: list[str], text: str) -> tuple[str, str]:
    if len(names) != 2 or names[0] not in ROUNDINGS or names[1] not in SATURATIONS:
        allowed = f"({', '.join(ROUNDINGS)}) and ({', '.join(SATURATIONS)})"
        raise ValueError(f"text={quoted(text)}; allowed projections are a pair of {allowed}")
    return names[0], names[1]


def _specialization(
    name: str, layout: Layout, block: int | None, numbers: list[BinaryFloat], projections: list[tuple[str, str]]
) -> Specialization:
    *of_scale, projection = [*[USUAL] * (layout.projections - len(projections)), *projections] or [USUAL]
    own = layout.operands * (1 + layout.scaled)
    operands, last = numbers[:own], numbers[own:]
    result = last[-1] if layout.result else numbers[0] if name in {*EXACT, *NEXT} else None
    return Specialization(
        name,
        tuple(operands[1::2] if layout.scaled else operands),
        result,
        *projection,
        scales=tuple(operands[::2]) if layout.scaled else (),
        result_scale=last[0] if layout.result_scale else None,
        scale_projection=of_scale[0] if of_scale else USUAL,
        block=block,
    )


def _check_exact(found: Specialization, text: str) -> None:
    """Checks that float64 numbers stand for all exact results."""
    scales = found.scales or (None,) * len(found.operands)
    computed = found.scales or found.result_scale or found.operation in ROUNDED
    most = _FARTHEST if computed else 1000
    for number, scale in zip(found.operands, scales, strict=True):
        if computed and digits_of(number, scale) > _MOST_BITS:
            raise ValueError(
                f"text={quoted(text)}: operands have {digits_of(number, scale)} bits with scales; "
                f"allowed are {_MOST_BITS}"
            )
    every = [*found.operands, *found.scales, *(one for one in (found.result, found.result_scale) if one is not None)]
    for number, scale in [*((one, None) for one in every), *zip(found.operands, scales, strict=True)]:
        (_, least, largest), (_, low, high) = number.span, scale.span if scale is not None else (0, 0, 0)
        if least + low < -most or largest + high > most:
            raise ValueError(
                f"text={quoted(text)} has exponents from {least + low} to {largest + high}; "
                f"allowed are -{most} to {most}"
            )


def is_provided(text: str) -> bool:
    """True if `specialization` of a text gives results: the report's way of asking by a string.

    Args:
        text: as for `specialization`.

    Returns:
        A bool.

    Example:
        >>> is_provided("BlockReduceAdd<32, Binary8p1uf, Binary8p4se, binary16>")
        True
        >>> is_provided(
        ...     "BlockReduceAdd<32, Binary8p4se, binary32, binary16>"
        ... )  # products of more than 24 bits
        False
    """
    try:
        specialization(text)
    except ValueError:
        return False
    return True


def kappa(
    defined: Specialization, approximate: Callable[..., np.ndarray | tuple[np.ndarray, ...]], *codes: np.ndarray
) -> float:
    """How far an approximate operation is from the defined one: the report's declaration of accuracy (4.6).

    Args:
        defined: the operation that is approximated.
        approximate: a function of the same arrays of codes, which returns codes as `defined` does.
        codes: the operands to compare, such as a part of all; by default all of them, of up to 16 bits together.

    Returns:
        NaN if NaN is ever another result; else infinity if infinities are; else the most numbers between both results
        of an operand, with the approximate one and without the defined one.

    Raises:
        ValueError: if there are more operands than all of 16 bits, or the results of `defined` are no codes.

    Example:
        >>> exact = specialization("Exp<Binary8p3se, Binary8p4se>")
        >>> kappa(exact, lambda x: np.where(exact(x) < 8, 0, exact(x)))  # numbers below 2^-7 are 0
        7.0
    """
    if defined.result is None:
        raise ValueError(f"defined={quoted(defined.operation)} returns no codes; allowed are operations that do")
    given = codes or _all_codes(defined)
    exact, found = _several(defined(*given)), _several(approximate(*given))
    formats = [defined.result_scale, defined.result] if len(exact) == 2 else [defined.result]
    distances = [
        _distance(decoded(x, number), decoded(y, number), number)
        for x, y, number in zip(exact, found, formats, strict=True)
    ]
    return nan if any(map(np.isnan, distances)) else max(distances)


def _several(results: Any) -> tuple[np.ndarray, ...]:
    return results if isinstance(results, tuple) else (results,)


def _all_codes(defined: Specialization) -> tuple[np.ndarray, ...]:
    """All operands of an operation without blocks."""
    widths = [number.bits for number in defined._formats]
    if sum(widths) > 16 or defined.block:
        raise ValueError(
            f"codes of {defined.operation} have {sum(widths)} bits; allowed without codes are 16, not in blocks"
        )
    return np.ix_(*(np.arange(1 << bits) for bits in widths))


def _distance(exact: np.ndarray, found: np.ndarray, number: BinaryFloat) -> float:
    if (np.isnan(exact) != np.isnan(found)).any():
        return nan
    infinite = np.isinf(exact) | np.isinf(found)
    if (exact != found)[infinite].any():
        return inf
    return float(abs(ranks(found, number) - ranks(exact, number)).max(initial=0))
