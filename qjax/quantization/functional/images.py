"""Pools and norms of quantized arrays, with channels first as in torch, or last as in JAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, cleandoc, signature
from typing import Any

import jax.numpy as jnp

from qcore.affine import functional
from qcore.affine.functional import layer_norm, mean  # of axes that the caller names, in any layout
from qcore.arguments import check_flag
from qjax.quantization.tensor import QTensor

__all__ = [
    "adaptive_avg_pool",
    "avg_pool",
    "batch_norm",
    "group_norm",
    "interpolate",
    "layer_norm",
    "max_pool",
    "mean",
]

_CHANNELS_LAST = "channels_last: True for channels on the last axis, of input and result."


def channels_first(q: QTensor, axis: int = 1) -> QTensor:
    """The array with its last axis as the second one, or another."""
    return QTensor(jnp.moveaxis(q.values, -1, axis), q.qparams, q.form)


def channels_last(q: QTensor, axis: int = 1) -> QTensor:
    """The array with its second axis, or another, as the last one."""
    return QTensor(jnp.moveaxis(q.values, axis, -1), q.qparams, q.form)


def in_layout(law: Callable[..., Any]) -> Callable[..., Any]:
    """A law of arrays with channels first that takes channels_last=True for arrays with channels last."""
    last, first, parameters = channels_last, channels_first, signature(law)

    @wraps(law)
    def function(input: QTensor, *arguments: Any, channels_last: bool = False, **settings: Any) -> QTensor:
        check_flag("channels_last", channels_last)
        if not channels_last or not isinstance(input, QTensor) or input.ndim < 2:
            return law(input, *arguments, **settings)
        given = parameters.bind(input, *arguments, **settings)
        given.apply_defaults()
        axis = 0 if given.arguments.get("dimensions") == input.ndim - 1 else 1  # a pool's may be without a batch
        return last(law(first(input, axis), *arguments, **settings), axis)

    of_layout = Parameter("channels_last", Parameter.KEYWORD_ONLY, default=False, annotation="bool")
    shown: Any = function
    shown.__module__ = __name__  # where pickles find it
    shown.__signature__ = parameters.replace(parameters=[*parameters.parameters.values(), of_layout])
    function.__doc__ = cleandoc(law.__doc__ or "").replace("\n\nReturns:", f"\n    {_CHANNELS_LAST}\n\nReturns:")
    return function


max_pool = in_layout(functional.max_pool)
avg_pool = in_layout(functional.avg_pool)
adaptive_avg_pool = in_layout(functional.adaptive_avg_pool)
interpolate = in_layout(functional.interpolate)
batch_norm = in_layout(functional.batch_norm)
group_norm = in_layout(functional.group_norm)
