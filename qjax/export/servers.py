"""Quantized models of flax as servers such as vLLM read them: weights and configuration of compressed-tensors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import qjax.nnx as qnn
from qcore.affine.checkpoint import check_path
from qcore.arguments import check_type
from qcore.exchange import servers
from qcore.exchange.encoded import Content
from qcore.exchange.safetensors import content_of
from qcore.names import joined, shown
from qcore.workflow.settings import arguments_of
from qjax._models import all_names, check_model, children_of, rebuilt
from qjax._rounding.packing import unpack
from qjax.nnx import quantized
from qjax.nnx.flattened import Flattened
from qjax.nnx.quantization.flow import Around
from qjax.nnx.quantization.observing import Observer
from qjax.nnx.quantization.quantization_mappings import GENERAL, keeps_children
from qjax.nnx.quantized import QuantizedWeight, dynamic
from qjax.nnx.quantized.weights import Dequantized, Weight
from qjax.nnx.rounded import RoundedLayer, ScaledRounding
from qjax.quantization import QTensor
from qjax.quantization.rounding import FormatRounding


def to_compressed_tensors(
    model: nnx.Module, folder: str | os.PathLike[str], inputs: Iterable[object] | None = None
) -> None:
    """Writes a quantized model for servers: model.safetensors and config.json with a quantization_config.

    The files are those of `qtorch.export.to_compressed_tensors` for the same model, whose table says which settings of
    `QConfig` and `QConfigDynamic` become W4A16, W8A8 and FP8. Arrays have PyTorch's names and layout, as from
    `qjax.nnx.to_torch`, and flax's own where PyTorch has no such layer. A quantized `LinearGeneral` or `Einsum` is a
    linear layer.

    Args:
        model: a model of flax that `qjax.nnx.quantize_model` or `convert` returned.
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
        >>> from flax import nnx
        >>> from qjax.nnx import quantize_model
        >>> from qjax.quantization import QConfig
        >>> small = quantize_model(nnx.Linear(8, 4, rngs=nnx.Rngs(0)), QConfig(None, "e4m3fn"))
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
    for path, layer in _layers("", model, set()):
        try:
            found = _linear(layer, scales.get(path)) if _is_quantized_linear(layer) else None
            floats = _floats(layer) if found is None else {}
        except ValueError as error:
            raise ValueError(f"{shown(path)}: {error}") from error
        if found is not None:
            layers[path] = found
        elif isinstance(layer, (nnx.Linear, *GENERAL)):
            ignored.append(path)
        contents = {name: content_of(np.asarray(value)) for name, value in floats.items()}
        tensors |= {joined(path, name): one for name, one in (contents if found is None else found.tensors).items()}
    servers.write(folder, layers, tensors, ignored, {})


