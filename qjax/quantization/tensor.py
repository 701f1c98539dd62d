"""Quantized arrays: integers with their scales and zero points, as a pytree."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from qcore.affine import AffineInteger, QParams, check_qparams, law
from qcore.affine.quantized import QuantizedArray, moving
from qcore.arguments import check_type, quoted
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike, Result, as_array
from qjax._rounding.scopes import operation
from qjax.quantization.affine import Form, form_of, qparams_of
from qjax.quantization.moves import METHODS, Places

Axes = int | tuple[int, ...] | None


def _place() -> str:
    """The layer of flax whose code runs, as errors begin with it; none runs where no one imported flax."""
    if "flax.nnx" not in sys.modules:
        return ""
    from qjax._models import running_layer

    return running_layer()


class _NoFunctionError(TypeError, AttributeError):
    """What a method raises that jax.Array has and QTensor has not: the error of JAX's functions."""


def _without_integers() -> str:
    """The message of the error when a function of JAX, or a layer in floats, gets integers."""
    return (
        f"{_place()}a QTensor is where numbers are needed: insert a DeQuantStub before it, or call dequantize(); "
        "allowed are its methods and qjax.quantization.functional; a Dropout must be in evaluation (model.eval())"
    )


@partial(jax.tree_util.register_dataclass, data_fields=["values", "qparams"], meta_fields=["form"])
@dataclass(frozen=True, eq=False)
class QTensor(QuantizedArray):
    """Integers q that stand for the numbers (q - zero_point) * scale, a pytree with the arrays as leaves.

    It passes through jit, scan, vmap, `jax.device_put` and `jax.tree.map` like any tree. It has many methods
    of `jax.Array` and of torch's quantized tensors. Results that are numbers are QTensors with the same parameters.
    Methods that may mix channels need parameters for the whole array.
    `int_repr`, `q_scale` and the others are also functions, `int_repr(q)`.

    Attributes:
        values: the integers, an array of the dtype `form.storage`.
        qparams: the parameters.
        form: the range of the integers.

    Example:
        >>> q = quantize_per_tensor(jnp.float32([[-0.5, 2, 1]]), 0.5, 2, "quint8")
        >>> q.sort().relu()[0].dequantize()
        Array([0., 1., 2.], dtype=float32)
        >>> q > 0
        Array([[False,  True,  True]], dtype=bool)
    """

    values: jax.Array
    qparams: QParams
    form: AffineInteger
    names = Names

    ravel, swapaxes, take, diagonal = map(moving, ("ravel", "swapaxes", "take", "diagonal"))
    T, mT = property(moving("T", lambda values: values.T)), property(moving("mT", lambda values: values.mT))  # noqa: N815

    @property
    def __jax_array__(self) -> NoReturn:
        """Raises: a layer in floats, or a function of JAX, asked for an array of floats.

        Raises:
            TypeError: always.
        """
        raise TypeError(_without_integers())

    def __getattr__(self, name: str) -> Any:
        """Raises: what jax.Array has and is not here has no integers."""
        if hasattr(jax.Array, name) and not name.startswith("__"):
            raise _NoFunctionError(_without_integers())
        raise AttributeError(f"a QTensor has no attribute {quoted(name)}")

    def __add__(self, other: Any) -> NoReturn:
        """Raises: the result would have a scale of its own.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"{_place()}arithmetic of a QTensor; allowed are the methods of FloatFunctional in the place of x + y, "
            "x * y and concatenate, qjax.quantization.functional, and floats: insert a DeQuantStub before it"
        )

    __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __add__

    def __neg__(self) -> NoReturn:
        """Raises, as `__add__` does.

        Raises:
            TypeError: always.
        """
        self.__add__(self)

    def dequantize(self) -> jax.Array:
        """The numbers, as float32.

        Returns:
            A float32 array of the QTensor's shape.

        Raises:
            TypeError, ValueError: if the arrays do not fit each other or the form.

        Example:
            >>> quantize_per_tensor(jnp.float32([-1, 0.26, 99]), 0.5, 10, "quint8").dequantize()
            Array([-1. ,  0.5, 99. ], dtype=float32)
        """
        self.check()
        return _dequantize(self)

    def int_repr(self) -> jax.Array:
        """The integers.

        Returns:
            An array of the QTensor's shape and the dtype `form.storage`.

        Raises:
            TypeError: if the function is given something else than a QTensor.

        Example:
            >>> quantize_per_tensor(jnp.float32([-1, 0.26, 99]), 0.5, 10, "quint8").int_repr()
            Array([  8,  11, 208], dtype=uint8)
        """
        return self.values

    @property
    def at(self) -> Places:
        """`q.at[index].set(numbers)`: the same with other numbers at some places, quantized with its parameters."""
        return Places(self)

    def _integers_of(self, source: QTensor | ArrayLike | float) -> jax.Array:
        """Numbers, or a QTensor's, as integers with the parameters that are here."""
        if isinstance(source, QTensor):
            if source.qparams is self.qparams and source.form == self.form:
                return source.values
            source = source.dequantize()
        return _quantize(self.form, jnp.asarray(source, None if hasattr(source, "dtype") else "float32"), self.qparams)

    def qscheme(self) -> str:
        """ "per_tensor_affine" or "per_channel_affine"."""
        return "per_tensor_affine" if self.qparams.axis is None else "per_channel_affine"

    def equal(self, other: object) -> jax.Array:
        """True if integers and parameters are the same, a bool of shape ()."""
        if not isinstance(other, QTensor) or (self.form, self.qparams.axis) != (other.form, other.qparams.axis):
            return jnp.bool_(False)
        pairs = zip(jax.tree.leaves(self), jax.tree.leaves(other), strict=True)
        return jnp.stack([jnp.array_equal(*pair) for pair in pairs]).all()

    def copy(self) -> QTensor:
        """A copy that shares nothing."""
        return jax.tree.map(jnp.copy, self)

    def min(self, axis: Axes = None, keepdims: bool = False) -> QTensor:
        """The least number, of all or along axes."""
        self._whole("min")
        return self._with(self.values.min(axis, keepdims=keepdims))

    def max(self, axis: Axes = None, keepdims: bool = False) -> QTensor:
        """The greatest number, of all or along axes."""
        self._whole("max")
        return self._with(self.values.max(axis, keepdims=keepdims))

    def mean(self, axis: Axes = None, keepdims: bool = False) -> QTensor:
        """The mean of the integers, rounded to nearest even, of all or along axes."""
        self._whole("mean")
        return self._with(_mean(self.values, axis, keepdims))

    def sort(self, axis: int = -1, descending: bool = False) -> QTensor:
        """The numbers along a dimension in order."""
        self._whole("sort")
        return self._with(jnp.sort(self.values, axis, descending=descending))

    def topk(self, k: int, axis: int = -1, largest: bool = True) -> tuple[QTensor, jax.Array]:
        """The k greatest or least numbers along a dimension, the first of equal ones first, and where they are."""
        self._whole("topk")
        ranks = jnp.moveaxis(self.values if largest else ~self.values, axis, -1)
        found, places = (jnp.moveaxis(part, -1, axis) for part in jax.lax.top_k(ranks, k))
        return self._with(found if largest else ~found), places


