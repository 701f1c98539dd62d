"""Fake quantization by fused kernels: where they are, and how tensors of any shape and memory format reach them.

A kernel has scale, zero point and range as tensors, so that one serves all parameters; there is one for each layout
and dtype, and one for gradients.
"""

from __future__ import annotations

from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qcore.affine import law
from qtorch import kernels
from qtorch.launch import KERNEL_LIMIT, aligned
from qtorch.quantization.names import KernelNames, Names

# An example that is large enough to be compiled for all threads, and the axis along which channels lie. Where there
# are none, every tensor is "flat".
LAYOUTS: dict[str, tuple[tuple[int, ...], int | None]] = {
    "flat": ((1 << 20,), None),
    "rows": ((64, 1 << 14), 0),
    "columns": ((1 << 14, 64), 1),
    "middle": ((16, 64, 1 << 10), 1),
}


class Bounds(NamedTuple):
    """The ends of a range of integers, as numbers or as float32 tensors of no dimension; see `AffineInteger`."""

    low: Any
    high: Any


def forward(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    axis: int | None,
    bounds: Bounds,
    xp: type[Names] = Names,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fake-quantized x, and the mask as 0 and 1 in uint8: Inductor has no vectors of bool on the CPU."""
    y, mask = law.fake_quantize(xp, x, scale, zero_point, axis, bounds)  # type: ignore[arg-type]
    return y, mask.to(torch.float32).to(torch.uint8)


def backward(gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The gradient with respect to x; the mask is that of `forward`."""
    return law.straight_through(Names, gradient, mask.to(torch.float32) != 0)


class _Forward(torch.nn.Module):
    def __init__(self, axis: int | None) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, bounds: torch.Tensor) -> Any:
        return forward(x, scale, zero_point, self.axis, Bounds(*bounds.unbind()), KernelNames)


class _Backward(torch.nn.Module):
    def forward(self, gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return backward(gradient, mask)


def forward_by_kernel(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int | None, bounds: Bounds
) -> tuple[torch.Tensor, ...] | None:
    """`forward` of an ordinary tensor that has elements; None where there is no kernel for it."""
    if x.numel() >= KERNEL_LIMIT:
        return None
    order = _memory_order(x)
    lanes = _ordered(x, order)
    layout, shape = _layout(lanes.shape, axis if axis is None or order is None else order.index(axis))
    kernel = _load_forward(layout, x.dtype, x.device)
    if kernel is None:
        return None
    parameters = scale.contiguous(), zero_point.contiguous(), _bounds_tensor(bounds, x.device)
    results = [torch.empty(shape, dtype=dtype, device=x.device) for dtype in (x.dtype, torch.uint8)]
    kernel(*shape, aligned(lanes.view(shape)), *parameters, *results)
    return tuple(_restored(result, lanes.shape, order) for result in results)


def backward_by_kernel(gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
    """`backward` of ordinary tensors of one shape that have elements; None where there is no kernel for them."""
    if gradient.numel() >= KERNEL_LIMIT or (kernel := _load_backward(gradient.dtype, gradient.device)) is None:
        return None
    order = _memory_order(mask)
    lanes = [aligned(_ordered(x, order).reshape(-1)) for x in (gradient, mask)]
    result = torch.empty_like(lanes[0])
    kernel(result.numel(), *lanes, result)
    return _restored(result, _ordered(mask, order).shape, order)


def _memory_order(x: torch.Tensor) -> list[int] | None:
    """The dimensions from the outermost, as torch lays out results of operations on x; None where none is moved."""
    if x.is_contiguous():
        return None
    dense = torch.ops.aten.is_non_overlapping_and_dense(x)
    return sorted(range(x.dim()), key=(x if dense else torch.empty_like(x, device="meta")).stride, reverse=True)


def _ordered(x: torch.Tensor, order: list[int] | None) -> torch.Tensor:
    """x with its dimensions in another order, without gaps."""
    return (x if order is None else x.permute(order)).contiguous()


def _restored(result: torch.Tensor, shape: torch.Size, order: list[int] | None) -> torch.Tensor:
    """A kernel's result with x's shape and memory format."""
    result = result.resize_(shape)  # which costs less than a view
    return result if order is None else result.permute(sorted(range(len(order)), key=order.__getitem__))


def _layout(shape: torch.Size, axis: int | None) -> tuple[str, tuple[int, ...]]:
    """The kernel's layout, and a contiguous tensor's shape in it."""
    if axis is None:
        return "flat", (shape.numel(),)
    outer, channels, inner = prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])
    if outer == 1:
        return "rows", (channels, inner)
    return ("columns", (outer, channels)) if inner == 1 else ("middle", (outer, channels, inner))


@cache
def _load_forward(layout: str, dtype: torch.dtype, device: torch.device) -> kernels.Kernel | None:
    example = partial(_forward_example, layout, dtype, device)
    return kernels.load_module(f"affine-forward-{layout}-{_name(dtype)}", _FILES, device, example)


@cache
def _load_backward(dtype: torch.dtype, device: torch.device) -> kernels.Kernel | None:
    example = partial(_backward_example, dtype, device)
    return kernels.load_module(f"affine-backward-{_name(dtype)}", _FILES, device, example)


def _forward_example(layout: str, dtype: torch.dtype, device: torch.device) -> kernels.Example:
    shape, axis = LAYOUTS[layout]
    channels = () if axis is None else (shape[axis],)
    sizes = {dimension: _size(f"d{dimension}") for dimension in range(len(shape))}
    along = None if axis is None else {0: sizes[axis]}
    arguments = (
        torch.zeros(shape, dtype=dtype, device=device),
        torch.ones(channels, dtype=torch.float32, device=device),
        torch.zeros(channels, dtype=torch.int32, device=device),
        torch.zeros(2, dtype=torch.float32, device=device),
    )
    return kernels.Example(_Forward(axis), arguments, (sizes, along, along, None))


def _backward_example(dtype: torch.dtype, device: torch.device) -> kernels.Example:
    arguments = tuple(torch.zeros(1 << 20, dtype=kind, device=device) for kind in (dtype, torch.uint8))
    size = _size("d0")
    return kernels.Example(_Backward(), arguments, ({0: size}, {0: size}))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _size(name: str) -> Any:
    return torch.export.Dim(name, min=2, max=2**31 - 1)


@cache
def _bounds_tensor(bounds: Bounds, device: torch.device) -> torch.Tensor:
    return torch.tensor(bounds, dtype=torch.float32, device=device)


_FILES = (Path(law.__file__), Path(__file__), Path(__file__).parent / "names.py")
