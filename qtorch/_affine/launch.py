"""Calls of the affine law's kernels for tensors of any shape and memory format: C on the CPU, and packages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

import qcore
from qcore.affine import (
    AffineInteger,
    MinMax,
    MovingAverageMinMax,
    MovingAveragePerChannelMinMax,
    PerChannelMinMax,
    QParams,
    law,
)
from qcore.law.tiles import as_matrix
from qtorch import _namespace as namespace
from qtorch._affine.kernels import laws
from qtorch._kernels import packages
from qtorch._kernels.launch import LIMIT, VECTOR, aligned, memory_order, ordered, restored
from qtorch._rounding.paths.choice import are_plain_tensors

# Layouts: one parameter for all elements ("x"), or channels ("c") between other axes; sizes of an example tensor.
_EXAMPLES = {"x": (1 << 20,), "c": (1 << 10,), "xc": (1 << 10, 1 << 10), "cx": (1 << 10, 1 << 10), "xcx": (64, 64, 256)}


# The observers that the kernel implements: True if they average.
_AVERAGES = {
    MinMax: False,
    PerChannelMinMax: False,
    MovingAverageMinMax: True,
    MovingAveragePerChannelMinMax: True,
}
_STATE = torch.float32, torch.float32, torch.float32, torch.int32


class Bounds(NamedTuple):
    """The ends of a range of integers as numbers; see `AffineInteger`."""

    low: float
    high: float


def fake_quantize_on_cpu(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int | None, bounds: Bounds
) -> tuple[torch.Tensor, ...] | None:
    """The fake-quantized x, and the mask of `law.fake_quantize` as 0 and 1 in uint8; None where there is no kernel.

    Here and below x is a plain tensor with at least one element.
    """
    parameters = scale, zero_point, _ends(bounds, x.device)
    return _run_on_cpu(partial(laws.fake_quantize, _name(x.dtype)), x, axis, parameters, (x.dtype, torch.uint8))


def quantize_on_cpu(x: torch.Tensor, qparams: QParams, form: AffineInteger) -> torch.Tensor | None:
    """`qcore.affine.quantize_affine`; None where there is no kernel."""
    parameters = qparams.scale, qparams.zero_point, _ends(Bounds(form.low, form.high), x.device)
    kernel = partial(laws.quantize, _name(x.dtype), form.storage)
    results = _run_on_cpu(kernel, x, qparams.axis, parameters, (getattr(torch, form.storage),))
    return None if results is None else results[0]


def dequantize_on_cpu(values: torch.Tensor, qparams: QParams) -> torch.Tensor | None:
    """`qcore.affine.dequantize`; None where there is no kernel."""
    parameters = qparams.scale, qparams.zero_point
    kernel = partial(laws.dequantize, _name(values.dtype))
    results = _run_on_cpu(kernel, values, qparams.axis, parameters, (torch.float32,))
    return None if results is None else results[0]


def requantize_on_cpu(
    sums: torch.Tensor,
    input_scale: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    output: QParams,
    form: AffineInteger,
) -> torch.Tensor | None:
    """`qcore.affine.requantize` of int32 or float32 sums, channels along the last dimension; None without a kernel."""
    of_channels = [weight_scale.expand(sums.shape[-1]), *([] if bias is None else [bias])]
    of_all = input_scale, output.scale, output.zero_point, _ends(Bounds(form.low, form.high), sums.device)
    kernel = partial(laws.requantize, _name(sums.dtype), form.storage, bias is not None)
    results = _run_on_cpu(kernel, sums, sums.dim() - 1, (*of_channels, *of_all), (getattr(torch, form.storage),))
    return None if results is None else results[0]


def binary_on_cpu(name: str, a: Any, b: Any, output: QParams, form: AffineInteger, relu: bool) -> torch.Tensor | None:
    """The integers of `add` or `mul` of two QTensors by the kernel; None where no kernel supports them."""
    x, y, of_a, of_b = a.values, b.values, a.qparams, b.qparams
    tensors = x, y, of_a.scale, of_a.zero_point, of_b.scale, of_b.zero_point, output.scale, output.zero_point
    if of_a.axis is not None or of_b.axis is not None or x.shape != y.shape or x.numel() == 0:
        return None
    if not are_plain_tensors(tensors) or not x.is_cpu:
        return None
    storages = a.form.storage, b.form.storage, form.storage
    result = torch.empty_like(x, dtype=getattr(torch, form.storage))
    function = None if "int32" in storages else laws.binary(name, storages, relu)
    if function is None or not result.stride() == x.stride() == y.stride():  # gaps in memory, or another order
        return None
    ends = _ends(Bounds(form.low, form.high), x.device)
    function(x.numel(), *[one.data_ptr() for one in (*tensors, ends, result)])
    return result


def observer_on_cpu(
    x: torch.Tensor, rule: Any, buffers: Sequence[torch.Tensor]
) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]] | None:
    """A function that observes x, computes the parameters, and fake-quantizes x by them, in one pass.

    It writes into the observer's buffers min_val, max_val, scale and zero_point, and returns the results of
    `fake_quantize_on_cpu`. None without a kernel, or if the buffers have other dtypes or sizes than x needs.
    """
    averages, axis = _AVERAGES.get(type(rule)), rule.axis
    if averages is None or x.dtype is not torch.float32:
        return None
    count = 1 if axis is None else x.shape[axis] if axis < x.dim() else 0
    for buffer, dtype in zip(buffers, _STATE, strict=True):
        if buffer.numel() != count or buffer.dtype is not dtype or not buffer.is_cpu or not buffer.is_contiguous():
            return None
    order = memory_order(x)
    layout = _layout(x, order, axis)
    function = layout and laws.observe(averages, rule.scheme, layout[1])
    if not layout or function is None:
        return None
    read = *buffers[:2], _settings(rule)
    return lambda x: _call(function, layout[0], x, order, read, (torch.float32, torch.uint8), buffers)


def _run_on_cpu(
    kernel: Callable[[str], Callable[..., object] | None],
    x: torch.Tensor,
    axis: int | None,
    parameters: tuple[torch.Tensor, ...],
    dtypes: tuple[torch.dtype, ...],
) -> tuple[torch.Tensor, ...] | None:
    """The kernel's results, in x's shape and memory format; None where there is no kernel for the layout."""
    order = memory_order(x)
    layout = _layout(x, order, axis)
    function = layout and kernel(layout[1])
    if not layout or function is None:
        return None
    return _call(function, layout[0], x, order, [aligned(one.contiguous()) for one in parameters], dtypes)


def _layout(x: torch.Tensor, order: list[int] | None, axis: int | None) -> tuple[tuple[int, ...], str] | None:
    """The first arguments of a kernel (sizes), and the name of its layout; None where no kernel has the layout."""
    if axis is None:
        return (x.numel(),), "flat"
    shape = tuple(x.shape)
    if order is not None:
        shape, axis = tuple(shape[one] for one in order), order.index(axis)
    matrix = as_matrix(shape, tuple(1 if one == axis else None for one in range(x.dim())))
    return matrix and (matrix, "columns" if matrix.block_columns == 1 else "tiles")


def _call(
    function: Callable[..., object],
    sizes: tuple[int, ...],
    x: torch.Tensor,
    order: list[int] | None,
    read: Sequence[torch.Tensor],
    dtypes: tuple[torch.dtype, ...],
    written: Sequence[torch.Tensor] = (),
) -> tuple[torch.Tensor, ...]:
    """New tensors with the kernel's results; the kernel also writes into the tensors `written`."""
    source = ordered(x, order)
    results = [torch.empty_like(source, dtype=dtype) for dtype in dtypes]  # a generator costs a call an item
    function(*sizes, *[one.data_ptr() for one in (source, *read, *results, *written)])
    return tuple(results) if order is None else tuple([restored(result, order) for result in results])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def straight_through_on_cpu(gradient: torch.Tensor, mask: torch.Tensor) -> torch.Tensor | None:
    """The gradient of `fake_quantize_on_cpu`, for plain tensors with elements; None where there is no kernel."""
    kernel = laws.straight_through(8 * gradient.element_size())
    if kernel is None:
        return None
    order = memory_order(mask)
    gradient, mask = ordered(gradient, order), ordered(mask, order)
    result = torch.empty_like(gradient)
    kernel(mask.numel(), *(one.data_ptr() for one in (gradient, mask, result)))
    return restored(result, order)


