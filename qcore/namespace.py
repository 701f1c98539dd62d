"""The array namespace: every name that laws use of NumPy, PyTorch or JAX.

Laws are Python functions that take such a namespace as `xp`. `qtorch/_namespace.py` and `qjax/_namespace.py` have the
same names for tensors and for JAX arrays; a new framework needs a third such file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np


class Array(Protocol):
    """An array of any package, also a traced one: the attributes and operators that laws use."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def ndim(self) -> int: ...

    @property
    def dtype(self) -> Any: ...

    def __abs__(self) -> Any: ...

    def __add__(self, other: Any, /) -> Any: ...

    def __sub__(self, other: Any, /) -> Any: ...

    def __mul__(self, other: Any, /) -> Any: ...

    def __radd__(self, other: Any, /) -> Any: ...

    def __rsub__(self, other: Any, /) -> Any: ...

    def __rmul__(self, other: Any, /) -> Any: ...

    def __lt__(self, other: Any, /) -> Any: ...

    def __le__(self, other: Any, /) -> Any: ...

    def __gt__(self, other: Any, /) -> Any: ...

    def __ge__(self, other: Any, /) -> Any: ...


A = TypeVar("A", bound=Array)  # an array of the package whose namespace a law gets
T = TypeVar("T")


# What NumPy has not as one function. `Names` holds each as Any: other packages put functions of their own arrays there.


def _float32_bits(x: np.ndarray) -> np.ndarray:
    return x.view("int32")


def _float32_from(bits: np.ndarray) -> np.ndarray:
    return bits.view("float32")


def _same(x: A) -> A:
    return x


def _unsigned(x: A) -> A:
    return x + 0.0


def _named(function: str, /, **values: object) -> None:
    return None


