"""Exact sums of products of integers, and their rounding: by kernels in C, by products of int8, or by floats."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from qcore.affine import AffineInteger, QParams
from qcore.affine.operations import check_requantized
from qtorch._affine import exported
from qtorch._affine.conversion import dequantize, requantize
from qtorch._affine.kernels import dynamic, integers
from qtorch._affine.namespace import Names
from qtorch._affine.programs import is_running
from qtorch._conversion import converted
from qtorch._namespace import reinterpreted
from qtorch._rounding.paths.choice import are_plain_tensors
from qtorch._torch_internals import INT8_TERMS, int8_product, is_memory, multiplies_int8

MANY_CHANNELS = 16  # from this number on the kernel computes depthwise convolutions
_DIMENSIONS = 3  # of images, as in `integer.c`
_LEVELS = 255  # between the least and the greatest integer of 8 bits
_CPU = torch.device("cpu")
_INT24, _INT32, _INT53 = 2**24, 2**31, 2**53


class Rounding(NamedTuple):
    """The rounding of sums (`qcore.affine.requantize`): the bias, and the result's parameters and integers."""

    bias: torch.Tensor | None
    output: QParams
    form: AffineInteger


class Geometry(NamedTuple):
    """Stride, padding and dilation for each dimension of images, of which a linear layer has none, and groups."""

    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1


class Product:
    """Products of windows of images with a weight in panels: sums in int32, or sums rounded to 8 bits.

    With relu the integers are at least the result's zero point. `product_of` lists the weights that the kernel
    supports.
    """

    def __init__(self, weight: Any, geometry: Geometry, rounding: Rounding | None, relu: bool = False) -> None:
        dimensions = len(geometry.stride)
        # Channels last, as in images, so that the kernel reads whole rows of a window one after the other.
        filters = weight.values.movedim(1, -1).contiguous() if dimensions else weight.values.contiguous()
        self._apart = geometry.groups > 1
        self.outputs, *kernel, self.channels = filters.shape
        self.terms = prod(kernel) * self.channels
        self.memory = packed(filters, weight.qparams.zero_point, self._apart)
        self._kernel, self._geometry, self._dtype = tuple(kernel), geometry, torch.int32
        self._missing = _DIMENSIONS - dimensions
        # The kernel gets addresses only; the product keeps these tensors alive.
        self._tensors: tuple[torch.Tensor, ...] = ()
        biased = rounding is not None and rounding.bias is not None
        if rounding is not None:
            self._dtype = getattr(torch, rounding.form.storage)
            self._tensors = self._rounding(weight, rounding, relu)
        addresses = [one.data_ptr() for one in self._tensors] or [0] * 5
        self._addresses = self.memory.data_ptr(), *addresses
        self._function: Any = integers.of_integers(biased)
        # A model calls a layer with one shape again and again: the arguments for the last shape are kept.
        self._last: tuple[Any, ...] = None, (), (), ()

    def _rounding(self, weight: Any, rounding: Rounding, relu: bool) -> tuple[torch.Tensor, ...]:
        """The tensors that the kernel reads to round."""
        output, form = rounding.output, rounding.form
        scales = weight.qparams.scale.expand(self.outputs).contiguous()
        bias = scales if rounding.bias is None else rounding.bias.contiguous()  # not read without a bias
        low = max(form.low, float(output.zero_point)) if relu else form.low
        return scales, bias, output.scale, output.zero_point, torch.tensor([low, form.high], device=_CPU)

    def __call__(self, values: torch.Tensor, qparams: QParams) -> torch.Tensor | None:
        """The results for integers of shape (batch, channels, *sizes), or (..., channels) for a linear layer.

        They have the shape (batch, outputs, *places), channels last in memory, or (..., outputs). None where the kernel
        does not support the images.
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
        """The kernel's arguments for images of a shape, and the shape and strides of the result."""
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
            batch,
            *self._in_three(sizes, 1),
            channels,
            *moves,
            *(number for each in settings for number in each),
            self.outputs,
            int(self._apart),
            int(values.dtype is torch.int8),
            int(bool(self._tensors)),
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
    """A contiguous weight of shape (outputs, ...) in the kernel's layout."""
    function: Any = integers.packing()
    zeros = zeros.contiguous()
    outputs, is_signed = len(filters), filters.dtype is torch.int8
    facts = outputs, filters.numel() // outputs, int(apart), int(is_signed), zeros.dim()
    addresses = filters.data_ptr(), zeros.data_ptr()
    memory = torch.empty(function(*facts, *addresses, 0), dtype=torch.uint8, device=_CPU)
    function(*facts, *addresses, memory.data_ptr())
    return memory


