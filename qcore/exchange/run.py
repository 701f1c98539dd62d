"""Models in ONNX and QONNX, executed by the arrays of any framework."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from inspect import signature
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from qcore.arguments import MOST_QUOTED, check_type, quoted
from qcore.exchange.graph import onnx_package
from qcore.exchange.nodes import Node, checked_axis, known
from qcore.exchange.operators import OPERATORS
from qcore.exchange.operators.arithmetic import same_type
from qcore.exchange.operators.shapes import of_host
from qcore.exchange.values import Value, check_tensor, lifted, of_tensor, of_user, returned_as, type_of
from qcore.reproducible.operations import Names

if TYPE_CHECKING:
    from onnx import ModelProto

_DEEPEST = 64  # functions and graphs within one another


def run_onnx(
    file: str | os.PathLike[str] | bytes | ModelProto,
    inputs: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
) -> dict[str, np.ndarray]:
    """The outputs of a model in ONNX or QONNX, by the same operations in each package.

    Integers are those of onnxruntime, and for QONNX's operators those of its executor: QuantizeLinear, DequantizeLinear
    (also of blocks, and of all types of up to 32 bits), QLinearConv, QLinearMatMul, ConvInteger, MatMulInteger,
    DynamicQuantizeLinear, Cast; Quant, IntQuant, FloatQuant, BipolarQuant, Trunc, MultiThreshold. ONNX does not define
    the order of sums of floats, nor the bits of functions such as Exp: here they are computed in float64 and rounded
    once, so they differ from onnxruntime's in the last bits. JAX takes subnormal numbers for zeros.

    Args:
        file: the path of a model, its bytes, or an `onnx.ModelProto`.
        inputs: arrays by the names of the model's inputs. Integers of 2 and 4 bits are int8 or uint8 arrays, floats of
            8 and 4 bits are uint8 arrays of their codes. Arrays of ml_dtypes with these types are taken as well.
        outputs: the names of the tensors to return, which may lie within the model; None is the model's outputs.

    Returns:
        Arrays by name; integers of 2 and 4 bits, and floats of 8 and 4 bits, as for inputs.

    Raises:
        ImportError: if the package onnx is not installed.
        TypeError: if an argument has the wrong type.
        ValueError: if the file is not a model, a tensor has another size than its shape, an operator is not supported
            or does not fit its inputs, or an input is missing, unknown, or of another dtype or shape. The message names
            the tensor or the node.

    Example:
        >>> import numpy as np
        >>> from onnx import helper
        >>> graph = helper.make_graph(
        ...     [helper.make_node("QuantizeLinear", ["x", "scale"], ["y"])],
        ...     "small",
        ...     [helper.make_tensor_value_info("x", 1, [3])],
        ...     [helper.make_tensor_value_info("y", 2, [3])],
        ...     [helper.make_tensor("scale", 1, [], [0.5])],
        ... )
        >>> run_onnx(helper.make_model(graph), {"x": np.float32([-1, 0.75, 9])})
        {'y': array([ 0,  2, 18], dtype=uint8)}
    """
    check_type("inputs", inputs, Mapping, "a dict of arrays")
    for name, x in inputs.items():
        check_type(f"input {quoted(name)}", x, np.ndarray | np.generic, "a NumPy array")
    return execute(Names, file, inputs, outputs)


def execute(xp: Any, file: Any, inputs: Mapping[str, Any], outputs: Sequence[str] | None) -> dict[str, Any]:
    """`run_onnx` for arrays of a namespace, which are checked."""
    onnx = onnx_package()
    if isinstance(outputs, str) or not isinstance(outputs, (Sequence, NoneType)):
        raise TypeError(f"outputs is a {type(outputs).__name__}; allowed are None, and a list of names of tensors")
    model = _read(file, onnx)
    program = _Program(model, onnx, xp)
    with xp.arithmetic(), np.errstate(all="ignore"):
        values = program.run_graph(model.graph, {}, _given(xp, model.graph, inputs))
        wanted = [output.name for output in model.graph.output] if outputs is None else list(outputs)
        for name in wanted:
            if name not in values:
                raise ValueError(f"outputs names {quoted(name)}; allowed are tensors of the model")
        return {name: _returned(xp, values[name]) for name in wanted}


def _returned(xp: Any, value: Value) -> Any:
    return xp.astype(lifted(xp, value).array, returned_as(value.type))


def _read(file: Any, onnx: Any) -> Any:
    """The model in a file, checked."""
    if isinstance(file, onnx.ModelProto):
        model = file
    elif isinstance(file, bytes | str | os.PathLike):
        try:
            model = onnx.load_from_string(file) if isinstance(file, bytes) else onnx.load(os.fspath(file))
        except FileNotFoundError:
            raise
        except Exception as error:  # of protobuf, whose classes differ from version to version
            raise ValueError(f"file is not a model in ONNX: {quoted(str(error))}") from error
    else:
        raise TypeError(f"file is a {type(file).__name__}; allowed is a path, bytes, or an onnx.ModelProto")
    for tensor in model.graph.initializer:  # before the package's own checks, which do not say sizes
        check_tensor(tensor, onnx)
    try:
        onnx.checker.check_model(model)
    except Exception as error:  # a ValidationError, or what the C++ below raises
        raise ValueError(f"file is not a valid model: {quoted(str(error))}") from error
    return model


def _given(xp: Any, graph: Any, inputs: Mapping[str, Any]) -> dict[str, Value]:
    """The inputs of a graph that a user gives."""
    defaults = {tensor.name for tensor in graph.initializer}
    declared = {info.name: info for info in graph.input}
    for name in inputs:
        if name not in declared:
            raise ValueError(f"inputs has {quoted(name)}; allowed are {', '.join(map(quoted, declared))}")
    found = {}
    for name, info in declared.items():
        if name not in inputs:
            if name in defaults:
                continue
            raise ValueError(f"inputs lacks {quoted(name)}; allowed are {', '.join(map(quoted, declared))}")
        kind = info.type.tensor_type
        value = of_user(xp, name, inputs[name], type_of(kind.elem_type, f"input {quoted(name)}"))
        if kind.HasField("shape"):
            sizes = [one.dim_value if one.HasField("dim_value") else None for one in kind.shape.dim]
            shape = tuple(value.array.shape)
            if len(sizes) != len(shape) or any(
                size is not None and size != length for size, length in zip(sizes, shape, strict=True)
            ):
                allowed = ", ".join("any" if size is None else str(size) for size in sizes)
                raise ValueError(f"input {quoted(name)} has shape {shape}; allowed is ({allowed})")
        found[name] = value
    return found


class _Program:
    """A model with its functions."""

    def __init__(self, model: Any, onnx: Any, xp: Any) -> None:
        self.onnx, self.xp = onnx, xp
        self.versions = {one.domain: one.version for one in model.opset_import}
        self.functions = {(one.domain, one.name): one for one in model.functions}
        self._graphs = {"If": self._if, "Loop": self._loop, "Scan": self._scan}

    def run_graph(
        self, graph: Any, outer: Mapping[str, Value], given: Mapping[str, Value], depth: int = 0
    ) -> dict[str, Value]:
        """All values of a graph, which sees those of the graph around it."""
        values = dict(outer)
        values.update({tensor.name: of_tensor(tensor, self.onnx) for tensor in graph.initializer})
        if graph.sparse_initializer:
            raise ValueError("the model has sparse tensors; allowed are dense ones")
        values.update(given)
        self._run_nodes(graph.node, values, self.versions, {}, depth)
        return values

    def _run_nodes(
        self,
        nodes: Any,
        values: dict[str, Value],
        versions: Mapping[str, int],
        references: Mapping[str, Any],
        depth: int,
    ) -> None:
        if depth > _DEEPEST:
            raise ValueError(f"functions and graphs lie deeper than {_DEEPEST} within one another; allowed are fewer")
        for proto in nodes:
            name = f"node {quoted(proto.name or proto.output[0] if proto.output else proto.name)} ({proto.op_type})"
            for wanted in proto.input:
                if wanted and wanted not in values:
                    raise ValueError(f"{name} reads {quoted(wanted)}; allowed are tensors that were computed before it")
            inputs = [values[one] if one else None for one in proto.input]
            node = self._node(proto, name, versions, references)
            results = self._run_node(proto, node, inputs, values, depth)
            if len(results) < len(proto.output):
                raise ValueError(f"{name} has {len(proto.output)} outputs; allowed are {len(results)}")
            values.update({one: value for one, value in zip(proto.output, results, strict=False) if one})

    def _node(self, proto: Any, name: str, versions: Mapping[str, int], references: Mapping[str, Any]) -> Node:
        attributes = {}
        for one in proto.attribute:
            if one.ref_attr_name:  # of the function around the node
                if one.ref_attr_name in references:
                    attributes[one.name] = references[one.ref_attr_name]
                continue
            attributes[one.name] = self._attribute(one)
        version = versions.get(proto.domain, versions.get("ai.onnx" if not proto.domain else "", 1))
        return Node(proto.op_type, name, version, attributes, len(proto.output), self.onnx)

    def _attribute(self, proto: Any) -> Any:
        found = self.onnx.helper.get_attribute_value(proto)
        return found.decode("utf-8", "replace") if isinstance(found, bytes) else found

    def _run_node(
        self, proto: Any, node: Node, inputs: list[Value | None], values: dict[str, Value], depth: int
    ) -> tuple[Value, ...]:
        # What does not depend on inputs is computed by NumPy, so shapes are known in traced programs too.
        on_host = all(one is None or one.host is not None for one in inputs)
        xp = Names if on_host else self.xp
        operator = OPERATORS.get(proto.domain, {}).get(proto.op_type)
        run: Any
        if function := self.functions.get((proto.domain, proto.op_type)):
            run, arguments = self._call, (function, node, inputs, depth)
            on_host = False  # its nodes say
        elif not proto.domain and proto.op_type in self._graphs:
            run, arguments = self._graphs[proto.op_type], (node, values, depth, *inputs)
            on_host = False
        elif operator is not None:
            run, arguments = (
                operator,
                (xp, node, *(one if one is None or on_host else lifted(xp, one) for one in inputs)),
            )
        else:
            domain = f" of domain {quoted(proto.domain)}" if proto.domain else ""
            allowed = "operators that `qcore.exchange.operators.OPERATORS` lists"
            raise ValueError(f"{node.name}: the operator{domain} is not supported; allowed are {allowed}")
        try:
            signature(run).bind(*arguments)
            found = run(*arguments)
        except Exception as error:  # frameworks have many for arrays that do not fit
            if str(error).startswith("node "):
                raise
            raise ValueError(f"{node.name}: {str(error)[:MOST_QUOTED] or type(error).__name__}") from error
        results = (found,) if isinstance(found, Value) else tuple(found)
        return tuple(_on_host(one) for one in results) if on_host else results

    def _call(self, function: Any, node: Node, inputs: list[Value | None], depth: int) -> tuple[Value, ...]:
        """A function of the model."""
        if len(inputs) > len(function.input):
            raise ValueError(f"{len(inputs)} inputs; allowed are {len(function.input)}")
        values = {name: value for name, value in zip(function.input, inputs, strict=False) if value is not None}
        references = {one.name: self._attribute(one) for one in function.attribute_proto}
        references.update(node.attributes)
        versions = {one.domain: one.version for one in function.opset_import}
        self._run_nodes(function.node, values, versions, references, depth + 1)
        return tuple(values[name] for name in function.output)

    # Control flow. Branches and numbers of steps are known before the program runs, or read from the arrays.

    def _body(
        self, node: Node, name: str, values: Mapping[str, Value], given: Sequence[Value], depth: int
    ) -> list[Value]:
        """The outputs of a graph that is an attribute."""
        graph = node.attributes[name]
        if len(given) != len(graph.input):
            raise ValueError(f"{name} has {len(graph.input)} inputs; allowed are {len(given)}")
        inner = {one.name: value for one, value in zip(graph.input, given, strict=True)}
        found = self.run_graph(graph, values, inner, depth + 1)
        return [found[one.name] for one in graph.output]

    def _if(self, node: Node, values: Mapping[str, Value], depth: int, condition: Value) -> tuple[Value, ...]:
        branch = "then_branch" if known("the condition", condition).reshape(-1)[0] else "else_branch"
        return tuple(self._body(node, branch, values, (), depth))

    def _loop(
        self,
        node: Node,
        values: Mapping[str, Value],
        depth: int,
        most: Value | None,
        condition: Value | None,
        *carried: Value,
    ) -> tuple[Value, ...]:
        steps = None if most is None else int(known("the number of steps", most).reshape(-1)[0])
        state, going, step = list(carried), condition or of_host(True, "bool"), 0
        collected: list[list[Value]] = [[] for _ in range(node.outputs - len(state))]
        while (steps is None or step < steps) and known("the condition", going).reshape(-1)[0]:
            found = self._body(node, "body", values, (of_host(step, "int64"), going, *state), depth)
            going, state = found[0], found[1 : 1 + len(state)]
            for rows, one in zip(collected, found[1 + len(state) :], strict=True):
                rows.append(one)
            step += 1
        if collected and not step:
            raise ValueError("a loop of no steps has outputs of each step; allowed is at least one step")
        return (*state, *(self._stacked(rows, 0) for rows in collected))

    def _scan(self, node: Node, values: Mapping[str, Value], depth: int, *inputs: Value) -> tuple[Value, ...]:
        count = node.attributes["num_scan_inputs"]
        state, scanned = list(inputs[: len(inputs) - count]), inputs[len(inputs) - count :]
        axes = node.get("scan_input_axes") or [0] * count
        backward = node.get("scan_input_directions") or [0] * count
        outputs = node.outputs - len(state)
        into = node.get("scan_output_axes") or [0] * outputs
        reversed_outputs = node.get("scan_output_directions") or [0] * outputs
        axes = [checked_axis(axis, one.ndim) for axis, one in zip(axes, scanned, strict=True)]
        lengths = {one.shape[axis] for axis, one in zip(axes, scanned, strict=True)}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"inputs of {sorted(lengths)} steps; allowed is one number of steps, at least 1")
        (steps,) = lengths
        collected: list[list[Value]] = [[] for _ in range(outputs)]
        for step in range(steps):
            parts = [
                Value(one.array[(*(slice(None),) * axis, steps - 1 - step if back else step)], one.type)
                for one, axis, back in zip(scanned, axes, backward, strict=True)
            ]
            found = self._body(node, "body", values, (*state, *parts), depth)
            state = found[: len(state)]
            for rows, one in zip(collected, found[len(state) :], strict=True):
                rows.append(one)
        stacked = [
            self._stacked(rows[::-1] if back else rows, axis)
            for rows, axis, back in zip(collected, into, reversed_outputs, strict=True)
        ]
        return (*state, *stacked)

    def _stacked(self, rows: Sequence[Value], axis: int) -> Value:
        return Value(self.xp.stack([lifted(self.xp, one).array for one in rows], axis), same_type(*rows))


def _on_host(value: Value) -> Value:
    array = np.asarray(value.array)
    return Value(array, value.type, array)
