"""The walk of a traced program: each equation becomes nodes of a graph, which are written when something needs them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.extend.source_info_util import summarize

from qcore.exchange.fused import transposed
from qcore.exchange.graph import Graph, number_of
from qcore.exchange.symbols import Weights
from qcore.names import shown
from qjax import _jaxprs as jaxprs
from qjax._rounding.scopes import layer_of, operation_of

_FOLDED = 1 << 16  # bytes of a constant that may be larger than what it is computed from


class RefusedError(ValueError):
    """The error of an equation that has no form in ONNX."""


class Value:
    """An array of the program: known numbers, or the result of a node.

    Attributes:
        shape, dtype: of the array.
        known: its numbers in NumPy, if they are the same in every run; else None.
        node: what computes it, or None for an input.
        name: of the result in the file; None before something needs it.
        unexpanded: a smaller value that broadcasts to this one, or None.
        label: the name that known numbers get in the file; "" for any.
        symbol: what a law returned, if one made the value.
    """

    __slots__ = ("dtype", "graph", "known", "label", "name", "node", "shape", "symbol", "unexpanded")

    def __init__(self, shape: Sequence[int], dtype: Any, known: np.ndarray | None = None) -> None:
        self.shape, self.dtype, self.known = tuple(map(int, shape)), np.dtype(dtype), known
        self.node: Node | None = None
        self.name: str | None = None
        self.unexpanded: Value | None = None
        self.graph: Graph | None = None
        self.label = ""
        self.symbol: Any = None

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def equals(self, other: Value) -> bool:
        """True if both are known and have the same numbers."""
        return self.known is not None and other.known is not None and np.array_equal(self.known, other.known)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


class Node:
    """A node that is not in the graph before one of its results is needed.

    Attributes:
        op, inputs, attributes: the operator and its operands; None for an optional operand that is absent.
        results: its results.
    """

    __slots__ = ("attributes", "inputs", "op", "results")

    def __init__(self, op: str, inputs: Sequence[Value | None], attributes: dict[str, Any]) -> None:
        self.op, self.inputs, self.attributes = op, tuple(inputs), attributes
        self.results: list[Value] = []


Translation = Callable[..., Any]


class Walk:
    """The translation of programs into a graph.

    Args:
        graph: the graph.
        primitives: for each primitive a function(walk, equation, *values) that returns the result's `Value`, or
            a list of them.
        operations: a function(walk, equation, values) for calls of this library's operations: the results, or None
            where an equation is not such a call.

    Attributes:
        stack: the name scopes of the equation that is translated, from the outermost one.
    """

    def __init__(self, graph: Graph, primitives: dict[str, Translation], operations: Translation) -> None:
        self.graph, self.primitives, self.operations = graph, primitives, operations
        self.stack = ""
        self._open: list[Any] = []  # the equations that are translated, outermost first

    # Values

    def constant(self, array: Any, dtype: Any = None, label: str = "") -> Value:
        """A value of known numbers, with a name for the file."""
        array = np.asarray(array, dtype)
        value = Value(array.shape, array.dtype, array)
        value.label = label
        return value

    def input(self, name: str, dtype: Any, shape: Sequence[int], graph: Graph | None = None) -> Value:
        """An input of a graph, by default of the outermost one."""
        value, graph = Value(shape, dtype), graph or self.graph
        value.name, value.graph = graph.input(name, value.dtype.name, value.shape), graph
        return value

    def emit(self, op: str, *inputs: Value | None, shape: Sequence[int], dtype: Any, **attributes: Any) -> Value:
        """The result of a node with one result."""
        return self.emit_all(op, inputs, [(shape, dtype)], **attributes)[0]

    def emit_all(
        self, op: str, inputs: Sequence[Value | None], shapes: Sequence[tuple[Any, Any]], **attributes: Any
    ) -> list[Value]:
        """The results of a node, of these shapes and dtypes."""
        node = Node(op, inputs, attributes)
        for shape, dtype in shapes:
            value = Value(shape, dtype)
            value.node, value.graph = node, self.graph
            node.results.append(value)
        return node.results

    def name(self, value: Value) -> str:
        """The name of a value in the file; its node, and those that it needs, are added to the graph."""
        pending = [value]  # a list of our own: programs are deeper than Python's stack
        while pending:
            one = pending[-1]
            if one.name is not None:
                pending.pop()
                continue
            if one.known is not None:
                one.name = self.graph.constant(one.known, self.graph.free_name(one.label) if one.label else None)
                continue
            node = one.node
            assert node is not None
            missing = [x for x in node.inputs if x is not None and x.name is None]
            if missing:
                pending.extend(missing)
                continue
            self._write(node, one.graph or self.graph)
        assert value.name is not None
        return value.name

    def _write(self, node: Node, graph: Graph) -> None:
        if node.op == BITS:
            raise self.error("the bits of a number have no form in ONNX", "use qjax.quantize")
        if node.op in (_REFUSED, _KEY):
            raise node.attributes["error"]
        if node.op == DEFERRED:
            with self.inner(graph):
                node.results[0].name = self.name(node.attributes["made"]())
            return
        inputs = ["" if x is None else str(x.name) for x in node.inputs]
        dtypes = {value.dtype.name for value in node.results}
        settings: dict[str, Any] = {"dtype": dtypes.pop() if len(dtypes) == 1 else None, **node.attributes}
        names = graph.node(node.op, *inputs, outputs=len(node.results), **settings)
        for value, name in zip(node.results, [names] if isinstance(names, str) else names, strict=True):
            value.name = name
            graph.types[name] = value.dtype.name

    # What many translations need

    def cast(self, x: Value, dtype: Any) -> Value:
        """The value in another dtype."""
        dtype = np.dtype(dtype)
        if x.dtype == dtype:
            return x
        if x.known is not None:
            return self.constant(_converted(x.known, dtype), label=x.label)
        if x.unexpanded is not None:
            return self.expand(self.cast(x.unexpanded, dtype), x.shape)
        more = {"saturate": 0} if dtype.name.startswith("float8") else {}  # XLA's conversions do not saturate
        return self.emit("Cast", x, shape=x.shape, dtype=dtype, to=number_of(dtype.name), **more)

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The value with another shape of as many elements."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        if x.known is not None:
            return self.constant(x.known.reshape(shape), label=x.label)
        if x.node is not None and x.node.op == "Reshape" and x.node.inputs[0] is not None:
            return self.reshape(x.node.inputs[0], shape)
        return self.emit("Reshape", x, self.constant(shape, np.int64), shape=shape, dtype=x.dtype)

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """The value with its dimensions in another order."""
        order = tuple(order)
        if order == tuple(range(x.ndim)):
            return x
        if x.known is not None:
            return self.constant(np.ascontiguousarray(x.known.transpose(order)), label=x.label)
        if isinstance(x.symbol, Weights) and order == (1, 0) and (name := transposed(self.graph, x.symbol.name)):
            made = Value(x.shape[::-1], x.dtype)
            made.name, made.graph = name, self.graph
            return made
        if x.node is not None and x.node.op == "Transpose":  # two in a row are one, or none
            inner = x.node.inputs[0]
            assert inner is not None
            return self.transpose(inner, [x.node.attributes["perm"][axis] for axis in order])
        shape = [x.shape[axis] for axis in order]
        return self.emit("Transpose", x, shape=shape, dtype=x.dtype, perm=list(order))

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """The value broadcast to a shape; nodes that broadcast by themselves take x instead."""
        shape = tuple(shape)
        if x.shape == shape:
            return x
        source = x if x.unexpanded is None else x.unexpanded
        made = self.emit("Expand", source, self.constant(shape, np.int64), shape=shape, dtype=x.dtype)
        made.unexpanded = source
        return made

    def slice(self, x: Value, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int] | None = None) -> Value:
        """A part of a value, with a start and an end for each dimension."""
        steps = steps or [1] * x.ndim
        shape = [max(0, -(-(b - a) // c)) for a, b, c in zip(starts, ends, steps, strict=True)]
        cut = [axis for axis in range(x.ndim) if shape[axis] != x.shape[axis] or steps[axis] != 1]
        if not cut:
            return x
        if x.known is not None:
            return self.constant(x.known[tuple(slice(a, b, c) for a, b, c in zip(starts, ends, steps, strict=True))])
        rows = [[row[axis] for axis in cut] for row in (starts, ends, range(x.ndim), steps)]
        if all(step == 1 for step in rows[3]):
            rows.pop()
        return self.emit("Slice", x, *(self.constant(row, np.int64) for row in rows), shape=shape, dtype=x.dtype)

    def elementwise(self, op: str, *inputs: Value, dtype: Any = None, **attributes: Any) -> Value:
        """A node whose operands broadcast; the result's dtype is by default the last operand's."""
        whole = np.broadcast_shapes(*(x.shape for x in inputs))
        operands = [x if x.unexpanded is None else x.unexpanded for x in inputs]
        shape = np.broadcast_shapes(*(x.shape for x in operands))
        if len(shape) != len(whole) and shape:  # an unexpanded value that has fewer dimensions broadcasts from the last
            operands, shape = list(inputs), whole
        if any(x.known is None and x.ndim == len(shape) for x in operands):  # known numbers need no leading axes
            operands = [x if x.known is None else self.reshape(x, _without_leading_ones(x.shape)) for x in operands]
        made = self.emit(op, *operands, shape=shape, dtype=inputs[-1].dtype if dtype is None else dtype, **attributes)
        return self.expand(made, whole)

    def choose(self, which: Value, true: Value, false: Value) -> Value:
        """One of two values for each element; runtimes have Where for some dtypes only."""
        dtype = true.dtype
        if dtype == np.bool_:
            both = self.elementwise("And", which, true)
            return self.elementwise("Or", both, self.elementwise("And", self.elementwise("Not", which), false))
        wide = dtype if dtype.name in ("int8", "uint8") else wide_dtype(dtype)
        wide = np.dtype(np.int64) if wide.name in ("uint32", "uint64") else wide
        made = self.elementwise("Where", which, self.cast(true, wide), self.cast(false, wide))
        return self.cast(made, dtype)

    # Programs

    def run(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[Value]) -> list[Value]:
        """The results of a program for the values of its arguments."""
        known = [x if isinstance(x, Value) else self.captured(x) for x in consts]
        return jaxprs.walk(jaxpr, known, inputs, self._step, self.literal)

    def captured(self, array: Any, label: str = "") -> Value:
        """The value of an array of JAX; a random key has no numbers, as nothing may need it."""
        if jnp.issubdtype(array.dtype, jax.dtypes.extended):
            error = RefusedError(f"random numbers are not reproduced in ONNX; {NO_RANDOM}")
            return self.emit(_KEY, shape=array.shape, dtype=np.uint32, error=error)
        return self.constant(np.asarray(array), label=label)

    def literal(self, literal: Any) -> Value:
        """The value of a constant in the program's text."""
        return self.constant(np.asarray(literal.val, literal.aval.dtype))

    def _step(self, _: int, equation: Any, values: list[Value]) -> Sequence[Value]:
        name = equation.primitive.name
        self._open.append(equation)
        outer, self.stack = self.stack, "/".join(filter(None, (self.stack, str(equation.source_info.name_stack))))
        try:
            folded = self._folded(equation, values)
            if folded is not None:
                return folded
            made = self.operations(self, equation, values)
            if made is None:
                made = self._inlined(equation, values)
            if made is None:
                if name not in self.primitives:
                    raise self.error(f"{name} has no form in ONNX", "compute it outside of the export")
                made = self.primitives[name](self, equation, *values)
            return [made] if isinstance(made, Value) else made
        except (
            RefusedError
        ) as error:  # unless nothing needs it, as keys that recurrent layers draw for a start of zeros
            # What is needed first says why, but for captured keys, which do not know their layer.
            inputs = [x for x in values if x.node is None or x.node.op != _KEY]
            return self.emit_all(_REFUSED, inputs, kinds_of(equation), error=error)
        finally:
            self.stack = outer
            self._open.pop()

    def _inlined(self, equation: Any, values: list[Value]) -> list[Value] | None:
        if equation.primitive.name in jaxprs.INLINED | jaxprs.CUSTOM:
            program = (jaxprs.inner_programs(equation, values) or [])[0]
            return self.run(program.jaxpr, program.consts, program.inputs)
        return None

    def _folded(self, equation: Any, values: list[Value]) -> list[Value] | None:
        """The results of an equation whose operands are all known; None if they would only make the file larger."""
        if equation.effects or equation.primitive.name in _KEPT or _has_operations(equation):
            return None
        own = known_arrays(values)
        if own is None:
            return None
        size = sum(prod(x.aval.shape) * np.dtype(x.aval.dtype).itemsize for x in equation.outvars)
        if size > max(_FOLDED, 4 * sum(array.nbytes for array in own)):  # type: ignore[union-attr]
            return None
        return self.folded(equation, [np.broadcast_to(array, x.shape) for array, x in zip(own, values, strict=True)])

    def folded(self, equation: Any, arrays: Sequence[Any]) -> list[Value]:
        """The results of an equation for known arrays, as JAX computes them."""
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            results = jaxprs.bind(equation, [jnp.asarray(array) for array in arrays])
            return [self.constant(np.asarray(x)) for x in results]

    @contextmanager
    def inner(self, graph: Graph) -> Iterator[None]:
        """Within it new nodes belong to the graph of a loop's or a branch's body."""
        outer, self.graph = self.graph, graph
        try:
            yield
        finally:
            self.graph = outer

    def error(self, what: str, allowed: str) -> RefusedError:
        """The error of the equation that cannot be exported, with its layer and its line of source."""
        layer = layer_of(self.stack)
        place = f"{shown(layer)}: " if layer else ""
        lines = [line for equation in reversed(self._open) if (line := summarize(equation.source_info))]
        return RefusedError(f"{place}{what}{f' ({lines[0]})' if lines else ''}; {allowed}")