def product_of(weight: Any, geometry: Geometry, rounding: Rounding | None, relu: bool = False) -> Product | None:
    """The product with a weight of 8 bits; None where no kernel supports it.

    The kernel computes convolutions with one group, and depthwise convolutions of many channels. Raises the errors
    of `qcore.affine.requantize` for the rounding.
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
    """True if there is a kernel, and the processor has the instructions that it needs."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX") and integers.of_integers() is not None


_FEW_ROWS = 16  # fewer rows take no more time than the kernel needs to pack the weight


def sums_of_products(input: Any, weight: Any) -> torch.Tensor:
    """The exact sums of (x - its zero point) * (w - its zero point), of shape (rows, outputs).

    Input has the shape (rows, terms) and one scale, weight (outputs, terms). Integers of 8 bits are multiplied as int8;
    processors without int8 instructions use a kernel in C, or parts of the sum that are exact in float32. Other
    integers are multiplied in float64, which is exact for sums up to 2^53. The result is int32, float32 or float64.
    Raises ValueError if float64 may not hold a sum.
    """
    terms = weight.shape[1]
    sums = _by_kernel(input, weight, None)
    if sums is not None:
        return sums
    if exported.is_wanted():
        return exported.products(input, weight, sums_dtype(input.form, weight, terms))
    if fits_int32(input, weight, terms):
        (rows, zero), (filters, zeros) = signed(input), signed(weight)
        rows = rows.contiguous()  # oneDNN's results for expanded and overlapping rows are wrong
        return corrected(int8_product(rows, filters.t()), rows, zero, filters, zeros)
    largest_sum(input, weight, terms)
    return float_differences(input, torch.float64) @ float_differences(weight, torch.float64).t()


def rounded_products(input: Any, weight: Any, rounding: Rounding) -> torch.Tensor:
    """The results of `sums_of_products`, rounded to integers; the same errors."""
    values = _by_kernel(input, weight, rounding)
    if values is not None:
        return values
    return requantize(sums_of_products(input, weight), input.qparams.scale, weight.qparams.scale, *rounding)


def _by_kernel(input: Any, weight: Any, rounding: Rounding | None) -> torch.Tensor | None:
    # Traced tensors first: a comparison with their number of rows would fix it in the program.
    if not are_plain_tensors((input.values,)) or input.shape[0] < _FEW_ROWS:
        return None
    product = product_of(weight, Geometry(), rounding)
    return None if product is None else product(input.values.contiguous(), input.qparams)


def corrected(
    sums: torch.Tensor, rows: torch.Tensor, zero: torch.Tensor, filters: torch.Tensor, zeros: torch.Tensor
) -> torch.Tensor:
    """The sums of (row - zero) * (filter - its zero), computed from the sums of row * filter, which are overwritten.

    Sums in float32 have at most `INT8_TERMS` products, so that the correction is exact too, and the difference is
    rounded once, like the conversion of int32.
    """
    # The sum of (x - z) * (w - y) over n terms is sum(x * w) - y * (sum(x) - z * n) - z * sum(w).
    if not are_zero(zeros):
        of_rows = (row_sums(rows) - zero * rows.shape[1]).unsqueeze(1) * zeros
        sums = converted(sums, torch.int32) - of_rows
    return sums.sub_(converted(zero * row_sums(filters), sums.dtype))


def are_zero(zeros: torch.Tensor) -> bool:
    """True if all zero points are known to be 0; values of traced tensors, or without memory, are not known."""
    return not torch.compiler.is_dynamo_compiling() and is_memory(zeros) and not zeros.is_meta and not zeros.any()


def row_sums(rows: torch.Tensor) -> torch.Tensor:
    """The sums of int8 matrices' rows, int32. Up to 2^17 numbers are added in float32, which is exact and faster."""
    if rows.shape[1] <= 1 << 17:
        return rows.sum(1, dtype=torch.float32).to(torch.int32)
    return rows.sum(1, dtype=torch.int32)


