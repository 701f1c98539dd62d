"""The layouts of a file of vectors, by its name: JSON (.json), words for `$readmemh` (.mem, .hex), else CSV.

| layout | first line | a row |
| --- | --- | --- |
| CSV | the header, a JSON object | its fields, with commas between |
| JSON | `{"header": ..., "columns": {name: digits}, "rows": [` | an array of its fields, on a line of its own |
| `$readmemh` | `// {"header": ..., "columns": ...}`, a comment | a word: its fields, the first leftmost, _ between |

Fields are hexadecimal; columns tell their digits. The header has the number of rows. A column whose fields are all
empty, or all x, has no results. In words a column of no digits is missing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from qcore.arguments import quoted

_WIDEST = 16  # digits of a column
_HEXADECIMAL, _UNDEFINED = re.compile(r"(?:0x)?0*([0-9a-f]*)", re.IGNORECASE), re.compile(r"[0-9a-fxz]+", re.IGNORECASE)


class Column(NamedTuple):
    """The fields of a column.

    Attributes:
        values: unsigned integers of 64 bits; 0 where there is none.
        present: True where the file has a result, of defined bits or not.
        undefined: the results by row that have bits x or z, as text.
    """

    values: np.ndarray
    present: np.ndarray
    undefined: dict[int, str]

    def differs(self, right: np.ndarray) -> np.ndarray:
        """True where a result is there and is not `right`."""
        found = self.present & (self.values != right)
        found[list(self.undefined)] = True
        return found

    def text(self, row: int, digits: int) -> str:
        """A field."""
        return self.undefined.get(row, f"{int(self.values[row]):0{digits}x}")


class Rows(NamedTuple):
    """The contents of a file.

    Attributes:
        path: its path.
        header: its header.
        fields: the fields of each row.
        lines: the number of each row's line.
    """

    path: Path
    header: dict[str, Any]
    fields: list[list[str]]
    lines: Sequence[int]

    def columns(self, digits: dict[str, int], inputs: int) -> dict[str, Column]:
        """The columns by name.

        Args:
            digits: the hexadecimal digits of each column.
            inputs: how many of them, the first ones, are inputs, which no row may lack.
        """
        names = [*digits]
        for row, fields in enumerate(self.fields):
            if len(fields) != len(names):
                text = quoted(",".join(fields)[:60])
                raise ValueError(
                    f"{self.line(row)}: {text} has {len(fields)} fields; allowed are {len(names)}: {_some(names)}"
                )
        found = dict[str, Column]()
        by_column = list(zip(*self.fields, strict=True)) if self.fields else [()] * len(names)
        for index, (name, texts) in enumerate(zip(names, by_column, strict=True)):
            found[name] = self._column(name, digits[name], texts, index < inputs)
        if names[inputs:] and not any(found[name].present.any() for name in names[inputs:]):
            raise ValueError(f"{self.path}: no row has a result; allowed is at least one of {_some(names[inputs:])}")
        return found

    def line(self, row: int) -> str:
        """What messages call a row."""
        return f"{self.path}, line {self.lines[row]}"

    def _column(self, name: str, digits: int, texts: Sequence[str], is_input: bool) -> Column:
        values, present = np.zeros(len(texts), np.uint64), np.ones(len(texts), bool)
        undefined = dict[int, str]()
        left_out = not is_input and all(set(text.lower()) <= {"x"} for text in texts)
        for row, text in enumerate(texts):
            match = _HEXADECIMAL.fullmatch(text)
            if match and len(match[1]) <= digits and (digits if text else not is_input):
                present[row] = bool(text)
                values[row] = int(match[1] or "0", 16)
            elif not is_input and _UNDEFINED.fullmatch(text) and len(text) <= digits:
                present[row] = not left_out
                if not left_out:
                    undefined[row] = text
            else:
                empty = ", or an empty field" if not is_input else ""
                raise ValueError(
                    f"{self.line(row)}: {name} is {quoted(text)}; allowed are {digits} hexadecimal digits{empty}"
                )
        return Column(values, present, undefined)


def rows_text(path: Path, header: dict[str, Any], digits: dict[str, int], columns: dict[str, np.ndarray]) -> str:
    """The text of a file of vectors, in the layout of its name; fields of no digits are empty."""
    texts = [[f"{x:0{digits[name]}x}" if digits[name] else "" for x in columns[name].tolist()] for name in digits]
    rows = list(zip(*texts, strict=True))
    header, layout = header | {"rows": len(rows)}, _layout(path)
    if layout == "csv":
        lines = [json.dumps(header), *map(",".join, rows)]
    elif layout == "mem":
        words = ("_".join(field for field in row if field) for row in rows)
        lines = [f"// {json.dumps({'header': header, 'columns': digits})}", *words]
    else:
        start = json.dumps({"header": header, "columns": digits})[:-1] + ', "rows": ['
        lines = [start, ",\n".join(json.dumps(row) for row in rows), "]}"]
    return "\n".join(lines) + "\n"


def read_rows(path: Path) -> Rows:
    """Reads a file of vectors; raises for one without a header, and for another number of rows than the header has."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    lines = [line.strip() for line in text.split("\n")]
    while lines and not lines[-1]:
        del lines[-1]
    try:
        header, fields, numbers, digits = _contents(_layout(path), text, lines)
    except (ValueError, LookupError, TypeError, AttributeError):
        header = None
    if not isinstance(header, dict) or type(header.get("rows")) is not int:
        first = quoted(lines[0][:60] if lines else "")
        raise ValueError(f"{path}, line 1: {first} is not a header; allowed is the first line of what `vectors` wrote")
    if digits:
        words = zip(numbers, fields, strict=True)
        fields = [_fields(f"{path}, line {number}", word, digits) for number, (word,) in words]
    if not fields or len(fields) != header["rows"]:
        raise ValueError(f"{path}: {len(fields)} rows; allowed are {header['rows']}, the number in the header")
    return Rows(path, header, fields, numbers)


