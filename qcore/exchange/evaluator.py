"""onnx's reference evaluator with our operators; nodes are counted, checked before they run, and named in errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from inspect import Parameter, signature
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpFunction, OpRun, RuntimeContextError

from qcore.arguments import MOST_QUOTED, quoted
from qcore.exchange.limits import check_shape, count_step
from qcore.exchange.operators import OPERATORS
from qcore.exchange.operators.quantization import checked_axis

_KNOWN = 64  # elements of small arrays whose numbers shapes may depend on
_DIVISORS = {"blocksize", "dilations", "group", "kernel_shape", "num_groups", "strides"}
_NOWHERE = onnx.AttributeProto()  # of a node that does not have it


class NodeError(ValueError):
    """An error that names its node."""


class Evaluator(ReferenceEvaluator):
    """A graph, a function, or the body of a loop; the package makes those within one another of the same class."""

    def __init__(self, proto: Any, **settings: Any) -> None:
        super().__init__(proto, **{**settings, "new_ops": _CLASSES})
        self.rt_nodes_ = [_Checked(node, self.opsets) for node in self.rt_nodes_]

    def _load_impl(self, node: Any, input_types: Any = None) -> Any:
        try:
            found = super()._load_impl(node, input_types)
        except RuntimeContextError:
            raise
        except Exception as error:
            domain = f" of domain {quoted(node.domain)}" if node.domain else ""
            allowed = "allowed are those of onnx.reference, and of `qcore.exchange.operators.OPERATORS`"
            raise _named(node, f"the operator{domain} is not supported; {allowed}") from error
        return lambda *args: _made(found, *args)

    def run(self, output_names: Any, feed_inputs: Any, attributes: Any = None, **settings: Any) -> Any:
        """As the package's, which says at every step what it could print."""
        if isinstance(self.proto_, onnx.FunctionProto):
            defaults = {one.name: helper.get_attribute_value(one) for one in self.proto_.attribute_proto}
            attributes = {**defaults, **(attributes or {})}
        values = {"": None, **self.rt_inits_, **feed_inputs}
        for node in self.rt_nodes_:
            values.update(node.run(values, attributes))
        return [values[name] for name in (self.output_names_ if output_names is None else output_names)]


def _made(make: Callable[..., Any], node: Any, *settings: Any) -> Any:
    """An operator of a node."""
    try:
        return make(node, *settings)
    except NodeError:
        raise
    except Exception as error:
        raise _named(node, error) from error


