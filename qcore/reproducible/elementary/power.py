"""Powers, in float64 arithmetic of our own: of two numbers no library's function can be proven on all inputs.

a^b = 2^(b log2 a). The logarithm of a = 2^e m, with m between sqrt(1/2) and sqrt(2), is e plus a series in (m - 1) /
(m + 1); 2^z is 2^n times a series in z - n. Each float64 operation is rounded, and products are not contracted. The
result, before it is rounded to float32, has a relative error below 2^-44.
"""

from __future__ import annotations

from math import inf, nan
from typing import Any

_LN2 = 0.6931471805599453
_ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2) in float32
_MANTISSA = 23
_MOST = 200.0  # no result of float32 has a larger exponent
_LOG_TERMS, _EXP_TERMS = 12, 14


def power(xp: Any, a: Any, b: Any) -> Any:
    """a^b of float32 numbers that broadcast, by the rules of IEEE 754 for zeros, infinities and NaN."""
    magnitude, wide = abs(a), xp.wide(b)
    exponent = xp.product(wide, _log2(xp, magnitude))
    result = _exp2(xp, exponent)
    result = xp.where((magnitude == 1) | (wide == 0), 1.0, result)
    half = wide * 0.5
    whole = wide == xp.floor(wide)
    odd = whole & (half != xp.floor(half))
    result = xp.where(odd & (xp.bits(a) < 0), -result, result)
    result = xp.where((a < 0) & (magnitude < inf) & ~whole, nan, result)
    return xp.narrow(xp.where(a == 1, 1.0, result))


def _log2(xp: Any, a: Any) -> Any:
    """Of settled float32 numbers that are not negative, in float64."""
    bits = xp.bits(a)
    e = (bits - _ROOT_HALF) >> _MANTISSA
    m = xp.to_float64(xp.floats(bits - (e << _MANTISSA)))
    s = (m - 1.0) / (m + 1.0)
    square = xp.product(s, s)
    series = 2 / (_LN2 * (2 * _LOG_TERMS - 1))
    for k in range(_LOG_TERMS - 2, -1, -1):
        series = xp.product(series, square) + 2 / (_LN2 * (2 * k + 1))
    found = xp.to_float64(e) + xp.product(series, s)
    found = xp.where(a > 0, found, -inf)
    return xp.where(abs(a) < inf, found, abs(xp.to_float64(a)))


def _exp2(xp: Any, z: Any) -> Any:
    z = xp.where(z > _MOST, _MOST, xp.where(z < -_MOST, -_MOST, z))
    n = xp.floor(z + 0.5)
    fraction = z - n
    terms = [1.0]
    for k in range(1, _EXP_TERMS):
        terms.append(terms[-1] * _LN2 / k)
    series = terms[-1]
    for term in terms[-2::-1]:
        series = xp.product(series, fraction) + term
    n = xp.to_int32(xp.where(n == n, n, 0.0))
    for part in (n >> 1, n - (n >> 1)):  # 2^n as two float32 numbers
        series = series * xp.to_float64(xp.floats((part + 127) << _MANTISSA))
    return series
