"""What roundings did to arrays: statistics, and functions that return them beside their results."""

from qcore.insight import Entry, Record, Site, Statistics
from qjax.insight.arrays import statistics_between, statistics_of
from qjax.insight.watching import watch

__all__ = ["Entry", "Record", "Site", "Statistics", "statistics_between", "statistics_of", "watch"]
