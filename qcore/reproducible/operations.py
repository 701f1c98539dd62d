"""The operations that laws of float32 numbers are made of: NumPy's names, and the laws that all frameworks share."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np

from qcore import namespace
from qcore.linalg.law import tree_sum
from qcore.namespace import A, Array

SMALLEST = 2.0**-126  # magnitudes up to this one, the smallest normal number, are zeros

# Of `power`:
_LN2 = 0.6931471805599453
_ROOT_HALF = 0x3F3504F3  # the bits of sqrt(1/2) in float32
_MANTISSA = 23
_MOST = 200.0  # no result of float32 has a larger exponent
_LOG_TERMS, _EXP_TERMS = 12, 14

# Of `exact_total`: 2^20 numbers up to 1 in units of 2^-42 fill 62 bits.
_UNIT, _MOST_TERMS = 42, 20


def normal(number: float) -> float:
    """A Python number as float32 has it, without subnormal numbers."""
    found = float(np.float32(number))
    return 0.0 if abs(found) <= SMALLEST else found


class Names(namespace.Names):
    """The operations for NumPy; a framework overrides the primitives, and inherits the operations made of them.

    Besides these names laws use comparisons, negation, `abs`, slices, `shape`, `ndim` and `reshape`.

    Example:
        >>> Names.mul(np.float32([1, 2**-100]), np.float32([3, 2**-100])).tolist()  # 2^-200 is a zero
        [3.0, 0.0]
    """

    root: Any = staticmethod(np.sqrt)

    @staticmethod
    def is_float32(x: Array) -> bool:
        return x.dtype == np.float32

    @staticmethod
    def to_float32(x: np.ndarray) -> np.ndarray:
        return np.asarray(x).astype(np.float32)

    @staticmethod
    def to_float64(x: np.ndarray) -> np.ndarray:
        return np.asarray(x).astype(np.float64)

    @staticmethod
    def to_int32(x: np.ndarray) -> np.ndarray:
        return np.asarray(x).astype(np.int32)

    @staticmethod
    def bits(x: np.ndarray) -> np.ndarray:
        """Float32 numbers' bits as int32."""
        return np.asarray(x).view(np.int32)

    @staticmethod
    def floats(bits: np.ndarray) -> np.ndarray:
        """The inverse of `bits`."""
        return np.asarray(bits).view(np.float32)

    @staticmethod
    def product(a: A, b: A) -> A:
        """A product of float64 numbers that rounds, and that no compiler contracts with a sum."""
        return a * b

    # From here on, what all frameworks share.

    @classmethod
    def settled(cls, x: A) -> A:
        """x with a zero of the same sign for every float32 number of magnitude at most 2^-126.

        A compiler cannot predict the choice, so it does not contract a product with a sum across it, or drop a
        conversion to float32.
        """
        return cls.where(abs(x) > SMALLEST, x, x * 0.0)

    @classmethod
    def one_nan(cls, x: A) -> A:
        """x with 0x7fc00000 for every NaN."""
        nan: Any = np.nan
        return cls.where(x == x, x, nan)

    @classmethod
    def sums(cls, a: A, b: A | None, axes: tuple[int, ...]) -> A:
        """See `qcore.reproducible.operations.tree_sums`."""
        return tree_sums(cls, a, b, axes)

    @classmethod
    def sums_by_index(cls, rows: A, indices: A, count: int) -> A:
        """See `qcore.reproducible.operations.sums_by_index`."""
        return sums_by_index(cls, rows, indices, count)

    @classmethod
    def exact_total(cls, x: A, axis: int) -> A:
        """See `qcore.reproducible.operations.exact_total`."""
        return exact_total(cls, x, axis)

    @classmethod
    def softmax(cls, x: A, axis: int, zeros: bool = False) -> A:
        """See `qcore.reproducible.operations.softmax`."""
        return softmax(cls, x, axis, zeros)

    @classmethod
    def float64(cls: Any, x: A | float) -> A | float:
        """Settled float32 numbers as float64; a Python number becomes the nearest float32 number first."""
        return float(np.float32(x)) if isinstance(x, int | float) else cls.to_float64(x)

    @classmethod
    def float32(cls: Any, x: A | float) -> A:
        """Float64 numbers, rounded to float32 and settled."""
        return cls.settled(cls.to_float32(x))

    @classmethod
    def add_product(cls: Any, a: A, b: A, c: A | float) -> A:
        """a + b * c, rounded to float64, then to float32: the product is exact."""
        return cls.float32(cls.float64(a) + cls.float64(b) * cls.float64(c))

    @classmethod
    def add(cls: Any, a: A | float, b: A | float) -> A:
        return cls.settled(a + b)

    @classmethod
    def sub(cls: Any, a: A | float, b: A | float) -> A:
        return cls.settled(a - b)

    @classmethod
    def mul(cls: Any, a: A | float, b: A | float) -> A:
        return cls.settled(a * b)

    @classmethod
    def quotient(cls: Any, a: A | float, b: A | float) -> A:
        """Not settled: for laws that do not tell numbers up to 2^-126 from zeros.

        By way of float64, in which also a * (1 / b) rounds to the quotient of float32 numbers.
        """
        return cls.to_float32(cls.float64(a) / cls.float64(b))

    @classmethod
    def div(cls, a: A | float, b: A | float) -> A:
        return cls.settled(cls.quotient(a, b))

    @classmethod
    def sqrt(cls: Any, x: A) -> A:
        return cls.float32(cls.root(cls.float64(x)))

    @classmethod
    def power(cls, a: A | float, b: A | float) -> A:
        """See `qcore.reproducible.operations.power`."""
        return power(cls, a, b)

    @classmethod
    def near_zero(cls, x: A, bound: float, near: A, beyond: A) -> A:
        """One function of x as two formulas; the first one rounds correctly next to zero, the second elsewhere."""
        return cls.where(abs(x) < bound, near, beyond)


