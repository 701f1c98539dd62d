"""The names that the affine law uses of an array namespace; see `docs/affine.md` for the law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Names:
    """The closed vocabulary, for NumPy; a framework gives the same names for its own arrays.

    Besides these names the law uses operators, comparisons, slices, `shape`, `ndim` and `reshape`. Every operation
    on floats is rounded once, to nearest even, in the order that is written down. Dtypes are names: "float32".

    Of arithmetic (`rint`, `where`, `clip`, `minimum` and `maximum` are NumPy's; NaN passes):

    - `extremes(x, axes)`: the least and the greatest element along axes, if there are any; NaN where there is one.
    - `unsigned(x)`: x with zeros that have no sign: which of 0.0 and -0.0 is less depends on the framework.
    - `divide(a, b)`: a true division, also where b is one number for all of a; never a product with 1 / b.
    - `rounded(product)`: the product itself, which a compiler must not fuse with an addition that follows.
    - `exp(x)`, `tanh(x)` and `sqrt(x)` of float64; but for `sqrt` they may err by a few units in the last place.
    - `arithmetic()`: what law and rules run in: NumPy does not warn of overflow and NaN, JAX has 64-bit types.

    Of arrays:

    - `dtype(x)`, `astype(x, dtype)`, `full(shape, value, dtype)`, `full_like(x, value, dtype)`,
      `copy(x)`.
    - Beside an array, on its device: `arange(size, like)`, int32, and `constant(numbers, dtype, like)` of a list.
    - `einsum(equation, a, b)` of float64 arrays of integers, whose sums it holds.
    - `concatenate(arrays, axis)`, `pad(x, widths, value)` with (before, after) for each dimension; `total(x, axes)`:
      sums in int64 along axes, which stay.
    - `asarray(x)` of a NumPy array, and `concrete(x)`, a NumPy array, or None where the values are not known yet (in
      traced programs) or not worth waiting for.

    Of histograms only:

    - `floor(x)`; of one dimension `cumsum(x)`, `repeat(x, count)`, each element count times.
    - `bincount(index, weight, size)`: float32 sums of each index's weights, added to 0 in the order of the elements
      (and not, as XLA would, to what the sums are added to afterwards).
    - `searchsorted(edges, x, right)`: for each x how many edges are less, with right=True at most equal, as int32.
    - `cond(flag, true, false, *operands)`: the result of one of two functions, for a 0-d flag.
    - `while_loop(condition, body, state)`: the tuple that is left when `condition(state)` has become false.

    Example:
        >>> Names.divide(np.float32([1, 2]), 4.0), Names.dtype(np.float32(1))
        (array([0.25, 0.5 ], dtype=float32), 'float32')
    """

    where = staticmethod(np.where)
    clip = staticmethod(np.clip)
    rint = staticmethod(np.rint)
    floor = staticmethod(np.floor)
    divide = staticmethod(np.divide)
    exp = staticmethod(np.exp)
    tanh = staticmethod(np.tanh)
    sqrt = staticmethod(np.sqrt)
    minimum = staticmethod(np.minimum)
    maximum = staticmethod(np.maximum)
    full = staticmethod(np.full)
    full_like = staticmethod(np.full_like)
    repeat = staticmethod(np.repeat)
    cumsum = staticmethod(np.cumsum)
    concatenate = staticmethod(np.concatenate)
    einsum = staticmethod(np.einsum)
    copy = staticmethod(np.copy)
    asarray = staticmethod(np.asarray)
    concrete = staticmethod(np.asarray)

    arithmetic: Any = staticmethod(lambda: np.errstate(all="ignore"))
    extremes: Any = staticmethod(lambda x, axes: (np.amin(x, axes), np.amax(x, axes)))
    unsigned: Any = staticmethod(lambda x: x + 0.0)
    rounded: Any = staticmethod(lambda product: product)
    dtype: Any = staticmethod(lambda x: x.dtype.name)
    astype: Any = staticmethod(lambda x, dtype: np.asarray(x).astype(dtype, copy=False))
    total: Any = staticmethod(lambda x, axes: np.sum(x, axes, np.int64, keepdims=True))
    pad: Any = staticmethod(lambda x, widths, value: np.pad(x, widths, constant_values=value))
    constant: Any = staticmethod(lambda numbers, dtype, like: np.array(numbers, dtype))
    arange: Any = staticmethod(lambda size, like: np.arange(size, dtype=np.int32))

    @staticmethod
    def bincount(index: np.ndarray, weight: np.ndarray, size: int) -> np.ndarray:
        sums = np.zeros(size, np.float32)
        np.add.at(sums, index, weight)
        return sums

    @staticmethod
    def searchsorted(edges: np.ndarray, x: np.ndarray, right: bool) -> np.ndarray:
        return np.searchsorted(edges, x, "right" if right else "left").astype(np.int32)

    @staticmethod
    def cond(flag: Any, true: Callable[..., Any], false: Callable[..., Any], *operands: Any) -> Any:
        return true(*operands) if flag else false(*operands)

    @staticmethod
    def while_loop(condition: Callable[[Any], Any], body: Callable[[Any], Any], state: Any) -> Any:
        while condition(state):
            state = body(state)
        return state
