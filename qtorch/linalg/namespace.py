"""What the law of products uses of an array namespace: torch's, for tensors that are memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import torch

from qcore import Accumulator, Number, Rounding
from qcore.linalg.convolution import ConvolutionForm
from qcore.linalg.forms import GRAD_B
from qcore.linalg.law import Sums, batch_shape
from qcore.linalg.places import Axis, Places, convolution_places
from qcore.random.steps import MOST_HALF_BITS, block_of_step, words_of_step
from qcore.random.threefry import Noise
from qtorch._kernels import products
from qtorch._namespace import Names
from qtorch._rounding.keys import window_tensor
from qtorch._rounding.paths.choice import round_tensor
from qtorch._rounding.paths.cpu import aligned
from qtorch._rounding.plan import Plan, plan_for
from qtorch.linalg.direct.program import Array, Native, NoKernelError


def sequential_product(
    a: torch.Tensor, b: torch.Tensor, accumulator: Accumulator | None, narrow: bool, key: torch.Tensor | None
) -> torch.Tensor | None:
    """A product with a sequential accumulator, in float64; None where there is no kernel.

    Without an accumulator sums are float64, and not rounded.
    """
    if not a.is_cpu:
        return None
    batch = batch_shape(a, b)
    a, b = (aligned(x.expand(*batch, *x.shape[-2:]).contiguous()) for x in (a, b))
    result = torch.empty((*a.shape[:-1], b.shape[-1]), dtype=torch.float64, device="cpu")
    if result.numel() == 0:
        return result
    function = products.sequential(accumulator, narrow)
    if function is None:
        return None
    sizes = prod(batch), a.shape[-2], b.shape[-1], a.shape[-1]
    function(*sizes, a.data_ptr(), b.data_ptr(), 0 if key is None else key.data_ptr(), result.data_ptr())
    return result


def convolution_product(
    form: Any, which: str, first: torch.Tensor, second: torch.Tensor, other: Any, sums: Sums, key: torch.Tensor | None
) -> torch.Tensor | None:
    """A convolution's product in float32, which gathers no columns; None where there is no kernel for its sums."""
    if not (isinstance(form, ConvolutionForm) and _has_kernel(first, sums)):
        return None
    first, second = aligned(first.contiguous()), aligned(second.contiguous())
    windows = form.windows(Float64, which, first, second, other)
    places = convolution_places(form, which, tuple(first.shape), tuple(second.shape), windows)
    x = windows.x.contiguous()
    return _from_places(places, *((second, x) if which != GRAD_B else (first, x)), sums, key)


def matrix_product(a: torch.Tensor, b: torch.Tensor, sums: Sums, key: torch.Tensor | None) -> torch.Tensor | None:
    """A product of matrices, or of batches of them, in float32; None where there is no kernel for its sums."""
    if not _has_kernel(a, sums):
        return None
    a, b = aligned(a), aligned(b)
    places, batch = _matrix_places(a.shape, a.stride(), b.shape, b.stride())
    result = _from_places(places, a, b, sums, key)
    return None if result is None else result.reshape(*batch, *result.shape[1:])


@lru_cache(maxsize=1024)
def _matrix_places(
    shape_a: tuple[int, ...], strides_a: tuple[int, ...], shape_b: tuple[int, ...], strides_b: tuple[int, ...]
) -> tuple[Places, tuple[int, ...]]:
    """Where the elements of batches of matrices lie, and the shape of the batches."""
    a, b = (torch.empty_strided(*one, device="meta") for one in ((shape_a, strides_a), (shape_b, strides_b)))
    batch = batch_shape(a, b)
    of_a, of_b = (_batch_places(x.expand(*batch, *x.shape[-2:])) for x in (a, b))
    sizes = prod(batch), a.shape[-2], b.shape[-1], a.shape[-1]
    return Places(sizes, (of_a, of_b, a.stride(-2), a.stride(-1), b.stride(-2), b.stride(-1))), tuple(batch)


def _has_kernel(x: torch.Tensor, sums: Sums) -> bool:
    return x.is_cpu and has_chunk_kernel(sums)


def has_chunk_kernel(sums: Sums) -> bool:
    """True for chunks that are plain sums; a sequential accumulator that rounds has a kernel of its own."""
    accumulator = sums.accumulator
    return accumulator.plain and not (accumulator.sequential and accumulator.rounds)


