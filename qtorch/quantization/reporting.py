"""Reports of a model: its quantized layers with format and scale, and its float layers with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from qcore.names import joined
from qcore.report import LayerReport, Report
from qcore.workflow.settings import UNSEEN
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.observer import RangeObserver
from qtorch._affine.scaled import ScaledRounding
from qtorch._classes import check_model, has_role, plain_class
from qtorch.nn.quantized.base import Quantized
from qtorch.nn.quantized.weights import CodedWeight, QuantizedWeight, Weight
from qtorch.nn.rounded import RoundedLayer
from qtorch.quant import Quantizer
from qtorch.quantization.observing import NAME, has_seen, is_prepared
from qtorch.quantization.quantization_mappings import get_default_static_quant_module_mappings, keeps_children
from qtorch.quantization.reasons import PASSING, name_of_observer, why_float


def report(model: nn.Module) -> Report:
    """A report of a model: quantized layers with format, scale and observer, and float layers with the reason.

    Args:
        model: a float model, or one that `prepare`, `prepare_qat`, `convert` or `quantize_dynamic` returned.

    Returns:
        A `Report` with a `LayerReport` for each layer that computes, or has parameters of its own, in the order of
        `named_modules`; a shared layer is listed once.

    Example:
        >>> from qtorch.quantization import default_qconfig, prepare
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> model.qconfig = default_qconfig
        >>> for layer in report(prepare(model)):
        ...     print(
        ...         layer.path,
        ...         layer.state,
        ...         layer.weight,
        ...         layer.bits,
        ...         layer.bytes,
        ...         layer.output,
        ...         layer.reason,
        ...     )
        0 observed affine(-128,127) 32 24 affine(0,127) it has seen nothing yet
        1 passing  None 0  its result has the scale of its input
    """
    check_model("model", model)
    return Report(tuple(_described(path, layer) for path, layer in _layers("", model, set())))


def _layers(path: str, module: nn.Module, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen or plain_class(module) is nn.Identity or isinstance(module, _PARTS):
        return
    seen.add(id(module))
    is_layer = _is_layer(path, module)
    if is_layer or any(True for _ in own_tensors(module)):
        yield path, module
    for name, child in () if is_layer else module.named_children():
        yield from _layers(joined(path, name), child, seen)


def _is_layer(path: str, module: nn.Module) -> bool:
    """True for a module without other layers in it."""
    parts = (child for name, child in module.named_children() if name != NAME and not isinstance(child, _PARTS))
    whole = keeps_children(path, module) or parametrize.is_parametrized(module)
    return whole or isinstance(module, RoundedLayer) or not any(True for _ in parts)


def _described(path: str, layer: nn.Module) -> LayerReport:
    observer: Any = getattr(layer, NAME, None)
    own = [layer] if _is_layer(path, layer) else [part for _, part in own_parts(layer)[1:]]
    weights = [part for one in own for part in one.modules() if isinstance(part, _WEIGHTS)]
    row = LayerReport(
        path,
        type(layer).__name__,
        "float",
        ", ".join(sorted(set(map(_text, weights)))),
        _bits(layer, weights),
        _bytes(layer),
    )
    if isinstance(layer, Quantized):
        scale, zero_point = _known(layer.scale), _known(layer.zero_point)
        output = {
            "output": layer.form.text,
            "scale": scale,
            "zero_point": None if zero_point is None else int(zero_point),
        }
        return replace(row, state="quantized", **output, observer=getattr(layer, "observed_by", ""))
    if isinstance(layer, RoundedLayer) or has_role(layer, "weight"):
        output = layer.output if isinstance(layer, RoundedLayer) else observer
        scale = _known(output.scale) if isinstance(output, ScaledRounding) else None
        observed_by = getattr(layer, "observed_by", "" if output is None else name_of_observer(output))
        return replace(row, state="rounded", output=_text(output), scale=scale, observer=observed_by)
    if row.weight or _is_integer(layer):
        return replace(row, state="quantized")
    if not is_prepared(layer):
        reason = getattr(layer, "float_because", why_float(layer, get_default_static_quant_module_mappings()))
        return replace(row, state="passing" if plain_class(layer) in PASSING else "float", reason=reason)
    rounds: Any = getattr(layer, "weight_fake_quant", None)
    if rounds is None and any(True for _ in layer.parameters()):
        rounds = layer.qconfig.weight()  # type: ignore[operator, union-attr]
    scale, zero_point, missing = _parameters(observer)
    return replace(
        row,
        state="trained" if hasattr(layer, "weight_fake_quant") else "observed",
        weight=_text(rounds),
        output=_text(observer),
        scale=scale,
        zero_point=zero_point,
        observer=name_of_observer(observer),
        reason=missing,
    )


def _bits(layer: nn.Module, weights: list[Any]) -> int | None:
    """The bits of an element of a layer's weight: the widest weight, if there are several."""
    if weights:
        return max(part.form.bits if isinstance(part, QuantizedWeight) else part.bits or 32 for part in weights)
    tensors = [*_tensors(layer, True)]
    return max((8 * tensor.element_size() for tensor in tensors if tensor.is_floating_point()), default=None)


