"""What roundings did to arrays: statistics, and functions that return them beside their results."""

from qcore.insight import (
    Choice,
    Entry,
    Record,
    Sensitivity,
    Site,
    Statistics,
    draw,
    findings,
    print_worst,
    send,
)
from qcore.lazy import public_names
from qjax.insight.arrays import statistics_between, statistics_of
from qjax.insight.choosing import choose_formats, cross_entropy, sensitivity
from qjax.insight.watching import watch

__all__ = [
    "Choice",
    "Entry",
    "Record",
    "Sensitivity",
    "Site",
    "Statistics",
    "choose_formats",
    "cross_entropy",
    "draw",
    "findings",
    "print_worst",
    "send",
    "sensitivity",
    "statistics_between",
    "statistics_of",
    "watch",
]
__dir__ = public_names(__name__)
