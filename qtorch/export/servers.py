"""Quantized models as servers such as vLLM read them: weights and configuration of compressed-tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from qcore.affine.checkpoint import check_path
from qcore.arguments import check_type
from qcore.exchange.encoded import Content
from qcore.exchange.safetensors import content_of, write_file
from qcore.formats.block import BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.names import joined, shown
from qcore.packing import pack
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

_LARGEST = float(np.float32(448))  # of e4m3fn
_DYNAMIC = {"num_bits": 8, "symmetric": True, "dynamic": True}
_FORMATS = ("int", False), ("int", True), ("float", False), ("float", True)
_NAMES = dict(zip(_FORMATS, ("pack-quantized", "int-quantized", "float-quantized", "float-quantized"), strict=True))


@dataclass
class _Layer:
    """A linear layer for the file: its scheme, and its tensors by the names that compressed-tensors gives them."""

    scheme: dict[str, Any]
    format: str
    tensors: dict[str, Content]


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
    layers, tensors, ignored = dict[str, _Layer](), dict[str, Content](), list[str]()
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
    if not layers:
        raise ValueError("model has no quantized linear layer; allowed is one that quantize_model or convert returned")
    os.makedirs(folder, exist_ok=True)
    write_file(Path(folder) / "model.safetensors", tensors, {"format": "pt"})
    config: Any = getattr(model, "config", None)
    known = config.to_dict() if hasattr(config, "to_dict") else {}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if any(_unwrapped(head) is _unwrapped(model.get_submodule(path)) for path in layers):
        known["tie_word_embeddings"] = False  # the last matrix is quantized, and its table is not
    known["quantization_config"] = _configuration(layers, ignored)
    text = json.dumps(known, indent=2, sort_keys=True, default=str)
    (Path(folder) / "config.json").write_text(f"{text}\n", encoding="utf-8")


def _configuration(layers: Mapping[str, _Layer], ignored: list[str]) -> dict[str, Any]:
    """The quantization_config: layers of one scheme are a group."""
    schemes: list[tuple[dict[str, Any], str, list[str]]] = []
    for path, layer in layers.items():
        group = next((names for scheme, kind, names in schemes if (scheme, kind) == (layer.scheme, layer.format)), None)
        if group is None:
            schemes.append((layer.scheme, layer.format, [path]))
        else:
            group.append(path)
    formats = sorted({kind for _, kind, _ in schemes})
    groups = {
        f"group_{index}": {"targets": ["Linear"] if len(schemes) == 1 else names, "format": kind} | scheme
        for index, (scheme, kind, names) in enumerate(schemes)
    }
    return {
        "quant_method": "compressed-tensors",
        "format": formats[0] if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": ignored,
    }


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
        raise ValueError(f"{type(layer).__name__} in integers is not in compressed-tensors; allowed are linear layers")
    rounded = {"rounded_weight": "weight"}
    for name, part in layer.named_children():
        if isinstance(part, Weight):
            yield rounded.get(name, name), part.numbers()
    persistent = {name.partition(".")[0] for name in layer.state_dict()}
    own = [*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False)]
    for name, value in own:
        if name in persistent and not (in_integers and name in ("scale", "zero_point")):
            yield name, value.to(layer.weight.dtype) if name == "bias" and hasattr(layer, "weight") else value


def _linear(layer: Any, static: Any, tables: set[int]) -> _Layer | None:
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
        raise ValueError("its weight is float16; allowed are integers and codes of formats")
    scheme, tensors, shape = _weight(weight)
    activations, more = _activations(layer, scheme["type"], static)
    kind = _NAMES[scheme["type"], activations is not None]
    if kind == "pack-quantized":
        tensors = {
            "weight_packed": _words(tensors.pop("weight").data.view(np.int8), scheme["num_bits"]),
            "weight_shape": content_of(np.array(shape, np.int64)),
        } | tensors
    if layer.bias is not None:
        tensors["bias"] = content_of(_array(layer.bias.to(layer.weight.dtype)))
    scheme = {"weights": scheme, "input_activations": activations, "output_activations": None}
    return _Layer(scheme, kind, tensors | more)


def _words(values: np.ndarray, bits: int) -> Content:
    """Integers of up to 8 bits side by side in int32, with an offset of half their range."""
    codes = (values.astype(np.int16) + (1 << bits - 1)).astype(np.uint8)
    data = pack(codes, bits)
    return content_of(np.pad(data, [(0, 0), (0, -data.shape[-1] % 4)]).view("<i4"))


def _weight(weight: Weight) -> tuple[dict[str, Any], dict[str, Content], tuple[int, ...]]:
    """The arguments of a weight's quantization, its tensors, and its shape."""
    shape = weight.shape
    if isinstance(weight, QuantizedWeight):
        q = weight()
        if q.qparams.zero_point.any() or not q.form.signed or q.form.bits > 8:
            raise ValueError(f"its weight is {q.form.text} with zero points; allowed are symmetric integers of 8 bits")
        bits = 4 if weight.is_packed else 8
        scales = q.qparams.scale.reshape(-1, 1) if weight.axis is not None else q.qparams.scale.reshape(1)
        scheme = {"num_bits": bits, "type": "int", "strategy": "tensor" if weight.axis is None else "channel"}
        values = content_of(_array(q.values))
    else:
        coded = cast("CodedWeight", weight)
        number: Any = coded.number
        element = getattr(number, "element", number)
        of_integers = isinstance(element, FixedPoint) and element.fl == 0 and element.bits <= 8
        known = of_integers or _name(element) == "e4m3fn"
        if not isinstance(number, BlockScaled) or number.scale != "float32" or not known:
            raise ValueError(
                f"its weight is {number.text}; allowed are int2 to int8 and e4m3fn with scales in float32, such as "
                'BlockScaled("int4", {-1: 128}, scale="float32")'
            )
        scales: Any = coded.scales0
        scheme = {"num_bits": element.bits, "type": "int" if of_integers else "float"} | _strategy(number, shape)
        scales = scales.reshape(1) if scheme["strategy"] == "tensor" else scales
        codes = _array(coded.unpacked(element.bits))
        if of_integers:
            half = 1 << element.bits - 1
            values = content_of(((codes.astype(np.int16) ^ half) - half).astype(np.int8))
        else:
            values = Content("F8_E4M3", shape, codes)
    return scheme | {"symmetric": True}, {"weight": values, "weight_scale": content_of(_array(scales))}, shape


