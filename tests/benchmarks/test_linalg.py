"""The benchmark of products, and their part of the consistency run."""

import json
import sys

import pytest

from benchmarks import linalg
from benchmarks.support import products


@pytest.mark.heavy
def test_a_row_of_each_framework(tmp_path, monkeypatch, capsys):
    file = tmp_path / "linalg.json"
    arguments = ["linalg", "--size", "16", "--seconds", "0.01", "--only", "exact", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert linalg.main() == 0
    rows = json.loads(file.read_text())["rows"]
    found = [(row["framework"], row["name"], row["limit"]) for row in rows]
    steps = [(one, f"exact, step of {name}", 4.0) for name in ("convolution", "attention") for one in ("torch", "jax")]
    assert found == [("torch", "exact", 2.8), ("jax", "exact", 2.8), *steps]
    assert "limits missed" in capsys.readouterr().out


@pytest.mark.heavy
@pytest.mark.parametrize("chunk", [1, 64])
def test_a_wrong_bit_is_found(chunk, monkeypatch):
    monkeypatch.setattr(products, "ACCUMULATORS", (products.Accumulator("float(6,9)", chunk=chunk),))
    monkeypatch.setattr(products, "OPERANDS", products.OPERANDS[:1])
    rows = products.rows("usual")
    assert [case.differing for found in products.compare_products(rows) for case in found] == [0, 0, 0] * len(rows)
    right = products._by_torch
    monkeypatch.setattr(products, "_by_torch", lambda *arguments: -right(*arguments))
    found = [case.differing > 0 for cases in products.compare_products(rows) for case in cases]
    assert found == [False, True, False] * len(rows)
