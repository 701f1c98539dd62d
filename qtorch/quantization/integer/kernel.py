"""Exact sums of products of 8-bit integers by a kernel in C, on processors for which torch has no such instructions."""

from __future__ import annotations

from typing import Any

import torch

from qtorch._kernels import products
from qtorch._rounding.paths.choice import is_plain_tensor
from qtorch._torch_internals import multiplies_int8


def is_served(input: Any, weight: Any) -> bool:
    """True if the kernel is there, may read the operands, and is faster than products of floats.

    Args:
        input, weight: QTensors of 8 bits.
    """
    tensors = input.values, input.qparams.zero_point, weight.values, weight.qparams.zero_point
    return (
        all(is_plain_tensor(one) and one.is_cpu for one in tensors)
        and not multiplies_int8(input.device)
        and torch.backends.cpu.get_cpu_capability().startswith("AVX")
        and products.of_integers() is not None
    )


def sums_of_runs(
    input: Any,
    weight: Any,
    places: tuple[int, ...],
    moves: tuple[int, ...],
    kernel: tuple[int, ...] = (),
    steps: tuple[int, ...] = (),
) -> torch.Tensor:
    """The sums over windows of (x - its zero point) * (w - its zero point), where `is_served`.

    Args:
        input: QTensor with one scale, whose last dimension has no gaps: windows are made of runs along it.
        weight: QTensor of shape (outputs, *kernel, length of the last dimension), with one scale or some.
        places, moves: of up to four dimensions of windows, how many there are and how far apart in memory.
        kernel, steps: the same of up to three dimensions of runs in a window.

    Returns:
        int32 of shape (*places, outputs).
    """
    function: Any = products.of_integers()
    values, filters = input.values, weight.values.contiguous()
    zeros, length = weight.qparams.zero_point.contiguous(), values.shape[-1]
    sums = torch.empty((*places, len(filters)), dtype=torch.int32, device="cpu")
    while kernel and steps[-1] == length:  # neighbours are one run
        length, kernel, steps = length * kernel[-1], kernel[:-1], steps[:-1]
    if sums.numel():
        absent, missing = 4 - len(places), 3 - len(kernel)
        windows = *(1,) * absent, *places, *(0,) * absent, *moves
        runs = *(1,) * missing, *kernel, *(0,) * missing, *steps
        kinds = values.dtype is torch.int8, filters.dtype is torch.int8, zeros.dim() == 0
        tensors = values, input.qparams.zero_point, filters, zeros, sums
        function(*windows, *runs, length, len(filters), *map(int, kinds), *(one.data_ptr() for one in tensors))
    return sums
