"""Elementary functions of all numbers of a short format: each exact result as one float64 number, rounded to odd.

Float64 functions of libraries are a few units of the last place off. That decides nothing unless a result is next to a
number with as few bits as decide a rounding. There, decimal arithmetic with hundreds of digits finds the side. Where a
function is almost a simple one, as sin(x) is x for small x, the next term of its series does.

The results are never exactly such numbers, by the theorems of Lindemann, of Gelfond and Schneider, and of Niven, but at
points that are listed here: exp(0), exp2 of integers, log2 of powers of two, sinpi of halves, and the like.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from math import erf, inf, pi, sqrt

import numpy as np

from qcore.arithmetic import law
from qcore.linalg.namespace import Float64

_OFF = 32  # units of the last place by which a library's function may be off
_MOST = 690.0  # exponentials of it are beyond every format, and finite
_NEGLIGIBLE = 2.0**-62  # relative to a result of which 50 bits decide
_DIGITS = (60, 150, 400)  # of decimals, one after the other until the side is found
Real = Callable[[Decimal], Decimal]


def _pi() -> Decimal:
    """Pi, by Machin's formula, in the precision of the context."""
    return 4 * (4 * _arctan_series(Decimal(1) / 5) - _arctan_series(Decimal(1) / 239))


def _arctan_series(x: Decimal) -> Decimal:
    total, term, square, k = Decimal(0), x, x * x, 1
    while total + term / k != total:
        total, term, k = total + term / k, -term * square, k + 2
    return total


def _arctan(x: Decimal) -> Decimal:
    for _ in range(4):  # of halves of the angle
        x = x / (1 + (1 + x * x).sqrt())
    return 16 * _arctan_series(x)


def _sin(x: Decimal) -> Decimal:
    """By its series, for at most a quarter turn."""
    total, term, square, k = Decimal(0), x, x * x, 1
    while total + term != total:
        total, term, k = total + term, -term * square / ((k + 1) * (k + 2)), k + 2
    return total


def _turned(x: Decimal, quarter: Decimal, shift: int) -> Decimal:
    """The sine of x, and of `shift` quarter turns more."""
    with localcontext() as more:
        more.prec += max(x.adjusted(), 0)
        turns = (x / quarter).to_integral_value()
        rest = x - turns * quarter
    angle = rest / quarter * (_pi() / 2)
    part = int(turns + shift) % 4
    found = _sin(angle) if part % 2 == 0 else _sin_to_cos(angle)
    return -found if part > 1 else found


def _sin_to_cos(angle: Decimal) -> Decimal:
    half = _sin(angle / 2)
    return 1 - 2 * half * half


def _quarter(x: Decimal) -> Decimal:
    """A quarter turn in radians, with the digits that a large x takes."""
    with localcontext() as more:
        more.prec += max(x.adjusted(), 0) + 5
        return _pi() / 2


def _radians(shift: int) -> Real:
    return lambda x: _turned(x, _quarter(x), shift)


def _halves(shift: int) -> Real:
    return lambda x: _turned(x, Decimal("0.5"), shift)


def _over(a: Real, b: Real) -> Real:
    return lambda x: a(x) / b(x)


def _arcsin(x: Decimal) -> Decimal:
    return _pi() / 2 * x if abs(x) == 1 else _arctan(x / (1 - x * x).sqrt())


def _arccos(x: Decimal) -> Decimal:
    if x <= 0:
        return _pi() - _arccos(-x) if x < 0 else _pi() / 2
    return _arctan((1 - x * x).sqrt() / x)


def _erf(x: Decimal) -> Decimal:
    """By the series 2 x exp(-x^2) / sqrt(pi) (1 + 2 x^2 / 3 + 4 x^4 / 15 + ..), whose terms are positive."""
    total, term, square, k = Decimal(0), x, 2 * x * x, 1
    while total + term != total:
        k += 2
        total, term = total + term, term * square / k
    return 2 * total * (-x * x).exp() / _pi().sqrt()


def _over_pi(function: Real) -> Real:
    return lambda x: function(x) / _pi()