def fake_quantize_by_package(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int | None, bounds: Bounds
) -> tuple[torch.Tensor, ...] | None:
    """The results of `fake_quantize_on_cpu`, by a package; None where there is no package."""
    if not 1 < x.numel() < LIMIT or scale.device != x.device or zero_point.device != x.device:
        return None
    order = memory_order(x)
    source = aligned(ordered(x, order), VECTOR)
    pattern, shape = "x", (source.numel(),)
    if axis is not None:
        axis = axis if order is None else order.index(axis)
        lengths = prod(source.shape[:axis]), source.shape[axis], prod(source.shape[axis + 1 :])
        pattern = "".join(kind for kind, length in zip("xcx", lengths, strict=True) if length > 1)
        shape = tuple(length for length in lengths if length > 1)
    kernel = (
        load(x.dtype, pattern, x.device) if pattern in _EXAMPLES and ("c" in pattern) == (axis is not None) else None
    )
    if kernel is None:
        return None
    results = torch.empty_like(source), torch.empty_like(source, dtype=torch.uint8)
    parameters = scale.contiguous(), zero_point.contiguous(), _ends(bounds, x.device)
    kernel([source.view(shape), *parameters, *(result.view(shape) for result in results)])
    return tuple(restored(result, order) for result in results)


class _Names(namespace.Names):
    """The namespace of a kernel whose compiler options keep each float operation's rounding (`packages.OPTIONS`)."""

    @staticmethod
    def rounded(product: torch.Tensor) -> torch.Tensor:
        return product

    @staticmethod
    def astype(x: torch.Tensor, dtype: str) -> torch.Tensor:
        return x.to(getattr(torch, dtype))


