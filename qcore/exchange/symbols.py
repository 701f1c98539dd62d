"""The array namespace of ONNX: laws that run on it add their operations to a graph.

Arrays are symbols: values of the graph with a dtype and a number of dimensions. Operations of NumPy arrays alone are
computed at once, so that whatever follows from known parameters is a constant of the graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qcore import namespace
from qcore.exchange.graph import Graph, number_of


class Symbol:
    """A value of a graph, with the operators that laws use; // is that of integers from 0 on.

    Args:
        graph: the graph.
        name: the value's name.
        dtype: "float32", "uint8", "bool", ...
        ndim: the number of dimensions.

    Example:
        >>> graph = Graph("sum")
        >>> x = Symbol(graph, graph.input("x", "float32", (3,)), "float32", 1)
        >>> y = np.float32(1) - x * 2
        >>> y.dtype, [node.op_type for node in graph.nodes]
        ('float32', ['Mul', 'Sub'])
    """

    __array_ufunc__ = None  # so that an array of NumPy leaves its operators to the symbol

    def __init__(self, graph: Graph, name: str, dtype: str, ndim: int) -> None:
        self.graph, self.name, self.dtype, self.ndim = graph, name, dtype, ndim
        graph.types[name] = dtype

    def reshape(self, shape: tuple[int, ...]) -> Symbol:
        """The value in another shape; -1 is the size that remains, 0 keeps a size."""
        return self._made("Reshape", self.graph.constant(np.asarray(shape, np.int64)), ndim=len(shape))

    def transpose(self, order: tuple[int, ...]) -> Symbol:
        """The value with its dimensions in another order."""
        return self._made("Transpose", perm=list(order))

    def rename(self, name: str) -> None:
        """Gives a name that no value has to the result of a node."""
        graph = self.graph
        for node in reversed(graph.nodes):
            for names in (node.input, node.output):
                for place in [place for place, old in enumerate(names) if old == self.name]:
                    names[place] = name
            if name in node.output:
                break
        graph.reserve([name])
        graph.types[name] = graph.types.pop(self.name)
        self.name = name

    def __neg__(self) -> Symbol:
        return self._made("Neg")

    def __abs__(self) -> Symbol:
        return self._made("Abs")

    def _made(self, op: str, *others: str, dtype: str | None = None, ndim: int | None = None, **attributes: Any) -> Any:
        """The result of a node whose first input is this value."""
        dtype, ndim = dtype or self.dtype, self.ndim if ndim is None else ndim
        return Symbol(self.graph, self.graph.node(op, self.name, *others, dtype=dtype, **attributes), dtype, ndim)


class Weights(Symbol):
    """The numbers of known integers, which runtimes may fuse with what reads them."""


def _operator(op: str, dtype: str | None = None, swapped: bool = False) -> Callable[[Any, Any], Symbol]:
    """Makes a method that adds a node of two operands."""

    def method(self: Symbol, other: Any) -> Symbol:
        return combined(op, *((other, self) if swapped else (self, other)), dtype=dtype)

    return method


for _name, _op in {"add": "Add", "sub": "Sub", "mul": "Mul", "floordiv": "Div", "and": "And", "or": "Or"}.items():
    setattr(Symbol, f"__{_name}__", _operator(_op))
    setattr(Symbol, f"__r{_name}__", _operator(_op, swapped=True))
for _name, _op in {"lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual", "eq": "Equal"}.items():
    setattr(Symbol, f"__{_name}__", _operator(_op, "bool"))


def combined(op: str, *operands: Any, dtype: str | None = None) -> Symbol:
    """The result of a node of operands of one dtype or of float64, of which numbers and arrays become constants."""
    if any(isinstance(one, Symbol) and one.dtype == "float64" for one in operands):
        operands = tuple(Names.astype(one, "float64") for one in operands)  # as NumPy does with parameters of float32
    like = next(one for one in operands if isinstance(one, Symbol))
    names = [name_of(like.graph, one, like.dtype) for one in operands]
    ndim = max(np.ndim(one) if not isinstance(one, Symbol) else one.ndim for one in operands)
    dtype = dtype or like.dtype
    return Symbol(like.graph, like.graph.node(op, *names, dtype=dtype), dtype, ndim)


def name_of(graph: Graph, x: Any, dtype: str) -> str:
    """The name of a symbol, or of a constant of a number or an array of NumPy."""
    if isinstance(x, Symbol):
        return x.name
    return graph.constant(x if isinstance(x, (np.ndarray, np.generic)) else np.asarray(x, dtype))


def is_known(*arrays: Any) -> bool:
    """True if none of the arrays is a symbol."""
    return not any(isinstance(one, Symbol) for one in arrays)


def _mixed(op: Callable[..., Any], known: Callable[..., Any]) -> Any:
    """Makes a function of arrays: NumPy's if all are known, else a node's."""

    def function(*arrays: Any) -> Any:
        return known(*arrays) if is_known(*arrays) else op(*arrays)

    return staticmethod(function)


class Names(namespace.Names):
    """The names that the affine law uses, for symbols and arrays of NumPy side by side."""

    rint = _mixed(lambda x: x._made("Round"), np.rint)
    divide = _mixed(lambda a, b: combined("Div", a, b), np.divide)
    exp = _mixed(lambda x: x._made("Exp"), np.exp)
    tanh = _mixed(lambda x: x._made("Tanh"), np.tanh)
    maximum = _mixed(lambda a, b: combined("Max", a, b), np.maximum)
    rounded = staticmethod(lambda product: product)  # runtimes do not fuse a product with a sum
    arithmetic = staticmethod(lambda: np.errstate(all="ignore"))
    dtype = staticmethod(lambda x: x.dtype if isinstance(x, Symbol) else x.dtype.name)

    @staticmethod
    def astype(x: Any, dtype: str) -> Any:
        if is_known(x):
            return np.asarray(x).astype(dtype, copy=False)
        return x if x.dtype == dtype else x._made("Cast", dtype=dtype, to=number_of(dtype))

    @staticmethod
    def where(condition: Any, a: Any, b: Any) -> Any:
        if is_known(condition, a, b):
            return np.where(condition, a, b)
        like = next(one for one in (a, b, condition) if isinstance(one, Symbol))
        dtype = like.dtype if like is not condition else Names.dtype(a)
        names = [name_of(like.graph, condition, "bool"), *(name_of(like.graph, one, dtype) for one in (a, b))]
        ndim = max(np.ndim(one) if is_known(one) else one.ndim for one in (condition, a, b))
        return Symbol(like.graph, like.graph.node("Where", *names, dtype=dtype), dtype, ndim)

    @staticmethod
    def clip(x: Any, low: float | None, high: float | None) -> Any:
        if is_known(x):
            return np.clip(x, low, high)
        ends = ["" if end is None else x.graph.constant(np.asarray(end, x.dtype)) for end in (low, high)]
        return x._made("Clip", *(ends if ends[1] else ends[:1]))

    @staticmethod
    def full_like(x: Any, value: float, dtype: str) -> Any:
        """A number; it broadcasts where a law expects an array of x's shape."""
        return np.full_like(x, value, dtype) if is_known(x) else np.asarray(value, dtype)

    @staticmethod
    def extremes(x: Any, axes: tuple[int, ...]) -> tuple[Any, Any]:
        """The ends of a range. A NaN counts as infinity: runtimes do not agree about its place among numbers."""
        if is_known(x):
            return np.amin(x, axes), np.amax(x, axes)
        x = Names.where(x == x, x, float("inf"))
        along = x.graph.constant(np.asarray(axes, np.int64))
        low, high = (x._made(op, along, ndim=x.ndim - len(axes), keepdims=0) for op in ("ReduceMin", "ReduceMax"))
        return low, high