REAL: dict[str, Real] = {
    "exp": Decimal.exp,
    "exp2": lambda x: (x * Decimal(2).ln()).exp(),
    "expm1": lambda x: x.exp() - 1,
    "log": Decimal.ln,
    "log2": lambda x: x.ln() / Decimal(2).ln(),
    "log1p": lambda x: (1 + x).ln(),
    "softplus": lambda x: (1 + x.exp()).ln(),
    "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
    "erf": _erf,
    "sinh": lambda x: (x.exp() - (-x).exp()) / 2,
    "cosh": lambda x: (x.exp() + (-x).exp()) / 2,
    "arcsinh": lambda x: ((1 + x * x).sqrt() + abs(x)).ln().copy_sign(x),
    "arccosh": lambda x: (x + (x * x - 1).sqrt()).ln(),
    "arctanh": lambda x: ((1 + x) / (1 - x)).ln() / 2,
    "sin": _radians(0),
    "cos": _radians(1),
    "tan": _over(_radians(0), _radians(1)),
    "arcsin": _arcsin,
    "arccos": _arccos,
    "arctan": _arctan,
    "sinpi": _halves(0),
    "cospi": _halves(1),
    "tanpi": _over(_halves(0), _halves(1)),
    "arcsinpi": _over_pi(_arcsin),
    "arccospi": _over_pi(_arccos),
    "arctanpi": _over_pi(_arctan),
}


def _softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-abs(x)))


def _turn(x: np.ndarray, shift: float) -> np.ndarray:
    """The sine of pi (x + shift), with angles of at most an eighth of a turn."""
    halves = np.rint(2.0 * x)
    rest, part = (x - 0.5 * halves) * pi, np.mod(np.mod(halves, 4.0) + 2.0 * shift, 4.0)
    found = np.where(np.mod(part, 2.0) == 0, np.sin(rest), np.cos(rest))
    return np.where(part > 1, -found, found) + 0.0  # IEEE 754: zeros of the cosine are positive


def _sinpi(x: np.ndarray) -> np.ndarray:
    found = _turn(x, 0.0)
    return np.where(found == 0, np.copysign(0.0, x), found)  # IEEE 754: of integers a zero of their sign


def _tanpi(x: np.ndarray) -> np.ndarray:
    found = _sinpi(x) / _turn(x, 0.5)
    return np.where(np.mod(x, 0.5) == 0.25, np.rint(found), found)  # libraries are a little off 1


IN_FLOAT64: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "softplus": _softplus,
    "tanh": np.tanh,
    "erf": np.vectorize(erf, otypes=[np.float64]),
    "sinh": np.sinh,
    "cosh": np.cosh,
    "arcsinh": np.arcsinh,
    "arccosh": np.arccosh,
    "arctanh": np.arctanh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "arcsin": np.arcsin,
    "arccos": np.arccos,
    "arctan": np.arctan,
    "sinpi": _sinpi,
    "cospi": lambda x: _turn(x, 0.5),
    "tanpi": _tanpi,
    "arcsinpi": lambda x: np.arcsin(x) / pi,
    "arccospi": lambda x: np.arccos(x) / pi,
    "arctanpi": lambda x: np.arctan(x) / pi,
}

# Functions that are x near 0: the power of x in the next term, relative to x, and the sign of what it adds to |x|.
_NEAR_X = {"expm1": (1, 0), "log1p": (1, 0), "sin": (2, -1), "tan": (2, 1), "tanh": (2, -1), "sinh": (2, 1)}
_NEAR_X |= {"arcsin": (2, 1), "arctan": (2, -1), "arcsinh": (2, -1), "arctanh": (2, 1)}
# Functions that are 1 near 0: the same; a sign of 0 is that of x.
_NEAR_1 = {"exp": (1, 0), "exp2": (1, 0), "cos": (2, -1), "cosh": (2, 1), "cospi": (2, -1)}
# Beyond these numbers results are beyond every format; without bounds float64 would have infinity, or 0.
_BOUNDED = {"exp2": 995.0, **dict.fromkeys(("exp", "expm1", "sinh", "cosh", "softplus"), _MOST)}
_SLACK = 16.0  # more than any factor of these next terms