def _layers(path: str, module: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """The modules that own arrays by the names that the float model gives them."""
    if id(module) in seen or isinstance(module, (quantized.Quantize, quantized.DeQuantize, ScaledRounding, Observer)):
        return
    seen.add(id(module))
    if isinstance(module, (qnn.QuantWrapper, Flattened)):
        yield from _layers(path, module.module, seen)
        return
    yield path, module
    for name, child in [] if keeps_children(module) else children_of(module):
        yield from _layers(joined(path, name), child, seen)


def _is_quantized_linear(layer: Any) -> bool:
    is_rounded = isinstance(layer, RoundedLayer) and isinstance(layer.layer, nnx.Linear)
    return is_rounded or isinstance(layer, (quantized.Linear, dynamic.Linear))


def _floats(layer: Any) -> dict[str, Any]:
    """The arrays of a layer that is written in floats; rounded weights are their numbers."""
    in_integers = isinstance(layer, quantized.Quantized)
    weight: Any = getattr(layer, "weight", None)
    of_weight = isinstance(weight, get_args(Weight))
    if (in_integers and of_weight) or isinstance(layer, (dynamic.Cell, dynamic.RNN, dynamic.Recurrent)):
        raise servers.in_integers(type(layer).__name__)
    if of_weight:
        bias = getattr(layer, "bias", None)
        return {"weight": _numbers(weight())} | ({} if bias is None else {"bias": bias[...]})
    if children_of(layer) and not keeps_children(layer):
        return _own(layer)
    arrays = qnn.to_torch(layer)
    parts = ("scale", "zero_point") if in_integers else ()
    return {name: x for name, x in arrays.items() if name not in parts and "." not in name} or _own(layer)


def _own(layer: Any) -> dict[str, Any]:
    """A module's own parameters, by their names in flax."""
    return {name: value[...] for name, value in vars(layer).items() if isinstance(value, nnx.Param)}


def _linear(layer: Any, static: tuple[float, int] | None) -> servers.Layer | None:
    """A quantized linear layer; None for one in floats.

    Raises:
        ValueError: if compressed-tensors has no such layer.
    """
    weight = getattr(layer.weight, "integers", layer.weight)
    if isinstance(weight, Dequantized):
        return None
    if not isinstance(weight, get_args(Weight)):
        raise ValueError(servers.HALVES)
    made = _weight(weight)
    bias = None if layer.bias is None else np.asarray(layer.bias[...])
    return servers.linear(made, _inputs(layer, made.scheme["type"], static), bias)


def _weight(weight: Any) -> servers.Weight:
    if isinstance(weight, QuantizedWeight):
        q = weight()
        values, scale, zero_point = map(np.asarray, (q.values, q.qparams.scale, q.qparams.zero_point))
        return servers.weight_of_integers(values, scale, zero_point, weight.axis, q.form, 4 if weight.is_packed else 8)
    element = servers.element_of(weight.number)
    codes = unpack(weight.codes[...], element.bits, weight.shape[-1])
    return servers.weight_of_codes(weight.number, np.asarray(codes), np.asarray(weight.scales0[...]))


def _inputs(layer: Any, kind: str, static: tuple[float, int] | None) -> servers.Inputs:
    """How a layer's input is quantized."""
    if isinstance(layer, dynamic.Linear):
        return servers.dynamic_inputs(kind, None if layer.rounding is None else layer.rounding.number)
    if not isinstance(layer, RoundedLayer):
        return servers.static_inputs("int", static)
    rounding = getattr(layer.output, "description", None)
    if isinstance(layer.output, qnn.Identity) or (isinstance(rounding, FormatRounding) and rounding.number is None):
        return servers.Inputs(None, {})
    if not isinstance(layer.output, ScaledRounding):
        raise ValueError(servers.NO_SCALE)
    return servers.static_inputs("float", static)


class _Seen:
    """What runs of a model show: the scale and the zero point, in int8, of layers' inputs by name."""

    def __init__(self) -> None:
        self.found = dict[str, tuple[float, int]]()
        self.rounded = dict[int, tuple[jax.Array, float]]()


class _Seeing(Around):
    """A linear layer, or a rounding with a scale, that notes what it sees."""

    def __init__(self, module: Any, path: str, seen: _Seen) -> None:
        super().__init__(module)
        self.path, self.seen = path, seen

    def __call__(self, x: Any, **settings: Any) -> Any:
        if isinstance(self.module, ScaledRounding):
            y = super().__call__(x)
            if self.module.scale.size == 1:
                self.seen.rounded[id(y)] = y, float(self.module.scale[0])
            return y
        self._note(x)
        return super().__call__(x, **settings)

    def _note(self, x: Any) -> None:
        found = self.seen.found
        if isinstance(x, QTensor):
            shift = 0 if x.form.signed else 128
            found[self.path] = float(x.qparams.scale), int(x.qparams.zero_point) - shift
        elif id(x) in self.seen.rounded:
            found[self.path] = self.seen.rounded[id(x)][1], 0
        else:
            known = found.get(self.path, (0.0, 0))[0]
            found[self.path] = max(known, float(jnp.abs(x).max()) / servers.LARGEST), 0


def _static_scales(model: Any, inputs: Iterable[object]) -> dict[str, tuple[float, int]]:
    """For each linear layer with static activations the scale and the zero point, in int8, of its input."""
    places = {id(layer): path for path, layer in _layers("", model, set()) if _is_quantized_linear(layer)}
    paths = {name: places[id(layer)] for name, layer in all_names(model) if id(layer) in places}
    seen = _Seen()

    def change(name: str, module: nnx.Module) -> nnx.Module:
        if isinstance(module, ScaledRounding) or (name in paths and _is_quantized_linear(module)):
            return _Seeing(module, paths.get(name, ""), seen)
        return module

    watched: Any = rebuilt(model, change, lambda module: False)
    for batch in inputs:
        args, kwargs = arguments_of(batch)
        watched(*args, **kwargs)
        seen.rounded.clear()
    return seen.found


def _numbers(weight: Any) -> jax.Array:
    return weight.dequantize() if isinstance(weight, QTensor) else weight
