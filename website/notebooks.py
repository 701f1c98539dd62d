"""Notebooks as pages, and the outputs that are kept in them.

python -m website.notebooks        runs all notebooks of docs/tutorials, and writes their outputs into them
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from qcore.files import write_text

TUTORIALS = Path(__file__).parent.parent / "docs" / "tutorials"
_WIDTH = "100"  # of tables, in letters
_SVG, _TEXT = "image/svg+xml", "text/plain"

Notebook = dict[str, Any]  # as its JSON


def read(path: Path) -> Notebook:
    return json.loads(path.read_text(encoding="utf-8"))


def markdown(path: Path) -> str:
    """A notebook as Markdown, without outputs."""
    return "\n\n".join(map(_source, read(path)["cells"])) + "\n"


def with_outputs(path: Path) -> tuple[str, dict[str, str]]:
    """A notebook as Markdown with the outputs that are kept in it, and its pictures by the names of their files."""
    parts: list[str] = []
    pictures: dict[str, str] = {}
    for cell in read(path)["cells"]:
        parts.append(_source(cell))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if _SVG in data:
                name = f"{path.stem}-{len(pictures) + 1}.svg"
                pictures[name] = "".join(data[_SVG])
                title = re.search("<title>(.*?)</title>", pictures[name])
                parts.append(f"![{title[1] if title else path.stem}]({name})")
            else:
                parts.append(f"```text\n{text_of(output)}\n```")
    return "\n\n".join(parts) + "\n", pictures


def text_of(output: Notebook) -> str:
    """The text of an output: what was printed, or the value of the last line."""
    return "".join(output.get("text") or output["data"][_TEXT]).strip("\n")


def executed(path: Path) -> Notebook:
    """The notebook with fresh outputs; it runs in an empty folder, in a module of its own.

    As in Jupyter, the value of a cell's last line is an output if it is an expression and not None. A value with
    `_repr_svg_` is a picture.
    """
    notebook = read(path)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    with TemporaryDirectory() as folder, chdir(folder), _module() as module, _columns():
        for count, cell in enumerate(code, 1):
            cell["execution_count"] = count
            cell["outputs"] = list(_run("".join(cell["source"]), f"{path.name}, cell {count}", module, count))
    return notebook


def _run(source: str, name: str, module: ModuleType, count: int) -> Iterator[Notebook]:
    """Runs one cell, and yields its outputs."""
    *program, last = ast.parse(source).body
    if isinstance(last, ast.Expr):
        value_of = ast.Expression(last.value)
    else:
        program, value_of = [*program, last], ast.parse("None", mode="eval")
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(ast.Module(program, []), name, "exec"), vars(module))
        value = eval(compile(value_of, name, "eval"), vars(module))
    if lines := [f"{line.rstrip()}\n" for line in printed.getvalue().splitlines()]:
        yield {"name": "stdout", "output_type": "stream", "text": lines}
    if value is not None:
        data = {_TEXT: repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_svg_") and (drawn := value._repr_svg_()):
            data = {_SVG: drawn.splitlines(keepends=True)} | data
        yield {"data": data, "execution_count": count, "metadata": {}, "output_type": "execute_result"}


@contextmanager
def _module() -> Iterator[ModuleType]:
    """A module for the programs of a notebook, where pickle finds their classes."""
    module = ModuleType("program_of_a_notebook")
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        del sys.modules[module.__name__]


@contextmanager
def _columns() -> Iterator[None]:
    """Tables of rich have the same width everywhere."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = _WIDTH
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _source(cell: Notebook) -> str:
    text = "".join(cell["source"])
    return f"```python\n{text}\n```" if cell["cell_type"] == "code" else text


if __name__ == "__main__":
    for notebook in sorted(TUTORIALS.glob("*.ipynb")):
        write_text(notebook, json.dumps(executed(notebook), indent=1, ensure_ascii=False) + "\n")
        print(notebook)
