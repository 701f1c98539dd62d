"""What roundings did to tensors: statistics, records of runs, pictures of these, and formats by site."""

from qcore.insight.arrays import statistics_between, statistics_of
from qcore.insight.choosing.search import Choice, Point, Sensitivity, choose_formats, sensitivity
from qcore.insight.compare import Difference, compare
from qcore.insight.record import Entry, Record, Site
from qcore.insight.showing.advice import Finding, findings
from qcore.insight.showing.outputs import send
from qcore.insight.showing.pictures import draw
from qcore.insight.showing.table import print_worst
from qcore.insight.statistics import Statistics

__all__ = [
    "Choice",
    "Difference",
    "Entry",
    "Finding",
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
