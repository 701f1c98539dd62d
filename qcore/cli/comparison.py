"""Vectors of any law: the rows of a file beside what the law has for them, and the report on those that differ.

`qcore.cli.layouts` has the files. A law is a format under a mode (`qcore.cli.vectors`), or a unit or a layer that adds
(`qcore.cli.sum_files`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qcore.arguments import quoted
from qcore.cli.layouts import Column, Rows, partly
from qcore.version import __version__

SHOWN = 10  # differences that a report has


@dataclass(frozen=True)
class Vectors:
    """The contents of a file.

    Attributes:
        law: what the header says.
        version: of the library that wrote the file.
        given: the inputs.
        found: the columns of results.
        lines: the number of each row's line.
    """

    law: Any
    version: str
    given: Any
    found: dict[str, Column]
    lines: Sequence[int]

    rows = "rows"  # what a report calls them

    @property
    def text(self) -> str:
        """The law for people."""
        raise NotImplementedError

    @property
    def expected(self) -> dict[str, np.ndarray]:
        """The law's columns for the inputs."""
        raise NotImplementedError

    def numbers(self, name: str, bits: np.ndarray) -> np.ndarray | None:
        """The numbers that the bits of a column stand for; None if they stand for none."""
        raise NotImplementedError

    def groups(self, differing: np.ndarray) -> Iterator[str]:
        """Lines about how many rows differ of each kind."""
        raise NotImplementedError

    def shown(self, row: int, first: bool) -> Iterator[str]:
        """Lines about a row that differs."""
        raise NotImplementedError

    def differing(self, any_nan: bool) -> np.ndarray:
        """The indices of the rows that differ from the law; with any_nan, any NaN will do for a number that is NaN."""
        differs = np.zeros(len(self.lines), bool)
        for name in self.found:
            differs |= self._wrong(name, any_nan)
        return np.flatnonzero(differs)

    def _wrong(self, name: str, any_nan: bool) -> np.ndarray:
        column, right = self.found[name], self.expected[name]
        wrong = column.differs(right)
        if any_nan and wrong.any():
            found, expected = (self.numbers(name, bits) for bits in (column.values.astype(right.dtype), right))
            if found is not None and expected is not None:
                nan = np.isnan(found) & np.isnan(expected)
                nan[list(column.undefined)] = False
                wrong &= ~nan
        return wrong

    def report(self, path: Path, differing: np.ndarray) -> str:
        """How many rows differ, by kind, and the first of them."""
        count = len(self.lines)
        compared = sum(int(column.present.sum()) for column in self.found.values())
        lines = [f"{path}: {len(differing)} of {count} {self.rows} differ ({self.text}; {compared} fields compared)"]
        lines += [*partly(self.found, count), *self.groups(differing)]
        for place, row in enumerate(differing[:SHOWN].tolist()):
            lines += self.shown(row, place == 0)
        if len(differing) and self.version != __version__:
            lines.append(f"the file was written by version {self.version}, checked by {__version__}")
        return "\n".join(lines)


@contextmanager
def first_line(rows: Rows) -> Iterator[None]:
    """Names the first line of a file in errors about its header."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise ValueError(f"{rows.path}, line 1: {error}") from error


def check_fields(header: dict[str, Any], types: dict[str, tuple[type, ...]]) -> dict[str, Any]:
    """A header's fields of these names; raises for one of another type."""
    found = {name: header.get(name) for name in types}
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, types[name]):
            raise ValueError(f"{name} is {quoted(value)}; allowed is what `vectors` wrote")
    return found
