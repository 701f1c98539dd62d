"""Exact sums of products of 8-bit integers by a kernel in C, where that is faster than what torch has."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from qcore.affine import AffineInteger, QParams
from qcore.affine.operations import check_requantized
from qtorch._kernels import products
from qtorch._kernels.compiler import is_for_all_instructions
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._torch_internals import multiplies_int8
from qtorch.quantization.array_names import Names


def is_served(input: Any, weight: Any, apart: bool = False) -> bool:
    """True if the kernel is there, may read the operands, and is faster than torch's products.

    These have instructions for int8 that the kernel may lack (`ATEN_CPU_CAPABILITY`), but not for convolutions of each
    channel alone.

    Args:
        input, weight: QTensors of 8 bits.
        apart: as for `sums_of_runs`.
    """
    tensors = input.values, input.qparams.zero_point, weight.values, weight.qparams.zero_point
    return (
        all(is_plain_tensor(one) and one.is_cpu for one in tensors)
        and (apart or is_for_all_instructions() or not multiplies_int8(input.device))
        and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        and products.of_integers() is not None
    )


MANY_CHANNELS = 16  # from which on the kernel serves convolutions of each channel alone


class Rounding(NamedTuple):
    """What becomes of sums (`qcore.affine.requantize`): the bias, and the result's parameters and integers."""

    bias: torch.Tensor | None
    output: QParams
    form: AffineInteger


def sums_of_runs(
    input: Any,
    weight: Any,
    rows: torch.Tensor,
    filters: torch.Tensor,
    places: tuple[int, ...],
    moves: tuple[int, ...],
    kernel: tuple[int, ...] = (),
    steps: tuple[int, ...] = (),
    apart: bool = False,
    rounding: Rounding | None = None,
) -> torch.Tensor:
    """The sums over windows of (x - its zero point) * (w - its zero point), where `is_served`, or these rounded.

    Args:
        input: QTensor with one scale.
        weight: QTensor with one scale, or one for each output.
        rows: input's integers, whose last dimension has no gaps: windows are made of runs along it.
        filters: weight's integers, of shape (outputs, *kernel, length of rows' last dimension).
        places, moves: of up to four dimensions of windows, how many there are and how far apart in memory.
        kernel, steps: the same of up to three dimensions of runs in a window.
        apart: True if each output sees one channel; the last dimension of filters is then 1.
        rounding: to which integers, where `rounds_here`; None for the sums.

    Returns:
        int32, or the rounding's integers, of shape (*places, outputs).
    """
    filters, zeros, length = filters.contiguous(), weight.qparams.zero_point.contiguous(), rows.shape[-1]
    while kernel and steps[-1] == length and not apart:  # neighbours are one run
        length, kernel, steps = length * kernel[-1], kernel[:-1], steps[:-1]
    dtype = torch.int32 if rounding is None else getattr(torch, rounding.form.storage)
    result = torch.empty((*places, len(filters)), dtype=dtype, device="cpu")
    if result.numel():
        absent, missing = 4 - len(places), 3 - len(kernel)
        windows = *(1,) * absent, *places, *(0,) * absent, *moves
        runs = *(1,) * missing, *kernel, *(0,) * missing, *steps
        flags = apart, rows.dtype is torch.int8, filters.dtype is torch.int8, zeros.dim() == 0
        tensors = rows, input.qparams.zero_point, filters, zeros, result, *_parameters(input, weight, rounding)
        function: Any = products.of_integers(rounding is not None and rounding.bias is not None)
        function(*windows, *runs, length, len(filters), *map(int, flags), *(one.data_ptr() for one in tensors))
    return result


def rounds_here(input: Any, weight: Any, rounding: Rounding) -> bool:
    """True if the kernel may round, to integers of 8 bits; raises what `qcore.affine.requantize` raises."""
    output, bias = rounding.output, [] if rounding.bias is None else [rounding.bias]
    tensors = input.qparams.scale, weight.qparams.scale, output.scale, output.zero_point, *bias
    narrow = rounding.form.storage in ("int8", "uint8")
    if not (narrow and all(is_plain_tensor(one) and one.is_cpu for one in tensors)):
        return False
    sums = torch.empty((0, len(weight.values)), dtype=torch.int32, device="meta")
    check_requantized(sums, input.qparams.scale, weight.qparams.scale, *rounding, xp=Names)
    return True


def _parameters(input: Any, weight: Any, rounding: Rounding | None) -> tuple[torch.Tensor, ...]:
    """What the kernel reads to round."""
    if rounding is None:
        return ()
    scales = weight.qparams.scale.expand(len(weight.values)).contiguous()
    bias = scales if rounding.bias is None else rounding.bias.contiguous()  # which is not read if there is none
    ends = torch.tensor([rounding.form.low, rounding.form.high], device="cpu")
    return scales, bias, input.qparams.scale, rounding.output.scale, rounding.output.zero_point, ends
