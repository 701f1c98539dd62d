"""Operations on numbers, and on codes, of any format: the exact result is rounded once, in every mode.

Arithmetic in float32 and a second rounding is something else: it rounds twice.

Example:
    >>> import numpy as np
    >>> import qcore
    >>> from qcore import arithmetic
    >>> x, y = np.float32([272.0]), np.float32([2.0**-20])  # 272 is the middle of 256 and 288
    >>> arithmetic.add(x, y, "e4m3fn"), qcore.quantize(x + y, "e4m3fn")
    (array([288.], dtype=float32), array([256.], dtype=float32))
"""

from qcore.arithmetic.functions import FUNCTIONS
from qcore.lazy import public_names

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
