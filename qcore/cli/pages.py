"""The page about formats in docs, and its pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qcore.cli.names import FORMS
from qcore.cli.plots import draw
from qcore.cli.tables import COLUMNS, row
from qcore.named import NAMED

# file: (formats, title)
PICTURES = {
    "formats-8-bits.svg": (("e5m2", "e4m3fn", "e3m4", "uint8"), "Eight bits"),
    "formats-posits.svg": (("posit8", "posit:8,0", "e4m3fn"), "Posits"),
    "formats-few-bits.svg": (("e2m1fn", "e3m2fn", "e2m3fn", "int4"), "Four and six bits"),
    "formats-blocks.svg": (("mxfp4", "nvfp4", "mxfp6_e2m3", "mxfp8_e4m3"), "Blocks"),
}

_TOP = """\
# Formats

Written by `python -m qcore docs`; change nothing here.

These have names: `qcore.quantize(x, "e4m3fn")`, and the same in `qtorch` and `qjax`. "exp, man" are the bits of
exponent and mantissa, for fixed point the fractional bits, for posits those of the exponent; "max" is rounded to five
digits where it has more than six. "specials" says which codes there are besides numbers, and what is missing: a zero, a
sign. "overflow" is what numbers beyond the largest become, unless `overflow=` says otherwise.
"""

_FORMS = ", ".join(f"`{form}`" for form in FORMS.split(", "))
_MORE = f"""\
`python -m qcore` prints this table, `python -m qcore show FORMAT` a format's facts and values, and with `--plot FILE`
it draws pictures as those below. FORMAT is a name, or one of
{_FORMS}.

`python -m qcore vectors FORMAT --mode MODE -o FILE` writes conformance vectors: hard and random inputs, what the law
makes of them, and the codes. Put an implementation's own results in place of the outputs or codes, and
`python -m qcore check FILE` says how many differ, and where they first do.
"""

_PICTURE = """\
Above, the positive numbers of each format; below, how far rounding to nearest moves what lies between them, relative
to it. The dotted line is 2^-p for a significand of p bits, which the error of normal numbers stays below; of posits
only that of those around 1, which have the most bits.

Of blocks the array's largest number is 1. Blue is what becomes of other numbers in that one's block; far below it they
vanish. Green is what becomes of the largest numbers of other blocks, which scales follow: MX scales so far that those
just below a power of two saturate, NVFP4's down to 2^-15.
"""


def write_pages(folder: Path) -> Iterator[Path]:
    """Writes the page and its pictures into a folder; yields what it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "formats.md"
    page.write_text("\n".join(_parts()), encoding="utf-8", newline="\n")
    yield page
    for name, (formats, _) in PICTURES.items():
        draw(formats, folder / name)
        yield folder / name


def _parts() -> Iterator[str]:
    yield _TOP
    yield "\n".join(_table()) + "\n"
    yield _MORE
    yield _PICTURE
    yield "\n".join(f"## {title}\n\n![{', '.join(formats)}]({name})\n" for name, (formats, title) in PICTURES.items())


def _table() -> Iterator[str]:
    yield _line(COLUMNS)
    yield _line(["---"] * len(COLUMNS))
    for name in NAMED:
        first, *others = row(name)
        yield _line([f"`{first}`", *others])


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