def fits_int32(input: Any, weight: Any, terms: int) -> bool:
    """True if the integers have 8 bits and all sums of `terms` products fit into int32."""
    return _fit_int32(input.form, weight.form, terms)


def _fit_int32(first: AffineInteger, second: AffineInteger, terms: int) -> bool:
    narrow = all(form.storage in ("int8", "uint8") for form in (first, second))
    return narrow and _bound(first, second, terms) < _INT32


def largest_sum(input: Any, weight: Any, terms: int) -> int:
    """A bound of all sums of `terms` products; raises ValueError if float64 may not hold them."""
    return _checked_bound(input.form, weight, terms)


def _checked_bound(form: AffineInteger, weight: Any, terms: int) -> int:
    most = _bound(form, weight.form, terms)
    if most > _INT53:
        raise ValueError(f"weight has shape {tuple(weight.shape)}, whose sums may pass 2^53; allowed are fewer terms")
    return most


def _bound(first: AffineInteger, second: AffineInteger, terms: int) -> int:
    return terms * (first.qmax - first.qmin) * (second.qmax - second.qmin)


def sums_dtype(form: AffineInteger, weight: Any, terms: int) -> torch.dtype:
    """The dtype of an exported program's sums of a form's integers: int32, or float64 where that may not hold them."""
    _checked_bound(form, weight, terms)
    return torch.int32 if _fit_int32(form, weight.form, terms) else torch.float64


def float_differences(q: Any, dtype: torch.dtype) -> torch.Tensor:
    """The integers minus their zero points, as floats."""
    zero = q.qparams.zero_point
    if dtype is torch.float32:
        return dequantize(q.values, QParams(torch.ones_like(q.qparams.scale), zero, q.qparams.axis), q.form)
    if zero.ndim:
        zero = zero.reshape(-1, *(1,) * (q.ndim - 1))
    return (q.values.to(torch.int32) - zero).to(dtype)


