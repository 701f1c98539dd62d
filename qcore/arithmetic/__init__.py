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
arccos = FUNCTIONS.arccos
arccos_codes = FUNCTIONS.arccos_codes
arccosh = FUNCTIONS.arccosh
arccosh_codes = FUNCTIONS.arccosh_codes
arccospi = FUNCTIONS.arccospi
arccospi_codes = FUNCTIONS.arccospi_codes
arcsin = FUNCTIONS.arcsin
arcsin_codes = FUNCTIONS.arcsin_codes
arcsinh = FUNCTIONS.arcsinh
arcsinh_codes = FUNCTIONS.arcsinh_codes
arcsinpi = FUNCTIONS.arcsinpi
arcsinpi_codes = FUNCTIONS.arcsinpi_codes
arctan = FUNCTIONS.arctan
arctan2 = FUNCTIONS.arctan2
arctan2_codes = FUNCTIONS.arctan2_codes
arctan2pi = FUNCTIONS.arctan2pi
arctan2pi_codes = FUNCTIONS.arctan2pi_codes
arctan_codes = FUNCTIONS.arctan_codes
arctanh = FUNCTIONS.arctanh
arctanh_codes = FUNCTIONS.arctanh_codes
arctanpi = FUNCTIONS.arctanpi
arctanpi_codes = FUNCTIONS.arctanpi_codes
cos = FUNCTIONS.cos
cos_codes = FUNCTIONS.cos_codes
cosh = FUNCTIONS.cosh
cosh_codes = FUNCTIONS.cosh_codes
cospi = FUNCTIONS.cospi
cospi_codes = FUNCTIONS.cospi_codes
divide = FUNCTIONS.divide
divide_codes = FUNCTIONS.divide_codes
exp = FUNCTIONS.exp
exp2 = FUNCTIONS.exp2
exp2_codes = FUNCTIONS.exp2_codes
exp_codes = FUNCTIONS.exp_codes
expm1 = FUNCTIONS.expm1
expm1_codes = FUNCTIONS.expm1_codes
faa = FUNCTIONS.faa
faa_codes = FUNCTIONS.faa_codes
fma = FUNCTIONS.fma
fma_codes = FUNCTIONS.fma_codes
hypot = FUNCTIONS.hypot
hypot_codes = FUNCTIONS.hypot_codes
log = FUNCTIONS.log
log1p = FUNCTIONS.log1p
log1p_codes = FUNCTIONS.log1p_codes
log2 = FUNCTIONS.log2
log2_codes = FUNCTIONS.log2_codes
log_codes = FUNCTIONS.log_codes
multiply = FUNCTIONS.multiply
multiply_codes = FUNCTIONS.multiply_codes
reciprocal = FUNCTIONS.reciprocal
reciprocal_codes = FUNCTIONS.reciprocal_codes
rsqrt = FUNCTIONS.rsqrt
rsqrt_codes = FUNCTIONS.rsqrt_codes
sin = FUNCTIONS.sin
sin_codes = FUNCTIONS.sin_codes
sinh = FUNCTIONS.sinh
sinh_codes = FUNCTIONS.sinh_codes
sinpi = FUNCTIONS.sinpi
sinpi_codes = FUNCTIONS.sinpi_codes
softplus = FUNCTIONS.softplus
softplus_codes = FUNCTIONS.softplus_codes
sqrt = FUNCTIONS.sqrt
sqrt_codes = FUNCTIONS.sqrt_codes
subtract = FUNCTIONS.subtract
subtract_codes = FUNCTIONS.subtract_codes
tan = FUNCTIONS.tan
tan_codes = FUNCTIONS.tan_codes
tanh = FUNCTIONS.tanh
tanh_codes = FUNCTIONS.tanh_codes
tanpi = FUNCTIONS.tanpi
tanpi_codes = FUNCTIONS.tanpi_codes

__all__ = [
    "add",
    "add_codes",
    "arccos",
    "arccos_codes",
    "arccosh",
    "arccosh_codes",
    "arccospi",
    "arccospi_codes",
    "arcsin",
    "arcsin_codes",
    "arcsinh",
    "arcsinh_codes",
    "arcsinpi",
    "arcsinpi_codes",
    "arctan",
    "arctan2",
    "arctan2_codes",
    "arctan2pi",
    "arctan2pi_codes",
    "arctan_codes",
    "arctanh",
    "arctanh_codes",
    "arctanpi",
    "arctanpi_codes",
    "cos",
    "cos_codes",
    "cosh",
    "cosh_codes",
    "cospi",
    "cospi_codes",
    "divide",
    "divide_codes",
    "exp",
    "exp2",
    "exp2_codes",
    "exp_codes",
    "expm1",
    "expm1_codes",
    "faa",
    "faa_codes",
    "fma",
    "fma_codes",
    "hypot",
    "hypot_codes",
    "log",
    "log1p",
    "log1p_codes",
    "log2",
    "log2_codes",
    "log_codes",
    "multiply",
    "multiply_codes",
    "reciprocal",
    "reciprocal_codes",
    "rsqrt",
    "rsqrt_codes",
    "sin",
    "sin_codes",
    "sinh",
    "sinh_codes",
    "sinpi",
    "sinpi_codes",
    "softplus",
    "softplus_codes",
    "sqrt",
    "sqrt_codes",
    "subtract",
    "subtract_codes",
    "tan",
    "tan_codes",
    "tanh",
    "tanh_codes",
    "tanpi",
    "tanpi_codes",
]
__dir__ = public_names(__name__)
