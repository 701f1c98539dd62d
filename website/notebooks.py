"""Notebooks as pages: what is text in them, their programs, and what these print and draw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

_ROOT = Path(__file__).parent.parent
_END = "-- the end of a cell --"
_WIDTH = "110"  # of tables


class Run(NamedTuple):
    """What the programs of a notebook did.

    Attributes:
        printed: by each.
        pictures: what they drew, by the names of its files.
    """

    printed: list[str]
    pictures: dict[str, bytes]


def cells(path: Path) -> list[tuple[str, str]]:
    """The cells of a notebook: "markdown" or "code", and the source."""
    return [
        (cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
    ]


def markdown(path: Path) -> str:
    """A notebook as Markdown, without what its programs print."""
    parts = (_program(text) if kind == "code" else text for kind, text in cells(path))
    return "\n\n".join(parts) + "\n"


def with_outputs(path: Path, run: Run) -> str:
    """A notebook as Markdown, and after each program what it printed and drew."""
    printed, parts = iter(run.printed), []
    for kind, text in cells(path):
        parts.append(_program(text) if kind == "code" else text)
        if kind == "code" and (output := next(printed)):
            parts.append(f"```text\n{output}\n```")
        parts += [f"![What this program drew]({name})" for name in run.pictures if kind == "code" and name in text]
    return "\n\n".join(parts) + "\n"


@cache
def run(path: Path, changed: float) -> Run:
    """Runs a notebook's programs in a process and an empty folder of their own, once for each time it was changed.

    Raises:
        RuntimeError: if one fails.
    """
    programs = [text for kind, text in cells(path) if kind == "code"]
    with TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-"],
            input=f"\nprint({_END!r})\n".join(programs),
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(_ROOT), "COLUMNS": _WIDTH},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{path.name}: {done.stderr}")
        printed = [part.strip("\n") for part in done.stdout.split(f"{_END}\n")]
        return Run(printed, {one.name: one.read_bytes() for one in Path(folder).glob("*.svg")})


def _program(text: str) -> str:
    return f"```python\n{text}\n```"