class _Checked:
    """An operator of the package, whose results are checked before it runs."""

    def __init__(self, operator: Any, opsets: Mapping[str, int]) -> None:
        self._operator, self._opsets, self._node = operator, opsets, operator.onnx_node
        self._inputs, self._outputs = tuple(self._node.input), tuple(self._node.output)
        self._in_context, self.has_linked_attribute = operator.need_context(), operator.has_linked_attribute
        names = getattr(getattr(operator, "impl_", None), "input_names", ())
        self._absent = (None,) * (len(names) - len(self._inputs))  # what a call of a function leaves out
        self._last: Any = None  # the kinds of the inputs that were checked

    def run(self, values: Mapping[str, Any], attributes: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
        """The results by name."""
        try:
            count_step()
            inputs = (*(values[name] for name in self._inputs), *self._absent)
            kinds = [_kind(one) for one in inputs]
            linked = attributes if self.has_linked_attribute and attributes else None
            node = self._node if linked is None else _resolved(self._node, linked)
            if kinds != self._last or linked:
                _check_results(node, inputs, self._opsets)
                self._last = kinds
            return zip(self._outputs, self._results(node, inputs, values, linked), strict=False)
        except NodeError:  # of a node within this one
            raise
        except Exception as error:  # of NumPy or of the package
            # The package hides the errors of arguments behind one of its own.
            cause = error.__cause__ if isinstance(error, TypeError) and error.__cause__ else error
            raise _named(self._node, cause) from error

    def _results(self, node: Any, inputs: Sequence[Any], values: Any, linked: Any) -> Any:
        operator = self._operator
        if self._in_context or isinstance(operator, OpFunction):
            settings = {"context": values} if self._in_context else {}
            return operator.run(*inputs, **settings, **({"linked_attributes": linked} if linked else {}))
        if linked:  # which not all operators take
            operator = type(operator)(node, operator.run_params)
        if type(operator).run is not OpRun.run:
            return operator.run(*inputs)
        # As it does, without the text that it makes for each node.
        found = operator._run(*inputs, **{name: getattr(operator, name) for name in operator.attributes_names_})
        return [np.asarray(one) if isinstance(one, np.generic) else one for one in found]


def _named(node: Any, what: object) -> NodeError:
    name = quoted(node.name or (node.output[0] if node.output else ""))
    text = str(what)[:MOST_QUOTED] or type(what).__name__
    return NodeError(f"node {name} ({node.op_type}): {' '.join(text.split())}")


def _kind(x: Any) -> Any:
    """What the shapes of a node's results may depend on."""
    if not isinstance(x, np.ndarray):
        return x if x is None else object()  # sequences are never the same
    return x.dtype, x.shape, x.tobytes() if x.size <= _KNOWN else None


def _resolved(node: Any, linked: Mapping[str, Any] | None) -> Any:
    """A node with the attributes of the function around it."""
    if not linked or not any(one.ref_attr_name for one in node.attribute):
        return node
    found = _copied(node)
    del found.attribute[:]
    for one in node.attribute:
        value = linked.get(one.ref_attr_name) if one.ref_attr_name else None
        if not one.ref_attr_name:
            found.attribute.append(one)
        elif value is not None:
            found.attribute.append(helper.make_attribute(one.name, value))
    return found


def _copied(node: Any) -> Any:
    found = onnx.NodeProto()
    found.CopyFrom(node)
    return found


def _check_results(node: Any, inputs: Sequence[Any], opsets: Mapping[str, int]) -> None:
    """Raises if inputs do not fit an operator, or its results would be too large, by the package's inference."""
    arrays = {name: one for name, one in zip(node.input, inputs, strict=False) if name and one is not None}
    attributes = {one.name: one for one in node.attribute}
    for one in arrays.values():
        if isinstance(one, list):  # which an operator may join
            check_shape((sum(np.size(part) for part in one),), "a sequence")
    if node.op_type == "Range" or any(one.type == onnx.AttributeProto.GRAPH for one in attributes.values()):
        return  # Range checks itself, and takes arrays of one number, as runtimes do; nodes within others come later
    for name in _DIVISORS & attributes.keys():  # by which the package divides
        one = attributes[name]
        found = list(one.ints) if one.type == onnx.AttributeProto.INTS else [one.i]
        if min(found, default=1) < 1:
            raise ValueError(f"{name}={found}; allowed are ints from 1 on")
    if "num_outputs" in attributes and attributes["num_outputs"].i != len(node.output):
        count, outputs = attributes["num_outputs"].i, len(node.output)
        raise ValueError(f"num_outputs={count} of {outputs} outputs; allowed is {outputs}")
    if node.op_type == "MaxUnpool" and len(inputs) == 3:
        check_shape(tuple(map(int, inputs[2])))
    if "pads" in attributes and len(attributes["pads"].ints) == 2 * (np.ndim(inputs[0]) - 2):
        pads, (batch, channels, *sizes) = attributes["pads"].ints, np.shape(inputs[0])
        check_shape((batch, channels, *map(sum, zip(sizes, pads, pads[len(sizes) :], strict=False))), "a padded input")
    if attributes.get("auto_pad", _NOWHERE).s.startswith(b"SAME") and "kernel_shape" in attributes:
        (batch, channels, *sizes), kernel = np.shape(inputs[0]), attributes["kernel_shape"].ints
        check_shape((batch, channels, *map(sum, zip(sizes, kernel, strict=False))), "a padded input")
    try:
        schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
    except onnx.defs.SchemaError:
        return  # operators of other domains check their own results
    if not all(isinstance(one, np.ndarray) and one.dtype.kind not in "OSU" for one in arrays.values()):
        return
    if any(name and name not in arrays for name in node.input):  # of a function, called without it
        node, inputs = _copied(node), [name if name in arrays else "" for name in node.input]
        node.input[:] = inputs
    types = {name: _type_of(one) for name, one in arrays.items()}
    small = {name: numpy_helper.from_array(one, name) for name, one in arrays.items() if one.size <= _KNOWN}
    versions = [helper.make_opsetid(*one) for one in opsets.items()]
    found = onnx.shape_inference.infer_node_outputs(schema, node, types, small, opset_imports=versions)
    for name, one in found.items():
        sizes = [size.dim_value for size in one.tensor_type.shape.dim]
        check_shape(tuple(size if size else 1 for size in sizes), f"the result {quoted(name)}")


def _type_of(x: np.ndarray) -> Any:
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)


# Control flow, whose classes in the package lack axes, directions, and loops without a condition.


class Loop(OpRun):
    """Loop."""

    body: Any

    def need_context(self) -> bool:
        return True

    def _run(self, most: Any = None, condition: Any = None, *state: Any, **settings: Any) -> tuple[Any, ...]:
        body, context, attributes = self.body, settings["context"], settings.get("attributes")
        going, step, rows = condition is None or bool(condition.reshape(-1)[0]), 0, _Rows(len(state), body)
        while going and (most is None or step < int(most.reshape(-1)[0])):
            count_step()
            given = np.array(step, np.int64), np.array(going), *state
            found = body.run(None, {**context, **dict(zip(body.input_names, given, strict=True))}, attributes)
            going, state = bool(found[0].reshape(-1)[0]), tuple(found[1 : 1 + len(state)])
            rows.add(found[1 + len(state) :])
            step += 1
        return (*state, *rows.stacked())


