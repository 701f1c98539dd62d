"""Number formats, the rounding law and random bits, framework-agnostic; runs by itself on NumPy arrays."""

from qcore.formats import BlockFloatingPoint, FixedPoint, FloatingPoint, Number
from qcore.random import fold_in
from qcore.reference import quantize
from qcore.rounding import Rounding

__all__ = ["BlockFloatingPoint", "FixedPoint", "FloatingPoint", "Number", "Rounding", "fold_in", "quantize"]
