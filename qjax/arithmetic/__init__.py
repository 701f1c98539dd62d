"""Operations on JAX arrays of numbers, and of codes, of any format; see `qcore.arithmetic`, whose bits they have."""

from qcore.arithmetic.choices import CLASSES
from qcore.lazy import public_names
from qjax.arithmetic.functions import FUNCTIONS

abs = FUNCTIONS.abs
abs_codes = FUNCTIONS.abs_codes
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
clamp = FUNCTIONS.clamp
clamp_codes = FUNCTIONS.clamp_codes
classify = FUNCTIONS.classify
classify_codes = FUNCTIONS.classify_codes
copysign = FUNCTIONS.copysign
copysign_codes = FUNCTIONS.copysign_codes
cos = FUNCTIONS.cos
cos_codes = FUNCTIONS.cos_codes
cosh = FUNCTIONS.cosh
cosh_codes = FUNCTIONS.cosh_codes
cospi = FUNCTIONS.cospi
cospi_codes = FUNCTIONS.cospi_codes
divide = FUNCTIONS.divide
divide_codes = FUNCTIONS.divide_codes
equal = FUNCTIONS.equal
equal_codes = FUNCTIONS.equal_codes
erf = FUNCTIONS.erf
erf_codes = FUNCTIONS.erf_codes
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
greater = FUNCTIONS.greater
greater_codes = FUNCTIONS.greater_codes
greater_equal = FUNCTIONS.greater_equal
greater_equal_codes = FUNCTIONS.greater_equal_codes
hypot = FUNCTIONS.hypot
hypot_codes = FUNCTIONS.hypot_codes
is_finite = FUNCTIONS.is_finite
is_finite_codes = FUNCTIONS.is_finite_codes
is_infinite = FUNCTIONS.is_infinite
is_infinite_codes = FUNCTIONS.is_infinite_codes
is_nan = FUNCTIONS.is_nan
is_nan_codes = FUNCTIONS.is_nan_codes
is_normal = FUNCTIONS.is_normal
is_normal_codes = FUNCTIONS.is_normal_codes
is_one = FUNCTIONS.is_one
is_one_codes = FUNCTIONS.is_one_codes
is_sign_minus = FUNCTIONS.is_sign_minus
is_sign_minus_codes = FUNCTIONS.is_sign_minus_codes
is_subnormal = FUNCTIONS.is_subnormal
is_subnormal_codes = FUNCTIONS.is_subnormal_codes
is_zero = FUNCTIONS.is_zero
is_zero_codes = FUNCTIONS.is_zero_codes
less = FUNCTIONS.less
less_codes = FUNCTIONS.less_codes
less_equal = FUNCTIONS.less_equal
less_equal_codes = FUNCTIONS.less_equal_codes
log = FUNCTIONS.log
log1p = FUNCTIONS.log1p
log1p_codes = FUNCTIONS.log1p_codes
log2 = FUNCTIONS.log2
log2_codes = FUNCTIONS.log2_codes
log_codes = FUNCTIONS.log_codes
maximum = FUNCTIONS.maximum
maximum_codes = FUNCTIONS.maximum_codes
maximum_finite = FUNCTIONS.maximum_finite
maximum_finite_codes = FUNCTIONS.maximum_finite_codes
maximum_magnitude = FUNCTIONS.maximum_magnitude
maximum_magnitude_codes = FUNCTIONS.maximum_magnitude_codes
maximum_magnitude_number = FUNCTIONS.maximum_magnitude_number
maximum_magnitude_number_codes = FUNCTIONS.maximum_magnitude_number_codes
maximum_number = FUNCTIONS.maximum_number
maximum_number_codes = FUNCTIONS.maximum_number_codes
minimum = FUNCTIONS.minimum
minimum_codes = FUNCTIONS.minimum_codes
minimum_finite = FUNCTIONS.minimum_finite
minimum_finite_codes = FUNCTIONS.minimum_finite_codes
minimum_magnitude = FUNCTIONS.minimum_magnitude
minimum_magnitude_codes = FUNCTIONS.minimum_magnitude_codes
minimum_magnitude_number = FUNCTIONS.minimum_magnitude_number
minimum_magnitude_number_codes = FUNCTIONS.minimum_magnitude_number_codes
minimum_number = FUNCTIONS.minimum_number
minimum_number_codes = FUNCTIONS.minimum_number_codes
multiply = FUNCTIONS.multiply
multiply_codes = FUNCTIONS.multiply_codes
negate = FUNCTIONS.negate
negate_codes = FUNCTIONS.negate_codes
next_down = FUNCTIONS.next_down
next_down_codes = FUNCTIONS.next_down_codes
next_up = FUNCTIONS.next_up
next_up_codes = FUNCTIONS.next_up_codes
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
total_order = FUNCTIONS.total_order
total_order_codes = FUNCTIONS.total_order_codes

__all__ = [
    "CLASSES",
    "abs",
    "abs_codes",
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
    "clamp",
    "clamp_codes",
    "classify",
    "classify_codes",
    "copysign",
    "copysign_codes",
    "cos",
    "cos_codes",
    "cosh",
    "cosh_codes",
    "cospi",
    "cospi_codes",
    "divide",
    "divide_codes",
    "equal",
    "equal_codes",
    "erf",
    "erf_codes",
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
    "greater",
    "greater_codes",
    "greater_equal",
    "greater_equal_codes",
    "hypot",
    "hypot_codes",
    "is_finite",
    "is_finite_codes",
    "is_infinite",
    "is_infinite_codes",
    "is_nan",
    "is_nan_codes",
    "is_normal",
    "is_normal_codes",
    "is_one",
    "is_one_codes",
    "is_sign_minus",
    "is_sign_minus_codes",
    "is_subnormal",
    "is_subnormal_codes",
    "is_zero",
    "is_zero_codes",
    "less",
    "less_codes",
    "less_equal",
    "less_equal_codes",
    "log",
    "log1p",
    "log1p_codes",
    "log2",
    "log2_codes",
    "log_codes",
    "maximum",
    "maximum_codes",
    "maximum_finite",
    "maximum_finite_codes",
    "maximum_magnitude",
    "maximum_magnitude_codes",
    "maximum_magnitude_number",
    "maximum_magnitude_number_codes",
    "maximum_number",
    "maximum_number_codes",
    "minimum",
    "minimum_codes",
    "minimum_finite",
    "minimum_finite_codes",
    "minimum_magnitude",
    "minimum_magnitude_codes",
    "minimum_magnitude_number",
    "minimum_magnitude_number_codes",
    "minimum_number",
    "minimum_number_codes",
    "multiply",
    "multiply_codes",
    "negate",
    "negate_codes",
    "next_down",
    "next_down_codes",
    "next_up",
    "next_up_codes",
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
    "total_order",
    "total_order_codes",
]
__dir__ = public_names(__name__)
