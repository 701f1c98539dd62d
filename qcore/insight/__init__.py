"""What roundings did to tensors: statistics, records of runs, pictures of these, and formats by site."""

from qcore.insight.arrays import statistics_between, statistics_of
from qcore.insight.choosing.search import Choice, Point, Sensitivity, choose_formats, sensitivity
from qcore.insight.record import Entry, Record, Site
from qcore.insight.statistics import Statistics

__all__ = [
    "Choice",
    "Entry",
    "Point",
    "Record",
    "Sensitivity",
    "Site",
    "Statistics",
    "choose_formats",
    "sensitivity",
    "statistics_between",
    "statistics_of",
]
