"""Formats whose law is that of another program: what the packages ask of them, as the classes are in other rooms."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from qcore.formats.block import BlockNumber, Scales
from qcore.formats.number import Number
from qcore.law.carrier import Carrier
from qcore.law.program import Program
from qcore.namespace import A, Names, T


class ForeignNumber(BlockNumber):
    """The base of these formats. Their scales follow the largest number, so that no number is beyond the range."""


class BytesNumber(ForeignNumber):
    """A format whose codes are rows of bytes, scales among them; its program is a `BytesProgram`."""

    @property
    @abstractmethod
    def block(self) -> tuple[int, int]:
        """How many numbers a block has, and how many bytes."""

    @abstractmethod
    def shape_of_bytes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the bytes of an array; a ValueError unless its rows have whole blocks."""

    def shape_of_numbers(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the numbers of rows of bytes."""
        numbers, width = self.block
        return *shape[:-1], shape[-1] // width * numbers

    @abstractmethod
    def to_bytes(self, xp: type[Names], lanes: A, carrier: Carrier) -> A:
        """The bytes of an array, whose rows have whole blocks, as uint8."""

    @abstractmethod
    def from_bytes(self, xp: type[Names], lanes: A, carrier: Carrier, scales: object) -> A:
        """The lanes of the numbers of bytes, int32; `scales` is the argument of `decode`."""

    @abstractmethod
    def round_blocks(self, xp: type[Names], bits: A, carrier: Carrier, axes: tuple[int, ...]) -> A:
        """The lanes of the numbers that lanes become as bytes; the last axis is a block, or `axes` is empty."""


def stored_bits(number: Number, shape: tuple[int, ...]) -> int | None:
    """How many bits an element of a stored array takes, without scales; None if the array is stored as its numbers.

    These are arrays in formats without codes, and arrays in rows of bytes that would be longer than float32's: a last
    block that is not full takes as many bytes as a full one.
    """
    if isinstance(number, BytesNumber):
        numbers, width = number.block
        row = shape[-1] if shape else 1
        return 8 * width // numbers if -(-row // numbers) * width < 4 * row else None
    try:
        return number.bits
    except ValueError:
        return None


class NestedNumber(ForeignNumber):
    """A format whose scales are encoded in turn; its program is a `NestedProgram`.

    Attributes:
        first: the format of the elements, with scales in float32.
        second: the format of the scales, minus an offset that all share.
        block: how many scales share a scale.
    """

    first: BlockNumber
    second: BlockNumber
    block: int

    @abstractmethod
    def _differences(self, xp: Any, scales: Any) -> tuple[Any, Any]:
        """The scales minus their offset, and the offset."""

    @abstractmethod
    def _sums(self, xp: Any, decoded: Any, offset: Any) -> Any:
        """The scales of decoded differences."""

    @abstractmethod
    def check_scales(self, shape: tuple[int, ...], scales: Scales[T] | None) -> tuple[T, T, T]:
        """The triple of scales of an array of this shape."""


@dataclass(frozen=True)
class BytesProgram(Program):
    """A rounding to the numbers that bytes stand for. Blocks are whole arrays to it, so it has no kernels."""

    number: BytesNumber = field(kw_only=True)

    def run(self, xp: Any, bits: Any, constants: Any, axes: tuple[int, ...], *_: Any, **options: Any) -> Any:
        return self.number.round_blocks(xp, bits, self.carrier, axes)


@dataclass(frozen=True)
class NestedProgram(Program):
    """The laws of two formats, which each package runs one after the other: it has no law of its own to `run`."""

    number: NestedNumber = field(kw_only=True)
