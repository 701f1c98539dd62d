"""Statistics of a rounding: counts, extremes, exponents and errors, the same integers in all packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf, log10, nan
from typing import Any, Generic, TypeVar

import numpy as np

from qcore.arguments import check_int, quoted
from qcore.formats.number import check_number
from qcore.html import html_table
from qcore.insight.law import (
    COUNTS,
    ERROR_FIELDS,
    ERROR_UNIT,
    FIELDS,
    LENGTH,
    MAGNITUDES,
    NUMBER_UNIT,
    NUMBERS,
    SUMS,
    Packed,
    as_numpy,
    lanes_of,
    sums_of,
)
from qcore.namespace import Array

_INFINITY = 0x7F800000
_MOST = 2**60 - 1  # of a sum, which is kept in two lanes of 30 bits
_JSON = ("number", *COUNTS, *MAGNITUDES, "numbers", "errors")

L = TypeVar("L", bound=Array | Packed)  # the lanes of an array's package, or packed ones


@dataclass(frozen=True, eq=False, repr=False)
class Statistics(Generic[L]):
    """Statistics of a rounding, in integers: `==` holds between packages, and for any order of summation.

    Statistics are made by `statistics_of`. The statistics of parts, `merge`d in any order, are equal to those of the
    whole. All counts below refer to numbers before rounding, unless they name results.

    Sums of errors are over the elements that are finite before and after. Every error, result - number, and every
    number is first rounded to 5 significant bits (numbers below 2^-126 to multiples of 2^-131), to nearest, ties to
    even; their sums are exact. This changes the SQNR of many elements by some thousandths of a dB.

    Args:
        number: the text of the format.
        lanes: int32 array of any package, of shape (LENGTH,): the higher parts of all sums, their lower 30 bits, and
            magnitudes; a digest may follow. With dimensions before it: several statistics, see `parts`; the properties
            below then describe all of them together.

    Attributes:
        elements: the number of elements.
        zeros, infinite, nan: the numbers of zeros, infinities and NaNs.
        underflowed: nonzero numbers that became zero, unless they saturated.
        saturated: numbers beyond the format's, or their block's, largest or lowest, whose results are finite.
        overflowed: finite numbers whose results are infinite or NaN.
        nan_results: results that are NaN.
        subnormal: results that are nonzero and below the format's, or their block's, smallest normal number.
        finite: elements that are finite before and after.
        smallest_before, largest_before, smallest_after, largest_after: magnitudes of finite nonzero numbers and
            results, in float32; 0.0 if there are no such numbers.
        exponents: the number of finite nonzero numbers with each exponent floor(log2 |x|); -127 stands for all numbers
            below 2^-126.
        error_absolute, error_squared, error_signed: exact sums of |error|, error^2 and error.
        signal: the exact sum of the squares of the numbers.
        digest: the digest of the results' bits, hexadecimal, for the lanes of a watch with digests; else None.

    Example:
        >>> from qcore.insight import statistics_of
        >>> found = statistics_of(np.float32([500, 1, -0.001, 0]), "e4m3fn")
        >>> found.saturated, found.overflowed, found.underflowed, found.zeros
        (0, 1, 0, 1)
        >>> first, rest = (statistics_of(np.float32(x), "e4m3fn") for x in ([500], [1, -0.001, 0]))
        >>> found == first.merge(rest)
        True
    """

    number: str
    lanes: L

    @property
    def _whole(self) -> tuple[np.ndarray, np.ndarray]:
        """All sums in int64, and the magnitudes' lanes; kept, unless the lanes are packed."""
        known = vars(self).get("_known")
        if known is None:
            sums, magnitudes = sums_of(as_numpy(self.lanes))
            known = sums.reshape(-1, SUMS).sum(0), magnitudes.reshape(-1, len(MAGNITUDES)).max(0, initial=0)
            if not isinstance(self.lanes, Packed):
                vars(self)["_known"] = known
        return known

    @property
    def digest(self) -> str | None:
        if isinstance(self.lanes, Packed) or self.lanes.shape[-1] == LENGTH:
            return None
        return digest_text(as_numpy(self.lanes)[..., LENGTH:])

    def pack(self) -> Statistics:
        """The same statistics in a tenth of the memory; reading them takes longer."""
        if isinstance(self.lanes, Packed):
            return self
        lanes = as_numpy(self.lanes)
        lanes = lanes[:LENGTH] if lanes.ndim == 1 else lanes_of(*self._whole)
        places = np.flatnonzero(lanes != 0)  # of bools, which NumPy searches faster
        return Statistics(self.number, Packed(places.astype(np.int16), lanes[places]))

    def _unpack(self) -> Statistics:
        return Statistics(self.number, as_numpy(self.lanes))

    def __getattr__(self, name: str) -> Any:
        if name in COUNTS:
            return int(self._whole[0][COUNTS.index(name)])
        if name in MAGNITUDES:
            return self._magnitude(MAGNITUDES.index(name))
        raise AttributeError(f"{quoted(type(self).__name__)} object has no attribute {quoted(name)}")

    def _magnitude(self, index: int) -> float:
        lane = int(self._whole[1][index])
        if lane and index % 2 == 0:
            lane = _INFINITY - lane
        return float(np.int32(lane).view(np.float32))

    @property
    def _numbers(self) -> np.ndarray:
        return self._whole[0][len(COUNTS) :][:NUMBERS].reshape(FIELDS, -1)

    @property
    def _errors(self) -> np.ndarray:
        return self._whole[0][len(COUNTS) + NUMBERS :].reshape(ERROR_FIELDS, -1)

    @property
    def finite(self) -> int:
        return self.elements - self.infinite - self.nan - self.overflowed

    @property
    def exponents(self) -> dict[int, int]:
        counts = [int(count) for count in self._numbers[: FIELDS - 1, 0]]
        counts[0] -= self.zeros
        return {field - 127: count for field, count in enumerate(counts) if count}

    @property
    def signal(self) -> Fraction:
        return _sum(self._numbers[:, 1], 2, NUMBER_UNIT)

    @property
    def error_absolute(self) -> Fraction:
        return _sum(self._errors[:, 0], 1, ERROR_UNIT)

    @property
    def error_signed(self) -> Fraction:
        return _sum(self._errors[:, 1], 1, ERROR_UNIT)

    @property
    def error_squared(self) -> Fraction:
        return _sum(self._errors[:, 2], 2, ERROR_UNIT)

    @property
    def sqnr(self) -> float:
        """10 log10(signal / error_squared), in dB: infinity without errors, NaN where numbers are all zero."""
        if not self.signal:
            return nan
        return 10 * _log10(self.signal / self.error_squared) if self.error_squared else inf

    @property
    def bias(self) -> float:
        """The mean error; 0.0 without finite elements."""
        return float(self.error_signed / self.finite) if self.finite else 0.0

    @property
    def exponent_bits_used(self) -> int:
        """The bits of an exponent field for zero and all exponents from the smallest to the largest result's."""
        if not self.largest_after:
            return 0
        low, high = (np.frexp(x)[1] for x in (self.smallest_after, self.largest_after))
        return int(high - low + 1).bit_length()

    def rate(self, name: str) -> float:
        """A count as a part of all elements: `rate("saturated")`; 0.0 without elements."""
        if name not in COUNTS[1:]:
            raise ValueError(f"name={quoted(name)}; allowed are {', '.join(COUNTS[1:])}")
        return getattr(self, name) / self.elements if self.elements else 0.0

    def merge(self, *others: Statistics) -> Statistics:
        """The statistics of all elements together.

        Raises:
            ValueError: if the formats differ.
        """
        for one in others:
            if one.number != self.number:
                raise ValueError(f"others has statistics of {quoted(one.number)}; allowed is {quoted(self.number)}")
        pairs = [one._whole for one in (self, *others)]
        sums, magnitudes = sum(sums for sums, _ in pairs), np.max([magnitudes for _, magnitudes in pairs], 0)
        return Statistics(self.number, lanes_of(sums, magnitudes))  # type: ignore[arg-type]

    def parts(self) -> list[Statistics]:
        """The statistics along the first dimension of lanes that have several: a scan's iterations."""
        return [Statistics(self.number, lanes) for lanes in as_numpy(self.lanes)]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Statistics):
            return NotImplemented
        same = all(np.array_equal(mine, its) for mine, its in zip(self._whole, other._whole, strict=True))
        return same and self.number == other.number

    def __hash__(self) -> int:
        return hash((self._whole[0].tobytes(), self._whole[1].tobytes()))

    def differing(self, other: Statistics) -> list[str]:
        """The names of fields in which others differ."""
        mine, its = self.to_json(), other.to_json()
        return [name for name in _JSON if mine[name] != its[name]]

    def __repr__(self) -> str:
        if not isinstance(self.lanes, Packed) and (len(self.lanes.shape) != 1 or not _is_concrete(self.lanes)):
            return f"Statistics (number={self.number}, lanes of shape {tuple(self.lanes.shape)})"
        found = {name: getattr(self, name) for name in COUNTS if getattr(self, name)}
        text = "".join(f", {name}={count}" for name, count in found.items() if name != "elements")
        return f"Statistics (number={self.number}, elements={self.elements}{text}, sqnr={self.sqnr:.1f} dB)"

    def _repr_html_(self) -> str | None:
        """The HTML that notebooks show; None for lanes without values, whose `repr` is shown."""
        if not _is_concrete(self.lanes):
            return None
        counts = [(name.replace("_", " "), getattr(self, name)) for name in COUNTS if getattr(self, name)]
        magnitudes = [(name.replace("_", " "), f"{getattr(self, name):.6g}") for name in MAGNITUDES]
        return html_table([type(self).__name__, self.number], [*counts, *magnitudes, ("SQNR", f"{self.sqnr:.1f} dB")])

    def to_json(self) -> dict[str, object]:
        """All fields as JSON types; tables list their entries that are not zero: [entry, sums]."""
        sums, magnitudes = self._whole
        counts = {name: int(count) for name, count in zip(COUNTS, sums, strict=False)}
        lanes = dict(zip(MAGNITUDES, map(int, magnitudes), strict=True))
        tables = {"numbers": _sparse(self._numbers), "errors": _sparse(self._errors)}
        return {"number": self.number, **counts, **lanes, **tables}

    @classmethod
    def from_json(cls, fields: Mapping[str, object]) -> Statistics:
        """The inverse of `to_json`.

        Raises:
            ValueError: if it is not such a dictionary.
        """
        try:
            if not isinstance(fields, Mapping) or set(fields) != set(_JSON):
                raise ValueError(f"its fields are {', '.join(_JSON)}")
            number: Any = fields["number"]
            check_number(number)
            tables = [
                _dense(fields["numbers"], "numbers", FIELDS, 2),
                _dense(fields["errors"], "errors", ERROR_FIELDS, 3),
            ]
            counts = np.array([check_int(name, fields[name], 0, _MOST) for name in COUNTS], np.int64)
            magnitudes = np.array([check_int(name, fields[name], 0, _INFINITY) for name in MAGNITUDES], np.int32)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"statistics={quoted(fields)}; allowed is what Statistics.to_json returns: {error}"
            ) from error
        return Statistics(number, lanes_of(np.concatenate([counts, *tables]), magnitudes))

    def row(self) -> dict[str, int | float]:
        """The fields for columns of a table: counts, magnitudes, sums as floats, and the measures made of them."""
        one = self._unpack()
        counts = {name: getattr(one, name) for name in COUNTS + MAGNITUDES}
        sums = ("signal", "error_absolute", "error_squared", "error_signed")
        derived = {name: getattr(one, name) for name in ("sqnr", "bias", "exponent_bits_used")}
        return counts | {name: _float(getattr(one, name)) for name in sums} | derived


