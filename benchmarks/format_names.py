"""Short names of formats, as tables show them and command lines take them."""

from __future__ import annotations

import argparse

from benchmarks.inputs import FORMATS
from qcore import NAMED, NVFP4, BinaryFloat, BlockFloatingPoint, BlockScaled, FixedPoint, FloatingPoint, Number, Posit
from qcore.carrier import FLOAT32
from qcore.tiles import block_text

NAMES = {number: name for name, (number, _) in NAMED.items() if number not in FORMATS}


def format_name(number: Number) -> str:
    """A short name: "float 5 2", "fixed 8 4 symmetric", "block 8 dim 0", "posit 8 0", "e4m3fn", "e4m3fn saturate"."""
    if number in NAMES:
        return NAMES[number]
    if isinstance(number, FloatingPoint):
        bias = "" if number.bias is None else f" bias {number.bias}"
        return f"float {number.exp} {number.man}{bias}" + ("" if number.subnormals else " normal")
    if isinstance(number, FixedPoint):
        flags = {"symmetric": number.symmetric, "unclamped": not number.clamp}
        flags |= {"unsigned": not number.signed, "wrap": number.wrap}
        return f"fixed {number.wl} {number.fl}" + "".join(f" {flag}" for flag, there in flags.items() if there)
    if isinstance(number, BinaryFloat):
        sign = "" if number.signed else " unsigned"
        return f"{number.specials} {number.exp} {number.man} bias {number.bias}{sign} {number.overflow}"
    if isinstance(number, Posit):
        return f"posit {number.bits} {number.es}"
    if isinstance(number, BlockScaled | NVFP4):
        block = block_text(number.block).strip("{}")
        rule = getattr(number, "rule", "")
        return f"{format_name(number.element)} in {block} {rule}".rstrip()
    assert isinstance(number, BlockFloatingPoint)
    return f"block {number.wl}" + ("" if number.dim == -1 else f" dim {number.dim}")


def elementwise(name: str) -> Number:
    """The format of a short name."""
    try:
        match name.split():
            case ["float", exp, man]:
                number = FloatingPoint(int(exp), int(man))
            case ["fixed", wl, fl, *options] if set(options) <= {"symmetric", "unclamped"}:
                number = FixedPoint(int(wl), int(fl), "unclamped" not in options, "symmetric" in options)
            case ["posit", bits, es]:
                number = Posit(int(bits), int(es))
            case [name] if name in NAMED:
                number = NAMED[name][0]
            case _:
                raise ValueError("no such elementwise format")
        number.reduce(FLOAT32)
    except ValueError as error:
        names = "'float EXP MAN', 'posit BITS ES', 'fixed WL FL' with or without 'symmetric' and 'unclamped', or a name"
        raise argparse.ArgumentTypeError(f"{name!r}: {error}; a format here is {names}") from error
    return number
