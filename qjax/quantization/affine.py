"""Parameters of affine quantization as pytrees, torch's names for integers and schemes, and fake quantization."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax

from qcore.affine import FORMS, SCHEMES, AffineInteger, QParams, check_qparams, law
from qcore.affine import choose_qparams_dynamic as rule
from qcore.affine.parameters import check_range
from qcore.arguments import check_choice, quoted
from qjax._namespace import Names
from qjax._rounding.inputs import ArrayLike, as_array
from qjax._rounding.scopes import operation


def fake_quantize(x: ArrayLike, qparams: QParams, dtype: Form = "quint8") -> jax.Array:
    """Quantizes and dequantizes: (clip(rint(x * (1 / scale)) + zero_point, qmin, qmax) - zero_point) * scale.

    The result has the bits of `qcore.affine.fake_quantize`, also inside jit and next to other operations, on any
    device and under any sharding. `jax.grad`, `jax.jvp`, `jax.vmap` and what is made of them work: its derivative is 1
    where the integer was inside the range before it was clipped, and 0 elsewhere, for NaN, and with respect to the
    parameters. Values of traced parameters are not checked.

    Args:
        x: JAX or NumPy array of any shape; float32, float16, bfloat16 or, where x64 is enabled, float64.
        qparams: the parameters, arrays that may be traced.
        dtype: the integers: "quint8", "qint8", "qint32" or an `AffineInteger`.

    Returns:
        An array of x's shape, dtype and sharding.

    Raises:
        ValueError: if the parameters do not fit x or the integers, or a scale is not from 2^-125 to 2^125.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.float32([-1, 0.26, 99, 200])
        >>> fake_quantize(x, QParams.of(0.5, 0))
        Array([  0. ,   0.5,  99. , 127.5], dtype=float32)
        >>> jax.grad(lambda x: fake_quantize(x, QParams.of(0.5, 0)).sum())(x)
        Array([0., 1., 1., 0.], dtype=float32)
    """
    x = as_array(x)
    form = form_of(dtype)
    check_qparams(qparams, form, x.shape, Names)
    return _fake_quantize(form, x, qparams)


def fake_quantize_per_tensor_affine(
    x: ArrayLike, scale: float | ArrayLike, zero_point: int | ArrayLike, quant_min: int, quant_max: int
) -> jax.Array:
    """Quantizes and dequantizes with one scale; see `fake_quantize`.

    Args:
        x: as for `fake_quantize`.
        scale: a number, or a float32 array of shape ().
        zero_point: an integer, or an int32 array of shape ().
        quant_min, quant_max: the range of the integers, which has 0 in it.

    Returns:
        An array of x's shape, dtype and sharding.

    Raises:
        ValueError: if the parameters do not fit x or the integers, a scale is not from 2^-125 to 2^125, or the range
            is without 0.

    Example:
        >>> import jax.numpy as jnp
        >>> fake_quantize_per_tensor_affine(jnp.float32([-1, 0.26, 99]), 0.5, 10, 0, 255)
        Array([-1. ,  0.5, 99. ], dtype=float32)
    """
    return fake_quantize(x, qparams_of(scale, zero_point), AffineInteger(quant_min, quant_max))


def fake_quantize_per_channel_affine(
    x: ArrayLike,
    scale: Sequence[float] | ArrayLike,
    zero_point: Sequence[int] | ArrayLike,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> jax.Array:
    """Quantizes and dequantizes with a scale for each index along one dimension; see `fake_quantize`.

    Args:
        x, quant_min, quant_max: as for `fake_quantize_per_tensor_affine`.
        scale: numbers, or a float32 array of shape (channels,).
        zero_point: integers, or an int32 array of shape (channels,).
        axis: the dimension of x along which the channels lie.

    Returns:
        An array of x's shape, dtype and sharding.

    Raises:
        ValueError: if the parameters do not fit x or the integers, a scale is not from 2^-125 to 2^125, or the range
            is without 0.

    Example:
        >>> import jax.numpy as jnp
        >>> x = jnp.float32([[0.3, 0.3], [0.8, 0.8]])
        >>> fake_quantize_per_channel_affine(x, [0.5, 0.25], [0, 0], 1, -8, 7)
        Array([[0.5 , 0.25],
               [1.  , 0.75]], dtype=float32)
    """
    return fake_quantize(x, qparams_of(scale, zero_point, axis), AffineInteger(quant_min, quant_max))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _law(form: AffineInteger, x: jax.Array, qparams: QParams) -> jax.Array:
    return _by_law(form, x, qparams)[0]


@_law.defjvp
def _derivative(form: AffineInteger, primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    _, mask = _by_law(form, *primals)
    return _law(form, *primals), law.straight_through(Names, tangents[0], mask)  # y again has this derivative


def _by_law(form: AffineInteger, x: jax.Array, qparams: QParams) -> tuple[jax.Array, jax.Array]:
    parameters = qparams.scale, qparams.zero_point
    with Names.arithmetic(), operation("fake_quantize", x, *parameters, axis=qparams.axis, form=form.text):
        return law.fake_quantize(Names, x, *parameters, qparams.axis, form)


_fake_quantize = jax.jit(_law, static_argnums=0)


jax.tree_util.register_dataclass(QParams, ["scale", "zero_point"], ["axis"])


Form = AffineInteger | str


def form_of(dtype: Any) -> AffineInteger:
    """The integers of a dtype's name, such as "quint8"; an AffineInteger is returned unchanged."""
    if isinstance(dtype, AffineInteger):
        return dtype
    if not isinstance(dtype, str) or dtype not in FORMS:
        error = ValueError if isinstance(dtype, str) else TypeError
        raise error(f"dtype={quoted(dtype)}; allowed are {', '.join(FORMS)} and an AffineInteger")
    return FORMS[dtype]


