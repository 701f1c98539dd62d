"""Layers whose settings have a format that is not a range of integers: they stay in floats, and are rounded."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qcore.names import shown
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.observer import RangeObserver
from qtorch._affine.qconfig import QConfig
from qtorch._affine.scaled import ScaledRounding
from qtorch._classes import plain_class
from qtorch.nn import intrinsic
from qtorch.nn.intrinsic import Fused
from qtorch.nn.intrinsic import quantized as intrinsic_quantized
from qtorch.nn.qat import QATLayer
from qtorch.nn.quantized import dynamic
from qtorch.nn.quantized.dynamic.product import dtype_of, product_rounding
from qtorch.nn.quantized.quantize import Quantize
from qtorch.nn.quantized.weights import float_parameters, rounds, weight_maker, weight_module
from qtorch.nn.rounded import RoundedLayer, with_weight
from qtorch.quant import Quantizer
from qtorch.quantization.observing import NAME

_ROUNDED = nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d  # exact types; fused and trained layers too
_LINEAR: dict[type[nn.Module], Any] = {
    nn.Linear: dynamic.Linear,
    intrinsic.LinearReLU: intrinsic_quantized.dynamic.LinearReLU,
}
_RECURRENT: dict[type[nn.Module], Any] = {
    getattr(nn, made.__name__): made
    for made in (dynamic.LSTM, dynamic.GRU, dynamic.LSTMCell, dynamic.GRUCell, dynamic.RNNCell)
}
_KEEPING_CODE = (*_ROUNDED, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.PReLU, nn.Bilinear)
_TABLES = nn.Embedding, nn.EmbeddingBag


def stays_in_floats(layer: nn.Module) -> bool:
    """True if the format of a layer's output, or of its weight, is not a range of integers."""
    observer = getattr(layer, NAME, None)
    if observer is not None and rounds(observer):
        return True
    if plain_class(layer) in _RECURRENT and getattr(layer, "qconfig", None) is not None:
        return dtype_of(layer) is None  # a format for the input is enough
    return has_weight(layer) and rounds(weight_maker(layer))


def rounds_only(layer: Any) -> bool:
    """True if the settings of a layer that is not prepared yet have a format for results, or for the weight."""
    return rounds(layer.qconfig.activation()) or (has_weight(layer) and rounds(weight_maker(layer)))


def becomes_rounded(layer: nn.Module) -> bool:
    """True if `rounded_layer` will replace a layer that is not prepared yet by one of another class."""
    changes = isinstance(layer, (Fused, QATLayer)) or plain_class(layer) in (*_ROUNDED, *_RECURRENT)
    return changes and getattr(layer, "qconfig", None) is not None and rounds_only(layer)


def has_weight(layer: nn.Module) -> bool:
    """True for layers whose weight `rounded_layer` rounds."""
    is_table = isinstance(layer, _TABLES) and "weight" in dict(layer.named_parameters(recurse=False))
    return has_output(layer) or is_table or plain_class(layer) in _RECURRENT


def has_output(layer: nn.Module) -> bool:
    """True for layers with a weight whose results are observed by the module that rounds them.

    Subclasses of torch's layers, with children and a forward pass of their own, are such layers as well.
    """
    first = layer[0] if isinstance(layer, Fused) else layer  # of a batch norm and its ReLU only the result is rounded
    return isinstance(layer, QATLayer) or (
        isinstance(first, _KEEPING_CODE) and "weight" in dict(first.named_parameters(recurse=False))
    )


def check_rounded(path: str, layer: Any) -> None:
    """Raises TypeError unless a layer's settings, of which one is a format, can be converted.

    Recurrent layers quantize their input themselves, so integer weights and an input in a format do not mix.
    """
    if plain_class(layer) in _RECURRENT:
        try:
            product_rounding(layer)
        except TypeError as error:
            raise TypeError(f"{shown(path)}: {error}") from None


def rounded_layer(layer: nn.Module) -> nn.Module:
    """The layer with its weight rounded once, and its output rounded by its settings.

    Args:
        layer: observed or trained, with batch norms folded into its weights. Only classes of `has_weight` get a rounded
            weight; other layers keep the module that rounds their output.
    """
    if plain_class(layer) in _RECURRENT:
        return _RECURRENT[plain_class(layer)].from_float(layer)
    if plain_class(layer) in _LINEAR and not hasattr(layer, NAME) and not _leaves_input(layer):
        return _LINEAR[plain_class(layer)].from_float(layer)
    if not has_weight(layer):
        return layer if not hasattr(layer, NAME) else _with_output(layer)
    maker = weight_maker(layer)
    if plain_class(layer) not in _ROUNDED and not isinstance(layer, (Fused, QATLayer)):
        made = with_weight(layer, weight_module(maker, layer, layer.weight))  # type: ignore[arg-type]
        return _with_output(made) if hasattr(layer, NAME) else made
    plain: Any = layer._without_norm() if isinstance(layer, Fused) else layer
    numbers, bias = float_parameters(plain)
    inner = plain[0] if isinstance(plain, nn.Sequential) else plain
    return RoundedLayer(
        inner, weight_module(maker, plain, numbers), bias, getattr(layer, "has_relu", False), _output(layer)
    )


def with_coded_stacks(layer: Any) -> nn.Module:
    """A layer whose stacks of matrices are codes, if its settings have a format for weights alone.

    Experts of a mixture are such stacks: parameters of three axes in a layer that is not torch's. The layer's code
    reads them as tensors.
    """
    maker = _weights_alone(layer)
    for name, stack in [*layer.named_parameters(recurse=False)] if maker is not None else ():
        if is_stack(stack):
            delattr(layer, name)
            setattr(layer, name, weight_module(maker, layer, stack.detach()))
    return layer


def is_stack(parameter: torch.Tensor) -> bool:
    """True for several matrices in one parameter; a table of positions with a first axis of 1 is none."""
    return parameter.dim() == 3 and min(parameter.shape) > 1 and parameter.is_floating_point()


def _weights_alone(layer: Any) -> Quantizer | None:
    """What rounds the weights of a layer that is not torch's, where nothing else is rounded; else None."""
    settings = getattr(layer, "qconfig", None)
    if not isinstance(settings, QConfig) or has_weight(layer) or plain_class(layer).__module__.startswith("torch."):
        return None
    if not isinstance(settings.activation(), nn.Identity):
        return None
    maker = settings.weight()
    return maker if isinstance(maker, Quantizer) and maker.quantization.forward_number is not None else None


def _leaves_input(layer: Any) -> bool:
    """True if a layer's settings leave its input in floats."""
    return isinstance(layer.qconfig.activation(), nn.Identity)


def _with_output(layer: nn.Module) -> nn.Module:
    """The layer whose observer of the output is replaced by a module that rounds; the hook stays."""
    setattr(layer, NAME, _output(layer))
    return layer


def _output(layer: nn.Module) -> nn.Module:
    """The module that rounds a layer's output."""
    observer: Any = getattr(layer, NAME, nn.Identity())
    if isinstance(observer, FakeQuantize) and observer.number is not None:
        return ScaledRounding(observer.number, observer.scale, max(observer.ch_axis, 0))
    return Quantize.from_float(layer) if isinstance(observer, (FakeQuantize, RangeObserver)) else observer
