"""The page of named formats in docs, and its pictures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from qcore.cli.tables import COLUMNS, row
from qcore.files import write_text
from qcore.formats.names import NAMED
from website.plots import draw

# file: (formats, title)
PICTURES = {
    "formats-8-bits.svg": (("e5m2", "e4m3fn", "e3m4", "uint8"), "Eight bits"),
    "formats-posits.svg": (("posit8", "posit(8,0)", "e4m3fn"), "Posits"),
    "formats-few-bits.svg": (("e2m1fn", "e3m2fn", "e2m3fn", "int4"), "Four and six bits"),
    "formats-blocks.svg": (("mxfp4", "nvfp4", "mxfp6_e2m3", "mxfp8_e4m3"), "Blocks"),
}

_TOP = """\
# Named formats

<!-- Written by `python -m website`; change nothing here. -->

These have names: `qcore.quantize(x, "e4m3fn")`, and the same in `qtorch` and `qjax`. "exp, man" are the bits of
exponent and mantissa, for fixed point the fractional bits, for posits those of the exponent; "max" is rounded to five
digits where it has more than six. "specials" says which codes there are besides numbers, and what is missing: a zero, a
sign. "overflow" is what numbers beyond the largest become, unless `overflow=` says otherwise.
"""

_PICTURE = """\
`qbits` prints this table, `qbits show FORMAT` a format's properties and values.
[Formats](formats.md#formats-as-text) has the texts of all others.

## Pictures

In a checkout `python -m website.plots FILE.svg FORMAT ...` draws them. Above, the positive numbers of each format;
below, the relative error of numbers between them, rounded to nearest. The dotted line is 2^-p for a significand of p
bits. The error of a normal number stays below it; a posit's does so only around 1, where the significand has the most
bits.

In pictures of blocks the array's largest number is 1. Blue shows the other numbers of its block; far below 1 they
become zero. Green shows the largest numbers of other blocks, whose scales follow them. MX scales so far that numbers
just below a power of two saturate; NVFP4's scales follow down to 2^-15, and with fewer bits to 2^-18.
"""


def write_pages(folder: Path) -> Iterator[Path]:
    """Writes the page and its pictures into a folder; yields what it wrote."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "named-formats.md"
    write_text(page, "\n".join(_parts()))
    yield page
    for name, (formats, _) in PICTURES.items():
        draw(formats, folder / name)
        yield folder / name


def _parts() -> Iterator[str]:
    yield _TOP
    table = _table(COLUMNS, ((f"`{name}`", *row(name)[1:]) for name in NAMED))
    yield f'<div class="live" markdown="1">\n\n{table}\n</div>\n'
    yield _PICTURE
    yield "\n".join(f"### {title}\n\n![{', '.join(formats)}]({name})\n" for name, (formats, title) in PICTURES.items())


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (heading, ["---"] * len(heading), *rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
