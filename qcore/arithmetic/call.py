"""Calls of operations: formats and modes, checked once, and the tables of operations on short codes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qcore import arrays
from qcore.arguments import check_int, check_start, quoted
from qcore.arithmetic import choices, elementary
from qcore.arithmetic.law import one_nan
from qcore.arithmetic.operations import OPERATIONS
from qcore.formats.block import BlockNumber
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.foreign import BytesNumber, NestedNumber
from qcore.formats.number import Number, check_number, with_overflow
from qcore.formats.table import Table
from qcore.law.carrier import CARRIERS
from qcore.law.rounding import Rounding, check_rounding
from qcore.linalg.namespace import Float64

DTYPES = ("float32", "float16", "bfloat16")
_MOST_BITS = 24  # significant bits of an operand
_FARTHEST = 300  # exponents of an operand
_DECISIVE = 50  # significant bits that may decide a rounding, of the 53 of a number that is rounded to odd
SHORT = 16  # bits of all operands' codes, so that a table has all results


class OperationCall(NamedTuple):
    """An operation between formats under a rounding mode; texts, which compiled programs can hold.

    Attributes:
        operation: its name.
        operands: the texts of the operands' formats; none for operands that are any numbers of their dtypes.
        result: the text of the result's format.
        rounding: the name of the mode.
        overflow: the policy for overflow, or None for the format's own.
        random_bits, start: see `qcore.quantize`.
    """

    operation: str
    operands: tuple[str, ...]
    result: str
    rounding: str
    overflow: str | None
    random_bits: int
    start: int

    @property
    def is_stochastic(self) -> bool:
        return Rounding(self.rounding).stochastic

    @property
    def is_looked_up(self) -> bool:
        """True for operations on codes of which a table has all results, or all exact results."""
        short = bool(self.operands) and sum(self.widths) <= SHORT
        return short and (OPERATIONS[self.operation].law is None or not self.is_stochastic)

    @property
    def widths(self) -> tuple[int, ...]:
        """The bits of the operands' codes."""
        return tuple(check_number(text).bits for text in self.operands)

    @property
    def quantizing(self) -> dict[str, Any]:
        """The arguments of `quantize`, or of `encode`, for the exact result."""
        shared = {"rounding": self.rounding, "random_bits": self.random_bits, "start": self.start}
        return {"number": self.result, "overflow": self.overflow, **shared}

    def exact(self, xp: Any, *numbers: Any) -> Any:
        """The results before they are rounded, of float64 arrays; every NaN is the same."""
        law = OPERATIONS[self.operation].law
        assert law is not None  # others are looked up
        return one_nan(xp, law(xp, *numbers, down=self.rounding == Rounding.DOWN.value))


class Question(NamedTuple):
    """A comparison, a predicate or `classify`; texts, which compiled programs can hold.

    Attributes:
        name: of the public function.
        operands: the texts of the formats of codes; none for numbers.
        normal: the smallest normal number of the first operand's format; 0 for formats whose numbers are all normal.
    """

    name: str
    operands: tuple[str, ...]
    normal: float

    def answer(self, xp: Any, *numbers: Any) -> Any:
        """The answers about float64 arrays: bools, or int64."""
        return choices.answer(xp, self.name, self.normal, *numbers)


def question_of(name: str, count: int, formats: Any, coded: bool) -> Question:
    """The question of a user's arguments: formats of codes, or the format whose normal numbers are asked for."""
    numbers = _several(formats, count) if coded else (check_number(formats, "operands"),)
    for number in numbers:
        _check_operand(number)
    first = numbers[0]
    normal = 2.0**first.magnitudes.lowest if isinstance(first, BinaryFloat | FloatingPoint) else 0.0
    return Question(name, tuple(number.text for number in numbers) if coded else (), normal)


def call_of(
    operation: str,
    operands: tuple[Number, ...],
    result: Number,
    rounding: Any,
    overflow: Any,
    random_bits: Any,
    start: Any,
) -> OperationCall:
    """The call of a user's arguments; raises for formats and modes whose results would not be rounded once."""
    mode = check_rounding(rounding)
    random_bits = check_int("random_bits", random_bits, 1, 24)
    check_start(start)
    for number in operands:
        _check_operand(number)
    _check_single("result", result)
    _check_result(with_overflow(result, overflow), random_bits if mode.stochastic else 1)
    _check_range(operation, result)
    texts = tuple(number.text for number in operands)
    return OperationCall(operation, texts, result.text, mode.value, overflow, random_bits, start)


