"""The public functions, once, for all packages."""

from __future__ import annotations

from typing import Any

from qcore.arguments import check_broadcast
from qcore.arithmetic.call import OperationCall, call_of_codes, call_of_numbers
from qcore.arithmetic.operations import OPERATIONS
from qcore.binding import NUMPY, bind, public

_NAMES = ("x", "y", "z")


class Functions:
    """The operations on a package's arrays: numbers and codes."""

    def __init_subclass__(cls, package: str = "", words: dict[str, str] = NUMPY) -> None:
        """Gives the class of a package its own functions; `package` is their public module, "" for an inner class."""
        if package:
            bind(cls, package, words)

    def floats(self, name: str, x: Any) -> tuple[Any, str]:
        """An array of floats of the package, and the name of its dtype; raises a TypeError for anything else."""
        raise NotImplementedError

    def codes(self, name: str, x: Any) -> Any:
        """An array of integers of the package; raises a TypeError for anything else."""
        raise NotImplementedError

    def on_numbers(self, call: OperationCall, arrays: tuple[Any, ...], dtype: str, key: Any) -> Any:
        """The results of numbers, in an array of a dtype."""
        raise NotImplementedError

    def on_codes(self, call: OperationCall, codes: tuple[Any, ...], key: Any) -> Any:
        """The codes of the results of codes."""
        raise NotImplementedError

    def _numbers(
        self,
        operation: str,
        given: tuple[Any, ...],
        result: Any,
        modes: tuple[Any, ...],
        key: Any,
        operands: Any = None,
    ) -> Any:
        found = [self.floats(name, x) for name, x in zip(_NAMES, given, strict=False)]
        arrays = tuple(x for x, _ in found)
        _check_shapes(arrays)
        call, dtype = call_of_numbers(operation, [dtype for _, dtype in found], operands, result, *modes)
        return self.on_numbers(call, arrays, dtype, key)

    def _codes(
        self, operation: str, given: tuple[Any, ...], operands: Any, result: Any, modes: tuple[Any, ...], key: Any
    ) -> Any:
        codes = tuple(self.codes(name, x) for name, x in zip(_NAMES, given, strict=False))
        _check_shapes(codes)
        return self.on_codes(call_of_codes(operation, operands, result, *modes), codes, key)


def _check_shapes(arrays: tuple[Any, ...]) -> None:
    for i, y in enumerate(arrays):
        for name, x in zip(_NAMES, arrays[:i], strict=False):
            if x.shape != y.shape:
                check_broadcast(name, x.shape, _NAMES[i], y.shape)


_ARGUMENTS = """result: the result's format, or its text; None is {default}.
    rounding, key, random_bits, start, overflow: as for `quantize`; random words are those of the result's elements."""

_OPERANDS = """operands: the format of the operands, or a tuple with one for each; None is their dtype's, of float16 or
        bfloat16. Codes of all operands have at most 16 bits together. Other numbers are rounded to it first.
    """

_NUMBERS = """{sentence}

Args:
    {names}: array{s} of float32, float16 or bfloat16{broadcast}.
    {arguments}

Returns:
    An array of the common dtype, or of float32 if dtypes differ. Every NaN is the same. {gradient}

Raises:
    ValueError: if the result's format has numbers that the dtype has not, or stochastic rounding has no key.

Example:
    >>> {names} = np.float32({example})
    >>> arithmetic.{name}({names}, "e4m3fn"{given}).tolist()
    {shows}
"""

_CODES = """`{name}` of numbers that are given and returned as codes.

Args:
    {names}: integer array{s}{broadcast}: codes, whose higher bits are ignored.
    operands: the format of the operands, or a tuple with one for each.
    {arguments}

Returns:
    An array of codes, as `encode` returns them. Codes of up to 16 bits together are looked up in a table.

Raises:
    ValueError: if a format has no codes of single numbers or too many bits, or stochastic rounding has no key.

Example:
    >>> codes = np.array([56, 60, 64])  # 1.0, 1.5 and 2.0 in e4m3fn
    >>> arithmetic.{name}_codes({codes}, "e4m3fn").tolist()
    {shows}
"""


