"""Result files: JSON that other programs read, with a line a record."""

import json
from pathlib import Path

import pytest

from benchmarks import internals
from benchmarks.support.results import results_text
from qtorch import _torch_internals

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rows", [[], [{"a": 1}], [{"a": None, "b": [1.5, "é"]}, {"a": {}}]])
def test_a_line_a_record(rows):
    results = {"versions": {"python": "3"}, "rows": rows, "seconds": 0.25}
    text = results_text(results)
    assert json.loads(text) == results
    assert text.endswith("}\n")
    assert len(text.splitlines()) == 5 + (len(rows) + 1 if rows else 0)


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks/results").glob("*.json")), ids=lambda file: file.name)
def test_committed_results(file):
    """All are as a benchmark wrote them."""
    assert results_text(json.loads(file.read_text())) == file.read_text()


def test_private_parts_are_measured_and_put_back():
    before = dict(vars(_torch_internals))
    rows = [*internals.calls(0.0), *internals.operations(0.0)]
    assert vars(_torch_internals) == before
    assert all(row.seconds > 0 and row.worth > 0 for row in rows)
    table = (ROOT / "docs/torch-internals.md").read_text()
    assert {row.part for row in rows if row.part not in table} == set()