def _contents(layout: str, text: str, lines: list[str]) -> tuple[Any, list[list[str]], Sequence[int], list[int]]:
    """The header, the fields of each row, the numbers of their lines, and the digits of fields if a row is a word."""
    numbers = range(2, len(lines) + 2)
    if layout == "json":
        found = json.loads(text)
        rows = [[field.strip() for field in row] for row in found["rows"]]
        return found["header"], rows, range(2, len(rows) + 2), []
    first, rest = lines[0] if lines else "", lines[1:]
    if layout == "csv":
        return json.loads(first), [[field.strip() for field in line.split(",")] for line in rest], numbers[:-1], []
    found = json.loads(first.removeprefix("//"))
    # A simulator's $writememh writes comments with addresses.
    if not all(type(size) is int and 0 <= size <= _WIDEST for size in found["columns"].values()):
        raise ValueError("digits of columns")
    words = [(number, line) for number, line in zip(numbers, rest, strict=False) if not line.startswith("//")]
    return found["header"], [[line] for _, line in words], [number for number, _ in words], [*found["columns"].values()]


def partly(found: dict[str, Column], count: int) -> Iterator[str]:
    """Lines about columns that have results in some of the rows only, or results of undefined bits."""
    for name, column in found.items():
        present = int(column.present.sum())
        if 0 < present < count:
            yield f"  {name} is empty in {count - present} of {count} rows"
        if column.undefined:
            yield f"  {name} has undefined bits, x or z, in {len(column.undefined)} rows"


def _layout(path: Path) -> str:
    return {".json": "json", ".mem": "mem", ".hex": "mem"}.get(path.suffix.lower(), "csv")


def _fields(where: str, line: str, columns: Sequence[int]) -> list[str]:
    """The fields of a word of `$readmemh`."""
    word, found = line.replace("_", ""), list[str]()
    if len(word) != sum(columns):
        raise ValueError(f"{where}: {quoted(line[:60])} has {len(word)} digits; allowed are {sum(columns)}")
    for digits in columns:
        field, word = word[:digits], word[digits:]
        found.append(field)
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 9 else f"{', '.join(names[:4])}, ..., {names[-1]}"
