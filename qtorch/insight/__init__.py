"""Statistics of roundings: of tensors, of a watched model's run; and the search for formats by layer."""

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
__dir__ = public_names(__name__)
