"""Operations on codes by the names and rules of IEEE P3109. It follows the interim report v4.0, a draft.

The text of a specialization names an operation, the formats of its operands and of its result, and how it is projected:

    Exp<Binary8p3se, Binary8p4se, (NearestTiesToEven, SatFinite)>

The rules differ from those of `qcore.arithmetic`: there is one NaN and no -0, of which external formats (binary64,
binary32, binary16, BFloat16) have codes; x / 0, 1 / 0 and the tangent of a quarter turn are NaN.

Example:
    >>> import numpy as np
    >>> from qcore.arithmetic import p3109
    >>> divide = p3109.specialization("Divide<Binary8p3se, Binary8p3se, Binary8p3se>")
    >>> divide(np.uint8([64, 64]), np.uint8([68, 0])).tolist()  # 1 / 2, and 1 / 0, which is NaN
    [60, 128]
    >>> p3109.is_provided("Exp<Binary8p3se, Binary8p4se, (NearestTiesToEven, SatFinite)>")
    True
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any

import numpy as np

from qcore import arrays
from qcore.arguments import quoted
from qcore.arithmetic.functions import FUNCTIONS
from qcore.formats.floating import BinaryFloat
from qcore.formats.number import Number, check_number
from qcore.lazy import public_names
from qcore.packing import check_codes

__all__ = ["OPERATIONS", "ROUNDINGS", "SATURATIONS", "Specialization", "is_provided", "specialization"]
__dir__ = public_names(__name__)

ROUNDINGS = {
    "NearestTiesToEven": "nearest",
    "NearestTiesToAway": "nearest_away",
    "TowardPositive": "up",
    "TowardNegative": "down",
    "TowardZero": "toward_zero",
    "ToOdd": "odd",
}
SATURATIONS = {"SatNone": "inf", "SatFinite": "saturate", "SatPropagate": "propagate"}
EXTERNAL = ("binary32", "binary16", "bfloat16")
CLASSES = [
    f"Cls{name}"
    for name in "NaN NegativeInfinity NegativeNormal NegativeSubnormal Zero PositiveSubnormal PositiveNormal "
    "PositiveInfinity".split()
]

Numbers = np.ndarray


def _picked(first: Callable[..., Any]) -> Callable[[Numbers, Numbers], Numbers]:
    """An extremum: x where `first`, else y; NaN if an operand is NaN."""
    return lambda x, y: np.where(np.isnan(x) | np.isnan(y), nan, np.where(first(x, y), x, y))


def _without_nan(extremum: Callable[..., Any]) -> Callable[[Numbers, Numbers], Numbers]:
    """An extremum in which NaN loses."""
    return lambda x, y: np.where(np.isnan(x), y, np.where(np.isnan(y), x, extremum(x, y)))


def _finite_first(extremum: Callable[..., Any]) -> Callable[[Numbers, Numbers], Numbers]:
    """An extremum in which finite numbers win, and NaN loses."""

    def choose(x: Numbers, y: Numbers) -> Numbers:
        one, other = np.isfinite(x), np.isfinite(y)
        return np.where(one == other, _without_nan(extremum)(x, y), np.where(one, x, y))

    return choose


_minimum, _maximum = _picked(lambda x, y: x < y), _picked(lambda x, y: x > y)
_minimum_magnitude = _picked(lambda x, y: (abs(x) < abs(y)) | ((abs(x) == abs(y)) & (x < y)))
_maximum_magnitude = _picked(lambda x, y: (abs(x) > abs(y)) | ((abs(x) == abs(y)) & (x > y)))


def _clamp(x: Numbers, low: Numbers, high: Numbers) -> Numbers:
    found = np.where(x < low, low, np.where(x > high, high, x))
    same = (low == high) & np.isinf(low)
    wrong = (low > high) | (((high == -np.inf) | (low == np.inf)) & ~same)
    return np.where(np.isnan(x) | np.isnan(low) | np.isnan(high) | wrong, nan, found)


def _copy_sign(x: Numbers, y: Numbers) -> Numbers:
    return np.where(np.isnan(x) | np.isnan(y), nan, np.where(y >= 0, abs(x), -abs(x)))


# Operations whose results are operands, or their negatives: (format, exact numbers) -> numbers of the format.
EXACT: dict[str, tuple[int, Callable[..., Numbers]]] = {
    "Negate": (1, lambda x: -x),
    "Abs": (1, np.abs),
    "CopySign": (2, _copy_sign),
    "Minimum": (2, _minimum),
    "Maximum": (2, _maximum),
    "MinimumNumber": (2, _without_nan(_minimum)),
    "MaximumNumber": (2, _without_nan(_maximum)),
    "MinimumMagnitude": (2, _minimum_magnitude),
    "MaximumMagnitude": (2, _maximum_magnitude),
    "MinimumMagnitudeNumber": (2, _without_nan(_minimum_magnitude)),
    "MaximumMagnitudeNumber": (2, _without_nan(_maximum_magnitude)),
    "MinimumFinite": (2, _finite_first(_minimum)),
    "MaximumFinite": (2, _finite_first(_maximum)),
    "Clamp": (3, _clamp),
}
# Comparisons and predicates: exact numbers -> bools.
BOOLEAN: dict[str, tuple[int, Callable[..., Numbers]]] = {
    "CompareLess": (2, lambda x, y: x < y),
    "CompareLessEqual": (2, lambda x, y: x <= y),
    "CompareEqual": (2, lambda x, y: x == y),
    "CompareGreater": (2, lambda x, y: x > y),
    "CompareGreaterEqual": (2, lambda x, y: x >= y),
    "TotalOrder": (2, lambda x, y: np.isnan(x) | (~np.isnan(y) & (x <= y))),
    "IsZero": (1, lambda x: x == 0),
    "IsOne": (1, lambda x: x == 1),
    "IsNaN": (1, np.isnan),
    "IsInfinite": (1, np.isinf),
    "IsFinite": (1, np.isfinite),
    "IsSignMinus": (1, lambda x: x < 0),
}
_ROUNDED = {
    **{
        name.title(): name
        for name in "add subtract multiply divide sqrt exp exp2 log log2 softplus sin cos tan".split()
    },
    **{name.title(): name for name in "sinh cosh tanh hypot".split()},
    **{"FMA": "fma", "FAA": "faa", "Recip": "reciprocal", "RSqrt": "rsqrt", "LogOnePlus": "log1p"},
    **{"ExpMinusOne": "expm1", "SinPi": "sinpi", "CosPi": "cospi", "TanPi": "tanpi"},
    **{
        f"Arc{name}": f"arc{name.lower()}"
        for name in "Sin Cos Tan Sinh Cosh Tanh SinPi CosPi TanPi Tan2 Tan2Pi".split()
    },
}
_NAN_WHERE: dict[str, Callable[..., Numbers]] = {
    "Divide": lambda x, y: y == 0,
    "Recip": lambda x: x == 0,
    "RSqrt": lambda x: x == 0,
    "TanPi": lambda x: np.isfinite(x) & (np.mod(x, 1.0) == 0.5),
    "Hypot": lambda x, y: np.isnan(x) | np.isnan(y),
    **dict.fromkeys(("ArcTan2", "ArcTan2Pi"), lambda y, x: ((x == 0) & (y == 0)) | (np.isinf(x) & np.isinf(y))),
}
_FORMAT_TESTS = ("IsNormal", "IsSubnormal")
_NEXT = {"NextGreaterThan": 1, "NextLessThan": -1}
_QUERIES: dict[str, Callable[[BinaryFloat], Any]] = {
    "BitwidthOf": lambda f: f.bits,
    "PrecisionOf": lambda f: f.man + 1,
    "SignednessOf": lambda f: "Signed" if f.signed else "Unsigned",
    "DomainOf": lambda f: "Extended" if f.has_infinity else "Finite",
    "ExponentBitwidthOf": lambda f: f.exp,
    "TrailingSignificandBitwidthOf": lambda f: f.man,
    "ExponentBiasOf": lambda f: f.bias,
    "MaxFiniteOf": lambda f: _of_code(f, f.largest_code),
    "MinFiniteOf": lambda f: -_of_code(f, f.largest_code) if f.signed else 0.0,
    "MinPositiveOf": lambda f: _of_code(f, 1),
    "MinNormalOf": lambda f: 2.0 ** _lowest(f),
    "MaxSubnormalOf": lambda f: 2.0 ** _lowest(f) - 2.0 ** (_lowest(f) - f.man) if f.man else nan,
}
OPERATIONS = sorted(["Convert", "Class", *_ROUNDED, *EXACT, *BOOLEAN, *_FORMAT_TESTS, *_NEXT, *_QUERIES])


def _lowest(number: BinaryFloat) -> int:
    """The exponent of the smallest normal number."""
    return number.span[1] + number.man


def _of_code(number: Number, code: int) -> float:
    return float(arrays.decode(np.array([code]), number, np.float64)[0])


def _finite(number: Number) -> Numbers:
    """All finite numbers of a format, in ascending order."""
    found = np.unique(arrays.decode(np.arange(1 << number.bits), number, np.float64))
    return found[np.isfinite(found)]


@dataclass(frozen=True)
class Specialization:
    """An operation with its formats and its projection; calling it takes and returns NumPy arrays of codes.

    Comparisons and predicates return bools, `Class` returns names, and queries, which take no arrays, what they ask.

    Attributes:
        operation: its name in the report.
        operands: the formats of the operands; of a query the format that it asks.
        result: the format of the result; None where that is no code.
        rounding, saturation: names of `ROUNDINGS` and `SATURATIONS`.

    Example:
        >>> least = specialization("MinPositiveOf<Binary8p4se>")
        >>> least()
        0.0009765625
        >>> order = specialization("TotalOrder<Binary8p4se>")
        >>> order(np.uint8([128]), np.uint8([0]))  # NaN is below all numbers
        array([ True])
    """

    operation: str
    operands: tuple[BinaryFloat, ...]
    result: BinaryFloat | None
    rounding: str = "NearestTiesToEven"
    saturation: str = "SatNone"

    def __call__(self, *codes: np.ndarray) -> Any:
        """The codes of the results of codes that broadcast; other results as the class describes."""
        if self.operation in _QUERIES:
            if codes:
                raise ValueError(f"{self.operation} has {len(codes)} arrays; allowed are none")
            return _QUERIES[self.operation](self.operands[0])
        if len(codes) != len(self.operands):
            raise ValueError(f"{self.operation} has {len(codes)} arrays; allowed are {len(self.operands)}")
        given = [check_codes(x, f"operand {i}") for i, x in enumerate(codes)]
        numbers = [_decoded(x, number) for x, number in zip(given, self.operands, strict=True)]
        numbers = [np.asarray(x) for x in np.broadcast_arrays(*numbers)]
        with np.errstate(all="ignore"):
            return self._run(numbers)

    def _run(self, numbers: list[Numbers]) -> Any:
        name = self.operation
        if name in BOOLEAN:
            return BOOLEAN[name][1](*numbers)
        if name in _FORMAT_TESTS or name == "Class":
            return _classified(name, numbers[0], self.operands[0])
        assert self.result is not None
        if name in EXACT:
            return _encoded(EXACT[name][1](*numbers), self.result, "nearest", "inf")
        if name in _NEXT:
            return _encoded(_next(numbers[0], self.operands[0], _NEXT[name]), self.result, "nearest", "inf")
        modes = ROUNDINGS[self.rounding], SATURATIONS[self.saturation]
        if name == "Convert":
            return _encoded(numbers[0], self.result, *modes)
        return self._rounded(numbers, *modes)

    def _rounded(self, numbers: list[Numbers], rounding: str, overflow: str) -> np.ndarray:
        """The results of an operation of `qcore.arithmetic`, under the rules of the report."""
        assert self.result is not None
        wrong = _NAN_WHERE.get(self.operation, lambda *x: np.zeros(x[0].shape, bool))(*numbers)
        if self.operation.startswith("ArcTan2"):  # (y, -infinity) has a positive angle, also below zero
            numbers = [np.where(np.isneginf(numbers[1]), abs(numbers[0]), numbers[0]), numbers[1]]
        codes = [_encoded(x, number, "nearest", "inf") for x, number in zip(numbers, self.operands, strict=True)]
        function = getattr(FUNCTIONS, f"{_ROUNDED[self.operation]}_codes")
        found = function(*codes, self.operands, self.result, rounding, overflow=overflow)
        special = np.where(wrong, nan, _decoded(found, self.result))
        # Encoded again, as there is one NaN and no -0.
        return _encoded(special, self.result, "nearest", "inf")


def _decoded(codes: np.ndarray, number: BinaryFloat) -> Numbers:
    """Extended real numbers: there is no -0."""
    return arrays.decode(codes, number, np.float64) + 0.0


def _encoded(numbers: Numbers, number: BinaryFloat, rounding: Any, overflow: str) -> np.ndarray:
    """The codes of the projections of numbers; zeros are positive, and there is one NaN."""
    codes: Any = arrays.encode(np.where(np.isnan(numbers), nan, numbers), number, rounding, overflow=overflow)
    zero = arrays.decode(codes, number, np.float64) == 0
    return np.where(zero, np.zeros_like(codes), codes)


def _classified(name: str, x: Numbers, number: BinaryFloat) -> np.ndarray:
    normal = np.isfinite(x) & (abs(x) >= 2.0 ** _lowest(number))
    subnormal = np.isfinite(x) & (x != 0) & ~normal
    if name != "Class":
        return normal if name == "IsNormal" else subnormal
    negative = x < 0
    found = [np.isnan(x), np.isneginf(x), negative & normal, negative & subnormal, x == 0, subnormal, normal]
    return np.select(found, CLASSES[:-1], CLASSES[-1])


def _next(x: Numbers, number: BinaryFloat, step: int) -> Numbers:
    """The number of a format after another one, or before it."""
    finite, infinite = _finite(number), number.has_infinity
    ends = [-np.inf if infinite and number.signed else nan, np.inf if infinite else nan]
    steps = np.array([ends[0], *finite, ends[1]])
    found = steps[np.clip(np.searchsorted(finite, x) + 1 + step, 0, len(steps) - 1)]
    found = np.where(np.isinf(x), finite[0] if step > 0 else finite[-1], found)
    gone = np.isnan(x) | (np.isinf(x) & ((x > 0) == (step > 0)))
    return np.where(gone, nan, found)


def specialization(text: str) -> Specialization:
    """The specialization of a text.

    Args:
        text: an operation with formats and, for results that are rounded, a projection, as the module describes;
            without a projection it is (NearestTiesToEven, SatNone). Formats are Binary8p4se and
            its kind, binary32, binary16 and BFloat16. Operations that return an operand have one format.

    Returns:
        A function of arrays of codes.

    Raises:
        ValueError: if there is no such operation or format, or it is not provided.

    Example:
        >>> add = specialization("Add<Binary8p4se, Binary8p3se, BFloat16, (ToOdd, SatFinite)>")
        >>> hex(add(np.uint8([64]), np.uint8([64]))[0])
        '0x4000'
    """
    match = re.fullmatch(r"\s*(\w+)\s*<([^<>]*)>\s*", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"text={quoted(text)}; allowed is an operation with formats, such as 'Negate<Binary8p4se>'")
    name = match[1]
    if name not in OPERATIONS:
        raise ValueError(f"text={quoted(text)}; allowed operations are {', '.join(OPERATIONS)}")
    formats, _, projection = match[2].partition("(")
    numbers = [_format(one, text) for one in formats.split(",") if one.strip()]
    count = _count(name)
    rounding, saturation = _projection(projection, text)
    if name in _ROUNDED or name == "Convert":
        expected = count + 1
    else:
        expected, numbers = count, numbers * count if len(numbers) == 1 else numbers
        if projection:
            raise ValueError(f"text={quoted(text)}: {name} rounds nothing; allowed is no projection")
    if len(numbers) != expected:
        raise ValueError(f"text={quoted(text)} has {len(numbers)} formats; allowed are {expected}")
    if name in _ROUNDED or name == "Convert":
        return Specialization(name, tuple(numbers[:-1]), numbers[-1], rounding, saturation)
    if name in EXACT and len(set(numbers)) > 1:
        raise ValueError(f"text={quoted(text)}; allowed is one format for {name}")
    return Specialization(name, tuple(numbers), numbers[0] if name in {*EXACT, *_NEXT} else None)


def _count(name: str) -> int:
    """The number of an operation's operands; of a query, of the formats that it asks."""
    if name in _ROUNDED:
        parameters = getattr(FUNCTIONS, _ROUNDED[name]).__code__.co_varnames
        return sum(one in parameters[:4] for one in ("x", "y", "z"))
    return (EXACT.get(name) or BOOLEAN.get(name) or (1,))[0]


