"""Operands of products: their formats, their scales, and the transform before they are rounded."""

# pyright: reportUnnecessaryIsInstance=false
# Callers need not check types; wrong ones raise here.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qcore.arguments import check_choice, check_flag, check_int, check_seed, check_type, quoted
from qcore.formats.fixed import FixedPoint
from qcore.formats.floating import BinaryFloat, FloatingPoint
from qcore.formats.number import Number, call_text, check_target
from qcore.formats.text import Kind, Reader, choice, parse_argument, register, write
from qcore.law.rounding import MODES, Rounding, RoundingLike, check_rounding
from qcore.law.tiles import MOST_ELEMENTS, Sizes
from qcore.linalg.accumulator import optional_number
from qcore.random.threefry import threefry

SIZE = 16  # of a Hadamard transform
_TE_SIGNS = tuple(1 if sign == "+" else -1 for sign in "+++-+------+-+--")  # of Transformer Engine


@dataclass(frozen=True, repr=False)
class Hadamard:
    """16 neighbouring terms of a sum, times signs, times the orthogonal Hadamard matrix of 16 rows.

    Element j of the result is the sum over i of (-1)^(number of ones in i & j) * sign[i] * x[i] / 4. Four stages of
    float32 additions and subtractions compute it, for numbers whose places differ by 1, 2, 4 and 8; then each is
    multiplied by 1/4. Each result is rounded to float32, subnormal numbers included. A sum whose length is not a
    multiple of 16 is filled up with zeros. Applied to both operands it leaves the exact product as it is, so a
    `Product` has it in both or in neither. Source: NVIDIA, "Pretraining Large Language Models with NVFP4", 2025: one
    vector of signs for all layers.

    Args:
        seed: the key of the signs, from 0 to 2^64 - 1. The i-th sign is minus where the highest bit of the key's random
            word with the index i is set.
        law: "threefry" for these signs; "te" for Transformer Engine's, which are always the same (the seed is then 0).

    Attributes:
        signs: the 16 signs, 1 or -1.

    Raises:
        TypeError, ValueError: if seed or law is not as above.

    Example:
        >>> Hadamard(3).text, Hadamard(3).signs[:4]
        ('hadamard(seed=3)', (1, -1, -1, -1))
        >>> Hadamard(law="te").signs[:6]
        (1, 1, 1, -1, 1, -1)
    """

    seed: int = 0
    law: str = "threefry"
    signs: tuple[int, ...] = field(init=False, repr=False, compare=False)
    text: str = field(init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        high, low = check_seed(self.seed)
        if not isinstance(self.seed, int):
            raise TypeError(
                f"seed={quoted(self.seed)} is a {type(self.seed).__name__}; allowed is an int from 0 to 2^64 - 1"
            )
        check_choice("law", self.law, ["threefry", "te"])
        if self.law == "te" and self.seed:
            raise ValueError(f"seed={self.seed} with law='te', whose signs are always the same; allowed is seed=0")
        # Signs follow from the seed, and not from a list, so that the text form of the transform is its seed.
        words = [_word(high, low, index) for index in range(SIZE)]
        signs = tuple(1 - 2 * (word >> 31) for word in words)
        object.__setattr__(self, "signs", _TE_SIGNS if self.law == "te" else signs)
        object.__setattr__(self, "text", write(self))


def _word(high: int, low: int, index: int) -> int:
    """The random word of an index, of a key's two words."""
    y0, y1 = threefry(high, low, 0, index, lambda number: number & 0xFFFFFFFF)
    return (y0 ^ y1) & 0xFFFFFFFF


register("hadamard", Kind(Hadamard, {"seed": Reader.integer, "law": choice(("threefry", "te"))}, 0, 0, 0))


_LONGEST = 2**20  # history, which is a row of a state


@dataclass(frozen=True, repr=False)
class Scale:
    """The float32 number s that a tile of an operand is multiplied with before it is rounded.

        s = largest number of the format / largest magnitude of the tile / 2^margin
        q = the format's rounding of float32(x * s)

    The quotient is rounded to float32 once. It is at most float32's largest number, and 1 if the largest magnitude is
    zero, infinite or NaN. The sum of a tile's products is multiplied with r = float32(1 / s) of both operands:

        float32(float32(sum) * float32(r of the first * r of the second))

    Scales of whole tensors multiply the accumulator's last number, scales of tiles the sum of each chunk before it is
    added. Tiles divide the matrix that a product multiplies, laid out as (..., other axis, terms of the sum).

    With a history, scales are delayed: they follow from the largest magnitudes of earlier calls, and are state. The
    largest of the past `history` magnitudes replaces the tensor's own; if it is zero, infinite or NaN, the scale does
    not change. All uses of a state in a backward pass are one step, which adds the largest of their magnitudes.

    Sources: "DeepSeek-V3 Technical Report", 2024, section 3.3 (tiles of 1 x 128 and 128 x 128); NVIDIA Transformer
    Engine's documentation of DelayedScaling.

    Args:
        outer: the number of rows that share a scale; None is all.
        terms: the number of terms of the sum that share a scale; None is all. With both None a tensor has one scale.
        history: the number of past tensors that a delayed scale follows from, for whole tensors only; None for a scale
            that is not delayed.
        margin: the number of powers of two that remain free above the largest magnitude.
        reduce_amax: True takes the largest magnitudes of delayed scales over all processes of torch's default group, or
            all devices of a mesh; False keeps a separate scale for each.

    Attributes:
        text: the text form, which `parse` reads.

    Raises:
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

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        for name, most in (("outer", MOST_ELEMENTS), ("terms", MOST_ELEMENTS), ("history", _LONGEST)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_int(name, getattr(self, name), 1, most))
        object.__setattr__(self, "margin", check_int("margin", self.margin, -64, 64))
        if self.history is not None and not self._whole:
            raise ValueError(f"history={self.history} with tiles of {self.outer} x {self.terms}; allowed is None there")
        check_type("reduce_amax", self.reduce_amax, bool, "a bool")
        if self.history is None and not self.reduce_amax:
            raise ValueError("reduce_amax=False with history=None; allowed is True there")
        object.__setattr__(self, "text", write(self))

    @property
    def _whole(self) -> bool:
        """True if a tensor has one scale."""
        return self.outer is None and self.terms is None

    def sizes(self, ndim: int) -> Sizes:
        """The tile's size along each axis of a matrix, or a batch of them; None is all of the axis."""
        return (None,) * ndim if self._whole else (*(1,) * (ndim - 2), self.outer, self.terms)


_OF_SCALE: dict[str, Any] = dict.fromkeys(("outer", "terms", "history", "margin"), Reader.integer)
_OF_SCALE["reduce_amax"] = Reader.flag
register("scale", Kind(Scale, _OF_SCALE, 0, 0, 0))


@dataclass(frozen=True, repr=False)
class Operand:
    """An operand of a product: its format, rounding, scale and transform.

    Args:
        number: a format or its text; None does not round. The axes of blocks are axes of the tensor that is passed. In
            convolutions axes that count from the end are those of a linear layer at each position, or tap: -1 is the
            channels of a group, and -2 the examples of inputs and gradients, or the outputs of a group.
        rounding: a name or member of `Rounding`.
        scale: a `Scale` or its text, for fixed and floating point formats; None is no scale.
        transform: a `Hadamard` or its text, applied before the rounding; None is no transform. An operand with a
            transform, or with a scale for each tile, is rounded as the matrix that the product multiplies, laid out as
            (..., other axis, terms of the sum). Its blocks and the order of its random words follow that matrix. In
            convolutions it is the matrix of a position, or tap, and no chunk of scaled sums goes on into the next.
        matrix: True rounds the operand as that matrix in any case, so that blocks along the last axis, -1, lie along
            the terms of the sum in each of a tensor's products.

    Attributes:
        text: the text form, which `parse` reads.

    Example:
        >>> Operand("e5m2", "stochastic").text
        'operand(e5m2,rounding=stochastic)'
        >>> Operand("e4m3fn", scale=Scale(1, 128)).text
        'operand(e4m3fn,scale=scale(outer=1,terms=128))'
    """

    number: Number | None = None
    rounding: Rounding = Rounding.NEAREST
    scale: Scale | None = None
    transform: Hadamard | None = None
    matrix: bool = False
    text: str = field(init=False, repr=False, compare=False)

    if TYPE_CHECKING:

        def __init__(
            self,
            number: Number | str | None = None,
            rounding: RoundingLike = Rounding.NEAREST,
            scale: Scale | str | None = None,
            transform: Hadamard | str | None = None,
            matrix: bool = False,
        ) -> None: ...

    def __repr__(self) -> str:
        return call_text(self)

    def __post_init__(self) -> None:
        object.__setattr__(self, "number", None if self.number is None else check_target(self.number))
        object.__setattr__(self, "rounding", check_rounding(self.rounding))
        for name, kind in (("scale", Scale), ("transform", Hadamard)):
            object.__setattr__(self, name, _part(name, getattr(self, name), kind))
        check_flag("matrix", self.matrix)
        if self.scale is not None:
            self._check_scale(self.scale)
        object.__setattr__(self, "text", write(self))

    def _check_scale(self, scale: Scale) -> None:
        if not isinstance(self.number, FixedPoint | FloatingPoint | BinaryFloat) or self._largest is None:
            raise ValueError(
                f"scale={scale.text} with number={self.number}; allowed are fixed and floating point formats with "
                "a largest number"
            )
        # A history follows the tensor, and a transform makes another one of it in each of its two products.
        if self.transform is not None and scale.history is not None:
            raise ValueError(f"scale={scale.text} with {self.transform.text}; allowed is a scale without history")

    @property
    def _largest(self) -> float | None:
        """The largest number of the format; None if it has none."""
        if isinstance(self.number, FixedPoint):
            digits = self.number.wl - self.number.signed
            return ((1 << digits) - 1) * 2.0**-self.number.fl if self.number.clamp or self.number.wrap else None
        number: Any = self.number  # a float format, as `_check_scale` makes sure
        count, exponent = number.magnitudes.largest
        return float(count) * 2.0**exponent if exponent + count.bit_length() <= 128 else None

    @property
    def stochastic(self) -> bool:
        """True if rounding needs a key."""
        return self.number is not None and self.rounding.stochastic

    @property
    def _as_matrix(self) -> bool:
        """True if the operand is rounded as the matrix that the product multiplies."""
        return self.matrix or self.transform is not None or self._tiled

    @property
    def _tiled(self) -> bool:
        """True if a tensor has a scale for each tile."""
        return self.scale is not None and not self.scale._whole

    @property
    def history(self) -> int | None:
        """The number of past tensors that the scale follows from; None if it is not delayed."""
        return None if self.scale is None else self.scale.history

    @property
    def delayed(self) -> bool:
        """True if the scale is delayed, and so is state."""
        return self.history is not None


OperandLike = Operand | Number | str | None  # as users give operands


def _part(name: str, value: Any, class_: Any) -> Any:
    found = parse_argument(value, name) if isinstance(value, str) else value
    if found is not None and not isinstance(found, class_):
        allowed = f"a {class_.__name__}, its text, and None"
        raise TypeError(f"{name}={quoted(value)} is a {type(found).__name__}; allowed are {allowed}")
    return found


def check_operand(operand: Any, argument: str) -> Operand:
    """An operand, given as a format, a text, an `Operand` or None."""
    if isinstance(operand, str) and operand.startswith("operand"):
        operand = parse_argument(operand, argument)
    if isinstance(operand, Operand):
        return operand
    return Operand(None if operand is None else check_target(operand, argument))


_PARAMETERS = {
    "number": optional_number,
    "rounding": choice(tuple(MODES)),
    "scale": lambda reader: reader.registered("scale"),
    "transform": lambda reader: reader.registered("hadamard"),
    "matrix": Reader.flag,
}
register("operand", Kind(Operand, _PARAMETERS, 0, 1, 0))
