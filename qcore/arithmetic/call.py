"""Calls of operations: formats and modes, checked once, and the tables of operations on short codes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from qcore import arrays
from qcore.arguments import check_int, check_start, quoted
from qcore.arithmetic.law import one_nan
from qcore.arithmetic.operations import OPERATIONS
from qcore.formats.block import BlockNumber
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
_SHORT = 16  # bits of all operands' codes, so that a table has all results


class OperationCall(NamedTuple):
    """An operation between formats under a rounding mode; texts, which compiled programs can hold.

    Attributes:
        operation: its name.
        operands: the texts of the operands' formats; none for operands that are numbers.
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
    def has_table(self) -> bool:
        """True for operations on codes of which a table has all results."""
        return bool(self.operands) and not self.is_stochastic and sum(self.widths) <= _SHORT

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
        found = OPERATIONS[self.operation].law(xp, *numbers, down=self.rounding == Rounding.DOWN.value)
        return one_nan(xp, found)


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
    texts = tuple(number.text for number in operands)
    return OperationCall(operation, texts, result.text, mode.value, overflow, random_bits, start)


def call_of_numbers(operation: str, dtypes: list[str], result: Any, *modes: Any) -> tuple[OperationCall, str]:
    """The call for arrays of dtypes, and the dtype of the result."""
    dtype = dtypes[0] if len(set(dtypes)) == 1 else "float32"
    number = check_number(dtype if result is None else result, "result")
    _check_single("result", number)
    _check_fits(number, dtype)
    return call_of(operation, (), number, *modes), dtype


def call_of_codes(operation: str, operands: Any, result: Any, *modes: Any) -> OperationCall:
    """The call for codes of one format, or of a format for each operand."""
    count = OPERATIONS[operation].operands
    given = operands if isinstance(operands, tuple | list) else (operands,) * count
    if len(given) != count:
        raise ValueError(f"operands={quoted(operands)}; allowed is one format, or {count} of them")
    numbers = tuple(check_number(one, "operands") for one in given)
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


def _check_fits(number: Number, dtype: str) -> None:
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


def exact_of_codes(call: OperationCall, codes: tuple[np.ndarray, ...]) -> np.ndarray:
    """The exact results of codes that broadcast, in float64."""
    numbers = [arrays.decode(x, text, np.float64) for x, text in zip(codes, call.operands, strict=True)]
    with np.errstate(all="ignore"):
        return call.exact(Float64(), *np.broadcast_arrays(*numbers))


@lru_cache(maxsize=256)
def table_of(call: OperationCall) -> np.ndarray:
    """The results of all codes of operands, the first of which has the highest bits of a place."""
    grid = [np.arange(1 << bits, dtype=np.uint32) for bits in call.widths]
    found = arrays.encode(exact_of_codes(call, tuple(np.ix_(*grid))), **call.quantizing).ravel()
    found.flags.writeable = False  # later calls get the same array
    return found
