"""Low-precision arithmetic in JAX: pure functions with the same bits as NumPy (qcore) and PyTorch (qtorch)."""

from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Number, Rounding, fold_in
from qjax import quant
from qjax.dispatch import quantize

__all__ = ["BlockFloatingPoint", "FixedPoint", "FloatingPoint", "Number", "Rounding", "fold_in", "quant", "quantize"]
