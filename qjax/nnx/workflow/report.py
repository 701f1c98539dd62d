"""What is quantized in a model, to what, with which scale, and what is left in floats and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flax import nnx

from qcore.report import LayerReport, Report
from qjax._models.tree import check_model, children_of
from qjax.nnx import quantized
from qjax.nnx.intrinsic import Fused
from qjax.nnx.quantized import dynamic
from qjax.nnx.rounded import CodedWeight, RoundedLayer
from qjax.nnx.workflow.layers import UNTRAINED, WEIGHTED, is_whole, why_float
from qjax.nnx.workflow.observing import Observer
from qjax.nnx.workflow.steps.conversion import observer_name
from qjax.nnx.workflow.steps.training import Trained
from qjax.nnx.workflow.stubs import DeQuantStub
from qjax.quantization.observer import RangeObserver
from qjax.quantization.rounding import FormatRounding

_INTEGERS = (quantized.DeQuantize, dynamic.Linear, dynamic.Cell, dynamic.RNN, dynamic.Recurrent)


def report(model: nnx.Module) -> Report:
    """What is quantized in a model, to what, with which scale, from which observer, and what is left in floats and why.

    Args:
        model: a float model, or one that `prepare`, `prepare_qat`, `convert` or `quantize_dynamic` returned.

    Returns:
        One entry for each layer, with the names that the same model has in PyTorch; `rich.print` shows a table, `print`
        the same in plain text.

    Raises:
        TypeError: if model is no module.

    Example:
        >>> from qjax.nnx import prepare, relu
        >>> from qjax.quantization import default_qconfig
        >>> rngs = nnx.Rngs(0)
        >>> model = prepare(nnx.Sequential(nnx.Linear(2, 2, rngs=rngs), nnx.RMSNorm(2, rngs=rngs)), default_qconfig)
        >>> for layer in report(model):
        ...     print(layer.path, layer.state, layer.weight, layer.output, layer.observer, layer.reason)
        0 observed affine(-128,127) affine(0,127) MinMaxObserver it has seen nothing yet
        1 float    there is no quantized RMSNorm
    """
    check_model("model", model)
    return Report(tuple(_described(path, layer) for path, layer in _layers("", model, set())))


def _layers(path: str, module: nnx.Module, seen: set[int]) -> Iterator[tuple[str, nnx.Module]]:
    if id(module) in seen:
        return
    seen.add(id(module))
    inner = [] if is_whole(module) else children_of(module)
    if not inner:
        yield path, module
    for name, child in inner:
        yield from _layers(".".join(filter(None, (path, name))), child, seen)


def _described(path: str, layer: Any) -> LayerReport:
    name = type(layer).__name__
    weight = ", ".join(sorted({_text(part) for _, part in nnx.iter_modules(layer) if _is_weight(part)}))
    if isinstance(layer, quantized.Quantized):
        scales = {"scale": float(layer.scale[...]), "zero_point": int(layer.zero_point[...])}
        return LayerReport(
            path, name, "quantized", weight, output=layer.form.text, **scales, observer=layer.observed_by
        )
    if isinstance(layer, RoundedLayer):
        rounds: Any = layer.output
        text = _text(getattr(rounds, "description", None)) or (rounds.form.text if hasattr(rounds, "form") else "")
        return LayerReport(path, name, "rounded", weight, output=text, observer=layer.observed_by)
    if isinstance(layer, _INTEGERS):
        return LayerReport(path, name, "quantized", weight)
    observer = getattr(layer, "activation_post_process", None)
    if observer is None:
        return LayerReport(path, name, "float", reason=_why(layer))
    state, module = "observed", getattr(layer, "module", layer)
    first = module.layer if isinstance(module, Fused) else module
    described: Any = layer.qconfig.weight if type(first) in (*WEIGHTED, *UNTRAINED) else None
    if isinstance(layer, Trained):
        state, described = "trained", layer.weight_fake_quant.description
    scale, zero_point, missing = _parameters(observer)
    return LayerReport(
        path,
        type(module).__name__,
        state,
        _text(described),
        output=_text(observer.description),
        scale=scale,
        zero_point=zero_point,
        observer=observer_name(observer.description),
        reason=missing,
    )


def _why(layer: Any) -> str:
    if isinstance(layer, DeQuantStub):
        return "it is for integers"
    return why_float(layer) or "it has no settings, or is not prepared"


def _is_weight(part: Any) -> bool:
    return isinstance(part, (quantized.QuantizedWeight, CodedWeight)) or (
        isinstance(part, dynamic.Linear) and not isinstance(part.weight, quantized.QuantizedWeight)
    )


def _text(part: Any) -> str:
    """The format that a weight is in, or that an observer chooses for."""
    if isinstance(part, dynamic.Linear):
        return "float16"
    if isinstance(part, quantized.QuantizedWeight):
        return part.form.text + (" per channel" if part.axis is not None else "")
    if isinstance(part, (CodedWeight, FormatRounding)):
        return "" if part.number is None else part.number.text
    observer = getattr(part, "observer", part)
    if isinstance(observer, RangeObserver):
        return observer.form.text + (" per channel" if observer.axis is not None else "")
    return ""


def _parameters(observer: Observer) -> tuple[float | None, int | None, str]:
    try:
        qparams = observer.qparams()
    except TypeError:  # an observer that chooses none
        return None, None, ""
    except ValueError:
        return None, None, "it has seen nothing yet"
    if qparams.axis is not None:
        return None, None, ""
    return float(qparams.scale), int(qparams.zero_point), ""
