"""Low-precision arithmetic in JAX: pure functions with the same bits as NumPy (qcore) and PyTorch (qtorch).

`qjax.optim` needs optax and `qjax.nnx` needs flax; both are imported by their own names only.
"""

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
from qjax import auto_low, quant
from qjax.dispatch import decode, encode, quantize
from qjax.packing import pack, unpack
from qjax.quant import quantizer

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
    "p3109",
    "pack",
    "quant",
    "quantize",
    "quantizer",
    "unpack",
]
