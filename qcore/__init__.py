"""Number formats, the rounding law and random bits, framework-agnostic; runs by itself on NumPy arrays."""

from qcore.block import BlockFloatingPoint
from qcore.fixed import FixedPoint
from qcore.floats import BinaryFloat, FloatingPoint
from qcore.keys import fold_in
from qcore.named import NAMED, p3109
from qcore.number import Number
from qcore.packing import pack, unpack
from qcore.posit import Posit
from qcore.reference import decode, encode, quantize
from qcore.rounding import Rounding
from qcore.rules import Quantization, Rule

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
    "decode",
    "encode",
    "fold_in",
    "p3109",
    "pack",
    "quantize",
    "unpack",
]