def call_of_numbers(
    operation: str, dtypes: list[str], operands: Any, result: Any, *modes: Any
) -> tuple[OperationCall, str]:
    """The call for arrays of dtypes, and the dtype of the result. Tables have formats of operands."""
    dtype = dtypes[0] if len(set(dtypes)) == 1 else "float32"
    formats = ()
    if OPERATIONS[operation].law is None:
        formats = _formats(operation, dtypes if operands is None else operands)
        _check_short(operation, formats)
    number = check_number(dtype if result is None else result, "result")
    _check_single("result", number)
    check_fits(number, dtype)
    return call_of(operation, formats, number, *modes), dtype


def _formats(operation: str, operands: Any) -> tuple[Number, ...]:
    """One format for all operands, or one for each."""
    return _several(operands, OPERATIONS[operation].operands)


def _several(operands: Any, count: int) -> tuple[Number, ...]:
    """A number for each of so many operands."""
    given = operands if isinstance(operands, tuple | list) else (operands,) * count
    if len(given) != count:
        raise ValueError(f"operands={quoted(operands)}; allowed is one format, or {count} of them")
    return tuple(check_number(one, "operands") for one in given)


def _check_short(operation: str, numbers: tuple[Number, ...]) -> None:
    for number in numbers:
        _check_single("operands", number)
    bits = sum(number.bits for number in numbers)
    if bits > SHORT:
        raise ValueError(
            f"operands of {operation}: {', '.join(number.text for number in numbers)} have {bits} bits; allowed are "
            f"{SHORT} bits together: operands= short formats, or arrays of float16 or bfloat16 for one operand"
        )


def call_of_codes(operation: str, operands: Any, result: Any, *modes: Any) -> OperationCall:
    """The call for codes of one format, or of a format for each operand."""
    numbers = _formats(operation, operands)
    if OPERATIONS[operation].law is None:
        _check_short(operation, numbers)
    if result is None and len(set(numbers)) > 1:
        raise ValueError(f"result=None with operands={quoted(operands)}; allowed with one format for all operands")
    return call_of(operation, numbers, numbers[0] if result is None else check_number(result, "result"), *modes)


def _check_operand(number: Number) -> None:
    _check_single("operands", number)
    digits, least, most = number.span
    if digits > _MOST_BITS or least < -_FARTHEST or most > _FARTHEST:
        raise ValueError(
            f"operands: {quoted(number)} has numbers of {digits} bits from 2^{least} to 2^{most}; allowed are at most "
            f"{_MOST_BITS} bits, and exponents from -{_FARTHEST} to {_FARTHEST}"
        )


def _check_single(name: str, number: Number) -> None:
    if isinstance(number, BlockNumber | BytesNumber | NestedNumber):
        raise ValueError(f"{name}={quoted(number)} is a format of blocks; allowed are formats of single numbers")


def check_fits(number: Number, dtype: str) -> None:
    """Raises if a dtype has not a format's numbers. QPyTorch's floats may end beyond it: there they are infinite."""
    carrier, (digits, least, most) = CARRIERS[dtype], number.span
    if digits > carrier.mantissa_bits + 1 or least < carrier.step_exponent or most > carrier.max_exponent + 1:
        raise ValueError(
            f"result={quoted(number)} has numbers of {digits} bits from 2^{least} to 2^{most}, which arrays of {dtype} "
            "have not; allowed are arrays of a wider dtype, or codes"
        )


def _check_result(number: Number, random_bits: int) -> None:
    digits, least, most = number.span
    if isinstance(number, Table):  # whose numbers have no common step
        digits = most - least + 1
    if digits + random_bits > _DECISIVE:
        raise ValueError(
            f"result={quoted(number)}: {digits + random_bits} bits decide its roundings; allowed are {_DECISIVE}"
        )


