"""The array namespace that records a law's operations instead of computing them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from qcore.reproducible import operations
from qcore.trace import ELEMENT, FloatValue, Trace, Value, literal
from qtorch.linalg.native import ProductSpec
from qtorch.reproducible.operations import tensor_product, tensor_softmax, tensor_sums

Shape = tuple[int, ...]


class Number(NamedTuple):
    """A number that elements are computed with: a kernel is handed it, and serves others as well."""

    digits: str
    dtype: str

    @property
    def value(self) -> float:
        return float.fromhex(self.digits)


class View(NamedTuple):
    """The step of an array that is another one's memory, in another shape."""

    shape: Shape

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(self.shape)


class Sums(NamedTuple):
    """The step of `tensor_sums` along axes, which C can do by itself."""

    axes: Shape

    def __call__(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        return tensor_sums(x, y, self.axes)


class Multiplication(ProductSpec):
    """The step of a product, which C can do by itself."""

    def __call__(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return tensor_product(first, second, self)


class ArrayValue(FloatValue):
    """An array of a trace of arrays.

    Attributes:
        text: C for an element, with `{}` for elements of operands; "" for arguments and for results of a step.
        shape: the shape of the array.
        step: a function of the operands' tensors that returns the array; None for arguments, and for nodes with a text.
    """

    def __init__(
        self, trace: ArrayTrace, text: str, dtype: str, operands: tuple[Any, ...], shape: Shape, step: Any = None
    ) -> None:
        super().__init__(trace, f"n{trace.count()}", text, dtype, ELEMENT, operands)
        self.parts = operands
        self.shape: Any = shape
        self.ndim: Any = len(shape)
        self.step: Any = step

    def reshape(self, *shape: Any) -> ArrayValue:
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        known = prod(size for size in wanted if size >= 0)
        wanted = tuple(prod(self.shape) // known if size < 0 else size for size in wanted)
        if wanted == self.shape:
            return self
        return self.made_by(View(tuple(wanted)), tuple(wanted))

    def __getitem__(self, index: Any) -> ArrayValue:
        shape = np.broadcast_to(0, self.shape)[index].shape
        return self.made_by(lambda x: x[index].contiguous(), shape)

    def made_by(
        self, step: Callable[..., torch.Tensor], shape: Shape, *others: ArrayValue, dtype: str = ""
    ) -> ArrayValue:
        """What a step makes of this array and others; the same step of the same arrays is one."""
        key = step, dtype, self.name, *(one.name for one in others)
        found = self.recording.found
        if key not in found:
            found[key] = ArrayValue(self.recording, "", dtype or self.dtype, (self, *others), shape, step)
        return found[key]

    @property
    def recording(self) -> ArrayTrace:
        return self.trace  # type: ignore[return-value]


class ArrayTrace(Trace):
    """The arrays of a law; the same operation of the same arrays is one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[Any, ...], ArrayValue] = {}
        self._count = 0

    def count(self) -> int:
        self._count += 1
        return self._count

    def argument(self, dtype: str, shape: Shape) -> ArrayValue:
        return ArrayValue(self, "", dtype, (), shape)

    def note(self, pattern: str, *operands: Any, dtype: str = "", like: str = "") -> ArrayValue:
        """See `Trace.note`; shapes broadcast."""
        nodes = [one for one in operands if isinstance(one, ArrayValue)]
        like = like or nodes[0].dtype
        read = tuple(one if isinstance(one, ArrayValue) else _number(one, like) for one in operands)
        key = pattern, dtype or like, *(one.name if isinstance(one, ArrayValue) else one for one in read)
        if key not in self.found:
            shape = np.broadcast_shapes(*(one.shape for one in nodes))
            self.found[key] = ArrayValue(self, pattern, dtype or like, read, shape)
        return self.found[key]

    def constant(self, text: str, dtype: str, shape: Shape) -> ArrayValue:
        return self.found.setdefault((text, dtype, shape), ArrayValue(self, text, dtype, (), shape))


def in_order(results: Iterable[ArrayValue], is_memory: Container[str] = ()) -> list[ArrayValue]:
    """The nodes that results are made of, operands first. Operands of nodes in memory (given by name) are left out."""
    found: dict[str, ArrayValue] = {}

    def visit(node: ArrayValue) -> None:
        if node.name in found:
            return
        for operand in () if node.name in is_memory else node.operands:
            if isinstance(operand, ArrayValue):
                visit(operand)
        found[node.name] = node

    for result in results:
        visit(result)
    return list(found.values())


def _number(number: Any, dtype: str) -> Any:
    return Number(float(number).hex(), dtype) if dtype.startswith("float") else literal(number, dtype)


def _of_float64(function: Callable[..., torch.Tensor]) -> Any:
    """A function of torch's, whose float64 results have torch's bits."""
    return staticmethod(lambda x: x.made_by(function, x.shape))


class Names(operations.Names):
    """`qcore.reproducible.operations.Names` for nodes, with the operations of all laws that are recorded."""

    exp = _of_float64(torch.exp)
    log = _of_float64(torch.log)
    log1p = _of_float64(torch.log1p)
    tanh = _of_float64(torch.tanh)
    sin = _of_float64(torch.sin)
    cos = _of_float64(torch.cos)
    arithmetic = staticmethod(nullcontext)

    @staticmethod
    def where(condition: ArrayValue, a: Any, b: Any) -> Value:
        return condition.trace.where(condition, a, b)

    @staticmethod
    def root(x: ArrayValue) -> Value:
        return x.trace.note("__builtin_sqrt({})", x)

    @staticmethod
    def is_float32(x: ArrayValue) -> bool:
        return x.dtype == "float32"

    @staticmethod
    def to_float32(x: Any) -> Value:
        return x.trace.note("(float){}", x, dtype="float32")

    @staticmethod
    def to_float64(x: Any) -> Value:
        return x.trace.note("(double){}", x, dtype="float64")

    @classmethod
    def one_nan(cls, x: ArrayValue) -> Value:
        return x.trace.note("{0} == {0} ? {0} : float32(0x7fc00000)", x)

    @staticmethod
    def arange(size: int, like: Any) -> Any:
        step = partial(torch.arange, size, dtype=torch.int32, device="cpu")
        return ArrayValue(like.recording, "", "int32", (), (size,), step)

    @staticmethod
    def zeros(shape: Sequence[int], like: Any) -> Any:
        return like.recording.constant("0", like.dtype, tuple(shape))

    @staticmethod
    def concatenate(parts: Sequence[Any], axis: int) -> Any:
        first, *others = parts
        length = sum(part.shape[axis] for part in parts)
        shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
        return first.made_by(lambda *tensors: torch.cat(tensors, axis), shape, *others)

    @staticmethod
    def broadcast_to(x: ArrayValue, shape: Shape) -> Any:
        return x if x.shape == shape else ArrayValue(x.recording, "{}", x.dtype, (x,), shape)

    @staticmethod
    def greatest(x: Any, axes: tuple[int, ...]) -> Any:
        return x.made_by(partial(torch.amax, dim=axes, keepdim=True), _without(x.shape, axes))

    @staticmethod
    def softmax(x: Any, axis: int, zeros: bool = False) -> Any:
        return x.made_by(partial(tensor_softmax, axis=axis, zeros=zeros), x.shape)

    @staticmethod
    def multiplied(first: ArrayValue, second: ArrayValue, spec: ProductSpec) -> ArrayValue:
        return first.made_by(Multiplication(*spec), spec.shape, second)

    @classmethod
    def sums(cls, a: Any, b: Any, axes: tuple[int, ...]) -> Any:
        others = () if b is None else (cls.broadcast_to(b, a.shape),)
        if not axes:
            return super().sums(a, b, axes)
        return a.made_by(Sums(axes), _without(a.shape, axes), *others, dtype="float64")


def _without(shape: Shape, axes: tuple[int, ...]) -> Shape:
    return tuple([1 if axis in axes else size for axis, size in enumerate(shape)])
