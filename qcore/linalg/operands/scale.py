"""Scales of operands in float32: what they are, and their text."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qcore.arguments import check_int, check_type
from qcore.formats.text import Kind, Reader, register, write
from qcore.law.tiles import MOST_ELEMENTS, Sizes

_LONGEST = 2**20  # history, which is a row of a state


@dataclass(frozen=True)
class Scale:
    """The float32 number s that a tile of an operand is multiplied with before it is rounded.

        s = largest number of the format / largest magnitude of the tile / 2^margin
        q = the format's rounding of float32(x * s)

    The quotient is rounded to float32 once; it is at most float32's largest number, and 1 where the largest magnitude
    is zero, infinite or NaN. The sum of a tile's products is multiplied with r = float32(1 / s) of both operands:

        float32(float32(sum) * float32(r of the first * r of the second))

    Scales of whole tensors multiply the accumulator's last number, others the sum of each chunk before it is added.
    Tiles are those of the matrix that a product multiplies, laid out as (..., other axis, terms of the sum).

    With a history, scales are delayed: they follow from the largest magnitudes of earlier calls, and are state. The
    largest of the past `history` ones takes the place of the tensor's own; where it is zero, infinite or NaN, the scale
    stays as it was. All uses of a state in a backward pass are one step, which adds the largest of their magnitudes.

    Sources: "DeepSeek-V3 Technical Report", 2024, section 3.3 (tiles of 1 x 128 and 128 x 128); NVIDIA Transformer
    Engine's documentation of DelayedScaling.

    Args:
        outer: how many rows share a scale; None is all.
        terms: how many terms of the sum share a scale; None is all. With both None it is the whole tensor's.
        history: None, or how many past tensors a delayed scale follows from; of whole tensors only.
        margin: how many powers of two remain free above the largest magnitude.
        reduce_amax: True takes the largest magnitudes of delayed scales over all processes of torch's default group, or
            all devices of a mesh; False keeps each one's own.

    Attributes:
        text: what `parse` makes the scale from.

    Raises:
        TypeError: if an argument has the wrong type.
        ValueError: if an argument is out of range, or tiles have a history.

    Example:
        >>> Scale(1, 128).text, Scale(history=1024).text
        ('scale(outer=1,terms=128)', 'scale(history=1024)')
    """

    outer: int | None = None
    terms: int | None = None
    history: int | None = None
    margin: int = 0
    reduce_amax: bool = True
    text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, most in (("outer", MOST_ELEMENTS), ("terms", MOST_ELEMENTS), ("history", _LONGEST)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_int(name, getattr(self, name), 1, most))
        object.__setattr__(self, "margin", check_int("margin", self.margin, -64, 64))
        if self.history is not None and not self.whole:
            raise ValueError(f"history={self.history} with tiles of {self.outer} x {self.terms}; allowed is None there")
        check_type("reduce_amax", self.reduce_amax, bool, "a bool")
        if self.history is None and not self.reduce_amax:
            raise ValueError("reduce_amax=False with history=None; allowed is True there")
        object.__setattr__(self, "text", write(self))

    @property
    def whole(self) -> bool:
        """True if a tensor has one scale."""
        return self.outer is None and self.terms is None

    def sizes(self, ndim: int) -> Sizes:
        """The tile's size along each axis of a matrix, or a batch of them; None is all of the axis."""
        return (None,) * ndim if self.whole else (*(1,) * (ndim - 2), self.outer, self.terms)


_PARAMETERS: dict[str, Any] = dict.fromkeys(("outer", "terms", "history", "margin"), Reader.integer)
_PARAMETERS["reduce_amax"] = Reader.flag
register("scale", Kind(Scale, _PARAMETERS, 0, 0, 0))
