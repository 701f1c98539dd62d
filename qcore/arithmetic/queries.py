"""What IEEE P3109 asks of formats, and neighbours of their numbers; its codes of extended real numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np

from qcore import arrays
from qcore.formats.floating import BinaryFloat

QUERIES: dict[str, Callable[[BinaryFloat], Any]] = {
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
    "MinNormalOf": lambda f: smallest_normal(f),
    "MaxSubnormalOf": lambda f: smallest_normal(f) - _of_code(f, 1) if f.man else nan,
}


def smallest_normal(number: BinaryFloat) -> float:
    return 2.0 ** (number.span[1] + number.man)


def _of_code(number: BinaryFloat, code: int) -> float:
    return float(decoded(np.array([code]), number)[0])


def decoded(codes: np.ndarray, number: BinaryFloat) -> np.ndarray:
    """Extended real numbers: there is no -0."""
    return arrays.decode(codes, number, np.float64) + 0.0


def encoded(numbers: np.ndarray, number: BinaryFloat, rounding: Any, overflow: str, **noise: Any) -> np.ndarray:
    """The codes of the projections of numbers; zeros are positive, and there is one NaN."""
    one_nan = np.where(np.isnan(numbers), nan, numbers)
    codes: Any = arrays.encode(one_nan, number, rounding, overflow=overflow, **noise)
    zero = arrays.decode(codes, number, np.float64) == 0
    return np.where(zero, np.zeros_like(codes), codes)


def ranks(x: np.ndarray, number: BinaryFloat) -> np.ndarray:
    """How many numbers of a format lie between 0 and each number, which counts itself; below 0 they are negative.

    Infinities come after the largest numbers, also where a format has none.
    """
    finite = np.where(np.isfinite(x), abs(x), 0.0)
    counts = np.asarray(arrays.encode(finite, number)).astype(np.int64)
    counts = np.where(np.isinf(x), number.largest_code + 1, counts)
    return np.where(x < 0, -counts, counts)


def neighbour(x: np.ndarray, number: BinaryFloat, step: int) -> np.ndarray:
    """The number of a format after another one, or before it; beyond all numbers it is NaN."""
    rank, most = ranks(x, number) + step, number.largest_code
    found = np.sign(rank) * decoded(abs(np.clip(rank, -most, most)), number)
    infinity = inf if number.has_infinity else nan
    found = np.where(abs(rank) == most + 1, np.sign(rank) * infinity, found)
    below = rank < (-most - 1 if number.signed else 0)
    return np.where(np.isnan(x) | below | (rank > most + 1), nan, found)
