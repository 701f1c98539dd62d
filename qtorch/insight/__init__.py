"""What roundings did to tensors: statistics, the watch over a model's, and formats by what the loss becomes."""

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
from qtorch.insight.watching import Watch, watch

__all__ = [
    "Choice",
    "Entry",
    "Record",
    "Sensitivity",
    "Site",
    "Statistics",
    "Watch",
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