def _is_concrete(lanes: Any) -> bool:
    try:
        as_numpy(lanes)
    except Exception:  # whatever a package raises for its tracers
        return False
    return True


def _sum(column: Iterable[Any], power: int, unit: int) -> Fraction:
    """The sum of a table's column, whose entries are in units of 2^(power * (field + unit))."""
    total = sum(int(count) << (power * field) for field, count in enumerate(column) if count)
    return Fraction(total) * Fraction(2) ** (power * unit)


def _sparse(table: np.ndarray) -> list[list[Any]]:
    return [[int(entry), [int(x) for x in table[entry]]] for entry in np.flatnonzero(table.any(1))]


def _dense(entries: Any, name: str, fields: int, columns: int) -> np.ndarray:
    """The inverse of `_sparse`; all sums are at least 0, except the sums of signed errors."""
    table = np.zeros((fields, columns), np.int64)
    for pair in entries if isinstance(entries, list | tuple) else [entries]:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[1], list | tuple)):
            raise ValueError(f"{name} has {quoted(pair)}; allowed are pairs of an entry and its sums")
        if len(pair[1]) != columns:
            raise ValueError(f"{name} has {quoted(pair)}; allowed are {columns} sums")
        entry = check_int(f"an entry of {name}", pair[0], 0, fields - 1)
        lows = [-_MOST if (columns, column) == (3, 1) else 0 for column in range(columns)]
        table[entry] = [check_int(f"{name}[{entry}]", one, low, _MOST) for one, low in zip(pair[1], lows, strict=True)]
    return table.reshape(-1)


