"""What roundings did to tensors: statistics, and the watch over a model's."""

from qcore.insight import Entry, Record, Site, Statistics
from qtorch.insight.tensors import statistics_between, statistics_of

__all__ = ["Entry", "Record", "Site", "Statistics", "statistics_between", "statistics_of"]
