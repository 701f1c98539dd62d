"""Quantized models as servers such as vLLM read them: weights and configuration of compressed-tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from qcore.affine.checkpoint import check_path
from qcore.arguments import check_type
from qcore.exchange import servers
from qcore.exchange.encoded import Content
from qcore.exchange.safetensors import content_of
from qcore.names import joined, shown
from qcore.workflow.settings import arguments_of
from qtorch._affine.scaled import ScaledRounding
from qtorch._affine.tensor import QTensor
from qtorch._classes import check_model
from qtorch.exchange import _array
from qtorch.nn.quantized import Embedding, Linear, dynamic
from qtorch.nn.quantized.base import Quantized
from qtorch.nn.quantized.quantize import DeQuantize, Quantize
from qtorch.nn.quantized.weights import CodedWeight, Dequantized, QuantizedWeight, Weight
from qtorch.nn.rounded import RoundedLayer
from qtorch.quant import Quantizer
from qtorch.quantization.stubs import QuantWrapper


def to_compressed_tensors(
    model: nn.Module, folder: str | os.PathLike[str], inputs: Iterable[object] | None = None
) -> None:
    """Writes a quantized model for servers: model.safetensors and config.json with a quantization_config.

    | weights of linear layers | activations | in the file |
    | --- | --- | --- |
    | int2 to int8, for example `BlockScaled("int4", {-1: 128}, scale="float32")` | None | W4A16: pack-quantized |
    | int8 | int8, `QConfig` | W8A8 with static scales: int-quantized |
    | int8 | int8, `QConfigDynamic` | W8A8 with a scale for each token: int-quantized |
    | "e4m3fn" | None, "e4m3fn" in `QConfig`, or in `QConfigDynamic` | FP8 static or dynamic: float-quantized |

    Weights have the model's integers, codes and scales. How a server rounds activations is its own law: these files say
    only with which bits, and for static ones the scale. Other parameters are written in the model's dtype; rounded
    tables, and a last layer that shares one, as their numbers.

    Args:
        model: a converted model; those of transformers write their configuration, too.
        folder: which is made; files in it are replaced.
        inputs: for static scales, inputs of the model as for `quantize_model`. Layers in integers have the scale of
            what comes in; layers in e4m3fn the scale of their input's rounding, or its largest magnitude / 448.

    Returns:
        Nothing; the two files are written.

    Raises:
        ValueError: if a quantized layer is not linear or has weights that compressed-tensors lacks, or inputs are
            missing; the message names the layer.

    Example:
        >>> import tempfile
        >>> from qtorch.quantization import QConfig, quantize_model
        >>> small = quantize_model(nn.Sequential(nn.Linear(8, 4)), QConfig(None, "e4m3fn"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     to_compressed_tensors(small, folder)
        ...     sorted(os.listdir(folder))
        ['config.json', 'model.safetensors']
    """
    check_model("model", model)
    check_path(folder)
    if inputs is not None:
        check_type("inputs", inputs, Iterable, "a list of inputs")
    scales = {} if inputs is None else _static_scales(model, inputs)
    layers, tensors, ignored = dict[str, servers.Layer](), dict[str, Content](), list[str]()
    tables = {id(weight) for table in _tables(model) for weight in table.modules() if isinstance(weight, Weight)}
    for path, layer in _layers("", model):
        try:
            found = _linear(layer, scales.get(id(layer)), tables)
        except ValueError as error:
            raise ValueError(f"{shown(path)}: {error}") from error
        if found is None:
            ignored += [path] if _is_linear(layer) else []
            tensors |= {joined(path, name): content_of(_array(value)) for name, value in _floats(layer)}
        else:
            layers[path] = found
            tensors |= {joined(path, name): content for name, content in found.tensors.items()}
    config: Any = getattr(model, "config", None)
    known = config.to_dict() if hasattr(config, "to_dict") else {}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if any(_unwrapped(head) is _unwrapped(model.get_submodule(path)) for path in layers):
        known["tie_word_embeddings"] = False  # the last matrix is quantized, and its table is not
    servers.write(folder, layers, tensors, ignored, known)


def _layers(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules that own tensors by the names that the float model gives them."""
    if isinstance(module, (Quantize, DeQuantize, Quantizer, ScaledRounding)):
        return
    if isinstance(module, QuantWrapper):
        yield from _layers(path, module.module)
        return
    yield path, module
    if not _is_quantized(module):
        for name, child in module.named_children():
            if not isinstance(child, Weight):
                yield from _layers(joined(path, name), child)


def _unwrapped(module: Any) -> Any:
    return module.module if isinstance(module, QuantWrapper) else module


def _is_quantized(module: nn.Module) -> bool:
    return type(module).__module__.startswith("qtorch.nn.")


def _is_linear(module: Any) -> bool:
    linear = nn.Linear, Linear, dynamic.Linear
    return isinstance(module, linear) or (isinstance(module, RoundedLayer) and len(module.weight.shape) == 2)  # type: ignore[arg-type]


def _tables(model: nn.Module) -> Iterator[nn.Module]:
    """The layers that look up rows."""
    yield from (one for one in model.modules() if isinstance(one, (Embedding, nn.Embedding)))


def _floats(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a layer that is written in floats; rounded weights are their numbers."""
    in_integers = isinstance(layer, Quantized)
    if in_integers and not isinstance(layer, Linear) and isinstance(getattr(layer, "weight", None), Weight):
        raise servers.in_integers(type(layer).__name__)
    rounded = {"rounded_weight": "weight"}
    for name, part in layer.named_children():
        if isinstance(part, Weight):
            yield rounded.get(name, name), part.numbers()
    persistent = {name.partition(".")[0] for name in layer.state_dict()}
    own = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
    for name, value in own:
        if name in persistent and not (in_integers and name in ("scale", "zero_point")):
            yield name, value.to(layer.weight.dtype) if name == "bias" and hasattr(layer, "weight") else value


def _linear(layer: Any, static: Any, tables: set[int]) -> servers.Layer | None:
    """A quantized linear layer; None for a layer in floats.

    Raises:
        ValueError: if compressed-tensors has no such layer.
    """
    if not _is_linear(layer) or isinstance(layer, nn.Linear):
        return None
    weight = layer.weight.integers if hasattr(layer.weight, "integers") else layer.weight
    if isinstance(weight, Dequantized) or tables & {id(weight), id(layer.weight)}:
        return None
    if not isinstance(weight, Weight):
        raise ValueError(servers.HALVES)
    made = _weight(weight)
    bias = None if layer.bias is None else _array(layer.bias.to(layer.weight.dtype))
    return servers.linear(made, _inputs(layer, made.scheme["type"], static), bias)


def _weight(weight: Weight) -> servers.Weight:
    if isinstance(weight, QuantizedWeight):
        q = weight()
        arrays = _array(q.values), _array(q.qparams.scale), _array(q.qparams.zero_point)
        return servers.weight_of_integers(*arrays, weight.axis, q.form, 4 if weight.is_packed else 8)
    coded = cast("CodedWeight", weight)
    element = servers.element_of(coded.number)
    return servers.weight_of_codes(coded.number, _array(coded.unpacked(element.bits)), _array(coded.scales0))


def _inputs(layer: Any, kind: str, static: Any) -> servers.Inputs:
    """How a layer's input is quantized."""
    if isinstance(layer, dynamic.Linear):
        number: Any = layer.rounding.quantization.forward_number if isinstance(layer.rounding, Quantizer) else None
        return servers.dynamic_inputs(kind, number)
    output = getattr(layer, "output", None)
    if not isinstance(layer, RoundedLayer):
        return servers.static_inputs("int", static)
    if isinstance(output, nn.Identity):
        return servers.Inputs(None, {})
    if not isinstance(output, ScaledRounding):
        raise ValueError(servers.NO_SCALE)
    return servers.static_inputs("float", static)


def _static_scales(model: nn.Module, inputs: Iterable[object]) -> dict[int, tuple[float, int]]:
    """For each linear layer with static activations the scale and the zero point, in int8, of its input."""
    found, rounded = dict[int, tuple[float, int]](), dict[int, tuple[torch.Tensor, float]]()

    def after(module: Any, args: Any, result: Any) -> None:
        if module.scale.numel() == 1:
            rounded[id(result)] = result, float(module.scale)

    def before(module: nn.Module, args: Any, kwargs: Any) -> None:
        (x,) = [*args, *kwargs.values()]
        if isinstance(x, QTensor):
            shift = 0 if x.form.signed else 128
            found[id(module)] = float(x.qparams.scale), int(x.qparams.zero_point) - shift
        elif id(x) in rounded:
            found[id(module)] = rounded[id(x)][1], 0
        else:
            known = found.get(id(module), (0.0, 0))[0]
            found[id(module)] = max(known, float(x.detach().abs().max()) / servers.LARGEST), 0

    with _hooked(model, before, after), torch.no_grad():
        for batch in inputs:
            args, kwargs = arguments_of(batch)
            model(*args, **kwargs)
            rounded.clear()
    return found


@contextmanager
def _hooked(model: nn.Module, before: Any, after: Any) -> Iterator[None]:
    """Hooks for a while: before linear layers, and after roundings of their results."""
    handles = [
        layer.register_forward_pre_hook(before, with_kwargs=True)
        for layer in model.modules()
        if isinstance(layer, (Linear, RoundedLayer))
    ]
    handles += [part.register_forward_hook(after) for part in model.modules() if isinstance(part, ScaledRounding)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