def _float(x: Fraction) -> float:
    try:
        return float(x)
    except OverflowError:
        return inf if x > 0 else -inf


def _log10(x: Fraction) -> float:
    """log10 of a positive fraction of any size."""
    shift = x.numerator.bit_length() - x.denominator.bit_length()
    return log10(float(x / Fraction(2) ** shift)) + shift * log10(2)


WORDS = 2
_SECOND = 0x3C6EF372  # added to the index for the second word


def hashes(lanes: Any, index: Any) -> tuple[Any, Any]:
    """Hashes of elements, one for each word of the digest, from their lanes and their row-major indices."""
    return _mixed(_mixed(index) ^ lanes), _mixed(_mixed(index + _SECOND) ^ lanes)


def _mixed(x: Any) -> Any:
    """A bijection of int32, Wellons' lowbias32; every bit depends on all bits."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -0x7B935975
    return x ^ ((x >> 16) & 0xFFFF)


def digest_text(words: np.ndarray) -> str:
    """The sum of words, int32 of shape (..., WORDS), as hexadecimal digits.

    Example:
        >>> digest_text(np.int32([[1, -1], [1, 2]]))
        '0000000200000001'
    """
    totals = words.reshape(-1, WORDS).sum(0, dtype=np.int32)
    return "".join(f"{word:08x}" for word in totals.view(np.uint32))


def merged_digests(a: str | None, b: str | None) -> str | None:
    """The digest of two parts together, from their digests; None if one is missing.

    Example:
        >>> merged_digests("00000002ffffffff", "0000000100000003")
        '0000000300000002'
    """
    if a is None or b is None:
        return None
    words = np.array([[int(one[i : i + 8], 16) for i in range(0, 8 * WORDS, 8)] for one in (a, b)], np.uint32)
    return digest_text(words.view(np.int32))