class Scan(OpRun):
    """Scan, from version 9 on."""

    body: Any

    def need_context(self) -> bool:
        return True

    def _run(self, *inputs: Any, num_scan_inputs: int, **settings: Any) -> tuple[Any, ...]:
        body, attributes, count = self.body, settings.get("attributes"), num_scan_inputs
        if (version := self.run_params["opsets"][""]) < 9:
            raise ValueError(f"version {version} of the standard; allowed is 9 on, which has no batches")
        if not 1 <= count <= len(inputs):
            raise ValueError(f"num_scan_inputs={count} of {len(inputs)} inputs; allowed are as many")
        state, scanned = inputs[: len(inputs) - count], inputs[len(inputs) - count :]
        axes = [
            checked_axis(a, x.ndim)
            for a, x in zip(settings.get("scan_input_axes") or [0] * count, scanned, strict=True)
        ]
        lengths = {x.shape[axis] for x, axis in zip(scanned, axes, strict=True)}
        if len(lengths) != 1:
            raise ValueError(f"inputs of {sorted(lengths)} steps; allowed is one number of steps")
        turned = settings.get("scan_input_directions") or [0] * count
        parts = [np.moveaxis(x, a, 0)[:: -1 if back else 1] for x, a, back in zip(scanned, axes, turned, strict=True)]
        rows = _Rows(len(state), body, 0)
        for step in range(*lengths):
            count_step()
            given = *state, *(one[step] for one in parts)
            found = body.run(
                None, {**settings["context"], **dict(zip(body.input_names, given, strict=True))}, attributes
            )
            state = tuple(found[: len(state)])
            rows.add(found[len(state) :])
        into, backward = settings.get("scan_output_axes"), settings.get("scan_output_directions")
        return (*state, *rows.stacked(into, backward))


class _Rows:
    """What a loop returns of each step; `first` of its results are no state."""

    def __init__(self, states: int, body: Any, first: int = 1) -> None:
        self._rows: list[list[Any]] = [[] for _ in body.output_names[first + states :]]

    def add(self, found: Sequence[Any]) -> None:
        for rows, one in zip(self._rows, found, strict=True):
            check_shape((len(rows) + 1, *one.shape), "a result of all steps")
            rows.append(one)

    def stacked(self, axes: Sequence[int] | None = None, backward: Sequence[int] | None = None) -> Iterator[Any]:
        count = len(self._rows)
        for rows, axis, back in zip(self._rows, axes or [0] * count, backward or [0] * count, strict=True):
            if not rows:
                raise ValueError("a loop of no steps has results of each step; allowed is at least one step")
            yield np.stack(rows[::-1] if back else rows, axis)


def _class(domain: str, name: str, law: Callable[..., Any]) -> type[OpRun]:
    """The class of an operator that a function computes."""
    parameters = signature(law).parameters
    takes_all = any(one.kind == Parameter.VAR_KEYWORD for one in parameters.values())
    keywords = {key for key, one in parameters.items() if one.kind == Parameter.KEYWORD_ONLY}

    def _run(self: OpRun, *inputs: Any, **settings: Any) -> tuple[Any, ...]:
        # What a node leaves out has the law's default: the package gives it that of the newest version.
        given = {one.name: settings[one.name] for one in self.onnx_node.attribute if one.name in settings}
        known = given if takes_all else {key: value for key, value in given.items() if key in keywords}
        more = {"version": self.run_params["opsets"][domain], "outputs": len(self.output)}
        known.update({key: value for key, value in more.items() if key in keywords})
        found = law(*inputs, **known)
        return found if isinstance(found, tuple) else (np.asarray(found),)

    return type(name, (OpRun,), {"op_domain": domain, "_run": _run})


_CLASSES = [Loop, Scan, *(_class(domain, *one) for domain, found in OPERATORS.items() for one in found.items())]


def in_order(functions: Sequence[Any]) -> list[Any]:
    """Functions of a model, behind the functions that they call."""
    known = {(one.domain, one.name): one for one in functions}
    for one in functions:
        made = {*one.input, *(name for node in one.node for name in node.output)}
        if missing := [name for name in one.output if name not in made]:
            raise ValueError(
                f"function {quoted(one.name)} has no result {quoted(missing[0])}; allowed are what its nodes compute"
            )
    calls = {key: {node for node in _called(one.node) if node in known} for key, one in known.items()}
    try:
        return [known[key] for key in TopologicalSorter(calls).static_order()]
    except CycleError as error:
        name = quoted(error.args[1][0][1])
        raise ValueError(
            f"function {name} calls itself, also by way of others; allowed are calls without circles"
        ) from error


def _called(nodes: Any) -> Iterator[tuple[str, str]]:
    """The operators of nodes, also within loops and branches."""
    for node in nodes:
        yield node.domain, node.op_type
        for one in node.attribute:
            yield from _called(one.g.node)