class Unrounded(Names):
    """The operations in float64 without roundings, for a framework to differentiate; the first base of its namespace.

    Roundings have no derivatives, so second derivatives are derivatives of the functions before rounding.

    Example:
        >>> Unrounded.div(np.array([1.0]), np.array([3.0])).tolist()
        [0.3333333333333333]
    """

    @staticmethod
    def materialize(x: Any, /) -> Any:
        return x

    settled: Any = materialize
    one_nan: Any = materialize
    to_float32: Any = materialize

    @staticmethod
    def product(a: Any, b: Any) -> Any:
        return a * b

    @staticmethod
    def power(a: Any, b: Any) -> Any:
        return a**b

    @staticmethod
    def near_zero(x: Any, bound: float, near: Any, beyond: Any) -> Any:
        return beyond

    @staticmethod
    def sums(a: Any, b: Any, axes: tuple[int, ...]) -> Any:
        x = a if b is None else a * b
        return x.sum(axes, keepdims=True) if axes else x

    @classmethod
    def sums_by_index(cls, rows: Any, indices: Any, count: int) -> Any:
        return sums_by_index(cls, rows, indices, count)

    @staticmethod
    def exact_total(x: Any, axis: int) -> Any:
        return x.sum((axis,), keepdims=True)

    @classmethod
    def softmax(cls, x: Any, axis: int, zeros: bool = False) -> Any:
        return softmax(cls, x, axis, zeros)


def tree_sums(xp: Any, a: Any, b: Any, axes: tuple[int, ...]) -> Any:
    """The float64 sums of float32 numbers, or where b is not None of their products with b's, axis after axis."""
    x = xp.float64(a) if b is None else xp.float64(a) * xp.float64(b)
    for axis in axes:
        empty = not x.shape[axis]
        x = xp.zeros((*x.shape[:axis], 1, *x.shape[axis + 1 :]), x) if empty else tree_sum(xp, x, axis)
    return x


def sums_by_index(xp: Any, rows: Any, indices: Any, count: int) -> Any:
    """For each index from 0 to count - 1 the float64 sum of its float32 rows.

    The rows of an index, in their order, are summed in pairs of neighbours, level by level, as a tree of additions. An
    odd row goes on to the next level. Rows of all indices are added at once, after a stable sort.
    """
    rows = xp.float64(rows)
    if rows.shape[0] == 0:
        return xp.zeros((count, rows.shape[1]), rows)
    order = xp.argsort(indices)
    indices, rows = indices[order], rows[order]
    firsts = xp.searchsorted(indices, xp.arange(count, indices))
    place = xp.arange(len(indices), indices) - firsts[indices]  # among the rows of the same index
    distance = 1
    while distance < len(indices):
        later, same = rows[distance:], indices[distance:] == indices[:-distance]
        meets = same & (place[:-distance] % (2 * distance) == 0)
        sums = xp.where(meets[:, None], rows[:-distance] + later, rows[:-distance])
        rows = xp.materialize(xp.concatenate([sums, rows[-distance:]], 0))  # which each level reads three times
        distance *= 2
    found = xp.where(firsts < len(indices), firsts, 0)
    present = indices[found] == xp.arange(count, indices)
    return xp.where(present[:, None], rows[found], xp.zeros((), rows))