def _of_numbers(name: str) -> Any:
    """The function of one, two or three arrays of numbers."""

    def one(
        self: Any,
        x: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x,), result, (rounding, overflow, random_bits, start), key)

    def two(
        self: Any,
        x: Any,
        y: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x, y), result, (rounding, overflow, random_bits, start), key)

    def three(
        self: Any,
        x: Any,
        y: Any,
        z: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x, y, z), result, (rounding, overflow, random_bits, start), key)

    return (one, two, three)[OPERATIONS[name].operands - 1]


def _of_table(name: str) -> Any:
    """The function of one or two arrays of numbers that is a table."""

    def one(
        self: Any,
        x: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        operands: Any = None,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x,), result, (rounding, overflow, random_bits, start), key, operands)

    def two(
        self: Any,
        x: Any,
        y: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        operands: Any = None,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._numbers(name, (x, y), result, (rounding, overflow, random_bits, start), key, operands)

    return (one, two)[OPERATIONS[name].operands - 1]


def _of_codes(name: str) -> Any:
    """The function of one, two or three arrays of codes."""

    def one(
        self: Any,
        x: Any,
        operands: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._codes(name, (x,), operands, result, (rounding, overflow, random_bits, start), key)

    def two(
        self: Any,
        x: Any,
        y: Any,
        operands: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._codes(name, (x, y), operands, result, (rounding, overflow, random_bits, start), key)

    def three(
        self: Any,
        x: Any,
        y: Any,
        z: Any,
        operands: Any,
        result: Any = None,
        rounding: Any = "nearest",
        *,
        key: Any = None,
        random_bits: int = 24,
        start: int = 0,
        overflow: str | None = None,
    ) -> Any:
        return self._codes(name, (x, y, z), operands, result, (rounding, overflow, random_bits, start), key)

    return (one, two, three)[OPERATIONS[name].operands - 1]


def _row(name: str, sentence: str, example: str, shows: str, of_codes: str) -> tuple[Any, Any]:
    """Both functions of an operation; `example` are the operands, and `of_codes` the codes of the codes' example."""
    count = OPERATIONS[name].operands
    words = {"name": name, "names": ", ".join(_NAMES[:count]), "sentence": sentence, "example": example}
    words |= {"s": "s" if count > 1 else "", "broadcast": " that broadcast" if count > 1 else ""}
    words["gradient"] = "The gradient is that of the real function."
    is_table = OPERATIONS[name].law is None
    words["given"] = ', operands="e4m3fn"' if is_table else ""
    numbers, codes = (_of_table if is_table else _of_numbers)(name), _of_codes(name)
    numbers.__name__, codes.__name__ = name, f"{name}_codes"
    words["arguments"] = (_OPERANDS if is_table else "") + _ARGUMENTS.format(default="the dtype's")
    numbers.__doc__ = _NUMBERS.format(shows=shows, **words)
    words["arguments"] = _ARGUMENTS.format(default="that of the operands")
    words["codes"] = ", ".join(["codes", "codes[-1:]", "codes"][:count])
    codes.__doc__ = _CODES.format(shows=of_codes, **words)
    return public(numbers), public(codes)


class Arithmetic(Functions):
    """All operations. Between 256 and 448, numbers of e4m3fn are 32 apart."""

    add, add_codes = _row(
        "add",
        "x + y, exactly, rounded once.",
        "[[256.0, 256.0], [16.0, 17.0]]",
        "[256.0, 288.0]",
        "[68, 70, 72]",
    )
    subtract, subtract_codes = _row(
        "subtract",
        "x - y, exactly, rounded once.",
        "[[256.0, 256.0], [8.0, 9.0]]",
        "[256.0, 240.0]",
        "[184, 176, 0]",
    )
    multiply, multiply_codes = _row(
        "multiply",
        "x * y, exactly, rounded once.",
        "[[1.5, 15.0], [1.25, 15.0]]",
        "[1.875, 224.0]",
        "[64, 68, 72]",
    )
    divide, divide_codes = _row(
        "divide",
        "x / y, exactly, rounded once; x / 0 is an infinity of its sign, and 0 / 0 NaN.",
        "[[1.0, 2.0], [3.0, 3.0]]",
        "[0.34375, 0.6875]",
        "[48, 52, 56]",
    )
    fma, fma_codes = _row(
        "fma",
        "x * y + z, exactly, rounded once.",
        "[[1.5], [1.25], [-2.0]]",
        "[-0.125]",
        "[68, 73, 76]",
    )
    faa, faa_codes = _row(
        "faa",
        "x + y + z, exactly, rounded once.",
        "[[256.0], [16.0], [0.1]]",
        "[288.0]",
        "[72, 74, 76]",
    )
    reciprocal, reciprocal_codes = _row(
        "reciprocal",
        "1 / x, exactly, rounded once; of 0 an infinity of its sign.",
        "[3.0, -0.3]",
        "[0.34375, -3.25]",
        "[56, 51, 48]",
    )
    sqrt, sqrt_codes = _row(
        "sqrt",
        "The square root, exactly, rounded once; of numbers below 0 NaN, and of -0 it is -0.",
        "[2.0, -1.0]",
        "[1.375, nan]",
        "[56, 58, 59]",
    )
    rsqrt, rsqrt_codes = _row(
        "rsqrt",
        "1 / sqrt(x), exactly, rounded once; of numbers below 0 NaN, and of 0 an infinity of its sign.",
        "[2.0, 0.25]",
        "[0.6875, 2.0]",
        "[56, 53, 51]",
    )
    exp, exp_codes = _row(
        "exp",
        "e to the power of x, exactly, rounded once.",
        "[1.0, -2.0]",
        "[2.75, 0.140625]",
        "[67, 73, 79]",
    )
    exp2, exp2_codes = _row(
        "exp2",
        "2 to the power of x, exactly, rounded once.",
        "[1.5, -2.0]",
        "[2.75, 0.25]",
        "[64, 67, 72]",
    )
    expm1, expm1_codes = _row(
        "expm1",
        "exp(x) - 1, exactly, rounded once.",
        "[1.0, -2.0]",
        "[1.75, -0.875]",
        "[62, 70, 77]",
    )
    log, log_codes = _row(
        "log",
        "The natural logarithm, exactly, rounded once; of 0 it is -infinity.",
        "[2.0, 0.5]",
        "[0.6875, -0.6875]",
        "[0, 45, 51]",
    )
    log2, log2_codes = _row(
        "log2",
        "The logarithm to base 2, exactly, rounded once; of 0 it is -infinity.",
        "[6.0, 0.5]",
        "[2.5, -1.0]",
        "[0, 49, 56]",
    )
    log1p, log1p_codes = _row(
        "log1p",
        "log(1 + x), exactly, rounded once; of -1 it is -infinity.",
        "[1.0, -0.5]",
        "[0.6875, -0.6875]",
        "[51, 55, 57]",
    )
    softplus, softplus_codes = _row(
        "softplus",
        "log(1 + exp(x)), exactly, rounded once.",
        "[0.0, -2.0]",
        "[0.6875, 0.125]",
        "[59, 62, 65]",
    )
    tanh, tanh_codes = _row(
        "tanh",
        "The hyperbolic tangent, exactly, rounded once.",
        "[0.5, -8.0]",
        "[0.46875, -1.0]",
        "[52, 54, 55]",
    )
    sinh, sinh_codes = _row(
        "sinh",
        "The hyperbolic sine, exactly, rounded once.",
        "[1.0, -2.0]",
        "[1.125, -3.75]",
        "[57, 65, 71]",
    )
    cosh, cosh_codes = _row(
        "cosh",
        "The hyperbolic cosine, exactly, rounded once.",
        "[1.0, -2.0]",
        "[1.5, 3.75]",
        "[60, 65, 71]",
    )
    arcsinh, arcsinh_codes = _row(
        "arcsinh",
        "The inverse of sinh, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.875, -1.5]",
        "[54, 58, 60]",
    )
    arccosh, arccosh_codes = _row(
        "arccosh",
        "The inverse of cosh, exactly, rounded once; below 1 NaN.",
        "[1.0, 2.0]",
        "[0.0, 1.375]",
        "[0, 55, 59]",
    )
    arctanh, arctanh_codes = _row(
        "arctanh",
        "The inverse of tanh, exactly, rounded once; of 1 and -1 infinities, beyond NaN.",
        "[0.5, -0.25]",
        "[0.5625, -0.25]",
        "[127, 127, 127]",
    )
    sin, sin_codes = _row(
        "sin",
        "The sine of x radians, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.8125, -0.9375]",
        "[53, 56, 55]",
    )
    cos, cos_codes = _row(
        "cos",
        "The cosine of x radians, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.5625, -0.40625]",
        "[49, 25, 173]",
    )
    tan, tan_codes = _row(
        "tan",
        "The tangent of x radians, exactly, rounded once.",
        "[1.0, -2.0]",
        "[1.5, 2.25]",
        "[60, 86, 193]",
    )
    arcsin, arcsin_codes = _row(
        "arcsin",
        "The inverse of sin, in radians, exactly, rounded once; beyond 1 NaN.",
        "[0.5, -1.0]",
        "[0.5, -1.625]",
        "[61, 127, 127]",
    )
    arccos, arccos_codes = _row(
        "arccos",
        "The inverse of cos, in radians, exactly, rounded once; beyond 1 NaN.",
        "[0.5, -1.0]",
        "[1.0, 3.25]",
        "[0, 127, 127]",
    )
    arctan, arctan_codes = _row(
        "arctan",
        "The inverse of tan, in radians, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.8125, -1.125]",
        "[53, 56, 57]",
    )
    sinpi, sinpi_codes = _row(
        "sinpi",
        "The sine of x half turns, exactly, rounded once.",
        "[0.5, 1.25]",
        "[1.0, -0.6875]",
        "[0, 184, 0]",
    )
    cospi, cospi_codes = _row(
        "cospi",
        "The cosine of x half turns, exactly, rounded once.",
        "[0.5, 1.25]",
        "[0.0, -0.6875]",
        "[184, 0, 56]",
    )
    tanpi, tanpi_codes = _row(
        "tanpi",
        "The tangent of x half turns, exactly, rounded once; of odd halves it is an infinity.",
        "[0.25, 1.125]",
        "[1.0, 0.40625]",
        "[128, 255, 0]",
    )
    arcsinpi, arcsinpi_codes = _row(
        "arcsinpi",
        "The inverse of sin, in half turns, exactly, rounded once.",
        "[0.5, -1.0]",
        "[0.171875, -0.5]",
        "[48, 127, 127]",
    )
    arccospi, arccospi_codes = _row(
        "arccospi",
        "The inverse of cos, in half turns, exactly, rounded once.",
        "[0.5, -1.0]",
        "[0.34375, 1.0]",
        "[0, 127, 127]",
    )
    arctanpi, arctanpi_codes = _row(
        "arctanpi",
        "The inverse of tan, in half turns, exactly, rounded once.",
        "[1.0, -2.0]",
        "[0.25, -0.34375]",
        "[40, 42, 43]",
    )
    hypot, hypot_codes = _row(
        "hypot",
        "sqrt(x^2 + y^2), exactly, rounded once.",
        "[[3.0, 1.0], [4.0, 1.0]]",
        "[5.0, 1.375]",
        "[65, 66, 67]",
    )
    arctan2, arctan2_codes = _row(
        "arctan2",
        "The angle of the point (y, x), in radians, exactly, rounded once; the first argument is the ordinate.",
        "[[1.0, -1.0], [2.0, -1.0]]",
        "[0.46875, -2.25]",
        "[47, 50, 53]",
    )
    arctan2pi, arctan2pi_codes = _row(
        "arctan2pi",
        "The angle of the point (y, x), in half turns, exactly, rounded once; the first argument is the ordinate.",
        "[[1.0, -1.0], [2.0, -1.0]]",
        "[0.140625, -0.75]",
        "[33, 37, 40]",
    )
