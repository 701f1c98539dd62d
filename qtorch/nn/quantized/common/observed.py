"""What observers, and fake quantization, of a layer in floats say about its quantized successor."""

from __future__ import annotations

from typing import Any

import torch

from qcore.affine import AffineInteger, QParams
from qtorch._affine.dtypes import integers
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.integer.conversion import quantize
from qtorch._affine.observers.base import RangeObserver
from qtorch._affine.tensor import QTensor


def output_of(module: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor, AffineInteger]:
    """The scale, the zero point and the integers of a layer's result.

    An observer with reduce_range leaves room for sums that overflow in 16 bits; here they do not, so that the result
    may have all the integers of its type. Fake quantization says with which integers the layer was trained.

    Args:
        module: with `activation_post_process`, an observer of ranges or a `FakeQuantize` for the whole tensor.

    Raises:
        TypeError: if it has none.
        ValueError: if it has seen nothing, or has a scale for each channel.
    """
    observer = getattr(module, "activation_post_process", None)
    if not isinstance(observer, FakeQuantize | RangeObserver):
        raise TypeError(
            f"{type(module).__name__} has as activation_post_process {type(observer).__name__}; allowed are observers "
            "of ranges and FakeQuantize: call prepare with a QConfig whose activation makes one"
        )
    scale, zero_point = _parameters(observer)
    if scale.numel() != 1:
        raise ValueError(f"activation_post_process has {scale.numel()} scales; allowed is one for all of a result")
    form = _form(observer)
    if isinstance(observer, RangeObserver) and observer.reduce_range:
        form = form.unreduced(integers(observer.dtype))
    return scale.reshape(()), zero_point.reshape(()), form


def weight_of(module: Any, weight: torch.Tensor) -> QTensor:
    """A layer's weight, quantized.

    A layer that was trained with fake quantization has the parameters in `weight_fake_quant`, which are taken as they
    are; else an observer that `qconfig.weight` makes sees the weight.

    Args:
        module: a layer in floats.
        weight: its numbers, float32.

    Raises:
        TypeError: if the layer has neither.
        ValueError: if parameters do not fit.
    """
    observer: Any = getattr(module, "weight_fake_quant", None)
    if observer is None:
        if getattr(module, "qconfig", None) is None:
            raise TypeError(f"{type(module).__name__} has no qconfig and no weight_fake_quant; allowed is one of them")
        observer = module.qconfig.weight().to(weight.device)
        observer(weight)
    if not isinstance(observer, (FakeQuantize, RangeObserver)):
        raise TypeError(
            f"qconfig.weight makes {type(observer).__name__}; allowed are observers of ranges and FakeQuantize"
        )
    scale, zero_point = _parameters(observer)
    axis: Any = None if scale.numel() == 1 else observer.ch_axis
    shape = () if axis is None else (-1,)
    qparams = QParams(scale.reshape(shape).clone(), zero_point.reshape(shape).clone(), axis)
    form = _form(observer)
    return QTensor(quantize(weight, qparams, form), qparams, form)


def float_parameters(module: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A layer's weight and bias in float32, with the running statistics of a batch norm that was trained with it.

    Args:
        module: a layer, a `torch.nn.Sequential` that begins with one, or one with a method `folded` that gives both.
    """
    layer: Any = module[0] if isinstance(module, torch.nn.Sequential) else module
    weight, bias = layer.folded() if hasattr(layer, "folded") else (layer.weight, layer.bias)
    return weight.detach().to(torch.float32), None if bias is None else bias.detach().to(torch.float32).clone()


def _form(observer: Any) -> AffineInteger:
    return (observer.activation_post_process if isinstance(observer, FakeQuantize) else observer).rule.form


def _parameters(observer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Those that fake quantization uses, or that an observer chooses; raises where nothing was seen."""
    if not isinstance(observer, FakeQuantize):
        return observer.calculate_qparams()
    if not observer.has_seen:
        raise ValueError("fake quantization has seen nothing; run the model on some data before it is converted")
    return observer.scale.detach().to(torch.float32), observer.zero_point
