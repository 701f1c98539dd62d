"""Nodes of the domain "qbits" in a translated model, replaced by the nodes of their laws."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from qcore.affine import AffineInteger, law
from qcore.arguments import quoted
from qcore.arrays import quantize
from qcore.exchange import fused, laws
from qcore.exchange.graph import Graph, dtype_of, number_of, onnx_package
from qcore.exchange.rounding import decoded, rounded, scaled
from qcore.exchange.symbols import Names, Symbol, is_known
from qcore.law.rounding import RoundingName
from qcore.packing import unpack
from qtorch._exported import DOMAIN

Laws = Mapping[str, Callable[..., Any]]  # by the operator of a node: functions of the graph, operands and attributes


def expanded(model: Any, written: Laws) -> Graph:
    """The graph of an `onnx.ModelProto`, in which laws stand for the nodes of the domain "qbits".

    Results of the laws have the name of their layer and operation: "0.module/Requantize".
    """
    onnx, source = onnx_package(), model.graph
    graph = Graph(source.name)
    all_infos = (*source.input, *source.value_info, *source.output)
    # Lists of tensors, as in the loop of an EmbeddingBag, are no operands of laws.
    infos = {info.name: info.type.tensor_type for info in all_infos if info.type.HasField("tensor_type")}
    for name, info in infos.items():
        graph.types[name] = dtype_of(info.elem_type)
    graph.reserve(infos)
    graph.reserve(name for node in source.node for name in node.output)
    for one in source.initializer:
        graph.constant(onnx.numpy_helper.to_array(one), one.name)
    for one in source.input:
        graph.inputs.append(one)
    values: dict[str, Any] = {}  # of the laws' results, by the names that they have in the source
    finals = {one.name for one in source.output}
    for node in source.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            graph.constant(onnx.numpy_helper.to_array(node.attribute[0].t), node.output[0])
            continue
        if node.domain != DOMAIN and _is_foldable(node, graph):
            for name, found in zip(node.output, _evaluated(node, graph), strict=True):
                graph.constant(found, name)
            continue
        if node.domain != DOMAIN and (bounded := _without_bound(node, graph)) and node.output[0] not in finals:
            values[node.output[0]] = values[bounded] if bounded in values else _operand(graph, bounded, infos)
            continue
        if node.domain != DOMAIN:
            inputs = [values[name].name if name in values else name for name in node.input]
            if written is FUSED and fused.with_weights(graph, node, inputs):
                continue
            if node.op_type == "GatherND" and graph.types[inputs[1]] == "int32":  # torch's exporter keeps index types
                inputs[1] = graph.node("Cast", inputs[1], dtype="int64", to=number_of("int64"))
            del node.input[:]
            node.input.extend(inputs)
            graph.append(node)
            continue
        operands = [values[name] if name in values else _operand(graph, name, infos) for name in node.input]
        if node.op_type not in _OF_CONSTANTS and is_known(operands[0]):
            operands[0] = Symbol(graph, node.input[0], operands[0].dtype.name, operands[0].ndim)
        attributes = {one.name: _value(onnx.helper.get_attribute_value(one)) for one in node.attribute}
        layer = layer_of(node)
        try:
            results = written[node.op_type](graph, *operands, **attributes)
        except ValueError as error:
            raise ValueError(f"{layer or 'the model'}: {error}") from error
        for result, name in zip(results if isinstance(results, tuple) else (results,), node.output, strict=True):
            found = graph.constants.get(result.name) if isinstance(result, Symbol) else result
            if found is not None:
                graph.constant(found, name)
                continue
            result.rename(name if name in finals else graph.free_name(f"{layer}/{node.op_type}"))
            values[name] = result
    for one in source.output:
        if one.name in values:
            assert values[one.name].name == one.name  # sums are written where somebody asks for their name
        graph.outputs.append(one)
    return graph


def layer_of(node: Any) -> str:
    """The path of the module in which a node was traced; empty if it is not known."""
    found = {one.key: one.value for one in node.metadata_props}.get("pkg.torch.onnx.name_scopes")
    scopes = literal_eval(found) if found else []
    return scopes[-2] if len(scopes) > 1 else ""


_FOLDED = set(
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Cast Concat Div Equal Expand Flatten Gather GatherND "
    "Greater GreaterOrEqual Identity Less LessOrEqual Mod Mul Neg Not Or Range Reshape Shape Slice Squeeze "
    "Stack Sub Transpose Unsqueeze Where Xor ConstantOfShape".split()
)


def _without_bound(node: Any, graph: Graph) -> str:
    """The operand of a Max that changes nothing, since its bound is the least integer of the type; else ""."""
    if node.op_type != "Max" or len(node.input) != 2 or node.input[1] not in graph.constants:
        return ""
    bound = graph.constants[node.input[1]]
    is_least = bound.dtype.kind in "iu" and bound.ndim == 0 and bound == np.iinfo(bound.dtype).min
    return node.input[0] if is_least else ""


def _is_foldable(node: Any, graph: Graph) -> bool:
    """True if a node of known constants has the same result everywhere: its operator is exact or rounds once."""
    return node.op_type in _FOLDED and bool(node.input) and all(name in graph.constants for name in node.input if name)


def _evaluated(node: Any, graph: Graph) -> list[np.ndarray]:
    """The results of a node of known constants."""
    from onnx.reference import ReferenceEvaluator

    feeds = {name: graph.constants[name] for name in node.input if name}
    return [np.asarray(found) for found in ReferenceEvaluator(node).run(None, feeds)]  # type: ignore[arg-type]


def _operand(graph: Graph, name: str, infos: Any) -> Any:
    """A known array, a symbol, or None for an operand that is absent."""
    if not name:
        return None
    if name in graph.constants:
        return graph.constants[name]
    return Symbol(graph, name, graph.types[name], len(infos[name].shape.dim))


def _value(attribute: Any) -> Any:
    return attribute.decode() if isinstance(attribute, bytes) else attribute


def form_of(qmin: int, qmax: int, signed: int) -> AffineInteger:
    return AffineInteger(qmin, qmax, bool(signed))


def _quantize(law: Callable[..., Symbol]) -> Callable[..., Symbol]:
    """A law of an array, its parameters, an axis and integers, called with a node's attributes."""
    return lambda graph, x, scale, zero_point, axis=None, **form: law(x, scale, zero_point, axis, form_of(**form))


