"""Tables of the types that replace a type of layer."""

from __future__ import annotations

from typing import Any

from torch import nn

from qcore.affine.rows import OPERATIONS
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.observer import ObserverBase
from qtorch._classes import plain_class
from qtorch.nn import intrinsic, qat, quantized
from qtorch.nn.intrinsic import qat as intrinsic_qat
from qtorch.nn.intrinsic import quantized as intrinsic_quantized
from qtorch.nn.qat import QATLayer
from qtorch.nn.quantized import dynamic
from qtorch.quantization.stubs import DeQuantStub, QuantStub

Mapping = dict[type[nn.Module], type[nn.Module]]

_ROOMS = qat, intrinsic_qat
_TRAINED = [getattr(room, name) for room in _ROOMS for name in room.__all__ if hasattr(getattr(room, name), "floats")]
_QAT: Mapping = {made.floats: made for made in _TRAINED}

_WEIGHTED: Mapping = {nn.Linear: quantized.Linear, intrinsic.LinearReLU: intrinsic_quantized.LinearReLU}
for _dims in ("1d", "2d", "3d"):
    _conv = getattr(quantized, f"Conv{_dims}"), getattr(intrinsic_quantized, f"ConvReLU{_dims}")
    _WEIGHTED |= {getattr(nn, f"Conv{_dims}"): _conv[0], getattr(intrinsic, f"ConvBn{_dims}"): _conv[0]}
    _WEIGHTED |= {getattr(intrinsic, f"Conv{_bn}ReLU{_dims}"): _conv[1] for _bn in ("", "Bn")}
_WEIGHTED |= {trained: _WEIGHTED[floats] for floats, trained in _QAT.items()}

_STATIC: Mapping = _WEIGHTED | {
    nn.ConvTranspose1d: quantized.ConvTranspose1d,
    nn.ConvTranspose2d: quantized.ConvTranspose2d,
    nn.ConvTranspose3d: quantized.ConvTranspose3d,
    QuantStub: quantized.Quantize,
    DeQuantStub: quantized.DeQuantize,
    quantized.FloatFunctional: quantized.QFunctional,
    intrinsic.BNReLU2d: intrinsic_quantized.BNReLU2d,
    intrinsic.BNReLU3d: intrinsic_quantized.BNReLU3d,
    nn.Embedding: quantized.Embedding,
}
_STATIC |= {getattr(nn, name): getattr(quantized, name) for row in OPERATIONS.values() for name in row.layers}
_DYNAMIC: Mapping = {
    getattr(nn, made.__name__): made
    for made in (
        dynamic.Linear,
        dynamic.LSTM,
        dynamic.GRU,
        dynamic.LSTMCell,
        dynamic.GRUCell,
        dynamic.RNNCell,
        quantized.Embedding,
    )
}
_DYNAMIC[intrinsic.LinearReLU] = intrinsic_quantized.dynamic.LinearReLU

# The results of these layers have the input's scale, or are floats.
UNOBSERVED: set[type[nn.Module]] = {DeQuantStub, nn.ReLU, nn.ReLU6, nn.Dropout, nn.Embedding}


def get_default_static_quant_module_mappings() -> Mapping:
    """The classes that replace observed layers in `convert`.

    Returns:
        A new dictionary of types of layers, in floats or trained, to classes with `from_float(module)`.

    Example:
        >>> get_default_static_quant_module_mappings()[QuantStub]
        <class 'qtorch.nn.quantized.quantize.Quantize'>
    """
    return dict(_STATIC)


def get_default_qat_module_mappings() -> Mapping:
    """The classes that replace float layers in `prepare_qat`.

    Returns:
        A new dictionary of types of float layers to classes with `from_float(module)`.

    Example:
        >>> get_default_qat_module_mappings()[nn.Conv2d]
        <class 'qtorch.nn.qat.Conv2d'>
    """
    return dict(_QAT)


def get_default_dynamic_quant_module_mappings() -> Mapping:
    """The classes that replace float layers in `quantize_dynamic`.

    Returns:
        A new dictionary of types of float layers to classes with `from_float(module)`.

    Example:
        >>> get_default_dynamic_quant_module_mappings()[nn.Linear]
        <class 'qtorch.nn.quantized.dynamic.product.Linear'>
    """
    return dict(_DYNAMIC)


def get_default_qconfig_propagation_list() -> set[type[nn.Module]]:
    """The types of layers that `prepare` observes.

    Returns:
        A new set of subclasses of `torch.nn.Module`.

    Example:
        >>> nn.ReLU in get_default_qconfig_propagation_list()
        False
    """
    return {kind for kind in _STATIC if kind not in UNOBSERVED}


def is_unobserved(module: nn.Module, mapping: Any) -> bool:
    """True for layers that are converted without an observer of their output.

    Args:
        module: a layer whose type is in the mapping.
        mapping: as for `convert`.
    """
    target = mapping[plain_class(module)]
    return plain_class(module) in UNOBSERVED or (
        isinstance(target, type) and issubclass(target, tuple(_DYNAMIC.values()))
    )


def is_made_for_quantization(module: nn.Module) -> bool:
    """True for observers, and for layers that compute in integers: they are quantized already."""
    return isinstance(module, (ObserverBase, FakeQuantize, *_STATIC.values(), *_DYNAMIC.values()))


def keeps_children(path: str, module: nn.Module) -> bool:
    """True for a module that is quantized as a whole, or that gets no observers."""
    return isinstance(module, (intrinsic.Fused, QATLayer, nn.MultiheadAttention)) or is_made_for_quantization(module)