def signed(q: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 values and a zero point with the same differences; unsigned values are shifted by 128."""
    if q.values.dtype is torch.int8:
        return q.values, q.qparams.zero_point
    zero = q.qparams.zero_point - 128
    if is_running():  # a program's own operators, which other programs translate: ONNX has no view of bits
        return (q.values.to(torch.int32) - 128).to(torch.int8), zero
    return reinterpreted(q.values ^ 0x80, torch.int8), zero


_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def sums_of_windows(
    input: Any,
    weight: Any,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> torch.Tensor:
    """The exact sums of (x - its zero point) * (w - its zero point) of windows, of shape (batch, *places, outputs).

    Input has the shape (batch, channels, *sizes) and one scale, weight (outputs, channels / groups, *kernel). x is
    padded with zeros. The result is int32, float32 or float64. Raises ValueError if float64 may not hold a sum.
    """
    terms = prod(weight.shape[1:])
    product = product_of(weight, Geometry(stride, padding, dilation, groups), None)
    sums = None if product is None else product(input.values, input.qparams)
    if sums is not None:
        return sums.movedim(1, -1)
    if exported.is_wanted():
        dtype = sums_dtype(input.form, weight, terms)
        return exported.windows(input, weight, dtype, stride, padding, dilation, groups).movedim(1, -1)
    if groups == 1 and fits_int32(input, weight, terms):
        # A matrix of windows is larger than the image by a factor: the number of places of a window.
        if multiplies_int8(input.device) or prod(weight.shape[2:]) == 1:
            return _by_int8(input, weight, stride, padding, dilation)
        if prod(weight.shape[2:]) <= INT8_TERMS // 2:
            return _by_parts(input, weight, stride, padding, dilation)
    most = largest_sum(input, weight, terms)
    exact = torch.float32 if most <= _INT24 and input.values.is_cpu else torch.float64  # GPUs may use Winograd
    if len(stride) > 1 and exact is torch.float32:  # torch takes ten times as long for groups with channels first
        input = input._with(input.values.movedim(1, -1).contiguous().movedim(-1, 1))
    operands = (float_differences(q, exact) for q in (input, weight))
    convolve: Any = _CONVOLUTIONS[len(stride)]
    with torch.autocast(input.device.type, enabled=False):
        return convolve(*operands, None, stride, padding, dilation, groups).movedim(1, -1)


def rounded_windows(input: Any, weight: Any, geometry: Geometry, rounding: Rounding) -> torch.Tensor:
    """The integers of shape (batch, outputs, *places) to which `sums_of_windows` are rounded; the same errors."""
    product = product_of(weight, geometry, rounding)
    values = None if product is None else product(input.values, input.qparams)
    if values is not None:
        return values
    if exported.is_wanted():
        dtype = sums_dtype(input.form, weight, prod(weight.shape[1:]))
        sums = exported.windows(input, weight, dtype, *geometry)
        return exported.requantize(sums, input.qparams.scale, weight.qparams.scale, *rounding, 1)
    sums = sums_of_windows(input, weight, *geometry)
    return requantize(sums, input.qparams.scale, weight.qparams.scale, *rounding).movedim(-1, 1)


def _by_parts(
    input: Any, weight: Any, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> torch.Tensor:
    """Convolutions of few channels at a time, so that sums are exact in float32, if int8 products are slow."""
    (images, zero), filters = signed(input), float_differences(weight, torch.float32)
    # Images and their margins keep the zero point: it adds one constant to all sums of an output, which is
    # subtracted at the end.
    centred = weight.form.signed and are_zero(weight.qparams.zero_point)
    terms = INT8_TERMS if centred else INT8_TERMS // 2  # differences may have twice the magnitude
    channels = max(1, terms // prod(weight.shape[2:]))
    images = _padded(images.movedim(1, -1), zero, padding).movedim(-1, 1).to(torch.float32)
    convolve: Any = _CONVOLUTIONS[len(stride)]
    with torch.autocast(input.device.type, enabled=False):
        parts = zip(images.split(channels, 1), filters.split(channels, 1), strict=True)
        sums = [convolve(*part, None, stride, 0, dilation).movedim(1, -1) for part in parts]
    total = sums[0] if len(sums) == 1 else torch.stack([one.to(torch.int32) for one in sums]).sum(0, dtype=torch.int32)
    of_filters = filters.flatten(1).sum(1, dtype=torch.float64).to(torch.int32)
    return total.sub_((zero * of_filters).to(total.dtype))


def _by_int8(
    input: Any, weight: Any, stride: tuple[int, ...], padding: tuple[int, ...], dilation: tuple[int, ...]
) -> torch.Tensor:
    """All windows as rows of a matrix, multiplied as int8."""
    (images, zero), (filters, zeros) = signed(input), signed(weight)
    rows = _windows(_padded(images.movedim(1, -1), zero, padding), weight.shape[2:], stride, dilation)
    places = rows.shape[: images.ndim - 1]
    terms = prod(weight.shape[1:])
    rows = rows.reshape(prod(places), terms).contiguous()  # 1-d windows may overlap: wrong in oneDNN
    filters = filters.movedim(1, -1).reshape(len(filters), terms)
    sums = corrected(int8_product(rows, filters.t()), rows, zero, filters, zeros)
    return sums.reshape(*places, len(filters))


def _padded(images: torch.Tensor, zero: torch.Tensor, padding: tuple[int, ...]) -> torch.Tensor:
    """Images of shape (batch, *sizes, channels), padded with their zero point."""
    if not any(padding):
        return images.contiguous()
    batch, *sizes, channels = images.shape
    larger = [size + 2 * margin for size, margin in zip(sizes, padding, strict=True)]
    result = zero.to(images.dtype).expand(batch, *larger, channels).contiguous()
    inside = tuple(slice(margin, margin + size) for size, margin in zip(sizes, padding, strict=True))
    result[(slice(None), *inside)] = images
    return result


def _windows(
    images: torch.Tensor, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> torch.Tensor:
    """All places of a kernel, as a view of shape (batch, *places, *kernel, channels) of images with channels last."""
    sizes, strides = list(images.shape), list(images.stride())
    places = [
        (size - gap * (count - 1) - 1) // step + 1
        for size, count, step, gap in zip(sizes[1:-1], kernel, stride, dilation, strict=True)
    ]
    along = strides[1:-1]
    moves = [one * step for one, step in zip(along, stride, strict=True)]
    inner = [one * gap for one, gap in zip(along, dilation, strict=True)]
    shape = (sizes[0], *places, *kernel, sizes[-1])
    return images.as_strided(shape, (strides[0], *moves, *inner, strides[-1]))


_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class DynamicKernel:
    """A product with a packed weight of shape (outputs, features); it first quantizes its float input to a form."""

    def __init__(self, weight: Any, bias: torch.Tensor | None, form: AffineInteger, rows: bool) -> None:
        self.outputs, self.features = weight.shape
        self.form, self.biased, self._rows = form, bias is not None, int(rows)
        self._memory = packed(weight.values.contiguous(), weight.qparams.zero_point, False)
        self._scales = weight.qparams.scale.expand(self.outputs).contiguous()
        self._bias = self._scales if bias is None else bias.contiguous()  # not read without a bias
        self._totals = totals_of(weight)
        self.addresses = tuple(one.data_ptr() for one in (self._memory, self._scales, self._bias))
        self._function: Any = dynamic.product(self.biased, form)

    def __call__(self, x: Any) -> torch.Tensor | None:
        """The product with the last dimension of a tensor of floats; None if the kernel does not support the tensor."""
        if not isinstance(x, torch.Tensor) or x.dtype not in _FLOATS or not are_plain_tensors((x,)) or not x.is_cpu:
            return None
        shape = x.shape
        if not shape or shape[-1] != self.features or x.numel() == 0:
            return None
        if x.dtype is not torch.float32:
            x = x.to(torch.float32)
        x = x.contiguous()
        result = torch.empty((*shape[:-1], self.outputs), dtype=torch.float32, device=_CPU)
        rows = x.numel() // self.features
        addresses = *self.addresses, self._totals.data_ptr(), x.data_ptr(), result.data_ptr()
        self._function(rows, self.features, self.outputs, self._rows, *addresses)
        return result

    def steps(
        self,
        law: str,
        of_input: torch.Tensor,
        sizes: Sequence[int],
        states: Sequence[torch.Tensor],
        reverse: bool,
    ) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
        """The results of all steps of an LSTM or GRU, and its last states; None where no kernel supports it.

        of_input has the products of the input's rows, ordered by step; the first sizes[t]
        sequences have step t. States are float32 of shape (batch, size).
        """
        function: Any = dynamic.steps(law, self.biased, self.form)
        needs_gradient = torch.is_grad_enabled() and any(one.requires_grad for one in states)
        if function is None or needs_gradient or not are_plain_tensors((of_input, *states)) or not of_input.is_cpu:
            return None
        made = [one.clone(memory_format=torch.contiguous_format) for one in states]
        counts = torch.tensor(sizes, dtype=torch.int64, device=_CPU)
        result = torch.empty((len(of_input), self.features), dtype=torch.float32, device=_CPU)
        tensors = counts, of_input.contiguous(), made[0], made[-1], result
        function(
            len(sizes),
            self.features,
            len(made[0]),
            int(reverse),
            *self.addresses,
            *(one.data_ptr() for one in tensors),
        )
        return result, made


def totals_of(weight: Any) -> torch.Tensor:
    """The sum of each output's differences (w - its zero point), int32, or int64 for weights of more than 8 bits."""
    dtype = torch.int32 if weight.values.element_size() == 1 else torch.int64
    zero = weight.qparams.zero_point.to(dtype)
    return (weight.values.sum(1, dtype=dtype) - weight.shape[1] * zero).contiguous()


def kernel_of(weight: Any, bias: torch.Tensor | None, form: AffineInteger, rows: bool = False) -> DynamicKernel | None:
    """The kernel of a product with a weight of 8 bits; None where there is none."""
    levels = (weight.form.qmax - weight.form.qmin) * (form.qmax - form.qmin)
    tensors = [weight.values, weight.qparams.scale, weight.qparams.zero_point, *([] if bias is None else [bias])]
    fits = weight.values.element_size() == 1 and prod(weight.shape[1:]) * levels < 2**31
    fits = fits and form.storage == "uint8"
    if not (fits and weight.values.is_cpu and weight.values.numel() > 0 and are_plain_tensors(tensors) and is_there()):
        return None
    return DynamicKernel(weight, bias, form, rows)
