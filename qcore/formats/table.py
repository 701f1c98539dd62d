"""Tables: formats whose numbers are given one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import inf, isfinite, isinf, isnan, nan
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from qcore.arguments import check_choice, quoted
from qcore.formats.number import Number
from qcore.law.carrier import Carrier
from qcore.law.program import Constants, Program
from qcore.law.rounding import Rounding
from qcore.law.table import BUCKETS, FEW, Gaps, Steps, TableCodes, bucket_shift, half_of_word
from qcore.namespace import Array
from qcore.packing import storage

MOST_NUMBERS = 1 << 16
_UNIT = -1075  # every float64 number, and half of it, is an integer times 2^_UNIT
_SHOWN = 4  # numbers at each end of a long table in a notebook
_WRITTEN = 256  # numbers of the longest table whose repr has them all


@dataclass(frozen=True, repr=False)
class Table(Number):
    """A format of arbitrary numbers: results are the nearest number, or in other modes one of the two neighbours.

    A number's code is its index, from 0. Numbers beyond the ends, infinities too, become the first or the last in
    order; a result of zero has the sign of the rounded number. NaN stays NaN and has the code 0.

    Ties go to the number with an even index (where both neighbours' are even, or both odd: to the lower number if its
    index is even), and "odd" rounds to the odd one in the same way. "toward_zero" and "away" go by the magnitudes of
    the neighbours, where these are equal to the nearer. Comparisons are exact. Stochastic modes measure distances from
    the neighbour nearer to zero on numbers that are cut off below 2^-29 of the farther one's power of two (x below
    2^-53; in float64 arrays 2^-59 and 2^-83).

    Infinities and NaN may be among the values, as in a format of codes. What is nearer to `beyond` than to the last
    number becomes infinity, in stochastic modes by its distance from both; where IEEE 754 keeps the largest number, so
    does the table, and infinities stay. NaN then has its index as code, and zero, which has one code, no sign.

    On a dtype that lacks a number, the result is that number rounded to the dtype, and the code is the same; numbers
    beyond the dtype's range are no results.

    Args:
        values: 2 to 65,536 numbers in any order: a sequence, or an array of one dimension. Of equal numbers the first
            gives the code. -0.0 counts as 0.0.
        thresholds: None, or the numbers that take the place of the midpoints in rounding to nearest: one between each
            two neighbours, in ascending order. What equals one becomes the lower number under "nearest".
        ties: "even", as above, or "away": under "nearest" ties go to the number farther from zero.
        beyond: None, or of tables with infinities the magnitude in whose place these are.

    Raises:
        TypeError: if values, thresholds or beyond are not numbers.
        ValueError: if they are too few or too many, a threshold is not finite or not between its neighbours, or there
            are infinities without a `beyond` above all numbers.

    Example:
        >>> import numpy as np
        >>> from qcore import encode, quantize
        >>> table = Table([-1, -0.25, 0, 0.25, 1])
        >>> x = np.float32([0.125, 0.2, -0.7, 9])
        >>> quantize(x, table), encode(x, table)
        (array([ 0.  ,  0.25, -1.  ,  1.  ], dtype=float32), array([2, 3, 0, 4], dtype=uint8))
        >>> quantize(x, Table([0, 0.25, 1], thresholds=[0.1, 0.8]))
        array([ 0.25,  0.25, -0.  ,  1.  ], dtype=float32)
        >>> quantize(np.float32([1.4, 1.6, -9]), Table([-np.inf, 0, 1, np.inf], beyond=2))
        array([  1.,  inf, -inf], dtype=float32)
    """

    values: tuple[float, ...]
    thresholds: tuple[float, ...] | None = None
    ties: str = "even"
    beyond: float | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            values: Iterable[float] | Array,
            thresholds: Iterable[float] | Array | None = None,
            ties: str = "even",
            beyond: float | None = None,
        ) -> None: ...

    numbers_text = ""  # the text without names, which traced programs read; not a field

    def __post_init__(self) -> None:
        values, thresholds, beyond, text = checked_fields(self.values, self.thresholds, self.ties, self.beyond)
        self._set(values=values, thresholds=thresholds, beyond=beyond, numbers_text=text)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.values, self.thresholds, self.ties, self.beyond))  # a long tuple's takes a millisecond

    def __repr__(self) -> str:
        if len(self.values) <= _WRITTEN:
            return super().__repr__()
        return f"<Table of {len(self.values)} numbers from {min(self.finite)} to {max(self.finite)}>"

    def _shown_fields(self) -> list[tuple[str, object]]:
        thresholds = None if self.thresholds is None else _shown(self.thresholds)
        return [
            ("values", _shown(self.values)),
            ("thresholds", thresholds),
            ("ties", self.ties),
            ("beyond", self.beyond),
        ]

    def __reduce__(self) -> tuple[Any, ...]:  # without the hash, which differs from process to process
        return Table, (self.values, self.thresholds, self.ties, self.beyond)

    @property
    def finite(self) -> tuple[float, ...]:
        """The finite numbers, in the order of their codes."""
        return _finite(self.values)

    @property
    def nan_code(self) -> int:
        """The code of NaN; 0 where it has none of its own."""
        return next((code for code, one in enumerate(self.values) if isnan(one)), 0)

    @property
    def _has_nan(self) -> bool:
        return isnan(self.values[self.nan_code])

    @property
    def _has_infinity(self) -> bool:
        return _has_infinity(self.values)

    @cached_property
    def ascending(self) -> tuple[int, ...]:
        """The indices of the different numbers, in ascending order of the numbers."""
        return _ascending(self.values)

    @property
    def bits(self) -> int:
        return (len(self.values) - 1).bit_length()

    @property
    def span(self) -> tuple[int, int, int]:
        return span_of(self.values)

    def codes(self, carrier: Carrier) -> TableCodes:
        lanes = [None if isnan(value) else self._entry(carrier, value)[1] for value in self.values]
        numbers = [carrier.quiet_nan if lane is None else lane for lane in lanes]
        unused = [carrier.quiet_nan] * ((1 << self.bits) - len(numbers))
        return TableCodes((*numbers, *unused), (1 << self.bits) - 1)

    def reduce(self, carrier: Carrier) -> tuple[str, Constants]:
        program, constants = self.program(Rounding.NEAREST, carrier, coded=False)
        return program.kind, constants

    def program(self, mode: Rounding, carrier: Carrier, coded: bool) -> tuple[Program, Constants]:
        rows: Any
        if mode.stochastic:
            kind, rows = "table_gaps", self._gaps(carrier, coded)
        else:
            away = mode is Rounding.NEAREST and self.ties == "away"
            kind, rows = "table", self._steps(Rounding.NEAREST_AWAY if away else mode, carrier, coded)
        program = Program(carrier, mode, kind, rule="unsigned_zero" if self._has_nan else "")
        ends = (self.nan_code,) if coded else ()
        if coded:
            program = replace(program, codes="table", storage=storage(self.bits))
        if len(rows.bounds) <= FEW:
            return replace(program, entries=len(rows.bounds)), (*rows, *ends)
        starts, steps = _starts(carrier, rows.bounds)
        rows = _lengthened(rows, steps, carrier)
        return replace(program, kind=f"long_{kind}", entries=len(rows.bounds), steps=steps), (starts, *rows, *ends)

    def overflowing(self, overflow: str) -> Table:
        """The table with an overflow policy: without infinities, numbers beyond the ends become the ends.

        The code of an infinity then stands for the end.
        """
        check_choice("overflow", overflow, ["inf", "saturate"] if self._has_infinity else ["saturate"])
        if overflow == "inf" or not self._has_infinity:
            return self
        least, most = min(self.finite), max(self.finite)
        values = [min(max(one, least), most) if isinf(one) else one for one in self.values]
        thresholds = self.thresholds
        if thresholds is not None:
            ordered = [self.values[index] for index in self.ascending]
            thresholds = thresholds[ordered[0] == -inf : len(thresholds) - (ordered[-1] == inf)]
        return Table(values, thresholds, self.ties)

    def _entries(self, carrier: Carrier) -> list[_Entry]:
        """The numbers that are results on a carrier, in ascending order."""
        every = ((index, *self._entry(carrier, self.values[index])) for index in self.ascending)
        found = [_Entry(index, count, lane) for index, count, lane in every if lane is not None]
        if not found:
            raise ValueError(f"x has dtype {carrier.name}, whose range has none of the numbers of {quoted(self)}")
        return found

    def _entry(self, carrier: Carrier, value: float) -> tuple[int, int | None]:
        """The count of a number, of infinities of what they stand for, and its lane; None beyond a carrier's range."""
        if not isinf(value):
            return _count(value), _on_carrier(carrier, _count(value))
        units = _count(self.beyond or 0.0)
        return (units, carrier.infinity) if value > 0 else (-units, carrier.infinity | carrier.negative)

    def _steps(self, mode: Rounding, carrier: Carrier, coded: bool) -> Steps:
        entries = self._entries(carrier)
        thresholds = self._thresholds(entries)
        gaps = zip(pairwise(entries), thresholds, strict=True)
        bounds = [0, *(_bound(carrier, mode, low, high, threshold) for (low, high), threshold in gaps)]
        return Steps(tuple(bounds), tuple(one.code if coded else one.lane for one in entries))

    def _thresholds(self, entries: list[_Entry]) -> list[int | None]:
        """For each two neighbours the count of the threshold that was given between them, or None."""
        if self.thresholds is None:
            return [None] * (len(entries) - 1)
        places = {index: place for place, index in enumerate(self.ascending)}
        return [_count(self.thresholds[places[one.code]]) for one in entries[:-1]]

    def _gaps(self, carrier: Carrier, coded: bool) -> Gaps:
        entries = self._entries(carrier)
        first, last = ((one.code if coded else one.lane) for one in (entries[0], entries[-1]))
        nowhere = -(1 << (carrier.last - 1))  # shifts all of a significand away
        rows = [(0, first, first, 0, nowhere, 0, 0)]
        rows += [_gap(carrier, low, high, coded) for low, high in pairwise(entries)]
        rows += [(_below(carrier, entries[-1].units), last, last, 0, nowhere, 0, 0)]
        return Gaps(*(tuple(row) for row in zip(*rows, strict=True)))