def _simple(name: str, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where a function is a simple number but for a rest that is too small to see; this number, and the rest's sign."""
    size, one = abs(x), np.ones_like(x)
    if name in _NEAR_X or name in _NEAR_1:
        power, sign = (_NEAR_X if name in _NEAR_X else _NEAR_1)[name]
        near = (size**power * _SLACK < _NEGLIGIBLE) & (x != 0)
        lead = x if name in _NEAR_X else one
        rest = x if name in ("exp", "exp2") else one if name == "expm1" else -one if name == "log1p" else None
        rest = (sign * x if name in _NEAR_X else sign * one) if rest is None else rest
    else:
        near, lead, rest = np.zeros(x.shape, bool), x, one
    if name == "arccospi":  # 1/2 - x / pi
        near, lead, rest = (size < _NEGLIGIBLE) & (x != 0), 0.5 * one, -x
    far = {"tanh": size > 22.0, "erf": size > 6.5, "expm1": x < -44.0, "softplus": x > 44.0}.get(name)
    if far is not None:
        far = far & np.isfinite(x)
        of_far = {"tanh": np.sign(x), "erf": np.sign(x), "expm1": -one, "softplus": x}[name]
        lead, near = np.where(far, of_far, lead), near | far
        rest = np.where(far, -np.sign(x) if name in ("tanh", "erf") else one, rest)
    return near, lead, rest


def _exact(name: str, x: Fraction) -> bool:
    """True at the points where a function of a float64 number is one."""
    if x == 0 or (x == 1 and name in ("log", "log2", "arccos", "arccospi", "arccosh")):
        return name not in ("softplus", "arccos")
    match name:
        case "exp2":
            return x.denominator == 1
        case "log2":
            return x > 0 and x.numerator & (x.numerator - 1) == 0 and x.denominator & (x.denominator - 1) == 0
        case "sinpi" | "cospi":
            return (2 * x).denominator == 1
        case "tanpi":
            return (4 * x).denominator == 1
        case "arcsinpi" | "arccospi" | "arctanpi":
            return abs(x) == 1
    return False


def undecided(found: np.ndarray, digits: int) -> tuple[np.ndarray, np.ndarray]:
    """Where float64 results may be on either side of a number of some bits; and these numbers."""
    bits, dropped = found.view(np.int64), 53 - digits
    step = np.int64(1) << np.int64(dropped)
    nearest = (bits + (step >> 1)) & -step
    near = (abs(bits - nearest) <= _OFF) & np.isfinite(found) & (found != 0)
    return near, nearest.view(np.float64)


def _side(function: Callable[..., Decimal], number: float, *operands: float) -> int:
    """The sign of a function less a number."""
    for digits in _DIGITS:
        with localcontext(Context(prec=digits + 60, Emax=10**9, Emin=-(10**9))):
            difference = function(*map(Decimal, operands)) - Decimal(number)
            if abs(difference) > abs(Decimal(number)).scaleb(-digits):
                return 1 if difference > 0 else -1
    raise AssertionError("a result that no theorem lists is a number of few bits")


def of_one(name: str, x: np.ndarray, digits: int) -> np.ndarray:
    """The results of float64 numbers, for roundings that so many bits decide."""
    with np.errstate(all="ignore"):
        most = _BOUNDED.get(name, inf)
        found = np.where(np.isinf(x), IN_FLOAT64[name](x), IN_FLOAT64[name](np.clip(x, -most, most)))
        simple, lead, rest = _simple(name, x)
        found = np.where(simple, law.to_odd(Float64, lead, rest), found)
    near, numbers = undecided(found, digits)
    for i in np.flatnonzero(near & ~simple & np.isfinite(x) & (abs(x) <= most)):
        argument, number = float(x[i]), float(numbers[i])
        if _exact(name, Fraction(argument)):
            found[i] = number
        else:
            found[i] = _beside(number, _side(REAL[name], number, argument))
    return found


def _beside(number: float, side: int) -> float:
    """The number, rounded to odd with a rest of this sign."""
    return law.to_odd(Float64, np.array([number]), np.array([side]))[0]


def _arctan2(y: Decimal, x: Decimal) -> Decimal:
    if x == 0:
        return (_pi() / 2).copy_sign(y)
    angle = _arctan(y / x)
    return angle if x > 0 else angle + _pi().copy_sign(y)


REAL_OF_TWO: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "arctan2": _arctan2,
    "arctan2pi": lambda y, x: _arctan2(y, x) / _pi(),
    "hypot": lambda x, y: (x * x + y * y).sqrt(),
}
_IN_FLOAT64_OF_TWO: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "arctan2": np.arctan2,
    "arctan2pi": lambda y, x: np.arctan2(y, x) / pi,
    "hypot": np.hypot,
}


