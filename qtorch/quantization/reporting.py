"""Reports of a model: its quantized layers with format and scale, and its float layers with the reason."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from qcore.report import LayerReport, Report
from qcore.workflow.reporting import Reports, Rounding
from qcore.workflow.reporting import row as row_of
from qtorch._affine.fake_quantize import FakeQuantize
from qtorch._affine.observer import RangeObserver
from qtorch._affine.qconfig import QConfig
from qtorch._affine.scaled import ScaledRounding
from qtorch._classes import check_model, has_role, plain_class
from qtorch.nn.quantized.base import Quantized
from qtorch.nn.quantized.functional_modules import FXFloatFunctional
from qtorch.nn.quantized.quantize import Quantize
from qtorch.nn.quantized.weights import CodedWeight, QuantizedWeight, Weight
from qtorch.nn.rounded import RoundedLayer
from qtorch.quant import Quantizer
from qtorch.quantization.modules import Modules
from qtorch.quantization.observing import NAME, has_seen, is_prepared
from qtorch.quantization.quantization_mappings import get_default_static_quant_module_mappings
from qtorch.quantization.reasons import PASSING, why_float
from qtorch.quantization.rounding import has_output, has_weight, rounds_only
from qtorch.quantization.tree import OBSERVING

_WEIGHTS = QuantizedWeight, CodedWeight
_PARTS = Weight, ScaledRounding, Quantizer  # of layers
ROUNDING = Quantizer, ScaledRounding, Quantize  # what `convert` leaves in an observer's place


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
    return _Reports().report(model)


class _Reports(Modules, Reports):
    """The modules of torch; see `qcore.workflow.reporting`."""

    def is_part(self, module: nn.Module) -> bool:
        return plain_class(module) is nn.Identity or isinstance(module, _PARTS)

    def children(self, module: nn.Module) -> list[tuple[str, nn.Module]]:
        if parametrize.is_parametrized(module) or isinstance(module, RoundedLayer):
            return []
        children = super().children(module)
        return [(name, child) for name, child in children if name != NAME and not isinstance(child, _PARTS)]

    def owns_arrays(self, module: nn.Module) -> bool:
        return bool(module._parameters) or any(isinstance(part, Weight) for part in module.children())

    def row(self, path: str, layer: nn.Module) -> LayerReport:
        parts = _own_parts(layer) if self.children(layer) else list(layer.named_modules())
        codes = [part for _, part in parts if isinstance(part, _WEIGHTS)]
        state = _state(layer, bool(codes))
        row = partial(row_of, path, type(layer).__name__, state, arrays=_arrays(parts), codes=codes)
        if state in ("float", "passing"):
            mapping = get_default_static_quant_module_mappings()
            return row(reason=getattr(layer, "float_because", why_float(layer, mapping)))
        output: Any = layer.output if isinstance(layer, RoundedLayer) else getattr(layer, NAME, None)
        return row(
            weight=_weight(layer) if state in ("observed", "trained") else None,
            result=_result(layer if isinstance(layer, Quantized) else output),
            observer=getattr(layer, "observed_by", ""),
        )


def _state(layer: Any, has_codes: bool) -> str:
    if is_prepared(layer) or _needs_no_observer(layer):
        return "trained" if hasattr(layer, "weight_fake_quant") else "observed"
    if isinstance(layer, Quantized):
        return "quantized"
    observer = getattr(layer, NAME, None)
    if isinstance(layer, RoundedLayer) or has_role(layer, "weight") or isinstance(observer, ROUNDING):
        return "rounded"
    if plain_class(layer) in PASSING:
        return "passing"
    ours = plain_class(layer).__module__.startswith("qtorch.nn.quantized") and not isinstance(layer, FXFloatFunctional)
    return "quantized" if has_codes or ours else "float"


def _needs_no_observer(layer: Any) -> bool:
    """True for layers that `convert` changes by their settings alone: tables, and recurrent layers in formats."""
    if not isinstance(getattr(layer, "qconfig", None), QConfig):
        return False
    return plain_class(layer) is nn.Embedding or (has_weight(layer) and not has_output(layer) and rounds_only(layer))


def _weight(layer: Any) -> Rounding | None:
    """What will round a prepared layer's weight."""
    if hasattr(layer, "weight_fake_quant"):
        return rounding_of(layer.weight_fake_quant)
    return rounding_of(layer.qconfig.weight()) if has_weight(layer) else None


def _own_parts(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """A module, and the modules that replace its weights, with their parts."""
    weights = (part for part in module.named_children() if isinstance(part[1], Weight))
    return [("", module), *((name, part) for name, weight in weights for part in weight.modules())]


def _arrays(parts: list[tuple[str, nn.Module]]) -> list[tuple[torch.Tensor, bool]]:
    """The parameters and buffers of a layer's parts, each once, with True for a weight, without those of observers."""
    found: dict[int, tuple[torch.Tensor, bool]] = {}
    for name, part in parts:
        if OBSERVING.isdisjoint(name.split(".")):
            for key, one in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                found[id(one)] = one, key.startswith("weight") and one.is_floating_point()
    return list(found.values())


def rounding_of(part: Any) -> Rounding:
    """What observes or rounds, without the parameters.

    Example:
        >>> rounding_of(FakeQuantize()).name
        'FakeQuantize(MovingAverageMinMaxObserver)'
    """
    if isinstance(part, Quantizer):
        return Rounding(type(part).__name__, part.quantization.forward_number)
    return Rounding.of(part, part.activation_post_process if isinstance(part, FakeQuantize) else None)


def _result(part: Any) -> Rounding | None:
    """What observes, rounds or quantizes results, with the parameters."""
    if part is None:
        return None
    made = rounding_of(part)
    if not has_seen(part):
        return replace(made, seen=False)
    if isinstance(part, RangeObserver):
        return made.with_parameters(*part.calculate_qparams())
    scale = getattr(part, "scale", None)
    return made if scale is None or scale.is_meta else made.with_parameters(scale, getattr(part, "zero_point", None))
