"""Notebooks run, hold the outputs of their programs, and become pages with them."""

import json
import re

import pytest
from documents import DOCS

from website import notebooks

NOTEBOOKS = sorted(DOCS.rglob("*.ipynb"))
PATHS = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# As long pages of test_programs.py, beside which CI runs them; those of ROOMS run with all heavy tests.
LONG = {"serve-in-jax", "train-in-fp8", "train-with-a-server"}
ROOMS = {"key-97", "muon-in-fp8", "prove-a-design", "thousand-ranks"}
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def outputs(notebook):
    """The outputs of each cell: words, and numbers by themselves."""
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    texts = [[notebooks.text_of(output) for output in cell["outputs"]] for cell in cells]
    pictures = [["image/svg+xml" in output.get("data", {}) for output in cell["outputs"]] for cell in cells]
    words = [[NUMBER.sub("0", text).split() for text in cell] for cell in texts]
    return words, pictures, [float(number) for cell in texts for text in cell for number in NUMBER.findall(text)]


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[pytest.mark.heavy] if path.stem in LONG | ROOMS else [])
        for path in NOTEBOOKS
    ],
)
def test_the_outputs_are_fresh(path):
    """If not: `python -m website.notebooks`. Numbers differ a little, since torch's sums do between processors."""
    if path.stem == "prove-a-design":
        pytest.importorskip("z3")  # without it the notebook says so
    *kept, numbers = outputs(notebooks.read(path))
    *fresh, expected = outputs(notebooks.executed(path))
    assert kept == fresh
    assert numbers == pytest.approx(expected, rel=0.1, abs=0.02)


@PATHS
def test_every_cell_was_run(path):
    notebook = notebooks.read(path)
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == [*range(1, len(counts) + 1)]
    assert any(outputs(notebook)[0])
    assert notebook["cells"][0]["source"][0].startswith("# ")


@pytest.fixture
def notebook(tmp_path):
    def write(*cells):
        path = tmp_path / "one.ipynb"
        cells = [{"cell_type": kind, "source": text.splitlines(True)} for kind, text in cells]
        path.write_text(json.dumps({"cells": cells}))
        return path

    return write


DRAWING = """
class Drawing:
    def _repr_svg_(self):
        return "<svg><title>A line</title></svg>"


Drawing()
"""


def test_outputs_are_what_is_printed_and_the_value_of_the_last_line(notebook):
    path = notebook(("code", "x = 6"), ("markdown", "A word."), ("code", "print(x)\nx * 7"), ("code", DRAWING))
    path.write_text(json.dumps(notebooks.executed(path)))
    shown, pictures = notebooks.with_outputs(path)
    assert shown.startswith("```python\nx = 6\n```\n\nA word.\n\n```python\n")
    assert "```\n\n```text\n6\n```\n\n```text\n42\n```\n\n" in shown
    assert shown.endswith("\n```\n\n![A line](one-1.svg)\n")
    assert pictures == {"one-1.svg": "<svg><title>A line</title></svg>"}


def test_a_notebook_that_fails_has_no_outputs(notebook):
    with pytest.raises(ZeroDivisionError):
        notebooks.executed(notebook(("code", "1 / 0")))
