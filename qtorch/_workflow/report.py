"""What is quantized in a model, to what, with which scale, and what is left in floats and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from qcore.report import LayerReport, Report
from qtorch._classes import plain_class
from qtorch._workflow.mappings import get_default_static_quant_module_mappings, is_whole
from qtorch._workflow.observing import NAME, has_seen, is_prepared
from qtorch._workflow.reasons import name_of_observer, why_float
from qtorch._workflow.tree import check_model, is_leaf, joined
from qtorch.nn.quantized.common.base import Quantized
from qtorch.nn.quantized.common.weights import QuantizedWeight
from qtorch.nn.rounded import CodedWeight, RoundedLayer
from qtorch.quant import Quantizer
from qtorch.quantization.fake_quantize import FakeQuantize
from qtorch.quantization.observers.base import RangeObserver

__all__ = ["report"]


def report(model: nn.Module) -> Report:
    """What is quantized in a model, to what, with which scale, from which observer, and what is left in floats and why.

    Args:
        model: a float model, or one that `prepare`, `prepare_qat`, `convert` or `quantize_dynamic` returned.

    Returns:
        A `Report` with a `LayerReport` for each layer, in the order of `named_modules`; a shared layer is there once.

    Raises:
        TypeError: if model is no module.

    Example:
        >>> from qtorch.quantization import default_qconfig, prepare
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> model.qconfig = default_qconfig
        >>> for layer in report(prepare(model)):
        ...     print(layer.path, layer.state, layer.weight, layer.output, layer.observer, layer.reason)
        0 observed affine(-128,127) affine(0,127) MinMaxObserver it has seen nothing yet
        1 float    its result has the scale of its input
    """
    check_model("model", model)
    return Report(tuple(_described(path, layer) for path, layer in _layers("", model, set())))


def _layers(path: str, module: nn.Module, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    if is_whole(path, module) or is_leaf(module) or isinstance(module, RoundedLayer):
        yield path, module
        return
    for name, child in module.named_children():
        yield from _layers(joined(path, name), child, seen)


def _described(path: str, layer: nn.Module) -> LayerReport:
    name = type(layer).__name__
    observer: Any = getattr(layer, NAME, None)
    weight = ", ".join(sorted({_text(part) for part in layer.modules() if isinstance(part, _WEIGHTS)}))
    if isinstance(layer, Quantized):
        output = layer.form.text, float(layer.scale), int(layer.zero_point)
        return LayerReport(path, name, "quantized", weight, *output, getattr(layer, "observed_by", ""))
    if isinstance(layer, RoundedLayer):
        return LayerReport(path, name, "rounded", weight, _text(layer.output), observer=name_of_observer(layer.output))
    if weight or _is_integer(layer):
        return LayerReport(path, name, "quantized", weight)
    if not is_prepared(layer):
        reason = getattr(layer, "float_because", why_float(layer, get_default_static_quant_module_mappings()))
        return LayerReport(path, name, "float", reason=reason)
    rounds: Any = getattr(layer, "weight_fake_quant", None)
    if rounds is None and any(True for _ in layer.parameters()):
        rounds = layer.qconfig.weight()  # type: ignore[operator, union-attr]
    state = "trained" if hasattr(layer, "weight_fake_quant") else "observed"
    scale, zero_point, missing = _parameters(observer)
    texts = _text(rounds), _text(observer)
    return LayerReport(path, name, state, *texts, scale, zero_point, name_of_observer(observer), missing)


_WEIGHTS = QuantizedWeight, CodedWeight


def _is_integer(layer: nn.Module) -> bool:
    return plain_class(layer).__module__.startswith("qtorch.nn.quantized")


def _text(part: Any) -> str:
    """The format that a weight is in, or that an observer chooses for."""
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


def _parameters(observer: Any) -> tuple[float | None, int | None, str]:
    if not isinstance(observer, (FakeQuantize, RangeObserver)):
        return None, None, ""
    if not has_seen(observer):
        return None, None, "it has seen nothing yet"
    scale, zero_point = observer.calculate_qparams()
    if isinstance(observer, FakeQuantize):
        scale, zero_point = observer.scale, observer.zero_point
    return (float(scale), int(zero_point), "") if scale.numel() == 1 else (None, None, "")
