"""The table of orthogonality: rows of the committed results, computed again."""

import json
from pathlib import Path

import pytest

from benchmarks import orthogonality

FILE = Path(orthogonality.__file__).parent / "results" / "orthogonality.json"


@pytest.mark.parametrize(("name", "form"), [("simple", "bfloat16"), ("aol", "MXFP8 products"), ("cans", "float32")])
def test_committed_rows(name, form):
    rows = json.loads(FILE.read_text())["rows"]
    found = {(row["coefficients"], row["form"]): row["error"] for row in rows}
    assert orthogonality.error(orthogonality.matrix(), name, form) == pytest.approx(found[name, form], rel=0.02)
    assert len(found) == len(rows) == 36