def _bytes(layer: nn.Module) -> int:
    """The memory of a layer's parameters and buffers, without those of observers."""
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(layer, False))


def _tensors(layer: nn.Module, weights: bool) -> list[torch.Tensor]:
    """A layer's parameters and buffers, or only the weights; without those of observers."""
    found: dict[int, torch.Tensor] = {}
    for name, part in layer.named_modules() if _is_layer("", layer) else own_parts(layer):
        if _OBSERVING.isdisjoint(name.split(".")):
            named = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
            found |= {id(tensor): tensor for key, tensor in named if not weights or key.startswith("weight")}
    return list(found.values())


def own_parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """A module, and the modules that replace its weights, with their parts."""
    weights = (part for part in module.named_children() if isinstance(part[1], Weight))
    return [("", module), *((name, part) for name, weight in weights for part in weight.modules())]


def own_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """A module's own parameters and, where they are weights in another form, their buffers."""
    yield from module.parameters(recurse=False)
    for _, part in own_parts(module)[1:]:
        yield from part.buffers(recurse=False)


_OBSERVING = {NAME, "weight_fake_quant"}
_WEIGHTS = QuantizedWeight, CodedWeight
_PARTS = Weight, ScaledRounding, Quantizer  # of layers


def _is_integer(layer: nn.Module) -> bool:
    return plain_class(layer).__module__.startswith("qtorch.nn.quantized")


def _text(part: Any) -> str:
    """The format of a weight, or of an observer's parameters."""
    if isinstance(part, (FakeQuantize, ScaledRounding)) and part.number is not None:
        return part.number.text
    if isinstance(part, FakeQuantize):
        part = part.activation_post_process
    if isinstance(part, RangeObserver):
        return part.rule.form.text + (" per channel" if hasattr(part, "ch_axis") else "")
    if isinstance(part, QuantizedWeight):
        return part.form.text + (" per channel" if part.axis is not None else "")
    number = part.number if isinstance(part, CodedWeight) else None
    if isinstance(part, Quantizer):
        number = part.quantization.forward_number
    return "" if number is None else number.text


def _known(parameter: torch.Tensor) -> float | None:
    """A parameter that is one number; None for several, and on the device meta."""
    return None if parameter.is_meta or parameter.numel() != 1 else float(parameter)


def _parameters(observer: Any) -> tuple[float | None, int | None, str]:
    if not isinstance(observer, (FakeQuantize, RangeObserver)):
        return None, None, ""
    if not has_seen(observer):
        return None, None, UNSEEN
    scale, zero_point = observer.calculate_qparams()
    if isinstance(observer, FakeQuantize):
        scale, zero_point = observer.scale, observer.zero_point
    return (float(scale), int(zero_point), "") if scale.numel() == 1 else (None, None, "")
