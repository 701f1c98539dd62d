"""Arrays as codes of a format, with the scales of their blocks: how weights come from files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, cast

import numpy as np

from qcore.arrays import decode
from qcore.formats.foreign import BytesNumber
from qcore.formats.number import Number
from qcore.namespace import A

ONE_127TH = float(np.float32(7.874015718698502e-3))  # what bitsandbytes multiplies its integers with


class Content(NamedTuple):
    """What a file has of a tensor: the dtype as files call it, the shape, and an array with the bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


class Stored(dict[str, Content]):
    """Tensors of a file by name; equal to itself only, so that JAX may take it for a part of an array's type."""

    __eq__, __ne__, __hash__ = object.__eq__, object.__ne__, object.__hash__  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class Encoded(Generic[A]):
    """An array as codes of a format, with the scales of their blocks.

    Attributes:
        codes: the codes, unsigned integers of the array's shape, or for `GGUF` bytes, as `encode` returns them.
        number: their format.
        scales: of blocks, as `decode` takes them; None for other formats.
        factor: None, or a float32 by which the decoded numbers are multiplied at the end.
        dialect: the kind of file that the array came from; "" for others.
        stored: the file's own small tensors, from which the scales were made, by their names in the dialect.

    Example:
        >>> from qcore import parse
        >>> Encoded(np.uint8([56, 184]), parse("e4m3fn")).dequantize()
        array([ 1., -1.], dtype=float32)
    """

    codes: A
    number: Number
    scales: A | tuple[A, ...] | None = None
    factor: float | None = None
    dialect: str = ""
    stored: Stored = field(default_factory=lambda: Stored())

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        shape = tuple(self.codes.shape)
        return self.number.shape_of_numbers(shape) if isinstance(self.number, BytesNumber) else shape

    def dequantize(self) -> A:
        """The numbers in float32, by the law of the program that wrote the file."""
        codes, scales = cast("tuple[Any, Any]", (self.codes, self.scales))  # NumPy's: other packages have a method
        return self._times_factor(decode(codes, self.number, scales=scales), np.multiply)

    def _times_factor(self, numbers: Any, multiply: Callable[[Any, Any], Any]) -> Any:
        return numbers if self.factor is None else multiply(numbers, np.float32(self.factor))

    def __repr__(self) -> str:
        origin = f", dialect={self.dialect}" if self.dialect else ""
        return f"{type(self).__name__}(shape={self.shape}, number={self.number.text}{origin})"


def mapped(value: Any, change: Callable[[Any], Any], class_: type[Encoded]) -> Any:
    """An array, or an `Encoded` with its arrays, in another package."""
    if not isinstance(value, Encoded):
        return change(value)
    if value.scales is None:
        scales: Any = None
    else:
        scales = tuple(map(change, value.scales)) if isinstance(value.scales, tuple) else change(value.scales)
    return class_(change(value.codes), value.number, scales, value.factor, value.dialect, value.stored)