def _check_range(operation: str, result: Number) -> None:
    _, least, most = result.span
    if OPERATIONS[operation].law is None and (least < -_RANGE or most > _RANGE):
        raise ValueError(f"result={quoted(result)} of {operation}; allowed are exponents from -{_RANGE} to {_RANGE}")


def exact_of_codes(call: OperationCall, codes: tuple[np.ndarray, ...]) -> np.ndarray:
    """The exact results of codes that broadcast, in float64."""
    numbers = [arrays.decode(x, text, np.float64) for x, text in zip(codes, call.operands, strict=True)]
    with np.errstate(all="ignore"):
        return call.exact(Float64(), *np.broadcast_arrays(*numbers))


_DIGITS = 26, 36, _DECISIVE  # for which tables of functions are made
_RANGE = 900  # exponents of results of functions, whose stand-ins for infinite exponents are finite


@lru_cache(maxsize=64)
def _stand_ins(operation: str, operands: tuple[str, ...], digits: int) -> np.ndarray:
    """A function's exact results for all codes of its operands, the first of which has the highest bits of a place."""
    numbers = [arrays.decode(np.arange(1 << check_number(text).bits), text, np.float64) for text in operands]
    if len(numbers) == 1:
        found = elementary.of_one(operation, numbers[0], digits)
    else:
        found = elementary.of_two(operation, *_pairs(numbers), digits=digits)
    return _kept(np.asarray(one_nan(Float64, found)))


def _pairs(numbers: list[np.ndarray]) -> list[np.ndarray]:
    """All pairs of numbers; of one operand the numbers."""
    return [x.ravel() for x in np.broadcast_arrays(*np.ix_(*numbers))]


def stand_ins_of(call: OperationCall) -> np.ndarray:
    """The exact results of all codes of operands."""
    if OPERATIONS[call.operation].law is None:
        digits = check_number(call.result).span[0] + (call.random_bits if call.is_stochastic else 1)
        return _stand_ins(call.operation, call.operands, next(one for one in _DIGITS if digits <= one))
    grid = [np.arange(1 << bits, dtype=np.uint32) for bits in call.widths]
    return exact_of_codes(call, tuple(np.ix_(*grid))).ravel()


@lru_cache(maxsize=256)
def table_of(call: OperationCall) -> np.ndarray:
    """The codes of the results of all codes of operands."""
    return _kept(arrays.encode(stand_ins_of(call), **call.quantizing))


@lru_cache(maxsize=64)
def numbers_of(call: OperationCall) -> np.ndarray:
    """The results of all codes of operands in float32, where rounding is not stochastic."""
    with np.errstate(all="ignore"):
        return _kept(one_nan(Float64, arrays.quantize(stand_ins_of(call), **call.quantizing)).astype(np.float32))


@lru_cache(maxsize=64)
def slopes_of(operation: str, operands: tuple[str, ...]) -> tuple[np.ndarray, ...]:
    """The derivatives of a function at all codes of its operands, for each of them, in float32."""
    numbers = [arrays.decode(np.arange(1 << check_number(text).bits), text, np.float64) for text in operands]
    with np.errstate(all="ignore"):
        found = elementary.SLOPES[operation](*_pairs(numbers))
        return tuple(_kept(one_nan(Float64, np.asarray(x)).astype(np.float32)) for x in found)


def _kept(table: np.ndarray) -> np.ndarray:
    """A table that later calls get, too."""
    table.flags.writeable = False
    return table


def are_bits(dtype: str, text: str) -> bool:
    """True if the codes of a format are the bits of a dtype of 16 bits."""
    return dtype in DTYPES[1:] and check_number(dtype).text == text


def low_bits(x: Any, bits: int) -> Any:
    """Codes of so many bits without higher ones."""
    return x & (1 << bits) - 1


def indices_of(widths: tuple[int, ...], codes: tuple[Any, ...], low: Callable[[Any, int], Any] = low_bits) -> Any:
    """Where the results of codes of so many bits are in a table; the integers have room for the bits of all."""
    index = low(codes[0], widths[0])
    for x, bits in zip(codes[1:], widths[1:], strict=True):
        index = (index << bits) | low(x, bits)
    return index
