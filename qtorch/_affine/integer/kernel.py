"""Exact sums of products of 8-bit integers by a kernel in C, and these rounded, where that is faster than torch's."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch

from qcore.affine import AffineInteger, QParams
from qcore.affine.operations import check_requantized
from qtorch._affine.namespace import Names
from qtorch._kernels import products
from qtorch._rounding.paths.choice import are_plain_tensors

MANY_CHANNELS = 16  # from which on the kernel serves convolutions of each channel alone
_DIMENSIONS = 3  # of images, as in `integer.c`
_LEVELS = 255  # between the least and the greatest integer of 8 bits
_CPU = torch.device("cpu")


class Rounding(NamedTuple):
    """What becomes of sums (`qcore.affine.requantize`): the bias, and the result's parameters and integers."""

    bias: torch.Tensor | None
    output: QParams
    form: AffineInteger


class Geometry(NamedTuple):
    """Of a convolution, for each dimension of images, of which a linear layer has none."""

    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1


class Product:
    """Products of windows of images with a weight in panels; the sums, or the integers to which they are rounded.

    Attributes:
        memory: the weight as the kernel reads it.
        outputs, terms: of the weight.

    Args:
        weight: QTensor, served by the kernel (`product_of`).
        geometry: of the convolution.
        rounding: to integers of 8 bits; None for sums in int32.
        relu: whether integers are no less than the result's zero point.
    """

    def __init__(self, weight: Any, geometry: Geometry, rounding: Rounding | None, relu: bool = False) -> None:
        dimensions = len(geometry.stride)
        filters = weight.values.movedim(1, -1).contiguous() if dimensions else weight.values.contiguous()
        self._apart = geometry.groups > 1
        self.outputs, *kernel, self.channels = filters.shape
        self.terms = prod(kernel) * self.channels
        self.memory = packed(filters, weight.qparams.zero_point, self._apart)
        self._kernel, self._geometry, self._dtype = tuple(kernel), geometry, torch.int32
        self._missing = _DIMENSIONS - dimensions
        self._tensors: tuple[torch.Tensor, ...] = ()  # whose addresses the kernel is given
        biased = rounding is not None and rounding.bias is not None
        if rounding is not None:
            self._dtype = getattr(torch, rounding.form.storage)
            self._tensors = self._rounding(weight, rounding, relu)
        addresses = [one.data_ptr() for one in self._tensors] or [0] * 5
        self._addresses = self.memory.data_ptr(), *addresses
        self._function: Any = products.of_integers(biased)
        self._last: tuple[Any, ...] = None, (), (), ()

    def _rounding(self, weight: Any, rounding: Rounding, relu: bool) -> tuple[torch.Tensor, ...]:
        """What the kernel reads to round."""
        output, form = rounding.output, rounding.form
        scales = weight.qparams.scale.expand(self.outputs).contiguous()
        bias = scales if rounding.bias is None else rounding.bias.contiguous()  # which is not read if there is none
        low = max(form.low, float(output.zero_point)) if relu else form.low
        return scales, bias, output.scale, output.zero_point, torch.tensor([low, form.high], device=_CPU)

    def __call__(self, values: torch.Tensor, qparams: QParams) -> torch.Tensor | None:
        """The results for integers of images, or rows; None where the kernel does not serve them.

        Args:
            values: of shape (batch, channels, *sizes), or (..., channels) for a linear layer.
            qparams: their parameters.

        Returns:
            Integers of shape (batch, outputs, *places), channels being last in memory, or (..., outputs).
        """
        if qparams.axis is not None or not are_plain_tensors((values, qparams.scale, qparams.zero_point)):
            return None
        layout = values.shape, values.stride(), values.dtype
        last = self._last
        if last[0] != layout:
            found = self._laid_out(values) if values.is_cpu else None
            if found is None:
                return None
            last = self._last = layout, *found
        result = torch.empty_strided(last[2], last[3], dtype=self._dtype, device=_CPU)
        self._function(
            *last[1], values.data_ptr(), qparams.zero_point.data_ptr(), qparams.scale.data_ptr(), result.data_ptr()
        )
        return result

    def _laid_out(self, values: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
        """What the kernel is told of images of a shape, and the shape and strides of the result."""
        stride, padding, dilation, groups = self._geometry
        shape, strides = tuple(values.shape), values.stride()
        if values.numel() == 0 or values.dtype not in (torch.int8, torch.uint8):
            return None
        if not stride:
            if not values.is_contiguous() or shape[-1] != self.terms:
                return None
            shape, strides = (values.numel() // self.terms, self.terms), (self.terms, 1)
        batch, channels, *sizes = shape
        if len(sizes) != len(stride) or channels != self.channels * groups:
            return None
        larger = [size + 2 * margin for size, margin in zip(sizes, padding, strict=True)]
        extents = [gap * (count - 1) + 1 for count, gap in zip(self._kernel, dilation, strict=True)]
        if any(size < extent for size, extent in zip(larger, extents, strict=True)):
            return None
        places = [(size - extent) // step + 1 for size, extent, step in zip(larger, extents, stride, strict=True)]
        moves = strides[0], *self._in_three(strides[2:], 0), strides[1]
        settings = [
            self._in_three(each, one) for each, one in ((padding, 0), (self._kernel, 1), (stride, 1), (dilation, 1))
        ]
        arguments = (
            *(batch, *self._in_three(sizes, 1), channels, *moves, *(number for each in settings for number in each)),
            *(self.outputs, int(self._apart), int(values.dtype is torch.int8), int(bool(self._tensors))),
            *self._addresses,
        )
        if not stride:
            size = (*values.shape[:-1], self.outputs)
            return arguments, size, torch.empty(size, device="meta").stride()
        last = torch.empty((batch, *places, self.outputs), device="meta").movedim(-1, 1)
        return arguments, tuple(last.shape), last.stride()

    def _in_three(self, numbers: Any, absent: int) -> tuple[int, ...]:
        return (*(absent,) * self._missing, *numbers)


def packed(filters: torch.Tensor, zeros: torch.Tensor, apart: bool) -> torch.Tensor:
    """A contiguous weight of shape (outputs, ...) as the kernel reads it."""
    function: Any = products.packing()
    zeros = zeros.contiguous()
    outputs, is_signed = len(filters), filters.dtype is torch.int8
    facts = outputs, filters.numel() // outputs, int(apart), int(is_signed), zeros.dim()
    addresses = filters.data_ptr(), zeros.data_ptr()
    memory = torch.empty(function(*facts, *addresses, 0), dtype=torch.uint8, device=_CPU)
    function(*facts, *addresses, memory.data_ptr())
    return memory


def product_of(weight: Any, geometry: Geometry, rounding: Rounding | None, relu: bool = False) -> Product | None:
    """The product with a weight of 8 bits; None where the kernel is not there, or does not serve it.

    The kernel has convolutions of all channels, and of those of each channel alone, if they are many.

    Raises:
        TypeError, ValueError: what `qcore.affine.requantize` raises of the rounding.
    """
    if torch.compiler.is_dynamo_compiling():
        return None
    tensors: list[torch.Tensor] = [weight.values, weight.qparams.scale, weight.qparams.zero_point]
    narrow = weight.values.element_size() == 1
    if rounding is not None:
        sums = torch.empty((0, weight.shape[0]), dtype=torch.int32, device="meta")
        check_requantized(sums, rounding.output.scale, weight.qparams.scale, *rounding, xp=Names)
        narrow = narrow and rounding.form.storage in ("int8", "uint8")
        tensors += [
            rounding.output.scale,
            rounding.output.zero_point,
            *([] if rounding.bias is None else [rounding.bias]),
        ]
    apart = geometry.groups == weight.shape[0] >= MANY_CHANNELS and weight.shape[1] == 1
    fits = prod(weight.shape[1:]) * _LEVELS * (weight.form.qmax - weight.form.qmin) < 2**31
    if not (narrow and fits and (geometry.groups == 1 or apart) and weight.values.is_cpu and weight.values.numel() > 0):
        return None
    return Product(weight, geometry, rounding, relu) if are_plain_tensors(tensors) and is_there() else None


def is_there() -> bool:
    """True if the kernel is there, on a processor for which it was written."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and products.of_integers() is not None
