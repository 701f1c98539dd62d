"""The array namespace of torch: `qcore.namespace.Names` for tensors on any device, eager or traced."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import torch

from qcore import namespace
from qtorch._conversion import converted, kept_in_memory

FLOATS = {torch.int32: torch.float32, torch.int64: torch.float64}  # of lanes


def reinterpreted(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bits of x as numbers of another dtype: a view, or a copy in `torch.jit.trace`, which cannot record views."""
    return torch.view_copy(x, dtype=dtype) if torch.jit.is_tracing() else x.view(dtype)  # type: ignore[attr-defined]


class Names(namespace.Names):
    """`qcore.namespace.Names` for tensors on any device, eager or traced.

    A compiler drops an addition of 0, fuses a product with a sum, and goes on in float32 with what was rounded to 16
    bits. Names that guard against it do so under Dynamo only, as it costs an operation.
    """

    where = staticmethod(torch.where)
    clip = staticmethod(torch.clip)
    quotient_error = 3  # on GPUs
    short = False

    @staticmethod
    def amax(lanes: torch.Tensor, axis: tuple[int, ...], keepdims: bool) -> torch.Tensor:
        return torch.amax(lanes, axis, keepdims)

    @staticmethod
    def float_bits(lanes: torch.Tensor) -> torch.Tensor:
        return reinterpreted(lanes.to(FLOATS[lanes.dtype]), lanes.dtype)

    @staticmethod
    def integers(bits: torch.Tensor) -> torch.Tensor:
        return reinterpreted(bits, FLOATS[bits.dtype]).to(bits.dtype)

    @staticmethod
    def product_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return reinterpreted(a.to(FLOATS[a.dtype]) * b.to(FLOATS[a.dtype]), a.dtype)

    @staticmethod
    def quotient_bits(a: torch.Tensor, b: torch.Tensor | int) -> torch.Tensor:
        floats = FLOATS[a.dtype]
        return reinterpreted(a.to(floats) / (b.to(floats) if isinstance(b, torch.Tensor) else b), a.dtype)

    @staticmethod
    def take(row: torch.Tensor | tuple[int, ...], places: torch.Tensor) -> torch.Tensor:
        if not isinstance(row, torch.Tensor):
            row = torch.tensor(row, dtype=places.dtype, device=places.device)
        return row[places]

    float32_bits = staticmethod(lambda x: reinterpreted(x, torch.int32))
    float32_from = staticmethod(lambda bits: reinterpreted(bits, torch.float32))

    trunc = staticmethod(torch.trunc)
    floor = staticmethod(torch.floor)
    divide = staticmethod(torch.divide)
    exp = staticmethod(torch.exp)
    log = staticmethod(torch.log)
    log1p = staticmethod(torch.log1p)
    tanh = staticmethod(torch.tanh)
    sin = staticmethod(torch.sin)
    cos = staticmethod(torch.cos)
    sqrt = staticmethod(torch.sqrt)
    minimum = staticmethod(torch.minimum)
    maximum = staticmethod(torch.maximum)
    greatest = staticmethod(lambda x, axes: torch.amax(x, axes, keepdim=True))
    arithmetic = staticmethod(nullcontext)

    @staticmethod
    def materialize(x: torch.Tensor) -> torch.Tensor:
        """Inductor keeps the input of a strided view in memory, and computes other values again at each use."""
        return kept_in_memory(x) if torch.compiler.is_dynamo_compiling() else x

    @staticmethod
    def rint(x: torch.Tensor) -> torch.Tensor:
        """A compiler drops a zero point of 0, whose addition takes the sign from a zero: here it has none before."""
        steps = torch.round(x)
        return Names.unsigned(steps) if torch.compiler.is_dynamo_compiling() else steps

    @staticmethod
    def unsigned(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x == 0, 0.0, x) if torch.compiler.is_dynamo_compiling() else x + 0.0

    @staticmethod
    def rounded(product: torch.Tensor) -> torch.Tensor:
        """A compiler for GPUs would contract the product with a sum that follows; integers in memory stop it."""
        if product.device.type == "cpu" or not torch.compiler.is_dynamo_compiling():
            return product
        return kept_in_memory(product.view(torch.int32)).view(torch.float32)

    @staticmethod
    def extremes(x: torch.Tensor, axes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
        # to torch, no axes are all axes
        return (torch.amin(x, axes), torch.amax(x, axes)) if axes else (x, x)

    dtype = staticmethod(lambda x: str(x.dtype).removeprefix("torch."))

    @staticmethod
    def astype(x: torch.Tensor, dtype: str) -> torch.Tensor:
        return converted(x, getattr(torch, dtype))

    full = staticmethod(lambda shape, value, dtype: torch.full(shape, value, dtype=getattr(torch, dtype)))
    full_like = staticmethod(lambda x, value, dtype: torch.full_like(x, value, dtype=getattr(torch, dtype)))
    arange = staticmethod(lambda size, like: torch.arange(size, dtype=torch.int32, device=like.device))
    zeros = staticmethod(lambda shape, like: like.new_zeros(shape))
    constant = staticmethod(
        lambda numbers, dtype, like: torch.tensor(numbers, dtype=getattr(torch, dtype), device=like.device)
    )
    asarray = staticmethod(torch.from_numpy)

    concrete = staticmethod(lambda x: None)  # `qtorch._affine.namespace.Names` reads tensors in ordinary memory
    copy = staticmethod(torch.clone)
    stack = staticmethod(torch.stack)
    concatenate = staticmethod(torch.concatenate)
    broadcast_to = staticmethod(torch.broadcast_to)
    repeat = staticmethod(torch.repeat_interleave)
    einsum = staticmethod(torch.einsum)
    total = staticmethod(lambda x, axes: torch.sum(x, axes, keepdim=True, dtype=torch.int64))

    @staticmethod
    def pad(x: torch.Tensor, widths: Sequence[tuple[int, int]], value: float = 0) -> torch.Tensor:
        if not any(map(any, widths)):
            return x
        return torch.nn.functional.pad(x, [size for pair in reversed(widths) for size in pair], value=value)

    cumsum = staticmethod(lambda x: torch.cumsum(x, 0))
    argsort = staticmethod(lambda x: torch.argsort(x, stable=True))
    bincount = staticmethod(torch.bincount)  # type: ignore[assignment]

    @staticmethod
    def searchsorted(edges: torch.Tensor, x: torch.Tensor, right: bool = False) -> torch.Tensor:
        return torch.searchsorted(edges, x, right=right, out_int32=True)
