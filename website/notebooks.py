"""Notebooks as pages: what is text in them, and their programs."""

from __future__ import annotations

import json
from pathlib import Path


def cells(path: Path) -> list[tuple[str, str]]:
    """The cells of a notebook: "markdown" or "code", and the source."""
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]


def markdown(path: Path) -> str:
    """A notebook as Markdown."""
    parts = (f"```python\n{text}\n```" if kind == "code" else text for kind, text in cells(path))
    return "\n\n".join(parts) + "\n"