def _from_places(
    places: Places, a: torch.Tensor, b: torch.Tensor, sums: Sums, key: torch.Tensor | None
) -> torch.Tensor | None:
    result = torch.empty(places.sizes[:3], dtype=torch.float32, device="cpu")
    if result.numel() == 0:
        return result
    function = products.chunked(_of_chunks(sums.accumulator))
    if function is None:
        return None
    sizes, axes = _arguments(places, sums.accumulator)
    function(*sizes, a.data_ptr(), b.data_ptr(), 0 if key is None else key.data_ptr(), result.data_ptr(), *axes)
    return result


def _of_chunks(accumulator: Accumulator) -> Accumulator | None:
    """What `products.chunked` is of."""
    return None if accumulator.converts or (accumulator.sequential and not accumulator.rounds) else accumulator


def _arguments(places: Places, accumulator: Accumulator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a kernel of chunks is given before and after the addresses of the operands, the key and the result."""
    axes = [(0, axis) if isinstance(axis, int) else (axis.ctypes.data, 0) for axis in places.axes]
    return (*places.sizes, accumulator.length(places.sizes[3])), tuple(chain(*axes))


def multiplication(
    operands: Sequence[torch.Tensor], matrices: Sequence[torch.Tensor], sums: Sums, names: Sequence[str], result: Array
) -> Native:
    """The step of a program that multiplies matrices which lie in two operands without gaps.

    Args:
        operands: contiguous tensors without memory.
        matrices: what of them is multiplied.
        sums: how.
        names: of the operands.
        result: the product.

    Raises:
        NoKernelError: if the matrices are no views, or empty, or there is no kernel.
    """
    views = [matrix.untyped_storage() is x.untyped_storage() for matrix, x in zip(matrices, operands, strict=True)]
    if not all(views) or any(matrix.storage_offset() for matrix in matrices) or prod(result.shape) == 0:
        raise NoKernelError
    function = products.chunked_step(_of_chunks(sums.accumulator))
    if function is None:
        raise NoKernelError
    a, b = matrices
    places, _ = _matrix_places(a.shape, a.stride(), b.shape, b.stride())
    sizes, axes = _arguments(places, sums.accumulator)
    return Native(function, np.array([*sizes, *axes], np.int64), np.zeros(0), names, [result], places)


def _batch_places(x: torch.Tensor) -> Axis:
    """Where the first element of each matrix lies."""
    if x.dim() <= 3:
        return x.stride(0) if x.dim() == 3 else 0
    places = np.zeros((), np.int64)
    for size, stride in zip(x.shape[:-2], x.stride()[:-2], strict=True):
        places = np.add.outer(places, np.arange(size) * stride)
    return places.ravel()


class Float64(Names):
    """Torch's names, see `qcore.linalg.namespace.Float64`.

    Args:
        key: int32 tensor of two words for stochastic accumulators, else None.
        narrow_sums: see `Sums.narrow`.
    """

    def __init__(self, key: torch.Tensor | None = None, narrow_sums: bool = False) -> None:
        self.key = key
        self.narrow_sums = narrow_sums

    @staticmethod
    def part(x: torch.Tensor, index: int, axis: int) -> torch.Tensor:
        return x.narrow(axis, index, 1)

    @staticmethod
    def narrow(x: torch.Tensor) -> torch.Tensor:
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
    def wide(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.float64)

    @staticmethod
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.to(torch.float64) @ b.to(torch.float64)

    @staticmethod
    def ascending(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
        return sequential_product(a, b, None, False, None)

    def sequential(self, a: torch.Tensor, b: torch.Tensor, accumulator: Accumulator, first: int) -> torch.Tensor | None:
        if first and accumulator.stochastic:
            return None
        return sequential_product(a, b, accumulator, self.narrow_sums, self.key)

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

    def _rounded_by_halves(self, x: torch.Tensor, plan: Plan, step: int, random_bits: int) -> torch.Tensor:
        """Stochastic rounding with a part of the words of a block of steps."""
        assert self.key is not None
        block, part = block_of_step(step, random_bits)
        window = window_tensor(random_bits, block * prod(x.shape), x.device)
        arange = partial(torch.arange, dtype=torch.int32, device=x.device)
        key, start = (self.key[0], self.key[1]), (window[0], window[1])
        words = words_of_step(arange, x.shape, key, start, part, random_bits).to(torch.int64) << 32
        lanes = plan.program.run(Names, x.view(torch.int64), plan.constants, (), words)
        return lanes.view(torch.float64)
