"""The public functions: their sentences and examples."""

from qcore.arithmetic.binding import Functions, neighbours, question, row


class Arithmetic(Functions):
    """All operations. Between 256 and 448, numbers of e4m3fn are 32 apart."""

    add, add_codes = row(
        "add",
        "x + y, exactly, rounded once.",
        "[[256.0, 256.0], [16.0, 17.0]]",
        "[256.0, 288.0]",
        "[68, 70, 72]",
    )
    subtract, subtract_codes = row(
        "subtract",
        "x - y, exactly, rounded once.",
        "[[256.0, 256.0], [8.0, 9.0]]",
        "[256.0, 240.0]",
        "[184, 176, 0]",
    )
    multiply, multiply_codes = row(
        "multiply",
        "x * y, exactly, rounded once.",
        "[[1.5, 15.0], [1.25, 15.0]]",
        "[1.875, 224.0]",
        "[64, 68, 72]",
    )
    divide, divide_codes = row(
        "divide",
        "x / y, exactly, rounded once; x / 0 is an infinity of its sign, and 0 / 0 NaN.",
        "[[1.0, 2.0], [3.0, 3.0]]",
        "[0.34375, 0.6875]",
        "[48, 52, 56]",
    )
    fma, fma_codes = row(
        "fma",
        "x * y + z, exactly, rounded once.",
        "[[1.5], [1.25], [-2.0]]",
        "[-0.125]",
        "[68, 73, 76]",
    )
    faa, faa_codes = row(
        "faa",
        "x + y + z, exactly, rounded once.",
        "[[256.0], [16.0], [0.1]]",
        "[288.0]",
        "[72, 74, 76]",
    )
    reciprocal, reciprocal_codes = row(
        "reciprocal",
        "1 / x, exactly, rounded once; of 0 an infinity of its sign.",
        "[3.0, -0.3]",
        "[0.34375, -3.25]",
        "[56, 51, 48]",
    )
    sqrt, sqrt_codes = row(
        "sqrt",
        "The square root, exactly, rounded once; of numbers below 0 NaN, and of -0 it is -0.",
        "[2.0, -1.0]",
        "[1.375, nan]",
        "[56, 58, 59]",
    )
    rsqrt, rsqrt_codes = row(
        "rsqrt",
        "1 / sqrt(x), exactly, rounded once; of numbers below 0 NaN, and of 0 an infinity of its sign.",
        "[2.0, 0.25]",
        "[0.6875, 2.0]",
        "[56, 53, 51]",
    )
    exp, exp_codes = row(
        "exp",
        "e to the power of x, exactly, rounded once.",
        "[1.0, -2.0]",
        "[2.75, 0.140625]",
        "[67, 73, 79]",
    )
    exp2, exp2_codes = row(
        "exp2",
        "2 to the power of x, exactly, rounded once.",
        "[1.5, -2.0]",
        "[2.75, 0.25]",
        "[64, 67, 72]",
    )
    expm1, expm1_codes = row(
        "expm1",
        "exp(x) - 1, exactly, rounded once.",
        "[1.0, -2.0]",
        "[1.75, -0.875]",
        "[62, 70, 77]",
    )
    log, log_codes = row(
        "log",
        "The natural logarithm, exactly, rounded once; of 0 it is -infinity.",
        "[2.0, 0.5]",
        "[0.6875, -0.6875]",
        "[0, 45, 51]",
    )
    log2, log2_codes = row(
        "log2",
        "The logarithm to base 2, exactly, rounded once; of 0 it is -infinity.",
        "[6.0, 0.5]",
        "[2.5, -1.0]",
        "[0, 49, 56]",
    )
    log1p, log1p_codes = row(
        "log1p",
        "log(1 + x), exactly, rounded once; of -1 it is -infinity.",
        "[1.0, -0.5]",
        "[0.6875, -0.6875]",
        "[51, 55, 57]",
    )
    softplus, softplus_codes = row(
        "softplus",
        "log(1 + exp(x)), exactly, rounded once.",
        "[0.0, -2.0]",
        "[0.6875, 0.125]",
        "[59, 62, 65]",
    )
    tanh, tanh_codes = row(
        "tanh",
        "The hyperbolic tangent, exactly, rounded once.",
        "[0.5, -8.0]",
        "[0.46875, -1.0]",
        "[52, 54, 55]",
    )
    erf, erf_codes = row(
        "erf",
        "The error function, exactly, rounded once.",
        "[0.5, -8.0]",
        "[0.5, -1.0]",
        "[53, 55, 56]",
    )
    sinh, sinh_codes = row(
        "sinh",
        "The hyperbolic sine, exactly, rounded once.",
        "[1.0, -2.0]",
        "[1.125, -3.75]",
        "[57, 65, 71]",
    )
    cosh, cosh_codes = row(
        "cosh",
        "The hyperbolic cosine, exactly, rounded once.",
        "[1.0, -2.0]",
        "[1.5, 3.75]",
        "[60, 65, 71]",
    )
    arcsinh, arcsinh_codes = row(
        "arcsinh",
        "The inverse of sinh, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.875, -1.5]",
        "[54, 58, 60]",
    )
    arccosh, arccosh_codes = row(
        "arccosh",
        "The inverse of cosh, exactly, rounded once; below 1 NaN.",
        "[1.0, 2.0]",
        "[0.0, 1.375]",
        "[0, 55, 59]",
    )
    arctanh, arctanh_codes = row(
        "arctanh",
        "The inverse of tanh, exactly, rounded once; of 1 and -1 infinities, beyond NaN.",
        "[0.5, -0.25]",
        "[0.5625, -0.25]",
        "[127, 127, 127]",
    )
    sin, sin_codes = row(
        "sin",
        "The sine of x radians, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.8125, -0.9375]",
        "[53, 56, 55]",
    )
    cos, cos_codes = row(
        "cos",
        "The cosine of x radians, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.5625, -0.40625]",
        "[49, 25, 173]",
    )
    tan, tan_codes = row(
        "tan",
        "The tangent of x radians, exactly, rounded once.",
        "[1.0, -2.0]",
        "[1.5, 2.25]",
        "[60, 86, 193]",
    )
    arcsin, arcsin_codes = row(
        "arcsin",
        "The inverse of sin, in radians, exactly, rounded once; beyond 1 NaN.",
        "[0.5, -1.0]",
        "[0.5, -1.625]",
        "[61, 127, 127]",
    )
    arccos, arccos_codes = row(
        "arccos",
        "The inverse of cos, in radians, exactly, rounded once; beyond 1 NaN.",
        "[0.5, -1.0]",
        "[1.0, 3.25]",
        "[0, 127, 127]",
    )
    arctan, arctan_codes = row(
        "arctan",
        "The inverse of tan, in radians, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.8125, -1.125]",
        "[53, 56, 57]",
    )
    sinpi, sinpi_codes = row(
        "sinpi",
        "The sine of x half turns, exactly, rounded once.",
        "[0.5, 1.25]",
        "[1.0, -0.6875]",
        "[0, 184, 0]",
    )
    cospi, cospi_codes = row(
        "cospi",
        "The cosine of x half turns, exactly, rounded once.",
        "[0.5, 1.25]",
        "[0.0, -0.6875]",
        "[184, 0, 56]",
    )
    tanpi, tanpi_codes = row(
        "tanpi",
        "The tangent of x half turns, exactly, rounded once; of odd halves it is an infinity.",
        "[0.25, 1.125]",
        "[1.0, 0.40625]",
        "[128, 255, 0]",
    )
    arcsinpi, arcsinpi_codes = row(
        "arcsinpi",
        "The inverse of sin, in half turns, exactly, rounded once.",
        "[0.5, -1.0]",
        "[0.171875, -0.5]",
        "[48, 127, 127]",
    )
    arccospi, arccospi_codes = row(
        "arccospi",
        "The inverse of cos, in half turns, exactly, rounded once.",
        "[0.5, -1.0]",
        "[0.34375, 1.0]",
        "[0, 127, 127]",
    )
    arctanpi, arctanpi_codes = row(
        "arctanpi",
        "The inverse of tan, in half turns, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.25, -0.34375]",
        "[40, 42, 43]",
    )
    hypot, hypot_codes = row(
        "hypot",
        "sqrt(x^2 + y^2), exactly, rounded once.",
        "[[3.0, 1.0], [4.0, 1.0]]",
        "[5.0, 1.375]",
        "[65, 66, 67]",
    )
    arctan2, arctan2_codes = row(
        "arctan2",
        "The angle of the point (y, x), in radians, exactly, rounded once; the first argument is the ordinate.",
        "[[1.0, -1.0], [2.0, -1.0]]",
        "[0.46875, -2.25]",
        "[47, 50, 53]",
    )
    arctan2pi, arctan2pi_codes = row(
        "arctan2pi",
        "The angle of the point (y, x), in half turns, exactly, rounded once; the first argument is the ordinate.",
        "[[1.0, -1.0], [2.0, -1.0]]",
        "[0.140625, -0.75]",
        "[33, 37, 40]",
    )
    negate, negate_codes = row(
        "negate",
        "-x, rounded once.",
        "[1.0, -2.1]",
        "[-1.0, 2.0]",
        "[184, 188, 192]",
    )
    abs, abs_codes = row(
        "abs",
        "The magnitude of x, rounded once.",
        "[1.0, -2.1]",
        "[1.0, 2.0]",
        "[56, 60, 64]",
    )
    copysign, copysign_codes = row(
        "copysign",
        "The magnitude of x with the sign of y, rounded once; -0 has a sign, too.",
        "[[1.0, -2.1], [-0.0, 3.0]]",
        "[-1.0, 2.0]",
        "[56, 60, 64]",
    )
    clamp, clamp_codes = row(
        "clamp",
        "x between y and z, rounded once; NaN if y > z, and if these leave no finite number and are two.",
        "[[5.0], [1.0], [2.1]]",
        "[2.0]",
        "[127, 127, 64]",
    )
    minimum, minimum_codes = row(
        "minimum",
        "The smaller one, rounded once; NaN if one is NaN.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[1.0, -4.0, nan]",
        "[56, 60, 64]",
    )
    maximum, maximum_codes = row(
        "maximum",
        "The larger one, rounded once; NaN if one is NaN.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[3.0, 3.0, nan]",
        "[64, 64, 64]",
    )
    minimum_number, minimum_number_codes = row(
        "minimum_number",
        "The smaller one, rounded once; NaN only if both are NaN.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[1.0, -4.0, 2.0]",
        "[56, 60, 64]",
    )
    maximum_number, maximum_number_codes = row(
        "maximum_number",
        "The larger one, rounded once; NaN only if both are NaN.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[3.0, 3.0, 2.0]",
        "[64, 64, 64]",
    )
    minimum_magnitude, minimum_magnitude_codes = row(
        "minimum_magnitude",
        "The one of smaller magnitude, of equal ones the smaller one, rounded once; NaN if one is NaN.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[1.0, 3.0, nan]",
        "[56, 60, 64]",
    )
    maximum_magnitude, maximum_magnitude_codes = row(
        "maximum_magnitude",
        "The one of larger magnitude, of equal ones the larger one, rounded once; NaN if one is NaN.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[3.0, -4.0, nan]",
        "[64, 64, 64]",
    )
    minimum_magnitude_number, minimum_magnitude_number_codes = row(
        "minimum_magnitude_number",
        "The one of smaller magnitude, of equal ones the smaller one, rounded once; NaN only if both are NaN.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[1.0, 3.0, 2.0]",
        "[56, 60, 64]",
    )
    maximum_magnitude_number, maximum_magnitude_number_codes = row(
        "maximum_magnitude_number",
        "The one of larger magnitude, of equal ones the larger one, rounded once; NaN only if both are NaN.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[3.0, -4.0, 2.0]",
        "[64, 64, 64]",
    )
    minimum_finite, minimum_finite_codes = row(
        "minimum_finite",
        "The smaller one, but finite numbers win over infinities, and these over NaN, rounded once.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[1.0, -4.0, 2.0]",
        "[56, 60, 64]",
    )
    maximum_finite, maximum_finite_codes = row(
        "maximum_finite",
        "The larger one, but finite numbers win over infinities, and these over NaN, rounded once.",
        "[[1.0, -4.0, 2.0], [3.0, 3.0, np.nan]]",
        "[3.0, 3.0, 2.0]",
        "[64, 64, 64]",
    )
    next_up, next_up_codes = neighbours(
        "next_up",
        "The next larger number of a format.",
        "up",
        "[1.0, 1.01, 0.0]",
        "[1.125, 1.125, 0.001953125]",
        "[57, 61, 65]",
    )
    next_down, next_down_codes = neighbours(
        "next_down",
        "The next smaller number of a format.",
        "down",
        "[1.0, 1.01, 0.0]",
        "[0.9375, 1.0, -0.001953125]",
        "[55, 59, 63]",
    )
    less, less_codes = question(
        "less",
        "True where x < y; with NaN it is False.",
        "[[1.0, 2.0, np.nan], [2.0, 2.0, 1.0]]",
        "[True, False, False]",
        "[True, True, False, False]",
        2,
    )
    less_equal, less_equal_codes = question(
        "less_equal",
        "True where x <= y; with NaN it is False.",
        "[[1.0, 2.0, np.nan], [2.0, 2.0, 1.0]]",
        "[True, True, False]",
        "[True, True, True, False]",
        2,
    )
    equal, equal_codes = question(
        "equal",
        "True where x == y; with NaN it is False.",
        "[[1.0, 2.0, np.nan], [2.0, 2.0, 1.0]]",
        "[False, True, False]",
        "[False, False, True, False]",
        2,
    )
    greater, greater_codes = question(
        "greater",
        "True where x > y; with NaN it is False.",
        "[[1.0, 2.0, np.nan], [2.0, 2.0, 1.0]]",
        "[False, False, False]",
        "[False, False, False, False]",
        2,
    )
    greater_equal, greater_equal_codes = question(
        "greater_equal",
        "True where x >= y; with NaN it is False.",
        "[[1.0, 2.0, np.nan], [2.0, 2.0, 1.0]]",
        "[False, True, False]",
        "[False, False, True, False]",
        2,
    )
    total_order, total_order_codes = question(
        "total_order",
        "True where x <= y, or x is NaN, which is below all numbers.",
        "[[1.0, 2.0, np.nan], [2.0, 2.0, 1.0]]",
        "[True, True, True]",
        "[True, True, True, True]",
        2,
    )
    is_zero, is_zero_codes = question(
        "is_zero",
        "True for 0 and -0.",
        "[0.0, 1.0, -0.001, np.nan]",
        "[True, False, False, False]",
        "[True, False, False, False]",
    )
    is_one, is_one_codes = question(
        "is_one",
        "True for 1.",
        "[0.0, 1.0, -0.001, np.nan]",
        "[False, True, False, False]",
        "[False, False, True, False]",
    )
    is_nan, is_nan_codes = question(
        "is_nan",
        "True for NaN.",
        "[0.0, 1.0, -0.001, np.nan]",
        "[False, False, False, True]",
        "[False, False, False, True]",
    )
    is_infinite, is_infinite_codes = question(
        "is_infinite",
        "True for infinities.",
        "[0.0, 1.0, -0.001, np.nan]",
        "[False, False, False, False]",
        "[False, False, False, False]",
    )
    is_finite, is_finite_codes = question(
        "is_finite",
        "True for finite numbers.",
        "[0.0, 1.0, -0.001, np.nan]",
        "[True, True, True, False]",
        "[True, True, True, False]",
    )
    is_sign_minus, is_sign_minus_codes = question(
        "is_sign_minus",
        "True for numbers below 0; -0 and NaN are not.",
        "[0.0, 1.0, -0.001, np.nan]",
        "[False, False, True, False]",
        "[False, False, False, False]",
    )
    is_normal, is_normal_codes = question(
        "is_normal",
        "True for finite numbers but 0 from the smallest normal one of a format on.",
        "[0.0, 1.0, -0.001, np.nan]",
        "[False, True, False, False]",
        "[False, False, True, False]",
    )
    is_subnormal, is_subnormal_codes = question(
        "is_subnormal",
        "True for numbers between 0 and the smallest normal one of a format.",
        "[0.0, 1.0, -0.001, np.nan]",
        "[False, False, True, False]",
        "[False, True, False, False]",
    )
    classify, classify_codes = question(
        "classify",
        "The class of each number, as a place in `CLASSES`: ClsNaN is 0, ClsZero 4.",
        "[0.0, 1.0, -0.001, np.nan]",
        "[4, 6, 3, 0]",
        "[4, 5, 6, 0]",
    )
