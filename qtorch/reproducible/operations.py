"""Operations on float32 numbers with defined bits, for tensors: eager or traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from qcore.reproducible import operations
from qcore.reproducible.operations import SMALLEST, exact_unit, softmax, tree_sums
from qtorch import _namespace as namespace
from qtorch._kernels import products
from qtorch._kernels.launch import addresses, aligned
from qtorch._rounding.paths.choice import are_plain_tensors, is_plain_tensor
from qtorch._rounding.sharded import is_sharded
from qtorch.linalg.native import ProductSpec
from qtorch.linalg.operator import multiply_tensors


def tensor_product(first: torch.Tensor, second: torch.Tensor, spec: ProductSpec) -> torch.Tensor:
    """A product of tensors that need no gradients."""
    return multiply_tensors(first, second, None, None, spec)


class Names(operations.Names, namespace.Names):
    """`qcore.reproducible.operations.Names` for tensors on any device.

    Example:
        >>> Names.mul(torch.tensor([1.0, 2.0**-100]), torch.tensor([3.0, 2.0**-100]))  # 2^-200 is a zero
        tensor([3., 0.])
    """

    root = staticmethod(torch.sqrt)
    multiplied = staticmethod(tensor_product)

    @staticmethod
    def is_float32(x: torch.Tensor) -> bool:
        return x.dtype is torch.float32

    @staticmethod
    def to_float32(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32)

    @staticmethod
    def to_float64(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float64)

    @staticmethod
    def to_int32(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.int32)

    @staticmethod
    def bits(x: torch.Tensor) -> torch.Tensor:
        return namespace.reinterpreted(x, torch.int32)

    @staticmethod
    def floats(bits: torch.Tensor) -> torch.Tensor:
        return namespace.reinterpreted(bits, torch.float32)

    @classmethod
    def settled(cls, x: torch.Tensor) -> torch.Tensor:
        """`settled` by a product with 0 or 1: fewer operations, and Inductor inlines an expression into two uses.

        The product is exact, so it may be contracted with a sum; and nothing is contracted across it.
        """
        return x * (abs(x) > SMALLEST)

    @classmethod
    def sums(cls, a: torch.Tensor, b: torch.Tensor | None, axes: tuple[int, ...]) -> torch.Tensor:
        """By a kernel; in compiled and transformed programs an operator, as Inductor makes an expression of a tree."""
        tensors = (a,) if b is None else (a, b)
        if is_sharded(*tensors):
            return super().sums(a, b, axes)
        if torch.compiler.is_dynamo_compiling() or not all(map(is_plain_tensor, tensors)):
            return torch.ops.qtorch.sums(a, b, axes)
        return tensor_sums(a, b, axes)

    @classmethod
    def sums_by_index(cls, rows: torch.Tensor, indices: torch.Tensor, count: int) -> torch.Tensor:
        """By a kernel, for plain tensors."""
        plain = not torch.compiler.is_dynamo_compiling() and are_plain_tensors((rows, indices)) and rows.is_cpu
        fits = plain and rows.dtype is torch.float32 and indices.dtype is torch.int32 and rows.numel()
        kernel = products.sums_by_index() if fits else None
        if kernel is None:
            return super().sums_by_index(rows, indices, count)
        rows, indices = rows.contiguous(), indices.contiguous()
        result = torch.empty((count, rows.shape[1]), dtype=torch.float64, device="cpu")
        kernel(*rows.shape, count, rows.data_ptr(), indices.data_ptr(), result.data_ptr())
        return result

    @classmethod
    def softmax(cls, x: torch.Tensor, axis: int, zeros: bool = False) -> torch.Tensor:
        """By a kernel, for plain tensors."""
        if torch.compiler.is_dynamo_compiling() or not is_plain_tensor(x):
            return super().softmax(x, axis, zeros)
        return tensor_softmax(x, axis, zeros)


class UnroundedNames(operations.Unrounded, Names):
    """Names that autograd differentiates, see `qcore.reproducible.operations.Unrounded`."""


def tensor_sums(a: torch.Tensor, b: torch.Tensor | None, axes: Sequence[int]) -> torch.Tensor:
    """`qcore.reproducible.operations.tree_sums`; for plain tensors by a kernel, if it can be compiled."""
    served = a.is_cpu and (b is None or b.is_cpu) and axes and a.numel() and a.dim() <= products.MOST_AXES
    kernel = products.tree_sums() if served else None
    if kernel is None:
        return tree_sums(Names, a, b, tuple(axes))
    a, b = aligned(a.contiguous()), None if b is None else aligned(b.expand(a.shape).contiguous())
    result = sums_shape(a, b, axes)
    kernel(*addresses(a, b, result), a.dim(), len(axes), *a.shape, *axes)
    return result


def tensor_softmax(x: torch.Tensor, axis: int, zeros: bool) -> torch.Tensor:
    """`qcore.reproducible.operations.softmax`; for plain tensors by a kernel, if it can be compiled."""
    kernel = products.softmax() if x.is_cpu and x.numel() else None
    if kernel is None:
        return softmax(Names, x, axis, zeros)
    rows = aligned(x.movedim(axis, -1).contiguous())
    result, length = torch.empty_like(rows), rows.shape[-1]
    kernel(rows.numel() // length, length, exact_unit(length), int(zeros), rows.data_ptr(), result.data_ptr())
    return result.movedim(-1, axis).contiguous()


def sums_shape(a: torch.Tensor, b: torch.Tensor | None, axes: Sequence[int]) -> torch.Tensor:
    sizes = [1 if axis in axes else size for axis, size in enumerate(a.shape)]
    return a.new_empty(sizes, dtype=torch.float64)


def batch_sums(info: Any, in_dims: tuple[Any, ...], a: Any, b: Any, axes: Sequence[int]) -> tuple[torch.Tensor, int]:
    """The rule for vmap: the batch becomes the first axis, which is not summed."""
    pairs = zip((a, b), in_dims[:2], strict=True)
    a, b = (x if x is None else x.expand(info.batch_size, *x.shape) if n is None else x.movedim(n, 0) for x, n in pairs)
    return torch.ops.qtorch.sums(a, b, [axis + 1 for axis in axes]), 0
