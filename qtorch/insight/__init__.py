"""What roundings did to tensors: statistics, and the watch over a model's."""

from qcore.insight import Entry, Record, Site, Statistics
from qtorch.insight.tensors import statistics_between, statistics_of
from qtorch.insight.watching import Watch, watch

__all__ = ["Entry", "Record", "Site", "Statistics", "Watch", "statistics_between", "statistics_of", "watch"]
