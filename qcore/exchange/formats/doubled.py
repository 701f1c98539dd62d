"""Double quantization: scales of blocks that are themselves codes, around their mean. Arithmetic in float32.

    offset = mean of the scales            their sum in a tree: zeros are appended up to a power of two, then the second
                                           half is added to the first until one number is left; divided by their count
    d = scale - offset                     is encoded in blocks, as any array
    scale' = decoded d + offset

Sums are at most the largest float, and d, decoded d and scale' below the smallest normal float are 0, so that it makes
no difference whether a backend has subnormal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from qcore.arguments import check_int, quoted
from qcore.formats.block import BlockScaled, Scales
from qcore.formats.foreign import NestedNumber, NestedProgram
from qcore.formats.number import call_text, check_number
from qcore.formats.table import Table, by_float32_midpoints
from qcore.formats.text import Kind, Reader, register
from qcore.law.carrier import Carrier
from qcore.law.codes import Codes
from qcore.law.program import Constants, Program
from qcore.law.rounding import Rounding
from qcore.law.tiles import FLAT, MOST_ELEMENTS, Sizes, block_counts
from qcore.namespace import T
from qcore.packing import storage

_MOST, _LEAST = (2.0 - 2.0**-23) * 2.0**127, 2.0**-126  # of float32: the largest number, and the smallest normal one


def dynamic_map() -> Table:
    """bitsandbytes' 256 numbers of 8 bits.

    They are 0 and 1, and for i from 0 to 6 the midpoints of 2^i parts of 0.1 to 1, times 10^(i - 6), of both signs.
    Ends of parts are computed as torch's linspace does: from both ends to the middle, each rounded once to float32.
    """
    first, last, found = np.float64(np.float32(0.1)), 1.0, [np.array([0, 1], np.float32)]
    for power in range(7):
        parts = 1 << power
        step, place = np.float64(np.float32(np.float32(1) - np.float32(0.1)) / np.float32(parts)), np.arange(parts + 1)
        ends = np.where(place < (parts + 1) // 2, first + step * place, last - step * (parts - place)).astype(
            np.float32
        )
        middles = (ends[:-1] + ends[1:]) / np.float32(2) * np.float32(10.0 ** (power - 6))
        found += [middles, -middles]
    return by_float32_midpoints(np.sort(np.concatenate(found)))


@dataclass(frozen=True, repr=False)
class Doubled(NestedNumber):
    """A block format with scales in float32 that are quantized in turn: bitsandbytes' double quantization.

    Elements are encoded with the scales of the first format. The scales, minus their mean, are then encoded with 8
    bits, bitsandbytes' dynamic map, in blocks that share a largest magnitude. Results are the elements' numbers times
    the decoded scales. This file's head has the order of operations.

    `encode` gives codes, and as scales a triple: the codes of the scales, their blocks' largest magnitudes, and the
    mean.

    Args:
        first: a `BlockScaled` with scale="float32", or its text.
        block: how many scales share a largest magnitude.

    Raises:
        ValueError: if it is not as above.

    Source: Dettmers et al., QLoRA: Efficient Finetuning of Quantized LLMs, 2023; bitsandbytes, whose sum for the mean
    has another order on each processor.

    Example:
        >>> import numpy as np
        >>> from qcore import parse, quantize
        >>> number = parse("nf4(block=64,nested=256)")
        >>> number.first.text, quantize(np.float32([0.5, -1]), number)
        ('nf4(block=64)', array([ 0.44070983, -1.        ], dtype=float32))
    """

    first: BlockScaled
    block: int = 256

    second: ClassVar[BlockScaled]  # the format of the scales minus their mean: not a field, as it follows from them

    if TYPE_CHECKING:

        def __init__(self, first: BlockScaled | str, block: int = 256) -> None: ...

    def __post_init__(self) -> None:
        given: Any = self.first
        first = check_number(given, "first") if isinstance(given, str) else given
        if not isinstance(first, BlockScaled):
            raise TypeError(f"first={quoted(first)}; allowed is a BlockScaled with scale='float32', or its text")
        if first.scale != "float32" or first.history is not None:
            raise ValueError(f"first={quoted(first)}; allowed is a BlockScaled with scale='float32' and no history")
        self._set(first=first, block=check_int("block", self.block, 1, MOST_ELEMENTS))
        self._set(second=BlockScaled(dynamic_map(), {FLAT: self.block}, "absmax", "float32"))

    def __repr__(self) -> str:
        return call_text(self, first=repr(self.first.text))

    def block_sizes(self, ndim: int) -> Sizes:
        return self.first.block_sizes(ndim)

    def axes(self, ndim: int) -> tuple[int, ...]:
        return tuple(range(ndim))

    @property
    def bits(self) -> int:
        return self.first.bits

    def codes(self, carrier: Carrier) -> Codes:
        return self.first.codes(carrier)

    @property
    def span(self) -> tuple[int, int, int]:
        return self.first.span

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        return "nested", ()

    def program(self, mode: Rounding, carrier: Carrier, coded: bool) -> tuple[Program, Constants]:
        if carrier.lane_bits == 64:
            raise ValueError(f"x has dtype float64; allowed for {self.text} are float32, float16 and bfloat16")
        codes = self.first.program(mode, carrier, coded)[0].codes
        return NestedProgram(carrier, mode, "nested", codes, storage(self.bits) if coded else 0, number=self), ()

    def check_scales(self, shape: tuple[int, ...], scales: Scales[T] | None) -> tuple[T, T, T]:
        counts = block_counts(shape, self.block_sizes(len(shape)))
        count = int(np.prod(counts))
        given = [*cast("tuple[T, ...]", scales)] if isinstance(scales, tuple) else []
        shapes = [tuple(getattr(one, "shape", (-1,))) for one in given]
        allowed = [counts, (-(-count // self.block),) if counts else (), ()]
        if shapes != allowed:
            raise ValueError(
                f"scales has the shapes {shapes}; allowed are codes, largest magnitudes and a mean, {allowed}"
            )
        return given[0], given[1], given[2]

    def _differences(self, xp: Any, scales: Any) -> tuple[Any, Any]:
        count = scales.reshape(-1).shape[0]
        length = 1 << max(count - 1, 0).bit_length()
        total = xp.pad(scales.reshape(-1), [(0, length - count)])
        while length > 1:
            length //= 2
            total = total[:length] + total[length:]
        offset = xp.divide(xp.clip(total.reshape(()), None, _MOST), float(max(count, 1)))
        return _normal(xp, scales - offset), offset

    def _sums(self, xp: Any, decoded: Any, offset: Any) -> Any:
        return _normal(xp, _normal(xp, decoded) + offset)


def _normal(xp: Any, x: Any) -> Any:
    return xp.where(abs(x) < _LEAST, x - x, x)


register("doubled", Kind(Doubled, {"first": Reader.number, "block": Reader.integer}, 1, 2, 1))
