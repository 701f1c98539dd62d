"""Reports on a model: the format and scale of each layer, and the reasons for layers in floats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flax import nnx

from qcore.formats.foreign import stored_bits
from qcore.report import LayerReport, Report
from qcore.workflow.settings import UNSEEN
from qjax._models import check_model, children_of
from qjax.nnx import quantized
from qjax.nnx.intrinsic import Fused
from qjax.nnx.quantization.observing import FloatFunctional, Observer
from qjax.nnx.quantization.quantization_mappings import UNTRAINED, WEIGHTED, keeps_children
from qjax.nnx.quantization.reasons import PASSING, name_of_observer, why_float
from qjax.nnx.quantization.stubs import DeQuantStub, Identity
from qjax.nnx.quantization.training import Trained
from qjax.nnx.quantized import dynamic
from qjax.nnx.rounded import CodedWeight, RoundedLayer, ScaledRounding
from qjax.quantization import FakeQuantize
from qjax.quantization.observer import RangeObserver
from qjax.quantization.rounding import FormatRounding

_INTEGERS = (quantized.DeQuantize, quantized.Embed, dynamic.Linear, dynamic.Cell, dynamic.RNN, dynamic.Recurrent)


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
    return Report(tuple(_described(path, layer) for path, layer in _layers("", model, set())))


def _layers(path: str, module: nnx.Module, seen: set[int]) -> Iterator[tuple[str, nnx.Module]]:
    if id(module) in seen or isinstance(module, (Identity, ScaledRounding, Observer)):
        return
    seen.add(id(module))
    inner = [] if keeps_children(module) else children_of(module)
    own = any(isinstance(value, nnx.Param) for value in vars(module).values())
    if not inner or (own and not isinstance(module, nnx.List)):
        yield path, module
    for name, child in inner:
        yield from _layers(".".join(filter(None, (path, name))), child, seen)


def _described(path: str, layer: Any) -> LayerReport:
    weights = [part for _, part in nnx.iter_modules(layer) if _is_weight(part)]
    row = LayerReport(
        path,
        type(layer).__name__,
        "float",
        ", ".join(sorted(set(map(_text, weights)))),
        _bits(layer, weights),
        _bytes(layer),
    )
    if isinstance(layer, quantized.Quantized):
        output = {"output": layer.form.text, "scale": float(layer.scale[...]), "zero_point": int(layer.zero_point[...])}
        return replace(row, state="quantized", **output, observer=layer.observed_by)
    if isinstance(layer, RoundedLayer):
        return _rounded(row, layer.output, layer.observed_by)
    if isinstance(layer, _INTEGERS):
        rounded = isinstance(layer, quantized.Embed) and not isinstance(layer.weight, quantized.QuantizedWeight)
        return replace(row, state="rounded" if rounded else "quantized")
    observer: Any = getattr(layer, "activation_post_process", None)
    if observer is None and getattr(layer, "qconfig", None) is not None and not isinstance(layer, FloatFunctional):
        return replace(row, state="observed", weight=_text(layer.qconfig.weight))
    if observer is None:
        return replace(row, state="passing" if isinstance(layer, PASSING) else "float", reason=_why(layer))
    module = getattr(layer, "module", layer)
    row = replace(row, layer=type(module).__name__)
    if isinstance(observer, ScaledRounding):
        return _rounded(row, observer, name_of_observer(layer.qconfig.activation))
    state = "observed"
    first = module.layer if isinstance(module, Fused) else module
    described: Any = layer.qconfig.weight if type(first) in (*WEIGHTED, *UNTRAINED) else None
    if isinstance(layer, Trained):
        state, described = "trained", layer.weight_fake_quant.description
    scale, zero_point, missing = _parameters(observer)
    return replace(
        row,
        state=state,
        weight=_text(described),
        output=_text(observer.description),
        scale=scale,
        zero_point=zero_point,
        observer=name_of_observer(observer.description),
        reason=missing,
    )


def _rounded(row: LayerReport, rounds: Any, observed_by: str) -> LayerReport:
    """The row of a layer in floats whose results are rounded."""
    scale = None
    if isinstance(rounds, ScaledRounding):
        text, scale = rounds.number.text, float(rounds.scale[0]) if rounds.scale.size == 1 else None
    else:
        text = _text(getattr(rounds, "description", None)) or (rounds.form.text if hasattr(rounds, "form") else "")
    return replace(row, state="rounded", output=text, scale=scale, observer=observed_by)


def _bits(layer: nnx.Module, weights: list[Any]) -> int | None:
    """The width of a weight's numbers in bits: the largest if a layer has several weights."""
    if weights:
        return max(map(_width, weights))
    names = "kernel", "embedding", "scale", "weight"
    kinds = [8 * value.dtype.itemsize for name, value in arrays_in(layer) if name in names]
    return max(kinds, default=None)


def _width(part: Any) -> int:
    if isinstance(part, quantized.QuantizedWeight):
        return part.form.bits
    return stored_bits(part.number, part.shape) or 32 if isinstance(part, CodedWeight) else 16


def _bytes(layer: nnx.Module) -> int:
    """The memory of a layer's parameters and variables, without those of observers."""
    return sum(value.nbytes for _, value in arrays_in(layer))


def arrays_in(layer: nnx.Module) -> list[tuple[str, Any]]:
    """The arrays of a layer by the last part of their names, without those of observers and of inner layers."""
    whole = keeps_children(layer) or not children_of(layer)
    flat = nnx.to_flat_state(nnx.state(layer, nnx.Any(nnx.Param, nnx.BatchStat, quantized.IntegerVariable)))
    return [(str(path[-1]), variable.get_value()) for path, variable in flat if whole or len(path) == 1]


def _why(layer: Any) -> str:
    if isinstance(layer, DeQuantStub):
        return "it is for integers"
    return ("" if type(layer) is nnx.Embed else why_float(layer)) or "it has no settings, or is not prepared"


def _is_weight(part: Any) -> bool:
    return isinstance(part, (quantized.QuantizedWeight, CodedWeight)) or (
        isinstance(part, dynamic.Linear) and part.is_half
    )


def _text(part: Any) -> str:
    """The format of a weight, or the format for which an observer chooses parameters."""
    if isinstance(part, dynamic.Linear):
        return "float16"
    if isinstance(part, quantized.QuantizedWeight):
        return part.form.text + (" per channel" if part.axis is not None else "")
    if isinstance(part, FakeQuantize) and part.number is not None:
        return part.number.text
    if isinstance(part, (CodedWeight, FormatRounding)):
        return "" if part.number is None else part.number.text
    observer = getattr(part, "observer", part)
    if isinstance(observer, RangeObserver):
        return observer.form.text + (" per channel" if observer.axis is not None else "")
    return ""


def _parameters(observer: Observer) -> tuple[float | None, int | None, str]:
    try:
        qparams = observer.qparams()
    except TypeError:  # the observer chooses no parameters
        return None, None, ""
    except ValueError:
        return None, None, UNSEEN
    if qparams.axis is not None:
        return None, None, ""
    return float(qparams.scale), int(qparams.zero_point), ""