def _dequantize(apart: bool, law: Callable[..., Symbol]) -> Callable[..., Symbol]:
    """A law of integers and their parameters; known ones leave as they are."""

    def dequantize(graph: Graph, q: Any, scale: Any, zero_point: Any, axis: int | None = None, **form: int) -> Symbol:
        if is_known(q, scale, zero_point):
            return laws.stored(graph, q, scale, zero_point, axis, form_of(**form), apart)
        return law(q, scale, zero_point, axis, form_of(**form))

    return dequantize


def _fake_quantize(apart: bool, fake: Callable[..., Symbol]) -> Callable[..., Symbol]:
    """A law of an array and its parameters; known integers leave as they are."""

    def quantize(graph: Graph, x: Any, scale: Any, zero_point: Any, axis: int | None = None, **form: int) -> Symbol:
        if is_known(x, scale, zero_point):
            integers = law.quantize(Names, x, scale, zero_point, axis, form_of(**form))
            made = laws.stored(graph, integers, scale, zero_point, axis, form_of(**form), apart)
            return Names.astype(made, x.dtype.name)
        return fake(x, scale, zero_point, axis, form_of(**form))

    return quantize


def _round(graph: Graph, x: Any, number: str, rounding: RoundingName, overflow: str) -> Any:
    if is_known(x):
        return quantize(x, number, rounding, overflow=overflow or None)
    return rounded(x, number, rounding, overflow)


def _round_scaled(law: Callable[..., Symbol]) -> Callable[..., Symbol]:
    def round_scaled(graph: Graph, x: Any, scale: Any, number: str, axis: int) -> Symbol:
        if not is_known(scale):
            raise ValueError(f"rounding to {quoted(number)} with a scale of the call cannot be said in ONNX")
        if is_known(x):
            x = Symbol(graph, graph.constant(x), x.dtype.name, x.ndim)
        return law(x, scale, number, axis)

    return round_scaled


def _unpack(graph: Graph, packed: Any, bits: int, size: int) -> Any:
    if not is_known(packed):
        raise ValueError("packed codes that a model computes cannot be unpacked in ONNX; allowed are those of weights")
    return unpack(packed, bits, size)


def _decode(
    graph: Graph, codes: Any, scales: Any = None, scale: Any = None, apart: bool = True, *, number: str, dtype: str
) -> Symbol:
    if not is_known(codes, scales, scale):
        raise ValueError(f"codes of {quoted(number)} that a model computes cannot be decoded in ONNX")
    return decoded(graph, codes, scales, scale, number, dtype, apart)


def _requantize(law: Callable[..., Symbol]) -> Callable[..., Symbol]:
    return lambda graph, *parameters, axis, **form: law(*parameters, axis, form_of(**form))


def _dynamic(law: Callable[..., Symbol]) -> Callable[..., Symbol]:
    def dynamic(
        graph: Graph, x: Any, w: Any, scale: Any, zero: Any, bias: Any = None, *, dtype: str, rows: int, **form: int
    ) -> Symbol:
        return law(x, w, scale, zero, bias, form_of(**form), dtype, bool(rows))

    return dynamic


def _products(graph: Graph, *operands: Any, **settings: Any) -> Symbol:
    return laws.products(*operands, **settings)


def _windows(graph: Graph, *operands: Any, padding: Any, **settings: Any) -> Symbol:
    return laws.windows(*operands, padding=[(size, size) for size in padding], **settings)


def _fused_products(graph: Graph, *operands: Any, **settings: Any) -> Symbol:
    return fused.Sums(laws.products, operands, settings)


def _fused_windows(graph: Graph, *operands: Any, padding: Any, **settings: Any) -> Symbol:
    return fused.Sums(laws.windows, operands, {"padding": [(size, size) for size in padding], **settings})


_OF_CONSTANTS = {
    "Dequantize",
    "FakeQuantize",
    "Round",
    "RoundScaled",
    "Decode",
    "Unpack",
}  # what follows from constants is constant
LAWS: Laws = {
    "Quantize": _quantize(laws.quantize),
    "Dequantize": _dequantize(True, lambda q, scale, zero, axis, form: laws.dequantize(q, scale, zero, axis)),
    "FakeQuantize": _fake_quantize(True, laws.fake_quantize),
    "Requantize": _requantize(laws.requantize),
    "Dynamic": _dynamic(laws.dynamic),
    "Cell": lambda graph, *products, law: laws.cell(law, *products),
    "Products": _products,
    "Windows": _windows,
    "Round": _round,
    "RoundScaled": _round_scaled(scaled),
    "Decode": _decode,
    "Unpack": _unpack,
}
FUSED: Laws = {
    **LAWS,
    "Quantize": _quantize(fused.quantize),
    "Dequantize": _dequantize(False, fused.dequantize),
    "FakeQuantize": _fake_quantize(False, fused.fake_quantize),
    "Requantize": _requantize(fused.requantize),
    "Dynamic": _dynamic(fused.dynamic),
    "Products": _fused_products,
    "Windows": _fused_windows,
    "RoundScaled": _round_scaled(fused.scaled),
    "Decode": partial(_decode, apart=False),
}
