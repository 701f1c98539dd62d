"""Affine integer quantization: q = rint(x / scale) + zero_point within a range; parameters, and observers for them.

`docs/affine.md` has the law. Everything takes the array namespace `xp`, by default NumPy's, so that qtorch and qjax run
these very functions.
"""

from qcore.affine.histogram import Counts, Histogram
from qcore.affine.integers import FORMS, INT8, INT32, SCHEMES, UINT8, AffineInteger
from qcore.affine.observers import (
    Extremes,
    MinMax,
    MovingAverageMinMax,
    MovingAveragePerChannelMinMax,
    Noop,
    PerChannelMinMax,
    Recording,
)
from qcore.affine.operations import dequantize, fake_quantize, quantize_affine, requantize
from qcore.affine.parameters import QParams, check_qparams, choose_qparams, choose_qparams_dynamic
from qcore.affine.quantized import QArray
from qcore.lazy import public_names
from qcore.namespace import Names

__all__ = [
    "FORMS",
    "INT8",
    "INT32",
    "SCHEMES",
    "UINT8",
    "AffineInteger",
    "Counts",
    "Extremes",
    "Histogram",
    "MinMax",
    "MovingAverageMinMax",
    "MovingAveragePerChannelMinMax",
    "Names",
    "Noop",
    "PerChannelMinMax",
    "QArray",
    "QParams",
    "Recording",
    "check_qparams",
    "choose_qparams",
    "choose_qparams_dynamic",
    "dequantize",
    "fake_quantize",
    "quantize_affine",
    "requantize",
]
__dir__ = public_names(__name__)