class FakeQuantize(torch.nn.Module):
    """The law as a module, from which a kernel is compiled."""

    def __init__(self, axis: int | None) -> None:
        super().__init__()
        self.axis = axis

    def forward(
        self, x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, ends: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        form = Bounds(*ends.unbind())  # type: ignore[arg-type]
        y, mask = law.fake_quantize(_Names, x, scale, zero_point, self.axis, form)  # type: ignore[arg-type]
        return y, mask.to(torch.uint8)


@cache
def load(dtype: torch.dtype, pattern: str, device: torch.device) -> Callable[[list[torch.Tensor]], object] | None:
    sources = [*sorted((Path(qcore.__file__).parent / "affine").rglob("*.py")), Path(namespace.__file__)]
    name = f"fake_quantize {dtype} {pattern}"
    return packages.load(name, [*sources, Path(__file__)], device, partial(example, dtype, pattern, device))


def example(dtype: torch.dtype, pattern: str, device: torch.device) -> packages.Example:
    """The example tensors from which the kernel for a pattern is compiled."""
    shape, axis = _EXAMPLES[pattern], pattern.index("c") if "c" in pattern else None
    sizes = [torch.export.Dim(f"d{one}", min=2, max=LIMIT - 1) for one in range(len(shape))]
    channels, along = ((), None) if axis is None else ((shape[axis],), {0: sizes[axis]})
    arguments = [
        torch.zeros(shape, dtype=dtype, device=device),
        torch.ones(channels, dtype=torch.float32, device=device),
        torch.zeros(channels, dtype=torch.int32, device=device),
        torch.zeros(2, dtype=torch.float32, device=device),
    ]
    return packages.Example(FakeQuantize(axis), tuple(arguments), (dict(enumerate(sizes)), along, along, None))


@cache
def _ends(bounds: Bounds, device: torch.device) -> torch.Tensor:
    return torch.tensor(bounds, dtype=torch.float32, device=device)


@cache
def _settings(rule: Any) -> torch.Tensor:
    """A rule's settings as the numbers that `laws.observe` reads."""
    form = rule.form
    numbers = form.low, form.high, form.qmin, form.middle, form.steps, rule.eps, getattr(rule, "averaging_constant", 0)
    return torch.tensor(numbers, dtype=torch.float32, device="cpu")
