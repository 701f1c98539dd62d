"""Nodes of the domain "qbits" in a translated model, replaced by the nodes of their laws."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable
from typing import Any

from qcore.affine import AffineInteger
from qcore.exchange import laws
from qcore.exchange.graph import Graph, dtype_of, onnx_package
from qcore.exchange.symbols import Symbol
from qtorch._affine.exported import DOMAIN


def expanded(model: Any) -> Graph:
    """The graph of an `onnx.ModelProto`, in which laws stand for the nodes of the domain "qbits".

    Results of the laws have the name of their layer and operation: "0.module/Requantize".
    """
    onnx, source = onnx_package(), model.graph
    graph = Graph(source.name)
    infos = {info.name: info.type.tensor_type for info in (*source.input, *source.value_info, *source.output)}
    for name, info in infos.items():
        graph.types[name] = dtype_of(info.elem_type)
    graph.take(infos)
    graph.take(name for node in source.node for name in node.output)
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
        if node.domain != DOMAIN:
            inputs = [values[name].name if name in values else name for name in node.input]
            del node.input[:]
            node.input.extend(inputs)
            graph.append(node)
            continue
        operands = [values[name] if name in values else _operand(graph, name, infos) for name in node.input]
        attributes = {one.name: _value(onnx.helper.get_attribute_value(one)) for one in node.attribute}
        layer = layer_of(node)
        try:
            results = _LAWS[node.op_type](*operands, **attributes)
        except ValueError as error:
            raise ValueError(f"{layer or 'the model'}: {error}") from error
        for result, name in zip(results if isinstance(results, tuple) else (results,), node.output, strict=True):
            result.rename(name if name in finals else graph.free_name(f"{layer}/{node.op_type}"))
            values[name] = result
    for one in source.output:
        graph.outputs.append(one)
    return graph


def layer_of(node: Any) -> str:
    """The path of the module in which a node was traced; empty if it is not known."""
    found = {one.key: one.value for one in node.metadata_props}.get("pkg.torch.onnx.name_scopes")
    scopes = literal_eval(found) if found else []
    return scopes[-2] if len(scopes) > 1 else ""


def _operand(graph: Graph, name: str, infos: Any) -> Any:
    """A known array, a symbol, or None for an operand that is absent."""
    if not name:
        return None
    if name in graph.constants:
        return graph.constants[name]
    return Symbol(graph, name, graph.types[name], len(infos[name].shape.dim))


def _value(attribute: Any) -> Any:
    return attribute.decode() if isinstance(attribute, bytes) else attribute


def _form(qmin: int, qmax: int, signed: int) -> AffineInteger:
    return AffineInteger(qmin, qmax, bool(signed))


def _quantize(law: Callable[..., Symbol]) -> Callable[..., Symbol]:
    """A law of an array, its parameters, an axis and integers, called with a node's attributes."""
    return lambda x, scale, zero_point, axis=None, **form: law(x, scale, zero_point, axis, _form(**form))


def _dequantize(q: Any, scale: Any, zero_point: Any, axis: int | None = None) -> Symbol:
    return laws.dequantize(q, scale, zero_point, axis)


def _requantize(sums: Symbol, *parameters: Any, axis: int, **form: int) -> Symbol:
    input_scale, weight_scale, bias, scale, zero_point = parameters
    return laws.requantize(sums, input_scale, weight_scale, bias, scale, zero_point, axis, _form(**form))


def _windows(x: Any, x_zero: Any, w: Any, w_zero: Any, padding: Any, **settings: Any) -> Symbol:
    return laws.windows(x, x_zero, w, w_zero, padding=[(size, size) for size in padding], **settings)


_LAWS: dict[str, Callable[..., Any]] = {
    "Quantize": _quantize(laws.quantize),
    "Dequantize": _dequantize,
    "FakeQuantize": _quantize(laws.fake_quantize),
    "Requantize": _requantize,
    "QuantizeDynamic": lambda x, **form: laws.quantize_dynamic(x, _form(**form)),
    "Products": laws.products,
    "Windows": _windows,
}
