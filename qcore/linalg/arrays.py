"""Products of NumPy arrays: the reference that the other packages must equal bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from qcore import arrays
from qcore.arguments import check_int, check_seed, missing_key
from qcore.linalg.accumulator import AccumulatorLike
from qcore.linalg.convolution import Geometry
from qcore.linalg.geometry import FORWARD, MatrixGeometry
from qcore.linalg.law import batch_shape, multiply
from qcore.linalg.namespace import Float64
from qcore.linalg.operands import Operand
from qcore.linalg.product import ROLES, ROWS, Operands, Product, Products, check_addend, check_products
from qcore.linalg.rounded import apart, matrices
from qcore.linalg.scaling import newest_magnitude, next_row, prepared, rescaled
from qcore.random.threefry import fold_in


def matmul(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None = None,
    *,
    operands: Operands = None,
    accumulator: AccumulatorLike = None,
    key: arrays.Key = None,
) -> np.ndarray:
    """The product of two matrices, or of batches of them, with a defined accumulator; with c, the sum a b + c.

    Args:
        a: float32 array of shape (..., M, K).
        b: float32 array of shape (K, N), or (..., K, N) with a's leading dimensions.
        c: float32 array of shape (..., M, N), at which the accumulators start; None is +0.
        operands: the roundings of a and b: a pair of formats, their texts, `Operand`s or None, which does not round;
            None is (None, None).
        accumulator: an `Accumulator`; None is the exact sum, rounded once to float32.
        key: for stochastic rounding: an int from 0 to 2^64 - 1, or two 32-bit words.

    Returns:
        A float32 array of shape (..., M, N); all NaN are 0x7fc00000. An accumulator that float32 cannot hold is rounded
        to nearest.

    Raises:
        ValueError: if shapes do not fit, an argument is out of range, or stochastic rounding has no key.

    Example:
        >>> from qcore import Accumulator
        >>> a, b = np.float32([[1.0, 2.0**-12]]), np.float32([[1.0], [1.0]])
        >>> matmul(a, b), matmul(a, b, accumulator=Accumulator("float(6,9)", chunk=1))
        (array([[1.0002441]], dtype=float32), array([[1.]], dtype=float32))
    """
    geometry = MatrixGeometry()
    _check_arrays(geometry, a, b)
    products = check_products(operands, accumulator, None, None, ("grad_a", "grad_b"))
    shape = geometry.result(a.shape, b.shape)
    if c is not None:
        if not isinstance(c, np.ndarray):
            raise TypeError(f"c is a {type(c).__name__}; allowed are a NumPy array of float32 and None")
        check_addend((c.shape, str(c.dtype)), shape, products.scale_of_tensor)
    return multiply_arrays(geometry, FORWARD, products.forward, a, b, b.shape, key, addend=c).reshape(shape)


def multiply_arrays(
    geometry: Geometry,
    which: str,
    product: Product,
    first: np.ndarray,
    second: np.ndarray,
    other: Any,
    key: arrays.Key,
    state: np.ndarray | None = None,
    addend: np.ndarray | None = None,
) -> np.ndarray:
    """One of a geometry's products of float32 arrays, with the result's elements in order.

    Arguments are as for `MatrixGeometry.matrices`.
    The key is that of the forward product, for every value of `which`; `state` is the state of delayed scales. The
    accumulators start at `addend`, which has the result's elements.
    """
    words = None if key is None else check_seed(key)
    if product.stochastic and words is None:
        raise missing_key()
    words = words if which == FORWARD else _fold(words, ROLES[which])

    def round_(x: np.ndarray, operand: Operand, given: Any, role: int, coded: bool = False) -> tuple[np.ndarray, Any]:
        x, inverse = prepared(Float64, x, operand, given)
        if coded:
            key = _fold(words, role) if operand.stochastic else None
            number: Any = operand.number  # blocks, as only those are coded
            return apart(number, arrays.encode(x, number, operand.rounding, key=key), arrays.decode)
        if operand.number is not None:
            x = arrays.quantize(x, operand.number, operand.rounding, key=_fold(words, role))
        return x, inverse

    rows = zip(product.operands, ROWS[which], strict=True)
    given = [state[row, 0] if state is not None and operand.delayed else None for operand, row in rows]
    sums = product.sums(geometry, which, first.shape, second.shape, other, addend is not None)
    with np.errstate(all="ignore"):
        left, right, scales, factor = matrices(Float64, geometry, which, product, (first, second), other, round_, given)
        if addend is not None:
            addend = addend.reshape(*batch_shape(left, right), left.shape[-2], right.shape[-1])
        found = multiply(Float64(words), left, right, sums, scales, addend)
        found = (found if factor is None else rescaled(Float64, found, factor)).astype(np.float32)
    found.view(np.uint32)[np.isnan(found)] = product.accumulator.nan
    return found


def first_scaling(history: int) -> np.ndarray:
    """The state of delayed scales before the first call: scales of 1, and no magnitudes.

    Args:
        history: the number of past tensors in the scales' history.

    Returns:
        A float32 array of shape (3, 1 + history), with a row for the first operand, the second operand and the gradient
        of the result: the current scale, then the largest magnitudes of past calls, the newest first.

    Raises:
        ValueError: if history is less than 1.

    Example:
        >>> first_scaling(2)[0]
        array([1., 0., 0.], dtype=float32)
    """
    state = np.zeros((3, 1 + check_int("history", history, 1)), np.float32)
    state[:, 0] = 1.0
    return state


def next_scaling(products: Products, state: np.ndarray, tensors: tuple[np.ndarray, ...]) -> np.ndarray:
    """The state of delayed scales after a call with its gradients, of its two operands and the result's gradient."""
    rows = zip(state, tensors, products.rows, strict=True)
    with np.errstate(all="ignore"):
        return np.stack(
            [next_row(Float64, row, newest_magnitude(Float64, x), how) if how.delayed else row for row, x, how in rows]
        )


def _fold(words: tuple[int, int] | None, role: int) -> tuple[int, int] | None:
    return None if words is None else fold_in(words, role)


def _check_arrays(geometry: Any, a: Any, b: Any) -> None:
    for name, x in zip(geometry.names, (a, b), strict=True):
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{name} is a {type(x).__name__}; allowed is a NumPy array of float32")
        if x.dtype != np.float32:
            raise TypeError(f"{name} has dtype {x.dtype}; allowed is float32")
    geometry.check(a.shape, b.shape)
