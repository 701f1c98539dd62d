"""Low-precision arithmetic in PyTorch: QPyTorch's API with the same bits as NumPy (qcore) and JAX (qjax)."""

from qcore import BlockFloatingPoint, FixedPoint, FloatingPoint, Number, Rounding, fold_in
from qtorch import quant
from qtorch.dispatch import quantize

__all__ = ["BlockFloatingPoint", "FixedPoint", "FloatingPoint", "Number", "Rounding", "fold_in", "quant", "quantize"]
