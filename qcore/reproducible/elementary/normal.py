"""The error function and the normal distribution, by polynomials and float64's exponential.

No library's error function is asked: they differ in accuracy, and NumPy has none.
"""

from __future__ import annotations

from math import factorial, pi, sqrt
from typing import Any

from qcore.reproducible.elementary.polynomials import polynomial

# erf(x) / x as a polynomial in x^2, for |x| < 1/2
_MIDDLE = (
    1.1283791670955126,
    -0.3761263890318375,
    0.1128379167095487,
    -0.026866170645000076,
    0.005223977622024224,
    -0.0008548326511566567,
    0.00012055286259121393,
    -1.4923005626894847e-05,
    1.6371282597755977e-06,
    -1.4621341491012844e-07,
)

# exp(t^2) erfc(t) (1 + 2t) as a polynomial in (t - 4) / (t + 4), for 0 <= t <= 10; both within 3e-16, relative
_TAIL = (
    1.2329951186255526,
    -0.1396211168405623,
    0.015379652102610473,
    0.06809705425466908,
    -0.10103906603586531,
    0.0937328349990944,
    -0.06633036582031154,
    0.03716751552655567,
    -0.016197733981455194,
    0.005031970067657489,
    -0.000757773707063825,
    -0.00019925714661091188,
    0.00015062309720018628,
    -2.4397746422436416e-05,
    -1.1225101875659178e-05,
    5.706604414895734e-06,
    2.9801353803031333e-07,
    -8.210939042560568e-07,
    7.115337800585303e-08,
    1.0633855618594884e-07,
    -1.6371779763566967e-08,
    -1.234686604382353e-08,
    1.5738283774192037e-09,
    9.311744978232572e-10,
)

_SLOPE = 2 / sqrt(pi)  # of erf at zero
_DENSITY = 1 / sqrt(2 * pi)  # of the normal distribution at zero
_NEAR = 0.125
_NORMAL = [_DENSITY * (-0.5) ** k / (factorial(k) * (2 * k + 1)) for k in range(8)]  # the distribution, less 1/2
_NORMAL_SLOPE = [(2 * k + 2) * c for k, c in enumerate(_NORMAL)]  # of x times the distribution
_FAR = 10.0  # erfc(10) and exp(-100) are no normal float32 numbers


def erf(xp: Any, x: Any) -> Any:
    """The error function of float64 numbers; the squares of float32 numbers are exact."""
    square = x * x
    tail = 1.0 - xp.exp(-square) * _scaled_tail(xp, abs(x))
    return xp.where(abs(x) < 0.5, x * polynomial(_MIDDLE, square), xp.where(x < 0, -tail, tail))


def erf_slope(xp: Any, x: Any) -> Any:
    """The derivative of the error function.

    Near zero it is a difference, since 0x37f5db6c has a derivative next to the middle of two float32 numbers, and the
    exponentials of libraries lie on both sides of it.
    """
    square = x * x
    return xp.near_zero(x, 2.0**-14, _SLOPE - _SLOPE * square, xp.exp(-square) * _SLOPE)


def gelu(xp: Any, x: Any) -> Any:
    """x times the distribution function of the normal distribution, which is erfc(-x / sqrt(2)) / 2.

    By its series near zero, as next to -2.1e-5 the exponential's last place decides.
    """
    tail = xp.exp(-0.5 * (x * x)) * _normal_tail(xp, x)
    near = 0.5 + xp.product(x, polynomial(_NORMAL, x * x))
    return x * xp.where(abs(x) < _NEAR, near, xp.where(x > 0, 1.0 - tail, tail))


def gelu_slope(xp: Any, x: Any) -> Any:
    """The derivative of gelu.

    By its series near zero, as next to 0.0731 the exponential's last place decides. Below zero the exponential is a
    factor of the sum, which so keeps its sign where it underflows.
    """
    rest = xp.exp(-0.5 * (x * x)) * (_normal_tail(xp, x) - xp.product(abs(x), _DENSITY))
    near = 0.5 + xp.product(x, polynomial(_NORMAL_SLOPE, x * x))
    return xp.where(abs(x) < _NEAR, near, xp.where(x > 0, 1.0 - rest, rest))


def _normal_tail(xp: Any, x: Any) -> Any:
    """exp(x^2 / 2) times the normal distribution function of -|x|."""
    return 0.5 * _scaled_tail(xp, abs(x) * sqrt(0.5))


def _scaled_tail(xp: Any, t: Any) -> Any:
    """exp(t^2) erfc(t), for t >= 0; that of 10 beyond."""
    t = xp.where(t > _FAR, _FAR, t)
    return polynomial(_TAIL, (t - 4.0) / (t + 4.0)) / (1.0 + 2.0 * t)
