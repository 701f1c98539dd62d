"""The functions of torch's layers and losses with defined bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qcore.numerics.softmax import IGNORED
from qtorch.reproducible.modules.functions import defines, refuse
from qtorch.reproducible.training import FUNCTIONS


@defines(F.linear)
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return FUNCTIONS.linear(x, weight, bias)


@defines(F.layer_norm)
def _layer_norm(x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    return FUNCTIONS.layer_norm(x, weight, bias, tuple(range(-len(normalized_shape), 0)), eps)


@defines(F.rms_norm)
def _rms_norm(x: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return FUNCTIONS.rms_norm(x, weight, tuple(range(-len(normalized_shape), 0)), eps)


@defines(F.batch_norm)
def _batch_norm(
    x: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return FUNCTIONS.normalize(x, running_mean, running_var, weight, bias, eps)
    y, mean, variance = FUNCTIONS.batch_norm(x, weight, bias, eps)
    if running_mean is not None:
        with torch.no_grad():
            running_mean.copy_(FUNCTIONS.moving_average(running_mean, mean, momentum))
            running_var.copy_(FUNCTIONS.moving_average(running_var, variance, momentum))
    return y


@defines(F.embedding)
def _embedding(
    indices: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    refuse(padding_idx=padding_idx is not None, max_norm=max_norm is not None, sparse=sparse)
    refuse(scale_grad_by_freq=scale_grad_by_freq)
    return FUNCTIONS.embedding(indices, weight)


@defines(F.dropout)
def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    refuse(dropout=training and p != 0)  # a layer, nn.Dropout, has a key
    return x


@defines(F.max_pool2d, torch.max_pool2d)
def _max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    refuse(dilation=dilation not in (1, (1, 1)), ceil_mode=ceil_mode, return_indices=return_indices)
    return FUNCTIONS.max_pool2d(x, kernel_size, stride or None, padding)


@defines(F.avg_pool2d)
def _avg_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    refuse(ceil_mode=ceil_mode, divisor_override=divisor_override is not None)
    refuse(count_include_pad=not count_include_pad and padding not in (0, (0, 0)))
    return FUNCTIONS.avg_pool2d(x, kernel_size, stride or None, padding)


@defines(F.adaptive_avg_pool2d)
def _adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    refuse(output_size=output_size not in (1, (1, 1), [1, 1]))
    return FUNCTIONS.mean(x, (-2, -1), True)


@defines(F.scaled_dot_product_attention)
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    refuse(dropout_p=dropout_p != 0, enable_gqa=enable_gqa)
    refuse(attn_mask=attn_mask is not None and attn_mask.dtype is not torch.bool)
    return FUNCTIONS.scaled_dot_product_attention(query, key, value, attn_mask, is_causal, scale)


@defines(F.cross_entropy)
def _cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    refuse(weight=weight is not None, size_average=size_average is not None, reduce=reduce is not None)
    refuse(reduction=reduction != "mean", ignore_index=ignore_index != IGNORED, label_smoothing=label_smoothing != 0)
    return FUNCTIONS.cross_entropy(x, target, 0 if x.ndim == 1 else 1)


@defines(F.mse_loss)
def _mse_loss(
    x: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", weight: Any = None
) -> Tensor:
    refuse(weight=weight is not None, size_average=size_average is not None, reduce=reduce is not None)
    refuse(reduction=reduction != "mean")
    return FUNCTIONS.mse(x, target)
