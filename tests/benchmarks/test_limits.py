"""What `benchmarks.speed` says of missed limits."""

import json

import pytest

from benchmarks.speed import Case, Row, against_torch
from benchmarks.support.limits import RESULTS, SMALL, counts, groups

KNOWN = {
    ("avx2", "float(5,2)", "nearest", "float32"): 4.0,
    ("avx2", "posit16", "nearest", "float32"): 6.0,
    ("avx2", "e4m3fn", "encode", "float32"): 16.0,
}


def row(text, exponent, ratio, limit=4.0, operation="nearest", vectors="avx2"):
    baseline = 1e-9 * (1 << exponent) / 4  # a quarter of a nanosecond an element
    return Row(vectors, Case(operation, text, "float32", exponent), ratio * baseline, baseline, limit)


def test_missed_limits_are_named_by_group():
    ratios = [("float(5,2)", 20, 8), ("posit16", 20, 8), ("posit16", 20, 3), ("e4m3fn", 24, 5), ("e4m3fn", 6, 9)]
    rows = [row(*one).record() for one in ratios]
    rows.append(row("e4m3fn", 20, 4, operation="encode").record())
    assert [one.line for one in groups(rows, KNOWN, 2)] == [
        "avx2, element, 2^20: 2 of 3 missed; 4.0 to 6.0 instructions an element, 1.0 to 1.5 a nanosecond and core; "
        "the limits need 2.0 to 3.0, and the fastest row has 8.0",
        "avx2, element, 2^24: 1 of 1 missed; not counted",
        "avx2, element, 2^6: 1 of 1 missed; Python's steps of a call",
    ]
    assert not list(groups([row("posit16", 20, 3).record(), row("posit16", 20, 9, None).record()], KNOWN, 2))


def test_stochastic_rounding_in_jax_has_the_kernel_of_torch_as_its_baseline():
    torch_rows = [
        row("float(5,2)", 20, ratio, 0.25, "stochastic", name) for ratio, name in ((2, "avx2"), (1, "avx512"))
    ]
    other = row("float(5,2)", 20, 2, vectors="jax")
    found = against_torch([row("float(5,2)", 20, 3, 1.7, "stochastic", "jax"), other], torch_rows)
    assert [one.ratio for one in found] == pytest.approx([3, 2])
    assert [one.met for one in found] == [False, True]


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_no_missed_limit_of_the_result_file_is_unexplained(framework):
    record = json.loads((RESULTS / "speed.json").read_text())
    rows = [one for one in record["rows"] if (one["vectors"] == "jax") == (framework == "jax")]
    found = list(groups(rows, counts(), record["machine"]["torch threads"]))
    assert [one.line for one in found if not one.each and one.exponent > SMALL] == []
