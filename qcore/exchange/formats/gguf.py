"""GGUF's types of tensors as formats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qcore.arguments import check_choice, quoted
from qcore.formats.foreign import BytesNumber, BytesProgram
from qcore.formats.spellings import GGUF_TYPES
from qcore.formats.text import Kind, Reader, register
from qcore.law.carrier import Carrier
from qcore.law.program import Constants, Program
from qcore.law.rounding import Rounding
from qcore.law.tiles import Sizes
from qcore.namespace import A, Names

if TYPE_CHECKING:
    from qcore.exchange.formats.gguf_law import Layout

_MOST_AXES = 60  # the law splits the last one, and arrays have 64 at most


@dataclass(frozen=True, repr=False)
class GGUF(BytesNumber):
    """A type of GGUF's tensors: rows of blocks, whose numbers share a scale, in ggml's layout of bytes.

    `encode` gives the bytes that ggml writes, and `decode` reads them: arrays of uint8 whose last axis has the bytes of
    a row. `quantize` gives the numbers of these bytes. The law is ggml's own, in float32, so it has no other rounding
    mode. See `qcore.exchange.formats.gguf_law` for numbers that ggml does not define.

    Args:
        type: "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "tq1_0", "tq2_0", "mxfp4",
            "nvfp4", "q1_0" or "q2_0"; to decode only "iq4_nl" or "iq4_xs". Capitals have no meaning.

    Raises:
        ValueError: if it is not one of these.

    Source: ggml, ggml-quants.c.

    Example:
        >>> import numpy as np
        >>> from qcore import encode, quantize
        >>> x = np.linspace(-1, 1, 32, dtype=np.float32)
        >>> encode(x, "gguf(q8_0)").shape, quantize(x, GGUF("q4_0"))[:3]
        ((34,), array([-1.   , -0.875, -0.875], dtype=float32))
    """

    type: str

    def __post_init__(self) -> None:
        given: Any = self.type
        small = given.lower() if isinstance(given, str) else given
        check_choice("type", small, GGUF_TYPES)
        self._set(type=small)

    @property
    def layout(self) -> Layout:
        """The blocks of this type."""
        return _law().LAYOUTS[self.type]

    @property
    def block(self) -> tuple[int, int]:
        return self.layout.size, self.layout.width

    def block_sizes(self, ndim: int) -> Sizes:
        _check_axes(self, ndim, "x")
        return (*(1,) * (ndim - 1), self.layout.size)[:ndim]

    @property
    def span(self) -> tuple[int, int, int]:
        """As for blocks, of the integers that are multiplied with a block's scale."""
        digits = self.layout.most.bit_length()
        if digits == 0:
            raise self._no_codes()
        return digits, 0, digits - 1

    def reduce(self, carrier: Carrier) -> tuple[str, tuple[int, ...]]:
        return "bytes", ()

    def program(self, mode: Rounding, carrier: Carrier, coded: bool) -> tuple[Program, Constants]:
        if mode is not Rounding.NEAREST:
            raise ValueError(
                f"rounding={quoted(mode.value)}; allowed for {self.text} is 'nearest': the law is ggml's own"
            )
        self.check_target("number")
        _check_carrier(carrier, "x")
        return BytesProgram(carrier, mode, "bytes", number=self), ()

    def check_target(self, argument: str) -> None:
        if self.layout.encode is None:
            able = ", ".join(kind for kind, layout in _law().LAYOUTS.items() if layout.encode)
            raise ValueError(
                f"{argument}={quoted(self.text)} can only be decoded; allowed are bytes that ggml's own tools "
                f"write, and gguf() of {able}"
            )

    def shape_of_bytes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        _check_rows(self, shape, "x", self.layout.size)
        return *shape[:-1], shape[-1] // self.layout.size * self.layout.width

    def to_bytes(self, xp: type[Names], lanes: A, carrier: Carrier) -> A:
        self.shape_of_bytes(tuple(lanes.shape))
        return xp.astype(_law().bytes_of_numbers(xp, lanes, self.type, carrier), "uint8")

    def from_bytes(self, xp: type[Names], lanes: A, carrier: Carrier, scales: object) -> A:
        _check_carrier(carrier, "the result")
        if scales is not None:
            raise ValueError(
                f"scales is a {type(scales).__name__}; allowed is None: {self.text} has its scales among the bytes"
            )
        _check_rows(self, lanes.shape, "codes", self.layout.width)
        return _law().numbers_of_bytes(xp, lanes, self.type, carrier)

    def round_blocks(self, xp: type[Names], bits: A, carrier: Carrier, axes: tuple[int, ...]) -> A:
        return _law().round_blocks(xp, bits, self.type, carrier, axes)


def _check_rows(number: GGUF, shape: tuple[int, ...], argument: str, size: int) -> None:
    """Raises a ValueError unless the last axis has whole blocks, each of `size` elements."""
    _check_axes(number, len(shape), argument)
    if len(shape) == 0 or shape[-1] % size:
        raise ValueError(
            f"{argument} has shape {tuple(shape)}; allowed for {number.text} is a last axis with a multiple of {size}"
        )


def _check_axes(number: GGUF, axes: int, argument: str) -> None:
    """Raises a ValueError for more axes than the law can split the last of."""
    if axes > _MOST_AXES:
        raise ValueError(f"{argument} has {axes} axes; allowed for {number.text} are up to {_MOST_AXES}")


def _check_carrier(carrier: Carrier, argument: str) -> None:
    """Raises a TypeError for float64."""
    if carrier.lane_bits == 64:
        raise TypeError(
            f"{argument} has dtype float64; allowed are float32, float16, bfloat16: ggml's law is in float32"
        )


def _law() -> Any:
    """The law, imported when it is first used: texts and their messages need none of it."""
    from qcore.exchange.formats import gguf_law

    return gguf_law


register("gguf", Kind(GGUF, {"type": Reader.next}, 1, 1, 1))