_WIDE = frozenset(("bool", "float32", "float64", "int32", "int64", "uint32", "uint64"))


def wide_dtype(dtype: Any) -> np.dtype:
    """The dtype in which an operation on numbers of a dtype is computed."""
    dtype = np.dtype(dtype)
    if dtype.name in _WIDE:
        return dtype
    return np.dtype(np.float32 if jnp.issubdtype(dtype, jnp.floating) else np.int32)


def known_arrays(values: Sequence[Value]) -> list[np.ndarray] | None:
    """The numbers of values that are all known, before they are broadcast; else None."""
    found = [x.known if x.unexpanded is None else x.unexpanded.known for x in values]
    return None if any(array is None for array in found) else found  # type: ignore[return-value]


def kinds_of(equation: Any) -> list[tuple[tuple[int, ...], np.dtype]]:
    """The shapes and dtypes of an equation's results; keys stand for their words."""
    avals = [one.aval for one in equation.outvars]
    is_key = [jnp.issubdtype(one.dtype, jax.dtypes.extended) for one in avals]
    return [(one.shape, np.dtype(np.uint32 if key else one.dtype)) for one, key in zip(avals, is_key, strict=True)]


def kind_of(equation: Any) -> tuple[tuple[int, ...], np.dtype]:
    """The shape and dtype of an equation's first result."""
    return kinds_of(equation)[0]


def _has_operations(equation: Any) -> bool:
    """True if an equation, or one inside it, calls an operation of this library."""
    if operation_of(equation):
        return True
    inner = core.jaxprs_in_params(equation.params)
    return any(_has_operations(one) for program in inner for one in program.eqns)


DEFERRED = "Deferred"  # what a function makes if it is needed: `made` returns the value
BITS = "Bits"  # the integers that are a number's bits: a node that the translation of the next equations takes away
NO_RANDOM = "use deterministic roundings, and model.eval()"
_REFUSED, _KEY = "Refused", "Key"  # results of equations without a form, and random keys, which no node may need
_KEPT = frozenset(("broadcast_in_dim", "iota", "random_seed", "random_wrap"))


def _without_leading_ones(shape: Sequence[int]) -> Sequence[int]:
    first = next((axis for axis, size in enumerate(shape) if size != 1), len(shape))
    return shape[first:]


def _converted(array: np.ndarray, dtype: Any) -> np.ndarray:
    """An array in another dtype, as XLA converts it."""
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        return np.asarray(jnp.asarray(array).astype(dtype))
