"""Kernels of exact sums of products of bytes, with weights that are packed for them (`panels.h`)."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from string import Template

from qcore.trace import BLOCK, CONSTANT, ELEMENT, needed
from qcore.writer import WRITER
from qtorch._affine.kernels.laws import rounding_of_sums
from qtorch._kernels.source import VALUES
from qtorch._kernels.store import Function, load

INTEGERS, PACK, PANELS, BYTES, CHANNELS = (
    Path(__file__).with_name(name) for name in ("integer.c", "pack.c", "panels.h", "bytes.h", "channels.h")
)


@cache
def of_integers(biased: bool = False) -> Function | None:
    """The kernel of exact sums of products of 8-bit integers, which it may round by `qcore.affine.requantize`.

    A call gives the batch, three sizes and the channels of images, how far apart these five are in memory, padding,
    kernel, stride and dilation of the three dimensions, the number of outputs, whether each output sees one channel,
    whether the images' integers are signed, whether sums are rounded, and addresses: of the packed weight; if sums are
    rounded, of the scales and the biases of all outputs (only a kernel that is `biased` reads biases), of the result's
    scale and zero point and of the ends of the range, else 0; of the images, their zero point and their scale; and of
    the int32 sums or 8-bit integers.
    """
    _, _, q = rounding_of_sums("int32", biased, "columns")
    handed = [value for value in needed([q], ELEMENT) if value.level == BLOCK]
    of_outputs = [value for value in needed(handed, BLOCK) if value.level in (CONSTANT, BLOCK)]
    store = [f"to[{place} * COLUMNS + column] = {WRITER.name(value)};" for place, value in enumerate(handed)]
    fields = {
        "values": VALUES.read_text(encoding="utf-8") + f"\n#define HANDED {len(handed)}\n",
        "outputs": "\n        ".join([*map(WRITER.declared, of_outputs), *store]),
        "constants": "\n    ".join(WRITER.statements([q], ELEMENT, CONSTANT)),
        "rounded": "\n            ".join(
            [
                *(WRITER.declared(value, f"of_outputs[{place} * COLUMNS + j]") for place, value in enumerate(handed)),
                *WRITER.statements([q], ELEMENT),
                f"wide[j] = {WRITER.name(q)};",
            ]
        ),
    }
    return load(with_panels(INTEGERS, fields))


@cache
def packing() -> Function | None:
    """The kernel that packs the weight of `of_integers`.

    A call gives the outputs and the terms of the weight, whether each output sees one channel, whether integers are
    signed, whether each output has a zero point, and the addresses of integers, of zero points and of the memory that
    is written, or 0. It returns how many bytes are written.
    """
    return load(with_panels(PACK, {}))


def _panels() -> str:
    parts = {"bytes": BYTES.read_text(encoding="utf-8"), "channels": CHANNELS.read_text(encoding="utf-8")}
    return Template(PANELS.read_text(encoding="utf-8")).substitute(parts)


def with_panels(template: Path, fields: dict[str, str]) -> str:
    """The C of a template that multiplies with packed weights."""
    fields = {"values": VALUES.read_text(encoding="utf-8"), "panels": _panels()} | fields
    return Template(template.read_text(encoding="utf-8")).substitute(fields)
