"""The table of what formats are called elsewhere: the public function here is a figure."""

from __future__ import annotations

from collections.abc import Iterator

from qcore.formats.names import NAMED
from qcore.formats.spellings import OTHERS, SPELLINGS

_COLUMNS = (("NumPy", "ml_dtypes"), ("torch",), ("ONNX",), ("safetensors",), ("MLIR",))


def spellings() -> str:
    headings = ["format", *(", ".join(owners) for owners in _COLUMNS), "others"]
    rows = [
        row for text in SPELLINGS if text in NAMED or not text.startswith(("fixed", "gguf")) for row in [_row(text)]
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ["---"] * len(headings), *rows))


def _row(text: str) -> list[str]:
    columns = [_quoted(" ".join(SPELLINGS[text].get(owner, "") for owner in owners)) for owners in _COLUMNS]
    return [f"`{text}`", *columns, "; ".join(_others(SPELLINGS[text])) or "-"]


def _others(row: dict[str, str]) -> Iterator[str]:
    shown = {owner for owners in _COLUMNS for owner in owners}
    for owner, names in row.items():
        if owner == OTHERS:
            yield _quoted(names)
        elif owner not in shown:
            yield f"{owner}: {_quoted(names)}"


def _quoted(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split()) or "-"
