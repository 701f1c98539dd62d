"""Drawings of bits: every public function here is one. They are drawn by the law itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qcore import parse, quantize
from qcore.law.carrier import FLOAT32
from qcore.law.grid import Grid, cleared, round_magnitude
from qcore.law.rounding import Rounding
from qcore.namespace import Names

_FORMAT = "e5m2"
_NUMBERS = {  # what each of them shows
    0.3: "bits to drop",
    0.99: "bits to drop; a carry",
    2.5e-5: "bits to drop: a subnormal number",
}


def drawn_bits() -> str:
    lines = [f"{'':20}sign exponent mantissa"]
    for number, what in _NUMBERS.items():
        lines += ["", *_drawing(number, what)]
    return "\n".join(("```text", *lines, "```"))


def _drawing(number: float, what: str) -> Iterator[str]:
    """A number as float32, what is added to its magnitude, and the result; a bar stands before the bits that go."""
    bits = np.array([number], np.float32).view(np.int32)
    program, constants = parse(_FORMAT).program(Rounding.NEAREST, FLOAT32, False)
    grid = Grid(*constants[: len(Grid._fields)])
    rounded, drop, _ = round_magnitude(Names, bits, FLOAT32, Rounding.NEAREST, grid, None, program.kind)
    step, dropped = int((rounded - (bits - grid.base))[0]), int(drop[0])
    result = cleared(rounded, drop, FLOAT32) + grid.base
    value = result.view(np.float32)
    assert value == quantize(np.array([number], np.float32), _FORMAT)
    yield f"{number:<23}{_row(int(bits[0]), dropped)}   {dropped} {what}"
    yield f"{'+ increment':<23}{'':10}{' ' * (24 - dropped)}{step:0{dropped}b}"
    yield f"= {value[0]:<21.5g}{_row(int(result[0]), dropped)}"


def _row(bits: int, dropped: int) -> str:
    text = f"{bits:032b}"
    return f"{text[0]} {text[1:9]} {text[9 : 32 - dropped]}|{text[32 - dropped :]}"