def _name(element: Any) -> str:
    """A format's text without its overflow."""
    return element.text.removesuffix(":saturate")


def _strategy(number: BlockScaled, shape: tuple[int, ...]) -> dict[str, Any]:
    """Which elements of a matrix share a scale, as compressed-tensors calls it."""
    rows, columns = (
        length if size is None else size for size, length in zip(number.block_sizes(2), shape, strict=True)
    )
    if (rows, columns) == shape:
        return {"strategy": "tensor"}
    if rows == 1 and columns >= shape[1]:
        return {"strategy": "channel"}
    if rows == 1 and shape[1] % columns == 0:
        return {"strategy": "group", "group_size": columns}
    if rows > 1 and columns > 1:
        return {"strategy": "block", "block_structure": [rows, columns]}
    raise ValueError(
        f"its blocks of {rows} x {columns} are not in compressed-tensors; allowed are groups that divide rows"
    )


def _activations(layer: Any, kind: str, static: Any) -> tuple[dict[str, Any] | None, dict[str, Content]]:
    """The arguments of the input's quantization, and its tensors; None for weights alone."""
    if isinstance(layer, dynamic.Linear):
        number: Any = layer.rounding.quantization.forward_number if isinstance(layer.rounding, Quantizer) else None
        if kind == "int" and number is None:
            return _DYNAMIC | {"type": "int", "strategy": "token"}, {}
        if isinstance(number, BlockScaled) and _name(number.element) == {"int": "int8", "float": "e4m3fn"}[kind]:
            whole = all(size is None for size in number.block_sizes(2))
            return _DYNAMIC | {"type": kind, "strategy": "tensor" if whole else "token"}, {}
        raise ValueError("its inputs and weights are not both 8-bit integers, or both e4m3fn; allowed is one of them")
    output = getattr(layer, "output", None)
    if isinstance(layer, RoundedLayer) and not isinstance(output, ScaledRounding):
        if isinstance(output, nn.Identity):
            return None, {}
        raise ValueError("its results are rounded to a format without a scale; allowed are e4m3fn, integers and None")
    if static is None:
        raise ValueError("the scale of its input is not known; allowed are inputs=[...], on which the layer runs")
    settings = {"num_bits": 8, "dynamic": False, "strategy": "tensor"}
    scale, zero_point = static
    tensors = {"input_scale": content_of(np.array([scale], np.float32))}
    if isinstance(layer, RoundedLayer):
        return settings | {"type": "float", "symmetric": True}, tensors
    if zero_point:
        tensors["input_zero_point"] = content_of(np.array([zero_point], np.int8))
    return settings | {"type": "int", "symmetric": not zero_point}, tensors


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
            found[id(module)] = max(known, float(x.detach().abs().max()) / _LARGEST), 0

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
