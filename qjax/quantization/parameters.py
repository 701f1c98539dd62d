"""Parameters of affine quantization as pytrees, and torch's names for integers and schemes."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax

from qcore.affine import FORMS, SCHEMES, AffineInteger, QParams
from qcore.affine import choose_qparams_dynamic as rule
from qcore.affine.parameters import check_range
from qcore.arguments import check_choice, quoted
from qjax._namespace import Names

jax.tree_util.register_dataclass(QParams, ["scale", "zero_point"], ["axis"])

Form = AffineInteger | str


def form_of(dtype: Any) -> AffineInteger:
    """The integers that a token names, torch's or a plain type's; or an AffineInteger itself."""
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
        TypeError: if an argument has the wrong type.
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
