"""Statistics of roundings: of one tensor, of whole runs as records and pictures, and the search for formats by site."""

from qcore.insight.advice import Finding, findings, print_worst
from qcore.insight.arrays import statistics_between, statistics_of
from qcore.insight.choosing import Choice, Point, Sensitivity, choose_formats, sensitivity
from qcore.insight.pictures import Picture, draw
from qcore.insight.record import Difference, Entry, Record, Site, compare, send
from qcore.insight.statistics import Statistics
from qcore.lazy import public_names

__all__ = [
    "Choice",
    "Difference",
    "Entry",
    "Finding",
    "Picture",
    "Point",
    "Record",
    "Sensitivity",
    "Site",
    "Statistics",
    "choose_formats",
    "compare",
    "draw",
    "findings",
    "print_worst",
    "send",
    "sensitivity",
    "statistics_between",
    "statistics_of",
]
__dir__ = public_names(__name__)
