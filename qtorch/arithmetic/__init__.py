"""Operations on tensors of numbers, and of codes, of any format; see `qcore.arithmetic`, whose bits they have."""

from qcore.lazy import public_names
from qtorch.arithmetic.functions import FUNCTIONS

add = FUNCTIONS.add
add_codes = FUNCTIONS.add_codes
divide = FUNCTIONS.divide
divide_codes = FUNCTIONS.divide_codes
faa = FUNCTIONS.faa
faa_codes = FUNCTIONS.faa_codes
fma = FUNCTIONS.fma
fma_codes = FUNCTIONS.fma_codes
multiply = FUNCTIONS.multiply
multiply_codes = FUNCTIONS.multiply_codes
reciprocal = FUNCTIONS.reciprocal
reciprocal_codes = FUNCTIONS.reciprocal_codes
rsqrt = FUNCTIONS.rsqrt
rsqrt_codes = FUNCTIONS.rsqrt_codes
sqrt = FUNCTIONS.sqrt
sqrt_codes = FUNCTIONS.sqrt_codes
subtract = FUNCTIONS.subtract
subtract_codes = FUNCTIONS.subtract_codes

__all__ = [
    "add",
    "add_codes",
    "divide",
    "divide_codes",
    "faa",
    "faa_codes",
    "fma",
    "fma_codes",
    "multiply",
    "multiply_codes",
    "reciprocal",
    "reciprocal_codes",
    "rsqrt",
    "rsqrt_codes",
    "sqrt",
    "sqrt_codes",
    "subtract",
    "subtract_codes",
]
__dir__ = public_names(__name__)
