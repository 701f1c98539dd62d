"""What is traced or compiled: the law, and codes, for all formats of a kind at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qcore.arguments import check_choice
from qcore.block import FP4, FP4_SCALE, BlockScaled
from qcore.carrier import Carrier
from qcore.codes import Codes, FixedCodes, FloatCodes, PowerCodes, SmallCodes, decode
from qcore.encoding import FloatEncoding, PowerEncoding, encode, encoding, wrap
from qcore.law import Grid, round_to_grid
from qcore.number import Number
from qcore.packing import storage
from qcore.random import Settle, unsettled
from qcore.rounding import Rounding
from qcore.sharing import KINDS as SHARED
from qcore.sharing import Shared, apply_scales, block_grid, rescale, scale_codes, shared_scale
from qcore.tapered import PositCodes, Taper, round_to_posit
from qcore.tapered import encode as encode_posit
from qcore.two_level import Levels, run_two_level, scaled_twice, working

KINDS: dict[str, tuple[type[Any], ...]] = {
    "grid": (Grid,),
    "overflowing": (Grid,),
    "deep": (Grid,),
    "general": (Grid,),
    "wide": (Grid,),
    "wrap": (Grid, FixedCodes),
    "posit": (Taper,),
    "wide_posit": (Taper,),
    **dict.fromkeys(SHARED, (Shared,)),
    "nvfp4": (Grid, Grid, Levels),
}
OVERFLOWS = ("saturate", "inf", "nan", "wrap")
CODES: dict[str, type[Any]] = {  # the special before the general
    "power": PowerCodes,
    "float": FloatCodes,
    "small": SmallCodes,
    "fixed": FixedCodes,
    "posit": PositCodes,
}
ENCODINGS = CODES | {"power": PowerEncoding, "float": FloatEncoding}


@dataclass(frozen=True)
class Program:
    """What is fixed when the law is traced or compiled; formats of one kind differ in constants only.

    Attributes:
        carrier: the layout of the input, and of the result unless that are codes.
        mode: the rounding mode.
        kind: "grid", "overflowing", "deep", "general", "wide" (see `round_to_grid`), "wrap" (a grid, then modulo its
            range), or for blocks "nvfp4" or one of `qcore.sharing.KINDS`, or "posit" or "wide_posit" (see
            `round_to_posit`).
        codes: "" for numbers, or the kind of their codes, a key of `CODES`.
        storage: bits of the integers that hold the codes.
        element: the kind of a block's elements when they are encoded.
    """

    carrier: Carrier
    mode: Rounding
    kind: str
    codes: str = ""
    storage: int = 0
    element: str = ""

    @property
    def shared(self) -> bool:
        """Whether this is a block format."""
        return self.kind in SHARED or self.kind == "nvfp4"

    def count(self) -> int:
        """How many constants there are."""
        return sum(len(part._fields) for part in self._parts())

    def _parts(self) -> tuple[type[Any], ...]:
        coded = (ENCODINGS[self.codes],) if self.codes else ()
        if self.element:
            coded = (*KINDS[self.element], *coded) * (2 if self.kind == "nvfp4" else 1)
        return *KINDS[self.kind], *coded

    def run(
        self,
        xp: Any,
        bits: Any,
        constants: Sequence[Any],
        axes: tuple[int, ...],
        word: Any = None,
        settle: Settle = unsettled,
    ) -> Any:
        """Rounds lanes, and encodes them if there are codes.

        Args:
            xp: the array namespace.
            bits: lanes of any shape.
            constants: the fields of the parts of this kind, ints or 0-d arrays.
            axes: those that lie inside of blocks.
            word: see `round_to_grid`.
            settle: an identity whose result a compiler must not work out again for every element of a block, or use.

        Returns:
            Lanes, or codes; of blocks codes, codes of scales, and for "nvfp4" the lane of the whole array's scale.
        """
        remaining = iter(constants)
        parts = [part(*(next(remaining) for _ in part._fields)) for part in self._parts()]
        if isinstance(parts[0], Taper):
            wide = self.kind == "wide_posit"
            if self.codes:
                return encode_posit(xp, bits, self.carrier, self.mode, parts[0], parts[1], word, wide)
            return round_to_posit(xp, bits, self.carrier, self.mode, parts[0], word, wide)
        if self.shared:
            return self._run_shared(xp, bits, parts, axes, word, settle)
        if not self.codes and self.kind != "wrap":
            return round_to_grid(xp, bits, self.carrier, self.mode, parts[0], word, self.kind)
        turn, kind = (encode, self.kind) if self.codes else (wrap, "grid")
        return turn(xp, bits, self.carrier, self.mode, parts[0], parts[-1], word, kind)

    def _run_shared(
        self, xp: Any, bits: Any, parts: Sequence[Any], axes: tuple[int, ...], word: Any, settle: Settle
    ) -> Any:
        carrier = self.carrier
        if self.kind == "nvfp4":
            return run_two_level(xp, bits, carrier, self.mode, parts, axes, word, settle)
        scale, nan = shared_scale(xp, bits, carrier, parts[0], axes, self.kind)
        grid = block_grid(xp, scale, nan, carrier, parts[0], self.kind, settle)
        rounded = round_to_grid(xp, bits, carrier, self.mode, grid, word, SHARED[self.kind])
        if not self.codes:
            return rounded
        alone = rescale(xp, rounded, settle(carrier.bias - scale), carrier)  # exact, and so is what follows
        codes = encode(xp, alone, carrier, Rounding.TOWARD_ZERO, parts[1], parts[2], None, self.element)
        return codes, scale_codes(scale, nan, carrier)


def prepare(
    number: Number, mode: Rounding, carrier: Carrier, overflow: str | None, coded: bool
) -> tuple[Program, tuple[int, ...]]:
    """The program and the constants for a format, with another overflow policy than its own unless that is None."""
    if overflow is not None:
        check_choice("overflow", overflow, OVERFLOWS)
        number = number.overflowing(overflow)
    kind, constants = number.reduce(carrier)
    if not coded:
        return Program(carrier, mode, kind), constants
    if kind == "nvfp4":
        return _prepare_nvfp4(mode, carrier, constants)
    if isinstance(number, BlockScaled):
        number.check_exact(carrier)
        element, encoded = prepare(number.element, mode, carrier, None, coded=True)
        return replace(element, kind=kind, element=element.kind), (*constants, *encoded)
    codes, size = number.codes(carrier), len(Grid._fields)
    program = Program(carrier, mode, kind, kind_of(codes), storage(number.bits))
    if isinstance(codes, PositCodes):
        return program, (*constants, *codes)
    grid, encoded = encoding(carrier, Grid(*constants[:size]), codes)
    return program, (*grid, *constants[size:], *encoded)


def _prepare_nvfp4(mode: Rounding, carrier: Carrier, constants: tuple[int, ...]) -> tuple[Program, tuple[int, ...]]:
    element, encoded = prepare(FP4, mode, working(carrier), None, coded=True)
    _, encoded_scale = prepare(FP4_SCALE, mode, working(carrier), None, coded=True)
    program = replace(element, carrier=carrier, kind="nvfp4", element="grid")
    return program, (*constants, *encoded, *encoded_scale)


def decode_blocks(xp: Any, codes: Any, carrier: Carrier, number: Number, scales: Any, whole: Any) -> Any:
    """The lanes of blocks' elements.

    Args:
        codes: lanes of the elements' codes.
        scales: lanes of their scales' codes, which broadcast with them.
        whole: the lane of the array's scale, for NVFP4.
    """
    if whole is None:
        return apply_scales(xp, decode(xp, codes, carrier, number.codes(carrier)), scales, carrier)
    work = working(carrier)
    element = decode(xp, codes, work, FP4.codes(work))
    return scaled_twice(xp, element, decode(xp, scales, work, FP4_SCALE.codes(work)), whole, carrier)


def kind_of(codes: Codes) -> str:
    """The key of `CODES` for a format's codes."""
    return next(kind for kind, parts in CODES.items() if isinstance(codes, parts))
