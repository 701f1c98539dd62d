"""Pools and norms of quantized arrays, with channels first as in torch, or last as in JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax.numpy as jnp

from qcore.affine import arithmetic
from qcore.arguments import check_flag
from qjax.quantization.tensor import QTensor


def channels_first(q: QTensor) -> QTensor:
    """The array with its last axis as the second one."""
    return QTensor(jnp.moveaxis(q.values, -1, 1), q.qparams, q.form)


def channels_last(q: QTensor) -> QTensor:
    """The array with its second axis as the last one."""
    return QTensor(jnp.moveaxis(q.values, 1, -1), q.qparams, q.form)


def in_layout(law: Callable[..., Any]) -> Callable[..., Any]:
    """A law of arrays with channels first that takes channels_last=True for arrays with channels last."""
    last, first = channels_last, channels_first

    @wraps(law)
    def function(q: QTensor, *arguments: Any, channels_last: bool = False, **settings: Any) -> QTensor:
        check_flag("channels_last", channels_last)
        if not channels_last or not isinstance(q, QTensor):
            return law(q, *arguments, **settings)
        return last(law(first(q), *arguments, **settings))

    return function


max_pool = in_layout(arithmetic.max_pool)
avg_pool = in_layout(arithmetic.avg_pool)
adaptive_avg_pool = in_layout(arithmetic.adaptive_avg_pool)
interpolate = in_layout(arithmetic.interpolate)
batch_norm = in_layout(arithmetic.batch_norm)
group_norm = in_layout(arithmetic.group_norm)
