"""The array namespace of products, for tensors: float64 sums, and kernels for sequential ones and instructions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import torch

from qcore import Accumulator, Number, Rounding
from qcore.law.rounding import rounds_distance
from qcore.linalg.accumulator import NORMALIZED
from qcore.linalg.law import batch_shape
from qcore.random.threefry import MOST_HALF_BITS, Noise, block_of_step, words_of_step
from qtorch._kernels import products
from qtorch._kernels.launch import addresses, aligned
from qtorch._namespace import Names
from qtorch._rounding.keys import window_tensor
from qtorch._rounding.paths.choice import are_plain_tensors, round_tensor
from qtorch._rounding.plan import RoundingPlan, plan_for

_NO_LEAST = -1000  # the least exponent of numbers whose subnormal ones have their own


def sequential_product(
    a: torch.Tensor,
    b: torch.Tensor,
    accumulator: Accumulator | None,
    narrow: bool,
    key: torch.Tensor | None,
    addend: torch.Tensor | None = None,
) -> torch.Tensor | None:
    """A product with a sequential accumulator, in float64; None if there is no kernel.

    With None as the accumulator sums are float64 and are not rounded.
    """
    function = products.sequential(accumulator, narrow) if a.is_cpu else None
    return None if function is None else run_sequential(function, a, b, key, addend)


def run_sequential(
    function: Callable[..., object],
    a: torch.Tensor,
    b: torch.Tensor,
    key: torch.Tensor | None,
    addend: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product of matrices, or of batches of them, by a kernel, in float64."""
    if a.dim() > 2 or b.dim() > 2:
        a, b = _of_one_batch(a, b)
    a, b = aligned(a.contiguous()), aligned(b.contiguous())
    result = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=torch.float64, device="cpu")
    if addend is not None:
        result.copy_(addend)
    if result.numel() > 0:
        sizes = prod(a.shape[:-2]), a.shape[-2], b.shape[-1], a.shape[-1]
        function(*sizes, int(addend is not None), *addresses(a, b, key, result))
    return result


def _of_one_batch(*matrices: torch.Tensor) -> list[torch.Tensor]:
    """Matrices with the leading dimensions of the product of the first two."""
    batch = batch_shape(matrices[0], matrices[1])
    return [x.expand(*batch, *x.shape[-2:]) for x in matrices]


class Float64(Names):
    """Torch's names, see `qcore.linalg.namespace.Float64`; `key` is an int32 tensor of two words, or None."""

    def __init__(self, key: torch.Tensor | None = None, narrow_sums: bool = False) -> None:
        self.key = key
        self.narrow_sums = narrow_sums

    @staticmethod
    def part(x: torch.Tensor, index: int, axis: int, count: int = 1) -> torch.Tensor:
        return x.narrow(axis, index * count, count)

    @staticmethod
    def float32(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float32)

    @staticmethod
    def plus(total: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        return found.add_(total)

    @staticmethod
    def unsigned_zero(x: torch.Tensor) -> torch.Tensor:
        return x.add_(0.0)

    @staticmethod
    def lanes(x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.int64)

    @staticmethod
    def floats(bits: torch.Tensor) -> torch.Tensor:
        return bits.view(torch.float64)

    @staticmethod
    def float64(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float64)

    @staticmethod
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.to(torch.float64) @ b.to(torch.float64)

    @staticmethod
    def ascending(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
        return sequential_product(a, b, None, False, None)

    def sequential(
        self, a: torch.Tensor, b: torch.Tensor, accumulator: Accumulator, first: int, addend: torch.Tensor | None
    ) -> torch.Tensor | None:
        if first and accumulator.stochastic:
            return None
        narrow = self.narrow_sums and accumulator._sequential
        return sequential_product(a, b, accumulator, narrow, self.key, addend)

    @staticmethod
    def by_steps(
        a: torch.Tensor,
        b: torch.Tensor,
        accumulator: Accumulator,
        least: tuple[int, int],
        scales: tuple[torch.Tensor, torch.Tensor] | None,
        addend: torch.Tensor | None,
    ) -> torch.Tensor | None:
        if not (a.is_cpu and are_plain_tensors((a, b, *(scales or ())))):
            return None
        inner = accumulator.innermost
        is_aligned = inner.fraction_bits is not None
        function = products.aligned(accumulator) if is_aligned else products.unaligned(accumulator)
        if function is None:
            return None
        a, b, *of_blocks = [aligned(x.contiguous()) for x in _of_one_batch(a, b, *(scales or ()))]
        result = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=torch.float64, device="cpu")
        if addend is not None:
            result.copy_(addend)
        if result.numel() > 0:
            sizes = prod(a.shape[:-2]), a.shape[-2], b.shape[-1], a.shape[-1]
            chunk = (inner.length(a.shape[-1]),) if is_aligned else ()
            normalized = inner.subnormals == NORMALIZED
            given = (a, b, *(of_blocks or (None, None)), result) if is_aligned else (a, b, result)
            numbers = *sizes, *chunk, int(addend is not None), *((_NO_LEAST,) * 2 if normalized else least)
            function(*numbers, *addresses(*given))
        return result

    @staticmethod
    def fold(
        step: Callable[..., Any], total: Any, a: torch.Tensor, b: torch.Tensor, length: int, shares_words: bool = False
    ) -> Any:
        for index, begin in enumerate(range(0, a.shape[-1], length)):
            total = step(total, index, a[..., begin : begin + length], b[..., begin : begin + length, :])
        return total

    def rounded(  # type: ignore[override]
        self, x: torch.Tensor, number: Number, mode: Rounding, step: int, random_bits: int
    ) -> torch.Tensor:
        if x.numel() == 0:
            return x
        plan = plan_for(number, mode, torch.float64, None, False)
        if not plan.stochastic:
            return round_tensor(x, plan, None, True)
        if random_bits <= MOST_HALF_BITS:
            return self._rounded_by_halves(x, plan, step, random_bits)
        assert self.key is not None  # checked where the key is given
        noise = Noise(self.key, window_tensor(random_bits, step * x.numel(), x.device))
        return round_tensor(x, plan, noise, True)

    def _rounded_by_halves(self, x: torch.Tensor, plan: RoundingPlan, step: int, random_bits: int) -> torch.Tensor:
        """Stochastic rounding with a part of the words of a block of steps."""
        assert self.key is not None
        block, part = block_of_step(step, random_bits)
        window = window_tensor(random_bits, block * prod(x.shape), x.device)
        arange = partial(torch.arange, dtype=torch.int32, device=x.device)
        key, start = (self.key[0], self.key[1]), (window[0], window[1])
        half = rounds_distance(plan.program.mode)
        words = words_of_step(arange, x.shape, key, start, part, random_bits, half).to(torch.int64) << 32
        lanes = plan.program.run(Names, x.view(torch.int64), plan.constants, (), words)
        return lanes.view(torch.float64)
