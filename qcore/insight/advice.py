"""Findings: the sites of a record, the worst first, each with advice; and a table of them for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, isnan, log2, log10
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from qcore.arguments import check_int, printable, quoted
from qcore.arrays import quantize
from qcore.formats.block import BlockNumber, BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.formats.number import Number, check_number
from qcore.insight.record import Entry, Record, Site
from qcore.insight.statistics import Statistics
from qcore.tables import fitted_table, fitted_text

if TYPE_CHECKING:
    from rich.console import Console

# A site has a problem from these parts of the elements on, and below this ratio in dB.
SATURATED, UNDERFLOWED, SQNR = 0.001, 0.05, 15.0


class Finding(NamedTuple):
    """The effect of a format at a site, with advice.

    Attributes:
        site: the site.
        statistics: the statistics of all steps in which the site had the format.
        overflowed, saturated: the shares of the nonzero numbers that lie beyond the format's range and have results
            that are not finite, or finite.
        underflowed: the share of the nonzero numbers that became zero.
        problem: "is NaN", "is infinite", "overflows", "saturates", "underflows", "is noisy" or "".
        advice: a sentence.
        is_source: True if the first NaN of the run, or without any NaN the first infinity, appears at this site.

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
    is_source: bool = False

    @property
    def badness(self) -> tuple[bool, bool, bool, bool, float]:
        """The sort key of findings: source of NaN, NaN, infinity, overflow, and the part that is lost."""
        sqnr = self.statistics.sqnr
        noise = 0.0 if isnan(sqnr) else min(10 ** (-sqnr / 10), 1.0)
        lost = self.saturated + self.underflowed + noise
        return self.is_source, _has_nan(self.statistics), self.statistics.infinite > 0, self.overflowed > 0, lost


def findings(record: Record) -> list[Finding]:
    """All sites of a record, the worst first; a site with several formats appears once for each.

    The worst is the first site of the run with NaN among its results. Then come all other sites with NaN, sites that
    get infinities, and sites where numbers overflow. The rest is ordered by the sum of three shares, the largest first:
    saturated numbers and numbers that became zero (both of the nonzero numbers), and noise by signal.

    Args:
        record: the record of a run, with at least one entry.

    Returns:
        A finding for each site and format.

    Raises:
        ValueError: if it has no entries.

    Example:
        >>> from qcore.insight import statistics_of
        >>> record = Record("mlp")
        >>> record.add(0, Site("0", "gradient"), statistics_of(np.float32([0.5, 2e-6, 3e-6]), "e5m2"))
        >>> record.add(0, Site("1", "output"), statistics_of(np.float32([1.0, 4000.0]), "e4m3fn"))
        >>> worst, second = findings(record)
        >>> print(worst.site, *worst.advice.split("; "), sep="\\n")
        1:output
        overflows (50 %): the numbers reach 2^11, those of e4m3fn 2^8, and become NaN
        scale by 2^-4, saturate (overflow="saturate") or take more exponent bits
        >>> second.problem, second.underflowed > 0.6
        ('underflows', True)
    """
    if not isinstance(record, Record):
        raise TypeError(f"record={quoted(record)} is a {type(record).__name__}; allowed is a Record")
    if not record.entries:
        raise ValueError(
            f"record of {quoted(record.model)} has no entries; allowed is one of a run with a rounding site"
        )
    statistics: dict[tuple[Site, str], list[Statistics]] = {}
    for one in record.entries:
        statistics.setdefault((one.site, one.statistics.number), []).append(one.statistics)
    source = _source(record.entries)
    found = [_finding(site, first.merge(*others), source) for (site, _), (first, *others) in statistics.items()]
    return sorted(found, key=lambda one: one.badness, reverse=True)


def percent(part: float) -> str:
    """A part as text, in two digits."""
    return f"{100 * part:.2g} %" if part < 0.995 else "100 %"


def ends_of(number: Number, statistics: Statistics) -> tuple[int, float]:
    """The exponent of a format's smallest number above zero, and the base-2 logarithm of its largest number.

    For blocks both are relative to the largest number that occurred, as scales follow it.
    """
    _, step, exponent = getattr(number, "element", number).span
    if isinstance(number, BlockNumber):
        top = log2(statistics.largest_before) if statistics.largest_before else 0.0
        return floor(top) - (exponent - step), top
    largest = quantize(np.full(1, np.finfo(np.float32).max), number, "toward_zero")[0]
    return step, float(np.log2(largest))


def _has_nan(statistics: Statistics) -> bool:
    return statistics.nan_results + statistics.nan > 0


def _is_finite(statistics: Statistics) -> bool:
    """True if all numbers before rounding were finite."""
    return statistics.nan == statistics.infinite == 0


def _source(entries: Sequence[Entry]) -> Entry | None:
    """The site where NaN first appears in the run; without any NaN, the site where infinity first appears.

    It is in the first step with any NaN: the first site with NaN among its results and without NaN among its numbers.
    Entries of a step need not be in the order of the program (in JAX they are not), so a site that only receives NaN
    counts if no site makes it.
    """
    for is_one in (_has_nan, lambda statistics: statistics.infinite > 0):
        found = [entry for entry in entries if is_one(entry.statistics)]
        first = min((entry.step for entry in found), default=0)
        found = [entry for entry in found if entry.step == first]
        if found:
            return next((entry for entry in found if _is_finite(entry.statistics)), found[0])
    return None