def scheme_of(qscheme: Any, granularity: str) -> str:
    """The scheme that a token names: "affine", or, for a granularity "tensor" or "channel", "per_tensor_affine"."""
    prefix = f"per_{granularity}_"
    check_choice("qscheme", qscheme, [*(prefix + scheme for scheme in SCHEMES), *SCHEMES])
    return qscheme.removeprefix(prefix)


def qparams_of(scale: Any, zero_point: Any, axis: int | None = None) -> QParams:
    """Parameters from arrays, which may be traced, and from numbers, which stay concrete in NumPy's arrays."""
    if not isinstance(scale, jax.Array):
        scale = QParams.of(scale, 0).scale
    if not isinstance(zero_point, jax.Array):
        zero_point = QParams.of(0, zero_point).zero_point
    return QParams(scale, zero_point, axis)


def choose_qparams_dynamic(low: jax.Array, high: jax.Array, dtype: Form = "quint8") -> QParams:
    """The parameters that fbgemm chooses for activations at run time; see `qcore.affine.choose_qparams_dynamic`.

    It computes in float64, also where x64 is not enabled.

    Args:
        low, high: float32 arrays of shape (), low <= high.
        dtype: the integers: "quint8", "qint8" or an `AffineInteger`.

    Returns:
        A `QParams` without an axis: a float32 scale and an int32 zero point, of shape ().

    Raises:
        ValueError: if dtype is int32 or no name of integers, or low > high, both being concrete.

    Example:
        >>> import jax.numpy as jnp
        >>> choose_qparams_dynamic(jnp.float32(0), jnp.float32(1e-4))
        QParams(scale=Array(6.1e-05, dtype=float32), zero_point=Array(0, dtype=int32), axis=None)
    """
    check_range(low, high, Names)
    return _choose_dynamic(form_of(dtype), low, high)


@partial(jax.jit, static_argnums=0)
def _choose_dynamic(form: AffineInteger, low: jax.Array, high: jax.Array) -> QParams:
    return rule(low, high, form, xp=Names)