def checked_fields(
    values: Any, thresholds: Any, ties: str, beyond: Any
) -> tuple[tuple[float, ...], tuple[float, ...] | None, float | None, str]:
    """The values, thresholds, `beyond` and text of a table, or an error. Traced programs take them as constants."""
    values = check_numbers("values", values, finite=False)
    if not 2 <= len(values) <= MOST_NUMBERS:
        raise ValueError(f"values has {len(values)} numbers; allowed are 2 to {MOST_NUMBERS}")
    finite = _finite(values)
    if len(set(finite)) < 2:
        raise ValueError(f"values={quoted(values)}; allowed are at least two different finite numbers")
    check_choice("ties", ties, ["even", "away"])
    if beyond is not None:
        (beyond,) = check_numbers("beyond", [beyond])
    ends = beyond is not None and beyond > max(map(abs, finite))
    if ends != _has_infinity(values) or (beyond is not None and not ends):
        raise ValueError(
            f"beyond={beyond}; allowed is a number above all magnitudes with infinities among values, None without them"
        )
    if thresholds is not None:
        thresholds = check_numbers("thresholds", thresholds)
        _check_thresholds(thresholds, values)
    text = f"table({number_list(values)}"
    text += "" if thresholds is None else f",thresholds={number_list(thresholds)}"
    text += "" if ties == "even" else f",ties={ties}"
    text += "" if beyond is None else f",beyond={number_list([beyond])[1:-1]}"
    return values, thresholds, beyond, f"{text})"


