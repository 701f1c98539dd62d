"""Blocks of IEEE P3109: elements that share a scale, which is any number of a format, and sums that are rounded once.

Exact numbers are float64 numbers that are rounded to odd, see `qcore.arithmetic.law`. Sums and products of many terms
are integers of any length before.
"""

from __future__ import annotations

from math import ldexp

import numpy as np

from qcore.arithmetic import choices, law
from qcore.arithmetic.extended import within
from qcore.linalg.namespace import Float64

Numbers = np.ndarray
_BITS = 53  # of a significand
_MOST = 700  # exponents beyond are beyond every format


def decoded(scale: Numbers, x: Numbers) -> Numbers:
    """The numbers of blocks along the last axis; products of 24 bits are exact. Zero by infinity is NaN."""
    return scale[..., None] * x + 0.0


def scaled_down(scale: Numbers, x: Numbers) -> tuple[Numbers, Numbers]:
    """The scales of blocks, and their numbers in units of these scales, before they are rounded.

    Where bits decide a rounding of a quotient, as many more bits as the scale has decide it of x.
    """
    of_each, x = np.broadcast_arrays(scale[..., None], x)
    quotient = within(np.asarray(law.divide(Float64, x, of_each)))
    found = np.where(np.isinf(of_each), np.sign(x) * np.sign(of_each), np.where(of_each == 0, 0.0, quotient))
    return of_each[..., 0], np.where(np.isnan(of_each) | np.isnan(x), np.nan, found)


def largest(x: Numbers) -> Numbers:
    """The largest finite magnitude of each block, or infinity, or NaN: those lose in this order."""
    first = choices.EXTREMA["maximum_finite"]
    found = np.full(x.shape[:-1], np.nan)
    for i in range(x.shape[-1]):
        found = choices.chosen(first)(Float64, found, abs(x[..., i]))
    return np.asarray(found)


def total(x: Numbers) -> Numbers:
    """The sum of each block."""
    significands, exponents = _integers(x)
    least = exponents.min(axis=-1)
    shifts = (exponents - least[..., None]).astype(object)
    special = np.where(np.isfinite(x), 0.0, x).sum(axis=-1)
    return np.where(special == 0, _rounded_to_odd(np.sum(significands << shifts, axis=-1), least), special)


def product(x: Numbers) -> Numbers:
    """The product of each block."""
    significands, exponents = _integers(x)
    special = np.where(np.isfinite(x), np.sign(x), x).prod(axis=-1)  # zero by infinity is NaN
    found = _rounded_to_odd(np.prod(significands, axis=-1), exponents.sum(axis=-1))
    return np.where(np.isfinite(special), found, special)


def _integers(x: Numbers) -> tuple[Numbers, Numbers]:
    """Finite numbers as integers of Python's and exponents; others are zero."""
    fraction, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    return (fraction * 2.0**_BITS).astype(np.int64).astype(object), exponent.astype(np.int64) - _BITS


def _rounded_to_odd(significands: Numbers, exponents: Numbers) -> Numbers:
    """The float64 numbers that stand for integers by powers of two."""
    found = np.frompyfunc(_stand_in, 2, 1)(significands, exponents)
    return within(np.asarray(found).astype(np.float64))


def _stand_in(significand: int, exponent: int) -> float:
    size = abs(significand)
    dropped = max(size.bit_length() - _BITS, 0)
    kept = size >> dropped
    kept |= kept << dropped != size
    found = ldexp(kept, min(max(exponent + dropped, -_MOST - _BITS), _MOST))
    return found if significand > 0 else -found
