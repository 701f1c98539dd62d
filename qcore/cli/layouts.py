"""The layouts of a file of vectors, by its name: JSON (.json), words for `$readmemh` (.mem, .hex), else CSV.

| layout | first line | a row |
| --- | --- | --- |
| CSV | the header, a JSON object | its fields, with commas between |
| JSON | `{"header": ..., "columns": {name: digits}, "rows": [` | an array of its fields, on a line of its own |
| `$readmemh` | `// {"header": ..., "columns": ...}`, a comment | a word: its fields, the first leftmost, _ between |

Fields are hexadecimal; columns tell their digits. In words a column of no digits is missing, and x stands for a field
that is empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from qcore.files import write_text


def write_rows(path: Path, header: dict[str, Any], columns: dict[str, int], rows: Iterable[Sequence[str]]) -> None:
    """Writes a file of vectors; columns are the digits of each field by its name."""
    layout = _layout(path)
    if layout == "csv":
        lines = [json.dumps(header), *map(",".join, rows)]
    elif layout == "mem":
        words = ("_".join(field for field in row if field) for row in rows)
        lines = [f"// {json.dumps({'header': header, 'columns': columns})}", *words]
    else:
        start = json.dumps({"header": header, "columns": columns})[:-1] + ', "rows": ['
        lines = [start, ",\n".join(json.dumps(row) for row in rows), "]}"]
    write_text(path, "\n".join(lines) + "\n")


def read_rows(path: Path) -> tuple[str, list[str]]:
    """The header's text, and the rows as lines of CSV; row i is on line i + 2 of the file as it was written."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    lines = [line.strip() for line in text.split("\n")]
    while lines and not lines[-1]:
        del lines[-1]
    layout = _layout(path)
    if layout == "csv":
        return lines[0] if lines else "", lines[1:]
    try:
        if layout == "json":
            found = json.loads(text)
            return json.dumps(found["header"]), [",".join(row) for row in found["rows"]]
        found = json.loads(lines[0].removeprefix("//"))
        return json.dumps(found["header"]), [_fields(line, found["columns"]) for line in lines[1:]]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: {error}; allowed is a file that `vectors` wrote") from error


def _layout(path: Path) -> str:
    return {".json": "json", ".mem": "mem", ".hex": "mem"}.get(path.suffix.lower(), "csv")


def _fields(line: str, columns: dict[str, int]) -> str:
    """A word of `$readmemh` as a line of CSV."""
    word, found = line.replace("_", ""), list[str]()
    if len(word) != sum(columns.values()):
        raise ValueError(f"{line[:60]} has {len(word)} digits; allowed are {sum(columns.values())}")
    for digits in columns.values():
        field, word = word[:digits], word[digits:]
        found.append("" if set(field.lower()) == {"x"} else field)
    return ",".join(found)