def _finding(site: Site, statistics: Statistics, source: Entry | None) -> Finding:
    number = check_number(statistics.number)
    nonzero = max(statistics.elements - statistics.zeros - statistics.nan - statistics.infinite, 1)
    parts = [getattr(statistics, name) / nonzero for name in ("overflowed", "saturated", "underflowed")]
    problem, amount, words = "", "", ""
    is_source = source is not None and source.site == site
    made_here = source is not None and is_source and _is_finite(source.statistics)  # by rounding, not before it
    if _has_nan(statistics) and not (made_here and parts[0]):
        problem, amount, words = (
            "is NaN",
            percent(max(statistics.rate("nan_results"), statistics.rate("nan"))),
            _origin(site, source),
        )
    elif statistics.infinite and not made_here:
        problem, amount, words = "is infinite", percent(statistics.rate("infinite")), _origin(site, source)
    elif parts[0]:
        problem, amount, words = "overflows", percent(parts[0]), _less_large(number, statistics)
    elif parts[1] >= SATURATED:
        problem, amount, words = "saturates", percent(parts[1]), _less_large(number, statistics)
    elif parts[2] >= UNDERFLOWED:
        problem, amount, words = "underflows", percent(parts[2]), _less_small(number, statistics)
    elif statistics.sqnr < SQNR:
        problem, amount, words = "is noisy", f"{statistics.sqnr:.1f} dB", _less_noise(number, statistics)
    advice = f"{problem} ({amount}): {words}" if problem else "fine"
    return Finding(site, statistics, parts[0], parts[1], parts[2], problem, advice, is_source)


def _origin(site: Site, source: Entry | None) -> str:
    """A sentence that names the site where NaN or infinity first appears."""
    if source is None:
        return ""
    what = "NaN" if _has_nan(source.statistics) else "infinity"
    if source.site != site:
        return f"{what} is first at {source.site}, step {source.step}; look there"
    if source.statistics.nan == 0 and _has_nan(source.statistics):
        return "infinities before it become NaN in this format; look at the operation before it"
    return f"{what} is first here, at step {source.step}, before rounding; look at the operation before it"


def _less_large(number: Number, statistics: Statistics) -> str:
    """Advice against numbers beyond the range."""
    if isinstance(number, BlockNumber):
        scales = "scales that are rounded up (rule=rceil)" if isinstance(number, BlockScaled) else "smaller blocks"
        return f"numbers are beyond the largest of their block; take {scales} or more significand bits"
    top, reach = ends_of(number, statistics)[1], log2(statistics.largest_before)
    bits = "integer bits" if isinstance(number, FixedPoint) else "exponent bits"
    ends = f"the numbers reach 2^{floor(reach)}, those of {number.text} 2^{floor(top)}"
    scaled = f"scale by 2^{-max(ceil(reach - top), 1)}"
    if statistics.nan_results > statistics.nan:
        return f'{ends}, and become NaN; {scaled}, saturate (overflow="saturate") or take more {bits}'
    return f"{ends}; {scaled} or take more {bits}"


def _less_small(number: Number, statistics: Statistics) -> str:
    """Advice against numbers that become zero."""
    low, top = ends_of(number, statistics)
    smallest, reach = floor(log2(statistics.smallest_before)), log2(statistics.largest_before)
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


def _less_noise(number: Number, statistics: Statistics) -> str:
    """Advice against errors: each bit of precision is worth 6 dB."""
    bits = ceil((SQNR - statistics.sqnr) / (20 * log10(2)))
    kind = "fractional" if isinstance(number, FixedPoint) else "significand"
    return f"take {bits} more {kind} bit{'s' if bits > 1 else ''}"


COLUMNS = ("site", "format", "overflowed", "saturated", "became zero", "SQNR")


def print_worst(record: Record, count: int = 10, console: Console | None = None) -> None:
    """Prints a table of the worst sites, worst first, and a sentence of advice for each; rich is needed.

    Sites that only receive NaN or infinity from the first of them are counted behind its sentence. What a row has no
    room for stands below it; only names that are longer than a line are broken.

    Args:
        record: the record of a run.
        count: the largest number of sites to print.
        console: a console of rich; None is standard output, in a pipe 80 columns wide or as COLUMNS says.

    Returns:
        None; the table is printed.

    Raises:
        TypeError: if record is not a Record, or count not an int.
        ValueError: if record has no entries, or count is less than 1.
        ImportError: if rich is missing.

    Example:
        >>> from qcore.insight import Site, statistics_of
        >>> import numpy as np
        >>> record = Record("mlp")
        >>> record.add(0, Site("0", "output"), statistics_of(np.float32([1.0, 4000.0]), "e4m3fn"))
        >>> print_worst(record)  # doctest: +SKIP
    """
    from rich.console import Console

    found, count = findings(record), check_int("count", count, 1)
    steps, shown = record.steps, found[:count]
    span = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
    title = f"{printable(record.model)}, {span}: {len(shown)} of {len(found)} sites, the worst first"
    console = console or Console(highlight=False, markup=False)
    lines = [*fitted_text(title, console.width)]
    for row in fitted_table(COLUMNS, map(_cells, shown), console.width, COLUMNS[2:]):
        lines += row
    lines.append("")
    behind = [one for one in shown if _is_behind(one)]
    for one in shown:
        if one not in behind:
            more = f"; and {len(behind)} more behind it" if behind and one.is_source else ""
            lines += fitted_text(f"{one.site}: {one.advice}{more}", console.width)
    console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _cells(one: Finding) -> tuple[str, ...]:
    parts = (_part(part) for part in (one.overflowed, one.saturated, one.underflowed))
    return str(one.site), one.statistics.number, *parts, _ratio(one.statistics.sqnr)


def _is_behind(one: Finding) -> bool:
    """True of sites whose advice is to look at the site where NaN or infinity first appears."""
    return one.advice.endswith("; look there")


def _ratio(sqnr: float) -> str:
    return "-" if isnan(sqnr) else f"{sqnr:.1f} dB"


def _part(part: float) -> str:
    return percent(part) if part else "-"