def _is_exact_of_two(name: str, a: Fraction, b: Fraction, number: Fraction) -> bool:
    if name == "hypot":
        return a * a + b * b == number * number
    return name == "arctan2pi" and (a == 0 or b == 0 or abs(a) == abs(b))


def of_two(name: str, a: np.ndarray, b: np.ndarray, digits: int) -> np.ndarray:
    """`of_one` for functions of two numbers; all pairs are given."""
    with np.errstate(all="ignore"):
        found, simple = _IN_FLOAT64_OF_TWO[name](a, b), np.zeros(a.shape, bool)
        if name == "arctan2":  # a / b less a third of its cube
            simple = (b > 0) & (abs(a) < abs(b) * 2.0**-31) & (a != 0) & np.isfinite(b)
            ratio = law.divide(Float64, a, b)
            found = np.where(simple, law.to_odd(Float64, ratio, -ratio), found)
    near, numbers = undecided(found, digits)
    for i in np.flatnonzero(near & ~simple & np.isfinite(a) & np.isfinite(b)):
        x, y, number = float(a[i]), float(b[i]), float(numbers[i])
        if _is_exact_of_two(name, Fraction(x), Fraction(y), Fraction(number)):
            found[i] = number
        else:
            found[i] = _beside(number, _side(REAL_OF_TWO[name], number, x, y))
    return found


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


_LN2 = 0.6931471805599453
# Derivatives, in float64.
SLOPES: dict[str, Callable[..., tuple[np.ndarray, ...]]] = {
    "exp": lambda x: (np.exp(x),),
    "exp2": lambda x: (_LN2 * np.exp2(x),),
    "expm1": lambda x: (np.exp(x),),
    "log": lambda x: (1.0 / x,),
    "log2": lambda x: (1.0 / (x * _LN2),),
    "log1p": lambda x: (1.0 / (1.0 + x),),
    "softplus": lambda x: (_sigmoid(x),),
    "tanh": lambda x: (4.0 * _sigmoid(2.0 * x) * _sigmoid(-2.0 * x),),
    "erf": lambda x: (2.0 / sqrt(pi) * np.exp(-x * x),),
    "sinh": lambda x: (np.cosh(x),),
    "cosh": lambda x: (np.sinh(x),),
    "arcsinh": lambda x: (1.0 / np.hypot(1.0, x),),
    "arccosh": lambda x: (1.0 / np.sqrt((x - 1.0) * (x + 1.0)),),
    "arctanh": lambda x: (1.0 / ((1.0 - x) * (1.0 + x)),),
    "sin": lambda x: (np.cos(x),),
    "cos": lambda x: (-np.sin(x),),
    "tan": lambda x: (1.0 + np.tan(x) ** 2,),
    "arcsin": lambda x: (1.0 / np.sqrt((1.0 - x) * (1.0 + x)),),
    "arccos": lambda x: (-1.0 / np.sqrt((1.0 - x) * (1.0 + x)),),
    "arctan": lambda x: (1.0 / (1.0 + x * x),),
    "sinpi": lambda x: (pi * _turn(x, 0.5),),
    "cospi": lambda x: (-pi * _turn(x, 0.0),),
    "tanpi": lambda x: (pi * (1.0 + _tanpi(x) ** 2),),
    "arcsinpi": lambda x: (1.0 / (pi * np.sqrt((1.0 - x) * (1.0 + x))),),
    "arccospi": lambda x: (-1.0 / (pi * np.sqrt((1.0 - x) * (1.0 + x))),),
    "arctanpi": lambda x: (1.0 / (pi * (1.0 + x * x)),),
    "hypot": lambda x, y: (x / np.hypot(x, y), y / np.hypot(x, y)),
    "arctan2": lambda y, x: (x / (x * x + y * y), -y / (x * x + y * y)),
    "arctan2pi": lambda y, x: (x / (pi * (x * x + y * y)), -y / (pi * (x * x + y * y))),
}