def _format(text: str, message_text: str) -> BinaryFloat:
    name = text.strip()
    known = re.fullmatch(r"Binary\d+p\d+[su][ef]", name) or name in ("binary32", "binary16", "BFloat16")
    if not known:
        raise ValueError(
            f"text={quoted(message_text)}; allowed formats are Binary8p4se and its kind, binary32, binary16, BFloat16"
        )
    number = check_number(name, "text")
    assert isinstance(number, BinaryFloat)
    return number


def _projection(text: str, message_text: str) -> tuple[str, str]:
    if not text.strip():
        return "NearestTiesToEven", "SatNone"
    names = [one.strip() for one in text.strip().removesuffix(")").split(",")]
    if len(names) != 2 or names[0] not in ROUNDINGS or names[1] not in SATURATIONS:
        allowed = f"({', '.join(ROUNDINGS)}) and ({', '.join(SATURATIONS)})"
        raise ValueError(f"text={quoted(message_text)}; allowed projections are a pair of {allowed}")
    return names[0], names[1]


def is_provided(text: str) -> bool:
    """True if `specialization` of a text gives results: the report's way of asking by a string.

    Args:
        text: as for `specialization`.

    Returns:
        A bool.

    Example:
        >>> is_provided("Hypot<binary32, binary32, binary32>")  # functions are tables of up to 16 bits
        False
    """
    try:
        found = specialization(text)
        if found.operation not in _QUERIES:
            found(*(np.zeros(1, np.uint8) for _ in found.operands))
    except ValueError:
        return False
    return True
