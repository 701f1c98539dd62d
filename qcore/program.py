"""What is traced or compiled: the law, and codes, for all formats of a kind at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qcore.arguments import check_choice
from qcore.carrier import Carrier
from qcore.codes import Codes, FixedCodes, FloatCodes
from qcore.encoding import FloatEncoding, encode, encoding, wrap
from qcore.law import Block, Grid, block_grid, round_to_grid
from qcore.number import Number
from qcore.packing import storage
from qcore.random import Settle, unsettled
from qcore.rounding import Rounding
from qcore.tapered import PositCodes, Taper, round_to_posit
from qcore.tapered import encode as encode_posit

KINDS: dict[str, tuple[type[Any], ...]] = {
    "grid": (Grid,),
    "general": (Grid,),
    "wide": (Grid,),
    "wrap": (Grid, FixedCodes),
    "block": (Block,),
    "posit": (Taper,),
    "wide_posit": (Taper,),
}
OVERFLOWS = ("saturate", "inf", "nan", "wrap")
CODES: dict[str, type[Any]] = {"float": FloatCodes, "fixed": FixedCodes, "posit": PositCodes}
ENCODINGS: dict[str, type[Any]] = {"float": FloatEncoding, "fixed": FixedCodes, "posit": PositCodes}


@dataclass(frozen=True)
class Program:
    """What is fixed when the law is traced or compiled; formats of one kind differ in constants only.

    Attributes:
        carrier: the layout of the input, and of the result unless that are codes.
        mode: the rounding mode.
        kind: "grid", "general", "wide" (see `round_to_grid`), "wrap" (a grid, then modulo its range), "block", "posit"
            or "wide_posit" (see `round_to_posit`).
        codes: "" for numbers, or the kind of their codes: "float", "fixed" or "posit".
        storage: bits of the integers that hold the codes.
    """

    carrier: Carrier
    mode: Rounding
    kind: str
    codes: str = ""
    storage: int = 0

    def count(self) -> int:
        """How many constants there are."""
        return sum(len(part._fields) for part in self._parts())

    def _parts(self) -> tuple[type[Any], ...]:
        return (*KINDS[self.kind], *((ENCODINGS[self.codes],) if self.codes else ()))

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

        `constants` are the fields of the parts of this kind, ints or 0-d arrays. Blocks are shared along `axes`.
        `settle` is an identity whose result a compiler must not work out again for every element of a block.
        """
        remaining = iter(constants)
        parts = [part(*(next(remaining) for _ in part._fields)) for part in self._parts()]
        if isinstance(parts[0], Taper):
            wide = self.kind == "wide_posit"
            if self.codes:
                return encode_posit(xp, bits, self.carrier, self.mode, parts[0], parts[1], word, wide)
            return round_to_posit(xp, bits, self.carrier, self.mode, parts[0], word, wide)
        grid = parts[0] if self.kind != "block" else block_grid(xp, bits, self.carrier, parts[0], axes, settle)
        kind = self.kind if self.kind in ("general", "wide") else "grid"
        if not self.codes and self.kind != "wrap":
            return round_to_grid(xp, bits, self.carrier, self.mode, grid, word, kind)
        turn = encode if self.codes else wrap
        return turn(xp, bits, self.carrier, self.mode, grid, parts[-1], word, kind)


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
    codes, size = number.codes(carrier), len(Grid._fields)
    program = Program(carrier, mode, kind, kind_of(codes), storage(number.bits))
    if isinstance(codes, PositCodes):
        return program, (*constants, *codes)
    grid, encoded = encoding(carrier, kind, Grid(*constants[:size]), codes)
    return program, (*grid, *constants[size:], *encoded)


def kind_of(codes: Codes) -> str:
    """The key of `CODES` for a format's codes."""
    return next(kind for kind, parts in CODES.items() if isinstance(codes, parts))
