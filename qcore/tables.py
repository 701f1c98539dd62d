"""Tables of text as wide as a terminal: what a row has no room for stands below it, with the names of its columns."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from shutil import get_terminal_size
from textwrap import wrap

_LEAST = 20  # columns: below them nothing is readable
_BETWEEN, _INDENT = "  ", "    "


def terminal_width() -> int:
    """The columns of the terminal, or those of the variable COLUMNS; 80 in a pipe.

    Example:
        >>> terminal_width() >= 20
        True
    """
    return max(get_terminal_size((80, 24)).columns, _LEAST)


def fitted_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], width: int | None = None, right: Collection[str] = ()
) -> Iterator[list[str]]:
    """The lines of a table: first those of its head, then those of each row.

    As many of the first columns as fit stand side by side. The other cells stand below their row, each behind the name
    of its column; empty ones are left out.

    Args:
        head: the names of the columns.
        rows: the cells of each row, one for each column.
        width: the letters of a line; None is the terminal's.
        right: the names of the columns whose cells end in one line.

    Returns:
        An iterator over lists of lines, none of which is longer than the width.

    Example:
        >>> rows = [
        ...     ("fc", "Linear", "affine(-128,127) per channel", ""),
        ...     ("norm", "LayerNorm", "", "no settings"),
        ... ]
        >>> for lines in fitted_table(("path", "layer", "weight", "reason"), rows, 40):
        ...     print(*lines, sep="\\n")
        path  layer
        fc    Linear
            weight: affine(-128,127) per channel
        norm  LayerNorm
            reason: no settings
    """
    width, rows = terminal_width() if width is None else max(width, _LEAST), list(rows)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    ends = [end + len(_BETWEEN) * place for place, end in enumerate(accumulate(widths))]
    beside = max(sum(end <= width for end in ends), 1)
    for cells in (head, *rows):
        line = _BETWEEN.join(
            cell.rjust(room) if name in right else cell.ljust(room)
            for cell, room, name in zip(cells[:beside], widths, head, strict=False)
        ).rstrip()
        below = [f"{name}: {cell}" for name, cell in zip(head[beside:], cells[beside:], strict=True) if cell]
        yield [
            *([line] if len(line) <= width else fitted_text(line, width)),
            *(fitted_text("; ".join(below), width, _INDENT) if cells is not head else ()),
        ]


def fitted_text(text: str, width: int | None = None, indent: str = "") -> list[str]:
    """The lines of a text of one line; all but the first are indented, and long words end at their dots.

    Example:
        >>> fitted_text("encoder.layers.0.attention: it has no settings", 20)
        ['encoder.layers.', '    0.attention: it', '    has no settings']
    """
    width = terminal_width() if width is None else max(width, _LEAST)
    indent += text[: len(text) - len(text.lstrip())]
    inner = max(indent, _INDENT, key=len)
    words = [piece for word in text.split() for piece in _pieces(word, width - len(inner))]
    return wrap(" ".join(words), width, initial_indent=indent, subsequent_indent=inner, break_on_hyphens=False)


def _pieces(text: str, room: int) -> Iterator[str]:
    """A text in parts that fit: two of them are longer than a line, so that no space comes between them."""
    while len(text) > room:
        cut = max(text.rfind(mark, 0, room) for mark in ".,_:/") + 1 or room
        yield text[:cut]
        text = text[cut:]
    yield text
