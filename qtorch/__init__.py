"""Low-precision arithmetic in PyTorch: QPyTorch's API with the same bits as NumPy (qcore) and JAX (qjax)."""

from qcore import (
    NAMED,
    BinaryFloat,
    BlockFloatingPoint,
    FixedPoint,
    FloatingPoint,
    Number,
    Posit,
    Quantization,
    Rounding,
    Rule,
    fold_in,
    p3109,
)
from qtorch import auto_low, optim, quant
from qtorch.dispatch import decode, encode, quantize
from qtorch.packing import pack, unpack
from qtorch.quant import quantizer

__all__ = [
    "NAMED",
    "BinaryFloat",
    "BlockFloatingPoint",
    "FixedPoint",
    "FloatingPoint",
    "Number",
    "Posit",
    "Quantization",
    "Rounding",
    "Rule",
    "auto_low",
    "decode",
    "encode",
    "fold_in",
    "optim",
    "p3109",
    "pack",
    "quant",
    "quantize",
    "quantizer",
    "unpack",
]