def _check_thresholds(given: tuple[float, ...], values: tuple[float, ...]) -> None:
    ordered = [values[index] for index in _ascending(values)]
    if len(given) != len(ordered) - 1:
        raise ValueError(
            f"thresholds has {len(given)} numbers; allowed are {len(ordered) - 1}, one between each two of the "
            f"{len(ordered)} different values"
        )
    for index, (threshold, (low, high)) in enumerate(zip(given, pairwise(ordered), strict=True)):
        if not low <= threshold <= high:
            raise ValueError(f"thresholds[{index}]={threshold}; allowed is a number from {low} to {high}")


def _finite(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(one for one in values if isfinite(one))


def _has_infinity(values: tuple[float, ...]) -> bool:
    return inf in values or -inf in values


def _ascending(values: tuple[float, ...]) -> tuple[int, ...]:
    """See `Table.ascending`."""
    numbers = (index for index, one in enumerate(values) if not isnan(one))
    order = sorted(numbers, key=values.__getitem__)  # equal ones stay in the order of indices
    return (order[0], *(b for a, b in pairwise(order) if values[a] != values[b]))


def span_of(values: tuple[float, ...]) -> tuple[int, int, int]:
    """See `Number.span`. Traced programs take it as a constant."""
    counts = [abs(_count(value)) for value in _finite(values) if value]
    steps = [(one & -one).bit_length() - 1 for one in counts]
    digits = max(one.bit_length() - step for one, step in zip(counts, steps, strict=True))
    return digits, min(steps) + _UNIT, max(counts).bit_length() - 1 + _UNIT


def by_float32_midpoints(values: Any) -> Table:
    """The table with the thresholds of bitsandbytes: midpoints rounded to float32, which themselves go down."""
    numbers = np.array(values, np.float32)
    ordered = np.array(sorted(set(numbers.tolist())), np.float32)
    return Table(numbers, (ordered[:-1] + ordered[1:]) / np.float32(2))


class _Entry(NamedTuple):
    """A number of a table: its code, the number in units of 2^_UNIT, and its lane on a carrier."""

    code: int
    units: int
    lane: int


def check_numbers(argument: str, given: Any, finite: bool = True) -> tuple[float, ...]:
    """A sequence of numbers as floats without -0.0; NaNs become one object, which is equal to itself in tuples."""
    if isinstance(given, str | bytes) or not (hasattr(given, "tolist") or hasattr(given, "__iter__")):
        raise TypeError(f"{argument}={quoted(given)} is a {type(given).__name__}; allowed is a sequence of numbers")
    try:
        listed: Any = given.tolist() if hasattr(given, "tolist") else list(given)
    except (NotImplementedError, RuntimeError):  # torch's, for tensors without numbers
        raise TypeError(f"{argument} is a {type(given).__name__} without numbers; allowed is a sequence") from None
    if not isinstance(listed, list) or any(isinstance(one, list) for one in cast("list[Any]", listed)):
        raise ValueError(f"{argument} has shape {tuple(getattr(given, 'shape', ()))}; allowed is one dimension")
    found: list[float] = []
    for index, one in enumerate(cast("list[Any]", listed)):
        if isinstance(one, bool) or not isinstance(one, Real):
            raise TypeError(f"{argument}[{index}]={quoted(one)} is a {type(one).__name__}; allowed are finite numbers")
        number = _as_float(one)
        if not finite and number is None and isinstance(one, float) and not isfinite(one):
            number = float(one)
        if number is None:
            raise ValueError(f"{argument}[{index}]={quoted(one)}; allowed are finite numbers that a float64 holds")
        found.append(nan if isnan(number) else number + 0.0)
    return tuple(found)


def _as_float(number: Any) -> float | None:
    """The same number as a finite float; None if there is none."""
    try:
        found = float(number)
    except OverflowError:
        return None
    return found if isfinite(found) and found == number else None


def number_list(numbers: Sequence[float]) -> str:
    """Numbers as text that a parser reads."""
    return f"[{','.join(repr(one).removesuffix('.0') for one in numbers)}]"


def _shown(numbers: Sequence[float]) -> str:
    """Numbers as text for readers: of many the first and the last."""
    if len(numbers) <= 4 * _SHOWN:
        return number_list(numbers).replace(",", ", ")
    first, last = (number_list(some)[1:-1].replace(",", ", ") for some in (numbers[:_SHOWN], numbers[-_SHOWN:]))
    return f"[{first}, ... {len(numbers)} numbers ..., {last}]"


def _count(value: float) -> int:
    """A float64 number in units of 2^_UNIT."""
    numerator, denominator = value.as_integer_ratio()
    return numerator << (1 - _UNIT - denominator.bit_length())  # which is a power of two


def _floor_lane(carrier: Carrier, count: int) -> tuple[int, int, int]:
    """The lane of a carrier's largest magnitude that is at most count * 2^_UNIT, the rest of the count, and a step.

    The step leads to the next magnitude, in units of 2^_UNIT. Above the range the rest is a step.
    """
    exponent = count.bit_length() - 1 + _UNIT
    quantum = max(exponent - carrier.mantissa_bits, carrier.step_exponent)
    shift = quantum - _UNIT
    step = 1 << shift
    if exponent > carrier.max_exponent:
        return carrier.infinity - (1 << carrier.padding), step, step
    # A normal number's significand has the hidden bit, which adds 1 to the field.
    field = quantum - carrier.step_exponent
    return ((field << carrier.mantissa_bits) + (count >> shift)) << carrier.padding, count & (step - 1), step


def _on_carrier(carrier: Carrier, count: int) -> int | None:
    """The lane of a number rounded to a carrier, to nearest, ties to even; None beyond its range."""
    lane, rest, step = _floor_lane(carrier, abs(count))
    if rest and lane + (1 << carrier.padding) == carrier.infinity:
        return None
    if 2 * rest > step or (2 * rest == step and (lane >> carrier.padding) & 1):
        lane += 1 << carrier.padding
    return lane | carrier.negative if count < 0 else lane


def _at_most(carrier: Carrier, count: int) -> int:
    """The key of the largest number of a carrier that is at most count * 2^_UNIT."""
    lane, rest, _ = _floor_lane(carrier, abs(count))
    if count >= 0:
        return lane
    return -1 - lane - ((1 << carrier.padding) if rest else 0)


def _below(carrier: Carrier, count: int) -> int:
    """The largest key below those of numbers from count * 2^_UNIT on."""
    lane, rest, _ = _floor_lane(carrier, abs(count))
    if count > 0:
        return lane - (0 if rest else 1)
    return -2 - lane  # below -0.0 as well as below 0.0


def _bound(carrier: Carrier, mode: Rounding, low: _Entry, high: _Entry, threshold: int | None) -> int:
    """The largest key that is rounded to the lower one of two neighbours."""
    odd, larger = low.code % 2, abs(high.units) - abs(low.units)
    if mode in (Rounding.TOWARD_ZERO, Rounding.AWAY) and larger:
        mode = Rounding.DOWN if (larger > 0) == (mode is Rounding.TOWARD_ZERO) else Rounding.UP
    elif mode is Rounding.ODD:
        mode = Rounding.DOWN if odd else Rounding.UP
    if mode is Rounding.UP:  # only -infinity is at most -infinity
        return (
            -1 - carrier.infinity if low.lane == carrier.infinity | carrier.negative else _at_most(carrier, low.units)
        )
    if mode is Rounding.DOWN:
        return carrier.infinity - 1 if high.lane == carrier.infinity else _below(carrier, high.units)
    # Counts are even, as half of each is a number of the same unit.
    middle = (low.units + high.units) // 2 if threshold is None else threshold
    tie_is_low = not odd or threshold is not None
    if mode in (Rounding.NEAREST_AWAY, Rounding.NEAREST_ZERO) and larger:
        tie_is_low = (larger > 0) == (mode is Rounding.NEAREST_ZERO)
    elif mode in (Rounding.NEAREST_UP, Rounding.NEAREST_DOWN):
        tie_is_low = mode is Rounding.NEAREST_DOWN
    bound = _at_most(carrier, middle) if tie_is_low else _below(carrier, middle)
    return min(max(bound, _at_most(carrier, low.units)), _below(carrier, high.units))  # the neighbours stay themselves


def _starts(carrier: Carrier, bounds: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The row of `Starts`, and how many steps lead from there to any place of a bucket."""
    first = (np.arange(BUCKETS, dtype=np.int64) - BUCKETS // 2) << bucket_shift(carrier)  # keys of buckets
    last = first + ((1 << bucket_shift(carrier)) - 1)
    start, end = (np.searchsorted(np.array(bounds[1:], np.int64), keys, "left") for keys in (first, last))
    return tuple(start.tolist()), int((end - start).max()).bit_length()


def _lengthened(rows: Any, steps: int, carrier: Carrier) -> Any:
    """Rows that a search may read beyond the end, of a length that many tables share."""
    most = len(rows.bounds) + (1 << steps) - 1
    unused = (1 << (most - 1).bit_length()) - len(rows.bounds)
    ends = (
        (1 << carrier.last) - 1 if name == "bounds" else row[-1] for name, row in zip(rows._fields, rows, strict=True)
    )
    return type(rows)(*((*row, *[end] * unused) for row, end in zip(rows, ends, strict=True)))


def _gap(carrier: Carrier, low: _Entry, high: _Entry, coded: bool) -> tuple[int, ...]:
    """The entries of `Gaps` for two neighbours."""
    near, far, flip = (low, high, 0) if abs(low.units) <= abs(high.units) else (high, low, -1)
    exponent, half = abs(far.units).bit_length() - 1 + _UNIT, half_of_word(carrier)
    unit = exponent - (2 * half - 25) - _UNIT
    start, end = ((_cut(one.units, unit) if flip == 0 else -_cut(one.units, unit)) for one in (near, far))
    shift = 2 * half - (carrier.width + 1) - (exponent + carrier.bias)
    results = ((one.code if coded else one.lane) for one in (near, far))
    return _below(carrier, low.units), *results, flip, shift, start, end - start


def _cut(count: int, unit: int) -> int:
    """A count in units of 2^unit counts, toward zero."""
    magnitude = abs(count) >> unit if unit >= 0 else abs(count) << -unit
    return -magnitude if count < 0 else magnitude
