"""Tables of formats: every public function here is a figure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qcore.cli.tables import COLUMNS, row
from qcore.formats.names import NAMED
from qcore.formats.spellings import OTHERS, SPELLINGS
from website.records import table

_OWNERS = (("NumPy", "ml_dtypes"), ("torch",), ("ONNX",), ("safetensors",), ("MLIR",))
_SOURCE = re.compile(r"^(OCP \S+|.*? et al\.),? .* (\S+)$")  # who, the title, and when or which version


def named_formats() -> str:
    """Sorted and searched by `docs/assets/tables.js`. A source has its title where it stands first."""
    rows, seen = [], set[str]()
    for name in NAMED:
        *cells, source = row(name)[1:]
        rows.append((f"`{name}`", *cells, _SOURCE.sub(r"\1 \2", source) if source in seen else source))
        seen.add(source)
    return f'<div class="live" markdown="1">\n\n{table(COLUMNS, rows)}\n\n</div>'


def spellings() -> str:
    headings = ["format", *(", ".join(owners) for owners in _OWNERS), "others"]
    rows = (_row(text) for text in SPELLINGS if text in NAMED or not text.startswith(("fixed", "gguf")))
    return table(headings, rows)


def _row(text: str) -> list[str]:
    columns = [_quoted(" ".join(SPELLINGS[text].get(owner, "") for owner in owners)) for owners in _OWNERS]
    return [f"`{text}`", *columns, "; ".join(_others(SPELLINGS[text])) or "-"]


def _others(row: dict[str, str]) -> Iterator[str]:
    shown = {owner for owners in _OWNERS for owner in owners}
    for owner, names in row.items():
        if owner == OTHERS:
            yield _quoted(names)
        elif owner not in shown:
            yield f"{owner}: {_quoted(names)}"


def _quoted(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split()) or "-"