def _extremes(x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    return np.amin(x, axes), np.amax(x, axes)


def _greatest(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.amax(x, axes, keepdims=True)


def _arithmetic() -> AbstractContextManager[object]:
    return np.errstate(all="ignore")


def _dtype(x: Array) -> str:
    return x.dtype.name


def _astype(x: Array, dtype: str) -> np.ndarray:
    return np.asarray(x).astype(dtype, copy=False)


def _full(shape: tuple[int, ...], value: float, dtype: str) -> np.ndarray:
    return np.full(shape, value, dtype)


def _arange(size: int, like: Array) -> np.ndarray:
    return np.arange(size, dtype=np.int32)


def _zeros(shape: tuple[int, ...], like: Array) -> np.ndarray:
    return np.zeros(shape, like.dtype)


def _constant(numbers: Sequence[float], dtype: str, like: Array) -> np.ndarray:
    return np.array(numbers, dtype)


def _total(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return np.asarray(np.sum(x, axes, np.int64, keepdims=True))


def _program(law: Callable[..., T], arrays: Sequence[object], *settings: object) -> T:
    return law(*arrays, *settings)


def _argsort(x: np.ndarray) -> np.ndarray:
    return np.argsort(x, kind="stable")


class Names:
    """The functions that laws call, for NumPy; a framework defines the same names for its own arrays.

    Besides these names laws use operators, comparisons, `abs`, slices, `shape`, `ndim`, `reshape` and `view`. `where`,
    `clip`, `minimum`, `maximum`, `trunc`, `floor`, `stack`, `concatenate`, `broadcast_to` and `copy` are NumPy's; NaN
    passes. Dtypes are strings: "float32". Every operation on floats is rounded once, to nearest even, in the order
    of the law.

    **The law of rounding** (`qcore.law`) works on integers and needs these names only:

    - `where`, `clip`, and `amax(lanes, axes, keepdims)`, the maxima of integers.
    - `float_bits(lanes)`: converts integers to floats of the same width, to nearest, and returns the floats' bits. The
      conversion is exact where an integer has no more significant bits than the float. No result is subnormal.
    - `integers(bits)`: converts floats with these bits to integers, toward zero; the floats are integers or 1/2.
    - `product_bits(a, b)`: the bits of the product of two integers of at most 24 (of 64-bit lanes 53) significant bits
      that are multiplied as floats. No result is subnormal or beyond the range.
    - `quotient_bits(a, b)`: the bits of the quotient of two integers that are divided as floats. It may be
      `quotient_error` steps off: 0 if division follows IEEE 754, 3 if a compiler may multiply by a reciprocal.
    - `short`: True if a program's time to compile matters more than single operations, as in XLA, which compiles a law
      again for each shape; blocks then have few numbers of their own.
    - `take(row, places)`: the entries of a row, a tuple of ints or an array of one dimension, at places that it has.
    - `float32_bits(x)`: the bits of float32 numbers as int32, without a conversion; `float32_from(bits)`: the inverse.
    - `named("function", name=value, ...)`: nothing. Where C is written from the law (`qcore.trace`), its variables have
      these names.

    **Arithmetic on floats**:

    - `rint(x)`: to nearest, ties to even.
    - `divide(a, b)`: a true division, also if b is one number for all of a; never a product with 1 / b.
    - `rounded(product)`: the product itself, which a compiler must not fuse with a later addition.
    - `unsigned(x)`: x with +0 for every -0.
    - `exp`, `log`, `log1p`, `tanh`, `sin` and `cos` of float64 may err by a few units in the last place; `sqrt` may
      not.
    - `extremes(x, axes)`: the least and the greatest of at least one element along axes; NaN if there is a NaN. The
      order of -0.0 and 0.0 is not defined.
    - `greatest(x, axes)`: the greatest elements along axes, which keep length 1.
    - `arithmetic()`: the context in which laws run: NumPy does not warn of overflow and NaN, JAX has 64-bit types.
    - `materialize(x)`: x itself; compilers compute it once and keep it in memory.

    **Arrays**:

    - `dtype(x)`, `astype(x, dtype)`, `full(shape, value, dtype)`, `full_like(x, value, dtype)`.
    - Beside an array, on its device: `arange(size, like)`, int32, `zeros(shape, like)` of its dtype, and
      `constant(numbers, dtype, like)` of a list.
    - `asarray(x)` of a NumPy array, and `concrete(x)`, a NumPy array, or None where the values are not known yet (in
      traced programs) or not worth waiting for.
    - `pad(x, widths, value=0)` with (before, after) for each dimension; `repeat(x, count, axis)`, each element count
      times.
    - `einsum(equation, a, b)` of float64 arrays of integers, whose sums are exact; `total(x, axes)`: sums in int64
      along axes, which keep length 1.

    **Sorting and counting**:

    - `argsort(x)`: the places of numbers in ascending order; equal numbers keep their order.
    - `searchsorted(edges, x, right=False)`: for each x the number of edges below it, with right=True also of those
      equal to it, int32.
    - `cumsum(x)` of one dimension.
    - `bincount(index, weight, size)`: float32 sums of each index's weights, added to 0 in the order of the elements
      (and not, as XLA would, to what the sums are added to afterwards).

    **Programs**:

    - `program(law, arrays, *settings)`: `law(*arrays, *settings)`, which JAX compiles as one program and not operation
      by operation. Laws are functions of modules, arrays may be in tuples, and settings have a hash.

    **Control flow**, for traced programs:

    - `cond(flag, true, false, *operands)`: the result of one of two functions, for a 0-d flag.
    - `while_loop(condition, body, state)`: the first state for which `condition(state)` is false.

    Example:
        >>> Names.divide(np.float32([1, 2]), 4.0), Names.dtype(np.float32(1))
        (array([0.25, 0.5 ], dtype=float32), 'float32')
    """

    where: Callable[..., Any] = staticmethod(np.where)
    clip: Callable[..., Any] = staticmethod(np.clip)
    amax: Callable[..., Any] = staticmethod(np.amax)
    quotient_error = 0
    short = False

    @staticmethod
    def float_bits(lanes: np.ndarray) -> np.ndarray:
        return lanes.astype(f"f{lanes.dtype.itemsize}").view(lanes.dtype)

    @staticmethod
    def integers(bits: np.ndarray) -> np.ndarray:
        return bits.view(f"f{bits.dtype.itemsize}").astype(bits.dtype)

    @classmethod
    def product_bits(cls, a: np.ndarray, b: np.ndarray | int) -> np.ndarray:
        floats = f"f{a.dtype.itemsize}"
        return (a.astype(floats) * cls.asarray(b, a.dtype).astype(floats)).view(a.dtype)

    @classmethod
    def quotient_bits(cls, a: np.ndarray, b: np.ndarray | int) -> np.ndarray:
        floats = f"f{a.dtype.itemsize}"
        return (a.astype(floats) / cls.asarray(b, a.dtype).astype(floats)).view(a.dtype)

    @staticmethod
    def take(row: np.ndarray | tuple[int, ...], places: np.ndarray) -> np.ndarray:
        return np.asarray(row, places.dtype)[places]

    float32_bits: Any = staticmethod(_float32_bits)
    float32_from: Any = staticmethod(_float32_from)
    named: Any = staticmethod(_named)

    trunc: Any = staticmethod(np.trunc)
    floor: Any = staticmethod(np.floor)
    rint: Any = staticmethod(np.rint)
    divide: Any = staticmethod(np.divide)
    rounded: Any = staticmethod(_same)
    unsigned: Any = staticmethod(_unsigned)
    exp: Any = staticmethod(np.exp)
    log: Any = staticmethod(np.log)
    log1p: Any = staticmethod(np.log1p)
    tanh: Any = staticmethod(np.tanh)
    sin: Any = staticmethod(np.sin)
    cos: Any = staticmethod(np.cos)
    sqrt: Any = staticmethod(np.sqrt)
    minimum: Any = staticmethod(np.minimum)
    maximum: Any = staticmethod(np.maximum)
    extremes: Any = staticmethod(_extremes)
    greatest: Any = staticmethod(_greatest)
    arithmetic: Any = staticmethod(_arithmetic)
    materialize: Any = staticmethod(_same)

    dtype: Any = staticmethod(_dtype)
    astype: Any = staticmethod(_astype)
    full: Any = staticmethod(_full)
    full_like: Any = staticmethod(np.full_like)
    arange: Any = staticmethod(_arange)
    zeros: Any = staticmethod(_zeros)
    constant: Any = staticmethod(_constant)
    asarray: Any = staticmethod(np.asarray)
    concrete: Any = staticmethod(np.asarray)
    copy: Any = staticmethod(np.copy)
    stack: Any = staticmethod(np.stack)
    concatenate: Any = staticmethod(np.concatenate)
    broadcast_to: Any = staticmethod(np.broadcast_to)
    repeat: Any = staticmethod(np.repeat)
    einsum: Any = staticmethod(np.einsum)
    total: Any = staticmethod(_total)

    @staticmethod
    def pad(x: np.ndarray, widths: Sequence[tuple[int, int]], value: float = 0) -> np.ndarray:
        return np.pad(x, widths, constant_values=value)

    program: Any = staticmethod(_program)
    cumsum: Any = staticmethod(np.cumsum)
    argsort: Any = staticmethod(_argsort)

    @staticmethod
    def searchsorted(edges: np.ndarray, x: np.ndarray, right: bool = False) -> np.ndarray:
        return np.searchsorted(edges, x, "right" if right else "left").astype(np.int32)

    @staticmethod
    def bincount(index: np.ndarray, weight: np.ndarray, size: int) -> np.ndarray:
        sums = np.zeros(size, np.float32)
        np.add.at(sums, index, weight)
        return sums

    @staticmethod
    def cond(flag: np.ndarray, true: Callable[..., T], false: Callable[..., T], *operands: object) -> T:
        return true(*operands) if flag else false(*operands)

    @staticmethod
    def while_loop(condition: Callable[[T], Array], body: Callable[[T], T], state: T) -> T:
        while condition(state):
            state = body(state)
        return state


class Ints:
    """The names that the law uses where a lane is one Python int: a format computes its constants with them."""

    @staticmethod
    def clip(value: int, low: int | None, high: int | None) -> int:
        value = value if low is None else max(value, low)
        return value if high is None else min(value, high)
