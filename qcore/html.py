"""Tables in HTML, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_ESCAPED = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in HTML.

    Example:
        >>> html_table(["bits"], [[8]])
        '<table><thead><tr><th>bits</th></tr></thead><tbody><tr><td>8</td></tr></tbody></table>'
    """
    return (
        f"<table><thead>{_line('th', head)}</thead><tbody>{''.join(_line('td', row) for row in rows)}</tbody></table>"
    )


def _line(tag: str, cells: Sequence[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{str(cell).translate(_ESCAPED)}</{tag}>' for cell in cells)}</tr>"
