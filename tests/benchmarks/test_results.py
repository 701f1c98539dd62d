"""Result files: JSON that other programs read, with a line a record."""

import json
import platform
import re
from itertools import product
from pathlib import Path

import pytest
import torch
from covering import some

from benchmarks import instructions, internals, modes
from benchmarks.support.digest_results import Row, disagreements
from benchmarks.support.function_digests import BACKENDS, KINDS
from benchmarks.support.results import results_text
from benchmarks.sweep import all_named
from qcore import parse
from qcore.reproducible.elementary import ELEMENTARY
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


def test_every_named_format_was_swept():
    """All modes that `--all-named` takes, over all 2^32 inputs, on all backends, and nothing differs.

    hif8 is left: `python -m benchmarks.sweep --new` takes it, for an hour of two cores. Until then its codes,
    midpoints, their neighbours and a million random numbers are compared, with en-dtypes' bits.
    """
    swept = {
        (str(parse(case["format"])), case["rounding"])
        for file in (ROOT / "benchmarks/results").glob("exhaustive-*.json")
        for case in json.loads(file.read_text())["cases"]
        if case.get("done") == [[0, 2**32]]
        and all((one["inputs"], one["differing"]) == (2**32, 0) for one in case["backends"])
        and {one["backend"] for one in case["backends"]} == {"numpy", "torch kernel", "jax jit"}
    }
    wanted = {(str(number), str(mode)) for number, mode in all_named()}
    assert len(wanted) == 59
    assert {format for format, _ in wanted - swept} == {str(parse("hif8"))}


def test_swept_functions_have_one_digest():
    """All 2^32 inputs of all functions and derivatives, by all backends."""
    rows = [Row(**row) for row in json.loads((ROOT / "benchmarks/results/functions.json").read_text())["rows"]]
    assert not disagreements(rows)
    assert {row.job for row in rows if not row.missing} == set(product(ELEMENTARY, KINDS, BACKENDS))


def test_private_parts_are_measured_and_put_back():
    before = dict(vars(_torch_internals))
    rows = [*internals.calls(0.0), *internals.operations(0.0)]
    assert vars(_torch_internals) == before
    assert all(row.seconds > 0 and row.worth > 0 for row in rows)
    table = (ROOT / "docs/inside.md").read_text()
    assert {row.part for row in rows if row.part not in table} == set()


def test_the_cost_of_modes():
    """It is no more than 5 % of a step of a model of width 512."""
    rows = json.loads((ROOT / "benchmarks/results/modes.json").read_text())["rows"]
    ratios = {row["width"]: row["ratio"] for row in rows}
    assert ratios[512] < 1.05
    assert modes.measure(64, 2, 1).seconds > 0


def test_instructions_in_the_documentation_are_those_of_the_results():
    """Each row is the sum over the passes of a kernel."""
    rows = json.loads((ROOT / "benchmarks/results/instructions.json").read_text())["rows"]
    page = (ROOT / "docs/inside.md").read_text()
    part = page.partition("<!-- instructions -->")[2].partition("<!-- end -->")[0]  # others have such rows
    table = re.findall(r"\| `(\S+)` (\w+)(?:, (\w+))? \| (.*) \|", part)
    assert len(table) > 10
    for text, operation, dtype, cells in table:
        sums = []
        for vectors in ("avx512", "avx2"):
            kernel = vectors, text, operation, dtype or "float32"
            found = [row for row in rows if (row["vectors"], row["format"], row["operation"], row["dtype"]) == kernel]
            sums.append(sum(row["each"] for row in found))
        assert cells.split(" | ") == [f"{number:.2f}" for number in sums]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads assembly code of x86")
@some(
    (0, 0),
    **{
        "vectors, elements": [("avx2", 8), ("avx512", 16)],
        "text, operation": [("float(5,2)", "nearest"), ("e4m3fn", "encode"), ("e4m3fn", "decode")],
    },
)
def test_instructions_are_counted(vectors, elements, text, operation):
    (found,) = instructions.passes(text, operation, torch.float32, vectors)
    assert (found.name, found.elements % elements) == ("elements", 0)
    assert 1 < found.each < 6
    assert 10 < found.instructions * elements / found.elements < 60
    names = [one.name for one in instructions.passes("nvfp4", "nearest", torch.bfloat16, vectors)]
    assert sorted(names) == sorted(instructions.PASSES)