for _method in METHODS:
    setattr(QTensor, _method.__name__, _method)


def _function(method: Callable[[QTensor], Result]) -> Callable[[QTensor], Result]:
    """A method as a function, which others than QTensors are given to as well."""

    @wraps(method)
    def function(q: QTensor) -> Result:
        check_type("q", q, QTensor, "a QTensor")
        return method(q)

    return function


dequantize = _function(QTensor.dequantize)
int_repr = _function(QTensor.int_repr)
q_scale = _function(QTensor.q_scale)
q_zero_point = _function(QTensor.q_zero_point)
q_per_channel_scales = _function(QTensor.q_per_channel_scales)
q_per_channel_zero_points = _function(QTensor.q_per_channel_zero_points)
q_per_channel_axis = _function(QTensor.q_per_channel_axis)


def quantize_affine(x: ArrayLike, qparams: QParams, dtype: Form) -> QTensor:
    """The integers clip(rint(x * (1 / scale)) + zero_point, qmin, qmax); rint rounds ties to even.

    They have the bits of `qcore.affine.quantize_affine`. Values of traced parameters are not checked.

    Args:
        x: array of any shape; float32, float16, bfloat16 or, where x64 is enabled, float64.
        qparams: the parameters, say an observer's.
        dtype: the integers: "quint8", "qint8", "qint32" or an `AffineInteger`.

    Returns:
        A QTensor of x's shape and sharding.

    Raises:
        ValueError: if the parameters do not fit x or the integers, or a scale is not from 2^-125 to 2^125.

    Example:
        >>> quantize_affine(
        ...     jnp.float32([-1, 0.26, 99]), QParams(jnp.float32(0.5), jnp.int32(10)), "quint8"
        ... ).int_repr()
        Array([  8,  11, 208], dtype=uint8)
    """
    x = as_array(x)
    form = form_of(dtype)
    check_qparams(qparams, form, x.shape, Names)
    return QTensor(_quantize(form, x, qparams), jax.tree.map(jnp.asarray, qparams), form)