def exact_unit(length: int) -> int:
    """The binary logarithm of 1 / unit, in which `exact_total` counts so many numbers."""
    return _UNIT if length <= 1 << _MOST_TERMS else _UNIT + _MOST_TERMS - (length - 1).bit_length()


def exact_total(xp: Any, x: Any, axis: int) -> Any:
    """The sum of float32 numbers from 0 to 1 along an axis, which stays, rounded to float32; NaN if one is.

    Numbers are cut off to multiples of a unit. So the sum is one of integers of 64 bits, which has no order: zeros
    between them change nothing, as long as there are at most 2^20 numbers. What is cut off is below 2^-22 in all.
    """
    unit = 2.0 ** exact_unit(x.shape[axis])
    known = x == x
    # Of NaN the conversion has no law. Of int64 it is a direct one: by way of float64 it would round twice.
    units = xp.astype(xp.to_float64(xp.where(known, x, 0.0)) * unit, "int64")
    found = xp.mul(xp.astype(xp.total(units, (axis,)), "float32"), 1 / unit)
    return xp.where(known.all((axis,), keepdims=True), found, nan)


def softmax(xp: Any, x: Any, axis: int, zeros: bool) -> Any:
    """exp(x - max) / sum along an axis, by `exact_total`. Rows of -inf are NaN, or with `zeros` 0."""
    top = xp.greatest(x, (axis,))  # XLA's may leave NaN out
    # Less the greatest, no exponential overflows, and the sum is at least 1.
    e = xp.float32(xp.exp(xp.float64(xp.sub(x, xp.where(top == -inf, 0.0, top)))))
    sum_ = xp.exact_total(e, axis)
    return xp.div(e, xp.where(top == -inf, 1.0, sum_) if zeros else sum_)


def total(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """The sums of float32 numbers along axes, which stay: in float64, axis after axis, rounded once to float32.

    Axes are numbers from 0 on, in ascending order.
    """
    return xp.float32(xp.sums(x, None, axes))


def dot(xp: Any, a: Any, b: Any, axes: tuple[int, ...]) -> Any:
    """The sums of the exact products of float32 numbers of one shape, as `total`."""
    return xp.float32(xp.sums(a, b, axes))


def unbroadcast(xp: Any, gradient: Any, shape: tuple[int, ...]) -> Any:
    """The gradient of an array of a shape that was broadcast: the sum of the gradients of its copies."""
    extra = gradient.ndim - len(shape)
    axes = [extra + i for i, size in enumerate(shape) if size == 1 and gradient.shape[extra + i] != 1]
    if not extra and not axes:
        return gradient
    return total(xp, gradient, (*range(extra), *axes)).reshape(tuple(shape))


def squeezed(x: Any, axes: tuple[int, ...]) -> Any:
    """x without axes of length 1."""
    return x.reshape(tuple([size for axis, size in enumerate(x.shape) if axis not in axes]))


def expanded(x: Any, axes: tuple[int, ...], ndim: int) -> Any:
    """The inverse of `squeezed`, for an array that had `ndim` dimensions."""
    sizes = iter(tuple(x.shape))
    return x.reshape(tuple([1 if axis in axes else next(sizes) for axis in range(ndim)]))


def power(xp: Any, a: Any, b: Any) -> Any:
    """a^b of float32 numbers that broadcast, by the rules of IEEE 754 for zeros, infinities and NaN."""
    magnitude, wide = abs(a), xp.float64(b)
    exponent = xp.product(wide, _log2(xp, magnitude))
    result = _exp2(xp, exponent)
    result = xp.where((magnitude == 1) | (wide == 0), 1.0, result)
    half = wide * 0.5
    integral = wide == xp.floor(wide)
    odd = integral & (half != xp.floor(half))
    result = xp.where(odd & (xp.bits(a) < 0), -result, result)
    result = xp.where((a < 0) & (magnitude < inf) & ~integral, nan, result)
    return xp.float32(xp.where(a == 1, 1.0, result))


def _log2(xp: Any, a: Any) -> Any:
    """The binary logarithm of settled float32 numbers that are not negative, in float64."""
    bits = xp.bits(a)
    # a = 2^e m with m from sqrt(1/2) to sqrt(2), where the series in (m - 1) / (m + 1) converges fast.
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
    """2^z of float64 numbers: 2^n, n the nearest integer, times a series of the rest."""
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
    for part in (n >> 1, n - (n >> 1)):  # as two factors: n is beyond the exponents of float32
        series = series * xp.to_float64(xp.floats((part + 127) << _MANTISSA))
    return series
