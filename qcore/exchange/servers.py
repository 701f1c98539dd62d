"""Quantized linear layers as servers such as vLLM read them: tensors and configuration of compressed-tensors."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qcore.affine.integers import AffineInteger
from qcore.exchange.encoded import Content
from qcore.exchange.safetensors import content_of, write_file
from qcore.formats.block import BlockScaled
from qcore.formats.fixed import FixedPoint
from qcore.packing import pack

LARGEST = float(np.float32(448))  # of e4m3fn
_DYNAMIC = {"num_bits": 8, "symmetric": True, "dynamic": True}
_FORMATS = ("int", False), ("int", True), ("float", False), ("float", True)
_NAMES = dict(zip(_FORMATS, ("pack-quantized", "int-quantized", "float-quantized", "float-quantized"), strict=True))
Scheme = dict[str, Any]


@dataclass
class Weight:
    """A matrix of a linear layer: the arguments of its quantization, its tensors by name, and its shape."""

    scheme: Scheme
    tensors: dict[str, Content]
    shape: tuple[int, ...]


@dataclass
class Inputs:
    """How a layer's input is quantized: the arguments, None for weights alone, and tensors by name."""

    scheme: Scheme | None
    tensors: dict[str, Content]


@dataclass
class Layer:
    """A linear layer for the file: its scheme, and its tensors by the names that compressed-tensors gives them."""

    scheme: Scheme
    format: str
    tensors: dict[str, Content]


def linear(weight: Weight, inputs: Inputs, bias: np.ndarray | None) -> Layer:
    """A linear layer of its parts."""
    kind, tensors = _NAMES[weight.scheme["type"], inputs.scheme is not None], dict(weight.tensors)
    if kind == "pack-quantized":
        tensors = {
            "weight_packed": _words(tensors.pop("weight").data.view(np.int8), weight.scheme["num_bits"]),
            "weight_shape": content_of(np.array(weight.shape, np.int64)),
        } | tensors
    if bias is not None:
        tensors["bias"] = content_of(bias)
    scheme = {"weights": weight.scheme, "input_activations": inputs.scheme, "output_activations": None}
    return Layer(scheme, kind, tensors | inputs.tensors)


def _words(values: np.ndarray, bits: int) -> Content:
    """Integers of up to 8 bits side by side in int32, with an offset of half their range."""
    codes = (values.astype(np.int16) + (1 << bits - 1)).astype(np.uint8)
    data = pack(codes, bits)
    return content_of(np.pad(data, [(0, 0), (0, -data.shape[-1] % 4)]).view("<i4"))


def weight_of_integers(
    values: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, axis: int | None, form: AffineInteger, bits: int
) -> Weight:
    """A weight in integers, which are stored in 4 or 8 bits.

    Raises:
        ValueError: if compressed-tensors has no such integers.
    """
    if zero_point.any() or not form.signed or form.bits > 8:
        raise ValueError(f"its weight is {form.text} with zero points; allowed are symmetric integers of 8 bits")
    scheme = {"num_bits": bits, "type": "int", "strategy": "tensor" if axis is None else "channel", "symmetric": True}
    scales = scale.reshape(1) if axis is None else scale.reshape(-1, 1)
    return Weight(scheme, {"weight": content_of(values), "weight_scale": content_of(scales)}, values.shape)


def element_of(number: Any) -> Any:
    """The format of the elements of a weight's format.

    Raises:
        ValueError: if compressed-tensors has no such weights.
    """
    element = getattr(number, "element", number)
    known = _is_integer(element) or _name(element) == "e4m3fn"
    if not isinstance(number, BlockScaled) or number.scale != "float32" or not known:
        raise ValueError(
            f"its weight is {number.text}; allowed are int2 to int8 and e4m3fn with scales in float32, such as "
            'BlockScaled("int4", {-1: 128}, scale="float32")'
        )
    return element