def quantize_per_tensor(x: ArrayLike, scale: float | ArrayLike, zero_point: int | ArrayLike, dtype: Form) -> QTensor:
    """Quantizes with one scale; see `quantize_affine`.

    Args:
        x, dtype: as for `quantize_affine`.
        scale: a number, or a float32 array of shape ().
        zero_point: an integer, or an int32 array of shape ().

    Returns:
        A QTensor of x's shape and sharding.

    Raises:
        ValueError: if the parameters do not fit x or the integers, a scale is not from 2^-125 to 2^125, or dtype names
            no integers.

    Example:
        >>> quantize_per_tensor(jnp.float32([-1, 0.26, 99]), 0.5, 10, "quint8").int_repr()
        Array([  8,  11, 208], dtype=uint8)
    """
    return quantize_affine(x, qparams_of(scale, zero_point), dtype)


def quantize_per_channel(
    x: ArrayLike, scales: Sequence[float] | ArrayLike, zero_points: Sequence[int] | ArrayLike, axis: int, dtype: Form
) -> QTensor:
    """Quantizes with a scale for each index along one dimension; see `quantize_affine`.

    Args:
        x, dtype: as for `quantize_affine`.
        scales: numbers, or a float32 array of shape (channels,).
        zero_points: integers, or an int32 array of shape (channels,).
        axis: the dimension of x along which the channels lie.

    Returns:
        A QTensor of x's shape and sharding.

    Raises:
        ValueError: if the parameters do not fit x or the integers, a scale is not from 2^-125 to 2^125, or dtype names
            no integers.

    Example:
        >>> x = jnp.float32([[0.3, 0.3], [0.8, 0.8]])
        >>> quantize_per_channel(x, [0.5, 0.25], [0, 0], 1, "qint8").int_repr()
        Array([[1, 1],
               [2, 3]], dtype=int8)
    """
    return quantize_affine(x, qparams_of(scales, zero_points, axis), dtype)


@partial(jax.jit, static_argnums=0)
def _quantize(form: AffineInteger, x: jax.Array, qparams: QParams) -> jax.Array:
    parameters = qparams.scale, qparams.zero_point
    with Names.arithmetic(), operation("quantize", x, *parameters, axis=qparams.axis, form=form.text):
        return law.quantize(Names, x, *parameters, qparams.axis, form).astype(form.storage)


@partial(jax.jit, static_argnums=(1, 2))
def _mean(values: jax.Array, axis: Axes, keepdims: bool) -> jax.Array:
    with Names.arithmetic():
        sums = values.sum(axis, "int64", keepdims=keepdims)
        return law.mean(Names, sums, values.size // max(1, sums.size)).astype(values.dtype)


@jax.jit
def _dequantize(q: QTensor) -> jax.Array:
    parameters, axis = (q.qparams.scale, q.qparams.zero_point), q.qparams.axis
    with operation("dequantize", q.values, *parameters, axis=axis, form=q.form.text):
        return law.dequantize(Names, q.values.astype("int32"), *parameters, axis, "float32")
