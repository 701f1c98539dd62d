"""Result files: JSON with a line for each record, so that two of them can be compared line by line."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qcore.files import write_text


def results_text(results: Mapping[str, Any]) -> str:
    """The text of a result file: JSON, each value on a line, of lists of records each record."""
    lines = (f"{json.dumps(name)}: {_lines(value)}" for name, value in results.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_results(path: str | Path, results: Mapping[str, Any]) -> None:
    """Writes results to a file that others may read meanwhile: they see the old one or the new one, whole."""
    write_text(path, results_text(results))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time that changes a file."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(record) for record in value) + "\n]"
