"""What roundings did to tensors: statistics, and the watch over a model's."""

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
from qtorch.insight.choosing import choose_formats, cross_entropy, sensitivity
from qtorch.insight.tensors import statistics_between, statistics_of

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
]
