"""Reports on a model: the format and scale of each layer, and the reasons for layers in floats."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from flax import nnx

from qcore import parse
from qcore.report import LayerReport, Report
from qcore.workflow.reporting import Reports, Rounding
from qcore.workflow.reporting import row as row_of
from qjax._models import check_model, children_of
from qjax.nnx import quantized
from qjax.nnx.intrinsic import Fused
from qjax.nnx.quantization.modules import Modules
from qjax.nnx.quantization.observing import OBSERVER, FloatFunctional, Observer
from qjax.nnx.quantization.quantization_mappings import UNTRAINED, WEIGHTED, keeps_children
from qjax.nnx.quantization.reasons import PASSING, why_float
from qjax.nnx.quantization.stubs import Identity
from qjax.nnx.quantization.training import Trained
from qjax.nnx.quantized import dynamic
from qjax.nnx.rounded import CodedWeight, RoundedLayer, ScaledRounding
from qjax.quantization import FakeQuantize
from qjax.quantization.rounding import FormatRounding

_HALF = SimpleNamespace(number=parse("float16"), shape=())  # of dynamic layers: their weights are floats
_INTEGERS = (
    quantized.Quantized,
    quantized.DeQuantize,
    quantized.Embed,
    dynamic.Linear,
    dynamic.Cell,
    dynamic.RNN,
    dynamic.Recurrent,
)


def report(model: nnx.Module) -> Report:
    """A report on a model: the format, scale and observer of each layer, and the reasons for layers in floats.

    Args:
        model: a float model, or one that `prepare`, `prepare_qat`, `convert` or `quantize_dynamic` returned.

    Returns:
        One entry for each layer, with its name in PyTorch. `rich.print` shows a table, `print` the same in plain text.

    Example:
        >>> from qjax.nnx import prepare, relu
        >>> from qjax.quantization import default_qconfig
        >>> rngs = nnx.Rngs(0)
        >>> model = prepare(
        ...     nnx.Sequential(nnx.Linear(2, 2, rngs=rngs), nnx.RMSNorm(2, rngs=rngs)), default_qconfig
        ... )
        >>> for layer in report(model):
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
        1 float  32 8  there is no quantized RMSNorm
    """
    check_model("model", model)
    return _Reports().report(model)


class _Reports(Modules, Reports):
    """The modules of flax; see `qcore.workflow.reporting`."""

    def is_part(self, module: nnx.Module) -> bool:
        return isinstance(module, (Identity, ScaledRounding, Observer))

    def owns_arrays(self, module: nnx.Module) -> bool:
        return not isinstance(module, nnx.List) and any(isinstance(one, nnx.Param) for one in vars(module).values())

    def row(self, path: str, layer: Any) -> LayerReport:
        inner, state = getattr(layer, "module", layer), _state(layer)
        parts = [] if self.children(layer) else [part for _, part in nnx.iter_modules(layer)]
        row = partial(
            row_of,
            path,
            type(inner if hasattr(layer, OBSERVER) else layer).__name__,
            state,
            arrays=[(one.get_value(), _holds_weight(name, one)) for name, one in variables_in(layer)],
            codes=[_HALF if isinstance(part, dynamic.Linear) else part for part in parts if _is_weight(part)],
        )
        if state in ("float", "passing"):
            return row(reason=_why(layer))
        output: Any = layer.output if isinstance(layer, RoundedLayer) else getattr(layer, OBSERVER, None)
        return row(
            weight=_weight(layer, inner) if state in ("observed", "trained") else None,
            result=_result(layer if isinstance(layer, quantized.Quantized) else output),
            observer=getattr(layer, "observed_by", ""),
        )


def _state(layer: Any) -> str:
    observer = getattr(layer, OBSERVER, None)
    is_table = isinstance(layer, quantized.Embed)
    if isinstance(layer, RoundedLayer) or isinstance(observer, ScaledRounding):
        return "rounded"
    # A format that needs no scale rounds the same before and after conversion, which keeps the module.
    if hasattr(layer, "observed_by") and isinstance(getattr(observer, "description", None), FormatRounding):
        return "rounded"
    if is_table and not isinstance(layer.weight, quantized.QuantizedWeight):
        return "rounded"
    if isinstance(layer, _INTEGERS):
        return "quantized"
    if isinstance(layer, Trained):
        return "trained"
    settings = None if isinstance(layer, FloatFunctional) else getattr(layer, "qconfig", None)
    if observer is not None or settings is not None:
        return "observed"
    return "passing" if isinstance(layer, PASSING) else "float"


def _weight(layer: Any, inner: Any) -> Rounding | None:
    """What will round a prepared layer's weight."""
    if isinstance(layer, Trained):
        return rounding_of(layer.weight_fake_quant.description)
    first = inner.layer if isinstance(inner, Fused) else inner
    has_weight = not hasattr(layer, OBSERVER) or type(first) in (*WEIGHTED, *UNTRAINED)
    return rounding_of(layer.qconfig.weight) if has_weight else None


def variables_in(layer: nnx.Module) -> list[tuple[str, Any]]:
    """The variables of a layer by the last part of their names, without those of observers and of inner layers."""
    whole = keeps_children(layer) or not children_of(layer)
    flat = nnx.to_flat_state(nnx.state(layer, nnx.Any(nnx.Param, nnx.BatchStat, quantized.IntegerVariable)))
    return [(str(path[-1]), variable) for path, variable in flat if whole or len(path) == 1]


def _holds_weight(name: str, variable: Any) -> bool:
    """True of a weight in floats; the scale of a norm is one, and that of integers is not."""
    return name.startswith(("kernel", "embedding", "weight")) or (name == "scale" and isinstance(variable, nnx.Param))


def _why(layer: Any) -> str:
    return ("" if type(layer) is nnx.Embed else why_float(layer)) or "it has no settings, or is not prepared"


def _is_weight(part: Any) -> bool:
    return isinstance(part, (quantized.QuantizedWeight, CodedWeight)) or (
        isinstance(part, dynamic.Linear) and part.is_half
    )


def rounding_of(part: Any) -> Rounding:
    """What observes or rounds, without the parameters.

    Example:
        >>> rounding_of(FakeQuantize()).name
        'FakeQuantize(MovingAverageMinMaxObserver)'
    """
    if isinstance(part, FormatRounding):
        return Rounding("Identity" if part.number is None else "Quantizer", part.number)
    return Rounding.of(part, part.observer if isinstance(part, FakeQuantize) else None)


def _result(part: Any) -> Rounding | None:
    """What observes, rounds or quantizes results, with the parameters."""
    if part is None:
        return None
    if not isinstance(part, Observer):
        made, scale = rounding_of(part), getattr(part, "scale", None)
        if isinstance(part, quantized.Quantized):
            made = replace(made, axis=None)  # an axis of such a layer is that of its input's features
        return made if scale is None else made.with_parameters(scale, getattr(part, "zero_point", None))
    made = rounding_of(part.description)
    try:
        qparams = part.qparams()
    except TypeError:  # the observer chooses no parameters
        return made
    except ValueError:
        return replace(made, seen=False)
    return made.with_parameters(qparams.scale, qparams.zero_point)
