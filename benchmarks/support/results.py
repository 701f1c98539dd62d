"""Result files: JSON with a line for each record, so that two of them can be compared line by line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def results_text(results: Mapping[str, Any]) -> str:
    """The text of a result file: JSON, each value on a line, of lists of records each record."""
    lines = (f"{json.dumps(name)}: {_lines(value)}" for name, value in results.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write_results(path: str | Path, results: Mapping[str, Any]) -> None:
    Path(path).write_text(results_text(results))


def _lines(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(record) for record in value) + "\n]"
