"""What is traced or compiled: the law, and codes, for all formats of a kind at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qcore.arguments import check_choice
from qcore.carrier import Carrier
from qcore.codes import Codes, FixedCodes, FloatCodes
from qcore.encoding import FloatEncoding, encode, encoding, wrap
from qcore.law import Grid, round_to_grid
from qcore.number import Number
from qcore.packing import storage
from qcore.random import Settle, unsettled
from qcore.rounding import Rounding
from qcore.sharing import KINDS as SHARED
from qcore.sharing import Shared, block_grid, rescale, scale_codes, shared_scale

KINDS: dict[str, tuple[type[Any], ...]] = {
    "grid": (Grid,),
    "deep": (Grid,),
    "general": (Grid,),
    "wide": (Grid,),
    "wrap": (Grid, FixedCodes),
    **dict.fromkeys(SHARED, (Shared,)),
}
OVERFLOWS = ("saturate", "inf", "nan", "wrap")
CODES: dict[str, type[Any]] = {"float": FloatCodes, "fixed": FixedCodes}
ENCODINGS: dict[str, type[Any]] = {"float": FloatEncoding, "fixed": FixedCodes}


@dataclass(frozen=True)
class Program:
    """What is fixed when the law is traced or compiled; formats of one kind differ in constants only.

    Attributes:
        carrier: the layout of the input, and of the result unless that are codes.
        mode: the rounding mode.
        kind: "grid", "deep", "general", "wide" (see `round_to_grid`), "wrap" (a grid, then modulo its range), or one of
            `qcore.sharing.KINDS` for blocks.
        codes: "" for numbers, or the kind of their codes: "float" or "fixed".
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
        return self.kind in SHARED

    def count(self) -> int:
        """How many constants there are."""
        return sum(len(part._fields) for part in self._parts())

    def _parts(self) -> tuple[type[Any], ...]:
        element = KINDS[self.element] if self.element else ()
        return (*KINDS[self.kind], *element, *((ENCODINGS[self.codes],) if self.codes else ()))

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
            settle: an identity whose result a compiler must not work out again for every element of a block.

        Returns:
            Lanes, or codes; of blocks a pair of codes and, one a block, codes of scales.
        """
        remaining = iter(constants)
        parts = [part(*(next(remaining) for _ in part._fields)) for part in self._parts()]
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
    if kind in SHARED:
        number.check_exact(carrier)
        element, encoded = prepare(number.element, mode, carrier, None, coded=True)
        return replace(element, kind=kind, element=element.kind), (*constants, *encoded)
    codes, size = number.codes(carrier), len(Grid._fields)
    program = Program(carrier, mode, kind, kind_of(codes), storage(number.bits))
    grid, encoded = encoding(carrier, kind, Grid(*constants[:size]), codes)
    return program, (*grid, *constants[size:], *encoded)


def kind_of(codes: Codes) -> str:
    """The key of `CODES` for a format's codes."""
    return next(kind for kind, parts in CODES.items() if isinstance(codes, parts))
