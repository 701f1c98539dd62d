"""Published figures: each part runs, in tiny sizes, and the page is made of the committed results."""

import json

import pytest
from documents import text_of

from benchmarks import published
from benchmarks.published import PARTS, Row

TINY = {
    "harmonic": {"formats": ("bfloat16", "e5m2"), "block": 64},
    "swamping": {"terms": 64, "part": 16},
    "stochastic_sums": {"terms": 64, "rows": 2, "part": 4},
    "fasi": {},
    "p3109": {"widest": 5},
    "nvfp4": {"size": 64, "averaged": 32, "most": 4},
    "scales": {"blocks": 16, "many": 64},
    "swalp": {"steps": 60, "warm": 10},
    "gupta": {"epochs": 1, "hidden": 8, "fractions": (8,)},
}


@pytest.mark.parametrize("name", PARTS)
def test_a_part_runs(name):
    rows, lines = published.records(name, PARTS[name](**TINY[name]))
    assert rows
    assert all(row["part"] == name and row["published"] and row["ours"] for row in rows)
    assert all(len(line["points"]) > 0 for line in lines)


def test_exact_figures():
    """Those that do not depend on random numbers."""
    ours = {row.what: row.ours for row in published.harmonic(**TINY["harmonic"]) if isinstance(row, Row)}
    assert ours["sum of 1/n stops, bfloat16"] == "5.0625 at 65 terms"
    (row,) = published.tables(widest=5)
    assert row.ours.startswith("0 of ")


def test_value_tables(tmp_path):
    """A table with a wrong number, and one that float32 does not hold."""
    lines = ["codepoint,value,subnormal", *(f"0x{code:02x},{text}, " for code, text in enumerate(["0x0p+0", "0x1p-1"]))]
    (tmp_path / "Binary3p1se.csv").write_text("\n".join([*lines, "0x02,0x1.8p+0, ", "0x03,Inf, ", "0x04,NaN, "]))
    (tmp_path / "Binary15p1se.csv").write_text("\n".join([*lines[:2], "0x01,0x1p-200, ", "0x02,0x1p+8000, "]))
    row = list(published.tables(tmp_path, widest=3))[-1]
    assert (row.published, row.ours) == ("2 tables", "1 of 5 numbers differ, in the 1 tables that float32 holds")


def test_the_page_has_all_parts():
    record = json.loads(published.FILE.read_text(encoding="utf-8"))
    assert {row["part"] for row in record["rows"]} == set(PARTS)
    page = text_of("docs/checked.md")
    rows = [row for row in record["rows"] if row["published"] != "not published"]
    assert all(f"| {row['what']} | {row['published']} | {row['ours']} |" in page for row in rows)
    assert "from memory" not in page
