"""The worst sites of a record, and what would help each of them."""

from __future__ import annotations

from math import ceil, floor, isnan, log2, log10
from typing import NamedTuple

import numpy as np

from qcore.arrays import quantize
from qcore.formats.block import BlockNumber, BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.formats.number import Number, check_number
from qcore.insight.record import Record, Site
from qcore.insight.statistics import Statistics

# From which part of the elements on, and below which ratio in dB, something is said about them.
SATURATED, UNDERFLOWED, SQNR = 0.001, 0.05, 15.0


class Finding(NamedTuple):
    """What a format did at a site.

    Attributes:
        site: the site.
        statistics: of all steps in which the site had the format.
        overflowed, saturated: numbers beyond the format's range whose results are not finite, and finite, as a part
            of the nonzero numbers.
        underflowed: those that became zero, as a part of the nonzero numbers.
        problem: "overflows", "saturates", "underflows", "is noisy" or "".
        advice: a sentence.

    Example:
        >>> from qcore.insight import statistics_of
        >>> record = Record("mlp")
        >>> record.add(0, Site("0", "output"), statistics_of(np.float32([1, 2, 3, 4000]), "e4m3fn"))
        >>> (found,) = findings(record)
        >>> found.problem, found.overflowed
        ('overflows', 0.25)
    """

    site: Site
    statistics: Statistics
    overflowed: float
    saturated: float
    underflowed: float
    problem: str
    advice: str

    @property
    def badness(self) -> tuple[bool, float]:
        """What findings are sorted by: overflow, then the part of the numbers that is lost plus noise by signal."""
        sqnr = self.statistics.sqnr
        noise = 0.0 if isnan(sqnr) else min(10 ** (-sqnr / 10), 1.0)
        return self.overflowed > 0, self.saturated + self.underflowed + noise


def findings(record: Record) -> list[Finding]:
    """All sites of a record, the worst first; those with several formats stand there with each.

    A site is worse than another if numbers overflow there and not at the other; else if the sum of three parts is
    larger: of saturated numbers, of those that became zero (both of the nonzero numbers), and noise by signal.

    Args:
        record: of a run, with at least one entry.

    Returns:
        A finding for each site and format.

    Raises:
        TypeError: if record is no Record.
        ValueError: if it has no entries.

    Example:
        >>> from qcore.insight import statistics_of
        >>> record = Record("mlp")
        >>> record.add(0, Site("0", "gradient"), statistics_of(np.float32([0.5, 2e-6, 3e-6]), "e5m2"))
        >>> record.add(0, Site("1", "output"), statistics_of(np.float32([1.0, 4000.0]), "e4m3fn"))
        >>> worst, second = findings(record)
        >>> print(worst.site, worst.advice, sep="\\n")
        1:output
        overflows (50 %): the numbers reach 2^11, those of e4m3fn 2^8; scale by 2^-4 or take more exponent bits
        >>> second.problem, second.underflowed > 0.6
        ('underflows', True)
    """
    if not isinstance(record, Record):
        raise TypeError(f"record={record!r:.80} is a {type(record).__name__}; allowed is a Record")
    if not record.entries:
        raise ValueError(f"record of {record.model!r} has no entries; allowed is one of a run with a rounding site")
    told: dict[tuple[Site, str], list[Statistics]] = {}
    for one in record.entries:
        told.setdefault((one.site, one.statistics.number), []).append(one.statistics)
    found = [_finding(site, first.merge(*others)) for (site, _), (first, *others) in told.items()]
    return sorted(found, key=lambda one: one.badness, reverse=True)


def percent(part: float) -> str:
    """A part as text, in two digits."""
    return f"{100 * part:.2g} %" if part < 0.995 else "100 %"


def ends_of(number: Number, told: Statistics) -> tuple[int, float]:
    """The exponent of a format's smallest number above zero, and the base-2 logarithm of its largest number.

    Those of blocks are relative to the largest number there was, which the scales follow.
    """
    _, step, exponent = getattr(number, "element", number).span
    if isinstance(number, BlockNumber):
        top = log2(told.largest_before) if told.largest_before else 0.0
        return floor(top) - (exponent - step), top
    largest = quantize(np.full(1, np.finfo(np.float32).max), number, "toward_zero")[0]
    return step, float(np.log2(largest))


def _finding(site: Site, told: Statistics) -> Finding:
    number, nonzero = check_number(told.number), max(told.elements - told.zeros - told.nan - told.infinite, 1)
    parts = [getattr(told, name) / nonzero for name in ("overflowed", "saturated", "underflowed")]
    problem, amount = "", ""
    if parts[0]:
        problem, amount, words = "overflows", percent(parts[0]), _less_large(number, told)
    elif parts[1] >= SATURATED:
        problem, amount, words = "saturates", percent(parts[1]), _less_large(number, told)
    elif parts[2] >= UNDERFLOWED:
        problem, amount, words = "underflows", percent(parts[2]), _less_small(number, told)
    elif told.sqnr < SQNR:
        problem, amount, words = "is noisy", f"{told.sqnr:.1f} dB", _less_noise(number, told)
    advice = f"{problem} ({amount}): {words}" if problem else "fine"
    return Finding(site, told, parts[0], parts[1], parts[2], problem, advice)


def _less_large(number: Number, told: Statistics) -> str:
    """What keeps numbers within the range."""
    if isinstance(number, BlockNumber):
        scales = "scales that are rounded up (rule=rceil)" if isinstance(number, BlockScaled) else "smaller blocks"
        return f"numbers are beyond the largest of their block; take {scales} or more significand bits"
    top, reach = ends_of(number, told)[1], log2(told.largest_before)
    bits = "integer bits" if isinstance(number, FixedPoint) else "exponent bits"
    ends = f"the numbers reach 2^{floor(reach)}, those of {number.text} 2^{floor(top)}"
    return f"{ends}; scale by 2^{-max(ceil(reach - top), 1)} or take more {bits}"


def _less_small(number: Number, told: Statistics) -> str:
    """What keeps numbers from becoming zero."""
    low, top = ends_of(number, told)
    smallest, reach = floor(log2(told.smallest_before)), log2(told.largest_before)
    ends = f"the numbers go down to 2^{smallest}, those of {number.text} to 2^{low}"
    if isinstance(number, BlockNumber):
        return f"{ends}; take smaller blocks or more bits"
    bits = "fractional bits" if isinstance(number, FixedPoint) else "exponent bits"
    missing, room = low - smallest, max(floor(top - reach), 0)
    if room == 0:
        return f"{ends}; take more {bits}"
    if room >= missing:
        return f"{ends}; scale by 2^{missing}, for which there is room"
    return f"{ends}; scale by 2^{room}, for which there is room, and take more {bits}"


def _less_noise(number: Number, told: Statistics) -> str:
    """What makes errors smaller: a bit is worth 6 dB."""
    bits = ceil((SQNR - told.sqnr) / (20 * log10(2)))
    kind = "fractional" if isinstance(number, FixedPoint) else "significand"
    return f"take {bits} more {kind} bit{'s' if bits > 1 else ''}"
