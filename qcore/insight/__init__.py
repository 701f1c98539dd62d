"""What roundings did to tensors: statistics, records of runs, and where two runs differ."""

from qcore.insight.arrays import statistics_between, statistics_of
from qcore.insight.compare import Difference, compare
from qcore.insight.record import Entry, Record, Site
from qcore.insight.statistics import Statistics

__all__ = [
    "Difference",
    "Entry",
    "Record",
    "Site",
    "Statistics",
    "compare",
    "statistics_between",
    "statistics_of",
]