def weight_of_codes(number: Any, codes: np.ndarray, scales: np.ndarray) -> Weight:
    """A weight in a format, with a code in each byte.

    Raises:
        ValueError: if compressed-tensors has no such format.
    """
    element, shape = element_of(number), codes.shape
    strategy = _strategy(number, shape)
    scheme = {"num_bits": element.bits, "type": "int" if _is_integer(element) else "float", **strategy}
    if _is_integer(element):
        half = 1 << element.bits - 1
        values = content_of(((codes.astype(np.int16) ^ half) - half).astype(np.int8))
    else:
        values = Content("F8_E4M3", shape, codes)
    scales = scales.reshape(1) if scheme["strategy"] == "tensor" else scales
    return Weight(scheme | {"symmetric": True}, {"weight": values, "weight_scale": content_of(scales)}, shape)


def _is_integer(element: Any) -> bool:
    return isinstance(element, FixedPoint) and element.fl == 0 and element.bits <= 8


def _name(element: Any) -> str:
    """A format's text without its overflow."""
    return element.text.removesuffix(":saturate")


def _strategy(number: BlockScaled, shape: tuple[int, ...]) -> Scheme:
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


def dynamic_inputs(kind: str, number: Any) -> Inputs:
    """Inputs that are quantized by their own range, to integers or to a format.

    Args:
        kind: of the weight.
        number: the format of inputs; None for integers.

    Raises:
        ValueError: if compressed-tensors has no such inputs.
    """
    if kind == "int" and number is None:
        return Inputs(_DYNAMIC | {"type": "int", "strategy": "token"}, {})
    if isinstance(number, BlockScaled) and _name(number.element) == {"int": "int8", "float": "e4m3fn"}[kind]:
        whole = all(size is None for size in number.block_sizes(2))
        return Inputs(_DYNAMIC | {"type": kind, "strategy": "tensor" if whole else "token"}, {})
    raise ValueError("its inputs and weights are not both 8-bit integers, or both e4m3fn; allowed is one of them")


def static_inputs(kind: str, static: tuple[float, int] | None) -> Inputs:
    """Inputs with a scale, and for integers a zero point in int8.

    Raises:
        ValueError: if they are not known.
    """
    if static is None:
        raise ValueError("the scale of its input is not known; allowed are inputs=[...], on which the layer runs")
    scale, zero_point = static
    tensors = {"input_scale": content_of(np.array([scale], np.float32))}
    if zero_point:
        tensors["input_zero_point"] = content_of(np.array([zero_point], np.int8))
    scheme = {"num_bits": 8, "dynamic": False, "strategy": "tensor", "type": kind, "symmetric": not zero_point}
    return Inputs(scheme, tensors)


NO_SCALE = "its results are rounded to a format without a scale; allowed are e4m3fn, integers and None"
HALVES = "its weight is float16; allowed are integers and codes of formats"


def in_integers(kind: str) -> ValueError:
    """The error for a layer in integers that is not linear."""
    return ValueError(f"{kind} in integers is not in compressed-tensors; allowed are linear layers")


def write(
    folder: str | os.PathLike[str],
    layers: Mapping[str, Layer],
    tensors: Mapping[str, Content],
    ignored: Sequence[str],
    known: Mapping[str, Any],
) -> None:
    """Writes model.safetensors, and config.json with a quantization_config.

    Args:
        folder: which is made; files in it are replaced.
        layers: the quantized layers by name.
        tensors: all tensors of the model by name.
        ignored: the names of linear layers in floats.
        known: the rest of the configuration.

    Raises:
        ValueError: if no layer is quantized.
    """
    if not layers:
        raise ValueError("model has no quantized linear layer; allowed is one that quantize_model or convert returned")
    os.makedirs(folder, exist_ok=True)
    write_file(Path(folder) / "model.safetensors", tensors, {"format": "pt"})
    config = {**known, "quantization_config": _configuration(layers, ignored)}
    text = json.dumps(config, indent=2, sort_keys=True, default=str)
    (Path(folder) / "config.json").write_text(f"{text}\n", encoding="utf-8")


def _configuration(layers: Mapping[str, Layer], ignored: Sequence[str]) -> dict[str, Any]:
    """The quantization_config: layers of one scheme are a group."""
    schemes: list[tuple[Scheme, str, list[str]]] = []
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
        "ignore": list(ignored),
    }
