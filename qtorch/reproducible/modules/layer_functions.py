"""The functions of torch's layers and losses with defined bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from qcore.reproducible.norms import IGNORED
from qtorch.reproducible.functions import FUNCTIONS
from qtorch.reproducible.modules.registry import defines, refuse


@defines(F.linear)
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return FUNCTIONS.linear(x, weight, bias)


def _convolution(dims: int) -> Any:
    function = {1: FUNCTIONS.conv1d, 2: FUNCTIONS.conv2d, 3: FUNCTIONS.conv3d}[dims]

    def convolve(
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        if x.ndim == dims + 1:  # one image
            return function(x.unsqueeze(0), weight, bias, stride, padding, dilation, groups).squeeze(0)
        return function(x, weight, bias, stride, padding, dilation, groups)

    return convolve


defines(F.conv1d, torch.conv1d)(_convolution(1))
defines(F.conv2d, torch.conv2d)(_convolution(2))
defines(F.conv3d, torch.conv3d)(_convolution(3))


@defines(F.layer_norm)
def _layer_norm(x: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    return FUNCTIONS.layer_norm(x, weight, bias, tuple(range(-len(normalized_shape), 0)), eps)


@defines(F.rms_norm)
def _rms_norm(x: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Tensor:
    eps = torch.finfo(torch.float32).eps if eps is None else eps
    return FUNCTIONS.rms_norm(x, weight, tuple(range(-len(normalized_shape), 0)), eps)


@defines(F.group_norm)
def _group_norm(x: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    return FUNCTIONS.group_norm(x, num_groups, weight, bias, eps)


@defines(F.instance_norm)
def _instance_norm(
    x: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not use_input_stats:
        return FUNCTIONS.normalize(x, running_mean, running_var, weight, bias, eps)
    refuse(track_running_stats=running_mean is not None)
    return FUNCTIONS.group_norm(x, x.shape[1], weight, bias, eps)


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
    refuse(max_norm=max_norm is not None, sparse=sparse, scale_grad_by_freq=scale_grad_by_freq)
    return FUNCTIONS.embedding(indices, weight, padding_idx)


@defines(F.dropout)
def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if training and p != 0:
        raise ValueError("dropout has no defined bits here, without a key; allowed are the layer nn.Dropout and p=0")
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
    refuse(return_indices=return_indices)
    return FUNCTIONS.max_pool2d(x, kernel_size, stride or None, padding, dilation, ceil_mode)


@defines(F.max_pool1d, torch.max_pool1d)
def _max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor:
    refuse(return_indices=return_indices)
    kernel, step = _row(kernel_size, 1), _row(stride or kernel_size, 1)
    y = FUNCTIONS.max_pool2d(x.unsqueeze(-2), kernel, step, _row(padding, 0), _row(dilation, 1), ceil_mode)
    return y.squeeze(-2)


def _row(value: Any, first: int) -> tuple[int, int]:
    """A size along one axis as sizes along two."""
    return first, value[0] if isinstance(value, tuple | list) else value


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
    refuse(divisor_override=divisor_override is not None)
    return FUNCTIONS.avg_pool2d(x, kernel_size, stride or None, padding, ceil_mode, count_include_pad)


@defines(F.avg_pool1d, torch.avg_pool1d)
def _avg_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    kernel, step = _row(kernel_size, 1), _row(stride or kernel_size, 1)
    y = FUNCTIONS.avg_pool2d(x.unsqueeze(-2), kernel, step, _row(padding, 0), ceil_mode, count_include_pad)
    return y.squeeze(-2)


@defines(F.adaptive_avg_pool2d)
def _adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    windows = _even_windows(x, output_size, 2)
    return FUNCTIONS.mean(x, (-2, -1), True) if windows == tuple(x.shape[-2:]) else FUNCTIONS.avg_pool2d(x, windows)


@defines(F.adaptive_avg_pool1d, torch.adaptive_avg_pool1d)
def _adaptive_avg_pool1d(x: Tensor, output_size: Any) -> Tensor:
    (window,) = _even_windows(x, output_size, 1)
    if window == x.shape[-1]:
        return FUNCTIONS.mean(x, -1, True)
    return FUNCTIONS.avg_pool2d(x.unsqueeze(-2), (1, window)).squeeze(-2)


@defines(F.adaptive_max_pool2d)
def _adaptive_max_pool2d(x: Tensor, output_size: Any, return_indices: bool = False) -> Tensor:
    refuse(return_indices=return_indices)
    return FUNCTIONS.max_pool2d(x, _even_windows(x, output_size, 2))


def _even_windows(x: Tensor, output_size: Any, dims: int) -> tuple[int, ...]:
    """The sizes of windows that all are as large."""
    lengths = x.shape[x.ndim - dims :]
    given = output_size if isinstance(output_size, tuple | list) else (output_size,) * dims
    wanted = [length if size is None else size for size, length in zip(given, lengths, strict=True)]
    if 0 in lengths and {*wanted} != {1}:  # one mean of nothing is NaN
        raise ValueError(f"input has shape {tuple(x.shape)}; allowed are lengths of at least 1")
    if any(size < 1 or length % size for length, size in zip(lengths, wanted, strict=True)):
        raise ValueError(
            f"output_size={tuple(wanted)} has windows of several sizes; allowed are divisors of {tuple(lengths)}"
        )
    return tuple([length // size for length, size in zip(lengths, wanted, strict=True)])


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
    refuse(dropout_p=dropout_p != 0)
    return FUNCTIONS.scaled_dot_product_attention(query, key, value, attn_mask, is_causal, scale, enable_gqa)


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
